"""PyTorch implementation of gatespec: composed of PyTorch operators on any device, or by Triton kernels."""

import _gatespec_clash  # noqa: F401  # before `reference` is imported
from reference.arguments import MLSTMState, SLSTMState, mLSTMBackendFwbwConfig
from torch_impl._accumulate import accumulate_gradients, accumulate_gradients_loop, accumulate_gradients_scan
from torch_impl._backends import KernelBackend, explain_backend
from torch_impl._decay.api import causal_forget_matrix, dtilde_matrix
from torch_impl._gated_delta_rule.api import gated_delta_rule, gated_delta_step
from torch_impl._gru.api import gru
from torch_impl._mlstm.api import mlstm, mlstm_step
from torch_impl._mlstm.fwbw import fwbw_backward, fwbw_forward, mlstm_fwbw_custom_grad
from torch_impl._mlstm.layer import mLSTM
from torch_impl._modules import GRU, mLSTMBackendFwbw
from torch_impl._scan.api import rev_cumsum, rev_cumsum_off
from torch_impl._sharding import Partitioned, fold_rng_over_axis, split_array_over_mesh, stack_params, unstack_params
from torch_impl._slstm.api import slstm, slstm_step
from torch_impl._slstm.layer import sLSTM

__conformance__ = "gatespec"
__version__ = "0.1.0"
__all__ = [
    "GRU",
    "KernelBackend",
    "MLSTMState",
    "Partitioned",
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
