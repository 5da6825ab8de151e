"""The tensors of an xLSTM checkpoint: their published names, their shapes, and the check that they are complete.

Both models use these names for their parameters: the dots of ``backbone.blocks.3.mlstm_layer.q.weight`` are the levels
of a module in PyTorch, and of the tree of parameters in Flax. Linear maps are ``(outputs, inputs)`` in both.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from examples.xlstm.config import XLSTMConfig


class CheckpointError(ValueError):
    """A checkpoint is incomplete, damaged or does not fit its configuration; the message names the file or tensor."""


def tensor_shapes(config: XLSTMConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors, in the order in which PyTorch lists the parameters of the published model."""
    return dict(_tensors(config))


def _tensors(config: XLSTMConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = config.hidden_size
    yield "backbone.embeddings.weight", (config.vocab_size, D)
    for index in range(config.num_blocks):
        for name, shape in _block(config):
            yield f"backbone.blocks.{index}.{name}", shape
    yield "backbone.out_norm.weight", (D,)
    yield "lm_head.weight", (config.vocab_size, D)


def _block(config: XLSTMConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, N, inner = config.hidden_size, config.num_heads, config.ffn_dim

    def vector(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (width,)
        if config.use_bias:
            yield f"{name}.bias", (width,)

    def linear(name: str, outputs: int, inputs: int, bias: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", (outputs, inputs)
        if bias or config.use_bias:
            yield f"{name}.bias", (outputs,)

    yield from vector("norm_mlstm", D)
    yield from linear("mlstm_layer.q", config.qk_dim, D)
    yield from linear("mlstm_layer.k", config.qk_dim, D)
    yield from linear("mlstm_layer.v", config.v_dim, D)
    yield from linear("mlstm_layer.ogate_preact", config.v_dim, D)
    yield from linear("mlstm_layer.igate_preact", N, D, bias=True)
    yield from linear("mlstm_layer.fgate_preact", N, D, bias=True)
    yield from vector("mlstm_layer.multihead_norm", config.v_dim)
    yield from linear("mlstm_layer.out_proj", D, config.v_dim)
    yield from vector("norm_ffn", D)
    yield from linear("ffn.proj_up_gate", inner, D)
    yield from linear("ffn.proj_up", inner, D)
    yield from linear("ffn.proj_down", D, inner)


def check_tensors(config: XLSTMConfig, found: Mapping[str, Any]) -> None:
    """Raise unless the tensors are those of the configuration.

    Args:
        config: the configuration.
        found: by name, anything with a ``shape`` and a ``dtype`` whose ``str`` ends in the name of the dtype.

    Raises:
        CheckpointError: a tensor is missing, unknown or of another shape or dtype.
    """
    # One by one, so that a number of blocks that no file could hold is refused at the first that is missing.
    for name, shape in _tensors(config):
        if name not in found:
            raise CheckpointError(f"checkpoint: `{name}` is missing; expected {config.dtype}{list(shape)}")
    expected = tensor_shapes(config)
    for name in found:
        if name not in expected:
            raise CheckpointError(f"checkpoint: `{name}` is not a tensor of this model")
    for name, shape in expected.items():
        dtype = str(found[name].dtype).rpartition(".")[2]
        if tuple(found[name].shape) != shape or dtype != config.dtype:
            received = f"{dtype}{list(found[name].shape)}"
            raise CheckpointError(f"checkpoint: `{name}` is {received}; expected {config.dtype}{list(shape)}")
