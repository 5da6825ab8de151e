"""The meaning of the words on the page: those of verdicts, of measurements, and of the cases that a failure names."""

GLOSSARY: dict[str, dict[str, str]] = {
    "Verdicts": {
        "law": "A statement that must be true for every call of its operation.",
        "check": "One law tried in one dtype on one target, on many cases. All counts on this page are of checks.",
        "case": "One call: sizes, options, and the seed from which its arrays are drawn.",
        "example": "A case that was tried and answered. Cases from the search for a smaller counterexample do not "
        "count.",
        "holds": "No example broke the law.",
        "broken": "An example broke it; the smallest one found is shown.",
        "differs from gatespec's contract": "The law is gatespec's own decision, where other implementations may "
        "differ, and the target does not claim to follow it. This does not count as a failure.",
        "known failure": "An expected failure, listed in a file with its reason; its case was tried again.",
        "not served": "The target refused every case: it raised NotImplementedError, or rejected the kernel backend.",
        "not promised": "No case of the law keeps the promises (the conditions on calls) of the run.",
        "not tried": "The law does not apply: a function is absent, or the framework lacks what the law needs.",
    },
    "Measurements": {
        "tolerance": "How far an element may be from the exact answer: the error that a sound computation in that "
        "dtype can have at this element. In units of the tolerance, 1 is the limit.",
        "roundoff": "The largest relative error of rounding a number to the dtype: 2⁻⁵³ for float64, 2⁻²⁴ for "
        "float32, 2⁻⁸ for bfloat16, 2⁻¹¹ for float16.",
        "kink": "A point where, within rounding, the derivative jumps; the gradient of either side passes.",
        "branch": "The argument that attains a maximum: |n·q̂| or its floor in the normaliser; the carried memory (m₀"
        " included) or the write in the stabiliser m.",
        "floor": "The lower bound of the normaliser of the mLSTM, exp(−min(m, 64)) in units of exp(m).",
    },
    "Sizes and options of a case": {
        "B, S, T": "Sequences in a batch, steps of a sequence, steps of all sequences in a packed call.",
        "N, K, V, H": "Heads; key and value head dims of the mLSTM; head dim of the GRU.",
        "heads": "The head counts of a GRU call, in the order of its arguments.",
        "lead": "The leading axes of an array that is summed along its last axis.",
        "lengths": "The lengths of the sequences of a packed call.",
        "state": "The initial state: none, random, or empty (C = n = 0, m = −∞).",
        "chunk size": "Steps that a chunkwise form computes at once.",
        "eps": "The number that is added to the normaliser.",
        "clipping": "The bound to which the gradient of a GRU state is clipped.",
        "room": "By how much max_seqlen exceeds the longest sequence.",
        "wide gates": "float32 gates with 16-bit values.",
        "flat gates": "Gates of the fwbw interface without a last axis of 1.",
        "cut": "The position at which a law cuts sequences, as a fraction of their steps.",
        "layout": "How arrays lie in memory: contiguous; strided (every second element of a larger buffer); reversed "
        "(negative strides); transposed (the last two axes); broadcast (one row for all, with a stride of 0).",
        "seed": "The seed from which all values of the case are drawn.",
    },
    "Values of a case": {
        "scale": "The magnitude of all values except gates.",
        "held": "The fraction of each sequence before its gates follow the given pattern: until then, they keep the "
        "initial state.",
        "removed": "Features that were removed from the arrays, because the law breaks without them too.",
        "elements": "Simple numbers that replace all elements except zeros and infinities, because the law breaks "
        "with them too: ones, signs (±1), or whole numbers.",
        "cotangents": "The cotangents of the call: dense (random for every output), output only, state only, or "
        "one step of the output.",
        "ordinary": "Gates and values as they are drawn: normal numbers.",
        "small": "Preactivations, or values, of a thousandth of the ordinary size.",
        "remembering": "Forget gates near 1: little is written and little is forgotten.",
        "saturated": "Preactivations so large, of either sign, that gates are 0 or 1 to within rounding.",
        "resets": "Forget gates of −∞, which empty the memory, and of +∞, among ordinary ones.",
        "closed": "Most input gates of the mLSTM are −∞ and write nothing; forget gates of the GRU are near 0.",
        "large m": "Input gates near 70: the stabiliser m is above 64, where the floor falls no further.",
        "low m": "Input gates near −25: the stabiliser m is far below 0, and the floor of the normaliser far above 1.",
        "extreme": "Gates of ±∞ and ±10⁴.",
        "changing": "Four of these kinds of gates, one after the other, in each sequence.",
        "mixed": "A different one of these kinds for each sequence and head.",
        "same sign": "Values of one sign, whose sums grow.",
        "wide": "Values from 10⁻⁴ to 10⁴ in magnitude.",
    },
}
"""Meanings by word, in the groups in which the page shows them."""
