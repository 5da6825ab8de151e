"""Tests against other packages: a file is collected only where what it compares with is installed (`make interop`)."""

import os
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

# Read when Keras is imported: PyTorch's arrays have float64 without a switch.
os.environ.setdefault("KERAS_BACKEND", "torch")

_PEERS = {
    "test_documents.py": ("onnx", "transformers", "mlstm_kernels", "xlstm", "torch", "jax"),
    "test_keras_gru.py": ("keras", "torch", "jax"),
    "test_onnx_gru.py": ("onnx", "onnxruntime", "torch", "jax"),
    "test_mlstm_kernels.py": ("mlstm_kernels", "xlstm", "torch"),
    "test_mlstm_kernels_jax.py": ("mlstm_kernels", "flax", "jax"),
    "test_transformers.py": ("transformers", "mlstm_kernels", "xlstm", "torch"),
    "test_transformers_gated_delta.py": ("transformers", "torch"),
    "test_xlstm_example.py": ("transformers", "torch", "jax"),
    "test_xlstm_mlstm.py": ("mlstm_kernels", "xlstm", "torch", "flax"),
    "test_xlstm_slstm.py": ("xlstm", "flashrnn", "torch", "flax"),
    "test_frameworks_gru.py": ("torch", "flax"),
    "test_manifests.py": ("kubeflow", "kubeflow_trainer_api"),
}

collect_ignore = [file for file, peers in _PEERS.items() if any(find_spec(peer) is None for peer in peers)]

# mlstm_kernels' JAX packages import Triton kernels next to the native functions; jax-triton needs a build for a GPU.
if find_spec("jax_triton") is None:
    sys.modules["jax_triton"] = ModuleType("jax_triton")

# They warn when they are imported: of deprecated functions of PyTorch, and of what is not installed.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for peer in (
        "mlstm_kernels.torch.chunkwise",
        "mlstm_kernels.torch.parallel",
        "mlstm_kernels.torch.recurrent",
        "mlstm_kernels.jax.chunkwise",
        "xlstm.xlstm_large.model",
        "transformers.models.xlstm.modeling_xlstm",
    ):
        if find_spec(peer.partition(".")[0]) is not None:
            import_module(peer)
