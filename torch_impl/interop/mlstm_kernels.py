"""`mlstm` and `mlstm_step` as kernels of mlstm_kernels, chosen by name wherever that package's names are taken.

After ``register()``, ``chunkwise_kernel="chunkwise--gatespec"``, ``sequence_kernel="gatespec"`` and
``step_kernel="gatespec"`` work in `mLSTMBackend` of mlstm_kernels and in `xLSTMLarge` of the package xlstm.

What the arguments of these kernels mean there and here is the same, with these exceptions:

- Where m > 64, the floor of the normaliser is ``exp(−64)``, not ``exp(−m)``. Both are below ``eps`` times the rounding
  unit of float64 for every ``eps`` from 1e-11 on, so that the difference shows only with a smaller ``eps``.
- The parallel form has no state before the first step, as its peers, whose m then starts from −∞ instead of 0. That
  changes the weight of ``eps`` and is kept.
- ``chunk_size`` does not have to divide the sequence length and does not change the value.
- Gradients are exact, also through the normaliser, but for the m inside ``eps``, which is taken for a constant: a
  relative difference of the order of ``eps``.
- Under autocast, gates and states are float32, whatever ``autocast_kernel_dtype`` is.
"""

from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from reference.backends import known_backend
from reference.interop.kernel_registries import Registry, register_kernels, unregister_kernels
from torch_impl._backends import KernelBackend
from torch_impl.interop.head_first import HeadFirstState, check_dtype, check_inputs, run_sequences, run_step


@dataclass(frozen=True, kw_only=True)
class KernelNames:
    """The names under which kernels are registered, as the configurations of mlstm_kernels and xlstm take them.

    Attributes:
        chunkwise_kernel: for `chunkwise_kernel`.
        parallel_kernel: for `chunkwise_kernel` too, where the fully parallel form is wanted.
        sequence_kernel: for `sequence_kernel`.
        step_kernel: for `step_kernel`.
    """

    chunkwise_kernel: str
    parallel_kernel: str
    sequence_kernel: str
    step_kernel: str


def register(name: str = "gatespec", *, kernel_backend: KernelBackend | str | None = None) -> KernelNames:
    """Register `mlstm` and `mlstm_step` in the registries of mlstm_kernels.

    Args:
        name: their name there. Kernels of several backends can be registered under several names.
        kernel_backend: the backend that they use, as in `mlstm`; None chooses by the arrays of each call.

    Returns:
        The names for the configurations.

    Raises:
        ModuleNotFoundError: mlstm_kernels is not installed.
        TypeError, ValueError: the name contains ``--``, or another kernel has it; `kernel_backend` is unknown.
    """
    backend = known_backend("register", kernel_backend, KernelBackend)
    kernels = {form: kind(kernel_backend=backend) for form, kind in _KERNELS.items()}
    register_kernels(name, _registries(), kernels)
    return KernelNames(
        chunkwise_kernel=f"chunkwise--{name}",
        parallel_kernel=f"parallel--{name}",
        sequence_kernel=name,
        step_kernel=name,
    )


def unregister(name: str = "gatespec") -> None:
    """Take the kernels out of the registries of mlstm_kernels. Models that were made with them keep them.

    Args:
        name: as given to `register`.

    Raises:
        ModuleNotFoundError: mlstm_kernels is not installed.
        ValueError: no kernels of gatespec are registered under this name.
    """
    unregister_kernels(name, _registries(), _KERNELS)


def _registries() -> dict[str, Registry]:
    recurrent = import_module("mlstm_kernels.torch.recurrent")
    return {
        "chunkwise": import_module("mlstm_kernels.torch.chunkwise").registry,
        "parallel": import_module("mlstm_kernels.torch.parallel").registry,
        "sequence": recurrent.registry_sequence,
        "step": recurrent.registry_step,
    }


@dataclass(frozen=True, kw_only=True)
class _Kernel:
    """A kernel of ours in a registry.

    Attributes:
        kernel_backend: as in `mlstm`.
    """

    kernel_backend: KernelBackend | None


class Chunkwise(_Kernel):
    """A chunkwise kernel: whole sequences, for training and for prompts."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int = 64,
        autocast_kernel_dtype: torch.dtype = torch.float32,
    ) -> Tensor | tuple[Tensor, HeadFirstState]:
        """`mlstm` with the arguments of mlstm_kernels' chunkwise kernels.

        Args:
            q, k, v, i, f: as in `run_sequences`.
            c_initial, n_initial, m_initial: ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N, 1)``; None means an empty memory
                with ``m = 0``.
            return_last_states: also return the state after the last step.
            eps: added to the normaliser.
            chunk_size: steps per chunk; it need not divide S.
            autocast_kernel_dtype: the dtype of q, k and v under autocast.

        Returns:
            h ``(B, N, S, V)``, or ``(h, (c, n, m))`` with the state in the accumulation dtype.

        Raises:
            TypeError, ValueError: as in `run_sequences`.
        """
        h, state = run_sequences(
            "chunkwise--gatespec",
            q,
            k,
            v,
            i,
            f,
            (c_initial, n_initial, m_initial),
            eps=eps,
            chunk_size=chunk_size,
            autocast_kernel_dtype=autocast_kernel_dtype,
            kernel_backend=self.kernel_backend,
        )
        return (h, state) if return_last_states else h


class Parallel(_Kernel):
    """A parallel kernel: whole sequences without states. It is computed in chunks all the same."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: None = None,
        n_initial: None = None,
        m_initial: None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        chunk_size: int | None = None,
        autocast_kernel_dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """`mlstm` with the arguments of mlstm_kernels' parallel kernels, which take and return no state.

        Args:
            q, k, v, i, f: as in `run_sequences`.
            c_initial, n_initial, m_initial: None.
            return_last_states: False.
            eps: added to the normaliser, of which m is the largest weight of the steps so far, without an initial one.
            chunk_size: as in `Chunkwise`.
            autocast_kernel_dtype: as in `Chunkwise`.

        Returns:
            h, ``(B, N, S, V)``.

        Raises:
            TypeError, ValueError: as in `run_sequences`; a state is given or wanted.
        """
        for name, part in (("c_initial", c_initial), ("n_initial", n_initial), ("m_initial", m_initial)):
            if part is not None:
                raise ValueError(f"parallel--gatespec: `{name}` is given; expected None: use a chunkwise kernel")
        if return_last_states:
            raise ValueError("parallel--gatespec: `return_last_states` is True; expected False: use a chunkwise kernel")
        check_inputs("parallel--gatespec", q, k, v, i, f)
        # m starts from −∞ in the parallel form.
        B, N, K, V = *q.shape[:2], q.shape[-1], v.shape[-1]
        dtype = torch.float64 if v.dtype is torch.float64 else torch.float32
        empty = (q.new_zeros((B, N, K, V), dtype=dtype), q.new_zeros((B, N, K), dtype=dtype))
        h, _ = run_sequences(
            "parallel--gatespec",
            q,
            k,
            v,
            i,
            f,
            (*empty, q.new_full((B, N, 1), -torch.inf, dtype=dtype)),
            eps=eps,
            chunk_size=chunk_size,
            autocast_kernel_dtype=autocast_kernel_dtype,
            kernel_backend=self.kernel_backend,
        )
        return h


class Sequence(_Kernel):
    """A sequence kernel: any sequence length, with the dtype of the state chosen by the caller."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool = False,
        eps: float = 1e-6,
        dtype_state: torch.dtype = torch.float32,
    ) -> Tensor | tuple[Tensor, HeadFirstState]:
        """`mlstm` with the arguments of mlstm_kernels' sequence kernels.

        Args:
            q, k, v, i, f: as in `run_sequences`.
            c_initial, n_initial, m_initial: as in `Chunkwise`.
            return_last_states: also return the state after the last step.
            eps: added to the normaliser.
            dtype_state: the dtype of the returned state; between the steps it has the accumulation dtype.

        Returns:
            h ``(B, N, S, V)``, or ``(h, (c, n, m))``.

        Raises:
            TypeError, ValueError: as in `run_sequences`.
        """
        check_dtype("gatespec", "dtype_state", dtype_state)
        state = (c_initial, n_initial, m_initial)
        h, (c, n, m) = run_sequences("gatespec", q, k, v, i, f, state, eps=eps, kernel_backend=self.kernel_backend)
        return (h, (c.to(dtype_state), n.to(dtype_state), m.to(dtype_state))) if return_last_states else h


class Step(_Kernel):
    """A step kernel: one step of every sequence, for generation."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        i: Tensor,
        f: Tensor,
        c: Tensor,
        n: Tensor,
        m: Tensor,
        eps: float = 1e-6,
        dtype_state: torch.dtype = torch.float32,
    ) -> tuple[Tensor, HeadFirstState]:
        """`mlstm_step` with the arguments of mlstm_kernels' step kernels; they are those of `run_step`.

        Args:
            q, k, v, i, f: as in `run_step`.
            c, n, m: the state, ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N, 1)``.
            eps: added to the normaliser.
            dtype_state: the dtype of the returned state.

        Returns:
            ``(h, (c, n, m))``: h ``(B, N, V)``, and the state after the step.

        Raises:
            TypeError, ValueError: as in `run_step`.
        """
        backend = self.kernel_backend
        return run_step("gatespec", q, k, v, i, f, (c, n, m), eps=eps, dtype_state=dtype_state, kernel_backend=backend)


_KERNELS: dict[str, type[Chunkwise | Parallel | Sequence | Step]] = {
    "chunkwise": Chunkwise,
    "parallel": Parallel,
    "sequence": Sequence,
    "step": Step,
}
"""Our kernel of each form."""
