"""The progress bar: loss, bits per byte of the held-out text, tokens per second, time left."""

import time
from types import TracebackType

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn


class Progress:
    """Shows the progress of a run: a bar on a terminal, otherwise a line for each validation.

    Args:
        done: steps that an earlier process has done.
        steps: all steps.
        tokens_of_step: tokens of one step.
        shown: False in processes that print nothing.
    """

    def __init__(self, done: int, steps: int, tokens_of_step: int, *, shown: bool) -> None:
        console = Console()
        self._bar = rich.progress.Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._lines = console if shown and not console.is_terminal else None
        self._task = self._bar.add_task("steps", total=steps, completed=done, shown="")
        self._tokens_of_step, self._done, self._first, self._steps = tokens_of_step, done, done, steps
        self._began = time.perf_counter()
        self._loss, self._bits = float("nan"), ""

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def stepped(self, loss: float) -> None:
        """Report that a step is done."""
        self._done, self._loss = self._done + 1, loss
        self._bar.update(self._task, completed=self._done, shown=self._text())

    def validated(self, bits: float) -> None:
        """Report a validation."""
        self._bits = f" · held out {bits:.3f} bits/byte"
        self._bar.update(self._task, shown=self._text())
        if self._lines is not None:
            left = (self._steps - self._done) * (time.perf_counter() - self._began) / (self._done - self._first)
            text = f"step {self._done} of {self._steps} · {self._text()} · {left:.0f} s left"
            self._lines.print(text, highlight=False, soft_wrap=True)

    def _text(self) -> str:
        speed = (self._done - self._first) * self._tokens_of_step / (time.perf_counter() - self._began)
        return f"loss {self._loss:.4f}{self._bits} · {speed:,.0f} tokens/s"
