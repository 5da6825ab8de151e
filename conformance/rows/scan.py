"""Faults of the reverse cumulative sums."""

from conformance.rows.row import changes

ROWS = changes("""
    @ rev_cumsum _scan.py rev_cumsum

    output is the input's memory
    - float64(x)
    + x if x.dtype == np.float64 else float64(x)

    first element is not summed
    - range(y.shape[-1] - 1)
    + range(1, y.shape[-1] - 1)

    all axes are reversed
    - for t in reversed(range(y.shape[-1] - 1)):
    -     y[..., t] += y[..., t + 1]
    - return y
    + return np.flip(np.cumsum(np.flip(y), axis=-1), axis=-1)

    total less the sum of the earlier steps
    - for t in reversed(range(y.shape[-1] - 1)):
    -     y[..., t] += y[..., t + 1]
    - return y
    + return y.sum(axis=-1, keepdims=True) - np.cumsum(y, axis=-1) + y

    carry lost between blocks of 512 steps
    - y[..., t] += y[..., t + 1]
    + if (t + 1) % 512:
    +     ...

    summed in float32
    - float64(x)
    + x.astype(np.float32).astype(np.float64)

    @ rev_cumsum _scan.py rev_cumsum_backward

    gradient leaves out the element's own cotangent
    - np.cumsum(float64(dy), axis=-1)
    + np.cumsum(float64(dy), axis=-1) - dy

    gradient sums the same way as the value
    - np.cumsum(float64(dy), axis=-1)
    + np.flip(np.cumsum(np.flip(float64(dy), axis=-1), axis=-1), axis=-1)

    gradient written into the cotangent
    - np.cumsum(float64(dy), axis=-1)
    + np.cumsum(dy, axis=-1, out=dy)

    @ rev_cumsum_off _scan.py rev_cumsum_off

    the element itself is summed
    - y[..., :-1] = rev_cumsum(x)[..., 1:]
    + y[...] = rev_cumsum(x)

    last step holds what was rolled around
    - y[..., :-1] = rev_cumsum(x)[..., 1:]
    - return y
    + return np.roll(rev_cumsum(x), -1, axis=-1)

    whole sum less the element
    - y[..., :-1] = rev_cumsum(x)[..., 1:]
    - return y
    + return rev_cumsum(x) - x

    @ rev_cumsum_off _scan.py rev_cumsum_off_backward

    gradient has the element's own cotangent
    - dx[..., 1:] = np.cumsum(float64(dy), axis=-1)[..., :-1]
    + dx[...] = np.cumsum(float64(dy), axis=-1)

    gradient one step late
    - np.cumsum(float64(dy), axis=-1)[..., :-1]
    + np.cumsum(float64(dy)[..., 1:], axis=-1)
""")
