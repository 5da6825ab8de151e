"""The features of each operation's calls, by the name under which its laws stand."""

from conformance.diagnosis.features import Feature
from conformance.diagnosis.gru_features import GRU
from conformance.diagnosis.mlstm_features import FWBW, MLSTM, MLSTM_STEP
from conformance.diagnosis.sum_features import DECAY, SCANS

_FEATURES: dict[str, tuple[Feature, ...]] = {
    "rev_cumsum": SCANS,
    "rev_cumsum_off": SCANS,
    "causal_forget_matrix": DECAY,
    "dtilde_matrix": DECAY,
    "mlstm": MLSTM,
    "mlstm_step": MLSTM_STEP,
    "fwbw": FWBW,
    "gru": GRU,
}


def features_of(op: str) -> tuple[Feature, ...]:
    """The features of an operation's calls; none where its calls are not described by features."""
    return _FEATURES.get(op, ())
