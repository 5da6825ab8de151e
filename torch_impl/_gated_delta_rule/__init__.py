"""The gated delta rule: public functions, registered operators, and the code that computes them."""
