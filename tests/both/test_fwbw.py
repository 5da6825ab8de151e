"""fwbw: the drop-in interface against the reference, its switches, its context, heads by an outer vmap."""

from functools import partial

import numpy as np
import pytest

import reference
from tests.both.tools import assert_close, compare, mlstm_inputs, mlstm_state, native, pulled

KEEPS = ("keep_G", "keep_gates", "keep_M", "keep_c")
WHOLE = dict(return_state=True, use_initial_state=True, stabilize_correctly=True, chunk_size=8)


def call(T=29, *, with_state=True, gate_axis=False, seed=0, B=2, V=4):
    rng = np.random.default_rng(seed)
    arrays = [x[:, :, 0] for x in mlstm_inputs(rng, B, T, N=1, K=3, V=V)]
    arrays[3:] = (x[..., None] for x in arrays[3:]) if gate_axis else arrays[3:]
    return [*arrays, *(mlstm_state(rng, B, K=3, V=V) if with_state else ())]


def of_reference(config, arrays, cotangents=None):
    """By whole sequences, whatever the chunks of the call."""
    config = {**config, "chunk_size": None}
    result, ctx = reference.fwbw_forward(*arrays[:5], config, *arrays[5:])
    if cotangents is None:
        return [result[0], *result[1]] if isinstance(result, tuple) else [result]
    return [x for x in reference.fwbw_backward(ctx, cotangents[0], config, *cotangents[1:]) if x is not None]


def against_reference(framework, arrays, config, *rest):
    """The differentiated function, and both passes by hand."""
    function = framework.package.mlstm_fwbw_custom_grad(config)
    compare(framework, function, partial(of_reference, config), arrays, *rest)


def by_hand(framework, arrays, config, cotangents):
    """Outputs, and the gradients of `fwbw_backward`, of which some may be None."""
    package, given = framework.package, [x if x is None else native(framework, [x], "float64")[0] for x in cotangents]
    arrays = native(framework, arrays, "float64")
    result, ctx = package.fwbw_forward(*arrays[:5], config, *arrays[5:])
    found = package.fwbw_backward(ctx, given[0], config, *given[1:])
    outputs = [framework.numpy(x) for x in framework.leaves(result)]
    return outputs, [x if x is None else framework.numpy(x) for x in found]


@pytest.fixture
def wide(framework):
    with framework.wide(True):
        yield framework


def random_like(arrays, seed=99):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=x.shape) for x in arrays]


@pytest.mark.grid
@pytest.mark.parametrize("stabilize_correctly", [True, False])
@pytest.mark.parametrize("T", [0, 1, 8, 29, 64])
@pytest.mark.parametrize("chunk_size", [None, 1, 8, 512])
def test_custom_grad(framework, T, chunk_size, stabilize_correctly):
    config = {**WHOLE, "chunk_size": chunk_size, "stabilize_correctly": stabilize_correctly}
    against_reference(framework, call(T), config)


@pytest.mark.parametrize("T", [1, 29])
def test_float32(framework, T):
    against_reference(framework, call(T, with_state=False), {"return_state": True, "chunk_size": 8}, "float32")


@pytest.mark.grid
@pytest.mark.parametrize("kept", [(), *((name,) for name in KEEPS), KEEPS], ids=str)
@pytest.mark.parametrize("stabilize_correctly", [True, False])
def test_switches_change_no_value(wide, kept, stabilize_correctly):
    config = {**WHOLE, "stabilize_correctly": stabilize_correctly, **{name: name in kept for name in KEEPS}}
    arrays = call(gate_axis=True)
    against_reference(wide, arrays, config)
    values = of_reference(config, arrays)
    drawn = random_like(values)
    outputs, found = by_hand(wide, arrays, config, drawn)
    assert_close(outputs, values, 1e-12)
    assert_close(found, of_reference(config, arrays, drawn), 1e-11)


@pytest.mark.parametrize("keep", [False, True], ids=["recomputed", "kept"])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)], ids=str)
def test_sizes_of_0(wide, sizes, keep):
    B, T, V = sizes
    config, arrays = {**WHOLE, **dict.fromkeys(KEEPS, keep)}, call(T, B=B, V=V)
    against_reference(wide, arrays, config)
    drawn = random_like(of_reference(config, arrays))
    assert_close(by_hand(wide, arrays, config, drawn)[1], of_reference(config, arrays, drawn), 1e-11)


@pytest.mark.parametrize("given", [(), (0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_cotangents_of_the_final_state_are_used(wide, given):
    arrays = call()
    dh, *drawn = random_like(of_reference(WHOLE, arrays))
    final = [d if number in given else None for number, d in enumerate(drawn)]
    zeros = [np.zeros_like(d) if x is None else x for x, d in zip(final, drawn, strict=True)]
    _, found = by_hand(wide, arrays, WHOLE, [dh, *final])
    assert_close(found, of_reference(WHOLE, arrays, [dh, *zeros]), 1e-11)


@pytest.mark.parametrize("use", [False, True])
def test_initial_state_left_out_is_zeros(wide, use):
    arrays, config = call(with_state=False), {**WHOLE, "use_initial_state": use}
    zeros = [*arrays, *(0 * x for x in call()[5:])]
    drawn = random_like(of_reference(WHOLE, zeros))
    expected = of_reference(WHOLE, zeros, drawn)
    against_reference(wide, arrays, {**config, "use_initial_state": False})
    _, found = by_hand(wide, arrays, config, drawn)
    assert [x is None for x in found] == [False] * 5 + [not use] * 3
    assert_close([x for x in found if x is not None], expected[: 8 if use else 5], 1e-11)
    function = wide.package.mlstm_fwbw_custom_grad(config)
    assert_close(pulled(wide, function, arrays, drawn, "float64")[1], expected[:5], 1e-11)


def test_a_gates_axis_comes_back_with_each_gate(wide):
    arrays = call(with_state=False)
    arrays[3] = arrays[3][..., None]
    _, found = by_hand(wide, arrays, {}, random_like(arrays[2:3]))
    assert (found[3].shape, found[4].shape) == ((2, 29, 1), (2, 29))


@pytest.mark.parametrize("keep", [False, True])
def test_heads_by_vmap(framework, keep):
    """A vmapped head axis, and two of them nested, give what one head after the other gives; gradients too."""
    config = {**WHOLE, **dict.fromkeys(KEEPS, keep)}
    heads = [call(seed=seed) for seed in range(6)]
    stacked = [np.stack(parts).reshape(2, 3, *parts[0].shape) for parts in zip(*heads, strict=True)]
    values = [of_reference(config, head) for head in heads]
    drawn = [random_like(value, seed) for seed, value in enumerate(values)]
    expected = [
        [*value, *of_reference(config, *each)]
        for value, each in zip(values, zip(heads, drawn, strict=True), strict=True)
    ]
    cotangents = [np.stack(parts).reshape(2, 3, *parts[0].shape) for parts in zip(*drawn, strict=True)]
    mapped = framework.vmap(framework.vmap(framework.package.mlstm_fwbw_custom_grad(config)))
    outputs, found = pulled(framework, mapped, stacked, cotangents, "float64")
    for number, each in enumerate(expected):
        assert_close([x[divmod(number, 3)] for x in (*outputs, *found)], each, 1e-11)


def test_forward_is_differentiated_through_its_result(framework):
    arrays, config = call(), {**WHOLE, "keep_G": True, "keep_c": True}
    forward = framework.package.fwbw_forward
    compare(framework, lambda *x: forward(*x[:5], config, *x[5:])[0], partial(of_reference, config), arrays)


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        # Five steps are two chunks of 3 as they are two of 4.
        ({"chunk_size": 3, "keep_c": True}, {"chunk_size": 4, "keep_c": True}, "chunk_size=3; expected chunk_size=4"),
        ({}, {"keep_G": True}, "keep_G=False; expected keep_G=True"),
        ({"keep_M": True, "keep_gates": False}, {"keep_G": True, "keep_gates": False}, "keep_G=False; expected"),
        ({}, {"use_initial_state": True}, "use_initial_state=False; expected use_initial_state=True"),
        ({}, {"stabilize_correctly": True}, "stabilize_correctly=False; expected stabilize_correctly=True"),
    ],
)
def test_a_context_of_another_configuration_is_refused(framework, made, given, message):
    arrays = native(framework, call(5, with_state=False), "float32")
    h, context = framework.package.fwbw_forward(*arrays, made)
    with pytest.raises(ValueError, match=f"^fwbw_backward: `ctx` is made with {message}"):
        framework.package.fwbw_backward(context, h, given)
    again = framework.package.fwbw_backward(context, h, {**made, "return_state": True})
    assert again[0].shape == arrays[0].shape


def test_what_is_no_context_is_refused(framework):
    numbers = call(with_state=False)
    arrays = native(framework, numbers, "float32")
    h, _ = framework.package.fwbw_forward(*arrays, {})
    _, foreign = reference.fwbw_forward(*numbers, {})
    expected = "; expected the context that this package's fwbw_forward returned"
    for ctx, got in ((None, "None"), (h, r"f32\[2,29,4\]"), ((1, 2), "a tuple"), (foreign, "a reference.FwbwContext")):
        with pytest.raises(TypeError, match=f"^fwbw_backward: `ctx` is {got}.*{expected}"):
            framework.package.fwbw_backward(ctx, h, {})


@pytest.mark.parametrize("kind", ["dataclass", "dict"])
def test_a_configuration_is_read_when_a_function_is_made_of_it(framework, kind):
    """And the context keeps what it was made with."""
    package, arrays = framework.package, native(framework, call(with_state=False), "float32")
    config = package.mLSTMBackendFwbwConfig(chunk_size=8, keep_c=True) if kind == "dataclass" else {"chunk_size": 8}
    function = package.mlstm_fwbw_custom_grad(config)
    h, (_, context) = function(*arrays), package.fwbw_forward(*arrays, config)
    if isinstance(config, dict):
        config["chunk_size"] = -5
    else:
        config.chunk_size = -5
    np.testing.assert_array_equal(framework.numpy(function(*arrays)), framework.numpy(h))
    assert context.config.chunk_size == 8
    with pytest.raises(ValueError, match=r"`config\.chunk_size` is -5"):
        package.mlstm_fwbw_custom_grad(config)(*arrays)
