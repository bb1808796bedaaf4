import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


FUNCTIONS = {name: getattr(nym, name) for name in ("allclose", "array_equal", "array_equiv")}


def test_arrays_are_equal_by_name_or_once_broadcast():
    values = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    x, row = nym.named(values, ("batch", "embed")), nym.named(values[0], "embed")
    transposed, repeated = nym.named(values.T * 1.000001, ("embed", "batch")), nym.named(values[[0, 0]], x.names)
    others = [x.rename({"embed": "mlp"}), nym.named(values[:, 0], "batch"), nym.named(values[:, :2], x.names)]

    @jax.jit
    def compare():
        holds = [
            *(nym.allclose(x, transposed), nym.allclose(repeated, row), nym.allclose(2.0, nym.full({"i": 2}, 2.0))),
            *(nym.array_equal(x, nym.named(values.T, ("embed", "batch"))), nym.array_equal(nym.named(2, ()), 2)),
            *(nym.array_equiv(row, repeated), nym.array_equiv(repeated, row), nym.array_equiv(nym.ones({"i": 2}), 1)),
        ]
        fails = [
            *(nym.allclose(x, repeated), nym.array_equal(x, repeated), nym.array_equiv(x, row)),
            *(nym.array_equal(x, other) for other in (*others, 1.0)),
            *(nym.array_equiv(x, other) for other in (others[0], others[2], nym.ones({"mlp": 3}))),
        ]
        return holds, fails

    holds, fails = compare()
    assert all(result.names == () and result.item() for result in holds)
    assert all(result.names == () and not result.item() for result in fails)


def test_tolerances_are_those_of_numpy_and_nan_is_equal_to_nan_if_asked_for():
    a, b = np.array([1.0, 10.0, 0.0]), np.array([1.05, 10.5, 0.05])
    for rtol, atol in ((0.1, 0.0), (0.0, 0.1), (0.001, 0.001)):
        for first, second in zip(a, b, strict=True):
            assert bool(nym.allclose(nym.named([first], "i"), nym.named([second], "i"), rtol, atol)) == np.allclose(
                first, second, rtol, atol
            )
    x, y = nym.named([np.nan, 1.0], "i"), nym.named([1.0, np.nan], "i")
    for function in (nym.allclose, nym.array_equal):
        assert not function(x, x)
        assert function(x, x, equal_nan=True)
        assert not function(x, y, equal_nan=True)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_cannot_be_compared_is_refused(function, draw):
    with refusal("A named array is needed, not an array of shape (2,)", TypeError):
        function(jnp.ones(2), jnp.ones(2))
    with refusal("A plain array of shape (2,) has no axis names", TypeError):
        function(draw(i=2), jnp.ones(2))
    with refusal("cannot broadcast (i: 2) and (j: 2)"):
        nym.allclose(draw(i=2), draw(j=2))


def test_comparisons_are_the_same_sharded_on_both_meshes(mapped, draw):
    x, other = draw(batch=4, embed=2), draw(batch=4, embed=2)
    sharded = nym.shard((x, nym.named(np.asarray(x).T, ("embed", "batch")), other))

    def compare(x, y, other):
        return {name: (function(x, y), function(other, y)) for name, function in FUNCTIONS.items()}

    for same, different in (*jax.jit(compare)(*sharded).values(), compare(*sharded)["array_equal"]):
        assert same.item() and not different.item()
