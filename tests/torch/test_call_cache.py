"""A call that was let through once is let through again, and no other with it."""

from typing import Any

import pytest
import torch

import torch_impl
from reference.arguments import MLSTMState
from torch_impl._call_cache import cached_by_signature


def step(dtype: torch.dtype = torch.float32, B: int = 2) -> list[Any]:
    q, k, v = torch.randn(3, B, 2, 4, dtype=dtype)
    i, f = torch.randn(2, B, 2, dtype=dtype)
    return [q, k, v, i, f, MLSTMState(torch.zeros(B, 2, 4, 4), torch.zeros(B, 2, 4), torch.zeros(B, 2))]


def test_a_check_is_made_once_for_arguments_that_look_alike() -> None:
    seen = []
    check = cached_by_signature(lambda *arguments: seen.append(arguments) or len(seen))
    assert check(*step()) == check(*step()) == 1
    assert check(*step(B=3)) == 2 and check(*step(torch.bfloat16)) == 3


@pytest.mark.parametrize("pair", [(1, True), (1, 1.0), (0.0, None), ("1", 1)])
def test_scalars_that_are_equal_are_not_the_same(pair: tuple[Any, Any]) -> None:
    check = cached_by_signature(lambda x: type(x))
    assert [check(x) for x in pair] == [type(x) for x in pair]


@pytest.mark.parametrize("argument", [[1], {}, object(), (torch.zeros(1),), torch.zeros(1).numpy()])
def test_what_is_no_tensor_and_no_scalar_is_looked_at_every_time(argument: Any) -> None:
    seen = []
    check = cached_by_signature(lambda x: seen.append(x))
    check(argument)
    check(argument)
    assert len(seen) == 2


def test_a_refusal_is_not_kept() -> None:
    def refuse(x: torch.Tensor) -> None:
        raise ValueError("no")

    check = cached_by_signature(refuse)
    for _ in "12":
        with pytest.raises(ValueError, match="no"):
            check(torch.zeros(1))


def test_a_bad_call_after_a_good_one_is_refused() -> None:
    q, k, v, i, f, state = step()
    for _ in "12":
        torch_impl.mlstm_step(q, k, v, i, f, state)
        with pytest.raises(ValueError, match=r"mlstm_step: `k` is f32\[2,2,3\]"):
            torch_impl.mlstm_step(q, k[..., :3], v, i, f, state)
        with pytest.raises(TypeError, match=r"`state\.C` is f64"):
            torch_impl.mlstm_step(q, k, v, i, f, state._replace(C=state.C.double()))
        with pytest.raises(ValueError, match=r"`eps` is -1\.0"):
            torch_impl.mlstm_step(q, k, v, i, f, state, eps=-1.0)
    x = [part.unsqueeze(1) for part in (q, k, v, i, f)]
    torch_impl.mlstm(*x)
    with pytest.raises(TypeError, match="`chunk_size` is True"):
        torch_impl.mlstm(*x, chunk_size=True)


def test_the_values_of_a_packing_are_looked_at_every_time() -> None:
    q, k, v, i, f, _ = step()
    cu_seqlens = torch.tensor([0, 1, 2])
    torch_impl.mlstm(q, k, v, i, f, cu_seqlens=cu_seqlens)
    with pytest.raises(ValueError, match="cu_seqlens"):
        torch_impl.mlstm(q, k, v, i, f, cu_seqlens=torch.tensor([0, 2, 1]))


def test_a_call_under_a_tracer_is_not_kept() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = []
    check = cached_by_signature(lambda x: seen.append(x))
    with FakeTensorMode():
        fake = torch.empty(3)
        check(fake)
        check(fake)
    assert len(seen) == 2
