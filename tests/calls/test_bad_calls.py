"""Every implementation refuses the same calls with the same words."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.calls.layer_cases import LayerCase
from tests.calls.wings import INSTALLED, Wing


@pytest.fixture(params=INSTALLED, scope="module")
def wing(request):
    return Wing(request.param)


def refused(error, text, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error
    assert str(caught.value) == text


def mlstm_arguments(wing, **changed):
    """A legal call (B 2, S 7, N 3, K 8, V 4) with some arguments changed: a shape, a dtype, or an object."""
    shapes = dict(q=(2, 7, 3, 8), k=(2, 7, 3, 8), v=(2, 7, 3, 4), i=(2, 7, 3), f=(2, 7, 3))
    arguments = {}
    for name, shape in shapes.items():
        change = changed.pop(name, shape)
        if isinstance(change, str):
            arguments[name] = wing.array(shape, change)
        else:
            arguments[name] = wing.array(change) if isinstance(change, tuple) else change
    return {**arguments, **changed}


FLOATS = "float16, bfloat16, float32 or float64"
SHAPE_OR_DTYPE = [
    (dict(q=(2, 7, 8)), ValueError, "`q` is f32[2,7,8]; expected [B, S, N, K]"),
    (dict(q=(2, 7, 3, 0)), ValueError, "`q` is f32[2,7,3,0]; expected a head dim K of at least 1"),
    (dict(q=(2, 7, 3, 16)), ValueError, "`k` is f32[2,7,3,8]; expected [B=2, S=7, N=3, K=16] to match `q`"),
    (dict(v=(2, 6, 3, 4)), ValueError, "`v` is f32[2,6,3,4]; expected [B=2, S=7, N=3, V] to match `q`"),
    (dict(f=(2, 7, 4)), ValueError, "`f` is f32[2,7,4]; expected [B=2, S=7, N=3] to match `q`"),
    (dict(q="int32"), TypeError, f"`q` is i32[2,7,3,8]; expected {FLOATS}"),
    (dict(v="float16"), TypeError, "`v` is f16[2,7,3,4]; expected float32 to match `q`"),
    (dict(i="float16"), TypeError, "`i` is f16[2,7,3]; expected float32 to match `v`"),
    (dict(f=None), TypeError, "`f` is None; expected an array"),
    (dict(chunk_size=0), ValueError, "`chunk_size` is 0; expected None or an integer of at least 1"),
    (dict(chunk_size=1.5), TypeError, "`chunk_size` is 1.5; expected None or an integer of at least 1"),
    (dict(eps=-1.0), ValueError, "`eps` is -1.0; expected a finite number of at least 0"),
    (dict(eps="0"), TypeError, "`eps` is '0'; expected a finite number of at least 0"),
    (dict(max_seqlen=7), ValueError, "`max_seqlen` is 7; expected None where `cu_seqlens` is None"),
    (dict(initial_state=3), TypeError, "`initial_state` is 3; expected a triple (C, n, m)"),
    (dict(initial_state=(None, None)), ValueError, "`initial_state` is a tuple of 2; expected a triple (C, n, m)"),
    (dict(kernel_backend=1), TypeError, None),
    (dict(kernel_backend="cuda"), ValueError, None),
]


@pytest.mark.parametrize(("changed", "error", "text"), SHAPE_OR_DTYPE, ids=lambda case: str(case)[:40])
def test_mlstm(wing, changed, error, text):
    arguments = mlstm_arguments(wing, **changed)
    if text is None:
        with pytest.raises(error, match=r"^mlstm: `kernel_backend` is .*; expected None, "):
            wing.mlstm(**arguments)
    else:
        refused(error, f"mlstm: {text}", wing.mlstm, **arguments)


STATES = [
    ((None, (2, 3, 8), (2, 3)), ValueError, "C` is None; expected an array: a state needs all of its arrays"),
    (
        ((2, 3, 4, 8), (2, 3, 8), (2, 3)),
        ValueError,
        "C` is f32[2,3,4,8]; expected [B=2, N=3, K=8, V=4] to match `q` and `v`",
    ),
    (((2, 3, 8, 4), (2, 3, 7), (2, 3)), ValueError, "n` is f32[2,3,7]; expected [B=2, N=3, K=8] to match `q`"),
    (((2, 3, 8, 4), (2, 3, 8), (2, 3, 1)), ValueError, "m` is f32[2,3,1]; expected [B=2, N=3] to match `q`"),
]


@pytest.mark.parametrize(("shapes", "error", "text"), STATES)
def test_mlstm_state(wing, shapes, error, text):
    state = tuple(None if shape is None else wing.array(shape) for shape in shapes)
    arguments = mlstm_arguments(wing)
    refused(error, f"mlstm: `initial_state.{text}", wing.mlstm, **arguments, initial_state=state)
    step = {name: wing.array(tuple(x.shape[:1] + x.shape[2:])) for name, x in arguments.items()}
    refused(error, f"mlstm_step: `state.{text}", wing.mlstm_step, **step, state=state)


def test_state_outside_the_accumulation_dtype(wing):
    shapes = ((2, 3, 8, 4), (2, 3, 8), (2, 3))
    state = [wing.array(shape, "float16") for shape in shapes]
    text = "mlstm: `initial_state.C` is f16[2,3,8,4]; expected float32, the accumulation dtype for `v`"
    refused(TypeError, text, wing.mlstm, **mlstm_arguments(wing), initial_state=state)


def test_gates_beside_16_bit_values(wing):
    arguments = {name: wing.array(tuple(x.shape), "float16") for name, x in mlstm_arguments(wing).items()}
    arguments["i"] = wing.array((2, 7, 3), "float32")
    wing.mlstm(**arguments)
    arguments["f"] = wing.array((2, 7, 3), "int16")
    text = "mlstm: `f` is i16[2,7,3]; expected float16 or float32 to match `v`"
    refused(TypeError, text, wing.mlstm, **arguments)


PACKINGS = [
    ([1, 4, 7], "int32", ValueError, "`cu_seqlens` is an array that starts at 1; expected one that starts at 0"),
    (
        [0, 5, 3, 7],
        "int64",
        ValueError,
        "`cu_seqlens` is an array that decreases from 5 to 3 at index 2; expected one that never decreases",
    ),
    ([0, 5], "int32", ValueError, "`cu_seqlens` is an array that ends at 5; expected T=7 to match `{first}`"),
    ([0.0, 7.0], "float32", TypeError, "`cu_seqlens` is f32[2]; expected an integer array"),
    ([[0, 7]], "int32", ValueError, "`cu_seqlens` is i32[1,2]; expected [B+1]"),
    (None, "int32", TypeError, "`cu_seqlens` is a list; expected an array"),
]


@pytest.mark.parametrize(("values", "dtype", "error", "text"), PACKINGS, ids=lambda case: str(case)[:30])
def test_packings(wing, values, dtype, error, text):
    cu = [0, 7] if values is None else wing.array(values, dtype)
    arrays = {name: wing.array(tuple(x.shape[1:])) for name, x in mlstm_arguments(wing).items()}
    refused(error, f"mlstm: {text.format(first='q')}", wing.mlstm, **arrays, cu_seqlens=cu)
    arrays = gru_arguments(wing)
    arrays = {name: x if name.endswith("weight") else wing.array(tuple(x.shape[1:])) for name, x in arrays.items()}
    refused(error, f"gru: {text.format(first='input')}", wing.gru, **arrays, cu_seqlens=cu)


def test_longest_sequence(wing):
    arrays = {name: wing.array(tuple(x.shape[1:])) for name, x in mlstm_arguments(wing).items()}
    cu = wing.array([0, 5, 7], "int32")
    wing.mlstm(**arrays, cu_seqlens=cu, max_seqlen=6)
    text = "mlstm: `max_seqlen` is 4; expected at least 5, the longest sequence in `cu_seqlens`"
    refused(ValueError, text, wing.mlstm, **arrays, cu_seqlens=cu, max_seqlen=4)
    text = "mlstm: `max_seqlen` is 'long'; expected None or an integer of at least 0"
    refused(TypeError, text, wing.mlstm, **arrays, cu_seqlens=cu, max_seqlen="long")


def gru_arguments(wing, **changed):
    """A legal call (B 2, S 7, H 3, all head counts 4) with some shapes or options changed."""
    arguments = {}
    for name in ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight"):
        shape = changed.pop(name, (4, 3, 3) if name.endswith("weight") else (2, 7, 4, 3))
        arguments[name] = wing.array(shape) if isinstance(shape, tuple) else shape
    return {**arguments, **{name: wing.array(x) if isinstance(x, tuple) else x for name, x in changed.items()}}


GRU_CALLS = [
    (dict(input=(7, 3)), ValueError, "`input` is f32[7,3]; expected [B, S, Nx, H]"),
    (dict(weight=(4, 3, 5)), ValueError, "`weight` is f32[4,3,5]; expected [Nw, H=3, H=3] to match `input`"),
    (
        dict(forget_input=(2, 6, 4, 3)),
        ValueError,
        "`forget_input` is f32[2,6,4,3]; expected [B=2, S=7, Nxf, H=3] to match `input`",
    ),
    (
        dict(weight=(3, 3, 3)),
        ValueError,
        "`weight` is f32[3,3,3]; expected Nw to divide N=4, the largest head count",
    ),
    (dict(weight=(0, 3, 3)), ValueError, "`weight` is f32[0,3,3]; expected Nw of at least 1"),
    (dict(gradient_clipping="1"), TypeError, "`gradient_clipping` is '1'; expected None or a number"),
    (dict(gradient_clipping=float("nan")), ValueError, "`gradient_clipping` is nan; expected None or a number"),
    (
        dict(recurrent_bias=(4, 3)),
        ValueError,
        "`recurrent_bias` is f32[4,3]; expected None where `reset_after` is False",
    ),
    (
        dict(recurrent_bias=(2, 3), reset_after=True),
        ValueError,
        "`recurrent_bias` is f32[2,3]; expected [Nw=4, H=3] to match `weight`",
    ),
]


@pytest.mark.parametrize(("changed", "error", "text"), GRU_CALLS, ids=lambda case: str(case)[:40])
def test_gru(wing, changed, error, text):
    refused(error, f"gru: {text}", wing.gru, **gru_arguments(wing, **changed))


def test_gru_state_and_dtypes(wing):
    arguments = gru_arguments(wing)
    arguments["reset_weight"] = wing.array((4, 3, 3), "float16")
    text = "gru: `reset_weight` is f16[4,3,3]; expected float32 to match `input`"
    refused(TypeError, text, wing.gru, **arguments)
    arguments = gru_arguments(wing)
    text = "gru: `input_state` is f16[2,4,3]; expected float32, the accumulation dtype for `input`"
    refused(TypeError, text, wing.gru, **arguments, input_state=wing.array((2, 4, 3), "float16"))
    text = "gru: `input_state` is f32[3,4,3]; expected [B=2, N=4, H=3] to match `input`"
    refused(ValueError, text, wing.gru, **arguments, input_state=wing.array((3, 4, 3)))


def test_scans_and_decay(wing):
    for name in ("rev_cumsum", "rev_cumsum_off"):
        refused(TypeError, f"{name}: `x` is i32[3]; expected {FLOATS}", getattr(wing, name), wing.array((3,), "int32"))
        refused(ValueError, f"{name}: `x` is f32[]; expected [..., S]", getattr(wing, name), wing.array(()))
        refused(TypeError, f"{name}: `x` is a list; expected an array", getattr(wing, name), [1.0])
    text = f"causal_forget_matrix: `forget_gates` is i64[3]; expected {FLOATS}"
    if wing.name != "jax_impl":
        refused(TypeError, text, wing.causal_forget_matrix, wing.array((3,), "int64"))
    igate = wing.array((5, 1))
    text = "dtilde_matrix: `fgate` is f32[4,1]; expected [5, 1] to match `igate`"
    refused(ValueError, text, wing.dtilde_matrix, igate, wing.array((4, 1)))
    text = "dtilde_matrix: `igate` is f32[5]; expected [..., S, 1]"
    refused(ValueError, text, wing.dtilde_matrix, wing.array((5,)), igate)
    text = "dtilde_matrix: `fgate` is f16[5,1]; expected float32 to match `igate`"
    refused(TypeError, text, wing.dtilde_matrix, igate, wing.array((5, 1), "float16"))


def fwbw_arguments(wing, **changed):
    shapes = dict(q=(2, 7, 8), k=(2, 7, 8), v=(2, 7, 4), i=(2, 7), f=(2, 7))
    return [wing.array(changed.get(name, shape)) for name, shape in shapes.items()]


def test_fwbw_shapes(wing):
    text = "fwbw_forward: `k` is f32[2,7,9]; expected [B=2, T=7, K=8] to match `q`"
    refused(ValueError, text, wing.fwbw_forward, *fwbw_arguments(wing, k=(2, 7, 9)), {})
    text = "fwbw_forward: `i` is f32[2,7,2]; expected [B=2, T=7, 1]"
    refused(ValueError, text, wing.fwbw_forward, *fwbw_arguments(wing, i=(2, 7, 2)), {})
    text = "fwbw_forward: `q` is f32[2,7,3,8]; expected [B, T, K]"
    refused(ValueError, text, wing.fwbw_forward, *fwbw_arguments(wing, q=(2, 7, 3, 8)), {})


def test_fwbw_state(wing):
    C, n, m = (wing.array(shape) for shape in ((2, 8, 4), (2, 8), (2,)))
    arrays, config = fwbw_arguments(wing), dict(use_initial_state=True)
    text = "fwbw_forward: `initial_C` is f32[2,8,4]; expected None where `config.use_initial_state` is False"
    refused(ValueError, text, wing.fwbw_forward, *arrays, {}, C, n, m)
    text = "fwbw_forward: `initial_m` is None; expected an array together with `initial_C`"
    refused(ValueError, text, wing.fwbw_forward, *arrays, config, C, n)
    text = "fwbw_forward: `initial_n` is f32[2]; expected [B=2, K=8] to match `q`"
    refused(ValueError, text, wing.fwbw_forward, *arrays, config, C, m, m)


FIELDS = "chunk_size, return_state, use_initial_state, keep_G, keep_gates, keep_M, keep_c, stabilize_correctly"


def test_fwbw_config(wing):
    arrays = fwbw_arguments(wing)
    cases = [
        (dict(chunk_size=0), ValueError, "`config.chunk_size` is 0; expected None or an integer of at least 1"),
        (dict(keep_G=1), TypeError, "`config.keep_G` is 1; expected True or False"),
        (dict(keep_g=True), ValueError, f"`config` has the field 'keep_g'; expected one of {FIELDS}"),
        (3, TypeError, "`config` is 3; expected an mLSTMBackendFwbwConfig or its dict"),
    ]
    for config, error, text in cases:
        refused(error, f"fwbw_forward: {text}", wing.fwbw_forward, *arrays, config)
        refused(error, f"mlstm_fwbw_custom_grad: {text}", wing.mlstm_fwbw_custom_grad, config)


def test_fwbw_cotangents(wing):
    h, ctx = wing.fwbw_forward(*fwbw_arguments(wing), {})
    text = "fwbw_backward: `dn_last` is f32[2,4]; expected [B=2, K=8] to match `q`"
    dtype = "float64" if wing.name == "reference" else "float32"
    text = text if dtype == "float32" else text.replace("f32", "f64")
    refused(ValueError, text, wing.fwbw_backward, ctx, h, {}, dn_last=wing.array((2, 4), dtype))
    short = "f64" if dtype == "float64" else "f32"
    text = f"fwbw_backward: `dh` is {short}[2,7]; expected [B=2, T=7, V=4] to match `q` and `v`"
    refused(ValueError, text, wing.fwbw_backward, ctx, wing.array((2, 7), dtype), {})


@pytest.mark.parametrize("dh", ["x", "int32"])
def test_a_wrong_dh_is_blamed_itself(wing, dh):
    h, ctx = wing.fwbw_forward(*fwbw_arguments(wing), {})
    with pytest.raises(TypeError, match=r"^fwbw_backward: `dh` is "):
        wing.fwbw_backward(ctx, dh if dh == "x" else wing.array(tuple(h.shape), dh), {})


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
def test_a_context_of_another_configuration_is_refused(wing, made, given, message):
    arrays = [x[:, :5] for x in fwbw_arguments(wing)]
    h, ctx = wing.fwbw_forward(*arrays, made)
    with pytest.raises(ValueError, match=f"^fwbw_backward: `ctx` is made with {message}"):
        wing.fwbw_backward(ctx, h, given)
    assert wing.fwbw_backward(ctx, h, {**made, "return_state": True})[0].shape == arrays[0].shape


def test_what_is_no_context_is_refused(wing):
    h, _ = wing.fwbw_forward(*fwbw_arguments(wing), {})
    contexts = [(None, "None"), (h, r"f\d\d\[2,7,4\]"), ((1, 2), "a tuple")]
    for name in {*INSTALLED} - {wing.name}:
        other = Wing(name)
        contexts.append((other.fwbw_forward(*fwbw_arguments(other), {})[1], f"a {name}.FwbwContext"))
    for ctx, got in contexts:
        with pytest.raises(
            TypeError, match=f"^fwbw_backward: `ctx` is {got}.*; expected the context that this package"
        ):
            wing.fwbw_backward(ctx, h, {})


@pytest.mark.parametrize("kind", ["dataclass", "dict"])
def test_a_configuration_is_read_when_a_function_is_made_of_it(wing, kind):
    """And the context keeps what it was made with."""
    arrays = fwbw_arguments(wing)
    config = wing.mLSTMBackendFwbwConfig(chunk_size=4, keep_c=True) if kind == "dataclass" else {"chunk_size": 4}
    function = wing.mlstm_fwbw_custom_grad(config)
    h, (_, ctx) = function(*arrays), wing.fwbw_forward(*arrays, config)
    if isinstance(config, dict):
        config["chunk_size"] = -5
    else:
        config.chunk_size = -5
    np.testing.assert_array_equal(np.asarray(function(*arrays)), np.asarray(h))
    assert ctx.config.chunk_size == 4
    with pytest.raises(ValueError, match=r"`config\.chunk_size` is -5"):
        wing.mlstm_fwbw_custom_grad(config)(*arrays)


SIZES = LayerCase(1, 1, 5, 4, 6, (4, 1, 2, 1, 1, 1)).settings()


def test_gru_layer(wing):
    def build(**changed):
        layer = wing.GRU(**{**SIZES, **changed})
        if wing.name == "jax_impl":
            import jax

            layer.init(jax.random.key(0), wing.array((2, 3, 5)))

    build()
    text = "GRU: `num_weight_heads` is 3; expected Nw to divide N=4, the largest head count"
    refused(ValueError, text, build, num_weight_heads=3)
    text = "GRU: `state_head_dim` is 0; expected an integer of at least 1"
    refused(ValueError, text, build, state_head_dim=0)
    refused(TypeError, "GRU: `add_bias` is 1; expected True or False", build, add_bias=1)


def test_accumulation(wing):
    state = SimpleNamespace(params={}, apply_fn=None)
    batch = {"x": wing.array((10, 2)), "y": wing.array((10,))}
    if wing.name == "jax_impl":
        import jax

        rng = jax.random.key(0)
    else:
        rng = 0

    def accumulate(batch, num_minibatches, **options):
        return wing.accumulate_gradients(state, batch, rng, num_minibatches, lambda *args: None, **options)

    cases = [
        (batch, 3, ValueError, "`num_minibatches` is 3; expected a divisor of B=10, the leading axis of `batch`"),
        (batch, 0, ValueError, "`num_minibatches` is 0; expected an integer of at least 1"),
        (batch, 2.0, TypeError, "`num_minibatches` is 2.0; expected an integer of at least 1"),
        (
            {**batch, "y": wing.array((9,))},
            3,
            ValueError,
            "`batch['y']` is f32[9]; expected [B=10] to match `batch['x']`",
        ),
        ({}, 1, ValueError, "`batch` is empty; expected a pytree with at least one array"),
    ]
    for bad, count, error, text in cases:
        for options in ({}, {"use_scan": True}):
            refused(error, f"accumulate_gradients: {text}", accumulate, bad, count, **options)


SHARDING = [
    ("split_array_over_mesh", ("tp", 0), ValueError, "`axis_name` is 'tp'; expected an axis of the mesh: 'dp'"),
    ("split_array_over_mesh", ("dp", 2), ValueError, "`split_axis` is 2; expected an axis of f32[3,6], from -2 to 1"),
    (
        "split_array_over_mesh",
        ("dp", 0),
        ValueError,
        "`x` is f32[3,6]; expected axis 0 to be a multiple of 2, the size of 'dp'",
    ),
    (
        "stack_params",
        ("dp", 3),
        ValueError,
        "`axis` is 3; expected an axis of f32[3,6] with one more dimension, from -3 to 2",
    ),
    (
        "stack_params",
        ("dp", 0, 2),
        ValueError,
        "`mask_except` is 2; expected None or the index of one of the 2 shards of 'dp'",
    ),
    ("unstack_params", (3,), TypeError, "`axis_name` is 3; expected the name of a mesh axis or a tuple of names"),
]


@pytest.mark.parametrize(("function", "arguments", "error", "text"), SHARDING)
def test_sharding(wing, function, arguments, error, text):
    x = wing.array((3, 6))
    first = x if function == "split_array_over_mesh" else {"w": x}
    refused(error, f"{function}: {text}", wing.on_mesh, function, first, *arguments)


def test_explain_backend(wing):
    with pytest.raises(ValueError, match=r"^explain_backend: `name` is 'lstm'; expected one of "):
        wing.explain_backend("lstm")
    explanation = wing.explain_backend("mlstm", **mlstm_arguments(wing))
    assert explanation.chosen in wing.KernelBackend
    assert all(isinstance(reason, str) and reason for reason in explanation.against.values())
    assert {explanation.chosen, *explanation.against} == set(wing.KernelBackend)
    explained = wing.explain_backend("gru", **gru_arguments(wing, reset_after=True, recurrent_bias=(4, 3)))
    assert ("it takes no reset_after" in str(explained)) == (wing.name == "jax_impl")
