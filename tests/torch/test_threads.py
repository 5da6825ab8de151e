"""How many threads a call of `torch_impl` uses on a CPU, and what it costs when other processes use the cores."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
import torch

import torch_impl
from torch_impl import _threads
from torch_impl._threads import threads

CPU = torch.device("cpu")
_functions = _threads._functions()
_follows = pytest.mark.skipif(_functions is None, reason="PyTorch does not use OpenMP")
_gnu = pytest.mark.skipif(_functions is None or _functions.parallel is None, reason="not GNU's OpenMP library")
_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's times of threads")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_pause", _threads._Pause())


def _inputs(operation: str, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    B, S, N, K = sizes
    if operation == "gru":
        shapes = [(B, S, N, K), (N, K, K)] * 3
    else:
        shapes = [(B, S, N, K)] * 3 + [(B, S, N)] * 2
    return [(torch.randn(shape) * (K**-0.5 if len(shape) == 3 else 1)).requires_grad_() for shape in shapes]


def _both_passes(operation: str, x: list[torch.Tensor]) -> list[torch.Tensor]:
    returned = getattr(torch_impl, operation)(*x)
    y = returned[0] if isinstance(returned, tuple) else returned
    # A cotangent of ones, because PyTorch would sum a loss on all threads.
    return [y.detach(), *torch.autograd.grad(y, x, torch.ones_like(y))]


@_follows
def test_context_changes_the_calling_thread_alone_and_restores_it(two_threads: None) -> None:
    seen = []
    with pytest.raises(RuntimeError, match="stop"), threads(CPU, large=False):
        assert torch.get_num_threads() == 1
        other = Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        raise RuntimeError("stop")
    assert seen == [2]
    assert torch.get_num_threads() == 2


@_gnu
def test_cores_in_use_begin_a_pause_once(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    in_use = True
    monkeypatch.setattr(_threads, "_WINDOW", 0.0)
    monkeypatch.setattr(_threads, "_in_use", lambda before, now: in_use)
    monkeypatch.setattr(_threads, "_crowd", lambda seconds: None)
    with threads(CPU, large=False):
        _threads.reconsider_threads()
    assert _threads._pause.end == 0.0
    with threads(CPU, large=True):
        _threads.reconsider_threads()
        end = _threads._pause.end
        _threads.reconsider_threads()
        assert _threads._pause.end == end > time.perf_counter()
        assert torch.get_num_threads() == 2
        in_use, _threads._pause.end = False, 0.0
        _threads.reconsider_threads()
        assert _threads._pause.following == _threads._PAUSE


_ASLEEP = """
import time
from pathlib import Path
import torch
from torch_impl import _threads

torch.set_num_threads(2)
x = torch.ones(1 << 17)

def of_others():
    main = Path("/proc/thread-self").resolve().name
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != main]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

def waiting():
    found = []
    for _ in range(9):
        x.exp()
        time.sleep(0.02)
        before = of_others()
        x.exp()
        time.sleep(0.02)
        found.append(of_others() - before)
    return sorted(found)[4] / 1e3

def paused():
    _threads._crowd(1.0)

before = waiting()
_threads.Thread(target=paused).start()
time.sleep(0.1)
during = waiting()
time.sleep(1.5)
print(before, during, waiting())
"""


@_gnu
@_linux
def test_threads_wait_asleep_during_a_pause() -> None:
    """After an operator, the other thread computes on for a while in order to wait; in a pause it does not."""
    run = subprocess.run([sys.executable, "-c", _ASLEEP], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    before, during, after = (float(word) for word in run.stdout.split())
    assert during < before / 2 and during < after / 2, run.stdout


def test_pause_doubles_until_the_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_crowd", lambda seconds: None)
    pause = _threads._Pause()
    ends = []
    for _ in range(6):
        pause.begin(0.0)
        ends.append(pause.end)
    assert ends == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


@_gnu
@pytest.mark.parametrize("allowed", [0, 1])
def test_a_system_that_allows_no_more_threads_is_asked_for_none(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP would end the process where it may not have a thread."""
    start, left, asked = Thread.start, [allowed], []

    def limited(thread: Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)
        thread.join()

    monkeypatch.setattr(Thread, "start", limited)
    assert _functions is not None
    recorded = _functions._replace(parallel=lambda *words: asked.append(words))
    monkeypatch.setattr(_threads, "_functions", lambda: recorded)
    _threads._Pause().begin(time.perf_counter())
    assert left == [0] and not asked


@pytest.mark.parametrize(
    ("on_core", "switches", "in_use"), [(0.9, 5, False), (0.5, 5, True), (0.5, 0, False)], ids=["busy", "aside", "lock"]
)
def test_time_off_the_cores_shows_that_others_use_them(on_core: float, switches: int, in_use: bool) -> None:
    before = _threads._Moment(0.0, 0.0, 0)
    assert _threads._in_use(before, _threads._Moment(1.0, on_core, switches)) is in_use


@_follows
@pytest.mark.parametrize(
    ("operation", "sizes"),
    [
        ("gru", (16, 20, 1, 256)),
        ("gru", (7, 33, 3, 96)),
        ("mlstm", (2, 500, 3, 96)),
        ("mlstm", (4, 300, 4, 64)),
    ],
)
def test_the_load_changes_no_bit(operation: str, sizes: tuple[int, ...], two_threads: None) -> None:
    x = _inputs(operation, sizes)
    idle = _both_passes(operation, x)
    _threads._pause.begin(time.perf_counter())
    time.sleep(0.05)
    assert all(torch.equal(a, b) for a, b in zip(idle, _both_passes(operation, x), strict=True))


_NARROW = """
import sys, time
from pathlib import Path
import torch, torch_impl

torch.set_num_threads(2)

def of_others():
    main = str(Path("/proc/thread-self").resolve().name)
    tasks = [task for task in Path("/proc/self/task").iterdir() if task.name != main]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

def at_rest():
    time.sleep(0.05)
    before = -1
    while (now := of_others()) != before:
        before = now
        time.sleep(0.05)
    return now

def leaf(*shape):
    return torch.randn(shape).requires_grad_()

def first(returned):
    return returned[0] if isinstance(returned, tuple) else returned

def gru(N, H, **packed):
    front = (1000,) if packed else (1, 1000)
    x = [leaf(*front, N, H) if each % 2 == 0 else leaf(N, H, H) for each in range(6)]
    dy = torch.ones(*front, N, H)
    return lambda: torch.autograd.grad(torch_impl.gru(*x, **packed)[0], x, dy)

def mlstm(S, N, K, **packed):
    front = (S,) if packed else (1, S)
    x = [leaf(*front, N, K) for _ in range(3)] + [leaf(*front, N) for _ in range(2)]
    dh = torch.ones(*front, N, K)
    return lambda: torch.autograd.grad(first(torch_impl.mlstm(*x, **packed)), x, dh)

def step(K):
    x = [torch.randn(1, 4, K) for _ in range(3)] + [torch.randn(1, 4) for _ in range(2)]
    state = torch.zeros(1, 4, K, K), torch.zeros(1, 4, K), torch.zeros(1, 4)
    return lambda: torch_impl.mlstm_step(*x, state)

ends = torch.tensor([0, 700, 703, 1000])
calls = {
    "gru": gru(2, 16), "wider gru": gru(4, 64), "packed gru": gru(2, 16, cu_seqlens=ends),
    "mlstm": mlstm(600, 2, 16), "packed mlstm": mlstm(1000, 2, 16, cu_seqlens=ends),
    "step": step(64), "wider step": step(128),
}
torch.randn(512, 512) @ torch.randn(512, 512)
assert of_others(), "PyTorch has no other thread"
for name, call in calls.items():
    call()
    before = at_rest()
    call()
    if taken := at_rest() - before:
        sys.exit(f"{name}: other threads ran for {taken / 1e3:.0f} microseconds")
"""


@_follows
@_linux
def test_small_work_wakes_no_thread() -> None:
    run = subprocess.run([sys.executable, "-c", _NARROW], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


@pytest.fixture
def two_busy_processes() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@_follows
@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "sizes"),
    [
        ("gru", (1, 1000, 2, 16)),
        ("gru", (16, 256, 1, 256)),
        ("mlstm", (1, 2048, 4, 128)),
    ],
    ids=str,
)
def test_busy_neighbours_do_not_stop_a_call(
    operation: str,
    sizes: tuple[int, ...],
    two_threads: None,
    two_busy_processes: None,
) -> None:
    """Small work never waits for another thread; the threads of large work wait asleep."""
    x = _inputs(operation, sizes)
    _both_passes(operation, x)
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(5):
        for number, found in times.items():
            torch.set_num_threads(number)
            found.append(_seconds(lambda: _both_passes(operation, x)))
    assert statistics.median(times[2]) < 3 * statistics.median(times[1])
