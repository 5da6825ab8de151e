"""JAX functions that are compiled once for each shape, and JAX's settings, which a call may change.

XLA maps the code of a program into memory in many small parts, some 300 for a gradient of the mLSTM. Linux allows a
process 65,530 mappings by default, and XLA ends a process that asks for more: it has room for so many programs only.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import jax

from conformance.frameworks import process_state


@contextmanager
def settings_kept() -> Iterator[None]:
    """`conformance.frameworks.process_state.settings_kept`, and all that ``jax.config`` holds."""
    with process_state.settings_kept(), config_kept():
        yield


@contextmanager
def config_kept() -> Iterator[None]:
    """Put all that ``jax.config`` holds back at the end."""
    config: Any = jax.config
    before = dict(config.values)
    try:
        yield
    finally:
        for name, value in before.items():
            if config.values[name] != value:
                config.update(name, value)


MAPPINGS, ALLOWED = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_FUNCTIONS: WeakSet["Compiled"] = WeakSet()


def crowded() -> bool:
    """Whether this process has more than half of the memory mappings that Linux allows; False on other systems."""
    try:
        with MAPPINGS.open("rb") as mappings:
            return sum(1 for _ in mappings) > int(ALLOWED.read_text()) // 2
    except OSError:
        return False


class Compiled:
    """A function that is traced and compiled once for each structure and shape of its arguments.

    If the process is `crowded`, all programs are dropped before another one is compiled.

    Args:
        compiling: called with True before XLA compiles, and with False afterwards.
    """

    def __init__(self, function: Callable, compiling: Callable[[bool], None]):
        self._function = jax.jit(function)
        self._compiling = compiling
        self._ready: dict[Hashable, Callable] = {}
        _FUNCTIONS.add(self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # A target may have switched compiling off; then nothing could be compiled for a shape.
        with jax.disable_jit(False):
            return self._called(*arguments, **named)

    def _called(self, *arguments: Any, **named: Any) -> Any:
        leaves, structure = jax.tree.flatten((arguments, named))
        key = (structure, *((x.shape, x.dtype) for x in leaves))
        if key not in self._ready:
            if crowded():
                drop_programs()
            with config_kept():
                lowered = self._function.lower(*arguments, **named)
            self._compiling(True)
            try:
                self._ready[key] = lowered.compile()
            finally:
                self._compiling(False)
        return self._ready[key](*arguments, **named)


def drop_programs() -> None:
    """Drop all compiled programs of this process, the suite's and JAX's own; they are compiled again where needed."""
    for function in [*_FUNCTIONS]:
        function._ready.clear()
    jax.clear_caches()
