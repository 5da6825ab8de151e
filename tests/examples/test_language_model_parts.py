"""The parts of the language model that need no framework: settings, text, rows, baselines, checkpoints, draws."""

import dataclasses
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from examples.language_model import baselines, checkpoints, corpus, metrics, sampling, schedule, settings
from examples.language_model.corpus import BOUNDARY, CorpusError, joined, text_of
from examples.language_model.kinds import ParametersError, kind_of
from examples.language_model.packing import Rows, RowSource, held_out_rows
from examples.language_model.settings import Settings, SettingsError
from examples.xlstm.sampling import Sampling


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"width": 0}, "`width` is 0; expected from 1 to 1,048,576"),
        ({"width": "128"}, "`width` is '128' of type str; expected int"),
        ({"steps": True}, "`steps` is True of type bool; expected int"),
        ({"learning_rate": float("nan")}, "`learning_rate` is nan; expected a finite number"),
        ({"framework": "keras"}, "`framework` is 'keras'; expected one of torch, jax"),
        ({"heads": 5}, "`heads` is 5, which does not divide `width`, 128"),
        ({"width": 36}, "`heads` is 4: queries and keys are half as wide as `width`, 36, and 4 does not divide 18"),
        ({"rows": 4, "minibatches": 3}, "`minibatches` is 3, which does not divide `rows`, 4"),
        ({"steps": 50}, "`warmup_steps` is 50; expected less than `steps`, 50"),
        ({"width": 10**9}, "`width` is 1000000000; expected from 1 to 1,048,576"),
        ({"blocks": 2}, "`blocks` is 2 of type int; expected str"),
        ({"blocks": "lstm"}, "`blocks` is 'lstm'; expected mlstm, slstm, gru, as in mlstm:7,slstm; up to 1,024 blocks"),
        ({"blocks": "mlstm:1000,gru:25"}, "`blocks` is 'mlstm:1000,gru:25'; expected mlstm, slstm, gru, as in"),
        ({"blocks": "mlstm,"}, "`blocks` is 'mlstm,'; expected mlstm, slstm, gru"),
        ({"steps": 10**9}, "`steps` is 1000000000; expected from 1 to 99,999,999"),
        ({"seed": 2**31}, "`seed` is 2147483648; expected from 0 to 2,147,483,647"),
        ({"rows": 2**20, "row_tokens": 2**11}, "`rows` is 1048576 and `row_tokens` is 2048; expected fewer than 2^31"),
        ({"learning_rate": 10**400}, "`learning_rate` is inf; expected a finite number"),
        ({"depth": 3}, "`depth` is not a setting; known are"),
    ],
)
def test_a_bad_setting_is_refused_by_name(fields: dict, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings.from_fields(fields)
    assert str(refused.value).startswith(said)


def test_settings_come_back_from_their_file(tmp_path: Path) -> None:
    path, given = tmp_path / "settings.json", Settings(blocks="gru,slstm", learning_rate=0.1, data="here")
    settings.write(given, path)
    assert settings.read(path) == given
    fields = json.loads(path.read_text())
    del fields["width"]
    path.write_text(json.dumps(fields))
    with pytest.raises(SettingsError, match="lacks `width`"):
        settings.read(path)
    path.write_text("[1")
    with pytest.raises(SettingsError, match="cannot be read as settings"):
        settings.read(path)


def text(directory: Path, **files: bytes) -> Settings:
    for name, content in files.items():
        (directory / f"{name}.py").write_bytes(content)
    return Settings(data=str(directory), smallest_file=2, validation_share=0.5)


def test_text_is_read_and_the_same_files_are_held_out(tmp_path: Path) -> None:
    wanted = text(tmp_path, **{f"m{index}": bytes([65 + index]) * 3 for index in range(12)}, empty=b"")
    found = corpus.read(wanted)
    assert len(found.training.lengths) + len(found.validation.lengths) == 12
    assert set(found.training.lengths) == {4}
    assert not set(text_of(found.training.tokens)) & set(text_of(found.validation.tokens))
    # Another file moves none from one part to the other, and changes the fingerprint.
    more = corpus.read(text(tmp_path, another=b"zzz"))
    assert set(text_of(found.validation.tokens)) <= set(text_of(more.validation.tokens))
    assert found.fingerprint != more.fingerprint


def test_text_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"`data` is '.*nowhere', which is neither a directory nor a file"):
        corpus.read(Settings(data=str(tmp_path / "nowhere")))
    with pytest.raises(CorpusError, match=r"where no file fits `pattern` '\*\.py' with at least 256 bytes"):
        corpus.read(Settings(data=str(tmp_path)))
    with pytest.raises(CorpusError, match=r"`validation_share` is 0\.5: of 2 files in .* none is (held out|left)"):
        corpus.read(text(tmp_path, a=b"abc", c=b"abc"))


def test_of_one_file_the_end_is_held_out(tmp_path: Path) -> None:
    settings = text(tmp_path, only=b"abcdefghij")
    for data in (tmp_path, tmp_path / "only.py"):
        found = corpus.read(dataclasses.replace(settings, data=str(data), validation_share=0.2))
        parts = text_of(found.training.tokens), text_of(found.validation.tokens)
        assert parts == (b"abcdefgh", b"ij") and found.source == data
    with pytest.raises(CorpusError, match=r"of 1 files in .* none is held out"):
        corpus.read(dataclasses.replace(settings, validation_share=0.01))


DOCUMENTS = joined([b"a" * 5, b"b" * 70, b"", b"c" * 33, b"d" * 2, b"e" * 9, b"f"])


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("T", [1, 3, 16, 64, 126])
def test_rows_hold_every_token_once_an_epoch_and_no_padding(T: int, seed: int | None) -> None:
    source = RowSource(documents=DOCUMENTS, row_tokens=T, seed=seed)
    W = source.whole_rows
    assert W == (len(DOCUMENTS.tokens) - 1) // T
    rows = source.rows(0, 3 * W)
    np.testing.assert_array_equal(rows.targets[:, :-1], rows.tokens[:, 1:])
    whole = np.bincount(DOCUMENTS.tokens, minlength=257)
    for epoch in range(3):
        # All tokens, but for the end of the stream, at most T.
        left = whole - np.bincount(rows.tokens[epoch * W : (epoch + 1) * W].ravel(), minlength=257)
        assert (left >= 0).all() and left.sum() == len(DOCUMENTS.tokens) - W * T <= T
        targets = np.bincount(rows.targets[epoch * W : (epoch + 1) * W].ravel(), minlength=257)
        assert (targets <= whole).all() and targets.sum() == W * T
    for tokens, packing in zip(rows.tokens, rows.cu_seqlens, strict=True):
        assert packing[0] == 0 and packing[-1] == T and (np.diff(packing) >= 0).all()
        begins = {int(at) for at in packing if at < T}
        assert begins == {0, *np.flatnonzero(tokens == BOUNDARY)}
    if seed is None:
        np.testing.assert_array_equal(rows.tokens[:W].ravel(), DOCUMENTS.tokens[: W * T])
    elif T < 64:
        assert (rows.tokens[:W] != rows.tokens[W : 2 * W]).any()


def test_a_row_is_the_same_whatever_rows_were_asked_for_before() -> None:
    source = RowSource(documents=DOCUMENTS, row_tokens=20, seed=1)
    many, one = source.rows(0, 30), source.rows(17, 1)
    for name in ("tokens", "targets", "cu_seqlens"):
        np.testing.assert_array_equal(getattr(many, name)[17], getattr(one, name)[0])
    other = RowSource(documents=DOCUMENTS, row_tokens=20, seed=2).rows(0, 30)
    assert (many.tokens != other.tokens).any()


def test_held_out_rows_are_spread_over_the_text_and_none_is_there_twice() -> None:
    source = RowSource(documents=DOCUMENTS, row_tokens=20, seed=None)
    np.testing.assert_array_equal(held_out_rows(source, 100).tokens, source.rows(0, 6).tokens)
    assert held_out_rows(source, 2).tokens.shape == (2, 20)
    with pytest.raises(CorpusError, match="`row_tokens` is 127; one part of the text has 127 tokens"):
        held_out_rows(RowSource(documents=DOCUMENTS, row_tokens=127, seed=None), 1)


def rows_of(tokens: list[int], targets: list[int]) -> Rows:
    packing = np.array([[0, len(tokens)]], np.int32)
    return Rows(tokens=np.array([tokens], np.int32), targets=np.array([targets], np.int32), cu_seqlens=packing)


def test_the_trigram_model_is_a_distribution_and_the_one_that_is_written_out() -> None:
    training = joined([b"abracadabra", b"abc"])

    def cost(first: int, second: int, target: int) -> float:
        # A row of two tokens costs what its first target costs alone, and the target in question.
        both, alone = rows_of([first, second], [second, target]), rows_of([first], [second])
        return baselines.trigram_nats(training, both) - baselines.trigram_nats(training, alone)

    # Tokens that the training text does not have are equally likely: of these, the first, the last and one between.
    seen = {*b"abracadabraabc", BOUNDARY}
    unseen = sorted({*range(257)} - seen)
    likely = [np.exp(-cost(ord("a"), ord("b"), token)) for token in seen]
    unlikely = [np.exp(-cost(ord("a"), ord("b"), unseen[at])) for at in (0, 100, -1)]
    assert unlikely == pytest.approx([unlikely[0]] * 3, rel=1e-9)
    assert sum(likely) + len(unseen) * unlikely[0] == pytest.approx(1, abs=1e-9)
    # After "ab" came "r" twice and "c" once; after "b" the same; 16 tokens in all, of which "r" are two.
    different = len(seen)
    unigram = (2 + different / 257) / (16 + different)
    bigram = (2 + 2 * unigram) / (3 + 2)
    assert np.exp(-cost(ord("a"), ord("b"), ord("r"))) == pytest.approx((2 + 2 * bigram) / (3 + 2), rel=1e-9)


def test_bits_per_byte_count_bytes_alone() -> None:
    assert baselines.bits_per_byte(3 * np.log(2), np.array([65, BOUNDARY, 66])) == pytest.approx(1.5)
    rows = RowSource(documents=joined([b"abcd" * 400]), row_tokens=1600, seed=None).rows(0, 1)
    found = baselines.measure(joined([b"abcd" * 100]), rows)
    assert 0 < found.xz_after_training < found.xz < 1 and 0 < found.gzip < 1 and found.trigram < 0.5


def test_the_learning_rate_rises_and_falls() -> None:
    wanted = Settings(steps=110, warmup_steps=10, learning_rate=2.0, final_learning_rate=0.25)
    rates = [schedule.learning_rate(wanted, step) for step in range(111)]
    assert rates[0] == pytest.approx(0.2) and rates[9] == rates[10] == 2.0
    assert rates[60] == pytest.approx((2.0 + 0.5) / 2) and rates[110] == pytest.approx(0.5)
    assert all(a > b for a, b in pairwise(rates[10:]))


def write_checkpoints(directory: Path, *steps: int) -> None:
    for step in steps:
        checkpoints.begin(directory, step)
        state = checkpoints.unfinished(directory, step) / "state"
        state.mkdir()
        (state / "values").write_bytes(bytes(range(100)) * step)
        checkpoints.finish(directory, step, {"step": step}, keep=3)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        ("state/values", truncate, "state/values has 299 bytes; expected 300"),
        ("state/values", flip, "the content of state/values has changed"),
        ("state/values", Path.unlink, "state/values is missing"),
        ("manifest.json", truncate, "manifest.json cannot be read"),
        ("manifest.json", Path.unlink, "manifest.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(
    tmp_path: Path, file: str, damage: Callable[[Path], None], said: str
) -> None:
    write_checkpoints(tmp_path, 1, 2, 3)
    damage(tmp_path / "step-00000003" / file)
    refused: list[str] = []
    found = checkpoints.newest(tmp_path, refused.append)
    assert found is not None and (found.step, found.facts) == (2, {"step": 2})
    assert refused == [f"checkpoint step-00000003 is damaged: {said}"]


def test_checkpoints_that_are_all_damaged_are_an_error(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path, pytest.fail) is None
    write_checkpoints(tmp_path, 1, 2)
    for path in tmp_path.glob("*/state/values"):
        flip(path)
    with pytest.raises(checkpoints.CheckpointError, match="is damaged: step-00000002, step-00000001"):
        checkpoints.newest(tmp_path, lambda line: None)


def test_old_checkpoints_and_unfinished_ones_go(tmp_path: Path) -> None:
    write_checkpoints(tmp_path, 1, 2, 3, 4, 5)
    checkpoints.begin(tmp_path, 6)
    found = checkpoints.newest(tmp_path, pytest.fail)
    assert found is not None and found.step == 5
    checkpoints.remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-0000000{step}" for step in (3, 4, 5)]


def test_lines_after_the_checkpoint_are_written_again(tmp_path: Path) -> None:
    with metrics.Metrics(tmp_path, 0) as lines:
        for step in (1, 2, 3):
            lines.add(step, loss=1 / step)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "lo')
    with metrics.Metrics(tmp_path, 2) as lines:
        lines.add(3, loss=0.1)
    assert metrics.read(path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.1}]


def test_sampling_ends_with_the_document() -> None:
    def decode(tokens: np.ndarray, state: int | None) -> tuple[np.ndarray, int]:
        seen = (state or 0) + len(tokens)
        return np.where(np.arange(257) == (BOUNDARY if seen == 5 else 65 + seen), 0.0, -np.inf), seen

    assert b"".join(sampling.sample(decode, b"x", 100, Sampling(temperature=0))) == b"CDE"
    assert b"".join(sampling.sample(decode, b"x", 2)) == b"CD"


def test_cells_of_blocks_are_read_in_order() -> None:
    assert Settings(blocks="mlstm:2,slstm,mlstm").cells == ("mlstm", "mlstm", "slstm", "mlstm")
    # Queries and keys of half the width matter to the mLSTM alone.
    assert Settings(blocks="slstm,gru", width=6, heads=2).cells == ("slstm", "gru")


@pytest.mark.parametrize("blocks", ["mlstm", "slstm", "gru"])
def test_parameters_that_do_not_fit_are_refused_by_name(blocks: str) -> None:
    kind = kind_of(Settings(blocks=blocks, width=16, heads=2))
    values = kind.initial(0)
    kind.check(values)
    name, *_ = values
    bad = {
        f"`{name}` is missing": {other: value for other, value in values.items() if other != name},
        f"`{name}` has shape [16, 257]; expected [257, 16]": values | {name: values[name].T},
        f"`{name}` is float64; expected float32": values | {name: values[name].astype(np.float64)},
        "`more` is not a parameter of the model": values | {"more": values[name]},
    }
    for said, given in bad.items():
        with pytest.raises(ParametersError) as refused:
            kind.check(given)
        assert str(refused.value) == said
    again, other = kind.initial(0), kind.initial(1)
    assert all((again[name] == values[name]).all() for name in values) and (other[name] != values[name]).any()
