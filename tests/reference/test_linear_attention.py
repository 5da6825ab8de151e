"""The linear recurrences of the spec, against loops over sequences and heads, closed forms and central differences."""

import inspect
import itertools
import re
from functools import partial

import numpy as np
import pytest

import reference
from tests.reference.numeric import assert_gradient

RULES = ("simple_gla", "gla", "gated_delta_rule", "kimi_delta_attention")
every_rule = pytest.mark.parametrize("rule", RULES)
delta_rules = pytest.mark.parametrize("rule", RULES[2:])
of_two = pytest.mark.parametrize(("by_head", "by_channel"), [RULES[:2], RULES[2:]])


def is_delta(rule):
    return "delta" in rule


def inputs(rng, rule, lead=(2, 5), heads=(2, 2, 2, 2, 2), K=3, V=4):
    """Heads in the order of the arguments: Nq, Nk, Nv, Ng, Nb."""
    Nq, Nk, Nv, Ng, Nb = heads
    channels = (K,) if rule in ("gla", "kimi_delta_attention") else ()
    shapes = {"q": (Nq, K), "k": (Nk, K), "v": (Nv, V)}
    arrays = {name: rng.normal(size=(*lead, *shape)) for name, shape in shapes.items()}
    arrays["g"] = -rng.exponential(size=(*lead, Ng, *channels))
    if is_delta(rule):
        arrays["beta"] = rng.uniform(size=(*lead, Nb))
    return arrays


def functions(rule, **options):
    return [partial(getattr(reference, name), **options) for name in (rule, f"{rule}_backward")]


def number_of_heads(arrays):
    return max(x.shape[2] for x in arrays.values())


def one_head(rule, S, q, k, v, g, beta=1.0, scale=None, eps=None):
    """One head of one sequence, written from the equations: arrays ``(S, ·)``, the memory ``(K, V)``."""
    o = []
    for t in range(len(q)):
        q_t, k_t = (x[t] if eps is None else x[t] / np.sqrt(x[t] @ x[t] + eps) for x in (q, k))
        S = np.diag(np.exp(g[t] * np.ones(len(k_t)))) @ S
        write = v[t] - k_t @ S if is_delta(rule) else v[t]
        S = S + np.broadcast_to(beta, len(q))[t] * np.outer(k_t, write)
        o.append((q_t / np.sqrt(len(q_t)) if scale is None else scale * q_t) @ S)
    return np.array(o), S


HEADS = [(1, 1, 1, 1, 1), (4, 2, 1, 4, 2), (1, 6, 3, 2, 6), (2, 1, 4, 1, 1), (1, 1, 3, 1, 3)]


@every_rule
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.7}, {"qk_norm_eps": 0.1}, {"scale": -2, "qk_norm_eps": 0.0}], ids=str
)
def test_against_one_head_at_a_time(rule, heads, options):
    if not is_delta(rule):
        options = {name: option for name, option in options.items() if name == "scale"}
    rng = np.random.default_rng(0)
    arrays = inputs(rng, rule, heads=heads)
    N = number_of_heads(arrays)
    state = rng.normal(size=(2, N, 3, 4))
    o, last = getattr(reference, rule)(**arrays, initial_state=state, **options)
    assert o.shape == (2, 5, N, 4)
    eps, scale = options.get("qk_norm_eps"), options.get("scale")
    for b, n in itertools.product(range(2), range(N)):
        own = {name: x[b, :, n // (N // x.shape[2])] for name, x in arrays.items()}
        its_o, its_last = one_head(rule, state[b, n], **own, scale=scale, eps=eps)
        np.testing.assert_allclose(o[b, :, n], its_o, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(last[b, n], its_last, rtol=1e-13, atol=1e-14)


@every_rule
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("given", [False, True], ids=["required alone", "all arguments"])
def test_backward_against_central_differences(rule, seed, given):
    rng = np.random.default_rng(seed)
    options = {"scale": 0.4, "qk_norm_eps": (0.3, 0.0)[seed % 2]} if given and is_delta(rule) else {}
    arguments = inputs(rng, rule, lead=(2, int(rng.integers(1, 7))), heads=HEADS[seed])
    if given:
        arguments["initial_state"] = rng.normal(size=(2, number_of_heads(arguments), 3, 4))
    else:
        arguments.pop("beta", None)
    forward, backward = functions(rule, **options)
    cotangents = [rng.normal(size=x.shape) for x in forward(**arguments)]
    gradients = backward(**arguments, do=cotangents[0], dstate=cotangents[1])
    assert_gradient(forward, arguments, gradients, cotangents, rng)


def test_simple_gla_is_attention_with_a_decaying_mask():
    rng = np.random.default_rng(1)
    arrays = inputs(rng, "simple_gla", lead=(2, 9))
    arrays["g"][:, 4] = -np.inf
    q, k, v, g = arrays.values()
    o, last = reference.simple_gla(q, k, v, g, initial_state=(state := rng.normal(size=(2, 2, 3, 4))))
    decay = np.exp(reference.causal_forget_matrix(g.swapaxes(1, 2)))
    scores = decay * np.einsum("btnk,bjnk->bntj", q, k)
    of_state = np.exp(np.cumsum(g, axis=1))[..., None] * np.einsum("btnk,bnkv->btnv", q, state)
    expected = (np.einsum("bntj,bjnv->btnv", scores, v) + of_state) / np.sqrt(3)
    np.testing.assert_allclose(o, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(last, np.einsum("bnj,bjnk,bjnv->bnkv", decay[:, :, -1], k, v), rtol=1e-12, atol=1e-14)


@of_two
def test_equal_channels_are_the_decay_of_a_head(by_head, by_channel):
    rng = np.random.default_rng(2)
    arrays = inputs(rng, by_head)
    spread = arrays | {"g": np.repeat(arrays["g"][..., None], 3, axis=-1)}
    (of_head, back_of_head), (of_channel, back_of_channel) = functions(by_head), functions(by_channel)
    results = of_head(**arrays)
    for x, y in zip(results, of_channel(**spread), strict=True):
        np.testing.assert_array_equal(x, y)
    do, dstate = (rng.normal(size=x.shape) for x in results)
    gradients, of_spread = back_of_head(**arrays, do=do, dstate=dstate), back_of_channel(**spread, do=do, dstate=dstate)
    np.testing.assert_allclose(of_spread.pop("g").sum(axis=-1), gradients.pop("g"), rtol=1e-12, atol=1e-14)
    for name, x in of_spread.items():
        np.testing.assert_array_equal(x, gradients[name], err_msg=name)


@delta_rules
def test_a_full_write_at_a_unit_key_overwrites_what_the_key_returns(rule):
    rng = np.random.default_rng(3)
    arrays = inputs(rng, rule)
    unit = arrays["k"] / np.linalg.norm(arrays["k"], axis=-1, keepdims=True)
    written = arrays | {"k": unit, "q": unit, "beta": None}
    o, last = getattr(reference, rule)(**written, scale=1.0)
    np.testing.assert_allclose(o, arrays["v"], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        np.einsum("bnk,bnkv->bnv", unit[:, -1], last), arrays["v"][:, -1], rtol=1e-12, atol=1e-13
    )


@delta_rules
def test_options_stand_for_what_the_caller_can_write(rule):
    rng = np.random.default_rng(4)
    arrays = inputs(rng, rule)
    forward = getattr(reference, rule)
    lengths = {name: np.sqrt((arrays[name] ** 2).sum(axis=-1, keepdims=True) + 0.2) for name in "qk"}
    beta, q, k = (
        np.ones(arrays["beta"].shape),
        arrays["q"] / lengths["q"] * 0.7 * np.sqrt(3),
        arrays["k"] / lengths["k"],
    )
    expected = forward(**arrays | {"q": q, "k": k, "beta": beta})
    results = forward(**arrays | {"beta": None}, scale=0.7, qk_norm_eps=0.2)
    for x, y in zip(results, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


@every_rule
@pytest.mark.parametrize("lengths", [(), (0,), (3, 0, 5, 1, 0)])
def test_packed_is_each_sequence_alone(rule, lengths):
    rng = np.random.default_rng(5)
    arrays, cu = inputs(rng, rule, lead=(sum(lengths),), heads=HEADS[1]), np.concatenate([[0], np.cumsum(lengths)])
    cu, state = cu.astype(np.int64), rng.normal(size=(len(lengths), 4, 3, 4))
    forward, backward = functions(rule, initial_state=state, cu_seqlens=cu)
    o, last = forward(**arrays, max_seqlen=max(lengths, default=0))
    do, dstate = rng.normal(size=o.shape), rng.normal(size=last.shape)
    gradients = backward(**arrays, do=do, dstate=dstate)
    for b in range(len(lengths)):
        one = np.s_[None, cu[b] : cu[b + 1]]
        alone = {name: x[one] for name, x in arrays.items()}
        its_forward, its_backward = functions(rule, initial_state=state[b : b + 1])
        its_o, its_last = its_forward(**alone)
        its = its_backward(**alone, do=do[one], dstate=dstate[b : b + 1])
        for x, y in ((o[one], its_o), (last[b], its_last[0]), (gradients["initial_state"][b], its["initial_state"][0])):
            np.testing.assert_array_equal(x, y)
        for name in arrays:
            np.testing.assert_array_equal(gradients[name][one], its[name], err_msg=name)


@every_rule
def test_a_reset_cuts_the_sequence(rule):
    rng = np.random.default_rng(6)
    arrays, at = inputs(rng, rule, lead=(2, 6)), 3
    arrays["g"][:, at] = -np.inf
    state = rng.normal(size=(2, 2, 3, 4))
    forward, backward = functions(rule, initial_state=state)
    o, last = forward(**arrays)
    for x, y in zip(
        (o[:, at:], last), functions(rule)[0](**{name: x[:, at:] for name, x in arrays.items()}), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    do, dstate = rng.normal(size=o.shape), rng.normal(size=last.shape)
    do[:, :at] = 0
    gradients = backward(**arrays, do=do, dstate=dstate)
    assert not gradients.pop("initial_state").any() and not gradients["g"][:, at].any()
    for name, x in gradients.items():
        assert np.isfinite(x).all() and not x[:, :at].any(), name


@every_rule
def test_a_sequence_cut_in_two_is_the_whole(rule):
    rng = np.random.default_rng(7)
    arrays, at = inputs(rng, rule, lead=(2, 6)), 2
    first, second = ({name: x[:, part] for name, x in arrays.items()} for part in (np.s_[:at], np.s_[at:]))
    forward, backward = functions(rule)
    o, last = forward(**arrays)
    of_first, carried = forward(**first)
    of_second, its_last = forward(**second, initial_state=carried)
    np.testing.assert_array_equal(np.concatenate([of_first, of_second], axis=1), o)
    np.testing.assert_array_equal(its_last, last)
    do, dstate = rng.normal(size=o.shape), rng.normal(size=last.shape)
    whole = backward(**arrays, do=do, dstate=dstate)
    later = backward(**second, initial_state=carried, do=do[:, at:], dstate=dstate)
    earlier = backward(**first, do=do[:, :at], dstate=later.pop("initial_state"))
    for name, x in whole.items():
        np.testing.assert_array_equal(np.concatenate([earlier[name], later[name]], axis=1), x, err_msg=name)


@pytest.mark.parametrize("beta", [True, False], ids=["beta", "no beta"])
def test_steps_are_the_sequence(beta):
    rng = np.random.default_rng(8)
    arrays, options = inputs(rng, "gated_delta_rule", heads=HEADS[3]), {"scale": 0.3, "qk_norm_eps": 1e-3}
    arrays["beta"] = arrays["beta"] if beta else None
    S = state = rng.normal(size=(2, 4, 3, 4))
    o, last = reference.gated_delta_rule(**arrays, initial_state=state, **options)
    for t in range(5):
        now = {name: x if x is None else x[:, t] for name, x in arrays.items()}
        its_o, S = reference.gated_delta_step(**now, state=S, **options)
        np.testing.assert_array_equal(its_o, o[:, t])
    np.testing.assert_array_equal(S, last)
    given = {name: x for name, x in (now | {"state": state}).items() if x is not None}
    step = partial(reference.gated_delta_step, **{"beta": None} | options)
    cotangents = [rng.normal(size=x.shape) for x in step(**given)]
    of_step = partial(reference.gated_delta_step_backward, **{"beta": None} | options)
    gradients = of_step(**given, do=cotangents[0], dstate=cotangents[1])
    assert_gradient(step, given, gradients, cotangents, rng)


@every_rule
@pytest.mark.parametrize(("B", "S"), [(0, 3), (2, 0)])
def test_nothing_to_do(rule, B, S):
    rng = np.random.default_rng(9)
    arrays, state = inputs(rng, rule, lead=(B, S)), rng.normal(size=(B, 2, 3, 4))
    forward, backward = functions(rule, initial_state=state)
    o, last = forward(**arrays)
    assert o.shape == (B, S, 2, 4)
    np.testing.assert_array_equal(last, state)
    gradients = backward(**arrays, do=o, dstate=state)
    np.testing.assert_array_equal(gradients["initial_state"], state)
    assert {name: x.shape for name, x in gradients.items() if name != "initial_state"} == {
        name: x.shape for name, x in arrays.items()
    }


def array(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


WRONG = {
    "k of another head dim": (
        {"k": array(2, 5, 2, 7)},
        "`k` is f32[2,5,2,7]; expected [B=2, S=5, Nk, K=3] to match `q`",
    ),
    "no head dim": (
        {"q": array(2, 5, 2, 0), "k": array(2, 5, 2, 0), "g": array(2, 5, 2, 0)},
        "`q` is f32[2,5,2,0]; expected a head dim K of at least 1",
    ),
    "g of a head": ({"g": array(2, 5, 2)}, "`g` is f32[2,5,2]; expected [B=2, S=5, Ng, K=3] to match `q`"),
    "heads that do not divide": (
        {"v": array(2, 5, 4, 4), "k": array(2, 5, 3, 3)},
        "`k` is f32[2,5,3,3]; expected Nk to divide N=4, the largest head count",
    ),
    "no head": ({"beta": array(2, 5, 0)}, "`beta` is f32[2,5,0]; expected Nb of at least 1"),
    "v in float64": ({"v": array(2, 5, 2, 4, dtype=float)}, "`v` is f64[2,5,2,4]; expected float32 to match `q`"),
    "g in float64": ({"g": array(2, 5, 2, 3, dtype=float)}, "`g` is f64[2,5,2,3]; expected float32 to match `v`"),
    "beta in integers": ({"beta": array(2, 5, 2, dtype=int)}, "`beta` is i64[2,5,2]; expected float32 to match `v`"),
    "state of another shape": (
        {"initial_state": array(2, 2, 4, 3)},
        "`initial_state` is f32[2,2,4,3]; expected [B=2, N=2, K=3, V=4] to match `q` and `v`",
    ),
    "state in float16": (
        {"initial_state": array(2, 2, 3, 4, dtype=np.float16)},
        "`initial_state` is f16[2,2,3,4]; expected float32, the accumulation dtype for `v`",
    ),
    "scale of NaN": ({"scale": np.nan}, "`scale` is nan; expected None or a finite number"),
    "a word for the scale": ({"scale": "1"}, "`scale` is '1'; expected None or a finite number"),
    "eps below 0": ({"qk_norm_eps": -1}, "`qk_norm_eps` is -1.0; expected None or a finite number of at least 0"),
    "max_seqlen alone": ({"max_seqlen": 5}, "`max_seqlen` is 5; expected None where `cu_seqlens` is None"),
}


@pytest.mark.parametrize("changed", WRONG)
def test_what_is_wrong_is_named(changed):
    arguments = {name: x.astype(np.float32) for name, x in inputs(np.random.default_rng(0), RULES[3]).items()}
    wrong, message = WRONG[changed]
    with pytest.raises((TypeError, ValueError), match=re.escape(f"kimi_delta_attention: {message}")):
        reference.kimi_delta_attention(**arguments | wrong)


def test_16_bits_take_gates_in_float32_and_everything_is_computed_in_float64():
    arrays = {name: x.astype(np.float16) for name, x in inputs(np.random.default_rng(0), RULES[2]).items()}
    arrays["g"] = arrays["g"].astype(np.float32)
    exact = reference.gated_delta_rule(**{name: x.astype(np.float64) for name, x in arrays.items()})
    for x, y in zip(reference.gated_delta_rule(**arrays), exact, strict=True):
        assert x.dtype == np.float64
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("function", [*RULES, "gated_delta_step"])
def test_a_cotangent_of_another_shape_is_refused(function):
    arrays = inputs(np.random.default_rng(0), function)
    if function == "gated_delta_step":
        arrays = {name: x[:, 0] for name, x in arrays.items()} | {"state": np.zeros((2, 2, 3, 4))}
    backward = getattr(reference, f"{function}_backward")
    assert set(arrays) <= set(inspect.signature(backward).parameters)
    with pytest.raises(ValueError, match=r"_backward: `do` is f64.*; expected \[B=2, S=[15], N=2, V=4\]"):
        backward(**arrays, do=np.zeros(arrays["q"].shape))
