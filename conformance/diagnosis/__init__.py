"""Experiments that find out for which calls a target is right, and why it is wrong for others."""
