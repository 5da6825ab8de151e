"""Allowed imports between packages: read from the source, then tried with forbidden modules made unimportable."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance import __version__
from conformance.command import requirements

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("reference", "jax_impl", "torch_impl", "conformance")
FRAMEWORKS = {"torch", "triton", "jax", "jaxlib", "flax", "optax"}
# What a package may import from outside the standard library, NumPy and itself.
IMPLEMENTATIONS = {"jax_impl": {"jax", "jaxlib", "flax"}, "torch_impl": {"torch", "triton"}}
KERNEL_FOLDERS = {"kernels", "triton", "_triton", "pallas", "_pallas"}
SHARED_MODULES = ("reference.arguments", "reference.backends")
# The module that finds another distribution's `reference` is imported before it.
CLASH = "_gatespec_clash"
# What a package's bridges to other packages, in its folder `interop`, may import besides.
SHARED_BRIDGES = (
    "reference.interop.gru_weights",
    "reference.interop.gru_checkpoints",
    "reference.interop.gru_frameworks",
    "reference.interop.kernel_registries",
    "reference.interop.slstm_weights",
    "onnxscript",
)


@dataclass(frozen=True)
class Import:
    """One imported name, absolute: `from reference import arguments` and `import reference.arguments` read alike."""

    file: Path
    line: int
    name: str
    top_level: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def within(self, *modules: str) -> bool:
        return any(f"{self.name}.".startswith(f"{module}.") for module in modules)


def sources(*parts: str) -> list[Path]:
    return sorted(ROOT.joinpath(*parts).rglob("*.py"))


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path, source: str | None = None) -> Iterator[Import]:
    """Every import of a file, wherever it stands; those under `if TYPE_CHECKING` never run and do not count."""
    # A relative import counts from the package: of an `__init__.py`, that is the module itself.
    package = module_name(file).split(".")
    if file.name != "__init__.py":
        package = package[:-1]

    def walk(node: ast.AST, top_level: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, top_level)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                stem = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    yield Import(file, child.lineno, f"{stem}.{alias.name}", top_level)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                yield from walk(ast.Module(child.orelse, []), top_level)
            else:
                inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, top_level and not inner)

    yield from walk(ast.parse(file.read_text() if source is None else source), True)


def public(package: str) -> list[str]:
    """The public names of a package, under both names: `torch_impl.gru` and its module, `torch_impl._gru`."""
    found = [i.name for i in imports(ROOT / package / "__init__.py") if i.package == package]
    found = [name for name in found if not name.rpartition(".")[2].startswith("_")]
    return [f"{package}.{name.rpartition('.')[2]}" for name in found] + [name.rpartition(".")[0] for name in found]


def assert_none(offenders: list[Import], rule: str) -> None:
    assert not offenders, "\n".join([rule, *map(str, offenders)])


@pytest.mark.parametrize(
    ("source", "name", "top_level"),
    [
        ("from ..arguments import check", "reference.arguments.check", True),
        ("from . import _tiles", "reference.kernels._tiles", True),
        ("import jax.numpy as jnp", "jax.numpy", True),
        ("def f():\n    import torch", "torch", False),
        ("class A:\n    try:\n        from torch import nn\n    except ImportError: pass", "torch.nn", True),
        ("if TYPE_CHECKING:\n    import jax\nelse:\n    import flax", "flax", True),
    ],
)
def test_the_reader_sees_every_form_of_import(source: str, name: str, top_level: bool) -> None:
    (found,) = imports(ROOT / "reference" / "kernels" / "_gru.py", source)
    assert (found.name, found.top_level) == (name, top_level)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_there_to_be_read(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file()


def test_reference_imports_numpy_alone() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "reference"}
    offenders = [i for f in sources("reference") for i in imports(f) if i.package not in allowed]
    assert_none(offenders, "reference imports NumPy and the standard library alone")


@pytest.mark.parametrize("package", IMPLEMENTATIONS)
def test_an_implementation_imports_its_framework_and_two_modules_of_reference(package: str) -> None:
    allowed = {*sys.stdlib_module_names, "numpy", CLASH, package, *IMPLEMENTATIONS[package]}
    bridges = ROOT / package / "interop"
    offenders = [
        i
        for f in sources(package)
        for i in imports(f)
        if i.package not in allowed
        and not i.within(*SHARED_MODULES)
        and not (f.is_relative_to(bridges) and i.within(*SHARED_BRIDGES))
    ]
    assert_none(
        offenders,
        f"{package} imports {sorted(IMPLEMENTATIONS[package])}, {' and '.join(SHARED_MODULES)}, and nothing else",
    )


@pytest.mark.parametrize("package", ["reference", *IMPLEMENTATIONS])
def test_bridges_are_imported_only_when_asked_for(package: str) -> None:
    folder = ROOT / package / "interop"
    offenders = [
        i
        for f in sources(package)
        if not f.is_relative_to(folder)
        for i in imports(f)
        if i.within(*(f"{name}.interop" for name in ("reference", *IMPLEMENTATIONS)))
    ]
    assert_none(offenders, f"nothing in {package} but its bridges imports a bridge")


@pytest.mark.parametrize("package", IMPLEMENTATIONS)
def test_kernels_know_no_public_operation(package: str) -> None:
    kernels = [file for file in sources(package) if KERNEL_FOLDERS & set(file.relative_to(ROOT).parts)]
    assert kernels
    offenders = [i for f in kernels for i in imports(f) if i.within(*public(package))]
    assert_none(offenders, f"operations import kernels; no kernel module of {package} imports an operation")


def test_conformance_reaches_frameworks_only_through_its_adapters() -> None:
    forbidden = {*FRAMEWORKS, *IMPLEMENTATIONS}
    adapters = ROOT / "conformance" / "frameworks"
    offenders = [
        i
        for f in sources("conformance")
        for i in imports(f)
        if i.package in forbidden and not (f.is_relative_to(adapters) and i.package not in IMPLEMENTATIONS)
    ]
    assert_none(offenders, "conformance imports a framework in frameworks/ alone, and no implementation by name")


def test_conformance_imports_what_its_extra_installs() -> None:
    ours = {*sys.stdlib_module_names, *PACKAGES, *FRAMEWORKS, "numpy", CLASH}
    adapters = ROOT / "conformance" / "frameworks"
    files = [file for file in sources("conformance") if not file.is_relative_to(adapters)]
    third_party = {i.package for file in files for i in imports(file)} - ours
    assert third_party == {*requirements.PACKAGES, "pytest"}
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["conformance"]
    assert {line.partition(">")[0] for line in extra} == third_party


def test_conformance_loads_its_adapters_lazily() -> None:
    adapters = [
        module_name(f)
        for f in sources("conformance", "frameworks")
        if any(i.package in FRAMEWORKS and i.top_level for i in imports(f))
    ]
    offenders = [
        i
        for f in sources("conformance")
        if module_name(f) not in adapters
        for i in imports(f)
        if i.top_level and i.within(*adapters)
    ]
    assert_none(offenders, "an adapter is imported when a target of its framework is run, not before")


@pytest.mark.parametrize("package", ["torch_impl", "conformance"])
def test_pytorchs_compiler_is_imported_where_something_is_compiled(package: str) -> None:
    """Its import takes longer than PyTorch's own."""
    offenders = [
        i
        for f in sources(package)
        for i in imports(f)
        if i.top_level and i.within("torch._dynamo", "torch._inductor", "torch._functorch")
    ]
    assert_none(offenders, f"{package} imports PyTorch's compiler inside of functions alone")


# Runs before anything else in a fresh interpreter: to the imports that follow, the refused modules are not installed.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)
        return None

sys.meta_path.insert(0, Blocker())
"""


def run_blocked(refused: str, code: str) -> None:
    """Runs `code` where every module for which the expression `refused` (of `name`) holds cannot be imported."""
    script = BLOCKER.format(refused=refused) + code
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]


def refuse(*packages: str) -> str:
    return f"name.partition('.')[0] in {set(packages)!r}"


# Import alone would pass with the forbidden module imported at the first call.
CALL = """
import {package}
assert {package}.rev_cumsum({array}([1.0, 2.0])).tolist() == [3.0, 2.0]
z = {array}([[[[0.0]]]])
assert {package}.mlstm(z, z, z, z[..., 0], z[..., 0]).shape == (1, 1, 1, 1)
"""


def test_reference_works_with_numpy_alone() -> None:
    refused = "name.partition('.')[0] not in {*sys.stdlib_module_names, 'numpy', 'reference'}"
    run_blocked(refused, CALL.format(package="reference", array="__import__('numpy').array"))


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here")
def test_torch_impl_works_without_jax_and_triton() -> None:
    refused = refuse("jax", "jaxlib", "flax", "triton", "jax_impl", "conformance", "hypothesis", "rich", "click")
    run_blocked(refused, CALL.format(package="torch_impl", array="__import__('torch').tensor"))


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed here")
def test_jax_impl_works_without_torch() -> None:
    # Not rich: flax imports it.
    refused = refuse("torch", "triton", "torch_impl", "conformance", "hypothesis", "click")
    run_blocked(refused, CALL.format(package="jax_impl", array="__import__('jax').numpy.array"))


@pytest.mark.parametrize("installed", ["neither", "torch", "jax"])
def test_conformance_works_with_the_frameworks_that_are_there(installed: str) -> None:
    if installed != "neither" and find_spec(installed) is None:
        pytest.skip(f"{installed} is not installed here")
    families = {"torch": {"torch", "triton", "torch_impl"}, "jax": {"jax", "jaxlib", "flax", "optax", "jax_impl"}}
    refused = set().union(*(names for family, names in families.items() if family != installed))
    target = {"neither": "reference", "torch": "torch_impl", "jax": "jax_impl"}[installed]
    code = f"""
import conformance
assert not {refused!r} & set(sys.modules)
import runpy
sys.argv = ["conformance", "run", {target!r}, "--op", "rev_cumsum", "--examples", "2"]
runpy.run_module("conformance", run_name="__main__")
"""
    run_blocked(refuse(*refused), code)


def without_third_party(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the packages of this repository and the standard library alone: not even NumPy."""
    command = [sys.executable, "-S", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_the_command_says_in_a_line_which_extra_it_needs() -> None:
    done = without_third_party("-m", "conformance", "run", "reference")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: gatespec cannot run, because click, hypothesis, jinja2, msgspec, rich, safetensors are not installed: "
        'the extra "conformance" has what it needs; from a checkout: pip install ".[conformance]"\n'
    )


@pytest.mark.parametrize("option", ["--version", "--help", "-h"])
def test_help_and_version_need_no_extra(option: str) -> None:
    done = without_third_party("-m", "conformance", option)
    assert (done.returncode, done.stderr) == (0, "")
    if option == "--version":
        assert done.stdout == f"gatespec, version {__version__}\n"
    else:
        assert "Usage: gatespec [OPTIONS] COMMAND" in done.stdout
        assert 'rich, safetensors are not installed:\n  the extra "conformance"' in done.stdout


def test_conformance_is_imported_where_nothing_is_installed() -> None:
    done = without_third_party("-c", "import conformance, sys; print(conformance.__version__, 'numpy' in sys.modules)")
    assert (done.returncode, done.stdout.split()[1:]) == (0, ["False"]), done.stderr
