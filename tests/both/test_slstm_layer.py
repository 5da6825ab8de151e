"""The layer `sLSTM`: value, state and every gradient against `reference`, initial values, and refusals."""

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import reference
from reference import SLSTMState
from tests.both.tools import assert_close

N, H, FEATURES, OUTPUTS = 2, 5, 3, 4
SIZES = {"input_size": FEATURES, "state_head_dim": H, "output_size": OUTPUTS, "num_heads": N}
PARAMETERS = ("input_projection.kernel", "input_projection.bias", *(f"weight_{name}" for name in "zifo"))
PARAMETERS += ("output_projection.kernel", "output_projection.bias")


def settings(**changed: Any) -> dict[str, Any]:
    return {**SIZES, "add_bias": True, "gradient_clipping": None, **changed}


def parameters(seed: int) -> dict[str, np.ndarray]:
    """Random parameters: the layer's own have recurrent weights of 0."""
    rng = np.random.default_rng(seed)
    shapes = [(FEATURES, 4 * N * H), (4 * N * H,), *[(N, H, H)] * 4, (N * H, OUTPUTS), (OUTPUTS,)]
    return {name: 0.5 * rng.normal(size=shape) for name, shape in zip(PARAMETERS, shapes, strict=True)}


def expected(
    p: dict[str, np.ndarray], x: np.ndarray, state: SLSTMState | None, dy: np.ndarray, **options: Any
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Output and state, and the gradients of the parameters and of x for a cotangent of the output."""
    kernel, out = p["input_projection.kernel"], p["output_projection.kernel"]
    heads = (x @ kernel + p["input_projection.bias"]).reshape(*x.shape[:-1], 4, N, H)
    arrays = [*np.moveaxis(heads, -3, 0), *(p[f"weight_{name}"] for name in "zifo")]
    value = {name: option for name, option in options.items() if name != "gradient_clipping"}
    h, last = reference.slstm(*arrays, initial_state=state, return_state=True, **value)
    flat = h.reshape(*h.shape[:-2], N * H)
    dh = (dy @ out.T).reshape(h.shape)
    found = reference.slstm_backward(*arrays, initial_state=state, dh=dh, **options)
    dheads = np.stack([found[name] for name in "zifo"], -3).reshape(*x.shape[:-1], 4 * N * H)
    tokens = tuple(range(x.ndim - 1))
    gradients = {
        "input_projection.kernel": np.tensordot(x, dheads, (tokens, tokens)),
        "input_projection.bias": dheads.sum(tokens),
        **{f"weight_{name}": found[f"weight_{name}"] for name in "zifo"},
        "output_projection.kernel": np.tensordot(flat, dy, (tokens, tokens)),
        "output_projection.bias": dy.sum(tokens),
        "input": dheads @ kernel.T,
    }
    return [flat @ out + p["output_projection.bias"], *last], gradients


@pytest.mark.grid
@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
@pytest.mark.parametrize("clipping", [None, 0.1])
@pytest.mark.parametrize("lengths", [None, [3, 0, 5]], ids=str)
def test_it_is_projection_slstm_projection(
    framework: ModuleType, lengths: list[int] | None, clipping: float | None, forget_gate: str
) -> None:
    rng = np.random.default_rng(1)
    p, packing = parameters(2), None if lengths is None else np.cumsum([0, *lengths]).astype(np.int32)
    B, tokens = (2, (2, 7)) if lengths is None else (len(lengths), (sum(lengths),))
    x, dy = rng.normal(size=(*tokens, FEATURES)), rng.normal(size=(*tokens, OUTPUTS))
    c, m, h = (rng.normal(size=(B, N, H)) for _ in range(3))
    state = SLSTMState(c, np.exp(rng.normal(size=c.shape)), m, h)
    options = {"forget_gate": forget_gate, "gradient_clipping": clipping, "cu_seqlens": packing}
    values, gradients = expected(p, x, state, dy, **options)
    layer_options = {"forget_gate": forget_gate, "gradient_clipping": clipping}
    with framework.wide(True):
        native = {name: framework.array(value, "float64") for name, value in {**p, "input": x}.items()}
        initial = SLSTMState(*(framework.array(part, "float64") for part in state))
        given = {} if packing is None else {"cu_seqlens": framework.array(packing, "int32")}
        call = framework.layer_call("sLSTM", settings(**layer_options), PARAMETERS)

        def run(*arrays: Any) -> list[Any]:
            output, last = call(*arrays, initial_state=initial, **given)
            return [output, *last]

        zeros = [framework.array(np.zeros(value.shape), "float64") for value in values[1:]]
        outputs, found = framework.pull_back(run, list(native.values()), [framework.array(dy, "float64"), *zeros])
        outputs, found = ([framework.numpy(each) for each in part] for part in (outputs, found))
    assert_close(outputs, values, 1e-12)
    assert_close(found, [gradients[name] for name in native], 1e-11)
    own = reference.sLSTM(**settings(**layer_options))
    for name, value in p.items():
        *path, last = name.split(".")
        (own.params[path[0]] if path else own.params)[last] = value
    output, last_state = own(x, state, packing)
    assert_close([output, *last_state], values, 1e-13)


def initial_parameters(framework: ModuleType, **changed: Any) -> dict[str, np.ndarray]:
    return framework.layer_parameters("sLSTM", settings(**changed), 0)


@pytest.mark.grid
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("forget_gate", ["sigmoid", "exp"])
def test_initial_values(framework: ModuleType, forget_gate: str, depth: float) -> None:
    sizes = {"input_size": 64, "state_head_dim": 16, "output_size": 32, "forget_gate": forget_gate, "depth": depth}
    found = initial_parameters(framework, **sizes)
    own = reference.sLSTM(**settings(**sizes)).params
    assert found.keys() == set(PARAMETERS) and not any(found[f"weight_{name}"].any() for name in "zifo")
    bias = found["input_projection.bias"].reshape(4, N, 16)
    forget = [5 - 12 * (j / 15) ** (0.3 + 1.3 * depth) for j in range(16)]
    if forget_gate == "exp":
        forget = [-math.log1p(math.exp(-b)) for b in forget]
    # In float32, 12 x_j is rounded, and 5 taken from it.
    np.testing.assert_allclose(bias[2], [forget, forget], rtol=2e-6, atol=12 * 2**-23)
    np.testing.assert_allclose(own["input_projection"]["bias"].reshape(4, N, 16)[2], [forget, forget], rtol=1e-14)
    assert not bias[[0, 1, 3]].any()
    deviation = (2 / (5 * 64)) ** 0.5
    for kernel in (found["input_projection.kernel"], own["input_projection"]["kernel"]):
        # Of 8,192 numbers the standard deviation is within 4 % in all but one case of a million.
        assert abs(kernel.std() / deviation - 1) < 0.04 and np.abs(kernel).max() > 2.5 * deviation
    for out in (found["output_projection.kernel"], own["output_projection"]["kernel"]):
        assert 0.9 * 32**-0.5 < np.abs(out).max() <= 32**-0.5 * (1 + 1e-6)


def test_one_unit_remembers(framework: ModuleType) -> None:
    bias = initial_parameters(framework, state_head_dim=1)["input_projection.bias"].reshape(4, N, 1)
    np.testing.assert_array_equal(bias[2], 5)


def test_without_biases(framework: ModuleType) -> None:
    assert not any(name.endswith("bias") for name in initial_parameters(framework, add_bias=False))


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"input_size": 0}, ValueError, "`input_size` is 0; expected"),
        ({"num_heads": 2.5}, TypeError, "`num_heads` is 2.5; expected an integer of at least 1"),
        ({"add_bias": 1}, TypeError, "`add_bias` is 1; expected True or False"),
        ({"forget_gate": "tanh"}, ValueError, "`forget_gate` is 'tanh'; expected"),
        ({"depth": 1.5}, ValueError, "`depth` is 1.5; expected a number from 0 to 1"),
        ({"gradient_clipping": "1"}, TypeError, "`gradient_clipping` is"),
    ],
)
def test_refusals(framework: ModuleType, changed: dict[str, Any], error: type[Exception], said: str) -> None:
    for package in (reference, framework.package):
        with pytest.raises(error, match=f"^sLSTM: {said}"):
            package.sLSTM(**settings(**changed))


def test_an_input_of_another_size_is_refused(framework: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"^sLSTM: `input` is f64\[2,3,4\]; expected \["):
        reference.sLSTM(**settings())(np.ones((2, 3, 4)))
    call = framework.layer_call("sLSTM", settings(), PARAMETERS)
    native = [framework.array(value, "float32") for value in parameters(0).values()]
    with pytest.raises(ValueError, match=r"^sLSTM: `input` is f32\[2,3,4\]; expected \["):
        call(*native, framework.array(np.ones((2, 3, 4)), "float32"))
