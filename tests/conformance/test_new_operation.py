"""A new operation needs the files that CONTRIBUTING lists and no other.

A moving average, which has a gate and a state, is added to a copy of the packages, in exactly those files; the suite
then judges it there, finds a fault in it, explains a failure by a script and exports its test vectors. New files are
kept in ``toy_operation/`` under their paths; what is added to files that there are already stands here.
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conformance.package_copies import PACKAGES, ROOT, conformance, copy_packages, listed

TOY = Path(__file__).parent / "toy_operation"
CHECK = """

def check_ema(framework: Framework, x: Any, f: Any, initial: Any) -> Call:
    call = Call("ema", framework)
    call.floating(x=x)
    call.floating(f=f)
    call.shape("x", x, "B S N")
    call.shape("f", f, "B S N")
    if initial is not None:
        call.state_dtype("x", x, initial=initial)
        call.shape("initial", initial, "B N")
    return call
"""


def exporting(module: str, *names: str) -> dict[str, str]:
    """The lines that a package's ``__init__`` gains for names of one of its modules."""
    listed = "".join(f'    "{name}",\n' for name in names)
    return {'"""\n\n': f"from {module} import {', '.join(names)}\n", "__all__ = [\n": listed}


# For each file, what is added after the first occurrence of a text; after "" at the end.
ADDED = {
    "reference/__init__.py": exporting("reference._ema", "ema", "ema_backward"),
    "reference/arguments.py": {"__all__ = [\n": '    "check_ema",\n', "": CHECK},
    "conformance/operations/__init__.py": {
        "from conformance.operations import (\n": "    ema,\n",
        "FILES: tuple[ModuleType, ...] = (\n": "    ema,\n",
    },
    "torch_impl/__init__.py": exporting("torch_impl._ema", "ema"),
    "jax_impl/__init__.py": exporting("jax_impl._ema", "ema"),
}
BROKEN = """
from reference import ema, ema_backward as exact


def ema_backward(x, f, initial=None, *, dy, dlast):
    gradients = exact(x, f, initial, dy=dy, dlast=dlast)
    return {**gradients, "f": 0.9 * gradients["f"]}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the moving average in it."""
    folder = tmp_path_factory.mktemp("packages")
    copy_packages(folder)
    for row in listed("Add an operation"):
        path = row.replace("NAME", "ema")
        if not path.startswith(PACKAGES):
            continue
        if (TOY / path).exists():
            assert not (folder / path).exists()
            shutil.copy(TOY / path, folder / path)
            continue
        text = (folder / path).read_text(encoding="utf-8")
        for anchor, addition in ADDED[path].items():
            before, found, after = text.partition(anchor) if anchor else (text, "", "")
            assert found == anchor, f"{path} has no {anchor!r}"
            text = f"{before}{found}{addition}{after}"
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def test_the_list_names_files_that_there_are_and_all_that_the_moving_average_has() -> None:
    rows = listed("Add an operation")
    assert len(set(rows)) == len(rows) and len([row for row in rows if not row.startswith("tests/")]) <= 13
    for row in rows:
        assert "NAME" in row or (ROOT / row).exists(), row
        assert any((ROOT / row.replace("NAME", name)).exists() for name in ("gru", "modules")), row
    written = {str(path.relative_to(TOY)) for path in TOY.rglob("*.py")} | ADDED.keys()
    assert written == {row.replace("NAME", "ema") for row in rows if row.startswith(PACKAGES)}


OWN = ("value", "gradient")
SHARED = ("split_and_carry", "causality", "permutation", "dtypes", "determinism", "finite")


@pytest.mark.parametrize("target", ["reference", "torch_impl", "jax_impl"])
def test_the_suite_passes_a_right_one(target: str, packages: Path) -> None:
    framework = {"torch_impl": "torch", "jax_impl": "jax"}.get(target, "numpy")
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    report = packages / f"{target}.json"
    laws = (*OWN, *SHARED) if target == "reference" else (*OWN, "split_and_carry", "dtypes")
    chosen = [word for law in laws for word in ("--law", law)]
    options = ("--op", "ema", *chosen, "--examples", 6, "--max-steps", 65, "--jobs", 1, "--json", report)
    done = conformance(packages, "run", target, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(report.read_text(encoding="utf-8"))
    assert {law["law"] for law in found["laws"] if law["status"] == "passed"} == set(laws)


def test_the_suite_finds_a_fault_and_writes_a_script_of_it(packages: Path) -> None:
    target, report = packages / "broken.py", packages / "broken.json"
    target.write_text(BROKEN, encoding="utf-8")
    options = ("--op", "ema", "--law", "gradient", "--examples", 4, "--max-steps", 65, "--jobs", 1, "--json", report)
    done = conformance(packages, "run", target, *options, "--failures", packages / "failures")
    assert done.returncode == 1, done.stdout + done.stderr
    (found,) = json.loads(report.read_text(encoding="utf-8"))
    broken = [law for law in found["laws"] if law["status"] == "failed"]
    assert {law["id"] for law in broken} == {"ema.gradient"}
    assert all(law["counterexample"]["where"] == "gradient of f" for law in broken)
    assert all(law["counterexample"]["script_failed"] for law in broken)
    (script,) = (packages / "failures").glob("*float64.py")
    assert "gradients = ema_backward(x, f, " in script.read_text(encoding="utf-8")


def test_its_test_vectors_are_exported(packages: Path) -> None:
    done = conformance(packages, "vectors", "export", packages / "vectors", "--op", "ema", "--dtype", "float32")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((packages / "vectors" / "manifest.json").read_text(encoding="utf-8"))["cases"]
    assert [given["name"] for given in cases[0]["arguments"]] == ["x", "f", "initial"]
