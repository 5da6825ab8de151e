"""Evidence that a kernel is right on hardware: the runs that it passed, as data that the choice of a backend reads.

A package with kernels keeps its evidence in ``proofs.json``, which ``python -m benchmarks prove`` derives from the
committed results of ``benchmarks/on_gpu.sh``.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ACCEPT_UNPROVEN = os.environ.get("GATESPEC_UNPROVEN_KERNELS") == "1"
"""Whether a call that names no backend may use kernels without evidence. Read once, because choices are cached."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A run on hardware in which a backend passed for an operation.

    Attributes:
        operation: the public operation.
        backend: the backend's name.
        dtypes: the dtypes of values in which it passed.
        device: the name of the GPU, ``"NVIDIA H200"``.
        architecture: the architecture for which kernels are compiled, ``"sm_90"``.
        versions: the versions of the packages that compile and launch the kernels, ``{"triton": "3.9.0", ...}``.
        result: the committed file that shows it, relative to the repository.
    """

    operation: str
    backend: str
    dtypes: tuple[str, ...]
    device: str
    architecture: str
    versions: Mapping[str, str]
    result: str

    def covers(self, dtype: str, architecture: str, versions: Mapping[str, str]) -> bool:
        """Whether it is evidence for a call: same dtype and architecture, and every package in the same series."""
        same = all(series(versions.get(name, "")) == series(version) for name, version in self.versions.items())
        return same and dtype in self.dtypes and architecture == self.architecture


def series(version: str) -> str:
    """The first two numbers of a version, ``"2.15"`` of ``"2.15.0+cu130"``: a patch release needs no new evidence."""
    return ".".join(version.split(".")[:2])


def where(architecture: str, versions: Mapping[str, str]) -> str:
    """The criteria by which evidence is compared, in words: ``"sm_90 with torch 2.15 and triton 3.9"``."""
    packages = [f"{name} {series(version)}" for name, version in versions.items()]
    return f"{architecture or 'an unknown GPU'} with {' and '.join(packages)}"


def read_proofs(path: Path) -> tuple[Proof, ...]:
    """The evidence in a package's ``proofs.json``."""
    return tuple(Proof(**{**entry, "dtypes": tuple(entry["dtypes"])}) for entry in json.loads(path.read_text("utf-8")))
