"""Argument checks: one object per call that compares shapes with the letters of the contract.

A check gives the expected shape in letters, ``"B S N K"``. The first array that has a letter binds it to a size; every
later array must agree. A mismatch raises at once, always with a message of the same form::

    mlstm: `k` is f32[2,7,3,8]; expected [B=2, S=7, N=3, K=16] to match `q`

It names the function, the argument, what was passed, what was expected, and the argument that set the expectation.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

FLOATING = ("float16", "bfloat16", "float32", "float64")
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


@dataclass(frozen=True)
class Framework:
    """An array library as the checks see it, so that they do not import one.

    Attributes:
        array: the array type as messages name it, ``"a torch.Tensor"``.
        is_array: whether an object is an array of this framework.
        values: returns the values of an integer array as NumPy, or None if reading them would synchronise a device or
            is impossible because the array is being traced.
        upcasts: whether the implementation computes and answers in float64 for every input dtype, as the reference
            does; its states are then float64 whatever the dtype of the inputs.
        refuses: for an array that the framework would accept only with a silent cast, what to pass instead; else None.
        device: returns the device of an array, for frameworks that do not move arrays by themselves; all arrays of one
            call must be on the same device.
    """

    array: str
    is_array: Callable[[object], bool]
    values: Callable[[Any], np.ndarray | None]
    upcasts: bool = False
    refuses: Callable[[Any], str | None] = lambda _: None
    device: Callable[[Any], Any] | None = None


def dtype_name(x: Any) -> str:
    """The dtype's name without its framework: ``float32`` for NumPy, JAX and torch alike."""
    return str(x.dtype).rpartition(".")[2]


def accumulation_dtype(name: str) -> str:
    """The dtype of the states that go with values of dtype ``name``: float64 for float64, else float32."""
    return "float64" if name == "float64" else "float32"


def describe(x: Any) -> str:
    """A short description of an argument: ``f32[2,7,3]`` for an array, the value of a scalar, else its type."""
    shape = _shape(x)
    if shape is not None and hasattr(x, "dtype"):
        name = dtype_name(x)
        kind = name.rstrip("0123456789")
        short = _SHORT[kind] + name[len(kind) :] if kind in _SHORT else name
        return f"{short}[{','.join(str(size) for size in shape)}]"
    if x is None or isinstance(x, bool | int | float | str):
        return repr(x)
    kind = type(x)
    return (
        f"a {kind.__name__}"
        if kind.__module__ == "builtins"
        else f"a {kind.__module__.partition('.')[0]}.{kind.__name__}"
    )


def whole_number(value: Any) -> int | None:
    """``value`` as an int; None for booleans, arrays with an axis, and anything else that is not an integer."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        # So is an integer that a compiler traces, which has no attributes to ask for.
        return operator.index(value)
    is_array = hasattr(value, "dtype") and hasattr(value, "shape")
    if is_array and (tuple(value.shape) or dtype_name(value).rstrip("0123456789") not in ("int", "uint")):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _shape(x: Any) -> Sequence[Any] | None:
    """The shape if ``x`` has one, else None; asking PyTorch's nested tensors for it raises."""
    try:
        return x.shape
    except (AttributeError, RuntimeError):
        return None


class Call:
    """The checks of one call: holds the function's name, the size bound to each letter and the options noted."""

    def __init__(self, function: str, framework: Framework):
        self.function = function
        self.framework = framework
        self.sizes: dict[str, int] = {}
        self.options: tuple[str, ...] = ()
        self._bound_by: dict[str, str] = {}
        self._place: tuple[str, Any] | None = None

    def refuse(self, error: type[Exception], argument: str, got: str, expected: str) -> NoReturn:
        raise error(f"{self.function}: `{argument}` is {got}; expected {expected}")

    def __getitem__(self, letter: str) -> int:
        return self.sizes[letter]

    def bind(self, letter: str, size: int, argument: str) -> None:
        self.sizes[letter] = size
        self._bound_by[letter] = argument

    def kind(self, **arrays: Any) -> None:
        """Raise for anything that is not an array of this framework or not on the device of the first array."""
        for argument, x in arrays.items():
            if not self.framework.is_array(x):
                foreign = hasattr(x, "dtype") and hasattr(x, "shape")
                got = f"{type(x).__module__.partition('.')[0]}.{type(x).__name__}" if foreign else describe(x)
                self.refuse(TypeError, argument, got, self.framework.array if foreign else "an array")
            if isinstance(x, np.ma.MaskedArray):
                self.refuse(TypeError, argument, f"a masked {describe(x)}", "an array without a mask")
            instead = self.framework.refuses(x)
            if instead is not None:
                self.refuse(TypeError, argument, describe(x), instead)
            if self.framework.device is not None:
                self._same_place(argument, x, self.framework.device(x))

    def _same_place(self, argument: str, x: Any, device: Any) -> None:
        if self._place is None:
            self._place = argument, device
        first, place = self._place
        # ``cu_seqlens`` may be on the host, where the work is divided among kernels.
        if device != place and not (argument == "cu_seqlens" and str(device) == "cpu"):
            self.refuse(ValueError, argument, f"{describe(x)} on {device}", f"it on {place} to match `{first}`")

    def floating(self, **arrays: Any) -> None:
        """Raise for anything that is not a floating-point array, or whose dtype differs from that of the first one."""
        self.kind(**arrays)
        first = None
        for argument, x in arrays.items():
            name = dtype_name(x)
            if name not in FLOATING:
                self.refuse(TypeError, argument, describe(x), "float16, bfloat16, float32 or float64")
            if first is None:
                first = (argument, name)
            elif name != first[1]:
                self.refuse(TypeError, argument, describe(x), f"{first[1]} to match `{first[0]}`")

    def gates(self, beside: str, values: Any, **gates: Any) -> None:
        """Raise unless each gate has the dtype of the values, or is float32 while the values have a 16-bit dtype."""
        self.kind(**gates)
        name = dtype_name(values)
        allowed = (name, "float32") if name in ("float16", "bfloat16") else (name,)
        for argument, x in gates.items():
            if dtype_name(x) not in allowed:
                self.refuse(TypeError, argument, describe(x), f"{' or '.join(allowed)} to match `{beside}`")

    def state_dtype(self, beside: str, values: Any, **states: Any) -> None:
        """Raise for states that are not in the accumulation dtype of ``values``."""
        self.kind(**states)
        expected = accumulation_dtype(dtype_name(values))
        for argument, x in states.items():
            name = dtype_name(x)
            if name != expected and not (self.framework.upcasts and name == "float64"):
                self.refuse(TypeError, argument, describe(x), f"{expected}, the accumulation dtype for `{beside}`")

    def shape(self, argument: str, x: Any, letters: str) -> None:
        """Check ``x.shape`` against space-separated letters or numbers; bind each letter that is not yet bound."""
        wanted = letters.split()
        fits = len(x.shape) == len(wanted) and all(
            size == (self.sizes.get(letter, size) if letter.isalpha() else int(letter))
            for letter, size in zip(wanted, x.shape, strict=True)
        )
        if not fits:
            self._refuse_shape(argument, x, wanted)
        for letter, size in zip(wanted, x.shape, strict=True):
            if letter.isalpha() and letter not in self.sizes:
                self.bind(letter, size, argument)

    def _refuse_shape(self, argument: str, x: Any, wanted: list[str]) -> NoReturn:
        known = [letter for letter in wanted if letter in self.sizes]
        if len(x.shape) == len(wanted):
            clashes = [w for w, size in zip(wanted, x.shape, strict=True) if self.sizes.get(w, size) != size]
        else:
            clashes = known
        expected = ", ".join(f"{letter}={self.sizes[letter]}" if letter in self.sizes else letter for letter in wanted)
        sources = list(dict.fromkeys(self._bound_by[letter] for letter in clashes))
        match = " to match " + " and ".join(f"`{source}`" for source in sources) if sources else ""
        self.refuse(ValueError, argument, describe(x), f"[{expected}]{match}")

    def integer(self, argument: str, value: Any, least: int, *, optional: bool = False) -> int | None:
        """Return a whole number of at least ``least`` as an int (or None if ``optional``); raise for anything else."""
        none = "None or " if optional else ""
        if value is None and optional:
            return None
        expected = f"{none}an integer of at least {least}"
        number = whole_number(value)
        if number is None:
            self.refuse(TypeError, argument, describe(value), expected)
        if number < least:
            self.refuse(ValueError, argument, str(number), expected)
        return number

    def number(self, argument: str, value: Any, expected: str, holds: Callable[[float], bool]) -> float:
        """Return a real Python (or NumPy) number for which ``holds`` is true as a float; raise for anything else."""
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            self.refuse(TypeError, argument, describe(value), expected)
        try:
            number = float(value)
        except OverflowError:
            self.refuse(ValueError, argument, "an integer beyond float64", expected)
        # Only NaN differs from itself; torch.compile cannot trace math.isnan of a symbolic number.
        if number != number or not holds(number):
            self.refuse(ValueError, argument, str(number), expected)
        return number

    def flag(self, argument: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self.refuse(TypeError, argument, describe(value), "True or False")
        return value

    def option(self, argument: str) -> None:
        """Note that the call gives an option that a kernel may lack."""
        self.options += (argument,)

    def packing(
        self,
        cu_seqlens: Any,
        max_seqlen: Any,
        argument: str,
        tokens_of_all: Callable[[int], int | None] | None = None,
    ) -> None:
        """Check a packing of ``T`` tokens (bound by ``argument``) and bind ``B``, its number of sequences.

        Args:
            tokens_of_all: ``(T) →`` the number of tokens of all shards, if ``T`` counts those of one; None if unknown.
        """
        if cu_seqlens is None:
            if max_seqlen is not None:
                self.refuse(ValueError, "max_seqlen", describe(max_seqlen), "None where `cu_seqlens` is None")
            return
        self.kind(cu_seqlens=cu_seqlens)
        if dtype_name(cu_seqlens).rstrip("0123456789") not in ("int", "uint"):
            self.refuse(TypeError, "cu_seqlens", describe(cu_seqlens), "an integer array")
        if len(cu_seqlens.shape) != 1 or cu_seqlens.shape[0] < 1:
            self.refuse(ValueError, "cu_seqlens", describe(cu_seqlens), "[B+1]")
        self.bind("B", cu_seqlens.shape[0] - 1, "cu_seqlens")
        longest = self.integer("max_seqlen", max_seqlen, 0, optional=True)
        values = self.framework.values(cu_seqlens)
        if values is None:
            return
        values = values.astype(np.int64)
        if values[0] != 0:
            self.refuse(ValueError, "cu_seqlens", f"an array that starts at {values[0]}", "one that starts at 0")
        lengths = np.diff(values)
        if lengths.size and lengths.min() < 0:
            at = int(np.argmax(lengths < 0))
            fall = f"an array that decreases from {values[at]} to {values[at + 1]} at index {at + 1}"
            self.refuse(ValueError, "cu_seqlens", fall, "one that never decreases")
        if tokens_of_all is None:
            T, of, wrong = self["T"], f"`{argument}`", values[-1] != self["T"]
        else:
            T, of = tokens_of_all(self["T"]), f"`{argument}` of all shards"
            wrong = T is not None and values[-1] != T
        if wrong:
            self.refuse(ValueError, "cu_seqlens", f"an array that ends at {values[-1]}", f"T={T} to match {of}")
        if longest is not None and lengths.size and lengths.max() > longest:
            self.refuse(
                ValueError,
                "max_seqlen",
                str(longest),
                f"at least {lengths.max()}, the longest sequence in `cu_seqlens`",
            )
