"""Plain records, options and the state of the process: what everything else may import."""
