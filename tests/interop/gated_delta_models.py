"""Small models of transformers with Gated DeltaNet layers, with random weights, on transformers' code in PyTorch."""

import sys
import warnings
from typing import Any

import pytest
import torch
import transformers

# transformers takes the kernels of flash-linear-attention where that is installed, and they do not run on a CPU.
with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
    patch.setitem(sys.modules, "fla", None)
    warnings.simplefilter("ignore")
    from transformers import OlmoHybridForCausalLM, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3NextForCausalLM
    from transformers.models.qwen3_next import modeling_qwen3_next

__all__ = ["KINDS", "made", "modeling_qwen3_next"]

KINDS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3_next": (transformers.Qwen3NextConfig, Qwen3NextForCausalLM, {"num_experts": 0}),
    "qwen3_5": (transformers.Qwen3_5TextConfig, Qwen3_5ForCausalLM, {}),
    "qwen3_5_moe": (
        transformers.Qwen3_5MoeTextConfig,
        Qwen3_5MoeForCausalLM,
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "olmo_hybrid": (transformers.OlmoHybridConfig, OlmoHybridForCausalLM, {}),
}
_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "num_hidden_layers": 4,
    "vocab_size": 97,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def made(kind: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    """A model for evaluation; the weights are the same ones at every call."""
    config, model, settings = KINDS[kind]
    torch.manual_seed(0)
    chosen = config(**(_SIZES | settings | sizes))
    # Products of experts by groups have no float64.
    chosen._experts_implementation = "eager"
    found = model(chosen)
    for parameter in found.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return found.to(dtype).eval()
