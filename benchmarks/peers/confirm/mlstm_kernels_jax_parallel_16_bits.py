"""mlstm_kernels (JAX): the native parallel functions form weights, sums and decays in the 16 bits of their inputs.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_parallel_16_bits.py

The same 16-bit numbers are given to each function in their own dtype, and in float32, whose result is rounded once at
the end. Both are compared with the function that is differentiated by JAX, in float64, in units of one rounding of the
largest result.
"""

import _jax_alone  # noqa: F401
import jax
import jax.numpy as jnp
import numpy as np
from _shared import verdict
from mlstm_kernels.jax.parallel import registry

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
B, N, S, K = 1, 2, 64, 8
arrays = [rng.standard_normal((B, N, S, K)) for _ in "qkv"]
arrays += [rng.standard_normal((B, N, S)), 3 + rng.standard_normal((B, N, S))]
wrong = False
for name in ("native_autograd", "native_custbw", "native_stablef_autograd", "native_stablef_custbw"):
    for dtype in (jnp.bfloat16, jnp.float16):
        narrow = [jnp.asarray(x, dtype) for x in arrays]
        exact = registry[name.replace("custbw", "autograd")](*(x.astype(float) for x in narrow), eps=0.0)
        unit = jnp.finfo(dtype).eps / 2 * jnp.abs(exact).max()
        options = {"autocast_kernel_dtype": dtype} if "custbw" in name else {}
        own = registry[name](*narrow, eps=0.0, **options)
        once = registry[name](*(x.astype(jnp.float32) for x in narrow), eps=0.0, **dict.fromkeys(options, jnp.float32))
        off, least = (float(jnp.abs(h.astype(dtype).astype(float) - exact).max() / unit) for h in (own, once))
        kind = jnp.dtype(dtype).name
        print(f"parallel.{name:24}{kind:9}: off by {off:6.1f} roundings; in float32 and rounded once: {least:.1f}")
        wrong |= off > 4 * least
verdict(wrong)
