"""Options that are no arrays of the computation, given as arrays and traced values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_impl
import reference
from tests.jax.tools import mlstm_inputs, mlstm_state

DENSE = mlstm_inputs(np.random.default_rng(0), 1, 5, N=1, K=2, V=2, dtype=np.float32)
PACKED = tuple(x[0] for x in DENSE)
STEP = tuple(x[:, 0] for x in DENSE)
STATE = mlstm_state(np.random.default_rng(1), 1, 1, K=2, V=2, dtype=np.float32)
HEADLESS = tuple(x[:, :, 0] for x in DENSE)
WEIGHT = np.ones((1, 2, 2), np.float32)
GRU, PACKED_GRU = (DENSE[0], WEIGHT) * 3, (PACKED[0], WEIGHT) * 3
LENGTHS = np.array([0, 5])

OPTIONS = {
    "mlstm chunk_size": lambda package, value: package.mlstm(*DENSE, chunk_size=value),
    "mlstm eps": lambda package, value: package.mlstm(*DENSE, eps=value),
    "mlstm return_state": lambda package, value: package.mlstm(*DENSE, return_state=value),
    "mlstm max_seqlen": lambda package, value: package.mlstm(*PACKED, cu_seqlens=LENGTHS, max_seqlen=value),
    "mlstm_step eps": lambda package, value: package.mlstm_step(*STEP, STATE, eps=value),
    "gru gradient_clipping": lambda package, value: package.gru(*GRU, None, value),
    "gru max_seqlen": lambda package, value: package.gru(*PACKED_GRU, None, None, LENGTHS, value),
    **{
        f"fwbw_forward config.{field}": functools.partial(
            lambda package, value, field: package.fwbw_forward(*HEADLESS, {field: value}), field=field
        )
        for field in ("chunk_size", "return_state", "use_initial_state", "keep_c")
    },
    "custom_grad config.chunk_size": lambda package, value: package.mlstm_fwbw_custom_grad({"chunk_size": value})(
        *HEADLESS
    ),
    "GRU state_head_dim": lambda package, value: package.GRU(2, value, 2, *(1,) * 6, False, None),
    "GRU num_input_heads": lambda package, value: package.GRU(2, 2, 2, value, *(1,) * 5, False, None),
    "GRU add_bias": lambda package, value: package.GRU(2, 2, 2, *(1,) * 6, value, None),
    "GRU gradient_clipping": lambda package, value: package.GRU(2, 2, 2, *(1,) * 6, False, value),
}


def answer(package, option, value):
    """None if the call is accepted, else the error."""
    try:
        OPTIONS[option](package, value)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("option", OPTIONS)
def test_a_traced_option_is_refused_by_name(option):
    found = []

    def traced(value):
        found.append(answer(jax_impl, option, value))
        return value

    jax.make_jaxpr(traced)(jnp.array(7))
    ((kind, text),) = found
    assert kind is TypeError
    assert f"`{option.split()[1]}` is i32[]; expected " in text


@pytest.mark.parametrize("chunk_size", [np.int64(2), np.array(2), jnp.array(2)], ids=["number", "array", "JAX array"])
def test_an_integer_array_is_an_integer(chunk_size):
    np.testing.assert_array_equal(jax_impl.mlstm(*DENSE, chunk_size=chunk_size), jax_impl.mlstm(*DENSE, chunk_size=2))
    config, integers = {"chunk_size": chunk_size, "keep_c": True}, {"chunk_size": 2, "keep_c": True}
    h, context = jax_impl.fwbw_forward(*HEADLESS, config)
    for got, expected in zip(
        jax_impl.fwbw_backward(context, h, integers)[:5], jax_impl.fwbw_backward(context, h, config)[:5], strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    assert context.c.m.shape == (1, 3)
    with pytest.raises(ValueError, match="`chunk_size` is 0; expected None or an integer of at least 1"):
        jax_impl.mlstm(*DENSE, chunk_size=0 * chunk_size)


@pytest.mark.parametrize(
    "name", [np.array("mlstm"), jnp.array(3), ["mlstm"], None], ids=["array", "JAX", "list", "None"]
)
def test_an_operation_is_named_by_a_string(name):
    for package in (jax_impl, reference):
        with pytest.raises(ValueError, match=r"^explain_backend: `name` is .*; expected one of "):
            package.explain_backend(name, *DENSE)
