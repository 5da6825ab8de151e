"""Faults of the reverse cumulative sums."""

from conformance.mutants._mutant import Mutant

ROWS = (
    Mutant(
        "rev_cumsum",
        "output is the input's memory",
        "_scan.py",
        "    y = float64(x)\n",
        "    y = x if x.dtype == np.float64 else float64(x)\n",
    ),
    Mutant(
        "rev_cumsum",
        "first element is not summed",
        "_scan.py",
        "for t in reversed(range(y.shape[-1] - 1)):",
        "for t in reversed(range(1, y.shape[-1] - 1)):",
    ),
    Mutant(
        "rev_cumsum",
        "all axes are reversed",
        "_scan.py",
        "    for t in reversed(range(y.shape[-1] - 1)):\n        y[..., t] += y[..., t + 1]\n    return y\n",
        "    return np.flip(np.cumsum(np.flip(y), axis=-1), axis=-1)\n",
    ),
    Mutant(
        "rev_cumsum",
        "total less the sum of what came before",
        "_scan.py",
        "    for t in reversed(range(y.shape[-1] - 1)):\n        y[..., t] += y[..., t + 1]\n    return y\n",
        "    return y.sum(axis=-1, keepdims=True) - np.cumsum(y, axis=-1) + y\n",
    ),
    Mutant(
        "rev_cumsum",
        "carry lost between blocks of 512 steps",
        "_scan.py",
        "        y[..., t] += y[..., t + 1]\n",
        "        if (t + 1) % 512:\n            y[..., t] += y[..., t + 1]\n",
    ),
    Mutant(
        "rev_cumsum",
        "summed in float32",
        "_scan.py",
        "    y = float64(x)\n",
        "    y = x.astype(np.float32).astype(np.float64)\n",
    ),
    Mutant(
        "rev_cumsum",
        "gradient leaves out the element's own cotangent",
        "_scan.py",
        '    return {"x": np.cumsum(float64(dy), axis=-1)}',
        '    return {"x": np.cumsum(float64(dy), axis=-1) - dy}',
    ),
    Mutant(
        "rev_cumsum",
        "gradient sums the same way as the value",
        "_scan.py",
        '    return {"x": np.cumsum(float64(dy), axis=-1)}',
        '    return {"x": np.flip(np.cumsum(np.flip(float64(dy), axis=-1), axis=-1), axis=-1)}',
    ),
    Mutant(
        "rev_cumsum",
        "gradient written into the cotangent",
        "_scan.py",
        '    return {"x": np.cumsum(float64(dy), axis=-1)}',
        '    return {"x": np.cumsum(dy, axis=-1, out=dy)}',
    ),
    Mutant(
        "rev_cumsum_off",
        "the element itself is summed",
        "_scan.py",
        "    y[..., :-1] = rev_cumsum(x)[..., 1:]\n    return y\n",
        "    y[...] = rev_cumsum(x)\n    return y\n",
    ),
    Mutant(
        "rev_cumsum_off",
        "last step holds what was rolled around",
        "_scan.py",
        "    y[..., :-1] = rev_cumsum(x)[..., 1:]\n    return y\n",
        "    return np.roll(rev_cumsum(x), -1, axis=-1)\n",
    ),
    Mutant(
        "rev_cumsum_off",
        "whole sum less the element",
        "_scan.py",
        "    y[..., :-1] = rev_cumsum(x)[..., 1:]\n    return y\n",
        "    return rev_cumsum(x) - x\n",
    ),
    Mutant(
        "rev_cumsum_off",
        "gradient has the element's own cotangent",
        "_scan.py",
        "    dx[..., 1:] = np.cumsum(float64(dy), axis=-1)[..., :-1]\n",
        "    dx[...] = np.cumsum(float64(dy), axis=-1)\n",
    ),
    Mutant(
        "rev_cumsum_off",
        "gradient one step late",
        "_scan.py",
        "    dx[..., 1:] = np.cumsum(float64(dy), axis=-1)[..., :-1]\n",
        "    dx[..., 1:] = np.cumsum(float64(dy)[..., 1:], axis=-1)\n",
    ),
)
