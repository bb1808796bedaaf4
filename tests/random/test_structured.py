"""Draws that have axes of their own, and draws from arrays: those of `jax.random`, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Batch, Seq, Class, Other = nym.make_axes(batch=4, seq=3, kind=6, other=6)
BOTH = (Batch, Seq)
KEY = jax.random.key(1)
MAPPING = {"batch": "data", "kind": "model"}
random = nym.random

weights = nym.named(np.random.default_rng(0).uniform(0.1, 1, size=(6, 4)).astype(np.float32), ("kind", "batch"))
table = nym.named(np.arange(72.0, dtype=np.float32).reshape(4, 6, 3), ("batch", "kind", "seq"))
spread = np.random.default_rng(1).normal(size=(6, 3, 6)).astype(np.float32)
covariance = nym.named(np.einsum("isk,jsk->isj", spread, spread) + 3 * np.eye(6)[:, None], ("kind", "seq", "other"))
chances = nym.named(np.arange(6.0, dtype=np.float32), "kind")
LAST = weights.array.T[:, None]
SPREAD = jnp.moveaxis(jnp.asarray(covariance.array), 1, 0)[None]
ALL = (*BOTH, Class)

CASES = {
    "ball": (lambda: random.ball(KEY, BOTH, Class, 1.5), lambda: jax.random.ball(KEY, 6, 1.5, (4, 3)), ALL),
    "dirichlet": (
        lambda: random.dirichlet(KEY, BOTH, weights, "kind"),
        lambda: jax.random.dirichlet(KEY, LAST, (4, 3)),
        ALL,
    ),
    "multivariate_normal": (
        lambda: random.multivariate_normal(KEY, BOTH, weights, covariance, "kind", "other"),
        lambda: jax.random.multivariate_normal(KEY, LAST, SPREAD, (4, 3)),
        ALL,
    ),
    "orthogonal": (
        lambda: random.orthogonal(KEY, Class, Seq, Batch),
        lambda: jax.random.orthogonal(KEY, 6, (4,), m=3),
        (Batch, Class, Seq),
    ),
    "choice": (
        lambda: random.choice(KEY, (nym.Axis("draw", 5), Class.resize(2)), table, "kind"),
        lambda: jax.random.choice(KEY, table.array, (5, 2), axis=1),
        (Batch, nym.Axis("draw", 5), Class.resize(2), Seq),
    ),
    "permutation": (
        lambda: random.permutation(KEY, table, "batch"),
        lambda: jax.random.permutation(KEY, table.array, 0),
        (Batch, Class, Seq),
    ),
    "independent permutation": (
        lambda: random.permutation(KEY, table, "seq", independent=True),
        lambda: jax.random.permutation(KEY, table.array, 2, independent=True),
        (Batch, Class, Seq),
    ),
}


def agree(found, case, expected=None):
    if expected is None:
        with jax.set_mesh(None):
            expected = CASES[case][1]()
    assert found.axes == CASES[case][2] and found.dtype == expected.dtype
    np.testing.assert_allclose(found.array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_jax(case):
    found, expected = jax.jit(lambda: [draw() for draw in CASES[case][:2]])()
    agree(found, case, expected)


@pytest.mark.parametrize("case", ["multivariate_normal", "orthogonal"])
def test_values_do_not_depend_on_the_mesh(mesh, case):
    with nym.axis_mapping(MAPPING):
        found = CASES[case][0]()
        wanted = nym.sharding_for_axis(found.axes)
    assert any(wanted.spec) and found.sharding.is_equivalent_to(wanted, found.ndim)
    agree(found, case)


def test_arrays_drawn_from_may_be_sharded(mesh):
    plain = np.asarray(table.array)
    with jax.set_mesh(None):
        permuted, chosen = jax.random.permutation(KEY, plain, 1), jax.random.choice(KEY, plain, (3,), axis=1)
    with nym.axis_mapping(MAPPING):
        x = nym.shard(table)
        for found, expected in (
            (random.permutation(KEY, x, "kind"), permuted),
            (random.choice(KEY, {"draw": 3}, x, "kind"), chosen),
        ):
            np.testing.assert_array_equal(found.array, jax.device_get(expected))
            wanted = nym.sharding_for_axis(found.axes)
            assert found.sharding.is_equivalent_to(wanted, found.ndim)


def test_a_scalar_and_no_shape_do():
    assert random.orthogonal(KEY, Seq, Class).axes == (Seq, Class)
    assert random.choice(KEY, {"draw": 0}, nym.zeros({"kind": 0}), "kind").shape == {"draw": 0}


def test_the_covariance_is_taken_apart_as_asked():
    mean, cov = nym.zeros({"kind": 6}), covariance["seq", 0]
    found = random.multivariate_normal(KEY, (), mean, cov, "kind", "other", jnp.float32, "eigh")
    expected = jax.random.multivariate_normal(KEY, mean.array, cov.array, method="eigh")
    np.testing.assert_allclose(found.array, expected, rtol=1e-4, atol=1e-5)


AXES_THAT_DO_NOT_FIT = [
    (lambda: random.dirichlet(KEY, Seq, weights, "kind"), "axes (batch), which the array to draw, (seq: 3), lacks"),
    (lambda: random.multinomial(KEY, Batch, 3, weights, "knid"), "no axis 'knid' in (kind: 6, batch: 4); did you mean"),
    (lambda: random.ball(KEY, (), Class, chances), "`p` must be a scalar, not an array with axes (kind: 6)"),
    (lambda: random.ball(KEY, (), Class, 0.0), "ball: `p` must be above 0, not 0.0"),
    (lambda: random.orthogonal(KEY, Class, Class), "axis 'kind' occurs more than once in (kind, kind)"),
    (
        lambda: random.multivariate_normal(KEY, Batch, weights, covariance, "kind", "seq"),
        "the covariance needs axes 'kind' and 'seq' of size 6, it has (kind: 6, seq: 3, other: 6)",
    ),
    (
        lambda: random.multivariate_normal(KEY, Batch, weights, covariance, "kind", "kind"),
        "axis 'kind' is given more than once in (kind, kind)",
    ),
    (
        lambda: random.choice(KEY, Seq.resize(5), table, "batch", replace=False),
        "5 draws, (seq: 5), need at least as many elements along axis 'batch' of (batch: 4, kind: 6, seq: 3)",
    ),
    (
        lambda: random.choice(KEY, Seq, table["seq", 0]["batch", 0], "kind", p=weights),
        "`p` must have shape (kind: 6), not (kind: 6, batch: 4)",
    ),
]


@pytest.mark.parametrize(("draw", "message"), AXES_THAT_DO_NOT_FIT)
def test_errors_say_which_axes_do_not_fit(draw, message):
    with refusal(message):
        draw()


def test_plain_arrays_are_refused():
    x = np.ones(6)
    for draw in (
        lambda: random.dirichlet(KEY, Batch, x, "kind"),
        lambda: random.multinomial(KEY, Batch, 2, x, "kind"),
        lambda: random.multivariate_normal(KEY, Batch, chances, x, "kind", "other"),
        lambda: random.choice(KEY, Batch, x, "kind"),
        lambda: random.choice(KEY, Batch, chances, "kind", p=x),
        lambda: random.permutation(KEY, x, "kind"),
    ):
        with refusal("A named array is needed, not an array of shape (6,)", TypeError):
            draw()
