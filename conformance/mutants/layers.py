"""Faults of the layers `GRU` and `mLSTMBackendFwbw`."""

from conformance.mutants._mutant import Mutant

_RETURN = '"return_state": self.config.return_state or return_last_states}'
_CALL = "mlstm_fwbw_custom_grad(config)(q, k, v, i, f, c_initial, n_initial, m_initial)"

ROWS = (
    Mutant(
        "GRU",
        "projection split in the order x, r, f",
        "_modules.py",
        "        x, xf, xr = np.split(heads, np.cumsum(self.input_heads)[:-1], axis=-2)\n",
        "        Nx, Nxf, Nxr = self.input_heads\n"
        "        x, xr, xf = np.split(heads, np.cumsum((Nx, Nxr, Nxf))[:-1], axis=-2)\n",
    ),
    Mutant("GRU", "bias held and not added", "_modules.py", ' + projection.get("bias", 0.0)', ""),
    Mutant(
        "GRU",
        "a weight left at zero",
        "_modules.py",
        '"reset_weight": uniform(H, call["Nwr"], H, H)',
        '"reset_weight": np.zeros((call["Nwr"], H, H))',
    ),
    Mutant(
        "GRU",
        "head count of one weight for another",
        "_modules.py",
        '"forget_weight": uniform(H, call["Nwf"], H, H)',
        '"forget_weight": uniform(H, call["Nw"], H, H)',
    ),
    Mutant(
        "GRU",
        "weights drawn by the size of the whole state",
        "_modules.py",
        '"state_weight": uniform(H, call["Nw"], H, H)',
        '"state_weight": uniform(N * H, call["Nw"], H, H)',
    ),
    Mutant("GRU", "seed accepted and ignored", "_modules.py", "np.random.default_rng(rng)", "np.random.default_rng(0)"),
    Mutant(
        "GRU",
        "heads flattened after their dims",
        "_modules.py",
        "joined = y.reshape(*y.shape[:-2], ",
        "joined = y.mT.reshape(*y.shape[:-2], ",
    ),
    Mutant(
        "GRU",
        "initial state accepted and ignored",
        "_modules.py",
        "        state = None if input_state is None else float64(input_state)\n",
        "        state = None\n",
    ),
    Mutant(
        "mLSTMBackendFwbw",
        "return_last_states accepted and ignored",
        "_modules.py",
        _RETURN,
        _RETURN.replace(" or return_last_states", ""),
    ),
    Mutant(
        "mLSTMBackendFwbw",
        "final state returned by the call's word alone",
        "_modules.py",
        _RETURN,
        _RETURN.replace("self.config.return_state or ", ""),
    ),
    Mutant(
        "mLSTMBackendFwbw",
        "stabiliser of the initial state taken for zero",
        "_modules.py",
        _CALL,
        _CALL.replace("m_initial)", "m_initial if m_initial is None else 0 * m_initial)"),
    ),
    Mutant(
        "mLSTMBackendFwbw",
        "another default",
        "arguments.py",
        "    stabilize_correctly: bool = False\n",
        "    stabilize_correctly: bool = True\n",
    ),
    Mutant(
        "mLSTMBackendFwbw",
        "nothing taken over from a model's configuration",
        "arguments.py",
        "            if hasattr(model_config, field.name):\n",
        '            if hasattr(model_config, f"config.{field.name}"):\n',
    ),
)
