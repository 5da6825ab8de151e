"""A GRU layer of each package as a function of NumPy arrays, with its gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

import jax_impl.interop.gru
import reference.interop.gru
import torch_impl.interop.gru
from reference.interop.gru_weights import GRUWeights
from tests.interop.rounding import assert_rounding


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a layer returned.

    Attributes:
        output: ``(B, S, features)``.
        state: ``(B, N, H)``.
        gradients: of ``Σ output·dy`` by name: `input`, and the parameters in the layout of `GRUWeights`; empty where
            the package has no automatic differentiation.
    """

    output: np.ndarray
    state: np.ndarray
    gradients: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a layer is called with.

    Attributes:
        x: ``(B, S, features)``, or packed ``(T, features)``.
        h0: ``(B, N, H)``; None means zeros.
        dy: cotangent of the output; None where no gradient is wanted.
        cu_seqlens: the packing.
    """

    x: np.ndarray
    h0: np.ndarray | None = None
    dy: np.ndarray | None = None
    cu_seqlens: np.ndarray | None = None

    def double(self) -> "Inputs":
        """The same in float64."""
        arrays = (None if array is None else array.astype(np.float64) for array in (self.x, self.h0, self.dy))
        x, h0, dy = arrays
        assert x is not None
        return Inputs(x=x, h0=h0, dy=dy, cu_seqlens=self.cu_seqlens)


def run_reference(weights: GRUWeights, inputs: Inputs) -> Result:
    gru = reference.interop.gru.gru_from_weights(weights)
    output, state = gru(inputs.x, inputs.h0, inputs.cu_seqlens)
    return Result(output=output, state=state, gradients={})


def run_torch(weights: GRUWeights, inputs: Inputs) -> Result:
    gru = torch_impl.interop.gru.gru_from_weights(weights)
    x = torch.tensor(inputs.x, requires_grad=True)
    h0, cu_seqlens = (None if a is None else torch.tensor(a) for a in (inputs.h0, inputs.cu_seqlens))
    output, state = gru(x, h0, cu_seqlens)
    gradients = {}
    if inputs.dy is not None:
        (output * torch.tensor(inputs.dy)).sum().backward()
        found = {name: parameter.grad for name, parameter in gru.named_parameters()} | {"input": x.grad}
        gradients = {name: gradient.numpy() for name, gradient in found.items() if gradient is not None}
        gradients["input_kernel"] = gradients.pop("input_projection.weight").T
        if "input_projection.bias" in gradients:
            gradients["input_bias"] = gradients.pop("input_projection.bias")
    return Result(output=output.detach().numpy(), state=state.detach().numpy(), gradients=gradients)


def run_jax(weights: GRUWeights, inputs: Inputs) -> Result:
    with jax.enable_x64(inputs.x.dtype == np.float64):
        gru, variables = jax_impl.interop.gru.gru_from_weights(weights)

        def loss(variables: Any, x: Any) -> Any:
            output, state = gru.apply(variables, x, inputs.h0, inputs.cu_seqlens)
            return (output * (0 if inputs.dy is None else inputs.dy)).sum(), (output, state)

        if inputs.dy is None:
            _, (output, state) = jax.jit(loss)(variables, inputs.x)
            return Result(output=np.asarray(output), state=np.asarray(state), gradients={})
        value_and_grad = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))
        (_, (output, state)), (found, dx) = value_and_grad(variables, inputs.x)
    params = {name: value for name, value in found["params"].items() if not isinstance(value, dict)}
    into = {f"input_{name}": value for name, value in found["params"]["input_projection"].items()}
    gradients = {name: np.asarray(value) for name, value in {**params, **into, "input": dx}.items()}
    return Result(output=np.asarray(output), state=np.asarray(state), gradients=gradients)


PACKAGES: dict[str, Callable[[GRUWeights, Inputs], Result]] = {
    "reference": run_reference,
    "torch_impl": run_torch,
    "jax_impl": run_jax,
}


def check(peer: Result, weights: Sequence[GRUWeights], given: Inputs) -> None:
    """The peer in float32, and ours in both dtypes, against ours in float64."""
    single, double = weights
    truth = PACKAGES["torch_impl"](double, given.double())
    assert truth.gradients.keys() == peer.gradients.keys()
    found = {f"{name}, float64": run(double, given.double()) for name, run in PACKAGES.items()}
    found |= {f"{name}, float32": PACKAGES[name](single, given) for name in ("torch_impl", "jax_impl")}
    for name, result in {**found, "peer": peer}.items():
        assert_rounding(result.output, truth.output, f"{name}: output")
        assert_rounding(result.state, truth.state, f"{name}: state")
        for argument, gradient in result.gradients.items():
            assert_rounding(gradient, truth.gradients[argument], f"{name}: {argument}")
