"""xlstm, in chunks or parallel: after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install xlstm torch && python xlstm_forget_gate.py

Log decays are differences of one running sum of log σ(f). A large |log σ(f_3)| in that sum takes away the digits of
all gates after it, and −∞ leaves −∞ − (−∞), which is NaN. The package's own step, applied S times, has no such
difference: what it returns after step 3 does not depend on f_3 at all once σ(f_3) is 0. All are compared here, in
float64.
"""

import torch
from _shared import verdict
from xlstm.blocks.mlstm.backends import chunkwise_simple, parallel_stabilized_simple, recurrent_step_stabilized_simple

torch.manual_seed(0)
S, K = 8, 4
q, k, v = (torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv")
i, f = torch.randn(1, 1, S, dtype=torch.float64), 1 + torch.randn(1, 1, S, dtype=torch.float64)


def steps():
    state = (q.new_zeros(1, 1, K, K), q.new_zeros(1, 1, K, 1), q.new_zeros(1, 1, 1, 1))
    rows = []
    for t in range(S):
        now = [x[:, :, t : t + 1].clone() for x in (q, k, v, i[..., None], f[..., None])]
        h, state = recurrent_step_stabilized_simple(*state, *now, eps=0.0)
        rows.append(h)
    return torch.cat(rows, 2)


wrong = False
for gate in (-1e2, -1e8, -1e14, -1e30, -torch.inf):
    f[..., 3] = gate
    right = steps()
    found = {
        "parallel_stabilized_simple": parallel_stabilized_simple(q, k, v, i[..., None], f[..., None], eps=0.0),
        "chunkwise_simple": chunkwise_simple(q, k, v, i, f, eps=0.0, chunk_size=S),
    }
    errors = {name: (h - right).abs().max().item() for name, h in found.items()}
    print(f"f_3 = {gate:6.0e}: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()))
    wrong |= not max(errors.values()) < 1e-6
verdict(wrong)
