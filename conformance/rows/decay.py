"""Faults of the decay matrices."""

from conformance.rows.row import changes

ROWS = changes("""
    @ causal_forget_matrix _decay.py causal_forget_matrix

    ~ differences of cumulative sums
    - F[..., j, j] = 0.0
    - F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
    + b = np.cumsum(a, axis=-1).astype(np.float32).astype(np.float64)
    + F[..., j:, j] = b[..., j:] - b[..., j, None]

    difference of sums of gates that are held above -1e4
    - F[..., j, j] = 0.0
    - F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
    + b = np.cumsum(np.maximum(a, -10000.0), axis=-1)
    + F[..., j:, j] = b[..., j:] - b[..., j, None]

    closed gate is a large finite number
    - float64(forget_gates)
    + np.maximum(float64(forget_gates), -1e30)

    step is decayed by its own gate
    - F[..., j, j] = 0.0
    - F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
    + F[..., j:, j] = np.cumsum(a[..., j:], axis=-1)

    gates one step early
    - a[..., j + 1 :]
    + a[..., j:-1]

    masked with a large finite number
    - np.inf
    + 1e30

    wrong beyond 128 steps
    - 0.0
    + 0.0 if j < 128 else -np.inf

    answers in float32
    - return F
    + return F.astype(np.float32)

    @ causal_forget_matrix _decay.py causal_forget_matrix_backward

    causal mask off by one in the gradient
    - np.tril(float64(dF), -1)
    + np.tril(float64(dF), -2)

    gradient has the column of the gate itself
    - dF[..., s:, :s]
    + dF[..., s:, : s + 1]

    gradient leaves out the row of the gate itself
    - dF[..., s:, :s]
    + dF[..., s + 1 :, :s]

    gradient of a closed gate is zero
    - {"forget_gates": da}
    + {"forget_gates": np.where(np.isneginf(forget_gates), 0.0, da)}

    @ dtilde_matrix _decay.py dtilde_matrix

    ~ differences of cumulative sums
    - F = causal_forget_matrix(log_sigmoid(float64(fgate)[..., 0]))
    + b = np.cumsum(log_sigmoid(float64(fgate)[..., 0]), axis=-1).astype(np.float32).astype(np.float64)
    + F = np.where(np.tri(b.shape[-1], dtype=bool), b[..., :, None] - b[..., None, :], -np.inf)

    input gate of the row, not of the column
    - float64(igate)[..., None, :, 0]
    + float64(igate)

    log of a sigmoid that has underflowed
    - log_sigmoid(float64(fgate)[..., 0])
    + np.log(1 / (1 + np.exp(-float64(fgate)[..., 0])))

    sigmoid of the forget gate, not its logarithm
    - log_sigmoid(float64(fgate)[..., 0])
    + sigmoid(float64(fgate)[..., 0])

    @ dtilde_matrix _decay.py dtilde_matrix_backward

    masked rows left out of the input gate's gradient
    - float64(dD)
    + np.tril(float64(dD))

    input gate's gradient sums columns
    - -2
    + -1

    forget gate's gradient times sigmoid of the gate
    - -float64(fgate)
    + float64(fgate)

    derivative of the sigmoid, not of its logarithm
    - sigmoid(-float64(fgate))
    + sigmoid(-float64(fgate)) * sigmoid(float64(fgate))

    one minus a sigmoid that has rounded to one
    - sigmoid(-float64(fgate))
    + 1 - sigmoid(float64(fgate))

    an axis of the input gate's gradient is lost
    - float64(dD).sum(axis=-2)[..., None]
    + float64(dD).sum(axis=-2)
""")
