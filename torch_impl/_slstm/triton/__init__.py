"""The Triton kernels of this operation, their launchers, and the rows with what they support."""
