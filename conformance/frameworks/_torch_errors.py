"""Errors of PyTorch that state a fact about a target: it returned something of a wrong form, or has no derivative."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.exceptions import text_of
from conformance.result_form import WrongResultError

_WRONG = (
    (
        r"returned an invalid gradient at index \d+ - got (\[.*?\]) but expected shape compatible with (\[.*?\])",
        "{} returned in its backward pass a gradient with the shape {} for an argument with the shape {}",
    ),
    (
        r"returned an incorrect number of gradients \(expected (\d+), got (\d+)\)",
        "{0} returned in its backward pass {2} gradients in place of {1}",
    ),
    (r"expected Variable or None \(got (.+?)\)", "{} returned in its backward pass a {} as a gradient"),
    (
        r"Expected the vmap staticmethod to have two returns|vmap staticmethod returned an incompatible",
        "{} returned in its vmap rule something else than its outputs and the axis over which each is mapped",
    ),
    (
        r"vmap\(.*\): .* must only return Tensors, got type <class '(.*)'>",
        "{} returned in its vmap rule a {} as an output, which is a torch.Tensor",
    ),
)
"""Patterns of messages, and the sentence that says the same of the function; its name comes first."""

_UNDIFFERENTIABLE = (
    "trying to differentiate twice",
    "derivative for .* is not implemented",
    "no autograd formula was registered",
    "does not currently support double backward",
)


@contextmanager
def wrong_forms_named(function: str) -> Iterator[None]:
    """Raise `WrongResultError` where PyTorch's error says that a rule of ``function`` has a result of a wrong form."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        for pattern, sentence in _WRONG:
            found = re.search(pattern, text_of(error))
            if found is not None:
                raise WrongResultError(function, sentence.format(function, *found.groups())) from error
        raise


@contextmanager
def refusals_named() -> Iterator[None]:
    """Raise `NotImplementedError` where PyTorch's error says that something cannot be differentiated twice."""
    try:
        yield
    except RuntimeError as error:
        if any(re.search(pattern, text_of(error)) for pattern in _UNDIFFERENTIABLE):
            raise NotImplementedError(text_of(error)) from error
        raise
