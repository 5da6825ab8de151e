"""The part of a grid of parameters that `make test` runs."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grids import each_value

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.grid
@pytest.mark.parametrize("letter", "abc")
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_grid(letter: str, number: int) -> None:
    """Collected below; what it checks by itself is that a mark changes nothing in a plain run."""
    assert letter in "abc" and number in range(1, 6)


@pytest.mark.parametrize("letter", ["a", pytest.param("b", marks=pytest.mark.whole_grid)])
def test_of_which_one_set_is_left_to_the_night(letter: str) -> None:
    assert letter in "ab"


@pytest.mark.parametrize("letter", "ab")
def test_without_a_mark(letter: str) -> None:
    assert letter in "ab"


@pytest.mark.parametrize("sizes", [(1,), (4,), (7, 2), (2, 7), (4, 4), (3, 1, 5), (2, 2, 2), (6, 4)])
def test_every_value_occurs_in_as_few_sets_as_the_longest_axis_has(sizes: tuple[int, ...]) -> None:
    names = "abc"[: len(sizes)]
    sets = [dict(zip(names, values, strict=True)) for values in itertools.product(*map(range, sizes))]
    chosen = [sets[at] for at in each_value(sets)]
    assert len(chosen) == max(sizes)
    for name, size in zip(names, sizes, strict=True):
        found = [of[name] for of in chosen]
        assert set(found) == set(range(size))
        assert max(map(found.count, found)) <= min(map(found.count, found)) + 1


def test_nothing_is_chosen_from_nothing() -> None:
    assert each_value([]) == []


@pytest.mark.parametrize("operation", ["mlstm", "gru"])
@pytest.mark.parametrize("number", [1, 2])
def test_of_two_operations(operation: str, number: int) -> None:
    assert operation in ("mlstm", "gru") and number in (1, 2)


@pytest.mark.parametrize("wing", ["reference", "torch_impl", "jax_impl"])
def test_of_each_package(wing: str) -> None:
    assert wing


@pytest.mark.parametrize(
    ("how", "counts"), [("whole", (15, 2, 2, 4, 3)), ("each", (5, 1, 2, 4, 3)), ("one", (1, 1, 1, 2, 2))]
)
def test_the_sets_that_each_option_keeps(how: str, counts: tuple[int, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "--grids", how]
    names = "a_grid", "of_which_one_set_is_left_to_the_night", "without_a_mark", "of_two_operations", "of_each_package"
    chosen = ["-k", " or ".join(names), "tests/house/test_grids.py"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tuple(done.stdout.count(f"::test_{name}[") for name in names) == counts
