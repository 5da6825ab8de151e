"""Our kernels in the registries of mlstm_kernels: called directly, by `mLSTMBackend` and by `xLSTMLarge`."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_sequence_kernel, get_mlstm_step_kernel
from mlstm_kernels.torch.backend_module import mLSTMBackend, mLSTMBackendConfig
from xlstm.xlstm_large.model import xLSTMLarge, xLSTMLargeConfig

from tests.interop.head_first_cases import ARGUMENTS, STATES, case, specified
from tests.interop.rounding import assert_rounding
from torch_impl.interop.mlstm_kernels import KernelNames, register, unregister

NATIVE = {
    "chunkwise_kernel": "chunkwise--native_autograd",
    "sequence_kernel": "native_sequence__native",
    "step_kernel": "native",
}
OURS = {"chunkwise_kernel": "chunkwise--gatespec", "sequence_kernel": "gatespec", "step_kernel": "gatespec"}


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[KernelNames]:
    yield register()
    unregister()


def tensors(arrays: dict[str, np.ndarray], dtype: torch.dtype, requires_grad: bool = False) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array, dtype=dtype, requires_grad=requires_grad) for name, array in arrays.items()}


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize(("S", "chunk_size", "eps"), [(64, 16, 1e-6), (48, 48, 0.0), (32, 16, 0.3)])
def test_a_chunkwise_kernel_agrees_with_the_native_one(state: bool, S: int, chunk_size: int, eps: float) -> None:
    arrays = case(2, 3, S, 8, 5, state=state)
    h, last = specified(arrays, eps)
    for name in (OURS["chunkwise_kernel"], NATIVE["chunkwise_kernel"]):
        options = {"return_last_states": True, "chunk_size": chunk_size, "eps": eps}
        for dtype in (torch.float64, torch.float32):
            found, states = get_mlstm_kernel(name)(**tensors(arrays, dtype), **options)
            assert found.dtype is dtype
            assert_rounding(found, h, f"{name}: h")
            for letter, mine, expected in zip("cnm", states, last, strict=True):
                assert_rounding(mine, expected, f"{name}: {letter}")


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.3])
def test_a_parallel_kernel_agrees_with_the_native_one(eps: float) -> None:
    """Its m has no initial value, so that `eps` weighs differently from the chunkwise form, there and here."""
    arrays = case(2, 3, 37, 8, 5, state=False)
    empty = {name: np.zeros(shape) for name, shape in zip(STATES, ((2, 3, 8, 5), (2, 3, 8), (2, 3, 1)), strict=True)}
    exact, _ = specified(arrays | empty | {"m_initial": np.full((2, 3, 1), -np.inf)}, eps)
    for name in ("parallel--gatespec", "parallel--native_stablef_autograd"):
        for dtype in (torch.float64, torch.float32):
            # Where m is small, the normaliser is a sum that cancels, whose rounding grows by what cancelled.
            found = get_mlstm_kernel(name)(**tensors(arrays, dtype), eps=eps)
            assert_rounding(found, exact, f"{name}, {dtype}", units=256)
    if eps == 0.3:
        chunkwise = get_mlstm_kernel(OURS["chunkwise_kernel"])(**tensors(arrays, torch.float64), eps=eps)
        assert np.abs(chunkwise.numpy() - exact).max() > 1e-3


@pytest.mark.parametrize("S", [1, 7, 33])
def test_a_sequence_kernel_agrees_with_the_native_one(S: int) -> None:
    arrays = case(2, 3, S, 8, 5, state=True)
    h, last = specified(arrays, 1e-6)
    for name in (OURS["sequence_kernel"], NATIVE["sequence_kernel"]):
        for dtype in (torch.float64, torch.float32):
            kernel = get_mlstm_sequence_kernel(name)
            found, states = kernel(**tensors(arrays, dtype), return_last_states=True, dtype_state=dtype)
            assert_rounding(found, h, f"{name}: h")
            for letter, mine, expected in zip("cnm", states, last, strict=True):
                assert mine.dtype is dtype
                assert_rounding(mine, expected, f"{name}: {letter}")


@pytest.mark.parametrize("dtype_state", [torch.float32, torch.bfloat16])
def test_a_step_kernel_agrees_with_the_native_one(dtype_state: torch.dtype) -> None:
    arrays = case(2, 3, 1, 8, 5, state=True)
    h, last = specified(arrays, 1e-6)
    x = tensors(arrays, torch.float32)
    step = {name: x[name][:, :, 0] for name in "qkv"} | {name: x[name] for name in "if"}
    state = {name: x[f"{name}_initial"] for name in "cnm"}
    for name in (OURS["step_kernel"], NATIVE["step_kernel"]):
        found, states = get_mlstm_step_kernel(name)(**step, **state, eps=1e-6, dtype_state=dtype_state)
        assert {part.dtype for part in states} == {dtype_state}
        if dtype_state is torch.float32:
            assert_rounding(found, h[:, :, 0], f"{name}: h")
        for letter, mine, expected in zip("cnm", states, last, strict=True):
            # One rounding to the state's dtype.
            ours = torch.tensor(expected).to(dtype_state).double()
            allowed = 64 * torch.finfo(torch.float32).eps + torch.finfo(dtype_state).eps
            assert (mine.double() - ours).abs().max() <= allowed * ours.abs().max(), f"{name}: {letter}"


def gradients(kernel: Callable[..., Any], arrays: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Gradients of one random combination of h and of the states, with eps = 0."""
    rng = np.random.default_rng(9)
    x = tensors(arrays, dtype, requires_grad=True)
    h, states = kernel(**x, return_last_states=True, chunk_size=16, eps=0.0)
    loss = sum((part * torch.tensor(rng.normal(size=part.shape)).to(part)).sum() for part in (h, *states[:2]))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    return {name: np.zeros(t.shape) if t.grad is None else t.grad.numpy() for name, t in x.items()}


@pytest.mark.parametrize("state", [False, True])
def test_gradients_are_those_of_the_native_autograd_kernel(state: bool) -> None:
    arrays = case(2, 2, 48, 8, 5, state=state, seed=3)
    exact = gradients(get_mlstm_kernel("chunkwise--native_autograd"), arrays, torch.float64)
    for dtype in (torch.float64, torch.float32):
        found = gradients(get_mlstm_kernel("chunkwise--gatespec"), arrays, dtype)
        for name in exact:
            assert_rounding(found[name], exact[name], f"{name}, {dtype}", units=256)


def test_where_the_custom_backward_takes_the_normaliser_for_a_constant_ours_is_exact() -> None:
    """`native_custbw` leaves the normaliser out of the gradient of q; automatic differentiation does not, nor do we."""
    arrays = case(2, 2, 48, 8, 5, state=False, seed=3)

    def with_loss_of_h(name: str) -> np.ndarray:
        x = tensors(arrays, torch.float64, requires_grad=True)
        h = get_mlstm_kernel(name)(**x, chunk_size=16, eps=1e-6)
        (h * torch.tensor(np.random.default_rng(9).normal(size=h.shape))).sum().backward()
        assert x["q"].grad is not None
        return x["q"].grad.numpy()

    exact = with_loss_of_h("chunkwise--native_autograd")
    assert_rounding(with_loss_of_h("chunkwise--gatespec"), exact, "dq", units=256)
    assert np.abs(with_loss_of_h("chunkwise--native_custbw") - exact).max() > 1e-2 * np.abs(exact).max()


@pytest.mark.parametrize("S", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("state", [False, True])
def test_the_backend_in_inference_takes_any_length(S: int, state: bool) -> None:
    arrays = case(2, 3, S, 8, 5, state=state)
    exact, last = specified(arrays, 1e-6)
    settings = {"mode": "inference", "autocast_kernel_dtype": "float32", "chunk_size": 16}
    h, states = mLSTMBackend(mLSTMBackendConfig(**OURS, **settings))(**tensors(arrays, torch.float32))
    assert_rounding(h, exact, "h")
    for letter, mine, expected in zip("cnm", states, last, strict=True):
        assert_rounding(mine, expected, letter)


def test_a_registered_kernel_is_compiled_without_a_break() -> None:
    """Value and gradients under `torch.compile`, of a length that the chunks do not divide, then of another."""
    backend = mLSTMBackend(mLSTMBackendConfig(**OURS, mode="train", chunk_size=16, return_last_states=False))
    compiled = torch.compile(backend, fullgraph=True, backend="aot_eager")
    for S in (21, 34):
        x = [tensors(case(2, 3, S, 8, 5, state=False, seed=4), torch.float32, requires_grad=True) for _ in range(2)]
        dy = torch.randn(2, 3, S, 5, generator=torch.Generator().manual_seed(1))
        for run, arrays in zip((backend, compiled), x, strict=True):
            run(**arrays).backward(dy)
        for name in ARGUMENTS:
            plain, found = (arrays[name].grad for arrays in x)
            assert plain is not None and found is not None
            assert_rounding(found, plain, f"S = {S}: {name}")


def test_a_registered_step_is_compiled_without_a_break() -> None:
    arrays = case(2, 3, 1, 8, 5, state=True)
    x = tensors(arrays, torch.float32)
    call = {name: x[name][:, :, 0] for name in "qkv"} | {name: x[name] for name in "if"}
    call |= {name: x[f"{name}_initial"] for name in "cnm"}
    step = torch.compile(get_mlstm_step_kernel("gatespec"), fullgraph=True, backend="aot_eager")
    h, states = step(**call, eps=1e-6, dtype_state=torch.bfloat16)
    assert_rounding(h, specified(arrays, 1e-6)[0][:, :, 0], "h")
    assert {part.dtype for part in states} == {torch.bfloat16}


def test_under_autocast_the_kernel_dtype_is_the_one_asked_for() -> None:
    arrays = case(2, 3, 32, 8, 5, state=True)
    exact = specified(arrays, 1e-6)[0]
    for name, low in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        backend = mLSTMBackend(mLSTMBackendConfig(**OURS, autocast_kernel_dtype=name, chunk_size=16))
        with torch.autocast("cpu", torch.bfloat16):
            h, states = backend(**tensors(arrays, torch.float32))
        assert h.dtype is low and {part.dtype for part in states} == {torch.float32}
        error = np.abs(h.double().numpy() - exact).max() / np.abs(exact).max()
        assert error < 64 * torch.finfo(low).eps
        assert low is torch.float32 or error > 64 * torch.finfo(torch.float32).eps


def model(kernels: dict[str, str], mode: str, **settings: Any) -> xLSTMLarge:
    """A small model with weights that are the same for every choice of kernels, and norms in the model's dtype."""
    torch.manual_seed(0)
    sizes = {"embedding_dim": 64, "num_heads": 4, "num_blocks": 2, "vocab_size": 97, "chunk_size": 16}
    options = {"autocast_kernel_dtype": "float32", "norm_reduction_force_float32": False} | settings
    config = xLSTMLargeConfig(**sizes, **kernels, mode=mode, return_last_states=True, **options)
    made = xLSTMLarge(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        if parameter.ndim == 1:
            parameter.data.normal_(generator=generator)
    return made


@pytest.mark.parametrize("S", [1, 5, 17])
def test_xlstm_large_generates_the_same_tokens(S: int) -> None:
    prompt = torch.randint(97, (2, S), generator=torch.Generator().manual_seed(S))
    with torch.no_grad():
        ours, _ = model(OURS, "inference").generate(prompt, max_length=24)
        theirs, _ = model(NATIVE, "inference").generate(prompt, max_length=24)
    assert ours.shape[1] >= 24 and ours.unique().numel() > 3
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_training_step_of_xlstm_large(eps: float) -> None:
    """Our gradient holds m inside `eps` constant: with an `eps` it differs from the peer's by the order of `eps`."""
    tokens = torch.randint(97, (2, 48), generator=torch.Generator().manual_seed(2))

    def losses_and_gradients(
        kernels: dict[str, str], dtype: torch.dtype
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        made = model(kernels, "train", eps=eps).to(dtype)
        logits, _ = made(tokens)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in made.named_parameters() if p.grad is not None}

    exact_loss, exact = losses_and_gradients(NATIVE, torch.float64)
    for dtype in (torch.float64, torch.float32):
        loss, found = losses_and_gradients(OURS, dtype)
        assert_rounding(loss, exact_loss, "loss")
        assert found.keys() == exact.keys()
        for name, gradient in found.items():
            units = 1024 if eps == 0 or dtype is torch.float32 else 1e3 * eps / torch.finfo(dtype).eps
            assert_rounding(gradient, exact[name], f"{name}, {dtype}", units=units)


def test_the_names_and_what_is_refused() -> None:
    names = register("gatespec-torch", kernel_backend="torch")
    assert names == KernelNames(
        chunkwise_kernel="chunkwise--gatespec-torch",
        parallel_kernel="parallel--gatespec-torch",
        sequence_kernel="gatespec-torch",
        step_kernel="gatespec-torch",
    )
    unregister("gatespec-torch")
    with pytest.raises(ValueError, match="Unknown mlstm kernel backend name: gatespec-torch"):
        get_mlstm_kernel("chunkwise--gatespec-torch")
    with pytest.raises(ValueError, match="unregister: `name` is 'gatespec-torch'; expected a chunkwise kernel"):
        unregister("gatespec-torch")
    with pytest.raises(
        ValueError, match="register: `name` is 'native_autograd'; expected one that no chunkwise kernel"
    ):
        register("native_autograd")
    with pytest.raises(ValueError, match="register: `name` is 'a--b'; expected a name without '--'"):
        register("a--b")


def test_bad_calls_are_refused_by_name() -> None:
    x = tensors(case(2, 3, 4, 8, 5, state=True), torch.float32)
    chunkwise, parallel = get_mlstm_kernel("chunkwise--gatespec"), get_mlstm_kernel("parallel--gatespec")
    with pytest.raises(ValueError, match=r"chunkwise--gatespec: `m` is f32\[2,3\]; expected \[B, N, 1\]"):
        chunkwise(**x | {"m_initial": x["m_initial"][..., 0]})
    with pytest.raises(ValueError, match=r"chunkwise--gatespec: `n` is None; expected an array"):
        chunkwise(**x | {"n_initial": None})
    with pytest.raises(ValueError, match=r"chunkwise--gatespec: `q` is f32\[2,3,4\]; expected \[B, N, S, ·\]"):
        chunkwise(**x | {"q": x["q"][..., 0]})
    with pytest.raises(ValueError, match=r"parallel--gatespec: `c_initial` is given; expected None"):
        parallel(**x)
    with pytest.raises(ValueError, match=r"parallel--gatespec: `return_last_states` is True; expected False"):
        parallel(**{name: x[name] for name in ARGUMENTS}, return_last_states=True)
    with pytest.raises(TypeError, match="normalize"):
        chunkwise(**x, normalize=True)
