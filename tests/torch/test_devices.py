"""Tensors of one call that lie on different devices are refused by name, before any work."""

import pytest
import torch

import torch_impl


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def tokens(*lead: int) -> dict[str, torch.Tensor]:
    shapes = {"q": (2, 3), "k": (2, 3), "v": (2, 4), "i": (2,), "f": (2,)}
    return {name: zeros(*lead, *shape) for name, shape in shapes.items()}


STATE = zeros(2, 2, 3, 4), zeros(2, 2, 3).to("meta"), zeros(2, 2)
X, W, GATE = zeros(2, 5, 1, 3), zeros(1, 3, 3), zeros(2, 5, 1)
GRU = {f"{of}{kind}": x for of in ("", "forget_", "reset_") for kind, x in (("input", X), ("weight", W))}
ONE_HEAD = {name: x[:, :, 0] for name, x in tokens(2, 5).items()} | {"config": {}}
CONTEXT = torch_impl.fwbw_forward(**ONE_HEAD)[1]
CALLS = [
    *(("mlstm", tokens(2, 5), name, {}, "q") for name in "kvif"),
    ("mlstm", tokens(2, 5), "initial_state.n", {"initial_state": STATE}, "q"),
    ("mlstm_step", tokens(2), "state.n", {"state": STATE}, "q"),
    ("mlstm", tokens(5), "cu_seqlens", {"cu_seqlens": torch.tensor([0, 2, 5], device="meta")}, "q"),
    ("gru", GRU, "weight", {}, "input"),
    ("gru", GRU, "input_state", {"input_state": zeros(2, 1, 3).to("meta")}, "input"),
    ("fwbw_forward", ONE_HEAD, "f", {}, "q"),
    ("fwbw_backward", {"ctx": CONTEXT, "dh": zeros(2, 5, 4), "config": {}}, "dh", {}, "q"),
    ("dtilde_matrix", {"igate": GATE, "fgate": GATE}, "fgate", {}, "igate"),
]
"""Functions, arguments on the CPU, the argument that lies elsewhere, how it is given, and what it must match."""


@pytest.mark.parametrize(("function", "arguments", "name", "given", "first"), CALLS)
def test_an_argument_on_another_device(function, arguments, name, given, first) -> None:
    arguments = arguments | (given or {name: arguments[name].to("meta")})
    with pytest.raises(ValueError) as error:
        getattr(torch_impl, function)(**arguments)
    said = str(error.value)
    assert said.startswith(f"{function}: `{name}` is ")
    assert said.endswith(f"] on meta; expected it on cpu to match `{first}`")


def test_a_packing_may_stay_on_the_host() -> None:
    arrays = {name: x.to("meta") for name, x in tokens(5).items()}
    assert torch_impl.mlstm(**arrays, cu_seqlens=torch.tensor([0, 2, 5])).shape == (5, 2, 4)
