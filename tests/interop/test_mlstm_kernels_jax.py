"""Our kernels in the JAX registries of mlstm_kernels: called as its own are, and chosen by name in a module."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mlstm_kernels.jax import get_mlstm_kernel, get_mlstm_step_kernel

from jax_impl.interop.mlstm_kernels import KernelNames, register, unregister
from tests.interop.head_first_cases import STATES, case, specified
from tests.interop.rounding import assert_rounding

OURS, NATIVE = "chunkwise--gatespec", "chunkwise--native_autograd"
# Without an initial value of m, as in the specification with m = −∞.
WITHOUT_STATES = {"m_initial": np.full((2, 3, 1), -np.inf)}


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[KernelNames]:
    yield register()
    unregister()


def arrays_of(arrays: dict[str, np.ndarray], dtype: Any) -> dict[str, jax.Array]:
    """A call of a sequence kernel: here m has no last axis of 1."""
    found = {name: jnp.asarray(array, dtype) for name, array in arrays.items()}
    return found | {"m_initial": found["m_initial"][..., 0]} if "m_initial" in found else found


def compiled(name: str, arrays: dict[str, np.ndarray], dtype: Any, **options: Any) -> Any:
    with jax.enable_x64(dtype is np.float64):
        return jax.jit(partial(get_mlstm_kernel(name), **options))(**arrays_of(arrays, dtype))


@pytest.mark.parametrize(("S", "chunk_size", "eps", "state"), [(32, 16, 1e-6, True), (24, 24, 0.3, False)])
def test_a_chunkwise_kernel_agrees_with_the_native_one(S: int, chunk_size: int, eps: float, state: bool) -> None:
    arrays = case(2, 3, S, 8, 5, state=state)
    h, (C, n, m) = specified(arrays, eps)
    options = {"return_last_states": True, "chunk_size": chunk_size, "eps": eps}
    for name in (OURS, NATIVE):
        for dtype in (np.float64, np.float32):
            found, states = compiled(name, arrays, dtype, **options)
            assert found.dtype == dtype
            assert_rounding(found, h, f"{name}: h")
            for letter, mine, expected in zip("cnm", states, (C, n, m[..., 0]), strict=True):
                assert_rounding(mine, expected, f"{name}: {letter}")


def test_a_parallel_kernel_agrees_with_the_native_one() -> None:
    eps = 0.3
    arrays = case(2, 3, 37, 8, 5, state=False)
    empty = {name: np.zeros(shape) for name, shape in zip(STATES, ((2, 3, 8, 5), (2, 3, 8), (2, 3, 1)), strict=True)}
    exact, _ = specified(arrays | empty | WITHOUT_STATES, eps)
    for name in ("parallel--gatespec", "parallel--native_stablef_autograd"):
        for dtype in (np.float64, np.float32):
            found = compiled(name, arrays, dtype, eps=eps)
            # Where m is small, the normaliser is a sum that cancels, whose rounding grows by what cancelled.
            assert_rounding(found, exact, f"{name}, {dtype}", units=256)


@pytest.mark.parametrize("dtype_state", [None, "bfloat16"])
def test_a_step_kernel_agrees_with_the_native_one(dtype_state: str | None) -> None:
    arrays = case(2, 3, 1, 8, 5, state=True)
    h, last = specified(arrays, 1e-6)
    x = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
    step = {name: x[name][:, :, 0] for name in "qkv"} | {name: x[name] for name in "if"}
    state = {name: x[f"{name}_initial"] for name in "cnm"}
    native, native_states = jax.jit(get_mlstm_step_kernel("native"))(**step, **state)
    ours = partial(get_mlstm_step_kernel("gatespec"), dtype_state=dtype_state)
    found, states = jax.jit(ours)(**step, **state)
    for name, array in (("native", native), ("gatespec", found)):
        assert_rounding(array, h[:, :, 0], name)
    for letter, mine, theirs, expected in zip("cnm", states, native_states, last, strict=True):
        assert_rounding(theirs, expected, f"native: {letter}")
        assert mine.dtype == jnp.dtype(dtype_state or "float32")
        # One rounding to the state's dtype.
        scale = np.abs(expected).max() * (64 * jnp.finfo(jnp.float32).eps + jnp.finfo(mine.dtype).eps)
        assert np.abs(np.asarray(mine, np.float64) - expected).max() <= scale, letter


def gradients(name: str, arrays: dict[str, np.ndarray], dtype: Any) -> dict[str, Any]:
    """Gradients of one random combination of h and of the states, with eps = 0."""
    kernel = get_mlstm_kernel(name)

    def loss(x: dict[str, jax.Array]) -> Any:
        rng = np.random.default_rng(9)
        h, states = kernel(**x, chunk_size=16, eps=0.0, return_last_states=True)
        return sum((part * rng.normal(size=part.shape).astype(part.dtype)).sum() for part in (h, *states[:2]))

    with jax.enable_x64(dtype is np.float64):
        return {name: np.asarray(x) for name, x in jax.jit(jax.grad(loss))(arrays_of(arrays, dtype)).items()}


def test_gradients_are_those_of_the_native_autograd_kernel() -> None:
    arrays = case(2, 2, 32, 8, 5, state=True, seed=3)
    exact = gradients(NATIVE, arrays, np.float64)
    for dtype in (np.float64, np.float32):
        found = gradients(OURS, arrays, dtype)
        for name in exact:
            assert_rounding(found[name], exact[name], f"{name}, {dtype}", units=256)


class Backend(nn.Module):
    """Chooses a kernel by name when it is called, with a dtype by name or that of q, as JAX models do."""

    kernel: str
    dtype: str | None = None

    @nn.compact
    def __call__(self, q: Any, k: Any, v: Any, i: Any, f: Any, **states: Any) -> Any:
        kernel: Callable[..., Any] = get_mlstm_kernel(self.kernel)
        dtype = q.dtype if self.dtype is None else self.dtype
        return kernel(q, k, v, i, f, **states, return_last_states=True, chunk_size=16, autocast_kernel_dtype=dtype)


@pytest.mark.parametrize(("S", "state"), [(1, True), (33, False)])
def test_a_module_that_takes_names_takes_any_length(S: int, state: bool) -> None:
    arrays = case(2, 3, S, 8, 5, state=state)
    exact, last = specified(arrays, 1e-6)
    for dtype, low in ((None, jnp.float32), ("bfloat16", jnp.bfloat16)):
        h, states = jax.jit(Backend(OURS, dtype).apply)({}, **arrays_of(arrays, np.float32))
        assert h.dtype == low and {part.dtype for part in states} == {jnp.dtype("float32")}
        if dtype is None:
            assert_rounding(h, exact, "h")
            assert_rounding(states[0], last[0], "c")
        else:
            assert np.abs(np.asarray(h, np.float64) - exact).max() < 64 * jnp.finfo(low).eps * np.abs(exact).max()


def test_kernels_map_over_another_axis() -> None:
    arrays = [case(2, 3, 20, 8, 5, state=True, seed=seed) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(arrays_of(each, np.float32) for each in arrays))
    h = jax.jit(jax.vmap(lambda x: get_mlstm_kernel(OURS)(**x)))(stacked)
    for mine, each in zip(h, arrays, strict=True):
        assert_rounding(mine, specified(each, 1e-6)[0], "h")


def test_the_names_and_what_is_refused() -> None:
    names = register("gatespec-xla", kernel_backend="xla")
    assert names == KernelNames(
        chunkwise_kernel="chunkwise--gatespec-xla",
        parallel_kernel="parallel--gatespec-xla",
        step_kernel="gatespec-xla",
    )
    unregister("gatespec-xla")
    with pytest.raises(ValueError, match="Unknown backend name: gatespec-xla"):
        get_mlstm_kernel("chunkwise--gatespec-xla")
    with pytest.raises(ValueError, match="unregister: `name` is 'gatespec-xla'; expected a chunkwise kernel"):
        unregister("gatespec-xla")
    for name in ("native_autograd", "triton"):
        form = "step" if name == "triton" else "chunkwise"
        with pytest.raises(ValueError, match=f"register: `name` is '{name}'; expected one that no {form} kernel"):
            register(name)
        with pytest.raises(ValueError, match=f"unregister: `name` is '{name}'; expected a"):
            unregister(name)
    with pytest.raises(ValueError, match="register: `name` is 'a--b'; expected a name without '--'"):
        register("a--b")
    with pytest.raises(ValueError, match="register: `kernel_backend` is 'cuda'; expected None, xla or pallas"):
        register("ours", kernel_backend="cuda")
