"""Faults of the checks: what ought to be refused is accepted, or refused with the wrong error or words."""

from conformance.rows.row import changes

ROWS = changes("""
    @ rev_cumsum arguments.py check_scan

    integers are accepted
    - call.floating
    + call.kind

    @ causal_forget_matrix _call.py Call.kind

    error is a ValueError where the kind is wrong
    - self.refuse(TypeError, argument, got, self.framework.array if foreign else "an array")
    + self.refuse(ValueError, argument, got, self.framework.array if foreign else "an array")

    @ dtilde_matrix arguments.py check_dtilde_matrix

    gates of two dtypes are accepted
    - call.floating(igate=igate, fgate=fgate)
    + call.floating(igate=igate)
    + call.floating(fgate=fgate)

    @ mlstm arguments.py check_mlstm

    chunk size is not checked
    - call.integer("chunk_size", chunk_size, 1, optional=True)

    @ mlstm arguments.py _check_eps

    infinite eps is accepted
    - 0 <= number < math.inf
    + 0 <= number

    negative eps is accepted
    - 0 <= number < math.inf
    + number < math.inf

    @ mlstm _call.py Call.packing

    cu_seqlens that falls is accepted
    - lengths.min()
    + lengths[-1]

    tokens after the last sequence are accepted
    - values[-1] != self["T"]
    + values[-1] > self["T"]

    tokens before the first sequence are accepted
    - values[0] != 0
    + values[0] < 0

    max_seqlen that is too short is accepted
    - lengths.max() > longest
    + lengths.min() > longest

    max_seqlen of just the longest sequence is refused
    - lengths.max() > longest
    + lengths.max() >= longest

    @ mlstm arguments.py _check_state

    state in 16 bits is accepted
    - call.state_dtype("v", v, **parts)
    + call.kind(**parts)

    @ mlstm _call.py Call.gates

    gates in float64 with float32 values are accepted
    - (name, "float32") if name in ("float16", "bfloat16") else (name,)
    + (name, "float32", "float64")

    @ mlstm _call.py Call._refuse_shape

    message does not say which argument was to be matched
    - " to match " + " and ".join((f"`{source}`" for source in sources)) if sources else ""
    + ""

    @ mlstm _mlstm.py mlstm

    kernel_backend accepted and ignored
    - choose(call, q, kernel_backend, packed=cu_seqlens is not None)

    @ mlstm_step arguments.py check_mlstm_step

    message names another function
    - "mlstm_step"
    + "mlstm"

    @ fwbw arguments.py check_fwbw

    state that the configuration does not use is ignored
    - given and (not config.use_initial_state)
    + False

    @ fwbw arguments.py normalise_config

    switches are not checked
    - call.flag(f"config.{name}", getattr(config, name))
    + bool(getattr(config, name))

    @ gru _call.py Call.number

    clipping of NaN is accepted
    - number != number or not holds(number)
    + not holds(number)

    @ gru arguments.py check_gru

    state in 16 bits is accepted
    - call.state_dtype("input", input, input_state=input_state)
    + call.kind(input_state=input_state)

    @ accumulate_gradients arguments.py check_batch

    error is a TypeError where nothing divides
    - call.refuse(ValueError, "num_minibatches", str(count), expected)
    + call.refuse(TypeError, "num_minibatches", str(count), expected)

    @ accumulate_gradients arguments.py check_weights

    weights of zeros are accepted
    - values is not None and not values.any()
    + False

    @ stack_params arguments.py check_stack

    parameter that is sharded over the axis already is stacked again
    - axis_name in names
    + False

    @ stack_params arguments.py _check_mask

    mask of an unknown device is accepted
    - not 0 <= kept < shards
    + False
""")
