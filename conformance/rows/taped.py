"""Changed lines that only a tape follows: what is clipped in the gradient alone, and what is held constant in it.

They leave the value as it is, and may call functions that NumPy has while a tape runs: ``np.clip_gradient(x, bound)``,
``np.stop_gradient(x)``, which is x without a gradient, and ``np.held(m)`` (`specification.traced`). They cannot be
planted.
"""

from conformance.rows.row import Row, changes

CLIPPED: dict[str, Row] = {
    row.op: row
    for row in changes("""
    @ gru _gru.py gru

    the gradient of h from the next step is clipped
    - y[t] = h
    + ...
    + h = np.clip_gradient(h, gradient_clipping)

    @ slstm _slstm.py slstm

    the gradient of h from the next step is clipped
    - h[t] = before.h
    + ...
    + before = before._replace(h=np.clip_gradient(before.h, gradient_clipping))
""")
}
"""By operation: the clipping that the definition asks for."""

CONSTANT: tuple[Row, ...] = changes("""
    @ mlstm _mlstm.py _read

    m a constant where the normaliser is not n·q̂
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.maximum(np.abs(nu), normaliser_floor(m) * np.held(m, LARGEST_M)) + eps * np.held(m)

    @ mlstm _mlstm.py mlstm_parallel

    m a constant where the normaliser is not n·q̂, in the parallel form
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.maximum(np.abs(nu), normaliser_floor(m) * np.held(m, LARGEST_M)) + eps * np.held(m)
""")
"""What the definition of the mLSTM decides of its gradient: there is no path through m where h depends on it."""

ROWS = changes("""
    @ mlstm _mlstm.py _read

    normaliser held constant in the gradient
    - np.maximum(np.abs(nu), normaliser_floor(m)) + eps
    + np.stop_gradient(np.maximum(np.abs(nu), normaliser_floor(m)) + eps)

    @ mlstm _mlstm.py _write

    stabiliser held constant in the gradient
    - np.maximum(a + m, i)
    + np.stop_gradient(np.maximum(a + m, i))

    stabiliser held constant in the gradient where it is subtracted
    - decay = np.exp(stabilised_decay(a, m, m_new))
    - gain = exp_difference(i, m_new)
    + decay = np.exp(stabilised_decay(a, m, np.stop_gradient(m_new)))
    + gain = exp_difference(i, np.stop_gradient(m_new))

    @ mlstm _mlstm.py mlstm_recurrent

    gradient does not reach the forget gate
    - log_sigmoid(f)
    + np.stop_gradient(log_sigmoid(f))

    @ fwbw _fwbw.py _chunk_forward

    normaliser held constant in the gradient
    - np.maximum(np.abs(nu), floor)
    + np.stop_gradient(np.maximum(np.abs(nu), floor))

    @ gru _gru.py _gates

    state's paths through both gates left out of the gradient
    - r = sigmoid(_times(h, Wr) + xr)
    - f = sigmoid(_times(h, Wf) + xf)
    + r = sigmoid(_times(np.stop_gradient(h), Wr) + xr)
    + f = sigmoid(_times(np.stop_gradient(h), Wf) + xf)

    @ slstm _slstm.py _step

    stabiliser m held constant in the gradient
    - np.maximum(a + m, u.i)
    + np.stop_gradient(np.maximum(a + m, u.i))

    stabiliser m held constant in the gradient where it is subtracted, but not where it is carried
    - decay, gain = np.exp(stabilised_decay(a, m, m_new)), exp_difference(u.i, m_new)
    + decay = np.exp(stabilised_decay(a, m, np.stop_gradient(m_new)))
    + gain = exp_difference(u.i, np.stop_gradient(m_new))

    normaliser n held constant in the gradient
    - _quotient(c, n)
    + _quotient(c, np.stop_gradient(n))

    path through the recurrent weights left out of the gradient
    - _times(h, W)
    + _times(np.stop_gradient(h), W)
""")
