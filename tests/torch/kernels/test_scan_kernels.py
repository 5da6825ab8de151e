"""The kernels of the scans and of the decay matrices against the float64 reference, forward and backward."""

import numpy as np
import pytest
import torch

import reference
import torch_impl
from reference._decay import causal_forget_matrix_backward, dtilde_matrix_backward
from reference._scan import rev_cumsum_backward, rev_cumsum_off_backward
from reference.backends import Request
from torch_impl import KernelBackend
from torch_impl._decay import api as decay_api
from torch_impl._decay.triton import autograd as decay_autograd
from torch_impl._decay.triton import launch as decay
from torch_impl._scan import api as scan_api
from torch_impl._scan.triton import autograd as scan_autograd
from torch_impl._scan.triton import launch as scan

# Largest ‖found − reference‖ / ‖reference‖ seen over the cases below: 5.3e-7, 2.7e-4, 1.8e-3 (the last rounding).
BOUND = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
INF = float("inf")
SIZES = [(0,), (1,), (2, 3, 64), (3, 130), (2, 1500)]


def draw(shape, dtype, device, seed=0, scale=1.0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return x.to(dtype).to(device)


def exact(x: torch.Tensor) -> np.ndarray:
    return x.double().cpu().numpy()


def near(found: torch.Tensor, wanted: np.ndarray, dtype: torch.dtype) -> None:
    values = exact(found)
    finite = np.isfinite(wanted)
    assert values.shape == wanted.shape and (values[~finite] == wanted[~finite]).all()
    assert np.linalg.norm(values[finite] - wanted[finite]) <= BOUND[dtype] * np.linalg.norm(wanted[finite]) + 1e-30


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", SIZES)
def test_scans(shape, dtype, device) -> None:
    x, dy = draw(shape, dtype, device), draw(shape, dtype, device, 1)
    near(scan.rev_cumsum(x), reference.rev_cumsum(exact(x)), dtype)
    near(scan.rev_cumsum_off(x), reference.rev_cumsum_off(exact(x)), dtype)
    near(scan.rev_cumsum_backward(dy), rev_cumsum_backward(exact(x), dy=exact(dy))["x"], dtype)
    near(scan.rev_cumsum_off_backward(dy), rev_cumsum_off_backward(exact(x), dy=exact(dy))["x"], dtype)


def test_scans_keep_infinities_where_they_are(device) -> None:
    x = draw((2, 70), torch.float32, device)
    x[0, 40], x[1, 3] = INF, -INF
    near(scan.rev_cumsum(x), reference.rev_cumsum(exact(x)), x.dtype)
    near(scan.rev_cumsum_off(x), reference.rev_cumsum_off(exact(x)), x.dtype)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 4, 5, 7).permute(3, 0, 2, 1),
        torch.randn(2, 3, 4, 2, 6).permute(3, 1, 4, 0, 2),
        torch.randn(3, 9, 8)[:, ::2, ::3],
        torch.randn(4, 1).expand(4, 6),
    ],
)
def test_strides(x, device) -> None:
    """On a GPU a sum of other strides may be compiled with another order of its terms, as an H100 showed."""
    x = x.to(device)
    for function in (scan.rev_cumsum, decay.causal_forget_matrix):
        found, contiguous = function(x), function(x.contiguous())
        if device.type == "cpu":
            assert torch.equal(found, contiguous)
        near(found, contiguous.double().cpu().numpy(), x.dtype)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(0,), (1,), (2, 5), (130,)])
def test_decay_matrices(shape, dtype, device) -> None:
    i, f = (draw((*shape, 1), dtype, device, seed, 3.0) for seed in (0, 1))
    if shape[-1] > 5:
        f[..., 3, :], i[..., 5, :] = -INF, -INF
    dF = draw((*shape, shape[-1]), dtype, device, 2)
    a = torch.nn.functional.logsigmoid(f[..., 0].float()).to(dtype)
    near(decay.causal_forget_matrix(a), reference.causal_forget_matrix(exact(a)), dtype)
    wanted = causal_forget_matrix_backward(exact(a), dF=exact(dF))["forget_gates"]
    near(decay.causal_forget_matrix_backward(dF), wanted, torch.float32)
    near(decay.dtilde_matrix(i, f), reference.dtilde_matrix(exact(i), exact(f)), dtype)
    di, df = decay.dtilde_matrix_backward(dF, f)
    wanted = dtilde_matrix_backward(exact(i), exact(f), dD=exact(dF))
    near(di, wanted["igate"], dtype)
    near(df, wanted["fgate"], dtype)


def test_a_masked_gradient_has_no_part(device) -> None:
    dF = draw((70, 70), torch.float32, device)
    upper = torch.ones_like(dF, dtype=torch.bool).triu()
    assert torch.equal(
        decay.causal_forget_matrix_backward(dF.masked_fill(upper, INF)),
        decay.causal_forget_matrix_backward(dF.masked_fill(upper, 0.0)),
    )


@pytest.fixture
def launched(monkeypatch) -> list[str]:
    """The names of the kernels that are launched."""
    launched = []
    for module in (scan, decay):
        launch = module.launch

        def counted(kernel, *args, launch=launch, **constants):
            launched.append(kernel.__name__)
            launch(kernel, *args, **constants)

        monkeypatch.setattr(module, "launch", counted)
    return launched


@pytest.fixture
def kernels_chosen(launched, monkeypatch) -> list[str]:
    """The public functions, which take no `kernel_backend`, choose as they do where kernels are proven; the launches
    that follow."""
    for room in (scan_api, decay_api):
        monkeypatch.setattr(room, "choose", lambda asked, requested: KernelBackend.triton)
    return launched


def gates_and_cotangent(S: int, device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    i, f, dD = (draw((2, S, width), torch.float32, device, seed) for seed, width in enumerate((1, 1, S)))
    return i.requires_grad_(), f.requires_grad_(), dD


def test_the_public_matrix_takes_its_kernel(device, kernels_chosen) -> None:
    i, f, dD = gates_and_cotangent(70, device)
    D = torch_impl.dtilde_matrix(i, f)
    near(D.detach(), reference.dtilde_matrix(exact(i.detach()), exact(f.detach())), torch.float32)
    D.backward(dD)
    wanted = dtilde_matrix_backward(exact(i.detach()), exact(f.detach()), dD=exact(dD))
    near(i.grad, wanted["igate"], torch.float32)
    near(f.grad, wanted["fgate"], torch.float32)
    assert kernels_chosen == ["decay", "decay_backward"]


LINEAR = {
    "rev_cumsum": (torch_impl.rev_cumsum, ["cumulative", "cumulative"]),
    "rev_cumsum_off": (torch_impl.rev_cumsum_off, ["cumulative", "cumulative"]),
    "causal_forget_matrix": (torch_impl.causal_forget_matrix, ["decay", "decay_backward"]),
}


def weighed(function):
    """A scalar of what is finite in the result, of which higher derivatives do not vanish."""

    def scalar(x: torch.Tensor) -> torch.Tensor:
        y = function(x)
        y = torch.where(torch.isfinite(y), y, 0.0)
        return (y.sin() * torch.arange(y.numel(), device=y.device).view_as(y).cos()).sum()

    return scalar


# PyTorch compiles a few decompositions with torch.jit.script, which is deprecated, when it first meets a dual number: a
# DeprecationWarning in 2.13, a FutureWarning in 2.15.
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("name", LINEAR)
def test_the_public_sums_take_their_kernels(name, device, kernels_chosen) -> None:
    """Value and derivatives, the second and forward ones too, mapped and compiled: as those of the composed form."""
    function, launches = LINEAR[name]
    x = draw((3, 9), torch.float32, device).requires_grad_()
    y = function(x)
    near(y.detach(), getattr(reference, name)(exact(x.detach())), torch.float32)
    y.backward(torch.ones_like(y))
    assert kernels_chosen == launches

    scalar, start = weighed(function), x.detach()
    results = {
        "gradient": torch.func.grad(scalar),
        "second derivative": lambda x: torch.func.grad(lambda x: torch.func.grad(scalar)(x).sin().sum())(x),
        "tangent": lambda x: torch.func.jvp(scalar, (x,), (x.cos(),))[1],
        "mapped": lambda x: torch.func.vmap(torch.func.grad(scalar), in_dims=1)(x),
    }
    found = {kind: result(start) for kind, result in results.items()}
    found["compiled"] = torch.compile(scalar, fullgraph=True, backend="aot_eager")(start)
    kernels_chosen.clear()
    with pytest.MonkeyPatch.context() as patch:
        for room in (scan_api, decay_api):
            patch.setattr(room, "choose", lambda asked, requested: KernelBackend.torch)
        torch._dynamo.reset()
        results["compiled"] = scalar
        for kind, result in results.items():
            expected = result(start)
            assert torch.allclose(found[kind], expected, rtol=1e-4, atol=1e-5), kind
    assert not kernels_chosen


def test_opcheck(device) -> None:
    operators, x = torch.ops.gatespec, draw((3, 4), torch.float32, device)
    gate, matrix = x[..., None], draw((3, 4, 4), torch.float32, device)
    for operator, arguments in (
        (operators.cumulative, (x, True, False)),
        (operators.cumulative, (x.mT, False, True)),
        (operators.causal_forget_matrix, (x,)),
        (operators.causal_forget_matrix_backward, (matrix,)),
        (operators.dtilde_matrix, (gate, gate, "triton")),
        (operators.dtilde_matrix_backward, (matrix, gate, "triton")),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", ["rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix"])
def test_what_is_explained_is_what_is_chosen(name, device, launched) -> None:
    arguments = [draw((3, 4, 1), torch.float32, device)] * (2 if name == "dtilde_matrix" else 1)
    explained = torch_impl.explain_backend(name, *arguments)
    if device.type == "cpu":
        assert explained.chosen is KernelBackend.torch
        assert explained.against == {KernelBackend.triton: "torch is preferred"}
    getattr(torch_impl, name)(*arguments)
    assert bool(launched) is (explained.chosen is KernelBackend.triton)
    doubles = [x.double() for x in arguments]
    explained = torch_impl.explain_backend(name, *doubles)
    assert explained.chosen is KernelBackend.torch
    assert explained.against[KernelBackend.triton] == "it takes float32, float16, bfloat16, but the values are float64"


def test_rows() -> None:
    rows = {row.operation: row for row in (*scan_autograd.ROWS, *decay_autograd.ROWS)}
    assert set(rows) == {"rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix"}
    assert all("float64" in " ".join(row.reasons(Request(name, "cuda", "float64"))) for name, row in rows.items())
