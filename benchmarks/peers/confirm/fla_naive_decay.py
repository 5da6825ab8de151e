"""flash-linear-attention (naive functions in chunks): a very negative log decay costs later steps digits; −∞ gives NaN.

    pip install flash-linear-attention torch && python fla_naive_decay.py

Decays between two steps of a chunk are exponentials of differences of one running sum of g. A large |g_t| in that sum
takes away digits of all decays after it, and −∞ leaves −∞ − (−∞), which is NaN. Errors are distances from the
definition in float64, over its largest element; the definition computed in float32 is next to them.
"""

from _linear import sums_of_decays
from _shared import verdict
from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule
from fla.ops.kda.naive import naive_chunk_kda
from fla.ops.simple_gla.naive import naive_chunk_simple_gla


def gated_delta_rule(q, k, v, g, beta):
    return naive_chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True)


def kda(q, k, v, g, beta):
    return naive_chunk_kda(q, k, v, g, beta, output_final_state=True, chunk_size=65)


def simple_gla(q, k, v, g):
    return naive_chunk_simple_gla(q, k, v, g, output_final_state=True)


shown = [
    sums_of_decays({"naive_chunk_simple_gla": simple_gla}),
    sums_of_decays({"naive_chunk_gated_delta_rule": gated_delta_rule}, delta=True),
    sums_of_decays({"naive_chunk_kda": kda}, channels=True, delta=True),
]
verdict(all(shown))
