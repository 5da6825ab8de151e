"""Gradients of reverse sums, and decay matrices of the spec, the seed notebook's figures among them."""

import re
from pathlib import Path

import numpy as np
import pytest

import reference
from tests.reference.numeric import assert_gradient


@pytest.mark.parametrize("name", ["rev_cumsum", "rev_cumsum_off"])
def test_reverse_sums_backward(name):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(2, 2, 11))
    gradients = getattr(reference, f"{name}_backward")(x, dy=dy)
    assert_gradient(lambda x: (getattr(reference, name)(x),), {"x": x}, gradients, [dy], rng)


def test_forget_matrix_is_its_definition():
    a = -np.random.default_rng(2).exponential(size=(2, 6))
    F = reference.causal_forget_matrix(a)
    for t in range(6):
        for j in range(6):
            expected = a[:, j + 1 : t + 1].sum(-1) if t >= j else np.full(2, -np.inf)
            np.testing.assert_allclose(F[:, t, j], expected, rtol=1e-14)
    assert (np.diagonal(F, axis1=-2, axis2=-1) == 0).all()


def test_forget_matrix_across_a_hard_reset():
    a = np.array([-1.0, -np.inf, -2.0, -0.5])
    F = reference.causal_forget_matrix(a)
    np.testing.assert_array_equal(F[:, 0], [0, -np.inf, -np.inf, -np.inf])
    np.testing.assert_array_equal(F[1:, 1], [0, -2, -2.5])


@pytest.mark.parametrize("S", [0, 1, 2, 9])
def test_decay_backwards(S):
    rng = np.random.default_rng(S)
    a, dF = rng.normal(size=(2, S)), np.tril(rng.normal(size=(2, S, S)))
    finite = np.tril(np.ones((S, S), bool))

    def forget_matrix(forget_gates):
        return (np.where(finite, reference.causal_forget_matrix(forget_gates), 0.0),)

    gradients = reference.causal_forget_matrix_backward(a, dF=dF)
    assert_gradient(forget_matrix, {"forget_gates": a}, gradients, [dF], rng)

    def dtilde(igate, fgate):
        return (np.where(finite, reference.dtilde_matrix(igate, fgate), 0.0),)

    gates = {"igate": rng.normal(size=(2, S, 1)), "fgate": 3 * rng.normal(size=(2, S, 1))}
    gradients = reference.dtilde_matrix_backward(**gates, dD=dF)
    assert_gradient(dtilde, gates, gradients, [dF], rng)


def test_input_gate_gradient_sums_masked_rows_too():
    rng = np.random.default_rng(3)
    igate, fgate = rng.normal(size=(2, 5, 1))
    above = np.triu(rng.normal(size=(5, 5)), 1)
    gradients = reference.dtilde_matrix_backward(igate, fgate, dD=above)
    np.testing.assert_allclose(gradients["igate"][:, 0], above.sum(0), rtol=1e-14)
    assert not gradients["fgate"].any()


NOTEBOOK = Path(__file__).with_name("dtilde_notebook.txt").read_text()


def printed(name: str) -> np.ndarray:
    """One array of the notebook's record; ``nan`` where the notebook's print was cut off."""
    rows = re.search(rf"^{name}\n((?:.+\n)+)", NOTEBOOK, re.MULTILINE).group(1)
    return np.array([[float(word) for word in row.split()] for row in rows.strip().splitlines()])


ONE_UNIT = 1.0001e-4
"""One unit in the last digit that the notebook prints, with room for its decimal form."""


def assert_same_matrix(D: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.isneginf(D), np.isneginf(expected))
    finite = np.isfinite(expected)
    assert np.abs(D[finite] - expected[finite]).max() <= ONE_UNIT


COUNTS = np.arange(5) * (5 - np.arange(5))
"""How many entries of D̃ hold a given forget gate, by step: the gradient of D̃.sum() is σ(−f) times this."""


def test_seed_notebook():
    """Cells 5 to 13 (B 2, N 4, S 5); the forget gates, cut off in print, come from their printed gradients."""
    gradient = printed("fgate gradient")[:2]
    igate = printed("igate")[:2, :, None]
    expected = printed("dtilde").reshape(-1, 5, 5)
    share = np.divide(gradient, COUNTS, out=np.full(gradient.shape, 0.5), where=COUNTS > 0)
    fgate = np.log((1 - share) / share)[..., None]
    D = reference.dtilde_matrix(igate, fgate)
    assert_same_matrix(D, expected[:2])
    assert D.sum() == -np.inf
    gradients = reference.dtilde_matrix_backward(igate, fgate, dD=np.ones(D.shape))
    assert (gradients["igate"] == 5).all()
    assert np.abs(gradients["fgate"][..., 0] - gradient).max() <= ONE_UNIT
    assert abs(fgate[0, 1, 0] - printed("fgate")[0, 1]) <= ONE_UNIT


def test_seed_notebook_where_the_gradient_is_cut_off():
    """The third head's forget gates come from the first subdiagonal of its printed matrix."""
    igate = printed("igate")[2]
    expected = printed("dtilde").reshape(-1, 5, 5)[2]
    a = np.diagonal(expected, -1) - igate[:-1]
    fgate = np.concatenate([[0.0], a - np.log(-np.expm1(a))])
    assert_same_matrix(reference.dtilde_matrix(igate[:, None], fgate[:, None]), expected)
    gradients = reference.dtilde_matrix_backward(igate[:, None], fgate[:, None], dD=np.ones((5, 5)))
    known = ~np.isnan(printed("fgate gradient")[2])
    of_sigmoid = np.abs(gradients["fgate"][known, 0] - printed("fgate gradient")[2, known])
    assert (of_sigmoid <= ONE_UNIT * np.maximum(COUNTS[known], 1)).all()
