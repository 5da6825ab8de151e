"""Plants a fault in a copy of the specification, which is seen directly, through a refusing adapter, or on tensors."""

import ast
import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from conformance.frameworks.implementation import Implementation
from conformance.frameworks.targets import load
from conformance.rows.row import Row
from conformance.specification.changed import importable, renamed, write_copy
from tests.calls.packages import adapted

NAME = "mutated_reference"
"""The package that the copy is imported as, while it lasts."""

_HERE = Path(__file__).parent


class Setting(Enum):
    """How the suite gets to see a copy of the specification.

    Attributes:
        SPECIFICATION: as it is: NumPy, every call served, every backward pass written out.
        REFUSING: through an adapter that serves plain calls alone: no empty sequence length, no packing, no initial
            state, no clipping. The suite must find what remains visible with as much certainty.
        TENSORS: the forward loops run on PyTorch tensors and are differentiated by autograd: the first thing that
            anybody would write.
    """

    SPECIFICATION = "specification"
    REFUSING = "refusing adapter"
    TENSORS = "PyTorch loop"


TENSOR_MODULES = ("_gates.py", "_scan.py", "_decay.py", "_mlstm.py", "_gru.py")
"""The modules of the specification whose forward loops run on tensors as they run on arrays."""

TENSOR_OPERATIONS = (
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "mlstm",
    "mlstm_step",
    "gru",
)

TENSOR_STEPS = {"mlstm": 70, "gru": 70}
"""Most steps of a loop of many small operations, which is slow under autograd; the other loops have as many as ever."""

_ADAPTERS = {Setting.REFUSING: "refusing_adapter.py", Setting.TENSORS: "tensor_adapter.py"}


def copy_of_reference(directory: Path, row: Row | None, setting: Setting = Setting.SPECIFICATION) -> None:
    """Write a package `NAME` into ``directory``: the reference, with a fault or without."""

    def edit(file: str, text: str) -> str:
        if setting is Setting.TENSORS and file in TENSOR_MODULES:
            return _on_tensors(text)
        if setting is Setting.TENSORS and file == "_arrays.py":
            return (_HERE / "tensor_framework.py").read_text(encoding="utf-8")
        return text

    write_copy(directory, NAME, () if row is None else (row,), edit)
    if setting in _ADAPTERS:
        adapter = (_HERE / _ADAPTERS[setting]).read_text(encoding="utf-8")
        (directory / f"adapted_{NAME}.py").write_text(renamed(adapter, NAME), encoding="utf-8")


class _TensorMethods(ast.NodeTransformer):
    """Gives the methods of an array the names that they have on a tensor, and NumPy's functions their stand-ins."""

    _METHODS = {"copy": "clone", "astype": "to"}  # noqa: RUF012

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._METHODS.get(node.attr, node.attr)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        if [alias.name for alias in node.names] == ["numpy"]:
            return ast.parse("from tests.suite.mutants import tensor_numpy as np").body[0]
        return node


def _on_tensors(text: str) -> str:
    return ast.unparse(ast.fix_missing_locations(_TensorMethods().visit(ast.parse(text))))


@contextmanager
def planted(mutant: Row | None, setting: Setting = Setting.SPECIFICATION) -> Iterator[Implementation]:
    """The mutated copy, or one without a fault, as an implementation; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="gatespec-mutant-") as directory:
        copy_of_reference(Path(directory), mutant, setting)
        target = NAME if setting is Setting.SPECIFICATION else f"adapted_{NAME}"
        with importable(Path(directory), NAME, f"adapted_{NAME}"):
            if setting is Setting.SPECIFICATION:
                copied = importlib.import_module(target)
                yield adapted("numpy", target, {name: getattr(copied, name) for name in copied.__all__})
            else:
                yield load(target, "torch" if setting is Setting.TENSORS else "numpy", "cpu")
