"""The other program: answers test vectors in standard Python alone, and knows docs/test-vectors.md alone.

    python -I -S other_program.py VECTORS OUTPUTS [MISTAKE]

It knows five operations, and the gradient of two. MISTAKE plants one: ``carry`` (a packed sequence starts with its
predecessor's state), ``order`` (weights of grouped heads are dealt out in turn), ``nan``.
"""

import json
import math
import pathlib
import struct
import sys

LETTERS = {"F64": "d", "F32": "f", "F16": "e", "BF16": "H", "I32": "i"}
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
MISTAKE = sys.argv[3] if len(sys.argv) > 3 else ""


def read(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__":
            start, end = about["data_offsets"]
            letter = LETTERS[about["dtype"]]
            raw = data[8 + length + start : 8 + length + end]
            numbers = struct.unpack(f"<{len(raw) // struct.calcsize(letter)}{letter}", raw)
            if about["dtype"] == "BF16":
                numbers = [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in numbers]
            tensors[name] = Tensor(about["shape"], list(numbers))
    return tensors


def write(path, tensors):
    header, body = {}, b""
    for name, (dtype, tensor) in tensors.items():
        part = encoded(dtype, tensor.numbers)
        header[name] = {
            "dtype": CODES[dtype],
            "shape": tensor.shape,
            "data_offsets": [len(body), len(body) + len(part)],
        }
        body += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def encoded(dtype, numbers):
    if dtype != "bfloat16":
        return struct.pack(f"<{len(numbers)}{LETTERS[CODES[dtype]]}", *numbers)
    halves = []
    for number in numbers:
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
        halves.append(bits >> 16 if math.isinf(number) else (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    return struct.pack(f"<{len(halves)}H", *halves)


class Tensor:
    """Numbers in row-major order."""

    def __init__(self, shape, numbers=None, fill=0.0):
        self.shape = list(shape)
        self.numbers = [fill] * math.prod(shape) if numbers is None else numbers

    def at(self, *index):
        place = 0
        for i, size in zip(index, self.shape, strict=False):
            place = place * size + i
        for size in self.shape[len(index) :]:
            place *= size
        return place

    def __getitem__(self, index):
        return self.numbers[self.at(*index)]

    def __setitem__(self, index, value):
        self.numbers[self.at(*index)] = value

    def row(self, *index):
        start = self.at(*index)
        return self.numbers[start : start + self.shape[-1]]


def exp(x):
    return math.exp(x) if x < 709 else math.inf


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def sums(x, exclusive, backwards):
    """Sums along the last axis, from the end if ``backwards``; of the others only, if ``exclusive``."""
    y, S = Tensor(x.shape), x.shape[-1]
    for start in range(0, len(x.numbers), S or 1):
        total = 0.0
        for t in reversed(range(S)) if backwards else range(S):
            y.numbers[start + t] = total if exclusive else total + x.numbers[start + t]
            total += x.numbers[start + t]
    return y


def scan(case, given):
    exclusive = case["operation"] == "rev_cumsum_off"
    return {
        "output/y": sums(given["argument/x"], exclusive, True),
        "gradient/x": sums(given["cotangent/y"], exclusive, False),
    }


def forget(case, given):
    a = given["argument/forget_gates"]
    S = a.shape[-1]
    F = Tensor([*a.shape, S], fill=-math.inf)
    for lane in range(len(a.numbers) // S if S else 0):
        for j in range(S):
            total = 0.0
            for t in range(j, S):
                total += a.numbers[lane * S + t] if t > j else 0.0
                F.numbers[(lane * S + t) * S + j] = total
    return {"output/y": F}


def sequences(given, x):
    """``(sequence, its steps as index tuples)``, dense or packed."""
    if "argument/cu_seqlens" in given:
        cu = given["argument/cu_seqlens"].numbers
        return [(b, [(t,) for t in range(cu[b], cu[b + 1])]) for b in range(len(cu) - 1)]
    return [(b, [(b, t) for t in range(x.shape[1])]) for b in range(x.shape[0])]


def mlstm(case, given):
    q, k, v, i, f = (given[f"argument/{name}"] for name in "qkvif")
    N, K, V = q.shape[-2], q.shape[-1], v.shape[-1]
    runs = sequences(given, q)
    h, C = Tensor(v.shape), given.get("argument/C0") or Tensor([len(runs), N, K, V])
    n = given.get("argument/n0") or Tensor([len(runs), N, K])
    m = given.get("argument/m0") or Tensor([len(runs), N])
    for (b, steps), head in ((run, head) for run in runs for head in range(N)):
        if MISTAKE == "carry" and b and steps and "argument/cu_seqlens" in given:
            for tensor, size in ((C, K * V), (n, K), (m, 1)):
                here, before = tensor.at(b, head), tensor.at(b - 1, head)
                tensor.numbers[here : here + size] = tensor.numbers[before : before + size]
        for step in steps:
            at = (*step, head)
            carried, written = log_sigmoid(f[at]) + m[b, head], i[at]
            new = max(carried, written)
            m[b, head] = new
            keep, add = (0.0 if x == -math.inf else math.exp(x - new) for x in (carried, written))
            query = [x / math.sqrt(K) for x in q.row(*at)]
            key, value = k.row(*at), v.row(*at)
            for row in range(K):
                n[b, head, row] = keep * n[b, head, row] + add * key[row]
                for col in range(V):
                    C[b, head, row, col] = keep * C[b, head, row, col] + add * key[row] * value[col]
            size = abs(sum(n[b, head, row] * query[row] for row in range(K)))
            floor = exp(-min(new, 64.0))
            for col in range(V):
                read = sum(C[b, head, row, col] * query[row] for row in range(K))
                h[(*at, col)] = read / (max(size, floor) + case["options"]["eps"]) if read else 0.0
    if MISTAKE == "nan" and h.numbers:
        h.numbers[-1] = math.nan
    return {"output/h": h, "output/C": C, "output/n": n, "output/m": m}


def gru(case, given):
    N, H = case["sizes"]["N"], case["sizes"]["H"]
    inputs = [given[f"argument/{name}"] for name in ("input", "forget_input", "reset_input")]
    weights = [given[f"argument/{name}"] for name in ("weight", "forget_weight", "reset_weight")]
    runs = sequences(given, inputs[0])
    y = Tensor([*inputs[0].shape[:-2], N, H])
    state = given.get("argument/input_state") or Tensor([len(runs), N, H])
    after, c = case["options"].get("reset_after", False), given.get("argument/recurrent_bias")
    for (b, steps), head in ((run, head) for run in runs for head in range(N)):

        def product(which, left, head=head):
            W = weights[which]
            group = head % W.shape[0] if MISTAKE == "order" else head * W.shape[0] // N
            return [sum(left[row] * W[group, row, col] for row in range(H)) for col in range(H)]

        def preactivation(which, step, products, head=head):
            x = inputs[which]
            return [u + v for u, v in zip(x.row(*step, head * x.shape[-2] // N), products, strict=True)]

        for step in steps:
            before = state.row(b, head)
            f = [sigmoid(x) for x in preactivation(1, step, product(1, before))]
            r = [sigmoid(x) for x in preactivation(2, step, product(2, before))]
            if after:
                own = c.row(head * c.shape[0] // N) if c else [0.0] * H
                read = [a * (u + v) for a, u, v in zip(r, product(0, before), own, strict=True)]
            else:
                read = product(0, [a * u for a, u in zip(r, before, strict=True)])
            z = [math.tanh(x) for x in preactivation(0, step, read)]
            for col in range(H):
                new = f[col] * before[col] + (1 - f[col]) * z[col]
                state[b, head, col] = y[(*step, head, col)] = new
    return {"output/y": y, "output/state": state}


PROGRAM = {
    "rev_cumsum": scan,
    "rev_cumsum_off": scan,
    "causal_forget_matrix": forget,
    "mlstm": mlstm,
    "gru": gru,
}


def main():
    folder, answers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    answers.mkdir(exist_ok=True)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["format"] == "gatespec test vectors" and manifest["version"] == 1
    for case in manifest["cases"]:
        if case["operation"] in PROGRAM:
            found = PROGRAM[case["operation"]](case, read(folder / case["file"]))
            dtypes = {asked["key"]: asked["dtype"] for asked in case["outputs"] + case["gradients"]}
            write(answers / case["file"], {key: (dtypes[key], tensor) for key, tensor in found.items()})
    assert "numpy" not in sys.modules


main()
