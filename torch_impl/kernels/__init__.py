"""Triton kernels and their launchers. Nothing here knows a public operation; Triton is imported when a kernel runs."""
