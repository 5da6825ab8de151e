"""The configuration of an xLSTM language model, read from and written to the published ``config.json``.

The format is that of transformers' ``xLSTMConfig``, in which xLSTM-7B is published (Beck et al., arXiv:2503.13427).
`XLSTMConfig` holds what determines the function and its parameters. Every other field either has no effect on the
function (names of kernels, chunk lengths), or has one supported value, or raises an error that names it.

    config = read_config("xLSTM-7b/config.json")
    config = XLSTMConfig(vocab_size=256, hidden_size=128, num_blocks=4, num_heads=4)
"""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn


class ConfigError(ValueError):
    """A field of a configuration is missing, unknown, malformed or not supported; the message names it."""


@dataclass(frozen=True, kw_only=True)
class XLSTMConfig:
    """Sizes and constants of an xLSTM language model.

    Attributes:
        vocab_size: number of tokens.
        hidden_size: width D of the residual stream.
        num_blocks: number of blocks, each an mLSTM layer and a gated feed-forward network.
        num_heads: N; it divides `qk_dim` and `v_dim`.
        qk_dim_factor, v_dim_factor: widths of queries and keys, and of values, relative to D.
        ffn_proj_factor, ffn_round_up_to_multiple_of: inner width of the feed-forward network relative to D, rounded up.
        use_bias: whether linear maps and the norms within blocks have a bias (the gates of the mLSTM always do).
        norm_eps: added to the variance in every norm.
        norm_reduction_force_float32: whether the norms before layers are computed in float32 at least, as that of the
            mLSTM's heads always is.
        eps: added to the normaliser of the mLSTM.
        gate_soft_cap, output_logit_soft_cap: c in ``c·tanh(x/c)``, for gate preactivations and for logits.
        bos_token_id, eos_token_id, pad_token_id: special tokens; several tokens may end a text.
        dtype: of the stored tensors, ``float32``, ``bfloat16``, ``float16`` or ``float64``.

    Raises:
        ConfigError: a value is of the wrong type or out of range, or the heads do not divide a width.
    """

    vocab_size: int
    hidden_size: int
    num_blocks: int
    num_heads: int
    qk_dim_factor: float = 0.5
    v_dim_factor: float = 1.0
    ffn_proj_factor: float = 2.667
    ffn_round_up_to_multiple_of: int = 64
    use_bias: bool = False
    norm_eps: float = 1e-6
    norm_reduction_force_float32: bool = True
    eps: float = 1e-6
    gate_soft_cap: float = 15.0
    output_logit_soft_cap: float = 30.0
    bos_token_id: int | None = 0
    eos_token_id: int | tuple[int, ...] | None = 2
    pad_token_id: int | None = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_blocks", "num_heads", "ffn_round_up_to_multiple_of"):
            legal = _is_integer(value := getattr(self, name)) and 0 < value < _TOO_LARGE
            _require(legal, name, value, "an integer of at least 1, below 2^40")
        for name in ("qk_dim_factor", "v_dim_factor", "ffn_proj_factor", "gate_soft_cap", "output_logit_soft_cap"):
            _require(_is_number(value := getattr(self, name)) and value > 0, name, value, "a positive number")
        for name in ("qk_dim_factor", "v_dim_factor", "ffn_proj_factor"):
            _require((value := getattr(self, name)) < _TOO_LARGE, name, value, "a number below 2^40")
        for name in ("norm_eps", "eps"):
            _require(_is_number(value := getattr(self, name)) and value >= 0, name, value, "a number of at least 0")
        for name in ("use_bias", "norm_reduction_force_float32"):
            _require(isinstance(value := getattr(self, name), bool), name, value, "true or false")
        for name in ("bos_token_id", "pad_token_id"):
            _require(_is_token(value := getattr(self, name)) or value is None, name, value, "a token id or null")
        ends = self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)
        legal = self.eos_token_id is None or all(map(_is_token, ends))
        _require(legal, "eos_token_id", self.eos_token_id, "a token id, several of them, or null")
        inside = self.bos_token_id is None or self.bos_token_id < self.vocab_size
        _require(inside, "bos_token_id", self.bos_token_id, f"one of the {self.vocab_size} tokens of `vocab_size`")
        _require(self.dtype in _DTYPES, "dtype", self.dtype, " or ".join(map(repr, _DTYPES)))
        for factor, width in (("qk_dim_factor", self.qk_dim), ("v_dim_factor", self.v_dim)):
            if width == 0 or width % self.num_heads:
                raise ConfigError(
                    f"config: `{factor}` is {getattr(self, factor)} and `hidden_size` is {self.hidden_size}, a width "
                    f"of {width}; expected a positive multiple of `num_heads`, which is {self.num_heads}"
                )

    @property
    def qk_dim(self) -> int:
        """Width of queries and of keys, over all heads."""
        return int(self.hidden_size * self.qk_dim_factor)

    @property
    def v_dim(self) -> int:
        """Width of values, over all heads."""
        return int(self.hidden_size * self.v_dim_factor)

    @property
    def ffn_dim(self) -> int:
        """Inner width of the feed-forward network."""
        multiple = self.ffn_round_up_to_multiple_of
        return int((self.hidden_size * self.ffn_proj_factor + multiple - 1) // multiple) * multiple

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        ids = self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)
        return frozenset(each for each in ids if each is not None)

    def to_json(self) -> str:
        """The text of a ``config.json`` that transformers can load, its keys in alphabetical order."""
        ours = {field.name: getattr(self, field.name) for field in fields(self)}
        aliases = {alias: ours[name] for alias, name in _ALIASES.items() if alias != "torch_dtype"}
        return json.dumps({**_NEUTRAL, **_ONLY, **aliases, **ours}, indent=2, sort_keys=True) + "\n"


_TOO_LARGE = 2**40
"""No size reaches this; products of smaller ones are exact and finite as floats."""

_DTYPES = ("float32", "bfloat16", "float16", "float64")

_ALIASES = {"embedding_dim": "hidden_size", "num_hidden_layers": "num_blocks", "torch_dtype": "dtype"}
"""Alternative names of fields. A file may use either, or both with the same value."""

_ONLY: dict[str, Any] = {
    "architectures": ["xLSTMForCausalLM"],
    "model_type": "xlstm",
    "weight_mode": "single",
    "add_out_norm": True,
    "tie_word_embeddings": False,
    "inference_state_dtype": "float32",
}
"""Fields with a single supported value."""

_NEUTRAL: dict[str, Any] = {
    "autocast_kernel_dtype": "bfloat16",
    "chunk_size": 64,
    "chunkwise_kernel": "chunkwise--native_autograd",
    "max_inference_chunksize": 16384,
    "mode": "inference",
    "return_last_states": True,
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
    "use_cache": True,
}
"""Fields that choose how transformers computes the function, with the values that `to_json` writes."""

_OLDER: dict[str, Any] = {
    "add_embedding_dropout": False,
    "add_post_blocks_norm": True,
    "add_post_norm": False,
    "add_qk_norm": False,
}
"""Fields of the file of xLSTM-7B that later versions of the format dropped, each with its supported value."""

_SILENT = frozenset(
    {
        "_name_or_path",
        "chunk_size_feed_forward",
        "id2label",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "transformers_version",
        # Of the file of xLSTM-7B: how it was trained, and what its tokenizer does.
        "add_forward_backend_padding",
        "force_bos_token_insert",
        "igate_bias_init_range",
    }
)
"""Fields that do not affect the function, most of them of any model of transformers."""

_DERIVED = frozenset({"cell_norm_eps", "head_dim", "mlstm_round_up_to_multiple_of"})
"""Fields of the file of xLSTM-7B that follow from others."""

_MAY_BE_NULL = ("architectures", "dtype")

_REQUIRED = ("model_type", "vocab_size", "hidden_size", "num_blocks", "num_heads")


def read_config(path: str | Path, ignore: frozenset[str] = frozenset()) -> XLSTMConfig:
    """Read a ``config.json``.

    Args:
        path: the file.
        ignore: names of unknown fields to ignore.

    Raises:
        ConfigError: the file is not a JSON object, or a field is missing, unknown, malformed or not supported.
        OSError: the file cannot be read.
    """
    return parse_config(Path(path).read_bytes(), ignore)


def parse_config(text: str | bytes, ignore: frozenset[str] = frozenset()) -> XLSTMConfig:
    """The configuration in the text of a ``config.json``, or in its UTF-8 bytes; errors are those of `read_config`."""
    try:
        found = read_json(text.encode() if isinstance(text, str) else text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config: not a valid JSON document: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"config: a JSON {type(found).__name__}; expected an object")
    ours = {field.name for field in fields(XLSTMConfig)}
    known = _ALIASES.keys() | _ONLY.keys() | _OLDER.keys() | _NEUTRAL.keys() | _SILENT | _DERIVED
    for name in found:
        if name not in ours | known | ignore:
            raise ConfigError(
                f"config: `{name}` is not a known field, and its value, {_short(found[name])}, may change the model; "
                "if it does not, name it among the fields to ignore"
            )
    # transformers writes null for what is not stated.
    for name in _MAY_BE_NULL:
        if found.get(name, "") is None:
            del found[name]
    for name, only in {**_ONLY, **_OLDER}.items():
        if name in found and (found[name] != only or type(found[name]) is not type(only)):
            raise ConfigError(f"config: `{name}` is {_short(found[name])}; only {json.dumps(only)} is supported")
    values = {name: found[name] for name in found if name in ours}
    for alias, name in _ALIASES.items():
        if found.get(alias) is None:
            continue
        if values.get(name) is None:
            values[name] = found[alias]
        elif values[name] != found[alias]:
            raise ConfigError(
                f"config: `{alias}` is {_short(found[alias])} and `{name}` is {_short(values[name])}; expected the same"
            )
    for name in _REQUIRED:
        if values.get(name) is None and found.get(name) is None:
            raise ConfigError(f"config: `{name}` is missing")
    if isinstance(values.get("eos_token_id"), list):
        values["eos_token_id"] = tuple(values["eos_token_id"])
    config = XLSTMConfig(**values)
    _check_derived(config, found)
    return config


def read_json(text: bytes) -> Any:
    """The value of a JSON document in UTF-8.

    Raises:
        ValueError: the text is not UTF-8 or not JSON, or an object has a key twice.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text.decode(), object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"`{next(name for name in names if names.count(name) > 1)}` is there twice")
    return found


def _check_derived(config: XLSTMConfig, found: dict[str, Any]) -> None:
    """Refuse a field that contradicts those that determine the function."""
    if (value := found.get("cell_norm_eps", config.norm_eps)) != config.norm_eps:
        _refuse("cell_norm_eps", value, f"`norm_eps`, which is {config.norm_eps}: one value is used for all norms")
    width = config.v_dim // config.num_heads
    if (value := found.get("head_dim", width)) != width:
        _refuse("head_dim", value, f"{width}, the values of one of {config.num_heads} heads")
    multiple = found.get("mlstm_round_up_to_multiple_of", 1)
    if not _is_integer(multiple) or multiple < 1 or config.qk_dim % multiple or config.v_dim % multiple:
        widths = f"{config.qk_dim} and {config.v_dim}"
        _refuse("mlstm_round_up_to_multiple_of", multiple, f"a divisor of the widths {widths}, which are not rounded")


def _require(legal: bool, name: str, value: Any, expected: str) -> None:
    if not legal:
        _refuse(name, value, expected)


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    raise ConfigError(f"config: `{name}` is {_short(value)}; expected {expected}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_token(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
