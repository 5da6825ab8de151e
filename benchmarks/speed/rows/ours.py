"""`torch_impl` and `jax_impl`, with every backend by name."""

from typing import Any

from benchmarks.speed.contenders import Contender, Function, UnavailableError, imported
from benchmarks.speed.operations import TIMED, Case, grouped


def _mlstm(package: str, backend: str, case: Case) -> Function:
    module = imported(package)

    def mlstm(q: Any, k: Any, v: Any, i: Any, f: Any) -> tuple[Any]:
        return (module.mlstm(q, k, v, i, f, kernel_backend=backend),)

    return mlstm


def _step(package: str, backend: str, case: Case) -> Function:
    module = imported(package)

    def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> tuple[Any, ...]:
        h, state = module.mlstm_step(q, k, v, i, f, module.MLSTMState(C, n, m), kernel_backend=backend)
        return (h, *state)

    return mlstm_step


def _slstm(package: str, backend: str, case: Case) -> Function:
    module = imported(package)
    return lambda **arrays: (module.slstm(**arrays, kernel_backend=backend),)


def _gru(package: str, backend: str, case: Case) -> Function:
    module = imported(package)
    if case.N == 1 and package == "torch_impl":
        return _gru_layer(case, backend)
    options = TIMED[case.op].options

    def gru(**arrays: Any) -> tuple[Any]:
        x, projections, weights = grouped(arrays)
        # (B, S, N, H) · (N, H, H): one product for each head, over all tokens.
        lanes = x.reshape(case.tokens, case.N, case.K).swapaxes(0, 1)
        inputs = [(lanes @ projection).swapaxes(0, 1).reshape(x.shape) for projection in projections]
        pairs = (each for pair in zip(inputs, weights, strict=True) for each in pair)
        return (module.gru(*pairs, kernel_backend=backend, **options)[0],)

    return gru


def _gru_layer(case: Case, backend: str) -> Function:
    """One head as computed by ``torch_impl.GRU``, with the input projection and without the output projection."""
    torch, module = imported("torch"), imported("torch_impl")
    H = case.K
    options = {"add_bias": False, "gradient_clipping": None, **TIMED[case.op].options}
    layer = module.GRU(H, H, H, 1, 1, 1, 1, 1, 1, **options)
    layer.output_projection = torch.nn.Identity()

    def gru(**arrays: Any) -> tuple[Any]:
        x, projections, (weight, forget_weight, reset_weight) = grouped(arrays)
        parameters = {
            "input_projection.weight": torch.cat(projections, -1)[0].mT,
            "state_weight": weight,
            "forget_weight": forget_weight,
            "reset_weight": reset_weight,
        }
        y, _ = torch.func.functional_call(layer, parameters, (x.flatten(2),), {"kernel_backend": backend})
        return (y[:, :, None],)

    return gru


def _row(op: str, package: str, backend: str, load: Any) -> Contender:
    devices = ("cuda",) if backend in ("triton", "pallas") else ("cpu", "cuda")
    dtypes = ("bfloat16", "float16") if backend == "pallas" else ("float32", "bfloat16", "float16", "float64")

    def checked(case: Case, _: Any) -> Function:
        function = load(package, backend, case)
        names = [member.value for member in imported(package).KernelBackend]
        if backend not in names:
            raise UnavailableError(f"{package} has no backend {backend}; it has {', '.join(names)}")
        return function

    return Contender(f"{package} ({backend})", op, package.partition("_")[0], checked, devices, dtypes)


LOADED = (("mlstm", _mlstm), ("mlstm_step", _step), ("slstm", _slstm), ("gru", _gru), ("gru_reset_after", _gru))
CONTENDERS = [
    _row(op, package, backend, load)
    for op, load in LOADED
    for package, backends in (("torch_impl", ("torch", "triton")), ("jax_impl", ("xla", "pallas")))
    for backend in backends
]
