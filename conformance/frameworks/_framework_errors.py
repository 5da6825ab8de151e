"""Errors of a framework that state a fact about a target: a result of a wrong form, or no derivative."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from conformance.base.exceptions import text_of
from conformance.base.result_form import WrongResultError
from conformance.frameworks.implementation import NotTransformedError


@dataclass(frozen=True)
class FrameworkErrors:
    """The messages of one framework.

    Attributes:
        wrong: patterns of messages about a rule's result, and the sentence that says the same of the function; its name
            comes first, then the groups of the pattern.
        undifferentiable: patterns of messages that something has no derivative.
        untransformable: patterns of messages that a function has no rule for a transformation.
    """

    wrong: tuple[tuple[str, str], ...]
    undifferentiable: tuple[str, ...]
    untransformable: tuple[str, ...] = ()

    @contextmanager
    def wrong_forms_named(self, function: str) -> Iterator[None]:
        """Raise `WrongResultError` where an error says that a rule of ``function`` has a result of a wrong form."""
        try:
            yield
        except Exception as error:
            for pattern, sentence in self.wrong:
                found = re.search(pattern, text_of(error))
                if found is not None:
                    raise WrongResultError(function, sentence.format(function, *found.groups())) from error
            raise

    @contextmanager
    def transformations_named(self) -> Iterator[None]:
        """Raise `NotTransformedError` where an error says that a function has no rule for a transformation."""
        try:
            yield
        except Exception as error:
            if any(re.search(pattern, text_of(error)) for pattern in self.untransformable):
                raise NotTransformedError(text_of(error)) from error
            raise

    @contextmanager
    def refusals_named(self) -> Iterator[None]:
        """Raise `NotImplementedError` where an error says that something cannot be differentiated twice."""
        try:
            yield
        except Exception as error:
            if any(re.search(pattern, text_of(error)) for pattern in self.undifferentiable):
                raise NotImplementedError(text_of(error)) from error
            raise


JAX_ERRORS = FrameworkErrors(
    wrong=(
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
    ),
    undifferentiable=(
        "callbacks do not support JVP",
        "Reverse-mode differentiation does not work",
        "does not support reverse-mode autodiff",
        r"can't apply forward-mode .* to a custom_vjp function",
        "No JVP defined",
    ),
)


TORCH_ERRORS = FrameworkErrors(
    wrong=(
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
    ),
    undifferentiable=(
        "trying to differentiate twice",
        "derivative for .* is not implemented",
        "no autograd formula was registered",
        "does not currently support double backward",
    ),
    untransformable=("must override the setup_context staticmethod", "but it does not have vmap support"),
)
