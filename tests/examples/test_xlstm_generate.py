"""Generation in `examples.xlstm`: both frameworks draw the same text, resume it bit for bit and compile once."""

import dataclasses
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from examples.xlstm.__main__ import main  # noqa: E402
from examples.xlstm.flax_engine import FlaxEngine  # noqa: E402
from examples.xlstm.generate import Timing, generate  # noqa: E402
from examples.xlstm.interrupt import stopping  # noqa: E402
from examples.xlstm.parameters import to_flax, to_torch  # noqa: E402
from examples.xlstm.sampling import Sampling  # noqa: E402
from examples.xlstm.session import Session, new_session, resume_session  # noqa: E402
from examples.xlstm.shard import make_header, read_header  # noqa: E402
from examples.xlstm.tensors import CheckpointError  # noqa: E402
from examples.xlstm.text import text_of  # noqa: E402
from examples.xlstm.torch_engine import TorchEngine  # noqa: E402
from tests.examples.xlstm_tools import SMALL, random_arrays  # noqa: E402

BIGGER = dataclasses.replace(SMALL, vocab_size=30)
PROMPT = np.random.default_rng(3).integers(0, SMALL.vocab_size, 21)
SAMPLING = Sampling(temperature=0.9, top_p=0.95)


class Counted:
    """`torch.compile` with a backend that runs the graph as it is and counts how often it is handed one."""

    def __init__(self) -> None:
        self.backend = CompileCounter()

    def __call__(self, function: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(function, backend=self.backend, **options)

    @property
    def count(self) -> int:
        return self.backend.frame_count


@pytest.fixture(scope="module")
def engines() -> dict[str, tuple[Any, Counted | None]]:
    """Engines with chunks of 8 tokens; the counter is that of PyTorch's."""
    counted, arrays = Counted(), random_arrays()
    return {
        "torch": (TorchEngine(to_torch(SMALL, arrays), chunk=8, compiler=counted), counted),
        "jax": (FlaxEngine(SMALL, to_flax(SMALL, arrays), chunk=8), None),
    }


def text(session: Session, prompt: Any, count: int) -> list[int]:
    return list(generate(session, np.array(prompt, int), SAMPLING, count))


def test_both_frameworks_resume_bit_for_bit_and_compile_once(engines: dict[str, Any], tmp_path: Path) -> None:
    texts = {}
    for name, (engine, counted) in engines.items():
        whole = new_session(engine, "id", seed=5)
        texts[name] = text(whole, PROMPT, 12)
        assert len(texts[name]) == 12 and whole.tokens == len(PROMPT) + 11

        part = new_session(engine, "id", seed=5)
        path = tmp_path / f"{name}.safetensors"
        begun = text(part, PROMPT, 5)
        part.save(path)
        resumed = resume_session(engine, "id", path)
        assert begun + text(resumed, [], 7) == texts[name]
        assert np.array_equal(resumed.logits, whole.logits) and resumed.tokens == whole.tokens
        saved, expected = engine.save(resumed.state), engine.save(whole.state)
        assert all(np.array_equal(saved[key], x) for key, x in expected.items())

        text(resumed, PROMPT[:3], 2)
        if counted is not None:
            assert counted.count == 1
        else:
            assert engine.compilations == {"step": 1, "prefill": 1}
    assert texts["torch"] == texts["jax"]


def test_a_prompt_in_chunks_is_the_prompt_token_by_token(engines: dict[str, Any]) -> None:
    for engine, _ in engines.values():
        chunks, tokens = new_session(engine, "id"), new_session(engine, "id")
        chunks.feed(PROMPT)
        for token in PROMPT:
            tokens.pending = int(token)
            tokens.advance()
        assert chunks.logits is not None and np.allclose(chunks.logits, tokens.logits, rtol=1e-4, atol=1e-5)
        assert chunks.tokens == tokens.tokens == len(PROMPT)


def test_a_session_that_does_not_fit_is_refused(engines: dict[str, Any], tmp_path: Path) -> None:
    engine = engines["torch"][0]
    session = new_session(engine, "id")
    session.feed(PROMPT)
    path = tmp_path / "session"
    session.save(path)
    with pytest.raises(CheckpointError, match="saved with another checkpoint"):
        resume_session(engine, "another", path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        resume_session(engine, "id", path)
    for name, value, message in (
        ("pending", "29", "`pending` is 29; expected null or a token"),
        ("pending", '"x"', "`pending` is 'x'; expected null or a token"),
        ("tokens", "-1", "`tokens` is -1; expected a number of tokens"),
        ("rng", "[]", "its header is malformed"),
    ):
        session.save(path)
        header, data = read_header(path), path.read_bytes()
        changed = make_header(
            {tensor: (entry.dtype, entry.shape) for tensor, entry in header.entries.items()},
            header.metadata | {name: value},
        )
        path.write_bytes(len(changed.text).to_bytes(8, "little") + changed.text + data[header.data_start :])
        with pytest.raises(CheckpointError, match=message):
            resume_session(engine, "id", path)
    session.save(path)
    other = TorchEngine(to_torch(BIGGER, random_arrays(BIGGER)), chunk=8)
    with pytest.raises(CheckpointError, match=r"`logits` is float32\[29\]; expected float32\[30\]"):
        resume_session(other, "id", path)
    with pytest.raises(ValueError, match=f"tokens 3 to 29; expected 0 to {SMALL.vocab_size - 1}"):
        session.feed(np.array([3, 29]))


def test_an_empty_prompt_begins_with_the_first_token(engines: dict[str, Any]) -> None:
    engine = engines["torch"][0]
    timing = Timing()
    tokens = list(generate(new_session(engine, "id"), np.array([], int), SAMPLING, 4, timing))
    assert tokens == text(new_session(engine, "id"), [SMALL.bos_token_id], 4)
    assert (timing.prompt_tokens, timing.tokens, timing.steps) == (1, 4, 2)
    assert 0 < timing.prompt_seconds <= timing.first_token


def test_no_tokens_are_told_without_a_time_and_fewer_are_refused(engines: dict[str, Any]) -> None:
    engine, timing = engines["torch"][0], Timing()
    assert list(generate(new_session(engine, "id"), np.array([3]), SAMPLING, 0, timing)) == []
    assert str(timing).startswith("prompt: 1 tokens in ") and str(timing).endswith("; no new tokens")
    with pytest.raises(ValueError, match="`max_tokens` is -5; expected at least 0"):
        list(generate(new_session(engine, "id"), np.array([3]), SAMPLING, -5))
    for option in ("--max-tokens=-5", "--chunk=0"):
        refused = CliRunner().invoke(main, ["generate", ".", "--prompt", "a", option])
        assert refused.exit_code == 2 and option.partition("=")[0] in refused.output


def test_sampling_draws_from_the_most_likely_tokens() -> None:
    logits = np.log(np.array([0.15, 0.5, 0.05, 0.3], np.float32))
    rng = np.random.default_rng(0)

    def shares(sampling: Sampling) -> np.ndarray:
        return np.bincount([sampling.draw(logits, rng) for _ in range(4000)], minlength=4) / 4000

    assert np.abs(shares(Sampling()) - [0.15, 0.5, 0.05, 0.3]).max() < 0.03
    assert np.abs(shares(Sampling(top_p=0.7)) - [0, 0.625, 0, 0.375]).max() < 0.03
    squared = np.array([0.15, 0.5, 0.05, 0.3]) ** 2
    assert np.abs(shares(Sampling(temperature=0.5)) - squared / squared.sum()).max() < 0.03
    assert shares(Sampling(temperature=0))[1] == shares(Sampling(top_p=0.1))[1] == 1
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"temperature": float("nan")}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is"):
            Sampling(**wrong)
    with pytest.raises(ValueError, match="a logit is NaN"):
        Sampling().draw(np.array([0.0, np.nan]), rng)
    for logit in (np.inf, -np.inf):
        with pytest.raises(ValueError, match=r"the largest logit is .*inf; expected a finite one"):
            Sampling().draw(np.array([logit, -np.inf]), rng)
    assert Sampling(temperature=1e-310).draw(logits, rng) == 1


def test_text_is_bytes_or_token_ids_without_a_tokenizer(tmp_path: Path) -> None:
    text = text_of(tmp_path, 256)
    assert text.encode("é").tolist() == [0xC3, 0xA9]
    assert [text.decode(0xC3), text.decode(0xA9), text.decode(0xC3), text.end()] == ["", "é", "", "�"]
    ids = text_of(tmp_path, 99)
    assert ids.encode("1, 22 3").tolist() == [1, 22, 3] and ids.decode(7) == "7 "
    with pytest.raises(ValueError, match="expected token ids"):
        ids.encode("words")


def test_the_command_line(tmp_path: Path) -> None:
    def call(*arguments: Any) -> Any:
        done = CliRunner().invoke(main, [str(each) for each in arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    source = tmp_path / "source"
    sizes = ("--hidden-size", 32, "--num-heads", 2, "--num-blocks", 1, "--max-shard-bytes", 20_000)
    assert "18 tensors" in call("new", source, *sizes).output
    assert "vocab_size = 256" in call("inspect", source).output
    call("export", source, tmp_path / "copy")
    assert {p.name: p.read_bytes() for p in source.iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "copy").iterdir()
    }
    common = ("--prompt", "hello", "--top-p", 0.9, "--eager")
    whole = call("generate", source, *common, "--max-tokens", 8)
    assert "prompt: 5 tokens" in whole.stderr and "tokens/s" in whole.stderr
    state = tmp_path / "state"
    call("generate", source, *common, "--max-tokens", 8, "--save", state)
    for option, message in (
        ("--device=teapot", "--device is 'teapot': Expected one of cpu"),
        (f"--save={tmp_path / 'no' / 'state'}", "and its directory is not there"),
        ("--temperature=-1", "`temperature` is -1.0; expected a number of at least 0"),
        ("--top-p=0", "`top_p` is 0.0; expected a number above 0 and up to 1"),
        (f"--prompt-file={next(source.glob('*.safetensors'))}", "not UTF-8"),
        (f"--resume={source / 'config.json'}", "config.json: "),
    ):
        refused = CliRunner().invoke(main, ["generate", str(source), "--eager", option])
        assert isinstance(refused.exception, ValueError) and message in str(refused.exception)
    more = call("generate", source, "--eager", "--resume", state, "--max-tokens", 4)
    assert "prompt: 0 tokens" in more.stderr


@pytest.fixture
def main_thread() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread alone")
    # A shell starts commands in the background of a script with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("main_thread")
def test_ctrl_c_ends_the_text_and_its_state_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, state = tmp_path / "source", tmp_path / "state"
    sizes = ("--hidden-size", "16", "--num-heads", "1", "--num-blocks", "1")
    assert CliRunner().invoke(main, ["new", str(source), *sizes]).exit_code == 0
    common = ["generate", str(source), "--eager", "--seed", "3"]
    whole = CliRunner().invoke(main, [*common, "--prompt", "a", "--max-tokens", "9"])

    def interrupted(*arguments: Any) -> Any:
        for count, token in enumerate(generate(*arguments)):
            if count == 3:
                signal.raise_signal(signal.SIGINT)
            yield token

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr("examples.xlstm.__main__.generate", interrupted)
        part = CliRunner().invoke(main, [*common, "--prompt", "a", "--max-tokens", "9", "--save", str(state)])
    assert part.exit_code == 0 and "4 tokens" in part.stderr and signal.getsignal(signal.SIGINT) is before
    rest = CliRunner().invoke(main, [*common, "--resume", str(state), "--max-tokens", "5"])
    assert rest.exit_code == 0 and "5 tokens" in rest.stderr
    # Bytes that are not UTF-8 may be cut between the two.
    assert [c for c in part.stdout[:-1] + rest.stdout if c < "\x7f"] == [c for c in whole.stdout if c < "\x7f"]


@pytest.mark.usefixtures("main_thread")
def test_a_second_ctrl_c_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), stopping() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        signal.raise_signal(signal.SIGINT)
