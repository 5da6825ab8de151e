"""A new option of `gru` needs the files that CONTRIBUTING lists and no other.

``toy_option.patch`` adds a lower bound of the forget gate to a copy of the packages, in exactly those files; the suite
then passes the three implementations there and finds a target that ignores the option. Kernels refuse it, because
their rows do not name it. If a line that the patch replaces has changed, change the patch.
"""

import json
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conformance.package_copies import PACKAGES, ROOT, conformance, copy_packages, listed, python

PATCH = Path(__file__).with_name("toy_option.patch")
IGNORING = """
from functools import partial

import reference


def ignoring(function, *arrays, forget_bound=None, **options):
    return function(*arrays, **options)


gru, gru_backward = partial(ignoring, reference.gru), partial(ignoring, reference.gru_backward)
"""
KERNEL = """
import torch, torch_impl

x, W = torch.ones(1, 2, 1, 16), torch.ones(1, 16, 16)
try:
    torch_impl.gru(x, W, x, W, x, W, forget_bound=0.2, kernel_backend="triton")
except ValueError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the option in it."""
    folder = tmp_path_factory.mktemp("packages")
    copy_packages(folder)
    for row in listed("Add an option"):
        if not row.startswith(PACKAGES):
            (folder / row).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / row, folder / row)
    done = subprocess.run(["git", "apply", "--recount", PATCH], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_list_names_the_files_of_the_patch_and_is_short() -> None:
    rows = listed("Add an option")
    changed = re.findall(r"^\+\+\+ b/(.*)$", PATCH.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(changed) and len(rows) <= 15


@pytest.mark.parametrize(
    ("target", "choice"),
    [
        ("reference", ("--law", "value", "--law", "gradient")),
        ("torch_impl", ("--law", "value", "--law", "gradient", "--law", "packed_gradient")),
        ("jax_impl", ("--law", "value", "--dtype", "float32")),
    ],
)
def test_the_suite_passes_an_implementation_that_has_it(target: str, choice: tuple[str, ...], packages: Path) -> None:
    framework = {"torch_impl": "torch", "jax_impl": "jax"}.get(target, "numpy")
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    options = ("--op", "gru", *choice, "--examples", 3, "--max-steps", 33, "--jobs", 1)
    done = conformance(packages, "run", target, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"gru +\d.*✓", done.stdout)


def test_the_suite_finds_a_target_that_ignores_it(packages: Path) -> None:
    target, report = packages / "ignoring.py", packages / "ignoring.json"
    target.write_text(IGNORING, encoding="utf-8")
    options = ("--op", "gru", "--law", "value", "--dtype", "float32", "--examples", 3, "--max-steps", 9)
    done = conformance(packages, "run", target, *options, "--jobs", 1, "--json", report, "--failures", packages / "f")
    assert done.returncode == 1, done.stdout + done.stderr
    (found,) = json.loads(report.read_text(encoding="utf-8"))
    assert {law["id"] for law in found["laws"] if law["status"] == "failed"} == {"gru.value"}


def test_a_kernel_refuses_it(packages: Path) -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = python(packages, "-c", KERNEL)
    assert "`kernel_backend` is triton, which does not support this call" in done.stdout, done.stdout + done.stderr
    assert "it takes no forget_bound" in done.stdout


def test_its_test_vectors_name_it(packages: Path) -> None:
    done = conformance(packages, "vectors", "export", packages / "vectors", "--op", "gru", "--dtype", "float32")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((packages / "vectors" / "manifest.json").read_text(encoding="utf-8"))["cases"]
    assert {case["options"]["forget_bound"] for case in cases} == {None, 0.2}
