"""The meaning of the words on the page: those of verdicts, of measurements, and of the cases that a failure names."""

GLOSSARY: dict[str, dict[str, str]] = {
    "Verdicts": {
        "law": "A statement that has to hold of every call of an operation that it is about.",
        "check": "One law tried in one dtype on one target, on many cases. Everything that is counted here is a check.",
        "case": "One call: sizes, options, and the seed from which its arrays are drawn.",
        "example": "A case that was tried and served. Those found while a smaller counterexample was looked for do not "
        "count.",
        "holds": "No example broke the law.",
        "broken": "Some example broke it; the smallest one that was found is shown.",
        "differs from gatespec's contract": "The law is a decision of gatespec's where others may decide otherwise, "
        "and the target does not claim to keep it. It is not wrong for that.",
        "known failure": "A failure that a file of known failures lists, with a reason; its case was tried again.",
        "not served": "The target refused every case, by NotImplementedError or by the name of a kernel backend.",
        "not promised": "No case lies inside what callers of the target promise.",
        "not tried": "The law does not apply: a function is absent, or the framework lacks what the law needs.",
    },
    "Measurements": {
        "tolerance": "How far an element may be from the answer in exact arithmetic: what a sound computation in that "
        "dtype can be off by at this very element. 1 is the limit.",
        "roundoff": "The largest relative error of rounding a number to the dtype: 2⁻⁵³ of float64, 2⁻²⁴ of float32, "
        "2⁻⁸ of bfloat16, 2⁻¹¹ of float16.",
        "kink": "A place where the derivative jumps, to within rounding: the gradient of either side passes.",
        "branch": "Which argument of a maximum an element took: |n·q̂| or its floor in the normaliser; the carried "
        "memory (of it, m₀'s) or the write in the stabiliser m.",
        "floor": "The least value of the normaliser of the mLSTM, exp(−min(m, 64)) in units of exp(m).",
    },
    "Sizes and options of a case": {
        "B, S, T": "Sequences of a batch, steps of a sequence, steps of all sequences of a packed call.",
        "N, K, V, H": "Heads; the sizes of keys and of values of the mLSTM; the size of a head of the GRU.",
        "heads": "The head counts of a GRU call, in the order of its arguments.",
        "lead": "The leading axes of an array that is summed along its last one.",
        "lengths": "The lengths of the sequences of a packed call.",
        "state": "The initial state: none, random, or empty (C = n = 0, m = −∞).",
        "chunk size": "Steps that a chunkwise form computes at once.",
        "eps": "What is added to the normaliser.",
        "clipping": "The bound to which the gradient of a GRU state is clipped.",
        "room": "By how much max_seqlen exceeds the longest sequence.",
        "wide gates": "float32 gates with values of 16 bits.",
        "flat gates": "Gates of the fwbw interface without a last axis of 1.",
        "cut": "Where a law that cuts sequences does so, as a share of their steps.",
        "layout": "How arrays lie in memory: contiguous; strided (every second element of a larger buffer); reversed "
        "(negative strides); transposed (the last two axes); broadcast (one row for all, with a stride of 0).",
        "seed": "From which all values of the case are drawn.",
    },
    "Values of a case": {
        "scale": "The magnitude of the values that are no gates.",
        "held": "The share of each sequence before its regime of gates sets in: until then, gates keep the initial "
        "state.",
        "removed": "Features that were taken out of the arrays: the law breaks without them too.",
        "elements": "What the elements of every array were replaced by, all but zeros and infinities, because the law "
        "breaks with them too: ones, signs (±1), or whole numbers.",
        "cotangents": "Of what the gradient is asked: dense (random for every output), output only, state only, or "
        "one step of the output alone.",
        "ordinary": "Gates and values as they are drawn: normal numbers.",
        "small": "Preactivations, or values, a thousandth of ordinary ones.",
        "remembering": "Forget gates near 1: little is written and little is forgotten.",
        "saturated": "Preactivations so large, of either sign, that gates are 0 or 1 to within rounding.",
        "resets": "Forget gates of −∞, which empty the memory, and of +∞, among ordinary ones.",
        "closed": "Most input gates of the mLSTM are −∞ and write nothing; forget gates of the GRU are near 0.",
        "large m": "Input gates near 70: the stabiliser m is above 64, where the floor falls no further.",
        "low m": "Input gates near −25: the stabiliser m is far below 0, and the floor of the normaliser far above 1.",
        "extreme": "Gates of ±∞ and ±10⁴.",
        "changing": "Four regimes of gates, one after the other, in each sequence.",
        "mixed": "A regime of its own for each sequence and head.",
        "same sign": "Values of one sign, whose sums grow.",
        "wide": "Values from 10⁻⁴ to 10⁴ in magnitude.",
    },
}
"""Meanings by word, in the groups in which the page shows them."""
