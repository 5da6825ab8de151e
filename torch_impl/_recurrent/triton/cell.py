"""The description of a cell: the part of a recurrence's step that is not the same for all operations."""

from typing import Any, Literal, NamedTuple

Form = Literal["together", "late", "apart"]


class Cell(NamedTuple):
    """A cell of the kernels' templates. Functions are device functions of Triton.

    A step adds the product of h and the gate's weight to each gate's input, except for the last gate in two of three
    forms: in the form "late" its product is not with h but with an operand that depends on the first gate; in the form
    "apart" its product is added to a bias, and the cell receives the input separately.

    Attributes:
        form: "together", "late" or "apart".
        gates: number of gates, each with an input and a weight.
        empty: the values of the parts of a state if no initial state is given; h is the first part.
        advance: ``(u, states, FAST) → (states, kept)``: a step's states from the preactivations u of the gates, in the
            form "late" without the first, in the form "apart" with the last gate's input after them; and what the
            backward pass needs, a tuple.
        late: in the form "late", ``(u, h, FAST) → (operand, u)``: the operand of the last gate's product from the
            preactivations of the others, and these without the first.
        backward: ``(dh, carried, saved) → (du, dh, carried)``: from the gradients of the states after a step (h and the
            rest) those of the preactivations, in the form "late" without the first gate, and those of the states before
            it, for h without the part that passes through products. In the form "apart" the last gate's product
            receives ``du[gates - 1]``, and the gradient of its input is ``du[gates]``. ``saved`` are 0 where a row does
            not run.
        late_backward: in the form "late", ``(d, saved) → (du, dh)``: from the gradient d of the late operand those of
            the first gate's preactivation and of h; 0 where saved are 0.
    """

    form: Form
    gates: int
    empty: tuple[float, ...]
    advance: Any
    backward: Any
    late: Any = None
    late_backward: Any = None
