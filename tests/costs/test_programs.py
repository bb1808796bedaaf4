"""What a decoder with named axes compiles to, against the same decoder written by hand: never more of anything."""

import re

import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from benchmarks.performance.decoder import Sizes, check_agreement, forms
from benchmarks.performance.programs import counts, equations, passes
from tests.counting import all_calls, primitives


SMALL = Sizes(layers=2, embed=16, heads=2, pos=8, batch=3, vocab=24)
WAYS = [(how, which) for how in ("unrolled", "scanned") for which in ("forward", "gradient")]


@pytest.fixture(autouse=True)
def ranks() -> object:
    """Code by hand lines axes up by position."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module", params=WAYS, ids=["-".join(way) for way in WAYS])
def pair(request):
    """What the decoder traces to and what is counted of it, named and by hand."""
    how, which = request.param
    found = forms(SMALL, scanned=how == "scanned")
    with jax.numpy_rank_promotion("allow"):
        calls = {who: passes(found[who])[which] for who in ("Axonym", "JAX")}
        return {who: (jax.make_jaxpr(fn)(*args), counts(fn, args)) for who, (fn, args) in calls.items()}


def named_of(jaxpr, name):
    return [one for one in equations(jaxpr) if one.primitive.name == name]


@pytest.mark.parametrize("what", ["equations", "instructions", "bytes accessed"])
def test_a_decoder_has_no_more_than_by_hand(pair, what):
    # Each layer computes the mask, in three equations, which the compiler shares; by hand there is one mask.
    masks = 3 * (SMALL.layers - 1) if what == "equations" else 0
    assert 0 < pair["Axonym"][1][what] <= pair["JAX"][1][what] + masks


def test_a_decoder_needs_no_more_memory_than_by_hand(pair):
    # Which arrays share memory is the compiler's choice: it may differ by one, and not by one in each layer.
    one = SMALL.batch * SMALL.pos * SMALL.embed * 4
    assert 0 < pair["Axonym"][1]["temporary bytes"] <= pair["JAX"][1]["temporary bytes"] + one


@pytest.mark.parametrize("primitive", ["transpose", "dot_general", "mul", "convert_element_type", "copy", "name"])
def test_a_decoder_does_nothing_more_often_than_by_hand(pair, primitive):
    own, by_hand = (named_of(pair[who][0], primitive) for who in ("Axonym", "JAX"))
    # A square is a product here, and a power by hand.
    powers = len(named_of(pair["JAX"][0], "integer_pow")) if primitive == "mul" else 0
    assert len(own) <= len(by_hand) + powers


def test_a_decoder_multiplies_nothing_by_one(pair):
    for one in named_of(pair["Axonym"][0], "mul"):
        assert not any(getattr(operand, "val", None) in (1, 1.0) for operand in one.invars if _is_scalar(operand))


def _is_scalar(operand) -> bool:
    return operand.aval.shape == () and hasattr(operand, "val")


def test_the_forward_pass_of_a_decoder_has_no_transpose():
    fn, args = passes(forms(SMALL, scanned=False)["Axonym"])["forward"]
    assert not named_of(jax.make_jaxpr(fn)(*args), "transpose")


def residuals(form) -> int:
    """Returns the bytes that the forward loop of a gradient stacks up for the backward one."""
    loss, args = form.flat()
    forward, *_ = named_of(jax.make_jaxpr(jax.value_and_grad(loss))(*args), "scan")
    stacked = [out.aval for out in forward.outvars if out.aval.shape[:1] == (SMALL.layers,)]
    return sum(aval.size * aval.dtype.itemsize for aval in stacked)


def test_a_scanned_decoder_saves_no_more_residuals_than_by_hand():
    found = forms(SMALL, scanned=True)
    assert 0 < residuals(found["Axonym"]) <= residuals(found["JAX"])


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_a_decoder_agrees_with_the_one_by_hand(scanned):
    check_agreement(forms(SMALL, scanned=scanned))


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_tracing_a_decoder_enters_fewer_functions_than_by_hand(scanned):
    found = forms(SMALL, scanned=scanned)

    def entered(form) -> int:
        return all_calls(lambda: jax.make_jaxpr(form.fresh())(form.parameters, *form.tokens))

    # A loop is traced into a jaxpr first, which tells what its step takes from around it.
    limit = 0.88 if scanned else 0.8
    assert entered(found["Axonym"]) <= limit * entered(found["JAX"])


def test_a_norm_and_a_mask_are_one_program_each_and_inlined_in_a_trace():
    def by_hand(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight

    embed, pos = nym.make_axes(embed=4, pos=3)
    x = nym.ones((pos, embed))
    assert primitives(nym.nn.RmsNorm.init(embed), x) == primitives(by_hand, x.array, jnp.ones(4))
    assert primitives(lambda: nym.nn.causal_mask(pos, pos.alias("key_pos"))) == ["iota", "iota", "ge"]


def test_attention_in_low_precision_casts_only_what_has_another_type():
    heads, pos, keys, features = nym.make_axes(heads=2, pos=3, keys=5, features=4)

    def casts(dtype, **options) -> int:
        query, key = nym.ones((heads, pos, features), dtype), nym.ones((heads, keys, features), dtype)
        attended = nym.nn.dot_product_attention
        found = jax.make_jaxpr(lambda q, k: attended(keys, features, q, k, k, **options))(query, key)
        return len(re.findall(r"convert_element_type\[", str(found)))

    assert casts(jnp.float32) == 0
    assert casts(jnp.bfloat16, attention_dtype=jnp.float32) == 3


def test_what_asks_whether_an_array_is_traced_does_not_ask_where_it_lies(monkeypatch):
    """JAX answers that with an error, for which some versions search all equations so far."""
    asked, real = [], jax.core.Tracer.__getattr__

    def recorded(self, name):
        asked.append(name)
        return real(self, name)

    def traced(x):
        for _ in range(3):
            x = x + nym.arange(x.axes)  # each class of tracers is asked once
        monkeypatch.setattr(jax.core.Tracer, "__getattr__", recorded)
        for _ in range(3):
            x = x + nym.arange(x.axes)
        assert x.sharding is not None
        assert "sharding" not in asked
        with pytest.raises(AttributeError, match="sharding"):
            x.array.sharding  # noqa: B018
        assert asked.count("sharding") == 1  # which is what it must not do
        return x

    jax.make_jaxpr(traced)(nym.ones({"i": 3}))
    assert "sharding" in asked
