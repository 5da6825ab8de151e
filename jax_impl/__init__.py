"""JAX implementation of gatespec: the contract's operations as JAX code and Pallas kernels, fully transformable."""

import _gatespec_clash  # noqa: F401  # before `reference` is imported
from jax_impl._accumulate import accumulate_gradients, accumulate_gradients_loop, accumulate_gradients_scan
from jax_impl._backends import KernelBackend, explain_backend
from jax_impl._decay import causal_forget_matrix, dtilde_matrix
from jax_impl._gated_delta_rule.api import gated_delta_rule, gated_delta_step
from jax_impl._gru.api import gru
from jax_impl._mlstm.api import mlstm, mlstm_step
from jax_impl._mlstm.fwbw import fwbw_backward, fwbw_forward, mlstm_fwbw_custom_grad
from jax_impl._mlstm.layer import mLSTM
from jax_impl._modules import GRU, mLSTMBackendFwbw
from jax_impl._scan import rev_cumsum, rev_cumsum_off
from jax_impl._sharding import fold_rng_over_axis, split_array_over_mesh, stack_params, unstack_params
from jax_impl._slstm.api import slstm, slstm_step
from jax_impl._slstm.layer import sLSTM
from reference.arguments import MLSTMState, SLSTMState, mLSTMBackendFwbwConfig

__conformance__ = "gatespec"
__version__ = "0.1.0"
__all__ = [
    "GRU",
    "KernelBackend",
    "MLSTMState",
    "SLSTMState",
    "accumulate_gradients",
    "accumulate_gradients_loop",
    "accumulate_gradients_scan",
    "causal_forget_matrix",
    "dtilde_matrix",
    "explain_backend",
    "fold_rng_over_axis",
    "fwbw_backward",
    "fwbw_forward",
    "gated_delta_rule",
    "gated_delta_step",
    "gru",
    "mLSTM",
    "mLSTMBackendFwbw",
    "mLSTMBackendFwbwConfig",
    "mlstm",
    "mlstm_fwbw_custom_grad",
    "mlstm_step",
    "rev_cumsum",
    "rev_cumsum_off",
    "sLSTM",
    "slstm",
    "slstm_step",
    "split_array_over_mesh",
    "stack_params",
    "unstack_params",
]
