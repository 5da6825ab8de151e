"""The files written at the end of a run: the loss curve as a picture, samples as text, and a summary as JSON."""

import dataclasses
import json
import math
import time
from pathlib import Path

from examples.language_model import metrics, sampling
from examples.language_model.baselines import Baselines
from examples.language_model.training import Finished

PROMPTS = (b"def ", b"class ", b"import ", b"    if ")


def write(directory: Path, finished: Finished, baselines: Baselines, sampled: int) -> list[str]:
    """Write ``summary.json``, ``samples.txt`` and, if matplotlib is installed, ``loss.png``.

    Args:
        directory: the directory of the run.
        finished: the finished run.
        baselines: the baselines for the same held-out text.
        sampled: the number of bytes of each sample.

    Returns:
        The results as lines of text.
    """
    bits = {"model": finished.bits_per_byte, **dataclasses.asdict(baselines)}
    summary = {
        "held_out_bits_per_byte": bits,
        "held_out_tokens": int(finished.validation.tokens.size),
        "training_tokens": len(finished.corpus.training.tokens),
        "parameters": finished.parameters,
        # Of this process alone: a run that was resumed has had others.
        "processor_seconds": time.process_time(),
    }
    (directory / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    decode = sampling.load(directory, None, lambda line: None)
    with (directory / "samples.txt").open("w", encoding="utf-8") as file:
        for prompt in PROMPTS:
            try:
                text = (prompt + b"".join(sampling.sample(decode, prompt, sampled))).decode(errors="replace")
            except ValueError as error:
                # The training has diverged.
                text = f"no sample: {error}"
            file.write(f"{'-' * 80}\n{text}\n")
    drawn = draw_losses(directory, bits)
    names = {"model": "this model", "xz_after_training": "xz, after the training text"}
    lines = [f"{value:.3f} bits per byte: {names.get(name, name)}" for name, value in bits.items()]
    left_out = [] if drawn else ["no loss.png: matplotlib is not installed (extra `figures`)"]
    return [*lines, *left_out, f"written: {', '.join(sorted(path.name for path in directory.iterdir()))}"]


def draw_losses(directory: Path, bits: dict[str, float]) -> bool:
    """Draw losses over steps, with the baselines as lines; return whether matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    lines = metrics.read(directory / "metrics.jsonl")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    training = [(line["step"], line["loss"] / math.log(2)) for line in lines if "loss" in line]
    held_out = [
        (line["step"], line["validation_bits_per_byte"]) for line in lines if "validation_bits_per_byte" in line
    ]
    axes.plot(*zip(*training, strict=True), linewidth=0.7, alpha=0.6, label="training, bits per token")
    axes.plot(*zip(*held_out, strict=True), marker="o", markersize=3, label="held out, bits per byte")
    for name, style in (("trigram", ":"), ("gzip", "--"), ("xz", "-.")):
        axes.axhline(bits[name], color="grey", linestyle=style, linewidth=0.8, label=name)
    axes.set(xlabel="step", ylabel="bits", ylim=(0, None))
    axes.legend()
    figure.savefig(directory / "loss.png", dpi=150)
    return True
