"""Faults of the decay matrices."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="causal_forget_matrix",
        name="difference of two cumulative sums",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="""
            F[..., j, j] = 0.0
            F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
        """,
        by="""
            b = np.cumsum(a, axis=-1)
            F[..., j:, j] = b[..., j:] - b[..., j, None]
        """,
    ),
    Mutant(
        op="causal_forget_matrix",
        name="difference of sums of gates that are held above -1e4",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="""
            F[..., j, j] = 0.0
            F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
        """,
        by="""
            b = np.cumsum(np.maximum(a, -10000.0), axis=-1)
            F[..., j:, j] = b[..., j:] - b[..., j, None]
        """,
    ),
    Mutant(
        op="causal_forget_matrix",
        name="closed gate is a large finite number",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="float64(forget_gates)",
        by="np.maximum(float64(forget_gates), -1e30)",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="step is decayed by its own gate",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="""
            F[..., j, j] = 0.0
            F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
        """,
        by="F[..., j:, j] = np.cumsum(a[..., j:], axis=-1)",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="gates one step early",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="a[..., j + 1 :]",
        by="a[..., j:-1]",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="masked with a large finite number",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="np.inf",
        by="1e30",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="wrong beyond 128 steps",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="0.0",
        by="0.0 if j < 128 else -np.inf",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="answers in float32",
        module="_decay.py",
        function="causal_forget_matrix",
        replace="return F",
        by="return F.astype(np.float32)",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="causal mask off by one in the gradient",
        module="_decay.py",
        function="causal_forget_matrix_backward",
        replace="np.tril(float64(dF), -1)",
        by="np.tril(float64(dF), -2)",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="gradient has the column of the gate itself",
        module="_decay.py",
        function="causal_forget_matrix_backward",
        replace="dF[..., s:, :s]",
        by="dF[..., s:, : s + 1]",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="gradient leaves out the row of the gate itself",
        module="_decay.py",
        function="causal_forget_matrix_backward",
        replace="dF[..., s:, :s]",
        by="dF[..., s + 1 :, :s]",
    ),
    Mutant(
        op="causal_forget_matrix",
        name="gradient of a closed gate is zero",
        module="_decay.py",
        function="causal_forget_matrix_backward",
        replace='{"forget_gates": da}',
        by='{"forget_gates": np.where(np.isneginf(forget_gates), 0.0, da)}',
    ),
    Mutant(
        op="dtilde_matrix",
        name="input gate of the row, not of the column",
        module="_decay.py",
        function="dtilde_matrix",
        replace="float64(igate)[..., None, :, 0]",
        by="float64(igate)",
    ),
    Mutant(
        op="dtilde_matrix",
        name="log of a sigmoid that has underflowed",
        module="_decay.py",
        function="dtilde_matrix",
        replace="log_sigmoid(float64(fgate)[..., 0])",
        by="np.log(1 / (1 + np.exp(-float64(fgate)[..., 0])))",
    ),
    Mutant(
        op="dtilde_matrix",
        name="sigmoid of the forget gate, not its logarithm",
        module="_decay.py",
        function="dtilde_matrix",
        replace="log_sigmoid(float64(fgate)[..., 0])",
        by="sigmoid(float64(fgate)[..., 0])",
    ),
    Mutant(
        op="dtilde_matrix",
        name="masked rows left out of the input gate's gradient",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="float64(dD)",
        by="np.tril(float64(dD))",
    ),
    Mutant(
        op="dtilde_matrix",
        name="input gate's gradient sums columns",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="-2",
        by="-1",
    ),
    Mutant(
        op="dtilde_matrix",
        name="forget gate's gradient times sigmoid of the gate",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="-float64(fgate)",
        by="float64(fgate)",
    ),
    Mutant(
        op="dtilde_matrix",
        name="derivative of the sigmoid, not of its logarithm",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="sigmoid(-float64(fgate))",
        by="sigmoid(-float64(fgate)) * sigmoid(float64(fgate))",
    ),
    Mutant(
        op="dtilde_matrix",
        name="one minus a sigmoid that has rounded to one",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="sigmoid(-float64(fgate))",
        by="1 - sigmoid(float64(fgate))",
    ),
    Mutant(
        op="dtilde_matrix",
        name="an axis of the input gate's gradient is lost",
        module="_decay.py",
        function="dtilde_matrix_backward",
        replace="float64(dD).sum(axis=-2)[..., None]",
        by="float64(dD).sum(axis=-2)",
    ),
)
