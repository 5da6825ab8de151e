"""Helpers shared by the Triton kernels of all operations. Triton itself is imported only when a kernel runs."""
