"""Large gates of the mLSTM next to a NaN in another sequence, and on processors without fused multiply-add."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.both.with_torch import steps
from tests.large_gates import HUGE, huge
from torch_impl import mlstm, mlstm_fwbw_custom_grad, mLSTMBackendFwbwConfig


def test_a_reset_is_finite_without_fused_multiply_add():
    code = (
        "from tests.both import test_large_gates as t, with_torch\nfor row in t.RESETS: t.check_reset(with_torch, *row)"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "default"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def fwbw(keep):
    """The fwbw interface over the first head."""
    options = dict.fromkeys(("keep_G", "keep_gates", "keep_M", "keep_c"), keep)
    function = mlstm_fwbw_custom_grad(mLSTMBackendFwbwConfig(chunk_size=16, return_state=True, **options))
    return lambda *arrays, return_state: function(*(x[:, :, 0] for x in arrays))


def packed_apart(*arrays, **options):
    """The sequences of a batch as packed ones of equal length, which are computed in one group."""
    B, S = arrays[0].shape[:2]
    h, state = mlstm(*(x.flatten(0, 1) for x in arrays), cu_seqlens=S * torch.arange(B + 1), **options)
    return h.unflatten(0, (B, S)), state


FORMS = {
    "chunks": mlstm,
    "short chunks": lambda *arrays, **options: mlstm(*arrays, chunk_size=7, **options),
    "packed": packed_apart,
    "steps": lambda *arrays, return_state: (steps(*arrays), ()),
    "fwbw": fwbw(False),
    "fwbw with residuals": fwbw(True),
}


def with_gradients(function, arrays):
    """h, the final state, and the gradients of all arrays, by sequence."""
    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    h, state = function(*leaves, return_state=True)
    dh = torch.from_numpy(np.random.default_rng(0).normal(size=h.shape).astype(arrays[2].dtype))
    gradients = torch.autograd.grad([h, *state[:2]], leaves, [dh, *map(torch.ones_like, state[:2])])
    return [x.detach() for x in (h, *state, *gradients)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_a_nan_leaves_the_large_gates_of_other_sequences_to_the_bit(form, dtype):
    """Whether m is large is one answer for a batch or a group of sequences, and a NaN does not give it."""
    for size in HUGE[dtype][::3]:
        arrays = huge(size, dtype, S=20 if form == "steps" else 70)
        clean = with_gradients(FORMS[form], arrays)
        for b, name in ((0, "i"), (1, "f")):
            spoilt = [x.copy() for x in arrays]
            spoilt["qkvif".index(name)][b, 3, 0] = np.nan
            for x, y in zip(with_gradients(FORMS[form], spoilt), clean, strict=True):
                torch.testing.assert_close(x[1 - b], y[1 - b], rtol=0, atol=0)
                assert y.isfinite().all()
