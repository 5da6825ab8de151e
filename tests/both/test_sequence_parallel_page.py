"""``docs/sequence-parallel.md``: its script runs on two processes, and its table is what programs and calls send."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grids import larger

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sequence-parallel.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
N, K, V = 8, 256, 512
"""The sizes of the table's layer."""


def table():
    """Number of devices → messages, MB sent, MB of an all-gather."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    return {int(devices): (int(messages), float(sent), float(gathered)) for devices, messages, sent, gathered in rows}


def run_on_two_ranks(script: str, saves: str, directory: Path) -> None:
    """Run a script of the page under torchrun, with a line before its last one that saves what it computed."""
    end = "torch.distributed.destroy_process_group()\n"
    assert script.endswith(end)
    (directory / "sharded.py").write_text(script.replace(end, saves + end), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "sharded.py"]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_script_is_run_here():
    assert len(SCRIPTS) == 2


def test_the_slstm_of_sharded_heads_is_that_of_all_heads(tmp_path):
    torch = pytest.importorskip("torch")
    import torch_impl
    from tests.torch.loops import relative_error

    saves = "h = h.full_tensor()\ntorch.save(h, f'{torch.distributed.get_rank()}.pt')\n"
    run_on_two_ranks(SCRIPTS[1], saves, tmp_path)
    torch.manual_seed(0)
    x, weights = torch.randn(4, 2, 50, 4, 8), torch.randn(4, 4, 8, 8) / 8**0.5
    whole = torch_impl.slstm(*x, *weights)
    assert all(relative_error(torch.load(tmp_path / f"{rank}.pt"), whole) < 1e-6 for rank in range(2))


def test_the_script_gives_what_the_whole_sequence_gives(tmp_path):
    """On two ranks, with shards of 251 and 250 steps: the gradients of q add up to the whole."""
    torch = pytest.importorskip("torch")
    import torch_impl
    from tests.torch.loops import relative_error

    run_on_two_ranks(SCRIPTS[0], "torch.save((q.grad, loss.detach()), f'{rank}.pt')\n", tmp_path)

    torch.manual_seed(0)
    B, S, heads, size = 2, 501, 4, 16
    q, k, v = (x.requires_grad_() for x in torch.randn(3, B, S, heads, size))
    i, f = torch.randn(2, B, S, heads)
    h, state = torch_impl.mlstm(q, k, v, i, f + 3, return_state=True)
    (h.square().sum() + state.C.square().sum()).backward()
    gradients, losses = zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in range(2)), strict=True)
    assert relative_error(torch.cat(gradients, 1), q.grad) < 1e-5
    whole = h.square().sum() + 2 * state.C.square().sum()  # each rank's loss has the term of the state
    assert relative_error(torch.stack(losses).sum(), whole.detach()) < 1e-5


@pytest.mark.grid
@pytest.mark.parametrize("devices", table())
def test_the_table_is_what_a_program_sends(devices):
    jax = pytest.importorskip("jax")
    from jax.sharding import AbstractMesh, AxisType
    from jax.sharding import PartitionSpec as P

    import jax_impl

    steps = P(None, "sp")
    mesh = AbstractMesh((devices,), ("sp",), axis_types=(AxisType.Auto,))
    function = jax.shard_map(
        lambda *x: jax_impl.mlstm(*x, sequence_axis="sp"), mesh=mesh, in_specs=(steps,) * 5, out_specs=steps
    )
    shapes = [(1, 2 * devices, N, *width) for width in ((K,), (K,), (V,), (), ())]
    arguments = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]

    def both(x, dh):
        h, pull_back = jax.vjp(function, *x)
        return h, pull_back(dh)

    def sent(function, *arguments):
        program = str(jax.make_jaxpr(function)(*arguments))
        return [size.split(",") for size in re.findall(r":f32\[([\d,]*)\](?:\{\S*\})? = ppermute\[", program)]

    messages, megabytes, gathered = table()[devices]
    summary = N * (K * V + K + 3)
    forward = sent(lambda *x: function(*x), *arguments)
    assert [math.prod(map(int, sizes)) for sizes in forward] == [summary] * messages
    assert len(sent(both, arguments, arguments[2])) == 2 * messages
    assert megabytes == round(messages * summary * 4 / 1e6, 1)
    assert gathered == round((devices - 1) * summary * 4 / 1e6, 1)


def planned_memory(devices, S, gradient):
    """The bytes that XLA plans on each of so many devices."""
    jax = pytest.importorskip("jax")
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jax_impl

    heads, size = 4, 64
    mesh = jax.make_mesh((devices,), ("sp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    steps = P(None, "sp")
    sharding = NamedSharding(mesh, steps) if devices > 1 else None
    shapes = [(1, S, heads, *width) for width in ((size,), (size,), (size,), (), ())]
    x = [jax.ShapeDtypeStruct(shape, "float32", sharding=sharding) for shape in shapes]

    def whole(*x):
        return jax_impl.mlstm(*x)

    sharded = jax.shard_map(
        lambda *x: jax_impl.mlstm(*x, sequence_axis="sp"), mesh=mesh, in_specs=(steps,) * 5, out_specs=steps
    )
    function = sharded if devices > 1 else whole

    def both(x, dh):
        h, pull_back = jax.vjp(function, *x)
        return h, pull_back(dh)

    lowered = jax.jit(both).lower(x, x[2]) if gradient else jax.jit(function).lower(*x)
    plan = lowered.compile().memory_analysis()
    return plan.temp_size_in_bytes + plan.argument_size_in_bytes + plan.output_size_in_bytes


@pytest.mark.grid
@pytest.mark.parametrize("gradient", [False, True])
def test_memory_of_a_device(gradient):
    """That XLA plans on a device of eight: less than a quarter of the unsharded call's, as the page says."""
    share = planned_memory(8, 131072, gradient) / planned_memory(1, 131072, gradient)
    shown = {False: r"(\d+) % of the unsharded call's memory for the value", True: r"and (\d+) % for both passes"}
    (percent,) = re.findall(shown[gradient], " ".join(PAGE.split()))
    assert share < 0.25 and abs(100 * share - int(percent)) < 1


def memory_table():
    """Number of devices → MB, for the value and both passes, each with two lengths."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    return {int(devices): tuple(map(int, numbers)) for devices, *numbers in rows}


def test_memory_falls_with_the_number_of_devices():
    """In the page's table, from two devices on: as 1/P for one length, and not at all for one length of a shard."""
    shown = memory_table()
    assert list(shown) == [1, 2, 4, 8]
    for devices, numbers in shown.items():
        for at in (0, 2):
            assert devices == 1 or abs(numbers[at] * devices - shown[8][at] * 8) <= 8
            assert devices == 1 or numbers[at + 1] == shown[8][at] == shown[8][at + 1]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("devices", "gradient"),
    [larger(devices, gradient) for devices in (1, 2, 8) for gradient in (False, True)] + [(4, False)],
)
def test_the_table_of_memory_is_what_is_planned(devices, gradient):
    shown = memory_table()[devices][2 * gradient :][:2]
    for S, megabytes in zip((131072, 16384 * devices), shown, strict=True):
        assert abs(planned_memory(devices, S, gradient) / 1e6 - megabytes) < 1
