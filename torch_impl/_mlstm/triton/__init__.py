"""Triton kernels of the operation, how they are launched, and what they support."""
