"""Memory for loading a large checkpoint, and memory as a function of the length of a text, each in a child process.

Resident memory is the kernel's own count (Linux, ``/proc/self/status``). It includes the pages of mapped files. The
memory in use before the checkpoint is opened is measured after the same work with a tiny model, compilation included,
so that the rest is due to the checkpoint.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from examples.xlstm.checkpoint import load_flax, load_torch, new_layout, open_checkpoint, write_checkpoint
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.draw import RandomTensors
from examples.xlstm.generate import generate
from examples.xlstm.sampling import Sampling
from examples.xlstm.session import Engine, new_session

TINY = XLSTMConfig(
    vocab_size=256, hidden_size=64, num_blocks=1, num_heads=2, ffn_round_up_to_multiple_of=32, eos_token_id=None
)

LARGE = XLSTMConfig(vocab_size=8192, hidden_size=1024, num_blocks=20, num_heads=4, eos_token_id=None)
"""A checkpoint of 1 GB; its largest tensor is 3% of it, as in xLSTM-7B."""

_SHARD = 200_000_000


def measure_load(framework: str, eager: bool) -> str:
    """Peak memory for loading a checkpoint of 1 GB, processing a prompt and generating some tokens."""
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(Path(directory) / "tiny", new_layout(TINY), RandomTensors(TINY))
        write_checkpoint(Path(directory) / "large", new_layout(LARGE, _SHARD), RandomTensors(LARGE))
        size = sum(path.stat().st_size for path in (Path(directory) / "large").glob("*.safetensors"))
        found = _child("load", framework, eager, directory)
    rest = found["peak"] - found["before"]
    return (
        f"{framework}: a checkpoint of {size / 1e6:.0f} MB; peak {found['peak'] / 1e6:.0f} MB, of which "
        f"{found['before'] / 1e6:.0f} MB were in use before; the rest is {rest / size:.3f} of the file "
        f"(after loading alone {(found['loaded'] - found['before']) / size:.3f})"
    )


def measure_length(framework: str, tokens: int, eager: bool) -> str:
    """Memory after each tenth of a long text, and the number of compilations of the step."""
    found = _child("length", framework, eager, str(tokens))
    rows = ", ".join(f"{count}: {size / 1e6:.1f}" for count, size in found["memory"])
    seconds = found["seconds"]
    return f"{framework}: {tokens / seconds:.0f} tokens/s over {seconds:.0f} s; MB in use after tokens {rows}"


def _child(*arguments: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "examples.xlstm.measure", *(str(each) for each in arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _resident(which: str) -> int:
    """Bytes in use now (``VmRSS``), or the maximum so far (``VmHWM``)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {which}")


def _engine(framework: str, directory: Path, eager: bool) -> Engine:
    checkpoint = open_checkpoint(directory)
    if framework == "torch":
        import torch

        from examples.xlstm.torch_engine import TorchEngine

        return TorchEngine(load_torch(checkpoint), chunk=64, compiler=None if eager else torch.compile)
    from examples.xlstm.flax_engine import FlaxEngine

    return FlaxEngine(checkpoint.config, load_flax(checkpoint), chunk=64)


def _some_tokens(engine: Engine) -> None:
    session = new_session(engine, "measured")
    prompt = np.arange(100) % engine.config.vocab_size
    for _ in generate(session, prompt, Sampling(top_p=0.9), 8):
        pass


def _load(framework: str, eager: bool, directory: str) -> dict[str, Any]:
    _some_tokens(_engine(framework, Path(directory) / "tiny", eager))
    before = _resident("VmHWM")
    engine = _engine(framework, Path(directory) / "large", eager)
    loaded = _resident("VmHWM")
    _some_tokens(engine)
    return {"before": before, "loaded": loaded, "peak": _resident("VmHWM")}


def _length(framework: str, eager: bool, tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        write_checkpoint(directory, new_layout(TINY), RandomTensors(TINY))
        engine = _engine(framework, Path(directory), eager)
        session = new_session(engine, "measured")
        start, memory = time.perf_counter(), []
        for count, _ in enumerate(generate(session, np.arange(100), Sampling(top_p=0.9), tokens), 1):
            if count == 1000 or count % (tokens // 10) == 0:
                memory.append((count, _resident("VmRSS")))
    return {"memory": memory, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    what, framework, eager, argument = sys.argv[1:]
    quiet = eager == "True"
    found = _load(framework, quiet, argument) if what == "load" else _length(framework, quiet, int(argument))
    print(json.dumps(found))
