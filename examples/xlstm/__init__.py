"""The xLSTM language model: published checkpoints in PyTorch and in JAX, on the operations of gatespec."""
