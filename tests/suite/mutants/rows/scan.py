"""Faults of the reverse cumulative sums."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="rev_cumsum",
        name="output is the input's memory",
        module="_scan.py",
        function="rev_cumsum",
        replace="float64(x)",
        by="x if x.dtype == np.float64 else float64(x)",
    ),
    Mutant(
        op="rev_cumsum",
        name="first element is not summed",
        module="_scan.py",
        function="rev_cumsum",
        replace="range(y.shape[-1] - 1)",
        by="range(1, y.shape[-1] - 1)",
    ),
    Mutant(
        op="rev_cumsum",
        name="all axes are reversed",
        module="_scan.py",
        function="rev_cumsum",
        replace="""
            for t in reversed(range(y.shape[-1] - 1)):
                y[..., t] += y[..., t + 1]
            return y
        """,
        by="return np.flip(np.cumsum(np.flip(y), axis=-1), axis=-1)",
    ),
    Mutant(
        op="rev_cumsum",
        name="total less the sum of what came before",
        module="_scan.py",
        function="rev_cumsum",
        replace="""
            for t in reversed(range(y.shape[-1] - 1)):
                y[..., t] += y[..., t + 1]
            return y
        """,
        by="return y.sum(axis=-1, keepdims=True) - np.cumsum(y, axis=-1) + y",
    ),
    Mutant(
        op="rev_cumsum",
        name="carry lost between blocks of 512 steps",
        module="_scan.py",
        function="rev_cumsum",
        replace="y[..., t] += y[..., t + 1]",
        by="""
            if (t + 1) % 512:
                y[..., t] += y[..., t + 1]
        """,
    ),
    Mutant(
        op="rev_cumsum",
        name="summed in float32",
        module="_scan.py",
        function="rev_cumsum",
        replace="float64(x)",
        by="x.astype(np.float32).astype(np.float64)",
    ),
    Mutant(
        op="rev_cumsum",
        name="gradient leaves out the element's own cotangent",
        module="_scan.py",
        function="rev_cumsum_backward",
        replace="np.cumsum(float64(dy), axis=-1)",
        by="np.cumsum(float64(dy), axis=-1) - dy",
    ),
    Mutant(
        op="rev_cumsum",
        name="gradient sums the same way as the value",
        module="_scan.py",
        function="rev_cumsum_backward",
        replace="np.cumsum(float64(dy), axis=-1)",
        by="np.flip(np.cumsum(np.flip(float64(dy), axis=-1), axis=-1), axis=-1)",
    ),
    Mutant(
        op="rev_cumsum",
        name="gradient written into the cotangent",
        module="_scan.py",
        function="rev_cumsum_backward",
        replace="np.cumsum(float64(dy), axis=-1)",
        by="np.cumsum(dy, axis=-1, out=dy)",
    ),
    Mutant(
        op="rev_cumsum_off",
        name="the element itself is summed",
        module="_scan.py",
        function="rev_cumsum_off",
        replace="y[..., :-1] = rev_cumsum(x)[..., 1:]",
        by="y[...] = rev_cumsum(x)",
    ),
    Mutant(
        op="rev_cumsum_off",
        name="last step holds what was rolled around",
        module="_scan.py",
        function="rev_cumsum_off",
        replace="""
            y[..., :-1] = rev_cumsum(x)[..., 1:]
            return y
        """,
        by="return np.roll(rev_cumsum(x), -1, axis=-1)",
    ),
    Mutant(
        op="rev_cumsum_off",
        name="whole sum less the element",
        module="_scan.py",
        function="rev_cumsum_off",
        replace="""
            y[..., :-1] = rev_cumsum(x)[..., 1:]
            return y
        """,
        by="return rev_cumsum(x) - x",
    ),
    Mutant(
        op="rev_cumsum_off",
        name="gradient has the element's own cotangent",
        module="_scan.py",
        function="rev_cumsum_off_backward",
        replace="dx[..., 1:] = np.cumsum(float64(dy), axis=-1)[..., :-1]",
        by="dx[...] = np.cumsum(float64(dy), axis=-1)",
    ),
    Mutant(
        op="rev_cumsum_off",
        name="gradient one step late",
        module="_scan.py",
        function="rev_cumsum_off_backward",
        replace="np.cumsum(float64(dy), axis=-1)[..., :-1]",
        by="np.cumsum(float64(dy)[..., 1:], axis=-1)",
    ),
)
