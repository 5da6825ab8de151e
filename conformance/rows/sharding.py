"""Faults of what one device of a mesh sees."""

from conformance.rows.row import changes

ROWS = changes("""
    @ split_array_over_mesh _sharding.py split_array_over_mesh

    negative axis taken for the first
    - np.split(x, size, axis=axis)
    + np.array_split(x, size, axis=max(split_axis, 0))

    slice of the neighbour
    - np.split(x, size, axis=axis)[index]
    + np.split(x, size, axis=axis)[(index + 1) % size]

    every n-th row for a run of rows
    - np.split(x, size, axis=axis)[index]
    + np.moveaxis(np.moveaxis(x, axis, 0)[index::size], 0, axis)

    remainder of an axis dropped
    - axis = check_split(NUMPY, x, axis_name, size, split_axis)
    - return np.split(x, size, axis=axis)[index].copy()
    + axis = split_axis % x.ndim
    + whole = np.take(x, range(x.shape[axis] // size * size), axis=axis)
    + return np.split(whole, size, axis=axis)[index].copy()

    slice is a view of the array
    - np.split(x, size, axis=axis)[index].copy()
    + np.split(x, size, axis=axis)[index]

    slices in float32
    - np.split(x, size, axis=axis)[index].copy()
    + np.split(x, size, axis=axis)[index].astype(np.float32)

    @ split_array_over_mesh _sharding.py _place

    first axis of a tuple varies fastest
    - index * devices + of_name
    + index + of_name * size

    @ stack_params _sharding.py stack_params.stack

    mask changes the dtype
    - np.zeros_like(value)
    + np.zeros(np.shape(value))

    mask off by one
    - mask_except == index
    + mask_except == (index + 1) % size

    mask inverted
    - mask_except == index
    + mask_except != index

    mask of device 0 taken for none
    - mask_except is None
    + not mask_except

    label always in front
    - (*names[:at], axis_name, *names[at:])
    + (axis_name, *names)

    negative axis labels the dimension before
    - (*names[:at], axis_name, *names[at:])
    + (*names[:axis], axis_name, *names[axis:])

    negative axis counts from the parameter's own last
    - np.expand_dims(kept, at)
    + np.expand_dims(kept, axis if axis >= 0 else max(at - 1, 0))

    shard is a view of the parameter
    - np.expand_dims(kept, at).copy()
    + np.expand_dims(kept, at)

    @ stack_params _sharding.py unstack_params.unstack

    unstacking takes off every dimension of size 1
    - np.squeeze(leaf.value, axis=at)
    + np.squeeze(leaf.value)

    unstacking drops the labels of other axes
    - value if all((name is None for name in names)) else Partitioned(value, names)
    + value

    @ unstack_params _sharding.py unstack_params.unstack

    first of several shards taken for all
    - at = check_unstack(NUMPY, path, leaf.value, leaf.names, axis_name)
    + at = leaf.names.index(axis_name)
    + leaf = Partitioned(np.take(leaf.value, [0], axis=at), leaf.names)

    @ fold_rng_over_axis _sharding.py fold_rng_over_axis

    one random state for all devices
    - derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)
    + derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, 0)

    random state does not depend on the seed
    - derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)
    + derived_seed(0, DEVICES, index)

    device's number added to the seed
    - derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)
    + derived_seed(check_seed("fold_rng_over_axis", rng) + index, DEVICES, 0)
""")
