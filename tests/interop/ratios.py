"""Speed on a CPU of transformers' xLSTM and Qwen3-Next on our operations next to the same models on their own kernels.

    python -m tests.interop.ratios

Prints for each model, for a prompt, a generated token and a training step, the peer's time over ours: the median of
interleaved rounds, each of which times both, and the quartiles. Nothing is asserted: times depend on the machine.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers
    from transformers import xLSTMConfig, xLSTMForCausalLM

    from tests.interop.gated_delta_models import made
    from torch_impl.interop.transformers import install

VOCABULARY, PROMPT, BATCH = 512, 512, 2
XLSTM = {"hidden_size": 256, "num_heads": 4, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
# Three layers in four are Gated DeltaNet.
QWEN3_NEXT = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_hidden_layers": 4,
    "vocab_size": VOCABULARY,
}


def xlstm() -> Any:
    torch.manual_seed(0)
    return xLSTMForCausalLM(xLSTMConfig(**XLSTM, bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()


def qwen3_next() -> Any:
    return made("qwen3_next", **QWEN3_NEXT)


# How to make a model, its sizes, and the name of its cache.
MODELS: dict[str, tuple[Callable[[], Any], dict[str, int], str]] = {
    "xLSTM": (xlstm, XLSTM, "cache_params"),
    "Qwen3-Next": (qwen3_next, QWEN3_NEXT, "past_key_values"),
}


def prefill(of: Any, _cache: str) -> Callable[[], object]:
    text = torch.randint(1, VOCABULARY, (BATCH, PROMPT))

    def run() -> object:
        with torch.no_grad():
            return of(text, use_cache=True)

    return run


def decode(of: Any, cache: str) -> Callable[[], object]:
    text = torch.randint(1, VOCABULARY, (BATCH, 1))
    with torch.no_grad():
        kept = getattr(of(text, use_cache=True), cache)

    def run() -> object:
        with torch.no_grad():
            for _ in range(8):
                of(text, **{cache: kept}, use_cache=True)
        return None

    return run


def train(of: Any, _cache: str) -> Callable[[], object]:
    text = torch.randint(1, VOCABULARY, (BATCH, PROMPT))

    def run() -> object:
        of.zero_grad()
        return of(text, labels=text, use_cache=False).loss.backward()

    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11, help="how often both are timed (11)")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error(f"--rounds is {rounds}; expected at least 1")
    # It warns for each function in PyTorch that a package with kernels for GPUs would replace.
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    print("peer's time over ours: median of interleaved rounds (quartiles)")
    for model, (of, sizes, cache) in MODELS.items():
        print(f"{model}: {sizes}; batch {BATCH}, prompt {PROMPT}")
        pairs = of(), install(of())
        for name, timed in (("prompt", prefill), ("token", decode), ("training step", train)):
            pair = [timed(each, cache) for each in pairs]
            for run in pair:
                run()
            times = [[seconds(run) for run in pair] for _ in range(rounds)]
            low, middle, high = np.quantile([peer / mine for peer, mine in times], [0.25, 0.5, 0.75])
            mine = statistics.median(each[1] for each in times) * 1e3
            print(f"{name:14} {middle:5.2f} ({low:.2f} to {high:.2f}); ours {mine:.1f} ms")


if __name__ == "__main__":
    main()
