"""Mutants: the reference with one fault planted, to show that the laws catch it.

A mutant is a row of data (`conformance.mutants._mutant.Mutant`), one file of rows for each family of operations; the
faults are those that implementations in the field have had, and what a hand slips on when it writes a kernel.
``python -m conformance mutants`` runs the suite on each, `score.json` holds what the last whole run found.
"""
