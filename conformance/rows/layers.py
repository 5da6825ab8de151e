"""Faults of the layers `GRU` and `mLSTMBackendFwbw`."""

from conformance.rows.row import changes

ROWS = changes("""
    @ GRU _modules.py GRU.__call__

    projection split in the order x, r, f
    - x, xf, xr = np.split(heads, np.cumsum(self.input_heads)[:-1], axis=-2)
    + Nx, Nxf, Nxr = self.input_heads
    + x, xr, xf = np.split(heads, np.cumsum((Nx, Nxr, Nxf))[:-1], axis=-2)

    @ GRU _modules.py project

    bias held and not added
    - x @ projection["kernel"] + projection.get("bias", 0.0)
    + x @ projection["kernel"]

    @ GRU _modules.py GRU.__init__

    a weight left at zero
    - uniform(H, call["Nwr"], H, H)
    + np.zeros((call["Nwr"], H, H))

    a bias left at zero
    - uniform(H, call["Nw"], H)
    + np.zeros((call["Nw"], H))

    head count of one weight for another
    - call["Nwf"]
    + call["Nw"]

    weights drawn by the size of the whole state
    - uniform(H, call["Nw"], H, H)
    + uniform(N * H, call["Nw"], H, H)

    seed accepted and ignored
    - np.random.default_rng(rng)
    + np.random.default_rng(0)

    @ GRU _modules.py GRU.__call__

    heads flattened after their dims
    - y.reshape
    + y.mT.reshape

    recurrent bias held and not added
    - self.params.get("recurrent_bias")
    + None

    initial state accepted and ignored
    - None if input_state is None else float64(input_state)
    + None

    @ mLSTMBackendFwbw _modules.py mLSTMBackendFwbw.__call__

    return_last_states accepted and ignored
    - self.config.return_state or return_last_states
    + self.config.return_state

    final state returned by the call's word alone
    - self.config.return_state or return_last_states
    + return_last_states

    stabiliser of the initial state taken for zero
    - mlstm_fwbw_custom_grad(config)(q, k, v, i, f, c_initial, n_initial, m_initial)
    + mlstm_fwbw_custom_grad(config)(
    +     q, k, v, i, f, c_initial, n_initial, m_initial if m_initial is None else 0 * m_initial
    + )

    @ mLSTMBackendFwbw arguments.py mLSTMBackendFwbwConfig

    another default
    - stabilize_correctly: bool = False
    + stabilize_correctly: bool = True

    @ mLSTMBackendFwbw arguments.py mLSTMBackendFwbwConfig.assign_model_config_params

    nothing taken over from a model's configuration
    - hasattr(model_config, field.name)
    + hasattr(model_config, f"config.{field.name}")
""")
