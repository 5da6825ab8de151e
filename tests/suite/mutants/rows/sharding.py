"""Faults of what one device of a mesh sees."""

from tests.suite.mutants.mutant import Mutant

ROWS = (
    Mutant(
        op="split_array_over_mesh",
        name="negative axis taken for the first",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="np.split(x, size, axis=axis)",
        by="np.array_split(x, size, axis=max(split_axis, 0))",
    ),
    Mutant(
        op="split_array_over_mesh",
        name="slice of the neighbour",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="np.split(x, size, axis=axis)[index]",
        by="np.split(x, size, axis=axis)[(index + 1) % size]",
    ),
    Mutant(
        op="split_array_over_mesh",
        name="every n-th row for a run of rows",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="np.split(x, size, axis=axis)[index]",
        by="np.moveaxis(np.moveaxis(x, axis, 0)[index::size], 0, axis)",
    ),
    Mutant(
        op="split_array_over_mesh",
        name="remainder of an axis dropped",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="""
            axis = check_split(NUMPY, x, axis_name, size, split_axis)
            return np.split(x, size, axis=axis)[index].copy()
        """,
        by="""
            axis = split_axis % x.ndim
            whole = np.take(x, range(x.shape[axis] // size * size), axis=axis)
            return np.split(whole, size, axis=axis)[index].copy()
        """,
    ),
    Mutant(
        op="split_array_over_mesh",
        name="slice is a view of the array",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="np.split(x, size, axis=axis)[index].copy()",
        by="np.split(x, size, axis=axis)[index]",
    ),
    Mutant(
        op="split_array_over_mesh",
        name="slices in float32",
        module="_sharding.py",
        function="split_array_over_mesh",
        replace="np.split(x, size, axis=axis)[index].copy()",
        by="np.split(x, size, axis=axis)[index].astype(np.float32)",
    ),
    Mutant(
        op="split_array_over_mesh",
        name="first axis of a tuple varies fastest",
        module="_sharding.py",
        function="_place",
        replace="index * devices + of_name",
        by="index + of_name * size",
    ),
    Mutant(
        op="stack_params",
        name="mask changes the dtype",
        module="_sharding.py",
        function="stack_params.stack",
        replace="np.zeros_like(value)",
        by="np.zeros(np.shape(value))",
    ),
    Mutant(
        op="stack_params",
        name="mask off by one",
        module="_sharding.py",
        function="stack_params.stack",
        replace="mask_except == index",
        by="mask_except == (index + 1) % size",
    ),
    Mutant(
        op="stack_params",
        name="mask inverted",
        module="_sharding.py",
        function="stack_params.stack",
        replace="mask_except == index",
        by="mask_except != index",
    ),
    Mutant(
        op="stack_params",
        name="mask of device 0 taken for none",
        module="_sharding.py",
        function="stack_params.stack",
        replace="mask_except is None",
        by="not mask_except",
    ),
    Mutant(
        op="stack_params",
        name="label always in front",
        module="_sharding.py",
        function="stack_params.stack",
        replace="(*names[:at], axis_name, *names[at:])",
        by="(axis_name, *names)",
    ),
    Mutant(
        op="stack_params",
        name="negative axis labels the dimension before",
        module="_sharding.py",
        function="stack_params.stack",
        replace="(*names[:at], axis_name, *names[at:])",
        by="(*names[:axis], axis_name, *names[axis:])",
    ),
    Mutant(
        op="stack_params",
        name="negative axis counts from the parameter's own last",
        module="_sharding.py",
        function="stack_params.stack",
        replace="np.expand_dims(kept, at)",
        by="np.expand_dims(kept, axis if axis >= 0 else max(at - 1, 0))",
    ),
    Mutant(
        op="stack_params",
        name="shard is a view of the parameter",
        module="_sharding.py",
        function="stack_params.stack",
        replace="np.expand_dims(kept, at).copy()",
        by="np.expand_dims(kept, at)",
    ),
    Mutant(
        op="stack_params",
        name="unstacking takes off every dimension of size 1",
        module="_sharding.py",
        function="unstack_params.unstack",
        replace="np.squeeze(leaf.value, axis=at)",
        by="np.squeeze(leaf.value)",
    ),
    Mutant(
        op="stack_params",
        name="unstacking drops the labels of other axes",
        module="_sharding.py",
        function="unstack_params.unstack",
        replace="value if all((name is None for name in names)) else Partitioned(value, names)",
        by="value",
    ),
    Mutant(
        op="unstack_params",
        name="first of several shards taken for all",
        module="_sharding.py",
        function="unstack_params.unstack",
        replace="at = check_unstack(NUMPY, path, leaf.value, leaf.names, axis_name)",
        by="""
            at = leaf.names.index(axis_name)
            leaf = Partitioned(np.take(leaf.value, [0], axis=at), leaf.names)
        """,
    ),
    Mutant(
        op="fold_rng_over_axis",
        name="one random state for all devices",
        module="_sharding.py",
        function="fold_rng_over_axis",
        replace='derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)',
        by='derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, 0)',
    ),
    Mutant(
        op="fold_rng_over_axis",
        name="random state does not depend on the seed",
        module="_sharding.py",
        function="fold_rng_over_axis",
        replace='derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)',
        by="derived_seed(0, DEVICES, index)",
    ),
    Mutant(
        op="fold_rng_over_axis",
        name="device's number added to the seed",
        module="_sharding.py",
        function="fold_rng_over_axis",
        replace='derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)',
        by='derived_seed(check_seed("fold_rng_over_axis", rng) + index, DEVICES, 0)',
    ),
)
