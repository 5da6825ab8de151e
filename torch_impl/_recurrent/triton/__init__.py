"""Triton kernels that run all steps of a recurrence in one launch, as templates of its cell, and their launchers."""
