"""A byte-level language model to start from: one command trains it in PyTorch or in JAX, resumes it and samples it."""
