"""The models of `examples.xlstm` and transformers' `xLSTMForCausalLM` are one function of one checkpoint."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

from examples.xlstm.checkpoint import load_flax, load_torch, new_layout, open_checkpoint, write_checkpoint
from examples.xlstm.config import ConfigError, XLSTMConfig, parse_config
from examples.xlstm.draw import RandomTensors
from examples.xlstm.flax_model import XLSTM
from examples.xlstm.generate import generate
from examples.xlstm.parameters import from_flax, from_torch
from examples.xlstm.sampling import Sampling
from examples.xlstm.session import new_session
from examples.xlstm.torch_engine import TorchEngine
from tests.interop.rounding import assert_rounding

# Widths of which the cache of transformers makes no others: it rounds those of the heads up to multiples of 64.
SIZES: dict[str, Any] = {"vocab_size": 67, "hidden_size": 128, "num_heads": 2, "eos_token_id": None}
TOKENS = np.random.default_rng(0).integers(0, 67, (2, 37))
# Two blocks and the map to logits add roundings of several layers to those of one.
UNITS = 256


def randomise(model: Any) -> None:
    """Random values for every parameter: new models have weights of 0 in all gates."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 1 / math.sqrt(parameter.shape[-1]) if parameter.ndim == 2 else 0.3
            shift = 1.0 if "norm" in name and name.endswith("weight") else 2.0 if "fgate_preact.bias" in name else 0.0
            parameter.copy_(shift + spread * torch.randn(parameter.shape, generator=generator))


def theirs(**settings: Any) -> Any:
    model = xLSTMForCausalLM(xLSTMConfig(**SIZES, num_hidden_layers=2, chunk_size=16, **settings)).eval()
    randomise(model)
    return model


def test_a_configuration_of_the_published_sizes_is_read() -> None:
    """Whole or shortened to what is not a default, in the words of the class that is published with the format."""
    config = xLSTMConfig(chunkwise_kernel="chunkwise--triton_xl_chunk", step_kernel="triton")
    for text in (json.dumps(config.to_dict()), config.to_json_string(use_diff=True)):
        ours = parse_config(text)
        assert (ours.qk_dim, ours.v_dim, ours.num_heads) == (config.qk_dim, config.v_dim, config.num_heads)
        for name in ("vocab_size", "hidden_size", "num_blocks", "norm_eps", "eps", "gate_soft_cap"):
            assert getattr(ours, name) == getattr(config, name)
    with pytest.raises(ConfigError, match="`sliding_window` is not a known field, and its value, 5,"):
        parse_config(json.dumps(xLSTMConfig(sliding_window=5).to_dict()))
    with pytest.raises(ConfigError, match='`weight_mode` is "fused"; only "single" is supported'):
        parse_config(xLSTMConfig(weight_mode="fused").to_json_string())


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("settings", [{}, {"use_bias": True, "qk_dim_factor": 1.0}], ids=["published", "with biases"])
def test_logits_are_those_of_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = theirs(**settings)
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.layout.headers) > 3

    ours, params = load_torch(checkpoint), load_flax(checkpoint)
    truth = load_torch(checkpoint).double()
    with torch.no_grad():
        tokens = torch.from_numpy(TOKENS)
        expected = truth(tokens).numpy()
        assert_rounding(model(tokens).logits.numpy(), expected, "transformers", UNITS)
        assert_rounding(ours(tokens).numpy(), expected, "PyTorch", UNITS)
    assert_rounding(np.asarray(jax.jit(XLSTM(checkpoint.config).apply)(params, TOKENS)), expected, "Flax", UNITS)


def test_a_checkpoint_of_transformers_returns_byte_for_byte(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path / "source", max_shard_size="200KB")
    checkpoint = open_checkpoint(tmp_path / "source")
    write_checkpoint(tmp_path / "torch", checkpoint.layout, from_torch(load_torch(checkpoint)))
    write_checkpoint(tmp_path / "flax", checkpoint.layout, from_flax(load_flax(checkpoint)))
    assert files(tmp_path / "source") == files(tmp_path / "torch") == files(tmp_path / "flax")
    # Shards and index of our own making are the same as well.
    write_checkpoint(tmp_path / "new", new_layout(checkpoint.config, 200_000), from_torch(load_torch(checkpoint)))
    made, source = files(tmp_path / "new"), files(tmp_path / "source")
    assert {name: made[name] for name in made if name != "config.json"} == {
        name: source[name] for name in source if name not in ("config.json", "generation_config.json")
    }


def test_transformers_loads_what_we_write(tmp_path: Path) -> None:
    config = XLSTMConfig(**SIZES, num_blocks=2)
    write_checkpoint(tmp_path, new_layout(config, 200_000), RandomTensors(config))
    model, report = xLSTMForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    with torch.no_grad():
        tokens = torch.from_numpy(TOKENS)
        expected = load_torch(open_checkpoint(tmp_path)).double()(tokens).numpy()
        assert_rounding(model.eval()(tokens).logits.numpy(), expected, "transformers", UNITS)


def test_the_most_likely_text_is_that_of_transformers(tmp_path: Path) -> None:
    model = theirs(bos_token_id=None, pad_token_id=0)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    with torch.no_grad():
        expected = model.generate(torch.from_numpy(TOKENS[:1]), max_new_tokens=20, do_sample=False)[0, 37:].tolist()
    session = new_session(TorchEngine(load_torch(checkpoint), chunk=16), "one")
    assert list(generate(session, TOKENS[0], Sampling(temperature=0), 20)) == expected
