"""The mLSTM: `api` has the public functions, `autograd` their gradients; `composed` and `pallas` are the backends.

Words for pieces of a call:

- step: one position of a sequence; a token is its input
- chunk: L steps, computed in the parallel form; a memory passes from chunk to chunk (`inter_chunk`)
- block: the chunks that one iteration of the outer loop computes, which bounds the memory in use (`blocks`)
- head range: heads that a CPU computes next to those of another range (`head_ranges`)
- packed sequences: the sequences whose tokens follow each other in the chunks (`packed_sequences`)
- tile: tokens of one packed sequence, which meet its initial or final state in one product (`by_sequence`)

A carry is what a loop passes on, as in `jax.lax.scan`. The drift is a second, small stabiliser (`drift`).
"""
