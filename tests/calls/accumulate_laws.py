"""Gradient accumulation: `accumulate_gradients`, its loop and its scan."""

import inspect
import math
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.dtypes import ROUNDOFF, array
from conformance.cases import SEEDS, Limits, generator, register
from conformance.laws import SMALL, WIDE
from conformance.laws.checker import Checker, LawError
from conformance.tolerance.budget import DIFFERENCES
from tests.calls.refusals import BadUse, register_uses
from tests.calls.registry import law

OP = "accumulate_gradients"
FORMS = ("accumulate_gradients", "accumulate_gradients_loop", "accumulate_gradients_scan")


@register()
@dataclass(frozen=True)
class Batch:
    """A training batch: ``n`` minibatches of ``rows`` rows of ``width`` features."""

    n: int
    rows: int
    width: int
    mutable: bool = True
    seed: int = 0

    @property
    def size(self) -> int:
        return self.n * self.rows * self.width

    def describe(self) -> str:
        return (
            f"{self.n} minibatches of {self.rows} rows, {self.width} features, mutable={self.mutable}, seed={self.seed}"
        )


def batches(limits: Limits) -> st.SearchStrategy:
    if limits.eager:
        counts, rows, widths = st.sampled_from((1, 2, 3, 5, 8)), st.sampled_from((1, 2, 3)), st.sampled_from((1, 3, 4))
        return st.builds(Batch, counts, rows, widths, st.booleans(), SEEDS)
    return st.builds(Batch, st.just(3), st.just(2), st.just(3), st.just(True), st.sampled_from((0, 1)))


def _run(checker: Checker, form: str, params: Any, batch: Any, n: int, loss_fn: Any, **keywords: Any) -> Any:
    implementation = checker.implementation
    state = SimpleNamespace(
        params={name: implementation.native(x) for name, x in params.items()},
        apply_fn=lambda params, x: x @ params["w"] + params["b"] if "b" in params else x @ params["w"],
    )
    given = {name: implementation.native(x) for name, x in batch.items()}
    return implementation.functions[form](state, given, implementation.rng(7), n, loss_fn, **keywords)


def _forms(checker: Checker) -> list[tuple[str, dict[str, Any]]]:
    offered = [form for form in FORMS if form in checker.implementation.functions]
    return [(form, {}) for form in offered] + ([(OP, {"use_scan": True})] if OP in offered else [])


def _squares(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
    error = apply_fn(params, minibatch["x"]) - minibatch["y"]
    return (error * error).mean(), ({"squares": (error * error).sum()}, {"mean": minibatch["x"].mean(0)})


def _squares_alone(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
    loss, (metrics, _) = _squares(params, apply_fn, minibatch, rng)
    return loss, (metrics, None)


@law(OP, "definition", cases=batches, strata=SMALL, dtypes=WIDE, share=0.75)
def mean(checker: Checker, case: Batch) -> None:
    """Gradients are the mean over minibatches, metrics their sum, mutable variables stacked; loop and scan agree.

    g = (1/n) Σ_b ∇L_b,  metrics = Σ_b metrics_b
    """
    rng, n = generator(case.seed, 30), case.n
    x, y = rng.normal(size=(n * case.rows, case.width)), rng.normal(size=(n * case.rows,))
    params = {"w": array(rng.normal(size=case.width), checker.dtype), "b": array(rng.normal(), checker.dtype)}
    batch = {"x": array(x, checker.dtype), "y": array(y, checker.dtype)}
    x, y = (batch[name].values.reshape(n, case.rows, -1) for name in "xy")
    error = x @ params["w"].values + params["b"].values - y[..., 0]
    roundoff = DIFFERENCES if checker.implementation.framework == "numpy" else checker.precision(1).roundoff
    own = 16 * ROUNDOFF[checker.dtype]
    terms = 2 * np.abs(error)[..., None] * np.abs(x) / (n * case.rows)
    size = (np.abs(x) @ np.abs(params["w"].values) + np.abs(params["b"].values) + np.abs(y[..., 0])).max(initial=1.0)
    slack = 16 * roundoff * size * (1 + math.sqrt(n * case.rows))
    total = np.asarray(slack * (terms.sum() + 2 * np.abs(error).mean() + size))
    gradients = {
        "w": (2 * error[..., None] * x).sum(axis=(0, 1)) / (n * case.rows),
        "b": (2 * error).sum() / (n * case.rows),
    }
    metric = np.asarray((error**2).sum()), np.asarray(own * size**2 * (n * case.rows) ** 1.5)
    for form, keywords in _forms(checker):
        loss_fn = _squares if case.mutable else _squares_alone
        got, metrics, mutable = _run(checker, form, params, batch, n, loss_fn, **keywords)
        of = f"{form}{'(use_scan)' if keywords else ''}: "
        for name, expected in gradients.items():
            where, neutral = f"{of}gradient of {name}", checker.implementation.neutral(got[name])
            expected = np.asarray(expected)
            checker.close(where, neutral, expected, np.broadcast_to(total, expected.shape), 1, upcasts=False)
            if neutral.dtype != checker.dtype:
                raise LawError(where, f"dtype {neutral.dtype}, expected {checker.dtype}")
        squares = checker.implementation.neutral(metrics["squares"])
        checker.close(f"{of}metrics", squares, *metric, 1, upcasts=False)
        if case.mutable != (mutable is not None):
            said = f"is {type(mutable).__name__}, expected None"
            said = "is None, expected the variables of every minibatch" if case.mutable else said
            raise LawError(f"{of}mutable", said)
        if case.mutable:
            stacked, allowed = checker.implementation.neutral(mutable["mean"]), own * np.abs(x).max()
            checker.close(f"{of}mutable", stacked, x.mean(axis=1), np.full((n, case.width), allowed), 1, upcasts=False)


def _mean_over_tokens(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
    """The mean over the rows that count; NaN where none does."""
    error = apply_fn(params, minibatch["x"]) - minibatch["y"]
    squares = minibatch["counts"] * error * error
    return squares.sum() * minibatch["reciprocal"][0], ({"squares": squares.sum()}, None)


@law(OP, "definition", cases=batches, strata=SMALL, dtypes=WIDE, share=0.5)
def weighted(checker: Checker, case: Batch) -> None:
    """Minibatches weighted by their numbers of tokens give the gradient of the mean over all tokens; one without tokens
    adds nothing, though its own mean is NaN. Metrics are sums as ever. A given total replaces the sum of weights.

    g = Σ_b w_b ∇L_b / W
    """
    rng, n = generator(case.seed, 32), case.n
    counts = rng.integers(0, 2, size=(n, case.rows))
    counts[0] = 0
    counts[-1, -1] = 1
    weights = counts.sum(1)
    reciprocal = np.array([1 / w if w else np.nan for w in weights])
    values = {"x": rng.normal(size=(n * case.rows, case.width)), "y": rng.normal(size=(n * case.rows,))}
    values |= {"counts": counts.reshape(-1), "reciprocal": np.repeat(reciprocal, case.rows)}
    params = {"w": array(rng.normal(size=case.width), checker.dtype)}
    batch = {name: array(x, checker.dtype) for name, x in values.items()}
    x, y = batch["x"].values, batch["y"].values
    error = x @ params["w"].values - y
    expected = 2 * (values["counts"] * error) @ x / weights.sum()
    roundoff = DIFFERENCES if checker.implementation.framework == "numpy" else checker.precision(1).roundoff
    size = (np.abs(x) @ np.abs(params["w"].values) + np.abs(y)).max(initial=1.0) * max(np.abs(x).max(), 1.0)
    slack = 16 * roundoff * size * size * (1 + math.sqrt(n * case.rows))
    squares = np.asarray((values["counts"] * error**2).sum())
    allowed = np.asarray(16 * ROUNDOFF[checker.dtype] * size**2 * (n * case.rows) ** 1.5)
    of = {"weights": checker.implementation.native(array(weights, ("int32", checker.dtype)[case.seed % 2]))}
    for form, keywords in _forms(checker):
        for total in (None, 2 * int(weights.sum())):
            given = keywords | of | ({} if total is None else {"total_weight": total})
            got, metrics, _ = _run(checker, form, params, batch, n, _mean_over_tokens, **given)
            where = f"{form}({', '.join(given)}): "
            neutral = checker.implementation.neutral(got["w"])
            wanted = expected if total is None else expected / 2
            checker.close(f"{where}gradient", neutral, wanted, np.full(wanted.shape, slack), 1, upcasts=False)
            found = checker.implementation.neutral(metrics["squares"])
            checker.close(f"{where}metrics", found, squares, allowed, 1, upcasts=False)


def _no_exact_gradient(implementation: Any) -> str | None:
    if implementation.framework != "numpy" or any(_takes_gradient(implementation, form) for form in FORMS):
        return None
    return "a NumPy target has an exact gradient where its functions take value_and_grad"


def _takes_gradient(implementation: Any, form: str) -> bool:
    function = implementation.functions.get(form)
    return function is not None and "value_and_grad" in inspect.signature(function).parameters


def _of_linear(loss_fn: Any) -> Any:
    """``value_and_grad`` of a loss Σ w·x_0 for NumPy, which has no gradients."""

    def differentiated(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
        return loss_fn(params, apply_fn, minibatch, rng), {"w": minibatch["x"][0]}

    return differentiated


@law(
    OP,
    "behaviour",
    cases=lambda limits: st.builds(Batch, st.just(16), st.just(1), st.just(3), st.just(False), st.sampled_from((0, 1))),
    dtypes=("bfloat16", "float16"),
    share=0.25,
    skip=_no_exact_gradient,
)
def accumulation(checker: Checker, case: Batch) -> None:
    """Gradients are summed, and weighted, in float32 at least and are returned in each parameter's dtype.

    ∇L_b = x_b exactly ⇒ g = round(Σ_b w_b x_b / Σ_b w_b)
    """
    x = np.round(8 * generator(case.seed, 31).normal(size=(case.n, case.width))) / 8
    x[0] = 256.0
    params = {"w": array(np.ones(case.width), checker.dtype)}

    def linear(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
        loss = (params["w"] * minibatch["x"][0]).sum()
        return loss, ({"loss": loss}, None)

    batch, weights = {"x": array(x, checker.dtype)}, np.arange(case.n) % 2 * 2 + 1
    cases = [(form, keywords, {}) for form, keywords in _forms(checker)]
    cases += [(form, keywords, {"weights": array(weights, "int32")}) for form, keywords, _ in cases]
    for form, keywords, weighted in cases:
        expected = np.average(x, axis=0, weights=weights if weighted else None)
        given = keywords | {name: checker.implementation.native(w) for name, w in weighted.items()}
        if _takes_gradient(checker.implementation, form):
            given["value_and_grad"] = _of_linear
        got, _, _ = _run(checker, form, params, batch, case.n, linear, **given)
        neutral = checker.implementation.neutral(got["w"])
        if neutral.dtype != checker.dtype:
            raise LawError(f"{form}: gradient", f"dtype {neutral.dtype}, expected {checker.dtype}")
        # Sums of up to 16 · 3 · 256 in eighths are exact in float32, and so are their quotients by 16 and by 32.
        checker.close(f"{form}: gradient", neutral, expected, np.zeros(expected.shape), 1, upcasts=False)


@law(OP, "definition", rows=lambda: [Batch(4, 1, 2)])
def rngs(checker: Checker, case: Batch) -> None:
    """Every minibatch has its own random state, the same in loop and scan.

    rng_b = split(rng, n)[b]
    """
    params = {"w": array(np.ones(2), checker.dtype)}
    batch = {"x": array(np.ones((4, 2)), checker.dtype)}

    def loss_fn(params: Any, apply_fn: Any, minibatch: Any, rng: Any) -> Any:
        loss = (params["w"] * minibatch["x"][0]).sum()
        return loss, ({"loss": loss}, {"drawn": checker.implementation.drawn(rng)})

    seen = []
    for form, keywords in _forms(checker):
        _, _, mutable = _run(checker, form, params, batch, case.n, loss_fn, **keywords)
        drawn = checker.implementation.neutral(mutable["drawn"]).values.reshape(case.n, -1)
        if len({tuple(row) for row in drawn.tolist()}) != case.n:
            raise LawError(form, "two minibatches were given the same random state")
        seen.append(drawn)
    if any(not np.array_equal(seen[0], other) for other in seen[1:]):
        raise LawError("rngs", "loop and scan split the random state differently")


def _batch_of(implementation: Any) -> Any:
    return {"x": implementation.native(array(np.ones((6, 2)), "float32"))}


def _other_lengths(implementation: Any) -> Any:
    return {**_batch_of(implementation), "y": implementation.native(array(np.ones((4,)), "float32"))}


def _no_axis(implementation: Any) -> Any:
    return {"x": implementation.native(array(np.ones(()), "float32"))}


def _bad_uses() -> list[BadUse]:
    batches: list[tuple[str, Any, Any]] = [
        *((f"{n!r} minibatches of 6 rows", _batch_of, n) for n in (4, 7, 0, -1, 2.0, True, None, "2")),
        ("arrays of different lengths", _other_lengths, 2),
        ("an array without an axis", _no_axis, 1),
        ("a number in the batch", lambda implementation: {"x": 1.0}, 1),
        ("an empty batch", lambda implementation: {}, 1),
    ]

    def use(form: str, make: Any, n: Any, implementation: Any) -> Any:
        state = SimpleNamespace(params={"w": implementation.native(array(np.ones(2), "float32"))}, apply_fn=None)
        return implementation.functions[form](state, make(implementation), implementation.rng(7), n, _squares)

    weights: list[tuple[str, Any, Any]] = [
        ("weights of another number", (np.ones(3), "float32"), None),
        ("a weight that is a number", 1.0, None),
        ("weights in a list", [1.0, 2.0], None),
        ("weights of two dimensions", (np.ones((2, 1)), "float32"), None),
        ("weights in 16 bits", (np.ones(2), "float16"), None),
        ("weights that are booleans", (np.ones(2), "bool"), None),
        ("a negative weight", (np.array([3, -1]), "int32"), None),
        ("a weight that is NaN", (np.array([1.0, np.nan]), "float32"), None),
        ("an infinite weight", (np.array([np.inf, 1.0]), "float32"), None),
        ("weights of zeros", (np.zeros(2), "int32"), None),
        ("a total without weights", None, 2),
        *(
            (f"a total of {total!r}", (np.ones(2), "int32"), total)
            for total in (0, -1.0, math.nan, math.inf, True, "2")
        ),
        ("a total of two numbers", (np.ones(2), "int32"), (np.ones(2), "float32")),
        ("a total in 16 bits", (np.ones(2), "int32"), (np.ones(()), "float16")),
        ("a total of an array of 0", (np.ones(2), "int32"), (np.zeros(()), "float32")),
    ]

    def weighted(form: str, weights: Any, total: Any, implementation: Any) -> Any:
        state = SimpleNamespace(params={"w": implementation.native(array(np.ones(2), "float32"))}, apply_fn=None)
        made = [implementation.native(array(*x)) if isinstance(x, tuple) else x for x in (weights, total)]
        keywords = {"weights": made[0], "total_weight": made[1]}
        batch = _batch_of(implementation)
        return implementation.functions[form](state, batch, implementation.rng(7), 2, _squares, **keywords)

    of_batch = [BadUse(form, label, partial(use, form, make, n)) for form in FORMS for label, make, n in batches]
    return of_batch + [
        BadUse(form, label, partial(weighted, form, w, total)) for form in FORMS for label, w, total in weights
    ]


register_uses(
    OP,
    "A batch that the number of minibatches does not divide, or that is not a batch, and weights that are none, raise "
    "the reference's error.",
    _bad_uses,
    needs=FORMS,
)
