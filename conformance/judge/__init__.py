"""Choosing laws, drawing their cases, trying them in worker processes, and the result of each."""
