"""mlstm_kernels (JAX): both recurrent sequence functions raise where they are given an initial state.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_state.py

They look at `scaM_initial.axis()`; a jax.Array has `ndim`, not `axis`.
"""

import _jax_alone  # noqa: F401
import jax.numpy as jnp
from _shared import verdict
from mlstm_kernels.jax.recurrent import native_sequence, native_sequence_scan

B, N, S, K = 1, 2, 3, 4
q = k = v = jnp.ones((B, N, S, K))
i = f = jnp.zeros((B, N, S))
state = {"c_initial": jnp.zeros((B, N, K, K)), "n_initial": jnp.zeros((B, N, K)), "m_initial": jnp.zeros((B, N))}
wrong = False
for module in (native_sequence, native_sequence_scan):
    function = module.mlstm_recurrent_sequence__native_fw
    print(f"{module.__name__}: without a state {function(q, k, v, i, f).shape}", end="; ")
    try:
        print(f"with zeros for a state {function(q, k, v, i, f, **state).shape}")
    except AttributeError as error:
        print(f"with zeros for a state: AttributeError: {error}")
        wrong = True
verdict(wrong)
