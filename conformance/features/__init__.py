"""The features of each operation's calls, and its plainest and a rich case.

The envelope, the causes of failures and the search refer to the same features by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from conformance.cases import RecurrenceCases
from conformance.features import fwbw, mlstm, recurrence, sums
from conformance.features.feature import Feature, avoiding, of_field
from conformance.operations import BY_LAWS, Operation, Option


@dataclass(frozen=True, kw_only=True)
class Described:
    """The calls of an operation in terms of features.

    Attributes:
        features: properties of its calls, by which failures are explained and refusals avoided.
        plain: the plainest case for a seed, to which features are added.
        rich: a small case for a seed that distinguishes formulas from each other.
    """

    features: tuple[Feature, ...]
    plain: Callable[[int], Any]
    rich: Callable[[int], Any] | None = None


_DESCRIBED = {
    "rev_cumsum": Described(features=sums.SCANS, plain=sums.plain_sum),
    "rev_cumsum_off": Described(features=sums.SCANS, plain=sums.plain_sum),
    "causal_forget_matrix": Described(features=sums.DECAY, plain=sums.plain_sum),
    "dtilde_matrix": Described(features=sums.DTILDE, plain=sums.plain_dtilde),
    "mlstm": Described(features=mlstm.MLSTM, plain=mlstm.plain_mlstm, rich=mlstm.rich_mlstm),
    "mlstm_step": Described(features=mlstm.MLSTM_STEP, plain=mlstm.plain_mlstm_step, rich=mlstm.rich_mlstm_step),
    "fwbw": Described(features=fwbw.FWBW, plain=fwbw.plain_fwbw, rich=fwbw.rich_fwbw),
}


def described(operation: Operation) -> Described:
    """The features and the exemplary cases of an operation."""
    if operation.stated is None:
        return _DESCRIBED[operation.about]
    one_step = operation.one_step
    return _of_stated(operation.stated, one_step and tuple(option.name for option in one_step.options))


@cache
def _of_stated(stated: RecurrenceCases, of_step: tuple[str, ...] | None) -> Described:
    """Those of a recurrence, or of one step of it, which has these options."""
    fixed = {} if of_step is None else {"S": 1, "state": True, "return_state": True}
    plain, rich = (partial(exemplary, stated, **fixed) for exemplary in (recurrence.plain, recurrence.rich))
    return Described(features=tuple(recurrence.features(stated, of_step)), plain=plain, rich=rich)


def features_of(op: Operation | str) -> tuple[Feature, ...]:
    """The features of an operation, or of what laws are about; none if that is not an operation."""
    return _features_of(op if isinstance(op, str) else op.about)


def features_for(operation: Operation, *, contract: bool) -> tuple[Feature, ...]:
    """The features of an operation on which a target is tried by laws that all targets have to keep.

    Args:
        contract: whether it has to follow gatespec's own decisions, too.
    """
    return tuple(feature for feature in features_of(operation) if contract or not feature.contract)


def without_decisions(operation: Operation, case: Any) -> Any:
    """A case on which gatespec's own decisions, where other implementations may differ, have no effect."""
    every = features_of(operation)
    return avoiding(case, [feature.name for feature in every if feature.contract], every)


@cache
def _features_of(about: str) -> tuple[Feature, ...]:
    operation = BY_LAWS.get(about)
    if operation is None:
        return ()
    of_options = (_of_option(option) for option in operation.options if option.sentence)
    return (*described(operation).features, *of_options)


def _of_option(option: Option) -> Feature:
    name = option.name.replace("_", " ")
    return of_field(option.name, option.default, option.example, name=name, sentence=option.sentence)
