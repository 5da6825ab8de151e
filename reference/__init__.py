"""The specification: every operation in float64 NumPy, one plain loop per law, every backward pass written out."""

from reference._accumulate import accumulate_gradients, accumulate_gradients_loop, accumulate_gradients_scan
from reference._backends import KernelBackend, explain_backend
from reference._decay import (
    causal_forget_matrix,
    causal_forget_matrix_backward,
    dtilde_matrix,
    dtilde_matrix_backward,
)
from reference._fwbw import fwbw_backward, fwbw_forward, mlstm_fwbw_custom_grad
from reference._gru import gru, gru_backward
from reference._linear_attention import (
    gated_delta_rule,
    gated_delta_rule_backward,
    gated_delta_step,
    gated_delta_step_backward,
    gla,
    gla_backward,
    kimi_delta_attention,
    kimi_delta_attention_backward,
    simple_gla,
    simple_gla_backward,
)
from reference._mlstm import (
    mlstm,
    mlstm_backward,
    mlstm_chunkwise,
    mlstm_parallel,
    mlstm_recurrent,
    mlstm_step,
    mlstm_step_backward,
)
from reference._mlstm_layer import mLSTM
from reference._mlstm_sharded import (
    MLSTMSummary,
    combine_mlstm_summaries,
    mlstm_sharded,
    mlstm_sharded_backward,
    mlstm_summary,
)
from reference._modules import GRU, mLSTMBackendFwbw
from reference._scan import rev_cumsum, rev_cumsum_backward, rev_cumsum_off, rev_cumsum_off_backward
from reference._sharding import fold_rng_over_axis, split_array_over_mesh, stack_params, unstack_params
from reference._slstm import slstm, slstm_backward, slstm_step, slstm_step_backward
from reference._slstm_layer import sLSTM
from reference._tree import Partitioned
from reference.arguments import MLSTMState, SLSTMState, mLSTMBackendFwbwConfig

__conformance__ = "gatespec"
__version__ = "0.1.0"
__all__ = [
    "GRU",
    "KernelBackend",
    "MLSTMState",
    "MLSTMSummary",
    "Partitioned",
    "SLSTMState",
    "accumulate_gradients",
    "accumulate_gradients_loop",
    "accumulate_gradients_scan",
    "causal_forget_matrix",
    "causal_forget_matrix_backward",
    "combine_mlstm_summaries",
    "dtilde_matrix",
    "dtilde_matrix_backward",
    "explain_backend",
    "fold_rng_over_axis",
    "fwbw_backward",
    "fwbw_forward",
    "gated_delta_rule",
    "gated_delta_rule_backward",
    "gated_delta_step",
    "gated_delta_step_backward",
    "gla",
    "gla_backward",
    "gru",
    "gru_backward",
    "kimi_delta_attention",
    "kimi_delta_attention_backward",
    "mLSTM",
    "mLSTMBackendFwbw",
    "mLSTMBackendFwbwConfig",
    "mlstm",
    "mlstm_backward",
    "mlstm_chunkwise",
    "mlstm_fwbw_custom_grad",
    "mlstm_parallel",
    "mlstm_recurrent",
    "mlstm_sharded",
    "mlstm_sharded_backward",
    "mlstm_step",
    "mlstm_step_backward",
    "mlstm_summary",
    "rev_cumsum",
    "rev_cumsum_backward",
    "rev_cumsum_off",
    "rev_cumsum_off_backward",
    "sLSTM",
    "simple_gla",
    "simple_gla_backward",
    "slstm",
    "slstm_backward",
    "slstm_step",
    "slstm_step_backward",
    "split_array_over_mesh",
    "stack_params",
    "unstack_params",
]
