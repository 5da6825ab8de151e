"""Models exported by ``torch.onnx.export``: in ONNX Runtime they compute what the specification says."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.export import Dim

from tests.interop.rounding import assert_rounding
from tests.torch.onnx_runs import Function, Session, assert_right, export, leaves
from torch_impl import (
    GRU,
    MLSTMState,
    SLSTMState,
    dtilde_matrix,
    gru,
    interop,
    mLSTM,
    mlstm,
    mlstm_step,
    mLSTMBackendFwbw,
    sLSTM,
    slstm,
    slstm_step,
)
from torch_impl._gru.arguments import Arguments as GRUArguments
from torch_impl._mlstm.arguments import Arguments as MLSTMArguments
from torch_impl._mlstm.arguments import StepArguments
from torch_impl._records import fields
from torch_impl._slstm.arguments import Arguments as SLSTMArguments

# PyTorch's exporter uses what PyTorch deprecates, and warns where arrays share an axis.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:# The axis name. . will not be used:UserWarning"),
]

B, S = Dim("B"), Dim("S")
SIZES = [(1, 1), (3, 1), (1, 13), (3, 13), (3, 64), (3, 0), (1, 0)]
"""Batch sizes and numbers of steps at which an exported program is run."""


class Case(NamedTuple):
    """An operation with its options, and random arrays for it.

    Attributes:
        operation: the name of the oracle's function.
        call: ``(arrays by name) →`` results.
        draw: ``(B, S) →`` arrays by the oracle's names.
        options: what the oracle has to know.
    """

    operation: str
    call: Callable[[dict[str, torch.Tensor]], Any]
    draw: Callable[[int, int], dict[str, torch.Tensor]]
    options: dict[str, Any]

    def results(self, session: Session, arrays: dict[str, torch.Tensor]) -> list[np.ndarray]:
        return session(*arrays.values())

    def exported(self, sizes: tuple[int, int] | None = None, **options: Any) -> Session:
        """Its program, for these sizes or, without any, for all."""
        arrays = self.draw(*sizes or (2, 5))
        names = [*arrays]
        function = Function(lambda *values: self.call(dict(zip(names, values, strict=True))))
        shapes = None if sizes else (tuple(dynamic_axes(name) for name in names),)
        return Session(export(function, tuple(arrays.values()), shapes, **options))


def dynamic_axes(name: str) -> dict[int, Any]:
    """The dynamic axes of an array by its name."""
    if "weight" in name or "bias" in name:
        return {}
    return {0: B} if name in ("C0", "n0", "m0", "c0", "h0", "input_state") else {0: B, 1: S}


def generator(B: int, S: int) -> Callable[..., torch.Tensor]:
    rng = np.random.default_rng(B + 10 * S)
    return lambda *shape: torch.tensor(rng.normal(size=shape).astype(np.float32))


def mlstm_case(state: bool, sizes: tuple[int, int, int] = (3, 4, 5), **options: Any) -> Case:
    N, K, V = sizes

    def draw(B: int, S: int) -> dict[str, torch.Tensor]:
        normal = generator(B, S)
        arrays = {"q": normal(B, S, N, K), "k": normal(B, S, N, K), "v": normal(B, S, N, V)}
        arrays |= {"i": normal(B, S, N), "f": normal(B, S, N) + 2}
        if state:
            arrays |= {"C0": normal(B, N, K, V), "n0": normal(B, N, K), "m0": normal(B, N)}
        return arrays

    def call(x: dict[str, torch.Tensor]) -> Any:
        initial = MLSTMState(x["C0"], x["n0"], x["m0"]) if state else None
        h, last = mlstm(*(x[name] for name in "qkvif"), initial_state=initial, return_state=True, **options)
        return h, *last

    return Case("mlstm", call, draw, options)


def slstm_case(state: bool, sizes: tuple[int, int] = (3, 4), **options: Any) -> Case:
    N, H = sizes

    def draw(B: int, S: int) -> dict[str, torch.Tensor]:
        normal = generator(B, S)
        arrays = {name: normal(B, S, N, H) for name in "zifo"}
        if options.get("forget_gate") == "exp":
            arrays["f"] = -arrays["f"].abs()
        arrays |= {f"weight_{name}": normal(N, H, H) / H**0.5 for name in "zifo"}
        if state:
            arrays |= {"c0": normal(B, N, H), "n0": normal(B, N, H).abs(), "m0": normal(B, N, H), "h0": normal(B, N, H)}
        return arrays

    def call(x: dict[str, torch.Tensor]) -> Any:
        initial = SLSTMState(x["c0"], x["n0"], x["m0"], x["h0"]) if state else None
        arrays = [*(x[name] for name in "zifo"), *(x[f"weight_{name}"] for name in "zifo")]
        h, last = slstm(*arrays, initial_state=initial, return_state=True, **options)
        return h, *last

    return Case("slstm", call, draw, options)


def gru_case(
    state: bool, heads: tuple[int, ...] = (4, 2, 1, 2, 4, 1), H: int = 3, bias: bool = False, **options: Any
) -> Case:
    names = ("input", "weight", "forget_input", "forget_weight", "reset_input", "reset_weight")

    def draw(B: int, S: int) -> dict[str, torch.Tensor]:
        normal = generator(B, S)
        arrays = {
            name: normal(count, H, H) / H**0.5 if "weight" in name else normal(B, S, count, H)
            for name, count in zip(names, heads, strict=True)
        }
        if state:
            arrays["input_state"] = normal(B, max(heads), H)
        if bias:
            arrays["recurrent_bias"] = normal(heads[1], H)
        return arrays

    def call(x: dict[str, torch.Tensor]) -> Any:
        arrays = [x[name] for name in names]
        return gru(*arrays, x.get("input_state"), recurrent_bias=x.get("recurrent_bias"), **options)

    return Case("gru", call, draw, options)


CASES = {
    "mlstm": mlstm_case(False),
    "mlstm, state, eps": mlstm_case(True, eps=1e-3, chunk_size=4),
    "slstm": slstm_case(False),
    "slstm, state, clipped": slstm_case(True, gradient_clipping=0.5),
    "slstm, exponential": slstm_case(False, forget_gate="exp"),
    "slstm, exponential, state": slstm_case(True, forget_gate="exp"),
    "gru, reset before": gru_case(False),
    "gru, reset before, state, clipped": gru_case(True, (1, 1, 3, 1, 1, 3), gradient_clipping=0.5),
    "gru, reset after": gru_case(False, reset_after=True),
    "gru, reset after, bias": gru_case(False, bias=True, reset_after=True),
    "gru, reset after, bias, state": gru_case(True, (2, 1, 2, 2, 2, 2), bias=True, reset_after=True),
    "mlstm, usual sizes": mlstm_case(True, (4, 64, 64)),
    "slstm, usual sizes": slstm_case(True, (4, 64)),
    "gru, usual sizes": gru_case(True, (4,) * 6, 64),
}


@pytest.mark.parametrize("name", CASES)
def test_any_batch_and_length(name: str) -> None:
    case = CASES[name]
    session = case.exported()
    for sizes in SIZES:
        arrays = case.draw(*sizes)
        results = case.results(session, arrays)
        plain = leaves(case.call(arrays))
        assert [(y.shape, y.dtype) for y in results] == [(tuple(y.shape), np.dtype("float32")) for y in plain]
        assert_right(case.operation, arrays, case.options, results)


@pytest.mark.parametrize("name", ["mlstm", "slstm, state, clipped", "gru, reset before", "gru, reset after, bias"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 13)])
def test_fixed_sizes(name: str, sizes: tuple[int, int], capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime warns of nothing: shapes that the program states are right."""
    case = CASES[name]
    arrays = case.draw(*sizes)
    session = case.exported(sizes)
    assert_right(case.operation, arrays, case.options, case.results(session, arrays))
    assert "onnxruntime" not in capfd.readouterr().err


EXTREME = {
    "mlstm": {
        "nothing written": {"i": -torch.inf},
        "emptied": {"f": -torch.inf},
        "emptied, nothing written": {"i": -torch.inf, "f": -torch.inf},
        "kept": {"f": torch.inf},
        "large input gates": {"i": 90.0},
        "far down": {"i": -90.0},
        "large forget gates": {"f": 90.0},
        "forgotten": {"f": -90.0},
    },
    "slstm": {
        "nothing written": {"i": -torch.inf},
        "emptied": {"f": -torch.inf},
        "emptied, nothing written": {"i": -torch.inf, "f": -torch.inf},
        "kept": {"f": torch.inf},
        "large input gates": {"i": 90.0},
        "forgotten": {"f": -90.0},
        "shut": {"o": -40.0},
    },
    "gru": {
        "kept": {"forget_input": torch.inf},
        "replaced": {"forget_input": -torch.inf},
        "reset": {"reset_input": -torch.inf},
        "large": {"forget_input": 90.0, "reset_input": -90.0},
        "saturated": {"input": torch.inf},
    },
}
"""By operation, elements that a gate has at some steps, and then at all."""

GRUS = "gru, reset before", "gru, reset after, bias"


@pytest.mark.parametrize("name", ["mlstm", "mlstm, state, eps", "slstm", "slstm, state, clipped", *GRUS])
def test_extreme_gates(name: str) -> None:
    case = CASES[name]
    session = case.exported()
    for gates, everywhere in product(EXTREME[case.operation].values(), (False, True)):
        arrays = case.draw(3, 13)
        for gate, value in gates.items():
            random = torch.rand(arrays[gate].shape, generator=torch.Generator().manual_seed(0))
            arrays[gate] = torch.where(random < (2.0 if everywhere else 0.3), value, arrays[gate])
        assert_right(case.operation, arrays, case.options, case.results(session, arrays))


@pytest.mark.parametrize("name", ["mlstm, state, eps", "slstm, state, clipped", "gru, reset before, state, clipped"])
def test_float16(name: str) -> None:
    """Values of 16 bits, with states in float32."""
    case = CASES[name]
    wide = [key for key in case.draw(1, 1) if dynamic_axes(key) == {0: B}]

    def draw(B: int, S: int) -> dict[str, torch.Tensor]:
        return {key: x if key in wide else x.half() for key, x in case.draw(B, S).items()}

    halves = case._replace(draw=draw)
    arrays = halves.draw(3, 13)
    results = halves.results(halves.exported(), arrays)
    assert [y.dtype for y in results] == ["float16", *["float32"] * (len(results) - 1)]
    assert_right(case.operation, arrays, case.options, results)


def kinds(program: torch.onnx.ONNXProgram) -> list[str]:
    return [node.op_type for node in program.model.graph]


def test_a_gru_is_a_node_of_onnx_for_each_head() -> None:
    layer = GRU(8, 4, 8, 3, reset_after=True)
    fixed = export(layer, (torch.randn(2, 5, 8),))
    assert kinds(fixed).count("GRU") == 3 and not {"If", "Scan", "Loop"} & {*kinds(fixed)}
    node = next(node for node in fixed.model.graph if node.op_type == "GRU")
    assert node.attributes["linear_before_reset"].value == 1
    dynamic = export(layer, (torch.randn(2, 5, 8),), ({1: S},))
    assert kinds(dynamic).count("If") == 3


@pytest.mark.parametrize("layer", [sLSTM(8, 4, 8, 2), mLSTM(8, 2)])
def test_other_operations_are_a_scan(layer: torch.nn.Module) -> None:
    assert kinds(export(layer, (torch.randn(2, 5, 8),))).count("Scan") == 1


OPTIONS = {
    "mlstm": {"opset_version": 23},
    "slstm, state, clipped": {"optimize": False},
    "gru, reset after, bias": {"opset_version": 20, "optimize": False},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_the_exporter(name: str) -> None:
    case = CASES[name]
    arrays = case.draw(3, 13)
    assert_right(case.operation, arrays, case.options, case.results(case.exported(**OPTIONS[name]), arrays))


def drawn(layer: torch.nn.Module) -> torch.nn.Module:
    """The layer with parameters drawn anew: some are 0 at first."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.4, generator=random)
    return layer.eval()


def same(model: torch.nn.Module, session: Session, *args: Any) -> None:
    """In float32 ONNX Runtime gives what PyTorch gives in float64, up to rounding."""
    with torch.no_grad():
        plain = leaves(model(*args))
        exact = leaves(model.double()(*torch.utils._pytree.tree_map(widened, args)))
    model.float()
    results = session(*args)
    assert [(y.shape, str(y.dtype)) for y in results] == [(tuple(y.shape), str(y.dtype)[6:]) for y in plain]
    for number, (y, wanted) in enumerate(zip(results, exact, strict=True)):
        assert_rounding(y, wanted, f"result {number}")


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


LAYERS = {
    "GRU": lambda: GRU(8, 4, 6, 4, 2, 1, 1, 2, 4),
    "GRU, reset after": lambda: GRU(8, 4, 6, 2, reset_after=True),
    "GRU, reset after, without biases": lambda: GRU(8, 4, 6, 2, 2, 2, 2, 2, 2, False, reset_after=True),
    "sLSTM": lambda: sLSTM(8, 4, 6, 2),
    "sLSTM, exponential": lambda: sLSTM(8, 4, 6, 2, False, 1.0, forget_gate="exp"),
    "mLSTM": lambda: mLSTM(8, 2),
    "mLSTM, biases, not capped": lambda: mLSTM(8, 2, True, gate_soft_cap=None, qk_dim_factor=1.0),
    "torch.nn.GRU": lambda: interop.GRU(8, 4, 2, batch_first=True, dropout=0.5, bidirectional=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    layer, example = drawn(LAYERS[name]()), generator(2, 5)(2, 5, 8)
    session = Session(export(layer, (example,), ({0: B, 1: S},)))
    same(layer, session, example)
    same(layer, session, generator(3, 64)(3, 64, 8))


@pytest.mark.parametrize("stabilize_correctly", [False, True])
def test_fwbw(stabilize_correctly: bool) -> None:
    config = {"return_state": True, "use_initial_state": True, "stabilize_correctly": stabilize_correctly}
    layer = mLSTMBackendFwbw(config)
    random = generator(2, 5)
    example = (random(2, 5, 4), random(2, 5, 4), random(2, 5, 3), random(2, 5), random(2, 5))
    example += (random(2, 4, 3), random(2, 4), torch.zeros(2))
    same(layer, Session(export(layer, example)), *example)


class Model(torch.nn.Module):
    """A small language model of an mLSTM, an sLSTM and a GRU layer, over whole sequences or one token at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.mlstm, self.slstm, self.gru = mLSTM(8, 2), sLSTM(8, 4, 8, 2), GRU(8, 4, 8, 2)
        self.output = torch.nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor, states: Any = (None, None, None)) -> Any:
        x, last = self.embedding(tokens), []
        for layer, state in zip((self.mlstm, self.slstm, self.gru), states, strict=True):
            y, state = layer(x, state)
            x = x + y
            last.append(state)
        return self.output(x), tuple(last)


@pytest.mark.parametrize("shapes", [({0: B, 1: S},), None])
def test_a_model(shapes: Any) -> None:
    model, random = drawn(Model()), torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (2, 13), generator=random)
    session = Session(export(model, (tokens,), shapes))
    for sizes in [(2, 13), (3, 64), (1, 1)] if shapes else [(2, 13)]:
        same(model, session, torch.randint(11, sizes, generator=random))


def test_a_model_that_passes_its_states_on() -> None:
    """Token by token, each step given the states of the one before, as over the whole sequence."""
    model = drawn(Model())
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, states = model(tokens[:, :1])
        (exact, last) = model.double()(tokens)
    model.float()
    states = torch.utils._pytree.tree_map(torch.zeros_like, states)
    states = (states[0], SLSTMState(*states[1])._replace(m=states[1].m - torch.inf), states[2])
    session = Session(export(model, (tokens[:, :1], states)))
    outputs, given = [], leaves(states)
    for token in tokens.split(1, 1):
        output, *found = session(token, *given)
        outputs.append(output)
        given = [torch.from_numpy(x) for x in found]
    assert_rounding(np.concatenate(outputs, 1), exact, "outputs")
    for number, (x, wanted) in enumerate(zip(given, leaves(last), strict=True)):
        assert_rounding(x, wanted, f"state {number}")


def test_steps() -> None:
    """`mlstm_step` and `slstm_step`, with a dynamic batch size."""

    def steps(tokens: Any, state: Any, inputs: Any, weights: Any, before: Any) -> Any:
        return mlstm_step(*tokens, MLSTMState(*state), eps=1e-3), slstm_step(*inputs, *weights, SLSTMState(*before))

    def draw(B: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return mlstm_case(True).draw(B, 1), slstm_case(True).draw(B, 1)

    def arguments(B: int) -> Any:
        (q, k, v, i, f, *state), slstm_arrays = draw(B)[0].values(), [*draw(B)[1].values()]
        tokens, inputs = (tuple(x[:, 0] for x in part) for part in ((q, k, v, i, f), slstm_arrays[:4]))
        return tokens, tuple(state), inputs, tuple(slstm_arrays[4:8]), tuple(slstm_arrays[8:])

    first, fixed = {0: B}, {}
    shapes = ((first,) * 5, (first,) * 3, (first,) * 4, (fixed,) * 4, (first,) * 4)
    session = Session(export(Function(steps), arguments(2), (shapes,)))
    for size in (1, 3):
        results = session(*leaves(arguments(size)))
        results[0], results[4] = results[0][:, None], results[4][:, None]
        assert_right("mlstm", draw(size)[0], {"eps": 1e-3}, results[:4])
        assert_right("slstm", draw(size)[1], {}, results[4:])


TRANSLATED = {
    GRUArguments: {"gradient_clipping", "reset_after", "backend"},
    MLSTMArguments: {"chunk_size", "eps", "stabilize_correctly", "return_state", "backend"},
    StepArguments: {"eps", "backend"},
    SLSTMArguments: {"forget_gate", "gradient_clipping", "backend"},
}


@pytest.mark.parametrize("record", TRANSLATED)
def test_no_option_is_ignored(record: type) -> None:
    """A new option must be translated to ONNX, or refused, and then be added here."""
    assert {field.name for field in fields(record) if not field.schema.startswith("Tensor")} == TRANSLATED[record]


def first_cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else first_cause(error.__cause__)


def packed(function: Callable[..., Any], arrays: list[torch.Tensor]) -> tuple[Function, tuple[Any, ...]]:
    return Function(lambda *x: function(*x[:-1], cu_seqlens=x[-1])), (*arrays, torch.tensor([0, 2, 5]))


def of_one_sequence(case: Case) -> list[torch.Tensor]:
    return [x[0] if dynamic_axes(name) else x for name, x in case.draw(1, 5).items()]


REFUSED = {
    "mlstm": (*packed(mlstm, of_one_sequence(mlstm_case(False))), "mlstm: `cu_seqlens` cannot be exported"),
    "slstm": (*packed(slstm, of_one_sequence(slstm_case(False))), "slstm: `cu_seqlens` cannot be exported"),
    "gru": (
        *packed(gru, of_one_sequence(gru_case(False))),
        "gru: `cu_seqlens` cannot be exported to ONNX; export the ",
    ),
    "gru, float64": (
        GRU(4, 3, 4, 2).double(),
        (torch.randn(1, 5, 4).double(),),
        "gru: float64 is not exported to ONNX",
    ),
    "mlstm, float64": (mLSTM(4, 2).double(), (torch.randn(1, 5, 4).double(),), "mlstm: float64 is not exported"),
    "slstm, float64": (sLSTM(4, 3, 4, 2).double(), (torch.randn(1, 5, 4).double(),), "slstm: float64 is not exported"),
    "dtilde": (Function(dtilde_matrix), (torch.randn(5, 1), torch.randn(5, 1)), "dtilde_matrix: it cannot be exported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_is_named(name: str) -> None:
    model, arguments, said = REFUSED[name]
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        export(model, arguments)
    assert str(first_cause(raised.value)).startswith(said)
    assert said in str(raised.value).split("\u2b06")[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("layer", [GRU(4, 3, 4, 2), sLSTM(4, 3, 4, 2), mLSTM(4, 2)])
def test_the_older_exporter_is_refused(layer: torch.nn.Module, tmp_path: Path) -> None:
    model = torch.nn.Sequential(layer, Function(lambda results: results[0])).eval()
    said = r"^torch_impl: torch\.onnx\.export\(dynamo=False\) cannot export these operations; use dynamo=True with "
    with pytest.raises(RuntimeError, match=said):
        torch.onnx.export(model, (torch.randn(1, 5, 4),), tmp_path / "old.onnx", dynamo=False)
