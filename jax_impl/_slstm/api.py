"""sLSTM: a scalar memory for each unit, with exponential gates and recurrent weights for each head.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 8 to 18, with the stabiliser m of appendix A. Per head, with row
vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

    a_t = log σ(u_f), or u_f with an exponential forget gate
    m_t = max(a_t + m_{t−1}, u_i)
    c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
    h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)

Backward, with dh_t the gradient of h_t (from the next step, clipped, plus the cotangent of the output)::

    du_o = dh_t⊙(c_t/n_t)⊙o⊙(1−o)        dc += dh_t⊙o/n_t        dn −= dh_t⊙h_t/n_t
    du_z = gain⊙dc⊙(1−z²)                du_i = gain⊙(z⊙dc + dn)
    dc ← decay⊙dc        dn ← decay⊙dn        du_f = (c_{t−1}⊙dc + n_{t−1}⊙dn)⊙∂a_t/∂u_f
    dh_{t−1} = Σ_x du_x W_xᵀ             dW_x = Σ_t h_{t−1}ᵀ du_x
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import jax

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend, choose, request, request_builder
from jax_impl._call_cache import cached_by_signature
from jax_impl._slstm.arguments import Arguments, Gates, Options
from jax_impl._slstm.autograd import run_slstm
from reference.arguments import SLSTMState, check_flag, check_sequential, check_slstm, check_slstm_step
from reference.backends import Request

TOGETHER, TOGETHER_ON_CPU = 4096, 1024
"""Number of packed sequences that are advanced at once, as in `jax_impl._gru.api`."""


class _Options(TypedDict, total=False):
    """The keywords of `slstm` that do not change the type of its result."""

    initial_state: SLSTMState | None
    forget_gate: str
    gradient_clipping: float | None
    cu_seqlens: jax.Array | None
    max_seqlen: int | None
    kernel_backend: KernelBackend | str | None


@overload
def slstm(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> jax.Array: ...
@overload
def slstm(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    *,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[jax.Array, SLSTMState]: ...
@overload
def slstm(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    *,
    return_state: bool,
    **options: Unpack[_Options],
) -> jax.Array | tuple[jax.Array, SLSTMState]: ...
def slstm(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    *,
    initial_state: SLSTMState | None = None,
    return_state: bool = False,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
    sequence_axis: None = None,
) -> jax.Array | tuple[jax.Array, SLSTMState]:
    """The sLSTM over whole sequences, dense or packed.

    Per head, with row vectors and ``u_x = x_t + h_{t−1} W_x`` for x in z, i, f, o::

        a_t = log σ(u_f), or u_f with an exponential forget gate
        m_t = max(a_t + m_{t−1}, u_i)
        c_t = exp(a_t + m_{t−1} − m_t) c_{t−1} + exp(u_i − m_t) tanh(u_z)
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(u_i − m_t)
        h_t = σ(u_o) c_t / n_t        (0 where n_t = 0)

    States and their gradients are carried in the accumulation dtype. The gradients of the weights are one product after
    the loop, and are deterministic.

    Args:
        z: preactivations of the cell input, ``(B, S, N, H)``, or ``(T, N, H)`` with `cu_seqlens`.
        i: of the input gate, same shape, below +∞; at −∞ the step writes nothing.
        f: of the forget gate, same shape; −∞ empties the memory, +∞ keeps all of it (not with ``"exp"``).
        o: of the output gate, same shape.
        weight_z, weight_i, weight_f, weight_o: recurrent weights, ``(N, H, H)``.
        initial_state: ``(c, n, m, h)`` before the first step, each ``(B, N, H)`` in the accumulation dtype, with n of
            at least 0; None means the empty state, ``c = n = h = 0`` and ``m = −∞``.
        return_state: also return the state after the last step.
        forget_gate: ``"sigmoid"`` or ``"exp"``.
        gradient_clipping: elementwise bound on the gradient that reaches h from the next step, or at the last step from
            the final state. Gradients of c and n, and of the initial state, are not clipped. It does not affect the
            value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        kernel_backend: the backend to use; an error if it does not support the call.
        sequence_axis: only None, unlike in `mlstm`, because each step needs the one before it: shard the batch or the
            heads instead.

    Returns:
        h, with the shape and dtype of `z`; with `return_state`, ``(h, SLSTMState)``.

    Raises:
        TypeError: an argument is not a floating-point tensor, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, `cu_seqlens` is not a valid packing, `sequence_axis` is
            given, or the requested backend does not support the call.
        NotImplementedError: a second derivative is requested.
    """
    check_sequential("slstm", "sequence_axis", sequence_axis)
    check_flag("slstm", "return_state", return_state)
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    # The options of a packed call depend on the values of the packing, which no cache may read.
    decide = _cached_options if cu_seqlens is None else _options
    options = decide(
        *(*arrays, initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen),
        *(kernel_backend, matmul_precision()),
    )
    packing = None if cu_seqlens is None else cu_seqlens.astype("int32")
    state = None if initial_state is None else SLSTMState(*initial_state)
    h, last = run_slstm(options, Arguments(Gates(*arrays[:4]), Gates(*arrays[4:]), state, packing))
    return (h, last) if return_state else h


def _options(*call: Any) -> Options:
    """The options of a legal call; raises if the call is not legal."""
    *arguments, kernel_backend, precision = call
    *_, forget_gate, gradient_clipping, cu_seqlens, _ = arguments
    found = check_slstm(JAX, *arguments)
    asked = request(found, arguments[0], cu_seqlens is not None)
    return Options(
        exponential=forget_gate == "exp",
        bound=None if gradient_clipping is None else abs(float(gradient_clipping)),
        precision=precision,
        backend=choose(asked, kernel_backend).name,
        together=TOGETHER_ON_CPU if asked.device == "cpu" else TOGETHER,
    )


_cached_options = cached_by_signature(_options)


@request_builder("slstm")
def _request(
    z: Any,
    i: Any,
    f: Any,
    o: Any,
    weight_z: Any,
    weight_i: Any,
    weight_f: Any,
    weight_o: Any,
    *,
    initial_state: Any = None,
    return_state: Any = False,
    forget_gate: Any = "sigmoid",
    gradient_clipping: Any = None,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
) -> Request:
    check_flag("slstm", "return_state", return_state)
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    call = check_slstm(JAX, *arrays, initial_state, forget_gate, gradient_clipping, cu_seqlens, max_seqlen)
    return request(call, z, cu_seqlens is not None)


def slstm_step(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    state: SLSTMState,
    *,
    forget_gate: str = "sigmoid",
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, SLSTMState]:
    """One step of the sLSTM, as used to generate text; the shapes are those of `slstm` without ``S``.

    Args:
        z, i, f, o: ``(B, N, H)``.
        weight_z, weight_i, weight_f, weight_o: ``(N, H, H)``.
        state: the state before the step, in the accumulation dtype; it is not overwritten.
        forget_gate, kernel_backend: as in `slstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, H)``, in the dtype of `z`, and the state after the step.

    Raises:
        TypeError, ValueError, NotImplementedError: as in `slstm`.
    """
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    options = _cached_step_options(*arrays, state, forget_gate, kernel_backend, matmul_precision())
    inputs = Gates(*(x[:, None] for x in arrays[:4]))
    h, last = run_slstm(options, Arguments(inputs, Gates(*arrays[4:]), SLSTMState(*state), None))
    return h[:, 0], last


def _step_options(*call: Any) -> Options:
    *arguments, kernel_backend, precision = call
    asked = request(check_slstm_step(JAX, *arguments), arguments[0])
    backend = choose(asked, kernel_backend).name
    return Options(exponential=arguments[-1] == "exp", bound=None, precision=precision, backend=backend, together=1)


_cached_step_options = cached_by_signature(_step_options)


@request_builder("slstm_step")
def _step_request(
    z: Any,
    i: Any,
    f: Any,
    o: Any,
    weight_z: Any,
    weight_i: Any,
    weight_f: Any,
    weight_o: Any,
    state: Any,
    *,
    forget_gate: Any = "sigmoid",
) -> Request:
    call = check_slstm_step(JAX, z, i, f, o, weight_z, weight_i, weight_f, weight_o, state, forget_gate)
    return request(call, z)
