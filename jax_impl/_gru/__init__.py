"""The GRU: `api` has the public function, `autograd` its gradient; `composed` and `pallas` are the backends."""
