"""Recurrences that a file states: what follows from one step, what is refused, and what a target is told."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
from conformance import oracle
from conformance.base.exceptions import UsageError
from conformance.operations import add_specification, stated
from conformance.specification import Recurrence, gate, log_decay, state, value, whole
from conformance.tolerance.budget import Precision

STATED = """
import numpy as np

from conformance.specification import Recurrence, gate, log_decay, state, value


def step(state, q, k, v, g, beta, scale):
    kept = np.exp(g)[..., None, None] * state
    missing = v - np.einsum("bnk,bnkv->bnv", k, kept)
    state = kept + np.einsum("bnk,bnv->bnkv", k, beta[..., None] * missing)
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    return scale * np.einsum("bnk,bnkv->bnv", q, state), state


def undecayed(state, q, k, v, g, beta, scale):
    missing = v - np.einsum("bnk,bnkv->bnv", k, state)
    state = np.exp(g)[..., None, None] * state + np.einsum("bnk,bnv->bnkv", k, beta[..., None] * missing)
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    return scale * np.einsum("bnk,bnkv->bnv", q, state), state


delta = Recurrence(
    name="delta",
    step=step,
    arguments={
        "q": value("B S N K"),
        "k": value("B S Nk K", length=1),
        "v": value("B S N V"),
        "g": log_decay("B S N"),
        "beta": gate("B S N", 0, 1),
        "initial_state": state("B N K V", final="state"),
    },
    outputs={"o": "B S N V"},
    options={"scale": (None, 0.3)},
    faults={"the memory is read before it decays": undecayed},
)
"""
TARGET = """
import numpy as np
import reference


def delta(q, k, v, g, beta, *, initial_state=None, cu_seqlens=None, scale=None):
    return reference.gated_delta_rule(
        q, k, v, g, beta, initial_state=initial_state, cu_seqlens=cu_seqlens, scale=scale
    )


def delta_backward(q, k, v, g, beta, *, initial_state=None, cu_seqlens=None, scale=None, do, dstate):
    options = {"initial_state": initial_state, "cu_seqlens": cu_seqlens, "scale": scale}
    return reference.gated_delta_rule_backward(q, k, v, g, beta, **options, do=do, dstate=dstate)
"""
AVERAGES = """
import numpy as np

from conformance.specification import Recurrence, gate, input_gate, state, value


def step(c, n, m, v, i, f):
    # A mean of v with weights exp(i), which f forgets; c and n are in units of exp(m).
    carried = -np.logaddexp(0.0, -f) + m
    m_new = np.maximum(carried, i)
    unit = np.maximum(m_new, -1e30)
    kept, written = np.exp(carried - unit), np.exp(i - unit)
    c, n = kept * c + written * v, kept * n + written
    return np.where(n > 0, c / np.where(n > 0, n, 1.0), 0.0), c, n, m_new


averages = Recurrence(
    name="averages",
    step=step,
    arguments={
        "v": value("B S N"),
        "i": input_gate("B S N"),
        "f": gate("B S N"),
        "c0": state("B N", final="c", log_scale="m"),
        "n0": state("B N", final="n", log_scale="m", low=0.5),
        "m0": state("B N", final="m", empty=-np.inf),
    },
    outputs={"h": "B S N"},
)
"""
AVERAGES_TARGET = """
import torch


def averages(v, i, f, *, c0=None, n0=None, m0=None, cu_seqlens=None):
    if cu_seqlens is not None:
        raise NotImplementedError("dense only")
    dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
    v, i, f = (x.to(wide) for x in (v, i, f))
    B, S, N = v.shape
    c, n = (torch.zeros(B, N, dtype=wide) if x is None else x for x in (c0, n0))
    m = torch.full((B, N), -torch.inf, dtype=wide) if m0 is None else m0
    h = [v[:, :0]]
    for t in range(S):
        carried = torch.nn.functional.logsigmoid(f[:, t]) + m
        m_new = torch.maximum(carried, i[:, t])
        unit = m_new.clamp(min=torch.finfo(wide).min)
        kept, written = (carried - unit).exp(), (i[:, t] - unit).exp()
        c, n, m = kept * c + written * v[:, t], kept * n + written, m_new
        h.append(torch.where(n != 0, c / torch.where(n != 0, n, 1), 0)[:, None])
    return torch.cat(h, 1).to(dtype), c, n, m
"""


def run(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(reference.__file__).parents[1]), str(folder)])
    command = [sys.executable, "-m", "conformance", "run", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stated_delta.py"
    path.write_text(STATED)
    return path


@pytest.mark.parametrize(("packed", "given"), list(product((False, True), repeat=2)))
def test_one_step_is_enough_for_value_gradient_and_tolerance(file: Path, packed: bool, given: bool) -> None:
    (operation,) = stated.read(file)
    kind, options = type(operation.rows[0]), {"scale": 0.3} if given else {}
    sizes = {"N": 4, "K": 5, "V": 3, "serves": (2,), "with_scale": options.get("scale")}
    lengths = {"B": 3, "S": 0, "lengths": (4, 0, 3)} if packed else {"B": 2, "S": 7}
    case = kind(**sizes, **lengths, state=given, gates="resets", seed=3)
    call = operation.call_of(case, "float64")
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    found = operation.value(arrays, call.options, Precision("float32", 7))
    named = {f"d{name}": x for name, x in cotangents.items()}
    expected = dict(zip(("o", "state"), reference.gated_delta_rule(**arrays, **options), strict=True))
    for name, x in expected.items():
        np.testing.assert_allclose(found.values[name], x, rtol=0, atol=1e-13)
    of_gradient = operation.gradient(arrays, call.options, cotangents, Precision("float32", 7))
    for name, x in reference.gated_delta_rule_backward(**arrays, **options, **named).items():
        np.testing.assert_allclose(of_gradient.values[name], x, rtol=0, atol=1e-13)
        slack, size = np.asarray(of_gradient.slack[name]), np.abs(x).max()
        assert 0 < slack.max() < 1000 * 2.0**-24 * size


def test_a_stated_recurrence_is_judged_as_gatespecs_own_are(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.py"
    target.write_text(TARGET)
    judged = run(tmp_path, target, "--spec", file, "--examples", "6", "--max-steps", "70")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    faulty = TARGET.replace("initial_state=initial_state, cu_seqlens", "initial_state=None, cu_seqlens")
    target.write_text(faulty)
    judged = run(tmp_path, target, "--spec", file, "--quick")
    assert judged.returncode == 1
    assert "where a call has an initial state" in " ".join(judged.stdout.split())
    assert f"--spec {file}" in judged.stdout


def test_a_memory_in_units_of_its_stabiliser_follows_from_its_roles(tmp_path: Path) -> None:
    specification, target = tmp_path / "averages.py", tmp_path / "target.py"
    specification.write_text(AVERAGES)
    target.write_text(AVERAGES_TARGET)
    arguments = (target, "--spec", specification, "--dtype", "float32", "--examples", "6", "--max-steps", "70")
    judged = run(tmp_path, *arguments)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    target.write_text(AVERAGES_TARGET.replace("(dtype), c, n, m", "(dtype), 2 * c, 2 * n, m"))
    judged = run(tmp_path, *arguments, "--law", "value")
    assert judged.returncode == 1
    assert "c is 2 × what it should be" in judged.stdout


def test_a_fault_that_is_stated_is_what_the_report_says(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.py"
    target.write_text(
        "import numpy as np\nfrom stated_delta import delta as rule, undecayed\n\n\n"
        "def delta(q, k, v, g, beta, *, cu_seqlens=None, **given):\n"
        "    if cu_seqlens is not None:\n        raise NotImplementedError('dense only')\n"
        "    arrays = {'q': q, 'k': k, 'v': v, 'g': g, 'beta': beta, **given}\n"
        "    return tuple(rule.called(rule.with_step(undecayed), arrays, {}).values())\n"
    )
    judged = run(tmp_path, target, "--spec", file, "--quick", "--only", "values")
    assert judged.returncode == 1
    said = "delta equals the recurrence with a fault: the memory is read before it decays"
    assert said in " ".join(judged.stdout.split())


BAD = [
    ('bnv", q, state)', 'bvn", q, state)', "expected \\["),
    (
        "beta[..., None] * missing)\n    scale",
        "np.arcsinh(missing))\n    scale",
        "line 10: no derivative of np",
    ),
    ('"v": value("B S N V")', '"w": value("B S N V")', "unexpected keyword argument 'w'"),
    ("return scale * np", "return np.zeros(3), scale * np", "the step returns 3 arrays; expected o, state"),
    ('name="delta"', 'name="gru"', "there is an operation gru already"),
    ("kept = np.exp(g)", "kept = (1 + 0 * np.maximum(g, 0) + 0 * g)", "o is NaN for g of ±∞ or about ±10,000"),
    ("faults=", "spellings=", "o of the spelling 'the memory is read before it decays' is not that of the step"),
    ("faults=", "backward=lambda q, **rest: {'q': 0 * q}, faults=", "the gradient of q by `backward`"),
    ("delta = Recurrence", "raise ValueError('early')\ndelta = Recurrence", "line 22: early"),
    ("delta = Recurrence(", "delta = dict(", "states no recurrence"),
    ("def step(", "def step", "cannot be imported"),
]


@pytest.mark.parametrize(("old", "new", "said"), BAD, ids=[said for _, _, said in BAD])
def test_a_statement_that_is_not_right_is_refused_before_any_target(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.py"
    assert old in STATED
    path.write_text(STATED.replace(old, new, 1))
    with pytest.raises(UsageError, match=f"(?s){said}"):
        add_specification(path)


MIN_GRU = """
from conformance.specification import Recurrence, gate, sigmoid, state, value


def step(state, k, x):
    z = sigmoid(k)
    state = (1 - z) * state + z * x
    return state, state


mingru = Recurrence(
    name="mingru",
    step=step,
    arguments={"k": gate("B S H"), "x": value("B S H"), "initial_state": state("B H", final="state")},
    outputs={"h": "B S H"},
)
"""
MIN_GRU_TARGET = """
import torch


def mingru(k, x, *, initial_state=None, cu_seqlens=None):
    if cu_seqlens is not None:
        raise NotImplementedError('dense only')
    a, b = torch.sigmoid(-k.float()), torch.sigmoid(k.float()) * x.float()
    h = torch.zeros_like(b[:, :1]).sum(1) if initial_state is None else initial_state
    steps = []
    for t in range(x.shape[1]):
        h = a[:, t] * h + b[:, t]
        steps.append(h)
    return torch.stack(steps, 1).to(x.dtype) if steps else x, h
"""


def test_the_complement_of_a_sigmoid_may_be_a_sigmoid(tmp_path: Path) -> None:
    """Where x is close to the state, the gradient of k is the small rest of two terms, each with a slope of its own."""
    (tmp_path / "spec.py").write_text(MIN_GRU)
    (tmp_path / "target.py").write_text(MIN_GRU_TARGET)
    judged = run(tmp_path, "target.py", "--spec", "spec.py", "--quick")
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_other_forms_of_a_recurrence() -> None:
    """Weights, several states, an optional array, a state that is not empty, and the whole recurrence at once."""

    def step(c: Any, m: Any, x: Any, f: Any, weight: Any, decay: Any) -> tuple[Any, ...]:
        """A leaky maximum: the second state is the largest input so far."""
        m = np.maximum(m, x) if decay is None else np.maximum(m + decay, x)
        c = np.exp(f) * c + np.einsum("bh,hj->bj", np.exp(x - m), weight)
        return c, c, m

    @whole
    def at_once(c: Any, m: Any, x: Any, f: Any, weight: Any, decay: Any) -> tuple[Any, ...]:
        outputs = np.zeros(x.shape)
        for t in range(x.shape[1]):
            outputs[:, t], c, m = step(c, m, x[:, t], f[:, t], weight, None if decay is None else decay[:, t])
        return outputs, c, m

    leaky = Recurrence(
        name="leaky",
        step=step,
        arguments={
            "x": value("B S H"),
            "f": log_decay("B S H"),
            "weight": value("H H"),
            "decay": gate("B S H", -1, 0, optional=True),
            "c0": state("B H", final="c"),
            "m0": state("B H", final="m", empty=-np.inf),
        },
        outputs={"y": "B S H"},
        spellings={"at once": at_once},
    )
    operation = stated.operation_of(leaky)
    stated.check(operation)
    assert operation.weights == ("weight",) and operation.states == {"c": "c0", "m": "m0"}
    kind = type(operation.rows[0])
    for case in (kind(B=2, S=4, H=3), kind(B=2, S=4, H=3, left_out=("decay",), state=True)):
        call = operation.call_of(case, "float32")
        arrays = oracle.values(call.arrays)
        expected = operation.value(arrays, {}, Precision("float32", 4))
        (y, c, m), alone = (expected.values[name] for name in ("y", "c", "m")), leaky.right[1]()
        np.testing.assert_allclose(leaky.called(alone, arrays, {})["y"], y, rtol=1e-14)
        assert np.isfinite(m).all() and np.array_equal(y[:, -1], c)
        assert replace(case, S=0).options() == {}
