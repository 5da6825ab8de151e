"""Parts that operations share whose steps depend on each other through recurrent weights."""
