"""Arrays that are made: from plain ones, filled, and with evenly spaced values, on one device and on a mesh."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


A, B = nym.make_axes(a=2, b=3)


@pytest.mark.parametrize(
    "array", [[[1, 2, 3], [4, 5, 6]], np.arange(6).reshape(2, 3), jnp.ones((2, 3)), ((1.0, 2, 3),) * 2]
)
def test_named_takes_anything_array_like(array):
    x = nym.named(array, (A, "b"))
    assert x.names == ("a", "b") and isinstance(x.array, jax.Array) and np.array_equal(x.array, np.asarray(array))
    assert nym.named(x.array, {"a": 2, "b": 3}).array is x.array


def test_named_takes_shapes_and_scalars():
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert nym.named(shape, "a").array is shape
    for number in (1, 2.5, True, np.float32(3), jnp.int32(1)):
        x = nym.named(number, ())
        assert x.names == () and x.item() == number and x.dtype == jnp.asarray(number).dtype


def test_filled_arrays():
    for fn, value in ((nym.zeros, 0), (nym.ones, 1)):
        x = fn((A, B))
        assert x.axes == (A, B) and x.dtype == jnp.float32 and (x == value).all()
        assert fn({"a": 2}, int).dtype == jnp.int32 and fn({"a": 2}, dtype=jnp.bfloat16).dtype == jnp.bfloat16
        assert fn(()).shape == () and fn(A).shape == (2,)
    assert np.array_equal(nym.full((A, B), 2.5).array, jnp.full((2, 3), 2.5))
    assert nym.full(A, 7).dtype == jnp.full(2, 7).dtype and nym.full(A, 7, jnp.float32).dtype == jnp.float32


def test_a_value_is_one_number():
    two = nym.named(2, ())
    assert np.array_equal(nym.full(A, two).array, [2, 2]) and np.array_equal(
        nym.full_like(nym.ones(A), two).array, [2.0, 2.0]
    )
    assert nym.full(A, jnp.bfloat16(2)).dtype == jnp.bfloat16
    for make in (
        lambda value: nym.full(A, value),
        lambda value: nym.full_like(nym.ones(A), value),
        lambda value: nym.arange(A, start=value),
        lambda value: nym.arange(A, step=value),
        lambda value: nym.linspace(A, start=value, stop=1.0),
        lambda value: nym.linspace(A, start=0.0, stop=value),
    ):
        with pytest.raises(TypeError, match=escape("A plain array of shape (2,) has no axis names")):
            make(np.ones(2))
        with pytest.raises(ValueError, match=escape("(a: 2) is not a scalar")):
            make(nym.ones(A))


def test_arrays_like_others():
    x = nym.named(np.ones((2, 3), np.int32), (A, B))
    for fn, reference in ((nym.zeros_like, jnp.zeros_like), (nym.ones_like, jnp.ones_like)):
        assert fn(x).axes == x.axes and fn(x).dtype == x.dtype and np.array_equal(fn(x).array, reference(x.array))
        assert fn(x, jnp.float32).dtype == jnp.float32
    assert np.array_equal(nym.full_like(x, 5).array, jnp.full_like(x.array, 5))
    assert nym.full_like(x, 0.5, jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize(
    ("start", "step", "dtype"),
    [(0, 1, None), (5, 1, None), (0, 3, None), (5, -2, None), (0.5, 1, None), (1, 0.25, None), (1, 2, jnp.float32)],
)
def test_arange(start, step, dtype):
    x = nym.arange(Axis("i", 4), start=start, step=step, dtype=dtype)
    expected = jnp.arange(start, start + 4 * step, step, dtype)
    assert x.names == ("i",) and x.dtype == expected.dtype and np.allclose(x.array, expected)


def test_arange_may_be_traced():
    values = jax.jit(lambda start, step: nym.arange(Axis("i", 3), start=start, step=step))(jnp.int32(2), jnp.int32(3))
    assert np.array_equal(values.array, [2, 5, 8])
    assert nym.arange(Axis("i", 0)).shape == (0,) and nym.arange({"i": 2}).names == ("i",)
    assert np.array_equal(nym.arange(Axis("i", 2), start=nym.named(3, ())).array, [3, 4])


def test_linspace():
    for options in ({}, {"endpoint": False}, {"dtype": jnp.bfloat16}):
        x = nym.linspace(Axis("i", 5), start=-1.0, stop=2.0, **options)
        expected = jnp.linspace(-1.0, 2.0, 5, **options)
        assert x.names == ("i",) and x.dtype == expected.dtype and np.array_equal(x.array, expected)


@pytest.mark.parametrize("make", [nym.arange, lambda axis: nym.linspace(axis, start=0.0, stop=1.0)])
def test_one_axis_with_a_size_is_needed(make):
    with pytest.raises(TypeError, match=escape("A new axis needs a size: give `Axis('i', size)` instead of 'i'.")):
        make("i")
    with pytest.raises(ValueError, match=escape("one axis is needed, not (a: 2, b: 3)")):
        make((A, B))
    with pytest.raises(ValueError, match=escape("one axis is needed, not ()")):
        make(())


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_what_is_made_is_sharded_by_the_mapping(mapped, inside):
    axes = nym.make_axes(batch=8, pos=3, embed=4)

    def made():
        return (
            nym.zeros(axes),
            nym.ones(axes, int),
            nym.full(axes, 2.0),
            nym.arange(axes[0]),
            nym.arange(axes[0], start=2, step=3),
            nym.linspace(axes[2], start=0.0, stop=1.0),
        )

    for x, spec in zip(
        (jax.jit(made) if inside else made)(),
        (*[("data", None, "model")] * 3, *[("data",)] * 2, ("model",)),
        strict=True,
    ):
        assert x.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P(*spec)), x.ndim)


def test_on_an_explicit_mesh_nothing_is_made_whole(explicit_mesh):
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        traced = str(jax.make_jaxpr(lambda: nym.full({"batch": 8, "embed": 4}, 2.0).array)())
    assert "f32[8@data,4@model]" in traced and "f32[8,4]" not in traced


def test_what_is_made_like_another_lies_where_that_does(mapped):
    x = nym.shard(nym.zeros(nym.make_axes(batch=8, embed=4)))
    for y in (nym.zeros_like(x), nym.ones_like(x), nym.full_like(x, 2.0)):
        assert y.sharding == x.sharding


def test_a_size_that_the_mesh_does_not_divide_is_refused(mapped):
    for make in (
        lambda: nym.zeros({"batch": 6}),
        lambda: nym.arange(Axis("batch", 6)),
        lambda: jax.jit(nym.ones, static_argnums=0)(Axis("batch", 6)),
    ):
        with pytest.raises(
            ValueError, match="axis 'batch' has size 6, which mesh axis 'data' of size 4 does not divide"
        ):
            make()
