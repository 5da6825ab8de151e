"""What a target computes instead of an operation: its answer compared with the specification, one row changed."""
