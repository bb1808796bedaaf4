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


@pytest.fixture(autouse=True)
def ranks() -> object:
    """Code by hand lines axes up by position."""
    with jax.numpy_rank_promotion("allow"):
        yield


def named_of(jaxpr, name):
    return [one for one in equations(jaxpr) if one.primitive.name == name]


@pytest.mark.parametrize(("how", "which"), [("unrolled", "forward"), ("scanned", "gradient")])
def test_a_decoder_has_and_does_no_more_than_by_hand(how, which):
    pair = {who: passes(form)[which] for who, form in forms(SMALL, scanned=how == "scanned").items()}
    own, by_hand = (counts(fn, args) for fn, args in (pair["Axonym"], pair["JAX"]))
    # Each layer computes the mask, in three equations, which the compiler shares; by hand there is one mask.
    assert 0 < own["equations"] <= by_hand["equations"] + 3 * (SMALL.layers - 1)
    for what in ("instructions", "bytes accessed"):
        assert 0 < own[what] <= by_hand[what], what
    # Which arrays share memory is the compiler's choice: it may differ by one, and not by one in each layer.
    array = SMALL.batch * SMALL.pos * SMALL.embed * 4
    assert 0 < own["temporary bytes"] <= by_hand["temporary bytes"] + array

    jaxpr, jaxpr_by_hand = (jax.make_jaxpr(fn)(*args) for fn, args in (pair["Axonym"], pair["JAX"]))
    for primitive in ("transpose", "dot_general", "mul", "convert_element_type", "copy", "name"):
        # A square is a product here, and a power by hand.
        powers = len(named_of(jaxpr_by_hand, "integer_pow")) if primitive == "mul" else 0
        assert len(named_of(jaxpr, primitive)) <= len(named_of(jaxpr_by_hand, primitive)) + powers, primitive
    assert which == "gradient" or not named_of(jaxpr, "transpose")
    for product in named_of(jaxpr, "mul"):
        scalars = [operand for operand in product.invars if operand.aval.shape == ()]
        assert not any(getattr(scalar, "val", None) in (1, 1.0) for scalar in scalars), "A number is multiplied by one."


def residuals(form) -> int:
    """Returns the bytes that the forward loop of a gradient stacks up for the backward one."""
    loss, args = form.flat()
    forward, *_ = named_of(jax.make_jaxpr(jax.value_and_grad(loss))(*args), "scan")
    stacked = [out.aval for out in forward.outvars if out.aval.shape[:1] == (SMALL.layers,)]
    return sum(aval.size * aval.dtype.itemsize for aval in stacked)


def test_a_scanned_decoder_agrees_with_the_one_by_hand_and_saves_no_more_residuals():
    pair = forms(SMALL, scanned=True)
    assert 0 < residuals(pair["Axonym"]) <= residuals(pair["JAX"])
    check_agreement(pair)


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
def test_tracing_a_decoder_enters_fewer_functions_than_by_hand(scanned):
    pair = forms(SMALL, scanned=scanned)

    def entered(form) -> int:
        return all_calls(lambda: jax.make_jaxpr(form.fresh())(form.parameters, *form.tokens))

    # A loop is traced into a jaxpr first, which tells what its step takes from around it.
    limit = 0.88 if scanned else 0.8
    assert entered(pair["Axonym"]) <= limit * entered(pair["JAX"])


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
