"""A pytest plugin with which tests of kernels compile what they launch, without a GPU: ``-p benchmarks.gpu.baking``.

Their launches reach a driver that does nothing, so that the tests fail; Triton's cache keeps the kernels.
"""

import os
import pkgutil
from importlib import import_module
from pathlib import Path

import torch_impl
from benchmarks.gpu.baked import use_stub
from torch_impl._triton import interpreter

# Every module of kernels is imported while they are still compiled; the tests then take a CPU's arrays for a GPU's.
for module in pkgutil.walk_packages(torch_impl.__path__, "torch_impl."):
    if ".triton" in module.name or "._triton" in module.name:
        import_module(module.name)
use_stub(Path(os.environ["GATESPEC_STUB"]))
interpreter.interpreted = lambda: True
