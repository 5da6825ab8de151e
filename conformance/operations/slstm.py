"""The sLSTM: `slstm` over whole sequences, and one step of it, `slstm_step`."""

import math

from conformance.cases import CLIPPING as FIELD
from conformance.cases import OPTION
from conformance.operations._record import BACKEND, MAX_SEQLEN, Option, StateTuple
from conformance.operations.stated import operation_of, step_of
from conformance.rows import correct, taped
from conformance.specification.recurrence import Specified, gate, input_gate, state, value
from reference.arguments import SLSTMState

CLIPPING = FIELD.removeprefix(OPTION)
_OPTIONS = (
    Option(name="return_state", default=False, changes_value=False, portable=False),
    Option(
        name="forget_gate",
        default="sigmoid",
        refused={"an unknown forget gate": "exponential", "a number for the forget gate": 1},
    ),
    Option(name=CLIPPING, refused={"a word for the clipping": "1", "a clipping of NaN": math.nan}),
    MAX_SEQLEN,
    BACKEND,
)

SLSTM = operation_of(
    Specified(
        name="slstm",
        arguments={
            "z": value("B S N H"),
            "i": input_gate("B S N H"),
            "f": gate("B S N H", exponential_with=("forget_gate", "exp")),
            "o": value("B S N H"),
            **{f"weight_{name}": value("N H H") for name in "zifo"},
            "c0": state("B N H", final="c", log_scale="m"),
            "n0": state("B N H", final="n", log_scale="m", low=0.5),
            "m0": state("B N H", final="m", empty=-math.inf),
            "h0": state("B N H", final="last_h"),
        },
        outputs={"h": "B S N H"},
        equation="m' = max(a + m, u_i), c' = e^{a+m−m'} c + e^{u_i−m'} tanh(u_z), n' likewise, h = σ(u_o) c'/n'",
        options={"forget_gate": (None, "exp"), CLIPPING: (None, 0.1, -0.5, 2.0)},
        defaults={"forget_gate": "sigmoid"},
        rows=tuple(row for row in correct.ROWS if row.op == "slstm"),
        of_gradient={CLIPPING: taped.CLIPPED["slstm"]},
        state_tuple=StateTuple(name="initial_state", type=SLSTMState, cotangent="dstate"),
        state_switch="return_state",
    ),
    helpers=("SLSTMState",),
    options=_OPTIONS,
)
SLSTM_STEP = step_of(SLSTM, "slstm_step", options=("forget_gate",), names={})

RECORDS = (SLSTM, SLSTM_STEP)
