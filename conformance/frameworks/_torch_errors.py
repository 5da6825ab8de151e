"""The messages of PyTorch's errors that state a fact about a target."""

from conformance.frameworks._framework_errors import FrameworkErrors

ERRORS = FrameworkErrors(
    wrong=(
        (
            r"returned an invalid gradient at index \d+ - got (\[.*?\]) but expected shape compatible with (\[.*?\])",
            "{} returned in its backward pass a gradient with the shape {} for an argument with the shape {}",
        ),
        (
            r"returned an incorrect number of gradients \(expected (\d+), got (\d+)\)",
            "{0} returned in its backward pass {2} gradients in place of {1}",
        ),
        (r"expected Variable or None \(got (.+?)\)", "{} returned in its backward pass a {} as a gradient"),
        (
            r"Expected the vmap staticmethod to have two returns|vmap staticmethod returned an incompatible",
            "{} returned in its vmap rule something else than its outputs and the axis over which each is mapped",
        ),
        (
            r"vmap\(.*\): .* must only return Tensors, got type <class '(.*)'>",
            "{} returned in its vmap rule a {} as an output, which is a torch.Tensor",
        ),
    ),
    undifferentiable=(
        "trying to differentiate twice",
        "derivative for .* is not implemented",
        "no autograd formula was registered",
        "does not currently support double backward",
    ),
)
