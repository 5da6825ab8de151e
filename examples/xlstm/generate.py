"""Generate a text, token by token, in constant memory.

checkpoint = open_checkpoint("xLSTM-7b")
engine = TorchEngine(load_torch(checkpoint))            # or FlaxEngine(checkpoint.config, load_flax(checkpoint))
session = new_session(engine, identify(checkpoint), seed=0)
for token in generate(session, prompt, Sampling(temperature=0.8, top_p=0.95), max_tokens=100):
    ...
session.save("text.safetensors")
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from examples.xlstm.sampling import Sampling
from examples.xlstm.session import Session


@dataclass(kw_only=True)
class Timing:
    """The timing of a generation, in seconds; filled in while it runs.

    Attributes:
        prompt_tokens, prompt_seconds: the prompt, compilation included.
        first_token: the time from the start to the first token.
        tokens: number of tokens drawn.
        steps, step_seconds: the number of steps after the first two tokens (which may compile), and their time.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    first_token: float = float("nan")
    tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0

    def __str__(self) -> str:
        rate = f"{self.steps / self.step_seconds:.1f} tokens/s" if self.steps else "too few tokens for a rate"
        prompt = f"prompt: {self.prompt_tokens} tokens in {self.prompt_seconds:.2f} s"
        if not self.tokens:
            return f"{prompt}; no new tokens"
        return f"{prompt}; first token after {self.first_token:.2f} s; {self.tokens} tokens; {rate}"


def generate(
    session: Session,
    prompt: np.ndarray,
    sampling: Sampling,
    max_tokens: int,
    timing: Timing | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[int]:
    """Process a prompt and yield new tokens as soon as they are drawn.

    The session can be saved after any of them. A token that ends a text is not yielded, and does not enter the session.

    Args:
        session: the state of the text, which is advanced.
        prompt: integers ``(S,)``; it may be empty if the session has tokens, and otherwise the text begins with the
            configuration's `bos_token_id`.
        sampling: how tokens are drawn.
        max_tokens: the maximum number of new tokens.
        timing: receives the measurements.
        clock: returns seconds, for `timing`.

    Raises:
        ValueError: there is no token to start from, a token of the prompt is not in the vocabulary, or `max_tokens` is
            below 0.
    """
    if max_tokens < 0:
        raise ValueError(f"generate: `max_tokens` is {max_tokens}; expected at least 0")
    timing = Timing() if timing is None else timing
    start = clock()
    if not len(prompt) and session.pending is None and session.logits is None:
        if session.engine.config.bos_token_id is None:
            raise ValueError("prompt: it is empty, and the configuration has no `bos_token_id`")
        prompt = np.array([session.engine.config.bos_token_id])
    if len(prompt):
        session.feed(prompt)
    timing.prompt_tokens, timing.prompt_seconds = len(prompt), clock() - start
    for count in range(max_tokens):
        before = clock()
        session.advance()
        assert session.logits is not None
        token = sampling.draw(session.logits, session.rng)
        after = clock()
        if count == 0:
            timing.first_token = after - start
        elif count > 1:
            timing.steps += 1
            timing.step_seconds += after - before
        if token in session.engine.config.ends:
            return
        session.pending = token
        timing.tokens += 1
        yield token
