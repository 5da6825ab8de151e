"""The layer `mLSTM`: value, state and every gradient against `reference`, steps, initial values, and refusals."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import reference
from reference import MLSTMState
from tests.both.tools import assert_close

D, N, K, V = 12, 2, 3, 6
SHAPES = {"q": (N * K, D), "k": (N * K, D), "v": (N * V, D), "ogate_preact": (N * V, D)}
SHAPES |= {"igate_preact": (N, D), "fgate_preact": (N, D), "multihead_norm": (N * V,), "out_proj": (D, N * V)}
ALWAYS_BIASED = ("igate_preact", "fgate_preact")


def settings(**changed: Any) -> dict[str, Any]:
    return {"input_size": D, "num_heads": N, **changed}


def parameters(seed: int, add_bias: bool = True) -> dict[str, np.ndarray]:
    """Random parameters; the gates' preactivations go beyond the cap of 2 that the tests set."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in SHAPES.items():
        found[f"{name}.weight"] = rng.normal(size=shape) / (D**0.5 if name != "multihead_norm" else 1)
        if add_bias or name in ALWAYS_BIASED:
            found[f"{name}.bias"] = rng.normal(size=shape[0])
    return found


def of_reference(p: dict[str, np.ndarray], **changed: Any) -> reference.mLSTM:
    layer = reference.mLSTM(**settings(**changed))
    for name, value in p.items():
        of, leaf = name.split(".")
        layer.params[of][leaf] = value
    return layer


def linear(p: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)


def expected(
    p: dict[str, np.ndarray],
    x: np.ndarray,
    state: MLSTMState,
    cotangents: list[np.ndarray],
    cap: float | None,
    **how: Any,
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Output and state, and the gradients of x, of the parameters and of the state, written out layer by layer."""
    tokens, dy = x.shape[:-1], cotangents[0]
    q, k, v = (linear(p, name, x).reshape(*tokens, N, -1) for name in "qkv")
    i, f = (linear(p, name, x) for name in ALWAYS_BIASED)
    slopes = [np.ones(i.shape)] * 2
    if cap is not None:
        i, f = (cap * np.tanh(gate / cap) for gate in (i, f))
        slopes = [1 - (gate / cap) ** 2 for gate in (i, f)]
    h, last = reference.mlstm(q, k, v, i, f, initial_state=state, return_state=True, eps=1e-6, **how)
    deviation = np.sqrt(h.var(-1, keepdims=True) + 1e-6)
    normed = (h - h.mean(-1, keepdims=True)) / deviation
    flat, gate = normed.reshape(*tokens, N * V), 1 / (1 + np.exp(-linear(p, "ogate_preact", x)))
    scaled = flat * p["multihead_norm.weight"] + p.get("multihead_norm.bias", 0.0)
    output = linear(p, "out_proj", gate * scaled)

    dgated = dy @ p["out_proj.weight"]
    dscaled = dgated * gate
    dnormed = (dscaled * p["multihead_norm.weight"]).reshape(normed.shape)
    dh = (dnormed - dnormed.mean(-1, keepdims=True) - normed * (dnormed * normed).mean(-1, keepdims=True)) / deviation
    dstate = MLSTMState(*cotangents[1:])
    found = reference.mlstm_backward(q, k, v, i, f, initial_state=state, eps=1e-6, dh=dh, dstate=dstate, **how)
    of_outputs = {name: found[name].reshape(*tokens, -1) for name in "qkv"}
    of_outputs |= {name: found[name[0]] * slope for name, slope in zip(ALWAYS_BIASED, slopes, strict=True)}
    of_outputs |= {"ogate_preact": dgated * scaled * gate * (1 - gate)}
    axes = tuple(range(len(tokens)))
    gradients = {"input": sum(d @ p[f"{name}.weight"] for name, d in of_outputs.items())}
    gradients |= {f"{name}.weight": np.tensordot(d, x, (axes, axes)) for name, d in of_outputs.items()}
    gradients |= {f"{name}.bias": d.sum(axes) for name, d in of_outputs.items()}
    gradients |= {"multihead_norm.weight": (dscaled * flat).sum(axes), "multihead_norm.bias": dscaled.sum(axes)}
    gradients |= {"out_proj.weight": np.tensordot(dy, gate * scaled, (axes, axes)), "out_proj.bias": dy.sum(axes)}
    return [output, *last], {**gradients, **dict(zip("Cnm", found["initial_state"], strict=True))}


@pytest.mark.parametrize(("add_bias", "cap"), [(True, 2.0), (False, None)])
@pytest.mark.parametrize("lengths", [None, [3, 0, 5]], ids=str)
def test_it_is_projections_mlstm_norm_gate_and_projection(
    framework: ModuleType, lengths: list[int] | None, add_bias: bool, cap: float | None
) -> None:
    rng = np.random.default_rng(1)
    p, packing = parameters(2, add_bias), None if lengths is None else np.cumsum([0, *lengths]).astype(np.int32)
    B, tokens = (2, (2, 7)) if lengths is None else (len(lengths), (sum(lengths),))
    x = rng.normal(size=(*tokens, D))
    state = MLSTMState(*(rng.normal(size=(B, N, *width)) for width in ((K, V), (K,), ())))
    dy = [rng.normal(size=shape) for shape in (x.shape, *(part.shape for part in state))]
    values, gradients = expected(p, x, state, dy, cap, cu_seqlens=packing)
    with framework.wide(True):
        call = framework.layer_call("mLSTM", settings(add_bias=add_bias, gate_soft_cap=cap), list(p))
        given = {} if packing is None else {"cu_seqlens": framework.array(packing, "int32")}

        def run(*arrays: Any) -> list[Any]:
            output, last = call(*arrays[:-3], initial_state=MLSTMState(*arrays[-3:]), **given)
            return [output, *last]

        named = {**p, "input": x, **dict(zip("Cnm", state, strict=True))}
        native = [framework.array(value, "float64") for value in named.values()]
        cotangents = [framework.array(d, "float64") for d in dy]
        outputs, found = framework.pull_back(run, native, cotangents)
        outputs, found = ([framework.numpy(each) for each in part] for part in (outputs, found))
    assert_close(outputs, values, 1e-12)
    assert_close(found, [gradients[name] for name in named], 1e-11)
    output, last = of_reference(p, add_bias=add_bias, gate_soft_cap=cap)(x, state, packing)
    assert_close([output, *last], values, 1e-13)


def test_steps_and_pieces_are_the_sequence(framework: ModuleType) -> None:
    """From an empty memory; the second piece begins with the state of the first."""
    p, x = parameters(3, False), np.random.default_rng(4).normal(size=(2, 6, D))
    own = of_reference(p)
    whole, last = own(x)
    state, outputs = own.initial_state(2), []
    for t in range(6):
        y, state = own.step(x[:, t], state)
        outputs.append(y)
    assert_close([np.stack(outputs, 1), *state], [whole, *last], 1e-12)
    assert own(x[:, :0])[0].shape == (2, 0, D)
    with framework.wide(True):
        call = framework.layer_call("mLSTM", settings(), list(p))
        step = framework.layer_call("mLSTM", settings(), list(p), method="step")
        native = [framework.array(value, "float64") for value in p.values()]
        state = MLSTMState(*(framework.array(part, "float64") for part in own.initial_state(2)))
        _, middle = call(*native, framework.array(x[:, :4], "float64"))
        later, _ = call(*native, framework.array(x[:, 4:], "float64"), initial_state=middle)
        outputs = []
        for t in range(6):
            y, state = step(*native, framework.array(x[:, t], "float64"), state=state)
            outputs.append(framework.numpy(y))
        found = [np.stack(outputs, 1), *map(framework.numpy, state), framework.numpy(later)]
    assert_close(found, [whole, *last, whole[:, 4:]], 1e-12)


def test_an_empty_memory_is_that_of_a_call_without_a_state(framework: ModuleType) -> None:
    state = framework.package.mLSTM(**settings()).initial_state(3)
    assert [tuple(part.shape) for part in state] == [(3, N, K, V), (3, N, K), (3, N)]
    assert {framework.dtype_of(part) for part in state} == {"float32"}
    assert not any(framework.numpy(part).any() for part in state)


def initial_parameters(framework: ModuleType, **changed: Any) -> dict[str, np.ndarray]:
    found = framework.layer_parameters("mLSTM", settings(**changed), 0)
    # A kernel is a weight that the tools have turned.
    return {name.replace("kernel", "weight"): x.T if name.endswith("kernel") else x for name, x in found.items()}


@pytest.mark.parametrize("add_bias", [False, True])
def test_initial_values(framework: ModuleType, add_bias: bool) -> None:
    changed = {"input_size": 128, "num_heads": 4, "num_blocks": 3, "add_bias": add_bias}
    own = reference.mLSTM(**settings(**changed)).params
    flat = {f"{of}.{leaf}": value for of, leaves in own.items() for leaf, value in leaves.items()}
    for found in (initial_parameters(framework, **changed), flat):
        assert found.keys() == parameters(0, add_bias).keys()
        assert not any(found[f"{name}.weight"].any() for name in ALWAYS_BIASED)
        np.testing.assert_array_equal(found.pop("igate_preact.bias"), [-10] * 4)
        np.testing.assert_array_equal(found.pop("fgate_preact.bias"), [3, 4, 5, 6])
        assert (found.pop("multihead_norm.weight") == 1).all()
        assert not any(value.any() for name, value in found.items() if name.endswith("bias"))
        # Of 8,192 numbers or more the standard deviation is within 4 % in all but one case of a million.
        assert found["q.weight"].shape == (64, 128) and found["v.weight"].shape == (128, 128)
        for name in ("q", "k", "v", "ogate_preact"):
            assert abs(found[f"{name}.weight"].std() / (2 / (5 * 128)) ** 0.5 - 1) < 0.04
        assert abs(found["out_proj.weight"].std() / (2 / (3 * 128**0.5)) - 1) < 0.04
        assert not np.array_equal(found["q.weight"], found["k.weight"])


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"input_size": 0}, ValueError, "`input_size` is 0; expected an integer of at least 1"),
        ({"num_heads": 2.5}, TypeError, "`num_heads` is 2.5; expected an integer of at least 1"),
        ({"add_bias": 1}, TypeError, "`add_bias` is 1; expected True or False"),
        ({"qk_dim_factor": 0}, ValueError, "`qk_dim_factor` is 0.0; expected a positive number"),
        (
            {"num_heads": 5},
            ValueError,
            "`qk_dim_factor` is 0.5, a width of 6; expected qk_dim_factor·input_size to be a",
        ),
        ({"v_dim_factor": 0.75}, ValueError, "`v_dim_factor` is 0.75, a width of 9; expected"),
        ({"gate_soft_cap": -1}, ValueError, "`gate_soft_cap` is -1.0; expected None or a positive number"),
        ({"norm_eps": -1}, ValueError, "`norm_eps` is -1.0; expected a number of at least 0"),
        ({"eps": "0"}, TypeError, "`eps` is '0'; expected a finite number of at least 0"),
        ({"num_blocks": 0}, ValueError, "`num_blocks` is 0; expected"),
    ],
)
def test_refusals(framework: ModuleType, changed: dict[str, Any], error: type[Exception], said: str) -> None:
    for package in (reference, framework.package):
        with pytest.raises(error, match=f"^mLSTM: {said}"):
            package.mLSTM(**settings(**changed))


def test_an_input_or_a_state_that_does_not_fit_is_refused(framework: ModuleType) -> None:
    p = parameters(0, False)
    own, other = of_reference(p), MLSTMState(*(np.zeros((3, N, *width)) for width in ((K, V), (K,), ())))
    with pytest.raises(ValueError, match=r"^mLSTM: `input` is f64\[2,3,4\]; expected \["):
        own(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"^mlstm: `initial_state.C` is f64\[3,2,3,6\]; expected \[B=2"):
        own(np.ones((2, 3, D)), other)
    with pytest.raises(TypeError, match=r"^mlstm_step: `state` is None; expected"):
        own.step(np.ones((2, D)), None)
    call = framework.layer_call("mLSTM", settings(), list(p))
    step = framework.layer_call("mLSTM", settings(), list(p), method="step")
    native = [framework.array(value, "float32") for value in p.values()]
    with pytest.raises(ValueError, match=r"^mLSTM: `input` is f32\[2,3,4\]; expected \["):
        call(*native, framework.array(np.ones((2, 3, 4)), "float32"))
    with pytest.raises(ValueError, match=r"^mLSTM: `input` is f32\[2,3,12\]; expected \[B, 12\]"):
        step(*native, framework.array(np.ones((2, 3, D)), "float32"), state=None)
    with pytest.raises(TypeError, match=r"^mlstm_step: `state` is None; expected"):
        step(*native, framework.array(np.ones((2, D)), "float32"), state=None)
