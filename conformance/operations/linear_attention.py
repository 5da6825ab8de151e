"""Linear attention and the delta rule: `simple_gla`, `gla`, `gated_delta_rule`, `kimi_delta_attention`."""

from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, MAX_SEQLEN, Option
from conformance.operations.stated import operation_of, step_of
from conformance.rows import correct, foreign
from conformance.specification.recurrence import Specified, gate, log_decay, state, value

CHUNKS = "chunk_size"
_DELTA = ("gated_delta_rule", "kimi_delta_attention")


def _specified(name: str, channels: bool) -> Specified:
    """One of the four.

    Args:
        channels: whether g has key channels.
    """
    delta = name in _DELTA
    return Specified(
        name=name,
        arguments={
            "q": value("B S Nq K"),
            # By the delta rule the memory grows without bound where β times the square of a key's length exceeds 2.
            "k": value("B S Nk K", length=1.0 if delta else None),
            "v": value("B S Nv V"),
            "g": log_decay("B S Ng K" if channels else "B S Ng"),
            **({"beta": gate("B S Nb", 0, 1, optional=True)} if delta else {}),
            "initial_state": state("B N K V", final="state"),
        },
        outputs={"o": "B S N V"},
        wide_gates=True,
        options={
            "scale": (None, 0.3),
            **({"qk_norm_eps": (None, 1e-6, 0.3)} if delta else {}),
            **({CHUNKS: (None, 16, 64, 128, 256)} if name == "gated_delta_rule" else {}),
        },
        rows=tuple(row for row in correct.ROWS if row.op == name),
        foreign_rows=tuple(row for row in foreign.ROWS if row.op == name),
    )


def _record(name: str, channels: bool) -> Operation:
    stated = _specified(name, channels)
    return operation_of(
        stated,
        never_0=("K", "N"),
        options=(
            *(
                Option(name=option, default=values[0], changes_value=option != CHUNKS, portable=option != CHUNKS)
                for option, values in stated.options.items()
            ),
            MAX_SEQLEN,
            BACKEND,
        ),
    )


_GATED_DELTA_RULE = _record("gated_delta_rule", channels=False)
RECORDS = (
    _record("simple_gla", channels=False),
    _record("gla", channels=True),
    _GATED_DELTA_RULE,
    step_of(_GATED_DELTA_RULE, "gated_delta_step", options=("scale", "qk_norm_eps"), names={"initial_state": "state"}),
    _record("kimi_delta_attention", channels=True),
)
