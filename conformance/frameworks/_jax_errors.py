"""The messages of JAX's errors that state a fact about a target."""

from conformance.frameworks._framework_errors import FrameworkErrors

ERRORS = FrameworkErrors(
    wrong=(
        (
            r"rule produced an output of (?:type|shape/dtype) (\S+) corresponding to an input of \S+ (\S+\]|\S+)",
            "{} returned in its backward pass a gradient of type {} for an argument of type {}",
        ),
        (
            r"Custom VJP bwd rule \S* ?must produce an output with the same container",
            "{} returned in its backward pass something else than a tuple with one gradient for each argument",
        ),
        (
            r"structure of output value and output batching specification",
            "{} returned in its vmap rule something else than its outputs and whether each is mapped",
        ),
    ),
    undifferentiable=(
        "callbacks do not support JVP",
        "Reverse-mode differentiation does not work",
        "does not support reverse-mode autodiff",
        r"can't apply forward-mode .* to a custom_vjp function",
        "No JVP defined",
    ),
)
