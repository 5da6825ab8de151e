"""The laws that an implementation of gatespec's operations must obey, and the suite that tries to break them.

``gatespec run TARGET`` judges an implementation against `reference`; ``gatespec laws`` lists the laws. Nothing here
imports an array framework but NumPy until a target that is written in one is run.
"""

__conformance__ = "gatespec"
__version__ = "0.1.0"
