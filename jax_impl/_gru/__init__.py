"""The GRU: `api` has the public function, `autograd` its gradient, `composed` and `pallas` one backend each."""
