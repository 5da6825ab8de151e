"""The mLSTM over shards on real devices, as `test_shards` asks it: eight CPU devices of JAX, or gloo processes.

`JAX` and `TORCH` have ``RANKS``, a strategy ``cases()``, faults ``FAULTS`` of their own code, and ``running(fault)``, a
context whose function takes a case and its values to what the devices together give (`Whole`).
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from hypothesis import strategies as st

from reference import MLSTMState
from tests.calls.shard_cases import NAMES, ShardCase, Values, Whole, cases
from tests.suite.mutants.mutant import Mutant, mutants


def with_fault(module: ModuleType, fault: Mutant) -> ModuleType:
    """A copy of a module that has the fault in it; nobody uses it yet."""
    assert module.__file__ is not None
    copy = ModuleType(module.__name__)
    source = Path(module.__file__).read_text(encoding="utf-8")
    exec(compile(fault.applied(source), module.__file__, "exec"), copy.__dict__)
    return copy


class JAX:
    """`jax_impl.mlstm` inside ``shard_map`` over four devices, whose shards have equal lengths."""

    RANKS, STEPS, SEQUENCES = 4, 12, 4
    CUTS = (3, 6, 9)
    TABLE = (
        ShardCase(STEPS, CUTS, None, given=False, seed=1),
        ShardCase(STEPS, CUTS, (0, 0, 3, 12, 12), seed=2),
        ShardCase(STEPS, CUTS, (0, 3, 6, 10, 12), "resets", seed=3),
        # The memory of a device outweighs the writes of the next one.
        ShardCase(STEPS, CUTS, (0, 12, 12, 12, 12), "silent", seed=4),
    )
    FAULTS = mutants("""
        @ mlstm _mlstm/sequence_parallel.py incoming

        summaries combined in the wrong order
        - combine(earlier, before)
        + combine(before, earlier)

        shard's cotangent dropped
        - _packed(own)
        + jax.lax.stop_gradient(_packed(own))

        @ mlstm _mlstm/sequence_parallel.py combine

        stabiliser not rescaled
        - gain[..., None, None] * later.state.C
        + later.state.C

        @ mlstm _mlstm/sequence_parallel.py sharded

        border sequence leaks into its neighbour
        - (indices(arguments.B) == of_first) & (cu_seqlens[of_first] < begin)
        + indices(arguments.B) == of_first
    """)

    @classmethod
    def cases(cls) -> st.SearchStrategy[ShardCase]:
        # A packing's bounds are traced, so that all of them, and all dense sequences, share a compiled program each.
        fixed = st.just(cls.STEPS), st.just(cls.CUTS)
        drawn = st.one_of(cases(*fixed, packed=cls.SEQUENCES), cases(*fixed, packed=0))
        return drawn.map(lambda case: ShardCase(**{**vars(case), "given": case.bounds is not None}))

    @classmethod
    @contextmanager
    def running(cls, fault: Mutant | None) -> Iterator[Callable[[ShardCase, Values], Whole]]:
        import jax

        from jax_impl._mlstm import autograd

        healthy = autograd.sequence_parallel
        if fault is not None:
            autograd.sequence_parallel = with_fault(healthy, fault)
            jax.clear_caches()
        program = functools.cache(cls._program)
        try:
            yield lambda case, x: cls._call(program, case, x)
        finally:
            if fault is not None:
                autograd.sequence_parallel = healthy
                jax.clear_caches()

    @classmethod
    def _program(cls, packed: bool) -> Callable:
        import jax
        from jax.sharding import AxisType
        from jax.sharding import PartitionSpec as P

        import jax_impl

        mesh = jax.make_mesh((cls.RANKS,), ("sp",), axis_types=(AxisType.Auto,), devices=jax.devices()[: cls.RANKS])
        steps = P("sp") if packed else P(None, "sp")

        def local(tokens, initial, bounds):
            options = {"initial_state": initial, "cu_seqlens": bounds, "eps": 0.1, "sequence_axis": "sp"}
            return jax_impl.mlstm(*tokens, return_state=True, **options)

        sharded = jax.shard_map(local, mesh=mesh, in_specs=([steps] * 5, P(), P()), out_specs=(steps, P()))

        @jax.jit
        def both(tokens, initial, bounds, cotangents):
            results, pull_back = jax.vjp(lambda x, s: sharded(x, s, bounds), tokens, initial)
            return results, pull_back(cotangents)

        return both

    @staticmethod
    def _call(program: Callable, case: ShardCase, x: Values) -> Whole:
        bounds = None if case.bounds is None else np.array(case.bounds, np.int32)
        found = program(case.bounds is not None)(x.tokens, x.initial, bounds, (x.dh, x.dstate))
        (h, state), (tokens, initial) = found
        gradients: dict[str, Any] = dict(zip(NAMES, map(np.asarray, tokens), strict=True))
        gradients["initial_state"] = None if initial is None else [*map(np.asarray, initial)]
        return Whole(np.asarray(h), MLSTMState(*map(np.asarray, state)), gradients)


class TORCH:
    """`torch_impl.mlstm` on three gloo processes, whose shards have any lengths. They run until the test ends."""

    RANKS = 3
    TABLE = (
        ShardCase(9, (2, 2), given=False, seed=1),
        ShardCase(10, (3, 7), (0, 0, 3, 10), seed=2),
        ShardCase(11, (4, 8), (0, 4, 8, 8, 11), "resets", seed=3),
        # The memory of the first rank outweighs the single step of the second.
        ShardCase(9, (5, 6), (0, 9), seed=4),
    )
    FAULTS = mutants("""
        @ mlstm _mlstm/sequence_parallel.py incoming

        summaries combined in the wrong order
        - combine(Summary(*earlier), Summary(*before))
        + combine(Summary(*before), Summary(*earlier))

        shard's cotangent dropped
        - _packed(own)
        + _packed(own).detach()

        @ mlstm _mlstm/sequence_parallel.py combine

        stabiliser not rescaled
        - gain[..., None, None] * later.C
        + later.C

        @ mlstm _mlstm/sequence_parallel.py sharded

        border sequence leaks into its neighbour
        - crosses & (bounds[of_first] < begin)
        + crosses
    """)

    @classmethod
    def cases(cls) -> st.SearchStrategy[ShardCase]:
        steps = st.integers(0, 12)
        return steps.flatmap(
            lambda S: cases(
                st.just(S),
                st.lists(st.integers(0, S), min_size=cls.RANKS - 1, max_size=cls.RANKS - 1).map(
                    lambda cuts: tuple(sorted(cuts))
                ),
            )
        )

    @classmethod
    @contextmanager
    def running(cls, fault: Mutant | None) -> Iterator[Callable[[ShardCase, Values], Whole]]:
        yield lambda case, x: cls._call(_processes(cls.RANKS), fault, case, x)

    @staticmethod
    def _call(pipes: list, fault: Mutant | None, case: ShardCase, x: Values) -> Whole:
        for pipe in pipes:
            pipe.send((fault, case, x))
        answers = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(60):
                raise TimeoutError(f"rank {rank} did not answer")
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, str):
                raise RuntimeError(answer)
        parts, states, initials = zip(*answers, strict=True)
        for same in (states, initials):
            assert all(np.array_equal(one, other) for each in same for one, other in zip(each, same[0], strict=True)), (
                "ranks disagree about a replicated array"
            )
        h, *gradients = (case.joined(each) for each in zip(*parts, strict=True))
        found: dict[str, Any] = dict(zip(NAMES, gradients, strict=True)) | {"initial_state": initials[0] or None}
        return Whole(h, MLSTMState(*states[0]), found)


@functools.cache
def _processes(ranks: int) -> list:
    """Pipes to processes that serve calls until the pipe is closed; they end with this process."""
    import torch

    from tests.torch.processes import free_port

    context, port, pipes = torch.multiprocessing.get_context("spawn"), free_port(), []
    for rank in range(ranks):
        here, there = context.Pipe()
        context.Process(target=_serve, args=(rank, ranks, port, there), daemon=True).start()
        pipes.append(here)
    return pipes


def _serve(rank: int, ranks: int, port: int, pipe: Any) -> None:
    from datetime import timedelta

    import torch

    from torch_impl._mlstm import api, sequence_parallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    healthy = api.sharded
    while True:
        fault, case, x = pipe.recv()
        try:
            api.sharded = healthy if fault is None else with_fault(sequence_parallel, fault).sharded
            pipe.send(_on_rank(rank, case, x))
        except Exception as error:
            pipe.send(f"rank {rank}: {type(error).__name__}: {error}")


def _on_rank(rank: int, case: ShardCase, x: Values) -> tuple:
    """This rank's h and gradients of tokens, the final state, and the gradients of the initial state."""
    import torch

    from torch_impl import mlstm

    leaves = [torch.tensor(case.shards(part)[rank]).requires_grad_() for part in x.tokens]
    leaves += [torch.tensor(part).requires_grad_() for part in x.initial or ()]
    bounds = None if case.bounds is None else torch.tensor(case.bounds)
    h, last = mlstm(
        *leaves[:5], initial_state=MLSTMState(*leaves[5:]) if x.initial else None, return_state=True,
        cu_seqlens=bounds, eps=0.1, sequence_group=torch.distributed.group.WORLD,
    )  # fmt: skip
    cotangents = [torch.tensor(part) for part in (case.shards(x.dh)[rank], *x.dstate)]
    found = [part.numpy() for part in torch.autograd.grad([h, *last], leaves, cotangents)]
    return [h.detach().numpy(), *found[:5]], [part.detach().numpy() for part in last], found[5:]
