import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


FUNCTIONS = ["allclose", "array_equal", "array_equiv"]


def test_arrays_are_close_whatever_the_order_of_their_axes(draw):
    x = draw(1.0, 2.0, batch=2, embed=3)
    y = (x + 1e-7).rearrange(("embed", "batch"))
    assert nym.allclose(x, y).names == ()
    assert nym.allclose(x, y) and not nym.allclose(x, y + 1.0)
    assert nym.allclose(x * 0.0, nym.zeros({"embed": 3})) and nym.allclose(2.0, nym.full({"embed": 3}, 2.0))


@pytest.mark.parametrize(("rtol", "atol"), [(0.1, 0.0), (0.0, 0.1), (0.001, 0.001)])
def test_tolerances_are_those_of_numpy(rtol, atol):
    for a, b in ((1.0, 1.05), (10.0, 10.5), (0.0, 0.05)):
        result = nym.allclose(nym.named([a], "i"), nym.named([b], "i"), rtol, atol)
        assert bool(result) == np.allclose(a, b, rtol, atol)


def test_arrays_are_equal_if_axes_and_elements_are(draw):
    x = draw(batch=2, embed=3)
    assert nym.array_equal(x, x.rearrange(("embed", "batch")))
    assert not nym.array_equal(x, x + 1.0)
    for other in (x.rename({"embed": "mlp"}), x["embed", 0], x["embed", :2], 1.0):
        result = nym.array_equal(x, other)
        assert result.names == () and not result
    assert nym.array_equal(nym.named(2, ()), 2)


def test_arrays_are_equivalent_if_they_are_equal_once_broadcast(draw):
    x = draw(embed=3)
    repeated = x.broadcast_axis({"batch": 2})
    assert nym.array_equiv(x, repeated) and nym.array_equiv(repeated, x)
    assert not nym.array_equiv(repeated, x + 1.0)
    assert nym.array_equiv(nym.ones({"i": 2}), 1)
    for other in (draw(mlp=3), x["embed", :2], x.rename({"embed": "mlp"}).broadcast_axis({"batch": 2})):
        result = nym.array_equiv(repeated, other)
        assert result.names == () and not result


@pytest.mark.parametrize("name", ["allclose", "array_equal"])
def test_nan_is_equal_to_nan_if_asked_for(name):
    function, x, y = getattr(nym, name), nym.named([np.nan, 1.0], "i"), nym.named([1.0, np.nan], "i")
    assert not function(x, x)
    assert function(x, x, equal_nan=True)
    assert not function(x, y, equal_nan=True)


def test_close_arrays_must_broadcast(draw):
    with pytest.raises(ValueError, match=r"cannot broadcast \(i: 2\) and \(j: 2\)"):
        nym.allclose(draw(i=2), draw(j=2))
    with pytest.raises(ValueError, match="axis 'i' has size 2 and size 3"):
        nym.allclose(draw(i=2), draw(i=3))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_of_two_arrays_must_be_named_and_none_plain(draw, name):
    with pytest.raises(TypeError, match=r"A named array is needed, not an array of shape \(2,\)"):
        getattr(nym, name)(jnp.ones(2), jnp.ones(2))
    with pytest.raises(TypeError, match=r"A plain array of shape \(2,\) has no axis names"):
        getattr(nym, name)(draw(i=2), jnp.ones(2))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_comparisons_are_the_same_sharded_on_both_meshes(mapped, draw, name):
    x = draw(batch=4, embed=2)
    y = nym.shard(x.rearrange(("embed", "batch")))
    for run in (getattr(nym, name), jax.jit(getattr(nym, name))):
        assert run(nym.shard(x), y)
        assert not run(nym.shard(x), y + 1.0)
