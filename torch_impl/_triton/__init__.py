"""What the Triton kernels of all operations share. Triton itself is imported when a kernel runs."""
