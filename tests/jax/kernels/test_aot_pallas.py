"""The table of Pallas kernels, lowered ahead of time."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.gpu import aot_pallas
from benchmarks.gpu.aot_pallas import Entry
from jax_impl import _pallas
from tests.jax.kernels.tools import needs_mosaic

FITS = Entry("gru", "float32", "H 16", False, "gru", (4, 1, 1), ("f32.bf16.bf16",), 1000, True)


@needs_mosaic
def test_a_step_is_lowered_and_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(aot_pallas, "HEADS", ((64, 64),))
    monkeypatch.setattr(aot_pallas, "MANY", {})
    path = tmp_path / "table.json"
    result = CliRunner().invoke(
        aot_pallas.aot_pallas_command, ["--op", "mlstm_step", "--dtype", "bfloat16", "--json", str(path)]
    )
    assert result.exit_code == 0, result.output
    (kernel,) = json.loads(path.read_text())["kernels"]
    assert (kernel["kernel"], kernel["products"], kernel["fits"]) == ("mlstm_decode", [], True)
    assert "| mlstm_step | `mlstm_decode` | bfloat16 | none | " in path.with_suffix(".md").read_text()


def test_too_much_memory_too_many_blocks_and_tf32_are_refused():
    assert not aot_pallas.refused(FITS)
    assert not aot_pallas.refused(replace(FITS, products=()))
    assert aot_pallas.refused(replace(FITS, fits=False))
    assert aot_pallas.refused(replace(FITS, grid=(1, 65_536, 1)))
    assert not aot_pallas.refused(replace(FITS, grid=(65_536, 1, 1)))
    assert aot_pallas.refused(replace(FITS, products=("f32.tf32.tf32",)))


@needs_mosaic
@pytest.mark.parametrize("operation", ["mlstm", "mlstm_step"])
def test_many_sequences_and_many_heads_are_launched(operation):
    many = [case for case in aot_pallas.cases() if case.operation == operation and case.sizes in aot_pallas.MANY]
    kernels = [entry for case in many for entry in case.entries()]
    assert max(blocks for entry in kernels for blocks in entry.grid) > 65_535
    assert not any(map(aot_pallas.refused, kernels))


def test_a_line_holds_every_call_that_lowers_to_the_same():
    calls = [
        FITS,
        replace(FITS, packed=True),
        replace(FITS, sizes="H 64", shared=_pallas.SHARED_MEMORY + 1, fits=False),
    ]
    *_, first, second = aot_pallas.page(calls).splitlines()
    assert first == "| gru | `gru` | float32 | f32.bf16.bf16 | 1,000 | H 16 (packed too) |"
    assert second.endswith("| 232,449, does not fit | H 64 |")


def test_every_call_of_the_kernels_is_a_case():
    cases = list(aot_pallas.cases())
    assert {case.operation for case in cases} == {"mlstm", "mlstm_step", "gru"}
    assert {case.dtype for case in cases} == set(_pallas.TERMS)
    assert {case.packed for case in cases} == {False, True}
