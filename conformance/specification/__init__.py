"""The specification's code, run in other ways: rounded at random, on a tape, with a line changed.

`Recurrence` states a recurrence of one's own; its step uses `sigmoid` where it has σ.
"""

from conformance.specification.complements import sigmoid
from conformance.specification.recurrence import Given, Recurrence, gate, input_gate, log_decay, state, value, whole

__all__ = ["Given", "Recurrence", "gate", "input_gate", "log_decay", "sigmoid", "state", "value", "whole"]
