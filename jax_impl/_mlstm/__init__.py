"""The mLSTM: `api` has the public functions, `autograd` their gradients; `composed` and `pallas` are the backends."""
