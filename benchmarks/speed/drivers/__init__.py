"""Drivers, one for each framework, which call, differentiate and synchronise its functions."""
