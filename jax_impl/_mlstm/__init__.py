"""The mLSTM: `api` has the public functions, `autograd` their gradients, `composed` and `pallas` one backend each."""
