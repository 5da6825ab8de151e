"""Nonsense in each argument of the bridges to other packages: an error that names the function and the argument."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reference.interop.gru import (
    GRUWeights,
    gru_from_weights,
    gru_weights_from_flax,
    gru_weights_from_keras,
    gru_weights_from_onnx,
    gru_weights_from_torch,
    gru_weights_from_xma,
)
from reference.interop.kernel_registries import register_kernels, unregister_kernels
from reference.interop.slstm import SLSTMWeights, slstm_from_weights, slstm_weights_from_xlstm

F, H = 3, 4
NONSENSE = [None, "x", 7, -1.5, float("nan"), b"\xff", [], {}, object(), np.array("x"), np.ones(3), np.arange(3), True]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


KERAS = {"units": H, "use_bias": True, "reset_after": False, "activation": "tanh", "recurrent_activation": "sigmoid"}
ALL_KERAS = {
    **KERAS, "dropout": 0.0, "recurrent_dropout": 0.0, "go_backwards": False, "stateful": False,
    "zero_output_for_mask": False, "time_major": False, "dtype": "float32",
}  # fmt: skip
ONNX = {
    "hidden_size": H, "direction": b"forward", "activations": [b"Sigmoid", b"Tanh"], "layout": 1, "activation_beta": [],
    "linear_before_reset": 0, "activation_alpha": [],
}  # fmt: skip
XMA = {
    "input_projection.weight": ones(3 * H, F), "output_projection.weight": ones(5, H), "state_weight": ones(1, H, H),
    "forget_weight": ones(1, H, H), "reset_weight": ones(1, H, H),
}  # fmt: skip
TORCH = {
    "weight_ih_l0": ones(3 * H, F), "weight_hh_l0": ones(3 * H, H),
    "bias_ih_l0": ones(3 * H), "bias_hh_l0": ones(3 * H),
}  # fmt: skip
FLAX = {
    **{name: {"kernel": ones(F, H), "bias": ones(H)} for name in ("ir", "iz", "in")},
    **{name: {"kernel": ones(H, H)} for name in ("hr", "hz")},
    "hn": {"kernel": ones(H, H), "bias": ones(H)},
}
HEADS = {"num_input_heads": 1, "num_forget_input_heads": 1, "num_reset_input_heads": 1}


def in_config(config: dict[str, Any]) -> GRUWeights:
    return gru_weights_from_keras([ones(F, 3 * H), ones(H, 3 * H), ones(3 * H)], config)


LAYER: dict[str, Any] = dict(
    input_kernel=ones(F, 3 * H), **{name: ones(1, H, H) for name in XMA if name.endswith("_weight")}
)
XLSTM = {
    **{f"{name}.weight": ones(1, H, H) for name in ("fgate", "igate", "zgate", "ogate")},
    "slstm_cell._recurrent_kernel_": ones(1, 4 * H, H),
    "slstm_cell._bias_": ones(4 * H),
}
SLSTM: dict[str, Any] = {"input_kernel": ones(F, 4 * H), **{f"weight_{name}": ones(1, H, H) for name in "zifo"}}
WEIGHTS: dict[str, tuple[Callable, dict[str, Any]]] = {
    "gru_weights_from_keras": (
        gru_weights_from_keras,
        {"weights": [ones(F, 3 * H), ones(H, 3 * H), ones(3 * H)], "config": KERAS},
    ),
    "gru_weights_from_onnx": (
        gru_weights_from_onnx,
        {"W": ones(1, 3 * H, F), "R": ones(1, 3 * H, H), "B": ones(1, 6 * H), "attributes": ONNX},
    ),
    "gru_weights_from_xma": (
        gru_weights_from_xma,
        {"state_dict": XMA, **HEADS, "gradient_clipping": 1.0, "prefix": ""},
    ),
    "gru_weights_from_torch": (
        gru_weights_from_torch,
        {"state_dict": TORCH, "layer": 0, "reverse": False, "prefix": ""},
    ),
    "gru_weights_from_flax": (gru_weights_from_flax, {"params": FLAX}),
    "GRUWeights": (
        GRUWeights,
        {
            **LAYER,
            **HEADS,
            "input_bias": ones(3 * H),
            "recurrent_bias": ones(1, H),
            "gradient_clipping": 1.0,
            "reset_after": True,
        },
    ),
    "slstm_weights_from_xlstm": (slstm_weights_from_xlstm, {"state_dict": XLSTM, "prefix": ""}),
    "SLSTMWeights": (
        SLSTMWeights,
        {
            **SLSTM,
            "input_bias": ones(4 * H),
            "output_kernel": ones(H, 2),
            "output_bias": ones(2),
            "gradient_clipping": 1.0,
            "forget_gate": "exp",
        },
    ),
    "slstm_from_weights": (slstm_from_weights, {"weights": SLSTMWeights(**SLSTM)}),
    "gru_from_weights": (gru_from_weights, {"weights": GRUWeights(**LAYER)}),
}
LEGAL = {
    # None leaves them out, and a mapping without an entry has the defaults.
    "gru_weights_from_onnx": {"B": [None], "attributes": [None, {}]},
    "gru_weights_from_xma": {"gradient_clipping": [None, 7, -1.5], "prefix": []},
    "slstm_weights_from_xlstm": {"prefix": []},
    "SLSTMWeights": {"input_bias": [None], "output_bias": [None], "gradient_clipping": [None, 7, -1.5]},
    "GRUWeights": {
        "input_bias": [None],
        "recurrent_bias": [None],
        "gradient_clipping": [None, 7, -1.5],
        "reset_after": [True],
    },
}


def accepted(function: str, argument: str, value: Any) -> bool:
    return any(type(value) is type(each) and value == each for each in LEGAL.get(function, {}).get(argument, ()))


@pytest.mark.parametrize("function", WEIGHTS)
def test_weights_of_a_layer(function: str) -> None:
    call, arguments = WEIGHTS[function]
    call(**arguments)
    for name in arguments:
        for value in NONSENSE:
            if not accepted(function, name, value) and not (name.startswith("num_") and type(value) is int):
                with pytest.raises((TypeError, ValueError), match=rf"^{re.escape(function)}: `[\w.'\[\]]+` is "):
                    call(**{**arguments, name: value})


@pytest.mark.parametrize(
    ("function", "call", "settings", "place", "legal"),
    [
        ("gru_weights_from_keras", in_config, ALL_KERAS, "config", {"name": NONSENSE, "use_bias": [True]}),
        (
            "gru_weights_from_onnx",
            lambda attributes: gru_weights_from_onnx(ones(1, 3 * H, F), ones(1, 3 * H, H), None, attributes),
            ONNX,
            "attributes",
            {"layout": [True], "linear_before_reset": [True], "activation_alpha": [[]], "activation_beta": [[]]},
        ),
    ],
)
def test_settings_of_a_gru(function: str, call: Callable, settings: dict, place: str, legal: dict) -> None:
    call(settings)
    for name in (*settings, "unheard"):
        for value in NONSENSE:
            if not any(type(value) is type(each) and value == each for each in legal.get(name, ())):
                with pytest.raises((TypeError, ValueError), match=rf"^{function}: `({place}\.{name}|kernel|bias)` is "):
                    call({**settings, name: value})


def test_names_of_registries() -> None:
    for name in (None, 7, b"x", [], {}, object()):
        with pytest.raises((TypeError, ValueError), match=r"^register: `name` is "):
            register_kernels(name, {"step": {}}, {"step": print})  # pyright: ignore[reportArgumentType]
        with pytest.raises((TypeError, ValueError), match=r"^unregister: `name` is "):
            unregister_kernels(name, {"step": {}}, {"step": int})  # pyright: ignore[reportArgumentType]


B, N, S, K, V = 1, 2, 5, 3, 4
SEQUENCES = {"q": (B, N, S, K), "k": (B, N, S, K), "v": (B, N, S, V), "i": (B, N, S), "f": (B, N, S)}
STEPS = {"q": (B, N, K), "k": (B, N, K), "v": (B, N, V), "i": (B, N, 1), "f": (B, N, 1)}
STATE = {"c": (B, N, K, V), "n": (B, N, K), "m": (B, N, 1)}
INITIAL = {f"{name}_initial": shape for name, shape in STATE.items()}


def kernels(framework: str) -> Iterator[tuple[str, Callable, dict[str, tuple[int, ...]], dict[str, Any]]]:
    """Name, kernel, shapes of arrays, and other arguments."""
    module = import_module(f"{framework}_impl.interop.mlstm_kernels")
    options = {"eps": 1e-6, "chunk_size": 4}
    initial = INITIAL if framework == "torch" else {**INITIAL, "m_initial": (B, N)}
    dtype = {"autocast_kernel_dtype": import_module(framework if framework == "torch" else "jax.numpy").float32}
    state_dtype = {"eps": 1e-6, "dtype_state": dtype["autocast_kernel_dtype"]}
    yield "Chunkwise", module.Chunkwise(kernel_backend=None), {**SEQUENCES, **initial}, {**options, **dtype}
    yield "Parallel", module.Parallel(kernel_backend=None), SEQUENCES, {**options, **dtype}
    yield "Step", module.Step(kernel_backend=None), {**STEPS, **STATE}, state_dtype
    if framework == "torch":
        yield "Sequence", module.Sequence(kernel_backend=None), {**SEQUENCES, **initial}, state_dtype


def legal_in_kernels(framework: str, name: str, value: Any) -> bool:
    plain = None if value is None else value if isinstance(value, bool | int | float | str) else "other"
    if name == "eps":
        return plain == 7 and type(value) is int
    if name == "chunk_size":
        return value is None or (plain == 7 and type(value) is int)
    if name in ("autocast_kernel_dtype", "dtype_state"):
        return value is None
    return False


@pytest.mark.parametrize("framework", [name for name in ("torch", "jax") if find_spec(name)])
def test_kernels_in_registries(framework: str) -> None:
    library = import_module("torch" if framework == "torch" else "jax.numpy")
    for form, kernel, shapes, options in kernels(framework):
        arrays = {name: library.ones(shape) for name, shape in shapes.items()}
        kernel(**arrays, **options)
        # NumPy arrays are foreign to PyTorch alone.
        foreign = [np.ones(3, np.float32)] if framework == "jax" else []
        for name in (*arrays, *options):
            integers = [library.ones(shapes[name], dtype=library.int32)] if name in arrays else []
            same = [np.ones(shapes[name], np.float32)] if name in arrays and framework == "torch" else []
            for value in (*NONSENSE, *integers, *same, *foreign):
                if legal_in_kernels(framework, name, value):
                    continue
                with pytest.raises((TypeError, ValueError), match=r"^[\w-]+: `[\w.]+` is "):
                    kernel(**{**arrays, **options, name: value})
                    pytest.fail(f"{form}: {name} = {value!r} is accepted")


@pytest.mark.skipif(not find_spec("torch"), reason="torch")
def test_a_model_of_transformers() -> None:
    import torch

    from torch_impl.interop.transformers import install, uninstall

    class Kernels(torch.nn.Module):
        def forward(self, q: Any) -> None: ...

    class Layer(torch.nn.Module):
        def __init__(self, **changed: Any) -> None:
            super().__init__()
            self.blocks = self.embeddings = torch.nn.Module()
            self.mlstm_backend = Kernels()
            fields = {
                "chunkwise_kernel": "chunkwise--native", "mode": "inference", "chunk_size": 64, "eps": 1e-6,
                "return_last_states": True, "autocast_kernel_dtype": "float32", "inference_state_dtype": "float32",
            }  # fmt: skip
            vars(self.mlstm_backend)["config"] = SimpleNamespace(
                **{k: v for k, v in (fields | changed).items() if v != "gone"}
            )

    for value in NONSENSE:
        for function in (install, uninstall):
            with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: `model` is "):
                function(value)
        if value is not None:
            with pytest.raises((TypeError, ValueError), match=r"^install: `kernel_backend` is "):
                install(Layer(), kernel_backend=value)
    for name in ("chunkwise_kernel", "mode", "autocast_kernel_dtype", "inference_state_dtype"):
        for value in ("gone", None, 7, [], b"\xff", "x"):
            with pytest.raises(ValueError, match=rf"^install: `config\.{name}` is "):
                install(Layer(**{name: value}))
    backend: Any = install(Layer()).mlstm_backend
    arrays = {name: torch.ones(shape) for name, shape in {**SEQUENCES, **INITIAL}.items()}
    one = {name: x[:, :, :1] if name in SEQUENCES else x for name, x in arrays.items()}
    for given in (arrays, one):
        backend(**given)
        for name in given:
            for value in (*NONSENSE, np.ones(given[name].shape, np.float32), given[name].int()):
                with pytest.raises((TypeError, ValueError), match=r"^[\w-]+: `[\w.]+` is "):
                    backend(**{**given, name: value})
