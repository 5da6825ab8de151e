"""Kernels on a GPU, or without one: compiled ahead of time, tuned, and proven by ``on_gpu.sh``."""
