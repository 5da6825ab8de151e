"""mlstm_kernels (JAX): the custom backward passes treat the normaliser as a constant.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_normaliser.py

h_t = (Σ_j w_tj v_j) / max(|Σ_j w_tj|, exp(−m_t)), and both sums depend on q, k, i and f. The derivative of Σ h·dh
along a random direction of one argument is taken of two functions of the package with the same forward pass: that
with a custom backward pass (which takes float32 and 16 bits), and that under JAX's own differentiation, in float64;
and next to both stands the difference quotient of the latter, in float64.
"""

import _jax_alone  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
from _shared import quotient, verdict
from mlstm_kernels.jax.parallel import registry

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
B, N, S, K = 1, 2, 16, 8
arrays = [2 * rng.standard_normal((B, N, S, K)) for _ in "qkv"]
arrays += [rng.standard_normal((B, N, S)), 3 + rng.standard_normal((B, N, S))]
dh = rng.standard_normal((B, N, S, K))
wrong = False
for form in ("native", "native_stablef"):
    custom, plain = registry[f"{form}_custbw"], registry[f"{form}_autograd"]

    def total(*arrays, kernel=plain):
        return (kernel(*arrays, eps=0.0) * dh).sum()

    narrow = [jnp.asarray(x, jnp.float32) for x in arrays]
    gap = jnp.abs(custom(*narrow, eps=0.0) - plain(*arrays, eps=0.0)).max()
    print(f"parallel.{form}_custbw: forward passes differ by {gap:.0e}")
    print(f"  {'':6}{'difference':>14}{'autograd':>14}{'its backward':>14}")
    gradients = jax.grad(total, range(5))(*map(jnp.asarray, arrays))
    own = jax.grad(lambda *x, custom=custom: (custom(*x, eps=0.0) * dh).sum(), range(5))(*narrow)
    for at, letter in enumerate("qkvif"):
        direction = rng.standard_normal(arrays[at].shape)
        exact = float(quotient(total, arrays, at, direction, 1e-6))
        found = [float((g[at] * direction).sum()) for g in (gradients, own)]
        print(f"  d{letter:5}{exact:14.5f}{found[0]:14.5f}{found[1]:14.5f}")
        wrong |= abs(found[1] - exact) > 1e-2 * abs(exact)
verdict(wrong)
