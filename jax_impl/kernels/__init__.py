"""Pallas kernels (Mosaic GPU: Hopper and later), one file a kernel family; nothing here knows a public function.

Pallas itself is imported where a kernel is launched, so that these modules load with any JAX.
"""
