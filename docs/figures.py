"""Draws the README's picture: a decay matrix, and how far each backend is from the oracle as sequences grow."""

from pathlib import Path

import jax
import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch

import jax_impl
import reference
import torch_impl

LENGTHS = (16, 64, 256, 1024, 4096)
N, K, V = 2, 32, 32
COLOURS = {"torch_impl": "#d1495b", "jax_impl": "#2e7dba", "closed form": "#9a9a9a"}


def draw_inputs(S: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(S)
    q, k = rng.normal(size=(2, 1, S, N, K)).astype(np.float32)
    v = rng.normal(size=(1, S, N, V)).astype(np.float32)
    i, f = rng.normal(size=(2, 1, S, N)).astype(np.float32)
    return q, k, v, i, f + 4


def run(arrays: tuple[np.ndarray, ...], dh: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """h, then the gradients of q, k, v, i, f, of each implementation in float32."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    h = torch_impl.mlstm(*tensors)
    gradients = torch.autograd.grad(h, tensors, torch.tensor(dh))
    results = {"torch_impl": (h.detach().numpy(), *(x.numpy() for x in gradients))}
    h, vjp = jax.vjp(jax_impl.mlstm, *arrays)
    results["jax_impl"] = (np.asarray(h), *(np.asarray(x) for x in vjp(dh)))
    return results


def gradient_by_difference(arrays: tuple[np.ndarray, ...], dq: np.ndarray, dk: np.ndarray) -> np.ndarray:
    """df by the closed form d log σ(f_t) = Σ_{s≥t}(q·dq − k·dk)_s in float32, for comparison: its terms cancel."""
    q, k, _, _, f = arrays
    flow = (q * dq).sum(-1, dtype=np.float32) - (k * dk).sum(-1, dtype=np.float32)
    return np.flip(np.cumsum(np.flip(flow, 1), axis=1, dtype=np.float32), 1) / (1 + np.exp(f))


def median_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.median(np.abs(got - expected) / np.maximum(np.abs(expected), 1e-30)))


def main(path: Path) -> None:
    errors: dict[str, dict[str, list[float]]] = {"h": {}, "df": {}}
    for S in LENGTHS:
        arrays = draw_inputs(S)
        dh = np.random.default_rng(S + 1).normal(size=arrays[2].shape).astype(np.float32)
        expected_h, exact = reference.mlstm(*arrays), reference.mlstm_backward(*arrays, dh=dh)
        results = run(arrays, dh)
        for name, (h, *_, df) in results.items():
            errors["h"].setdefault(name, []).append(median_error(h, expected_h))
            errors["df"].setdefault(name, []).append(median_error(df, exact["f"]))
        by_difference = gradient_by_difference(arrays, *results["torch_impl"][1:3])
        errors["df"].setdefault("closed form", []).append(median_error(by_difference, exact["f"]))

    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "gatespec", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.1), layout="constrained")
    rng = np.random.default_rng(7)
    gates = rng.normal(size=(2, 32, 1))
    gates[1] += 1.5
    gates[1, 19] = -np.inf
    D = reference.dtilde_matrix(*gates)
    image = left.imshow(np.exp(np.minimum(D, 3)), cmap="magma_r")
    left.set(title="exp D̃, a hard reset at step 19", xlabel="written at step j", ylabel="read at step t")
    figure.colorbar(image, ax=left, shrink=0.85)
    for axis, quantity, title in ((middle, "h", "output"), (right, "df", "forget gate gradient")):
        for name, values in errors[quantity].items():
            axis.loglog(LENGTHS, values, "o-", label=name, color=COLOURS[name], markersize=3.5, linewidth=1.3)
        axis.axhline(2.0**-24, color="#bbbbbb", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="steps S", ylabel="median relative error, float32")
        axis.legend(frameon=False)
        axis.set_ylim(4e-8, 1e-4)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(__file__).parent / "figures" / "overview.svg")
