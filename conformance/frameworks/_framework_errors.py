"""Errors of a framework that state a fact about a target: a result of a wrong form, or no derivative."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from conformance.base.exceptions import text_of
from conformance.base.result_form import WrongResultError


@dataclass(frozen=True)
class FrameworkErrors:
    """The messages of one framework.

    Attributes:
        wrong: patterns of messages about a rule's result, and the sentence that says the same of the function; its name
            comes first, then the groups of the pattern.
        undifferentiable: patterns of messages that something has no derivative.
    """

    wrong: tuple[tuple[str, str], ...]
    undifferentiable: tuple[str, ...]

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
    def refusals_named(self) -> Iterator[None]:
        """Raise `NotImplementedError` where an error says that something cannot be differentiated twice."""
        try:
            yield
        except Exception as error:
            if any(re.search(pattern, text_of(error)) for pattern in self.undifferentiable):
                raise NotImplementedError(text_of(error)) from error
            raise
