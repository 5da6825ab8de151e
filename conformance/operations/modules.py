"""The layers that hold parameters or a configuration."""

from conformance.operations._record import Public

RECORDS = (
    Public(name="GRU", about="GRU"),
    Public(name="mLSTMBackendFwbw", about="mLSTMBackendFwbw", helpers=("mLSTMBackendFwbwConfig",)),
)
