"""Other spellings and orders that are right for everyone: rows that no law may refuse."""

from conformance.rows.row import changes

ROWS = changes("""
    @ rev_cumsum _scan.py rev_cumsum

    summed from the end by one running sum
    - for t in reversed(range(y.shape[-1] - 1)):
    -     y[..., t] += y[..., t + 1]
    + y = np.flip(np.cumsum(np.flip(y, -1), axis=-1), -1)

    @ mlstm _gates.py log_sigmoid

    log sigmoid by the log of a sum of exponentials
    - np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))
    + -np.logaddexp(0.0, -x)

    @ mlstm _mlstm.py _read

    the numerator times the reciprocal of the normaliser
    - numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]
    + numerator * (1 / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps))[..., None]

    the scale of q after the products
    - q = q / np.sqrt(q.shape[-1])
    - numerator = np.einsum("...kv,...k->...v", C, q)
    - nu = np.einsum("...k,...k->...", n, q)
    + numerator = np.einsum("...kv,...k->...v", C, q) / np.sqrt(q.shape[-1])
    + nu = np.einsum("...k,...k->...", n, q) / np.sqrt(q.shape[-1])

    @ mlstm _mlstm.py _backward

    outer products of the memory's gradient by einsum
    - dC += q_hat[:, t, :, :, None] * delta[:, :, None, :]
    + dC += np.einsum("bnk,bnv->bnkv", q_hat[:, t], delta)

    @ gru _gru.py gru

    the state blended from the old one
    - h = f * h + (1 - f) * z
    + h = h + (1 - f) * (z - h)

    the state blended from the candidate
    - h = f * h + (1 - f) * z
    + h = z + f * (h - z)

    @ slstm _slstm.py _step

    the output gate times the memory before the normaliser
    - o * _quotient(c, n)
    + _quotient(o * c, n)

    the memory's log weight without the digits that the new stabiliser lost
    - np.exp(stabilised_decay(a, m, m_new))
    + exp_difference(a + m, m_new)

    @ slstm _slstm.py slstm_backward

    gates computed again in the backward pass
    - before, step = done[number - 1]
    + ...
    + step = _step(inputs.at(t), weights, before, forget_gate)._replace(state=step.state)
""")
