"""Arguments that look nearly right are refused by one error that names the function and the argument."""

import re
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from tests.calls.test_bad_calls import mlstm_arguments, refused
from tests.calls.wings import INSTALLED, Wing

CHUNK = "expected None or an integer of at least 1"
EPS = "expected a finite number of at least 0"


@pytest.fixture(params=INSTALLED, scope="module")
def wing(request):
    return Wing(request.param)


@pytest.mark.parametrize("value", [[3], [True], [[2]]], ids=str)
def test_an_array_with_an_axis_is_no_chunk_size(wing, value):
    array = wing.array(value, "bool" if value == [True] else "int32")
    with pytest.raises(TypeError, match=r"^mlstm: `chunk_size` is .*; " + CHUNK):
        wing.mlstm(**mlstm_arguments(wing, chunk_size=array))


def test_a_truth_value_of_an_array_is_no_number(wing):
    for value in (np.array(True), np.bool_(True), wing.array((), "bool")):
        with pytest.raises(TypeError, match=r"^mlstm: `chunk_size` is .*; " + CHUNK):
            wing.mlstm(**mlstm_arguments(wing, chunk_size=value))


def test_a_chunk_longer_than_any_sequence_is_the_whole_sequence(wing):
    whole = np.asarray(wing.mlstm(**mlstm_arguments(wing)), np.float64)
    for chunk_size in (2**63, 10**30, np.int64(5)):
        np.testing.assert_allclose(wing.mlstm(**mlstm_arguments(wing, chunk_size=chunk_size)), whole, rtol=1e-6)
    q, k, v, i, f = (x[:, :, 0] for x in mlstm_arguments(wing).values())
    h, _ = wing.fwbw_forward(q, k, v, i, f, {"chunk_size": 2**63})
    assert h.shape == v.shape


@pytest.mark.parametrize("value", ["no", 1, None, np.True_], ids=repr)
def test_return_state_is_true_or_false(wing, value):
    with pytest.raises(TypeError, match=r"^mlstm: `return_state` is .*; expected True or False$"):
        wing.mlstm(**mlstm_arguments(wing, return_state=value))


def test_an_integer_beyond_every_float(wing):
    refused(
        ValueError,
        f"mlstm: `eps` is an integer beyond float64; {EPS}",
        wing.mlstm,
        **mlstm_arguments(wing, eps=10**400),
    )


def test_masked_arrays(wing):
    if wing.name == "torch_impl":
        pytest.skip("a NumPy array is refused whether it has a mask or not")
    plain = np.ones((2, 7, 3, 8), np.float32)
    wing.mlstm(**mlstm_arguments(wing, q=plain))
    text = "mlstm: `q` is a masked f32[2,7,3,8]; expected an array without a mask"
    refused(TypeError, text, wing.mlstm, **mlstm_arguments(wing, q=np.ma.array(plain, mask=plain > 0)))


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch")
def test_sparse_and_nested_tensors():
    import torch

    wing = Wing("torch_impl")
    plain = torch.ones(2, 7, 3, 8)
    wing.mlstm(**mlstm_arguments(wing, q=plain))
    dense = "expected a dense tensor, neither sparse nor nested"
    refused(TypeError, f"mlstm: `q` is f32[2,7,3,8]; {dense}", wing.mlstm, **mlstm_arguments(wing, q=plain.to_sparse()))
    with pytest.warns(UserWarning, match="nested"):
        nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(2, 8)])
    refused(TypeError, f"mlstm: `q` is a torch.Tensor; {dense}", wing.mlstm, **mlstm_arguments(wing, q=nested))


def test_explain_backend(wing):
    arguments = mlstm_arguments(wing)
    text = "^mlstm: `kernel_backend` is 'nope'; expected None, "
    with pytest.raises(ValueError, match=text):
        wing.explain_backend("mlstm", **arguments, kernel_backend="nope")
    wrong = "^explain_backend: the call of mlstm has a wrong argument: "
    with pytest.raises(TypeError, match=wrong + ".*'foo'"):
        wing.explain_backend("mlstm", **arguments, foo=1)
    with pytest.raises(TypeError, match=wrong + "missing .*'q'"):
        wing.explain_backend("mlstm")
    assert wing.explain_backend("mlstm", **arguments, return_state=True).chosen in wing.KernelBackend


def accumulated(wing, form, metrics, params=None, **changed):
    """The summed metrics over three minibatches of a loss whose metrics are given."""
    weights = wing.array((2,), "float32")
    state = SimpleNamespace(params={"w": weights} if params is None else params, apply_fn=None)
    rng = __import__("jax").random.key(7) if wing.name == "jax_impl" else 7

    def loss_fn(params, apply_fn, minibatch, rng):
        return (params["w"] * minibatch["x"][0]).sum(), (metrics, None)

    call = {"rng": rng, "num_minibatches": 3, "loss_fn": loss_fn, **changed}
    return getattr(wing, form)(state, {"x": wing.array((3, 2))}, **call)


FORMS = ("accumulate_gradients", "accumulate_gradients_loop", "accumulate_gradients_scan")


@pytest.mark.parametrize("form", FORMS)
def test_a_parameter_of_none_stays_none(wing, form):
    params = {"w": wing.array((2,), "float32"), "bias": None}
    gradients, _, _ = accumulated(wing, form, {}, params)
    assert gradients["bias"] is None
    np.testing.assert_allclose(gradients["w"], [1, 1], rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_errors_of_accumulation_name_the_function_called(wing, form):
    with pytest.raises(ValueError, match=f"^{form}: `num_minibatches` is 2; "):
        accumulated(wing, form, {}, num_minibatches=2)
    seeds = (None, True, 1.0, "7", *(() if wing.name == "jax_impl" else (np.array([7]), np.array(True))))
    for rng in seeds:
        with pytest.raises(TypeError, match=f"^{form}: `rng` is .*; expected "):
            accumulated(wing, form, {}, rng=rng)
    if wing.name != "jax_impl":
        for rng in (-1, 2**128):
            with pytest.raises(ValueError, match=f"^{form}: `rng` is {rng}; expected an integer "):
                accumulated(wing, form, {}, rng=rng)


PAIR, PARTS, SCALAR = "a pair (loss, (metrics, mutable))", "a pair (metrics, mutable)", "a floating-point scalar"
RETURNED = {
    "nothing": (TypeError, lambda loss: None, r"loss_fn\(…\)` is None", PAIR),
    "a loss alone": (TypeError, lambda loss: loss, r"loss_fn\(…\)` is f\d\d\[\]", PAIR),
    "three": (TypeError, lambda loss: (loss, {}, None), r"loss_fn\(…\)` is a tuple of length 3", PAIR),
    "metrics alone": (TypeError, lambda loss: (loss, {"a": loss, "b": loss}), r"loss_fn\(…\)\[1\]` is a dict", PARTS),
    "three parts": (TypeError, lambda loss: (loss, [1, 2, 3]), r"loss_fn\(…\)\[1\]` is a list of length 3", PARTS),
    "no loss": (TypeError, lambda loss: (None, ({}, None)), r"loss_fn\(…\)\[0\]` is None", SCALAR),
    "text": (TypeError, lambda loss: ("x", ({}, None)), r"loss_fn\(…\)\[0\]` is 'x'", SCALAR),
    "a vector": (ValueError, lambda loss: (loss[None], ({}, None)), r"loss_fn\(…\)\[0\]` is f\d\d\[1\]", SCALAR),
    "an integer": (TypeError, lambda loss: (loss > 0, ({}, None)), r"loss_fn\(…\)\[0\]` is bool\[\]", SCALAR),
}
"""By what a loss function returns instead of its result: the error, what is returned, and what the message says."""


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("form", FORMS)
def test_a_loss_function_returns_what_is_asked_for(wing, form, returned):
    error, change, got, expected = RETURNED[returned]

    def loss_fn(params, apply_fn, minibatch, rng):
        return change((params["w"] * minibatch["x"][0]).sum())

    with pytest.raises(error, match=f"^{form}: `{got}; expected {re.escape(expected)}"):
        accumulated(wing, form, {}, loss_fn=loss_fn)


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_that_is_a_number(wing, form):
    """It has no parameters in it. A tensor says so by its gradient; a number in PyTorch is more likely a mistake."""
    if wing.name == "torch_impl":
        with pytest.raises(TypeError, match=rf"^{form}: `loss_fn\(…\)\[0\]` is 1.5; .* scalar in a torch.Tensor$"):
            accumulated(wing, form, {}, loss_fn=lambda *args: (1.5, ({}, None)))
    else:
        gradients, *_ = accumulated(wing, form, {}, loss_fn=lambda *args: (1.5, ({}, None)))
        assert np.asarray(gradients["w"]).tolist() == [0, 0]
    constant = wing.array([1.5])[0]
    gradients, *_ = accumulated(wing, form, {}, loss_fn=lambda *args: [constant, [{}, None]])
    assert np.asarray(gradients["w"]).tolist() == [0, 0]


def test_use_scan_is_true_or_false(wing):
    text = "accumulate_gradients: `use_scan` is 'no'; expected True or False"
    refused(TypeError, text, accumulated, wing, "accumulate_gradients", {}, use_scan="no")


def test_a_seed_of_a_mesh_is_one(wing):
    for rng in (None, True, 0.5):
        with pytest.raises(TypeError, match=r"^fold_rng_over_axis: `rng` is .*; expected "):
            wing.on_mesh("fold_rng_over_axis", rng, "dp")
    if wing.name != "jax_impl":
        with pytest.raises(ValueError, match=r"^fold_rng_over_axis: `rng` is -1; expected an integer of at least 0"):
            wing.on_mesh("fold_rng_over_axis", -1, "dp")


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "jax_impl"])
def test_seeds_of_minibatches_and_of_devices_are_independent(name):
    wing = Wing(name)
    if name == "reference":
        from reference._accumulate import split
    else:
        from torch_impl._accumulate import split

    def fold(rng, index):
        if name == "reference":
            return wing.fold_rng_over_axis(rng, "dp", axis_index=index, axis_size=8)
        mesh = SimpleNamespace(mesh_dim_names=("dp",), get_local_rank=lambda _: index, size=lambda _: 8)
        return wing.fold_rng_over_axis(rng, "dp", mesh=mesh)

    seeds = (0, 1, 7, 7 + 3 * 2**32, 2**32, 2**64 - 1, 2**127)
    drawn = [seed for rng in seeds for seed in (*split(rng, 8), *(fold(rng, index) for index in range(8)))]
    assert len(set(drawn)) == len(drawn)
    assert split(7, 3) == split(7, 8)[:3] and fold(np.int64(7), 0) == fold(7, 0)


@pytest.mark.parametrize("value", [0.5, "1", [1], True, np.bool_(True), np.array([1])], ids=repr)
def test_a_mask_that_is_no_index(wing, value):
    tree = {"w": wing.array((4,))}
    with pytest.raises(TypeError, match=r"^stack_params: `mask_except` is .*; expected None or the index of one of"):
        wing.on_mesh("stack_params", tree, "dp", mask_except=value)


def test_an_axis_named_twice(wing):
    for function, args in (("stack_params", ({"w": wing.array((4,))},)), ("fold_rng_over_axis", (7,))):
        if function == "fold_rng_over_axis" and wing.name == "jax_impl":
            args = (__import__("jax").random.key(7),)
        text = f"{function}: `axis_name` is ('dp', 'dp'); expected each mesh axis once"
        refused(ValueError, text, wing.on_mesh, function, *args, ("dp", "dp"))


def test_unstacked_leaves_are_nobody_elses():
    for name in INSTALLED:
        wing = Wing(name)
        leaf = np.ones(3) if name == "jax_impl" else wing.array((3,))
        for tree in ({"w": leaf}, {"w": boxed(wing, leaf)}):
            found = wing.unstack_params(tree, "dp")["w"]
            found = getattr(found, "value", found)
            found[:] = 2.0
            assert float(leaf[0]) == 1.0


def boxed(wing, leaf):
    box = __import__("flax.linen").linen.Partitioned if wing.name == "jax_impl" else wing.Partitioned
    return box(leaf, ("tp",))
