"""Tests against other packages: a file is collected only where what it compares with is installed (`make interop`)."""

import os
from importlib.util import find_spec

# Read when Keras is imported: PyTorch's arrays have float64 without a switch.
os.environ.setdefault("KERAS_BACKEND", "torch")

_PEERS = {
    "test_keras_gru.py": ("keras", "torch", "jax"),
    "test_onnx_gru.py": ("onnx", "onnxruntime", "torch", "jax"),
}

collect_ignore = [file for file, peers in _PEERS.items() if any(find_spec(peer) is None for peer in peers)]
