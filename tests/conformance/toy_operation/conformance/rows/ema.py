"""Faults of the moving average."""

from conformance.rows.row import changes

ROWS = changes("""
    @ ema _ema.py ema

    the initial average ignored
    - np.zeros((x.shape[0], x.shape[2])) if initial is None else float64(initial)
    + np.zeros((x.shape[0], x.shape[2]))

    the gate keeps the share that it lets in
    - a[:, t] * last + shut[:, t] * x[:, t]
    + shut[:, t] * last + a[:, t] * x[:, t]
""")
