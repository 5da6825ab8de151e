"""The multi-head GRU."""
