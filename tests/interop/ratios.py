"""Speed on a CPU of xLSTM models on our operations next to the same models on the peer's own kernels.

    python -m tests.interop.ratios

Prints, for a prompt, a generated token and a training step, the peer's time over ours: the median of interleaved
rounds, each of which times both, and the quartiles. Nothing is asserted: times depend on the machine.
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

    from torch_impl.interop.transformers import install

SIZES = {"hidden_size": 256, "num_heads": 4, "num_hidden_layers": 2, "vocab_size": 512}
PROMPT, BATCH = 512, 2


def model() -> Any:
    torch.manual_seed(0)
    return xLSTMForCausalLM(xLSTMConfig(**SIZES, bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()


def prefill(of: Any) -> Callable[[], object]:
    text = torch.randint(1, SIZES["vocab_size"], (BATCH, PROMPT))

    def run() -> object:
        with torch.no_grad():
            return of(text, use_cache=True)

    return run


def decode(of: Any) -> Callable[[], object]:
    text = torch.randint(1, SIZES["vocab_size"], (BATCH, 1))
    with torch.no_grad():
        cache = of(text, use_cache=True).cache_params

    def run() -> object:
        with torch.no_grad():
            for _ in range(8):
                of(text, cache_params=cache, use_cache=True)
        return None

    return run


def train(of: Any) -> Callable[[], object]:
    text = torch.randint(1, SIZES["vocab_size"], (BATCH, PROMPT))

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
    theirs, ours = model(), install(model())
    kernels = type(theirs.backbone.blocks[0].mlstm_layer.mlstm_backend).__name__
    print(f"transformers {transformers.__version__} ({kernels}, native kernels), PyTorch {torch.__version__}")
    print(f"{torch.get_num_threads()} threads; {SIZES}; batch {BATCH}, prompt {PROMPT}")
    print("peer's time over ours: median of interleaved rounds (quartiles)")
    for name, made in (("prompt", prefill), ("token", decode), ("training step", train)):
        pair = made(theirs), made(ours)
        for run in pair:
            run()
        times = [[seconds(run) for run in pair] for _ in range(rounds)]
        low, middle, high = np.quantile([peer / mine for peer, mine in times], [0.25, 0.5, 0.75])
        mine = statistics.median(each[1] for each in times) * 1e3
        print(f"{name:14} {middle:5.2f} ({low:.2f} to {high:.2f}); ours {mine:.1f} ms")


if __name__ == "__main__":
    main()
