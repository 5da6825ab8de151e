"""The moving average: `ema`."""

from conformance.operations.stated import operation_of
from conformance.rows.row import changes
from conformance.specification.recurrence import Specified, gate, state, value

SPELLINGS = changes("""
    @ ema _ema.py ema_backward

    the slopes of the gate and of its complement, each from its own value
    - df[:, t] = a[:, t] * shut[:, t] * g * (before - x[:, t])
    + df[:, t] = g * before * a[:, t] * (1 - a[:, t]) - g * x[:, t] * shut[:, t] * (1 - shut[:, t])
""")
EMA = operation_of(
    Specified(
        name="ema",
        arguments={"x": value("B S N"), "f": gate("B S N"), "initial": state("B N", final="last")},
        outputs={"y": "B S N"},
        packs=False,
        rows=SPELLINGS,
    )
)

RECORDS = (EMA,)
