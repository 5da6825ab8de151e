"""Errors of JAX that state a fact about a target: it returned something of a wrong form, or has no derivative."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.exceptions import text_of
from conformance.result_form import WrongResultError

_WRONG = (
    (
        r"rule produced an output of (?:type|shape/dtype) (\S+) corresponding to an input of \S+ (\S+\]|\S+)",
        "{} returned in its backward pass a gradient of type {} for an argument of type {}",
    ),
    (
        r"Custom VJP bwd rule \S* ?must produce an output with the same container",
        "{} returned in its backward pass something else than a tuple with one gradient for each argument",
    ),
    (
        r"structure of output value and output batching specification",
        "{} returned in its vmap rule something else than its outputs and whether each is mapped",
    ),
)
"""Patterns of messages, and the sentence that says the same of the function; its name comes first."""

_UNDIFFERENTIABLE = (
    "callbacks do not support JVP",
    "Reverse-mode differentiation does not work",
    "does not support reverse-mode autodiff",
    r"can't apply forward-mode .* to a custom_vjp function",
    "No JVP defined",
)


@contextmanager
def wrong_forms_named(function: str) -> Iterator[None]:
    """Raise `WrongResultError` where JAX's error says that a rule of ``function`` has a result of a wrong form."""
    try:
        yield
    except (TypeError, ValueError) as error:
        for pattern, sentence in _WRONG:
            found = re.search(pattern, text_of(error))
            if found is not None:
                raise WrongResultError(function, sentence.format(function, *found.groups())) from error
        raise


@contextmanager
def refusals_named() -> Iterator[None]:
    """Raise `NotImplementedError` where JAX's error says that something cannot be differentiated twice."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        if any(re.search(pattern, text_of(error)) for pattern in _UNDIFFERENTIABLE):
            raise NotImplementedError(text_of(error)) from error
        raise
