"""The router: the experts that it chooses and their weights, its losses, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal
from .conftest import COMPUTE, assert_close, results


Batch, Pos, Embed, Experts = nym.make_axes(batch=8, pos=3, embed=8, experts=8)
KEY = jax.random.key(0)


def route_by_hand(router, x):
    logits = jnp.einsum("bpe,xe->bpx", x.array.astype(jnp.float32), router.weight.array.astype(jnp.float32))
    if router.softmax == "after":
        chosen, experts = jax.lax.top_k(logits, router.TopK.size)
        return jax.nn.softmax(chosen), experts, logits
    chosen, experts = jax.lax.top_k(jax.nn.softmax(logits), router.TopK.size)
    return chosen / chosen.sum(-1, keepdims=True) if router.normalize else chosen, experts, logits


@pytest.mark.parametrize(("softmax", "normalize"), [("before", True), ("before", False), ("after", False)])
def test_router_chooses_the_largest_scores(draw, softmax, normalize):
    options = {"softmax": softmax, "normalize": normalize}
    router = draw.layer(nym.nn.Router.init, Embed, Experts, 2, **options)
    x = draw(Batch, Pos, Embed).astype(jnp.bfloat16)
    routing = router(x)
    weights, experts, logits = route_by_hand(router, x)
    assert routing.weights.dtype == jnp.float32  # whatever the element type of the model
    np.testing.assert_allclose(routing.weights.array, weights, rtol=1e-5)
    np.testing.assert_array_equal(routing.experts.array, experts)
    np.testing.assert_allclose(routing.logits.array, logits, rtol=1e-5, atol=1e-6)


def test_router_has_the_gradient_of_its_weights(check, draw):
    router, names = draw.layer(nym.nn.Router.init, Embed, Experts, 2), ("batch", "pos", "top_k")
    by_hand = lambda router, x: nym.named(route_by_hand(router, x)[0], names)  # noqa: E731
    check(lambda router, x: router(x).weights, by_hand, router, draw(Batch, Pos, Embed))


def test_normalised_weights_are_the_softmax_over_the_chosen_experts(draw):
    router, x = draw.layer(nym.nn.Router.init, Embed, Experts, 3), draw(Batch, Pos, Embed)
    after = nym.nn.Router(router.weight, Embed, Experts, router.TopK, "after", False)
    np.testing.assert_allclose(router(x).weights.array, after(x).weights.array, rtol=1e-5)


def test_losses_are_those_of_the_papers(mesh, draw):
    logits = draw(Batch, Experts)
    expected = np.mean(np.log(np.exp(np.asarray(logits.array, float)).sum(-1)) ** 2)
    with nym.axis_mapping(COMPUTE):
        np.testing.assert_allclose(nym.nn.router_z_loss(logits, Experts).array, expected, rtol=1e-5)
    probabilities = nym.softmax(logits, Experts)
    counts = nym.bincount(nym.argmax(probabilities, Experts), Experts)

    def loss(probabilities):
        return nym.nn.load_balance_loss(counts, probabilities.mean(Batch), Experts)

    shares = np.bincount(np.asarray(probabilities.array).argmax(-1), minlength=8) / 8
    result, gradient = jax.jit(results(lambda probabilities: loss(probabilities)))(probabilities, ())
    np.testing.assert_allclose(result.array, 8 * (shares * np.asarray(probabilities.array).mean(0)).sum(), rtol=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(gradient)[0], np.sin(1) * np.tile(shares, (8, 1)), rtol=1e-5)
    equal = nym.full(Experts, 1 / 8)
    assert_close(nym.nn.load_balance_loss(equal, equal, Experts), nym.named(1.0, ()), 1e-6)


def test_the_axis_of_the_choices_may_be_named():
    router = nym.nn.Router.init(Embed, Experts, nym.Axis("choice", 2), key=KEY)
    assert router(nym.ones(Embed)).weights.shape == {"choice": 2}


def test_wrong_arguments_are_refused():
    with refusal("Router (embed: 8 -> experts: 8): `top_k` must be from 1 to the number of experts, it is 9"):
        nym.nn.Router.init(Embed, Experts, 9, key=KEY)
    with refusal("Router: `softmax` must be 'before' or 'after', not 'none'"):
        nym.nn.Router.init(Embed, Experts, 2, key=KEY, softmax="none")
    router = nym.nn.Router.init(Embed, Experts, 2, key=KEY)
    with refusal("Router (embed: 8 -> experts: 8): no axis 'embed' in (batch: 8)"):
        router(nym.ones(Batch))
    with refusal("has the output axis 'top_k' already"):
        router(nym.ones({"top_k": 2, "embed": 8}))
    with refusal("load_balance_loss: no axis 'experts' in (batch: 8)"):
        nym.nn.load_balance_loss(nym.ones(Batch), nym.ones(Experts), "experts")
    with refusal("router_z_loss: no axis 'experts' in (batch: 8)"):
        nym.nn.router_z_loss(nym.ones(Batch), "experts")
