"""`mlstm` and `mlstm_step` as JAX kernels of mlstm_kernels, chosen by name wherever that package's names are taken.

After ``register()``, ``mlstm_kernels.jax.get_mlstm_kernel("chunkwise--gatespec")`` and
``get_mlstm_step_kernel("gatespec")`` return ours, and so do configurations that name a kernel, such as the
``backend_name`` of xlstm_jax's Triton backend. Arrays are head-first, ``(B, N, S, ·)``.

What the arguments of these kernels mean there and here is the same, with these exceptions:

- ``autocast_kernel_dtype`` is by default the dtype of the values, where the Triton kernels cast to float32. Gates and
  states are in the accumulation dtype, whatever it is.
- Where m > 64, the floor of the normaliser is ``exp(−64)``, not ``exp(−m)``. Both are below ``eps`` times the rounding
  unit of float64 for every ``eps`` from 1e-11 on.
- ``chunk_size`` does not have to divide the sequence length and does not change the value.
- Gradients are exact, also through the normaliser and the states, but for the m inside ``eps``, which is taken for a
  constant: a relative difference of the order of ``eps``.
- A keyword that a kernel does not have is a `TypeError`; some of theirs pass over it.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import accumulation
from jax_impl._backends import KernelBackend
from jax_impl._mlstm.api import mlstm_step
from jax_impl.interop.head_first import (
    HeadFirstState,
    check_array,
    checked_inputs,
    floating_dtype,
    refuse,
    run_sequences,
    widened_state,
)
from reference.arguments import MLSTMState, describe
from reference.backends import known_backend
from reference.interop.kernel_registries import Registry, register_kernels, unregister_kernels


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The names under which kernels are registered.

    Attributes:
        chunkwise_kernel: for `get_mlstm_kernel`.
        parallel_kernel: for `get_mlstm_kernel` too, where the fully parallel form is wanted.
        step_kernel: for `get_mlstm_step_kernel`.
    """

    chunkwise_kernel: str
    parallel_kernel: str
    step_kernel: str


def register(name: str = "gatespec", *, kernel_backend: KernelBackend | str | None = None) -> KernelNames:
    """Register `mlstm` and `mlstm_step` in the JAX registries of mlstm_kernels.

    It has no JAX registry of sequence kernels; the chunkwise kernel takes sequences of any length.

    Args:
        name: their name there. Kernels of several backends can be registered under several names.
        kernel_backend: the backend that they use, as in `mlstm`; None chooses by the arrays of each call.

    Returns:
        The names that `get_mlstm_kernel` and `get_mlstm_step_kernel` take.

    Raises:
        ModuleNotFoundError: mlstm_kernels is not installed, or jax_triton, without which its JAX registries cannot be
            imported.
        TypeError, ValueError: the name contains ``--``, or another kernel has it; `kernel_backend` is unknown.
    """
    backend = known_backend("register", kernel_backend, KernelBackend)
    kernels = {form: kind(kernel_backend=backend) for form, kind in _KERNELS.items()}
    register_kernels(name, _registries(), kernels)
    return KernelNames(chunkwise_kernel=f"chunkwise--{name}", parallel_kernel=f"parallel--{name}", step_kernel=name)


def unregister(name: str = "gatespec") -> None:
    """Take the kernels out of the JAX registries of mlstm_kernels.

    Args:
        name: as given to `register`.

    Raises:
        ModuleNotFoundError: as in `register`.
        ValueError: no kernels of gatespec are registered under this name.
    """
    unregister_kernels(name, _registries(), _KERNELS)


def _registries() -> dict[str, Registry]:
    return {
        "chunkwise": import_module("mlstm_kernels.jax.chunkwise").registry,
        "parallel": import_module("mlstm_kernels.jax.parallel").registry,
        "step": import_module("mlstm_kernels.jax.recurrent").registry_step,
    }


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A kernel of ours in a registry.

    Attributes:
        kernel_backend: as in `mlstm`.
    """

    kernel_backend: KernelBackend | None = None


class Chunkwise(_Kernel):
    """A chunkwise kernel: whole sequences, for training and for prompts."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        i: jax.Array,
        f: jax.Array,
        c_initial: jax.Array | None = None,
        n_initial: jax.Array | None = None,
        m_initial: jax.Array | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int | None = 64,
        autocast_kernel_dtype: Any = None,
    ) -> jax.Array | tuple[jax.Array, HeadFirstState]:
        """`mlstm` with the arguments of mlstm_kernels' chunkwise kernels in JAX.

        Args:
            q, k: ``(B, N, S, K)``.
            v: ``(B, N, S, V)``.
            i, f: preactivations, ``(B, N, S)``.
            c_initial, n_initial, m_initial: ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N)``, in the accumulation dtype or
                one that it holds exactly; None means an empty memory with ``m = 0``.
            return_last_states: also return the state after the last step.
            eps: added to the normaliser.
            chunk_size: steps per chunk; it need not divide S. None chooses one.
            autocast_kernel_dtype: to which q, k and v are cast, a dtype or its name; gates are then cast to the
                accumulation dtype. None means that nothing is cast.

        Returns:
            h ``(B, N, S, V)``, or ``(h, (c, n, m))`` with the state in the accumulation dtype.

        Raises:
            TypeError, ValueError: as in `mlstm`; a part of the state is missing.
        """
        function = "chunkwise--gatespec"
        inputs = checked_inputs(function, (q, k, v, i, f), autocast_kernel_dtype)
        state = (c_initial, n_initial, m_initial)
        initial = None if all(part is None for part in state) else widened_state(function, state, inputs[2])
        h, last = run_sequences(inputs, initial, eps, chunk_size, self.kernel_backend)
        return (h, last) if return_last_states else h


class Parallel(_Kernel):
    """A parallel kernel: whole sequences without states. It is computed in chunks all the same."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        i: jax.Array,
        f: jax.Array,
        c_initial: None = None,
        n_initial: None = None,
        m_initial: None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int | None = None,
        autocast_kernel_dtype: Any = None,
    ) -> jax.Array:
        """`mlstm` with the arguments of mlstm_kernels' parallel kernels in JAX, which take and return no state.

        Args:
            q, k, v, i, f: as in `Chunkwise`.
            c_initial, n_initial, m_initial: None.
            return_last_states: False.
            eps: added to the normaliser, of which m is the largest weight of the steps so far, without an initial one.
            chunk_size, autocast_kernel_dtype: as in `Chunkwise`.

        Returns:
            h, ``(B, N, S, V)``.

        Raises:
            TypeError, ValueError: as in `mlstm`; a state is given or wanted.
        """
        function = "parallel--gatespec"
        for name, part in (("c_initial", c_initial), ("n_initial", n_initial), ("m_initial", m_initial)):
            if part is not None:
                refuse(function, name, "given", "None: use a chunkwise kernel")
        if return_last_states:
            refuse(function, "return_last_states", "True", "False: use a chunkwise kernel")
        inputs = checked_inputs(function, (q, k, v, i, f), autocast_kernel_dtype)
        # m starts from −∞ in the parallel form.
        B, N, K, V = *q.shape[:2], q.shape[-1], v.shape[-1]
        dtype = accumulation(inputs[2])
        empty = MLSTMState(
            jnp.zeros((B, N, K, V), dtype), jnp.zeros((B, N, K), dtype), jnp.full((B, N), -jnp.inf, dtype)
        )
        return run_sequences(inputs, empty, eps, chunk_size, self.kernel_backend)[0]


class Step(_Kernel):
    """A step kernel: one step of every sequence, for generation."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        i: jax.Array,
        f: jax.Array,
        c: jax.Array,
        n: jax.Array,
        m: jax.Array,
        eps: float = 1e-6,
        dtype_state: Any = None,
    ) -> tuple[jax.Array, HeadFirstState]:
        """`mlstm_step` with the arguments of mlstm_kernels' step kernels in JAX.

        Args:
            q, k: ``(B, N, K)``.
            v: ``(B, N, V)``.
            i, f: ``(B, N, 1)``.
            c, n, m: the state, ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N, 1)``.
            eps: added to the normaliser.
            dtype_state: the dtype of the returned state; None means the accumulation dtype, in which the step is
                computed.

        Returns:
            ``(h, (c, n, m))``: h ``(B, N, V)``, and the state after the step.

        Raises:
            TypeError, ValueError: as in `mlstm_step`; i, f or m is not ``(B, N, 1)``.
        """
        function = "gatespec"
        for name, array in (("q", q), ("k", k), ("v", v)):
            check_array(function, name, array)
        for name, array in (("i", i), ("f", f), ("m", m)):
            check_array(function, name, array)
            if array.shape[2:] != (1,):
                refuse(function, name, describe(array), "[B, N, 1]")
        state = widened_state(function, (c, n, m[..., 0]), v)
        backend = self.kernel_backend
        h, (C, n, m) = mlstm_step(q, k, v, i[..., 0], f[..., 0], state, eps=eps, kernel_backend=backend)
        if dtype_state is None:
            return h, (C, n, m[..., None])
        dtype = floating_dtype(function, "dtype_state", dtype_state)
        return h, (C.astype(dtype), n.astype(dtype), m[..., None].astype(dtype))


_KERNELS: dict[str, type[Chunkwise | Parallel | Step]] = {"chunkwise": Chunkwise, "parallel": Parallel, "step": Step}
"""Our kernel of each form."""
