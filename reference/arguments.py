"""The legal calls: shape, dtype, option and packing checks of every public operation, shared by all implementations.

Each ``check_*`` function raises the contract's error or returns the `Call`, whose letters (``call["B"]``) give the
sizes. Nothing here imports a framework; an implementation describes its arrays with a `Framework`.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reference._call import FLOATING, Call, Framework, accumulation_dtype, describe, dtype_name, whole_number

__all__ = [
    "Call",
    "Framework",
    "MLSTMState",
    "SLSTMState",
    "accumulation_dtype",
    "axis_names",
    "check_alike",
    "check_batch",
    "check_dtilde_matrix",
    "check_fwbw",
    "check_fwbw_context",
    "check_flag",
    "check_fwbw_cotangents",
    "check_gated_delta_step",
    "check_gru",
    "check_gru_sizes",
    "check_linear_attention",
    "check_loss",
    "check_mlstm",
    "check_mlstm_sharded",
    "check_mlstm_sizes",
    "check_mlstm_step",
    "check_mlstm_summaries",
    "check_mlstm_summary",
    "check_params",
    "check_scan",
    "check_seed",
    "check_sequential",
    "check_slstm",
    "check_slstm_step",
    "check_split",
    "check_stack",
    "check_unstack",
    "check_weights",
    "describe",
    "dtype_name",
    "frozen_config",
    "mLSTMBackendFwbwConfig",
    "normalise_config",
    "unknown_axis",
]


class MLSTMState(NamedTuple):
    """The memory of an mLSTM between two calls, in the accumulation dtype.

    The true memory is ``C·exp(m)`` and ``n·exp(m)``; ``m = −inf`` stands for an empty memory.

    Attributes:
        C: matrix memory, ``(B, N, K, V)``.
        n: normaliser, ``(B, N, K)``.
        m: log-scale stabiliser, ``(B, N)``.
    """

    C: Any
    n: Any
    m: Any


class SLSTMState(NamedTuple):
    """The state of an sLSTM between two calls, each array ``(B, N, H)`` in the accumulation dtype.

    The true memory is ``c·exp(m)`` and ``n·exp(m)``; ``m = −inf`` stands for an empty memory.

    Attributes:
        c: memory.
        n: normaliser, the sum of the weights of all writes, at least 0.
        m: log-scale stabiliser.
        h: output of the last step, which the recurrent weights read.
    """

    c: Any
    n: Any
    m: Any
    h: Any


@dataclass(unsafe_hash=True)
class mLSTMBackendFwbwConfig:
    """Configuration of the fwbw interface, with the fields and defaults of the xlstm_jax backend of that name.

    Attributes:
        chunk_size: steps per chunk; None chooses one to suit the sizes. It does not change the value.
        return_state: also return the final state.
        use_initial_state: start from the given state (zeros if none is given) and return its gradient.
        keep_G: store the decayed scores inside each chunk for the backward pass, ``(B, T/L, L, L)``.
        keep_gates: store the log forget gates and their sums inside each chunk.
        keep_M: store the stabiliser of every step, ``(B, T)``.
        keep_c: store the memory at the start of every chunk, ``(B, T/L, K, V)``.
        stabilize_correctly: whether the normaliser's floor is ``exp(−min(m, 64))`` as defined. Otherwise it is 1, which
            gives the same function only if a group norm follows.
    """

    chunk_size: int | None = 512
    return_state: bool = False
    use_initial_state: bool = False
    keep_G: bool = False
    keep_gates: bool = True
    keep_M: bool = False
    keep_c: bool = False
    stabilize_correctly: bool = False

    def assign_model_config_params(self, model_config: Any) -> None:
        """Copy every field that ``model_config`` has under the same name into this configuration."""
        for field in dataclasses.fields(self):
            if hasattr(model_config, field.name):
                setattr(self, field.name, getattr(model_config, field.name))


_CONFIG_FIELDS = tuple(field.name for field in dataclasses.fields(mLSTMBackendFwbwConfig))


def check_mlstm(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    initial_state: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    chunk_size: Any,
    eps: Any,
    function: str = "mlstm",
    tokens_of_all: Callable[[int], int | None] | None = None,
) -> Call:
    """Check a call of the mLSTM.

    Args:
        tokens_of_all: ``(T) →`` the number of tokens of all shards, if the call has one of them; None if unknown.
    """
    call = Call(function, framework)
    tokens = "B S" if cu_seqlens is None else "T"
    _check_qkvif(call, q, k, v, i, f, tokens)
    call.packing(cu_seqlens, max_seqlen, "q", tokens_of_all)
    if initial_state is not None:
        _check_state(call, initial_state, "initial_state", v)
    call.integer("chunk_size", chunk_size, 1, optional=True)
    _check_eps(call, eps)
    return call


def check_mlstm_step(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    state: Any,
    eps: Any,
    function: str = "mlstm_step",
) -> Call:
    call = Call(function, framework)
    _check_qkvif(call, q, k, v, i, f, "B")
    _check_state(call, state, "state", v)
    _check_eps(call, eps)
    return call


def check_mlstm_summary(framework: Framework, k: Any, v: Any, i: Any, f: Any) -> Call:
    call = Call("mlstm_summary", framework)
    call.floating(k=k, v=v)
    call.gates("v", v, i=i, f=f)
    for argument, x, letters in (("k", k, "B S N K"), ("v", v, "B S N V"), ("i", i, "B S N"), ("f", f, "B S N")):
        call.shape(argument, x, letters)
    return call


def check_mlstm_summaries(framework: Framework, earlier: Any, later: Any) -> Call:
    call = Call("combine_mlstm_summaries", framework)
    for argument, summary in (("earlier", earlier), ("later", later)):
        parts = {f"{argument}.{name}": getattr(summary, name, None) for name in ("C", "n", "m", "a")}
        call.floating(**parts)
        for (name, x), letters in zip(parts.items(), ("B N K V", "B N K", "B N", "B N"), strict=True):
            call.shape(name, x, letters)
    return call


def check_mlstm_sharded(
    framework: Framework,
    shards: Mapping[str, Any],
    initial_state: Any,
    cu_seqlens: Any,
    eps: Any,
    function: str = "mlstm_sharded",
) -> Call:
    """Check a call whose tokens are lists of shards; ``shards`` holds the lists q, k, v, i, f, and perhaps dh."""
    call = Call(function, framework)
    for argument, parts in shards.items():
        if not isinstance(parts, list | tuple):
            call.refuse(TypeError, argument, describe(parts), "a list with an array for each shard")
        if not parts or len(parts) != len(shards["q"]):
            expected = f"{len(shards['q'])} to match `q`" if parts and shards["q"] else "at least one"
            call.refuse(ValueError, argument, f"a list of {len(parts)} shards", expected)
    steps = "S" if cu_seqlens is None else "T"
    tokens, total = "B S" if cu_seqlens is None else "T", 0
    for number, (q, k, v, i, f, *dh) in enumerate(zip(*shards.values(), strict=True)):
        call.sizes.pop(steps, None)
        _check_qkvif(call, q, k, v, i, f, tokens, at=f"[{number}]")
        for part in dh:
            call.kind(**{f"dh[{number}]": part})
            call.shape(f"dh[{number}]", part, f"{tokens} N V")
        total += call[steps]
    call.bind(steps, total, "q")
    call.packing(cu_seqlens, None, "q")
    if initial_state is not None:
        _check_state(call, initial_state, "initial_state", shards["v"][0])
    _check_eps(call, eps)
    return call


def _check_qkvif(
    call: Call, q: Any, k: Any, v: Any, i: Any, f: Any, tokens: str, heads: str = " N", at: str = ""
) -> None:
    call.floating(**{f"q{at}": q, f"k{at}": k, f"v{at}": v})
    call.gates(f"v{at}", v, **{f"i{at}": i, f"f{at}": f})
    call.shape(f"q{at}", q, f"{tokens}{heads} K")
    if call["K"] < 1:
        call.refuse(ValueError, f"q{at}", describe(q), "a head dim K of at least 1")
    call.shape(f"k{at}", k, f"{tokens}{heads} K")
    call.shape(f"v{at}", v, f"{tokens}{heads} V")
    for argument, gate in ((f"i{at}", i), (f"f{at}", f)):
        squeezed = not heads and len(gate.shape) == 3
        call.shape(argument, gate, f"{tokens}{heads}{' 1' if squeezed else ''}")


_MLSTM_STATE = {"C": "B N K V", "n": "B N K", "m": "B N"}
_SLSTM_STATE = dict.fromkeys("cnmh", "B N H")
_TUPLES = {3: "a triple", 4: "a tuple"}


def _check_state(call: Call, state: Any, argument: str, v: Any) -> None:
    parts = _parts(call, state, argument, _MLSTM_STATE)
    call.state_dtype("v", v, **parts)
    for (name, part), letters in zip(parts.items(), _MLSTM_STATE.values(), strict=True):
        call.shape(name, part, letters)


def _check_slstm_state(call: Call, state: Any, argument: str, z: Any) -> None:
    parts = _parts(call, state, argument, _SLSTM_STATE)
    call.state_dtype("z", z, **parts)
    for (name, part), letters in zip(parts.items(), _SLSTM_STATE.values(), strict=True):
        call.shape(name, part, letters)


def _parts(call: Call, state: Any, argument: str, names: Collection[str]) -> dict[str, Any]:
    """The arrays of a state that is given as a tuple, by the names that errors give them."""
    expected = f"{_TUPLES[len(names)]} ({', '.join(names)})"
    if not isinstance(state, Sequence) or isinstance(state, str):
        call.refuse(TypeError, argument, describe(state), expected)
    if len(state) != len(names):
        call.refuse(ValueError, argument, f"a {type(state).__name__} of {len(state)}", expected)
    parts = {f"{argument}.{name}": part for name, part in zip(names, state, strict=True)}
    for name, part in parts.items():
        if part is None:
            call.refuse(ValueError, name, "None", "an array: a state needs all of its arrays")
    return parts


def _check_eps(call: Call, eps: Any) -> None:
    call.number("eps", eps, "a finite number of at least 0", lambda number: 0 <= number < math.inf)


def check_mlstm_sizes(
    input_size: Any,
    num_heads: Any,
    add_bias: Any,
    qk_dim_factor: Any,
    v_dim_factor: Any,
    gate_soft_cap: Any,
    norm_eps: Any,
    eps: Any,
    num_blocks: Any,
) -> Call:
    """Check the settings that define an ``mLSTM`` module; bind ``K`` and ``V``, the head dims."""
    call = Call("mLSTM", _NO_ARRAYS)
    D, N = call.integer("input_size", input_size, 1) or 0, call.integer("num_heads", num_heads, 1) or 0
    call.flag("add_bias", add_bias)
    for letter, argument, factor in (("K", "qk_dim_factor", qk_dim_factor), ("V", "v_dim_factor", v_dim_factor)):
        width = int(D * call.number(argument, factor, "a positive number", lambda x: 0 < x < math.inf))
        if width < 1 or width % N:
            expected = f"{argument}·input_size to be a positive multiple of num_heads={N}"
            call.refuse(ValueError, argument, f"{factor}, a width of {width}", expected)
        call.bind(letter, width // N, argument)
    if gate_soft_cap is not None:
        call.number("gate_soft_cap", gate_soft_cap, "None or a positive number", lambda x: 0 < x < math.inf)
    call.number("norm_eps", norm_eps, "a number of at least 0", lambda x: 0 <= x < math.inf)
    _check_eps(call, eps)
    call.integer("num_blocks", num_blocks, 1)
    return call


def normalise_config(config: Any, function: str) -> mLSTMBackendFwbwConfig:
    """Return the configuration, given as the dataclass or its dict, as the dataclass; every field is checked."""
    if isinstance(config, Mapping):
        for key in config:
            if key not in _CONFIG_FIELDS:
                raise ValueError(
                    f"{function}: `config` has the field {key!r}; expected one of {', '.join(_CONFIG_FIELDS)}"
                )
        config = mLSTMBackendFwbwConfig(**config)
    if not isinstance(config, mLSTMBackendFwbwConfig):
        raise TypeError(f"{function}: `config` is {describe(config)}; expected an mLSTMBackendFwbwConfig or its dict")
    call = Call(function, _NO_ARRAYS)
    chunk_size = call.integer("config.chunk_size", config.chunk_size, 1, optional=True)
    for name in _CONFIG_FIELDS[1:]:
        call.flag(f"config.{name}", getattr(config, name))
    return config if config.chunk_size is chunk_size else dataclasses.replace(config, chunk_size=chunk_size)


def frozen_config(config: Any, function: str) -> mLSTMBackendFwbwConfig:
    """Like `normalise_config`, but a copy that can outlive the call: later changes to ``config`` do not affect it."""
    return dataclasses.replace(normalise_config(config, function))


def check_fwbw_context(ctx: Any, context_type: type, config: mLSTMBackendFwbwConfig) -> None:
    """Raise in ``fwbw_backward`` for anything but a context of ``fwbw_forward`` with the same configuration.

    Args:
        context_type: the package's own context type, whose field ``config`` holds the configuration.
        config: the configuration of the backward pass; ``return_state`` does not affect a context and may differ.
    """
    call = Call("fwbw_backward", _NO_ARRAYS)
    if not isinstance(ctx, context_type):
        call.refuse(TypeError, "ctx", describe(ctx), "the context that this package's fwbw_forward returned")
    for name in _CONFIG_FIELDS:
        made, given = getattr(ctx.config, name), getattr(config, name)
        if name != "return_state" and made != given:
            call.refuse(ValueError, "ctx", f"made with {name}={made}", f"{name}={given} to match `config`")


_NO_ARRAYS = Framework("no array", lambda _: False, lambda _: None)


def check_fwbw(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    config: mLSTMBackendFwbwConfig,
    initial_C: Any,
    initial_n: Any,
    initial_m: Any,
    function: str = "fwbw_forward",
    state_names: tuple[str, str, str] = ("initial_C", "initial_n", "initial_m"),
) -> Call:
    """Check a call in the layout of the fwbw interface: ``B T ·`` without heads, gates ``(B, T)`` or ``(B, T, 1)``."""
    call = Call(function, framework)
    _check_qkvif(call, q, k, v, i, f, "B T", heads="")
    state = dict(zip(state_names, (initial_C, initial_n, initial_m), strict=True))
    given = [name for name, part in state.items() if part is not None]
    if given and not config.use_initial_state:
        call.refuse(ValueError, given[0], describe(state[given[0]]), "None where `config.use_initial_state` is False")
    if given:
        for name, part in state.items():
            if part is None:
                call.refuse(ValueError, name, "None", f"an array together with `{given[0]}`")
        call.state_dtype("v", v, **state)
        for (name, part), letters in zip(state.items(), ("B K V", "B K", "B"), strict=True):
            call.shape(name, part, letters)
    return call


def check_fwbw_cotangents(call: Call, v: Any, dh: Any, dc_last: Any, dn_last: Any, dm_last: Any) -> None:
    """Check the cotangents given to ``fwbw_backward`` against the sizes of its forward call."""
    call.floating(dh=dh)
    call.floating(v=v, dh=dh)
    call.shape("dh", dh, "B T V")
    for argument, cotangent, letters in (
        ("dc_last", dc_last, "B K V"),
        ("dn_last", dn_last, "B K"),
        ("dm_last", dm_last, "B"),
    ):
        if cotangent is not None:
            call.state_dtype("v", v, **{argument: cotangent})
            call.shape(argument, cotangent, letters)


def check_sequential(function: str, argument: str, given: Any) -> None:
    """Raise if the steps of an operation were to be sharded of which each needs the one before.

    Args:
        argument: the keyword by which `mlstm` takes the devices, ``sequence_axis`` or ``sequence_group``.
    """
    if given is not None:
        expected = "None: each step needs the one before it, so shard the batch or the heads instead"
        Call(function, _NO_ARRAYS).refuse(ValueError, argument, describe(given), expected)


def check_scan(framework: Framework, x: Any, function: str, argument: str = "x") -> Call:
    call = Call(function, framework)
    call.floating(**{argument: x})
    if len(x.shape) < 1:
        call.refuse(ValueError, argument, describe(x), "[..., S]")
    call.bind("S", x.shape[-1], argument)
    return call


def check_dtilde_matrix(framework: Framework, igate: Any, fgate: Any) -> Call:
    call = Call("dtilde_matrix", framework)
    call.floating(igate=igate, fgate=fgate)
    for argument, gate in (("igate", igate), ("fgate", fgate)):
        if len(gate.shape) < 2 or gate.shape[-1] != 1:
            call.refuse(ValueError, argument, describe(gate), "[..., S, 1]")
    if tuple(fgate.shape) != tuple(igate.shape):
        call.refuse(ValueError, "fgate", describe(fgate), f"{list(igate.shape)} to match `igate`")
    call.bind("S", igate.shape[-2], "igate")
    return call


_GRU_ARRAYS = (
    ("input", "Nx"),
    ("weight", "Nw"),
    ("forget_input", "Nxf"),
    ("forget_weight", "Nwf"),
    ("reset_input", "Nxr"),
    ("reset_weight", "Nwr"),
)


def check_gru(
    framework: Framework,
    input: Any,
    weight: Any,
    forget_input: Any,
    forget_weight: Any,
    reset_input: Any,
    reset_weight: Any,
    input_state: Any,
    gradient_clipping: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    function: str = "gru",
    *,
    reset_after: Any = False,
    recurrent_bias: Any = None,
) -> Call:
    """Check a GRU call; bind ``N``, the largest head count."""
    call = Call(function, framework)
    arrays = dict(
        zip(
            (argument for argument, _ in _GRU_ARRAYS),
            (input, weight, forget_input, forget_weight, reset_input, reset_weight),
            strict=True,
        )
    )
    call.floating(**arrays, **({} if recurrent_bias is None else {"recurrent_bias": recurrent_bias}))
    tokens = "B S" if cu_seqlens is None else "T"
    for argument, heads in _GRU_ARRAYS:
        is_weight = argument.endswith("weight")
        call.shape(argument, arrays[argument], f"{heads} H H" if is_weight else f"{tokens} {heads} H")
    _bind_heads(call, {argument: (arrays[argument], heads) for argument, heads in _GRU_ARRAYS})
    call.packing(cu_seqlens, max_seqlen, "input")
    if input_state is not None:
        call.state_dtype("input", input, input_state=input_state)
        call.shape("input_state", input_state, "B N H")
    _check_clipping(call, gradient_clipping)
    if call.flag("reset_after", reset_after):
        call.option("reset_after")
    if recurrent_bias is not None:
        if not reset_after:
            call.refuse(ValueError, "recurrent_bias", describe(recurrent_bias), "None where `reset_after` is False")
        call.shape("recurrent_bias", recurrent_bias, "Nw H")
    return call


def _bind_heads(call: Call, arguments: Mapping[str, tuple[Any, str]]) -> None:
    largest = max(call[heads] for _, heads in arguments.values())
    for argument, (counted, heads) in arguments.items():
        if call[heads] < 1:
            call.refuse(ValueError, argument, describe(counted), f"{heads} of at least 1")
        if largest % call[heads]:
            expected = f"{heads} to divide N={largest}, the largest head count"
            call.refuse(ValueError, argument, describe(counted), expected)
    call.bind("N", largest, "the head counts")


def check_linear_attention(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    scale: Any,
    qk_norm_eps: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    chunk_size: Any,
    *,
    function: str,
    channels: bool,
) -> Call:
    """Check a call of `simple_gla`, `gla`, `gated_delta_rule` or `kimi_delta_attention`; bind ``N``.

    Args:
        beta, qk_norm_eps, chunk_size: None where the operation has no such argument.
        channels: whether g has a decay for each key channel.
    """
    call = Call(function, framework)
    _check_linear_attention(call, q, k, v, g, beta, "B S" if cu_seqlens is None else "T", channels)
    call.packing(cu_seqlens, max_seqlen, "q")
    if initial_state is not None:
        _check_memory(call, initial_state, "initial_state", v)
    _check_scale(call, scale, qk_norm_eps)
    call.integer("chunk_size", chunk_size, 1, optional=True)
    return call


def check_gated_delta_step(
    framework: Framework,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    state: Any,
    scale: Any,
    qk_norm_eps: Any,
    function: str = "gated_delta_step",
) -> Call:
    call = Call(function, framework)
    _check_linear_attention(call, q, k, v, g, beta, "B", channels=False)
    _check_memory(call, state, "state", v)
    _check_scale(call, scale, qk_norm_eps)
    return call


def _check_linear_attention(call: Call, q: Any, k: Any, v: Any, g: Any, beta: Any, tokens: str, channels: bool) -> None:
    arrays = {"q": (q, "Nq"), "k": (k, "Nk"), "v": (v, "Nv"), "g": (g, "Ng")}
    gates = {"g": g}
    if beta is not None:
        arrays["beta"], gates["beta"] = (beta, "Nb"), beta
    call.floating(q=q, k=k, v=v)
    call.gates("v", v, **gates)
    features = {"q": " K", "k": " K", "v": " V", "g": " K" if channels else "", "beta": ""}
    for argument, (x, heads) in arrays.items():
        call.shape(argument, x, f"{tokens} {heads}{features[argument]}")
    if call["K"] < 1:
        call.refuse(ValueError, "q", describe(q), "a head dim K of at least 1")
    _bind_heads(call, arrays)


def _check_memory(call: Call, state: Any, argument: str, v: Any) -> None:
    call.state_dtype("v", v, **{argument: state})
    call.shape(argument, state, "B N K V")


def _check_scale(call: Call, scale: Any, qk_norm_eps: Any) -> None:
    if scale is not None:
        call.number("scale", scale, "None or a finite number", lambda number: -math.inf < number < math.inf)
    if qk_norm_eps is not None:
        expected = "None or a finite number of at least 0"
        call.number("qk_norm_eps", qk_norm_eps, expected, lambda number: 0 <= number < math.inf)


def _check_clipping(call: Call, gradient_clipping: Any) -> None:
    if gradient_clipping is not None:
        call.number("gradient_clipping", gradient_clipping, "None or a number", lambda number: True)
        call.option("gradient_clipping")


def check_gru_sizes(
    input_size: Any,
    state_head_dim: Any,
    output_size: Any,
    num_input_heads: Any,
    num_forget_input_heads: Any,
    num_reset_input_heads: Any,
    num_weight_heads: Any,
    num_forget_weight_heads: Any,
    num_reset_weight_heads: Any,
    add_bias: Any,
    gradient_clipping: Any,
    reset_after: Any,
) -> Call:
    """Check the sizes that define a ``GRU`` module; bind the head counts and ``N``.

    A head count of None, except `num_input_heads`, is that one.
    """
    call = Call("GRU", _NO_ARRAYS)
    for argument, size in (
        ("input_size", input_size),
        ("state_head_dim", state_head_dim),
        ("output_size", output_size),
    ):
        call.integer(argument, size, 1)
    given = {
        "num_input_heads": (num_input_heads, "Nx"),
        "num_weight_heads": (num_weight_heads, "Nw"),
        "num_forget_input_heads": (num_forget_input_heads, "Nxf"),
        "num_forget_weight_heads": (num_forget_weight_heads, "Nwf"),
        "num_reset_input_heads": (num_reset_input_heads, "Nxr"),
        "num_reset_weight_heads": (num_reset_weight_heads, "Nwr"),
    }
    counts: dict[str, tuple[int, str]] = {}
    for argument, (count, heads) in given.items():
        found = call.integer(argument, count, 1, optional=bool(counts))
        counts[argument] = (counts["num_input_heads"][0] if found is None else found, heads)
        call.bind(heads, counts[argument][0], argument)
    _bind_heads(call, counts)
    call.flag("add_bias", add_bias)
    call.flag("reset_after", reset_after)
    _check_clipping(call, gradient_clipping)
    return call


_SLSTM_ARRAYS = ("z", "i", "f", "o", "weight_z", "weight_i", "weight_f", "weight_o")
FORGET_GATES = ("sigmoid", "exp")


def check_slstm(
    framework: Framework,
    z: Any,
    i: Any,
    f: Any,
    o: Any,
    weight_z: Any,
    weight_i: Any,
    weight_f: Any,
    weight_o: Any,
    initial_state: Any,
    forget_gate: Any,
    gradient_clipping: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    function: str = "slstm",
) -> Call:
    call = Call(function, framework)
    arrays = (z, i, f, o, weight_z, weight_i, weight_f, weight_o)
    _check_slstm_arrays(call, arrays, "B S" if cu_seqlens is None else "T")
    call.packing(cu_seqlens, max_seqlen, "z")
    if initial_state is not None:
        _check_slstm_state(call, initial_state, "initial_state", z)
    check_forget_gate(call, forget_gate)
    _check_clipping(call, gradient_clipping)
    return call


def check_slstm_sizes(
    input_size: Any,
    state_head_dim: Any,
    output_size: Any,
    num_heads: Any,
    add_bias: Any,
    gradient_clipping: Any,
    forget_gate: Any,
    depth: Any,
) -> Call:
    """Check the sizes that define an ``sLSTM`` module."""
    call = Call("sLSTM", _NO_ARRAYS)
    call.integer("input_size", input_size, 1)
    call.integer("state_head_dim", state_head_dim, 1)
    call.integer("output_size", output_size, 1)
    call.integer("num_heads", num_heads, 1)
    call.flag("add_bias", add_bias)
    _check_clipping(call, gradient_clipping)
    check_forget_gate(call, forget_gate)
    call.number("depth", depth, "a number from 0 to 1", lambda x: 0 <= x <= 1)
    return call


def check_slstm_step(
    framework: Framework,
    z: Any,
    i: Any,
    f: Any,
    o: Any,
    weight_z: Any,
    weight_i: Any,
    weight_f: Any,
    weight_o: Any,
    state: Any,
    forget_gate: Any,
    function: str = "slstm_step",
) -> Call:
    call = Call(function, framework)
    _check_slstm_arrays(call, (z, i, f, o, weight_z, weight_i, weight_f, weight_o), "B")
    _check_slstm_state(call, state, "state", z)
    check_forget_gate(call, forget_gate)
    return call


def _check_slstm_arrays(call: Call, arrays: Sequence[Any], tokens: str) -> None:
    named = dict(zip(_SLSTM_ARRAYS, arrays, strict=True))
    call.floating(**named)
    for argument, x in named.items():
        call.shape(argument, x, "N H H" if argument.startswith("weight") else f"{tokens} N H")


def check_forget_gate(call: Call, forget_gate: Any) -> None:
    expected = " or ".join(map(repr, FORGET_GATES))
    if not isinstance(forget_gate, str):
        call.refuse(TypeError, "forget_gate", describe(forget_gate), expected)
    if forget_gate not in FORGET_GATES:
        call.refuse(ValueError, "forget_gate", repr(forget_gate), expected)


def check_batch(
    framework: Framework,
    leaves: Sequence[tuple[str, Any]],
    num_minibatches: Any,
    function: str = "accumulate_gradients",
) -> int:
    """Check that the number of minibatches divides a batch; return the size of a minibatch.

    Args:
        leaves: the batch's leaves with their paths, ``("['x']", array)``.
    """
    call = Call(function, framework)
    count = call.integer("num_minibatches", num_minibatches, 1)
    assert count is not None
    if not leaves:
        call.refuse(ValueError, "batch", "empty", "a pytree with at least one array")
    for path, leaf in leaves:
        argument = f"batch{path}"
        call.kind(**{argument: leaf})
        if len(leaf.shape) < 1:
            call.refuse(ValueError, argument, describe(leaf), "[B, ...]")
        call.shape(argument, leaf, " ".join(["B", *(str(size) for size in leaf.shape[1:])]))
    if call["B"] % count:
        expected = f"a divisor of B={call['B']}, the leading axis of `batch`"
        call.refuse(ValueError, "num_minibatches", str(count), expected)
    return call["B"] // count


def check_flag(function: str, argument: str, value: Any) -> bool:
    """Check an option that is True or False."""
    return Call(function, _NO_ARRAYS).flag(argument, value)


LARGEST_SEED = 2**128 - 1
"""The largest seed that fits into the bit pool of NumPy's SeedSequence, after which its keys begin."""


def check_seed(function: str, rng: Any) -> int:
    """Check a random state that is an integer seed; return it as an int."""
    call = Call(function, _NO_ARRAYS)
    seed = call.integer("rng", rng, 0)
    assert seed is not None
    if seed > LARGEST_SEED:
        call.refuse(ValueError, "rng", str(seed), "an integer seed below 2**128")
    return seed


def check_params(framework: Framework, function: str, leaves: Sequence[tuple[str, Any]]) -> None:
    """Check that parameters, given with their paths, are arrays that have a gradient."""
    call = Call(function, framework)
    for path, leaf in leaves:
        array = np.asarray(leaf) if isinstance(leaf, np.generic) else leaf
        kind = dtype_name(array).rstrip("0123456789") if framework.is_array(array) else None
        # The reference computes in float64, other packages in the dtype of the parameter.
        if kind in (None, "bool", "int", "uint") or (kind == "complex" and framework.upcasts):
            call.refuse(
                TypeError, f"state.params{path}", describe(leaf), f"{framework.array} in a floating-point dtype"
            )


def check_weights(framework: Framework, function: str, weights: Any, total_weight: Any, num_minibatches: int) -> None:
    """Check the weights of minibatches, and the number by which their sum of gradients is divided."""
    call = Call(function, framework)
    if weights is None:
        if total_weight is not None:
            call.refuse(ValueError, "total_weight", describe(total_weight), "None without `weights`")
        return
    call.bind("n", num_minibatches, "num_minibatches")
    values = _check_numbers(call, "weights", weights, "n")
    if values is not None:
        expected = "finite numbers of at least 0"
        for b, value in enumerate(values.tolist()):
            if not 0 <= value < math.inf:
                call.refuse(ValueError, "weights", f"{describe(weights)} with {value} at {b}", expected)
    if total_weight is None:
        if values is not None and not values.any():
            call.refuse(ValueError, "weights", f"{describe(weights)} of zeros", "a positive sum, or `total_weight`")
        return
    of_all = total_weight
    if not isinstance(total_weight, bool | int | float | np.number):
        of_all = _check_numbers(call, "total_weight", total_weight, "")
    if of_all is not None:
        of_all = of_all.item() if isinstance(of_all, np.ndarray) else of_all
        call.number("total_weight", of_all, "a positive finite number", lambda x: 0 < x < math.inf)


def _check_numbers(call: Call, argument: str, x: Any, letters: str) -> np.ndarray | None:
    """Check an array of numbers, not rounded to 16 bits, and its shape; return the values if they can be read."""
    call.kind(**{argument: x})
    if not re.fullmatch(r"u?int\d+|float32|float64", dtype_name(x)):
        call.refuse(TypeError, argument, describe(x), "an array of integers, float32 or float64")
    call.shape(argument, x, letters)
    return call.framework.values(x)


def check_loss(
    framework: Framework,
    function: str,
    returned: Any,
    leaves: Callable[[Any], Sequence[tuple[str, Any]]],
    numbers: bool = True,
) -> tuple[Any, Any, Any]:
    """Check what a loss function returned; return the loss, the metrics and the mutable variables.

    Args:
        leaves: returns the leaves of a pytree with their paths.
        numbers: whether the loss may be a number or another framework's array.
    """
    call = Call(function, framework)
    loss, parts = _pair(call, "loss_fn(…)", returned, "a pair (loss, (metrics, mutable))")
    metrics, mutable = _pair(call, "loss_fn(…)[1]", parts, "a pair (metrics, mutable)")
    argument, expected = "loss_fn(…)[0]", "a floating-point scalar"
    if not numbers:
        expected += f" in {framework.array}"
    is_array = hasattr(loss, "dtype") and hasattr(loss, "shape") if numbers else framework.is_array(loss)
    if not is_array:
        if not numbers or not isinstance(loss, float):
            call.refuse(TypeError, argument, describe(loss), expected)
    elif dtype_name(loss) not in FLOATING:
        call.refuse(TypeError, argument, describe(loss), expected)
    elif tuple(loss.shape):
        call.refuse(ValueError, argument, describe(loss), expected)
    for path, leaf in leaves((metrics, mutable)):
        is_number = isinstance(leaf, bool | int | float | complex)
        is_array = hasattr(leaf, "dtype") and hasattr(leaf, "shape") and getattr(leaf.dtype, "kind", "f") not in "OSUMm"
        if not is_number and not is_array:
            call.refuse(TypeError, f"loss_fn(…)[1]{path}", describe(leaf), "a number or a numeric array")
    return loss, metrics, mutable


def check_alike(
    framework: Framework, function: str, first: Sequence[tuple[str, Any]], leaves: Sequence[tuple[str, Any]], b: int
) -> None:
    """Check that the pair of metrics and mutable variables of minibatch b has the paths and shapes of minibatch 0."""
    call = Call(function, framework)
    of_first, found = dict(first), dict(leaves)
    for path in [path for path in (*of_first, *found) if path not in of_first or path not in found]:
        got, expected = ("missing", "it") if path in of_first else (describe(found[path]), "no such leaf")
        argument, expected = f"loss_fn(…)[1]{path}", f"{expected}, as in minibatch 0"
        call.refuse(ValueError, argument, f"{got} in minibatch {b}", expected)
    for path, leaf in found.items():
        if tuple(leaf.shape) != tuple(of_first[path].shape):
            argument, expected = f"loss_fn(…)[1]{path}", f"{describe(of_first[path])}, as in minibatch 0"
            call.refuse(ValueError, argument, f"{describe(leaf)} in minibatch {b}", expected)


def _pair(call: Call, argument: str, x: Any, expected: str) -> tuple[Any, Any]:
    if not isinstance(x, tuple | list):
        call.refuse(TypeError, argument, describe(x), expected)
    if len(x) != 2:
        call.refuse(TypeError, argument, f"{describe(x)} of length {len(x)}", expected)
    return x[0], x[1]


def axis_names(function: str, axis_name: Any, argument: str = "axis_name") -> tuple[str, ...]:
    """The mesh axes that ``axis_name`` (a name or a tuple of names) stands for."""
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{function}: `{argument}` is {describe(axis_name)}; expected the name of a mesh axis or a tuple of names"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{function}: `{argument}` is {axis_name!r}; expected each mesh axis once")
    return names


def unknown_axis(function: str, name: str, known: Sequence[str], argument: str = "axis_name") -> ValueError:
    """The error for a mesh axis that does not exist."""
    listed = ", ".join(repr(axis) for axis in known) or "no axis at all"
    return ValueError(f"{function}: `{argument}` is {name!r}; expected an axis of the mesh: {listed}")


def check_split(framework: Framework, x: Any, axis_name: Any, axis_size: int, split_axis: Any) -> int:
    """Check ``split_array_over_mesh``; return the axis counted from 0."""
    call = Call("split_array_over_mesh", framework)
    call.kind(x=x)
    axis = _check_axis(call, "split_axis", split_axis, len(x.shape), describe(x))
    if x.shape[axis] % axis_size:
        expected = f"axis {axis} to be a multiple of {axis_size}, the size of {axis_name!r}"
        call.refuse(ValueError, "x", describe(x), expected)
    return axis


def _check_axis(call: Call, argument: str, axis: Any, ndim: int, of: str) -> int:
    expected = f"an axis of {of}, from {-ndim} to {ndim - 1}"
    number = call.integer(argument, axis, -(2**31))
    assert number is not None
    if not -ndim <= number < ndim:
        call.refuse(ValueError, argument, str(number), expected)
    return number % ndim


def check_stack(
    framework: Framework,
    path: str,
    value: Any,
    names: Sequence[Any],
    axis_name: Any,
    axis: Any,
    mask_except: Any,
    axis_size: int,
) -> int:
    """Check ``stack_params`` for one parameter; return the new axis counted from 0.

    Args:
        path: the parameter's path in the tree, ``"['kernel']"``.
        names: the mesh axes that already shard its dimensions.
        mask_except: None, or the index of the one shard that keeps its values: an integer, or an integer array without
            an axis, whose value is checked if it can be read.
    """
    call = Call("stack_params", framework)
    argument = f"params{path}"
    call.kind(**{argument: value})
    if axis_name in names:
        call.refuse(ValueError, argument, f"sharded over {axis_name!r} already", "a parameter that is not")
    new_axis = _check_axis(call, "axis", axis, len(value.shape) + 1, f"{describe(value)} with one more dimension")
    _check_mask(call, mask_except, f"None or the index of one of the {axis_size} shards of {axis_name!r}", axis_size)
    return new_axis


def _check_mask(call: Call, mask_except: Any, expected: str, shards: int) -> None:
    if mask_except is None:
        return
    if call.framework.is_array(mask_except):
        kind = dtype_name(mask_except).rstrip("0123456789")
        if tuple(mask_except.shape) != () or kind not in ("int", "uint"):
            call.refuse(TypeError, "mask_except", describe(mask_except), expected)
        values = call.framework.values(mask_except)
        if values is None:
            return
        mask_except = values.item()
    kept = whole_number(mask_except)
    if kept is None:
        call.refuse(TypeError, "mask_except", describe(mask_except), expected)
    if not 0 <= kept < shards:
        call.refuse(ValueError, "mask_except", str(kept), expected)


def check_unstack(framework: Framework, path: str, value: Any, names: Sequence[Any], axis_name: Any) -> int:
    """Check ``unstack_params`` for one parameter that is sharded over ``axis_name``; return the axis to remove."""
    call = Call("unstack_params", framework)
    call.kind(**{f"params{path}": value})
    axis = list(names).index(axis_name)
    if value.shape[axis] != 1:
        call.refuse(
            ValueError, f"params{path}", describe(value), f"size 1 along axis {axis}, sharded over {axis_name!r}"
        )
    return axis
