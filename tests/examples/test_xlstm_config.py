"""A ``config.json`` is read field by field, and what is not supported is one error that names the field."""

import dataclasses
import json
from typing import Any

import pytest

from examples.xlstm.config import ConfigError, XLSTMConfig, parse_config

# The fields of the published xLSTM-7B.
PUBLISHED = {
    "_name_or_path": "NX-AI/xLSTM-7b",
    "add_embedding_dropout": False,
    "add_forward_backend_padding": False,
    "add_post_blocks_norm": True,
    "add_post_norm": False,
    "add_qk_norm": False,
    "cell_norm_eps": 1e-06,
    "force_bos_token_insert": True,
    "head_dim": 512,
    "igate_bias_init_range": -10.0,
    "mlstm_round_up_to_multiple_of": 64,
    "architectures": ["xLSTMForCausalLM"],
    "add_out_norm": True,
    "autocast_kernel_dtype": "bfloat16",
    "bos_token_id": 0,
    "chunk_size": 64,
    "chunkwise_kernel": "chunkwise--triton_xl_chunk",
    "embedding_dim": 4096,
    "eos_token_id": 2,
    "eps": 1e-06,
    "ffn_proj_factor": 2.667,
    "ffn_round_up_to_multiple_of": 64,
    "gate_soft_cap": 15.0,
    "inference_state_dtype": "float32",
    "mode": "inference",
    "model_type": "xlstm",
    "norm_eps": 1e-06,
    "norm_reduction_force_float32": True,
    "num_blocks": 32,
    "num_heads": 8,
    "output_logit_soft_cap": 30.0,
    "pad_token_id": 1,
    "qk_dim_factor": 0.5,
    "return_last_states": True,
    "sequence_kernel": "native_sequence__triton",
    "step_kernel": "triton",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.48.0.dev0",
    "use_bias": False,
    "use_cache": True,
    "v_dim_factor": 1.0,
    "vocab_size": 50304,
    "weight_mode": "single",
}


def parse(**changes: Any) -> XLSTMConfig:
    return parse_config(json.dumps({**PUBLISHED, **changes}))


def test_the_published_sizes() -> None:
    config = parse()
    assert (config.hidden_size, config.num_blocks, config.dtype) == (4096, 32, "float32")
    assert (config.qk_dim, config.v_dim, config.ffn_dim) == (2048, 4096, 10944)
    assert config.ends == {2} and parse(eos_token_id=[2, 7]).ends == {2, 7} and parse(eos_token_id=None).ends == set()


def test_what_is_written_is_read_again() -> None:
    config = XLSTMConfig(vocab_size=9, hidden_size=24, num_blocks=1, num_heads=2, use_bias=True, eos_token_id=(1, 3))
    assert parse_config(config.to_json()) == config
    assert parse_config(json.dumps(json.loads(config.to_json()) | {"torch_dtype": "float32"})) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slstm_at": [1]}, r"`slstm_at` is not a known field, and its value, \[1\], may change the model"),
        ({"weight_mode": "fused"}, '`weight_mode` is "fused"; only "single" is supported'),
        ({"add_out_norm": False}, "`add_out_norm` is false; only true is supported"),
        ({"add_out_norm": 1}, "`add_out_norm` is 1; only true is supported"),
        ({"add_qk_norm": True}, "`add_qk_norm` is true; only false is supported"),
        ({"add_post_norm": True}, "`add_post_norm` is true; only false is supported"),
        ({"cell_norm_eps": 1e-5}, "`cell_norm_eps` is 1e-05; expected `norm_eps`, which is 1e-06"),
        ({"head_dim": 256}, "`head_dim` is 256; expected 512, the values of one of 8 heads"),
        ({"mlstm_round_up_to_multiple_of": 3}, "`mlstm_round_up_to_multiple_of` is 3; expected a divisor of the"),
        ({"tie_word_embeddings": True}, "`tie_word_embeddings` is true; only false is supported"),
        ({"inference_state_dtype": "bfloat16"}, '`inference_state_dtype` is "bfloat16"; only "float32" is supported'),
        ({"model_type": "mamba"}, '`model_type` is "mamba"; only "xlstm" is supported'),
        ({"architectures": ["xLSTMModel"]}, "`architectures` is .*; only .* is supported"),
        ({"hidden_size": 512}, "`embedding_dim` is 4096 and `hidden_size` is 512; expected the same"),
        ({"num_hidden_layers": 3}, "`num_hidden_layers` is 3 and `num_blocks` is 32; expected the same"),
        ({"dtype": "float16"}, '`torch_dtype` is "float32" and `dtype` is "float16"; expected the same'),
        ({"torch_dtype": "int8"}, "`dtype` is \"int8\"; expected 'float32' or"),
        ({"vocab_size": None}, "`vocab_size` is missing"),
        ({"vocab_size": 0}, "`vocab_size` is 0; expected an integer of at least 1"),
        ({"num_heads": 2.0}, "`num_heads` is 2.0; expected an integer"),
        ({"num_heads": True}, "`num_heads` is true; expected an integer"),
        ({"num_heads": 7}, "`qk_dim_factor` is 0.5 .* a width of 2048; expected a positive multiple of `num_heads`"),
        ({"gate_soft_cap": None}, "`gate_soft_cap` is null; expected a positive number"),
        ({"gate_soft_cap": -15.0}, "`gate_soft_cap` is -15.0; expected a positive number"),
        ({"norm_eps": "1e-6"}, '`norm_eps` is "1e-6"; expected a number of at least 0'),
        ({"eps": float("nan")}, "`eps` is NaN; expected a number of at least 0"),
        ({"use_bias": "no"}, '`use_bias` is "no"; expected true or false'),
        ({"hidden_size": -64, "embedding_dim": -64}, "`hidden_size` is -64; expected an integer of at least 1"),
        ({"num_blocks": 10**13}, "`num_blocks` is 10000000000000; expected an integer of at least 1, below 2"),
        ({"qk_dim_factor": 1e308}, r"`qk_dim_factor` is 1e\+308; expected a number below 2"),
        ({"v_dim_factor": 10**400}, "`v_dim_factor` is 10+.*; expected a positive number"),
        ({"norm_eps": float("inf")}, "`norm_eps` is Infinity; expected a number of at least 0"),
        ({"bos_token_id": 50304}, "`bos_token_id` is 50304; expected one of the 50304 tokens of `vocab_size`"),
        ({"eos_token_id": [2, "x"]}, "`eos_token_id` is .*; expected a token id, several of them, or null"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(**changes)


def test_a_file_that_is_no_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a valid JSON document"):
        parse_config(json.dumps(PUBLISHED)[:-20])
    with pytest.raises(ConfigError, match="a JSON list; expected an object"):
        parse_config("[]")
    for text in (b"\xff\xfe{", "[" * 100_000, '{"num_heads": ' + "9" * 5000 + "}"):
        with pytest.raises(ConfigError, match="not a valid JSON document"):
            parse_config(text)
    with pytest.raises(ConfigError, match="`num_heads` is there twice"):
        parse_config('{"num_heads": 8, "num_heads": 4}')


def test_an_unknown_field_can_be_passed_over() -> None:
    text = json.dumps({**PUBLISHED, "comment": "ours"})
    assert parse_config(text, frozenset({"comment"})) == parse()
    with pytest.raises(ConfigError, match="`comment`"):
        parse_config(text)


def test_the_configuration_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse().num_heads = 3  # pyright: ignore[reportAttributeAccessIssue]
