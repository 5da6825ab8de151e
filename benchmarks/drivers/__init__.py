"""How the functions of each framework are fed, differentiated and waited for."""
