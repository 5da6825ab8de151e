"""One try of one law on one case: calls the target, compares what it says, and raises where the law is broken."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.budget import Expected, Precision, Verdict, judge
from conformance.dtypes import Array, accumulation
from conformance.implementation import Implementation, Named, RefusedError, Results

TAKES_BACKEND = ("mlstm", "mlstm_step", "gru")


class LawError(Exception):
    """A law does not hold.

    Attributes:
        where: the array, ``gradient of k``.
        verdict: the comparison, None where it is no matter of numbers.
    """

    def __init__(self, where: str, text: str, verdict: Verdict | None = None):
        super().__init__(f"{where}: {text}" if where else text)
        self.where = where
        self.text = text
        self.verdict = verdict


class Trial:
    """What a law's check is given beside the case.

    Attributes:
        implementation: the target.
        dtype: of the values.
        forward: whether outputs must be those of a call without a gradient.
        worst: the largest error over its budget so far.
        kinks, elements, above: elements at a kink of the normaliser, all elements, and those above their floor.
    """

    def __init__(
        self, implementation: Implementation, dtype: str, kernel_backend: str | None = None, forward: bool = True
    ):
        self.implementation = implementation
        self.forward = forward
        self.dtype = dtype
        self.kernel_backend = kernel_backend
        self.worst = 0.0
        self.kinks = 0
        self.elements = 0
        self.above = 0.0

    @property
    def upcasts(self) -> bool:
        return self.implementation.upcasts

    def precision(self, steps: int) -> Precision:
        return Precision(self.dtype, steps, self.upcasts)

    def _options(self, operation: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.kernel_backend is None or operation not in TAKES_BACKEND:
            return options
        return {**options, "kernel_backend": self.kernel_backend}

    def _served(self, function: Callable, operation: str, *arguments: Any) -> Any:
        try:
            with np.errstate(all="ignore"):
                return function(operation, *arguments)
        except ValueError as error:
            if self.kernel_backend is not None and "`kernel_backend`" in str(error):
                raise RefusedError(str(error)) from error
            raise

    def call(self, operation: str, arrays: Named, options: Mapping[str, Any] | None = None) -> Results:
        """The target's outputs."""
        options = self._options(operation, options or {})
        function = self.implementation.call if self.forward else self.implementation.outputs
        return self._served(function, operation, arrays, options)

    def vjp(
        self, operation: str, arrays: Named, cotangents: Named, options: Mapping[str, Any] | None = None
    ) -> tuple[Results, Results]:
        """The target's outputs and gradients."""
        options = self._options(operation, options or {})
        return self._served(self.implementation.vjp, operation, arrays, options, cotangents)

    def remember(self, key: tuple, make: Callable[[], Expected]) -> Expected:
        return oracle.remember((*key, self.dtype, self.upcasts), make)

    def note_kinks(self, expected: Expected) -> None:
        self.kinks += expected.kinks
        self.elements += expected.elements
        self.above += expected.spread.get("above", 0.0)

    def close(
        self,
        where: str,
        got: Array,
        expected: np.ndarray,
        slack: np.ndarray,
        steps: int,
        times: float = 1.0,
        upcasts: bool | None = None,
    ) -> None:
        """Hold one array to its budget.

        Args:
            upcasts: whether this very array ought to be in float64; None for what the target does with its arrays.
        """
        precision = self.precision(steps)
        if upcasts is not None:
            precision = replace(precision, upcasts=upcasts)
        verdict = judge(got, expected, slack, precision, times)
        if verdict.worst > 1:
            raise LawError(where, _said(verdict), verdict)
        self.worst = max(self.worst, verdict.worst)

    def agree(
        self,
        got: Results,
        expected: Expected,
        steps: int,
        *,
        of: str = "",
        times: float = 1.0,
        only: tuple[str, ...] | None = None,
    ) -> None:
        """Hold every array of ``got`` to its budget; states are compared as ``C·exp(m − m*)``.

        Args:
            of: what the arrays are, ``gradient of ``.
            only: the names to compare; None for all that are expected and given.
        """
        for name in expected.values if only is None else only:
            if name not in got:
                raise LawError(f"{of}{name}", "missing")
            array = got[name]
            if name in ("C", "n") and not of:
                array = self._rescaled(name, got, expected)
            self.close(f"{of}{name}", array, expected.values[name], expected.slack[name], steps, times)

    def _rescaled(self, name: str, got: Results, expected: Expected) -> Array:
        m = expected.values["m"]
        part = got[name]
        if got["m"].shape != m.shape or part.shape[: m.ndim] != m.shape:
            return part
        return replace(part, values=oracle.rescaled(part.values, got["m"].values, m))

    def expect_dtype(self, where: str, got: Array, expected: str) -> None:
        wanted = "float64" if self.upcasts else expected
        if got.dtype != wanted:
            raise LawError(where, f"dtype {got.dtype}, expected {wanted}")

    def expect_dtypes(self, outputs: Results, gradients: Results, arrays: Named, values: tuple[str, ...]) -> None:
        """Outputs in ``values`` have the values' dtype, others the accumulation dtype, gradients the primals'."""
        for name, output in outputs.items():
            self.expect_dtype(name, output, self.dtype if name in values else accumulation(self.dtype))
        for name, gradient in gradients.items():
            self.expect_dtype(f"gradient of {name}", gradient, arrays[name].dtype)

    def expect_no_nan(self, results: Results, of: str = "") -> None:
        for name, array in results.items():
            nans = np.argwhere(np.isnan(array.values))
            if nans.size:
                index = tuple(int(at) for at in nans[0])
                raise LawError(f"{of}{name}", f"NaN at {list(index)}", Verdict(np.inf, index, np.nan))


def _said(verdict: Verdict) -> str:
    if verdict.reason is not None:
        return verdict.reason
    ulp = "" if verdict.ulp is None else f" ({verdict.ulp:.3g} roundoffs)"
    index = [] if verdict.index is None else list(verdict.index)
    return (
        f"at {index} got {verdict.got!r}, expected {verdict.expected!r} ± {verdict.allowed:.3g}{ulp}; "
        f"worst error is {verdict.worst:.3g} times its budget"
    )
