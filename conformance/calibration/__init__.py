"""The measurement behind `conformance.budget`: correct implementations, and how far off the spec they come out.

A variant is a way in which a real kernel computes an operation: one step after the other, in chunks, all steps at once,
in another order of operations, with compensated sums, with 16-bit operands. Each is written here in NumPy, in float32
or float64 and without a hidden wider sum, and none shares code with `reference`. All of them are correct, so each time
that the budget refuses one it raises a false alarm: `python -m conformance calibrate` counts them.
"""
