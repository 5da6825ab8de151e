"""Faults of what one device of a mesh sees."""

from conformance.mutants._mutant import Mutant

_CHECK = "    axis = check_split(NUMPY, x, axis_name, size, split_axis)\n"
_SPLIT = _CHECK + "    return np.split(x, size, axis=axis)[index].copy()\n"
_KEPT = "kept = value if mask_except is None or mask_except == index else np.zeros_like(value)"
_BOX = "Partitioned(np.expand_dims(kept, at).copy(), (*names[:at], axis_name, *names[at:]))"
_UNSTACKED = "        value = np.squeeze(leaf.value, axis=at).copy()\n"
_SEED = "np.random.SeedSequence((rng, index))"

ROWS = (
    Mutant(
        "split_array_over_mesh",
        "negative axis taken for the first",
        "_sharding.py",
        _SPLIT,
        _SPLIT.replace("np.split(x, size, axis=axis)", "np.array_split(x, size, axis=max(split_axis, 0))"),
    ),
    Mutant(
        "split_array_over_mesh",
        "slice of the neighbour",
        "_sharding.py",
        _SPLIT,
        _SPLIT.replace("[index]", "[(index + 1) % size]"),
    ),
    Mutant(
        "split_array_over_mesh",
        "every n-th row for a run of rows",
        "_sharding.py",
        _SPLIT,
        _SPLIT.replace(
            "np.split(x, size, axis=axis)[index]", "np.moveaxis(np.moveaxis(x, axis, 0)[index::size], 0, axis)"
        ),
    ),
    Mutant(
        "split_array_over_mesh",
        "remainder of an axis dropped",
        "_sharding.py",
        _SPLIT,
        "    axis = split_axis % x.ndim\n"
        "    whole = np.take(x, range(x.shape[axis] // size * size), axis=axis)\n"
        "    return np.split(whole, size, axis=axis)[index].copy()\n",
    ),
    Mutant(
        "split_array_over_mesh",
        "slice is a view of the array",
        "_sharding.py",
        _SPLIT,
        _SPLIT.replace(".copy()", ""),
    ),
    Mutant(
        "split_array_over_mesh",
        "slices in float32",
        "_sharding.py",
        _SPLIT,
        _SPLIT.replace(".copy()", ".astype(np.float32)"),
    ),
    Mutant(
        "split_array_over_mesh",
        "first axis of a tuple varies fastest",
        "_sharding.py",
        "        index, size = index * devices + of_name, size * devices\n",
        "        index, size = index + of_name * size, size * devices\n",
    ),
    Mutant(
        "stack_params",
        "mask changes the dtype",
        "_sharding.py",
        _KEPT,
        _KEPT.replace("np.zeros_like(value)", "np.zeros(np.shape(value))"),
    ),
    Mutant(
        "stack_params",
        "mask off by one",
        "_sharding.py",
        _KEPT,
        _KEPT.replace("mask_except == index", "mask_except == (index + 1) % size"),
    ),
    Mutant(
        "stack_params",
        "mask inverted",
        "_sharding.py",
        _KEPT,
        _KEPT.replace("mask_except == index", "mask_except != index"),
    ),
    Mutant(
        "stack_params",
        "mask of device 0 taken for none",
        "_sharding.py",
        _KEPT,
        _KEPT.replace("mask_except is None", "not mask_except"),
    ),
    Mutant(
        "stack_params",
        "label always in front",
        "_sharding.py",
        _BOX,
        _BOX.replace("(*names[:at], axis_name, *names[at:])", "(axis_name, *names)"),
    ),
    Mutant(
        "stack_params",
        "negative axis labels the dimension before",
        "_sharding.py",
        _BOX,
        _BOX.replace("names[:at]", "names[:axis]").replace("names[at:]", "names[axis:]"),
    ),
    Mutant(
        "stack_params",
        "negative axis counts from the parameter's own last",
        "_sharding.py",
        _BOX,
        _BOX.replace("np.expand_dims(kept, at)", "np.expand_dims(kept, axis if axis >= 0 else max(at - 1, 0))"),
    ),
    Mutant(
        "stack_params",
        "shard is a view of the parameter",
        "_sharding.py",
        _BOX,
        _BOX.replace(".copy()", ""),
    ),
    Mutant(
        "stack_params",
        "unstacking takes off every dimension of size 1",
        "_sharding.py",
        _UNSTACKED,
        _UNSTACKED.replace(", axis=at", ""),
    ),
    Mutant(
        "stack_params",
        "unstacking drops the labels of other axes",
        "_sharding.py",
        "        return value if all(name is None for name in names) else Partitioned(value, names)\n",
        "        return value\n",
    ),
    Mutant(
        "unstack_params",
        "first of several shards taken for all",
        "_sharding.py",
        "        at = check_unstack(NUMPY, path, leaf.value, leaf.names, axis_name)\n",
        "        at = leaf.names.index(axis_name)\n"
        "        leaf = Partitioned(np.take(leaf.value, [0], axis=at), leaf.names)\n",
    ),
    Mutant(
        "fold_rng_over_axis",
        "one random state for all devices",
        "_sharding.py",
        _SEED,
        "np.random.SeedSequence((rng, 0))",
    ),
    Mutant(
        "fold_rng_over_axis",
        "random state does not depend on the seed",
        "_sharding.py",
        _SEED,
        "np.random.SeedSequence((index,))",
    ),
    Mutant(
        "fold_rng_over_axis",
        "device's number added to the seed",
        "_sharding.py",
        _SEED,
        "np.random.SeedSequence(rng + index)",
    ),
)
