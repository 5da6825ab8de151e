"""Faults of the layers `GRU` and `mLSTMBackendFwbw`."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="GRU",
        name="projection split in the order x, r, f",
        module="_modules.py",
        function="GRU.__call__",
        replace="x, xf, xr = np.split(heads, np.cumsum(self.input_heads)[:-1], axis=-2)",
        by="""
            Nx, Nxf, Nxr = self.input_heads
            x, xr, xf = np.split(heads, np.cumsum((Nx, Nxr, Nxf))[:-1], axis=-2)
        """,
    ),
    Mutant(
        op="GRU",
        name="bias held and not added",
        module="_modules.py",
        function="_project",
        replace='x @ projection["kernel"] + projection.get("bias", 0.0)',
        by='x @ projection["kernel"]',
    ),
    Mutant(
        op="GRU",
        name="a weight left at zero",
        module="_modules.py",
        function="GRU.__init__",
        replace='uniform(H, call["Nwr"], H, H)',
        by='np.zeros((call["Nwr"], H, H))',
    ),
    Mutant(
        op="GRU",
        name="head count of one weight for another",
        module="_modules.py",
        function="GRU.__init__",
        replace='call["Nwf"]',
        by='call["Nw"]',
    ),
    Mutant(
        op="GRU",
        name="weights drawn by the size of the whole state",
        module="_modules.py",
        function="GRU.__init__",
        replace='uniform(H, call["Nw"], H, H)',
        by='uniform(N * H, call["Nw"], H, H)',
    ),
    Mutant(
        op="GRU",
        name="seed accepted and ignored",
        module="_modules.py",
        function="GRU.__init__",
        replace="np.random.default_rng(rng)",
        by="np.random.default_rng(0)",
    ),
    Mutant(
        op="GRU",
        name="heads flattened after their dims",
        module="_modules.py",
        function="GRU.__call__",
        replace="y.reshape",
        by="y.mT.reshape",
    ),
    Mutant(
        op="GRU",
        name="initial state accepted and ignored",
        module="_modules.py",
        function="GRU.__call__",
        replace="None if input_state is None else float64(input_state)",
        by="None",
    ),
    Mutant(
        op="mLSTMBackendFwbw",
        name="return_last_states accepted and ignored",
        module="_modules.py",
        function="mLSTMBackendFwbw.__call__",
        replace="self.config.return_state or return_last_states",
        by="self.config.return_state",
    ),
    Mutant(
        op="mLSTMBackendFwbw",
        name="final state returned by the call's word alone",
        module="_modules.py",
        function="mLSTMBackendFwbw.__call__",
        replace="self.config.return_state or return_last_states",
        by="return_last_states",
    ),
    Mutant(
        op="mLSTMBackendFwbw",
        name="stabiliser of the initial state taken for zero",
        module="_modules.py",
        function="mLSTMBackendFwbw.__call__",
        replace="mlstm_fwbw_custom_grad(config)(q, k, v, i, f, c_initial, n_initial, m_initial)",
        by="""
            mlstm_fwbw_custom_grad(config)(
                q, k, v, i, f, c_initial, n_initial, m_initial if m_initial is None else 0 * m_initial
            )
        """,
    ),
    Mutant(
        op="mLSTMBackendFwbw",
        name="another default",
        module="arguments.py",
        function="mLSTMBackendFwbwConfig",
        replace="stabilize_correctly: bool = False",
        by="stabilize_correctly: bool = True",
    ),
    Mutant(
        op="mLSTMBackendFwbw",
        name="nothing taken over from a model's configuration",
        module="arguments.py",
        function="mLSTMBackendFwbwConfig.assign_model_config_params",
        replace="hasattr(model_config, field.name)",
        by='hasattr(model_config, f"config.{field.name}")',
    ),
)
