"""How the functions of each framework are called, differentiated and synchronised."""
