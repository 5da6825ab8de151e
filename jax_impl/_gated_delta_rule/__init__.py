"""The gated delta rule: `api` has the public functions, `run` compiles them, `composed` is the array code."""
