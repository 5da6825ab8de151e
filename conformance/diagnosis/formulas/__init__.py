"""Formulas that implementations are often found to compute in place of the definition."""
