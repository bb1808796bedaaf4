"""Arrays that are made: from plain ones, filled, and with evenly spaced values, on one device and on a mesh."""

import functools
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
        lambda value: nym.logspace(A, start=0.0, stop=1.0, base=value),
        lambda value: nym.eye(A, B, k=value),
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
    for dtype in (jnp.uint32, jnp.float32):
        assert np.array_equal(nym.full_like(x, 3_000_000_000, dtype).array, np.full(x.array.shape, 3e9))


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


@pytest.mark.parametrize(
    ("start", "step", "dtype"), [(0, 1, None), (3, -2, None), (1, 0.5, None), (1, 2, jnp.bfloat16)]
)
def test_arange_of_several_axes(start, step, dtype):
    x = nym.arange((A, B, Axis("c", 4)), start=start, step=step, dtype=dtype)
    expected = jnp.arange(start, start + 24 * step, step, dtype).reshape(2, 3, 4)
    assert x.names == ("a", "b", "c") and x.dtype == expected.dtype and np.array_equal(x.array, expected)
    assert nym.arange((), start=3).item() == 3 and nym.arange({"a": 0, "b": 2}).shape == (0, 2)


@pytest.mark.parametrize("k", [0, 1, -1, 5])
def test_eye(k):
    x = nym.eye(A, B, k=k)
    assert x.axes == (A, B) and x.dtype == jnp.eye(2).dtype and np.array_equal(x.array, jnp.eye(2, 3, k))
    assert np.array_equal(jax.jit(lambda k: nym.eye(B, "other", k=k, dtype=int))(k).array, np.eye(3, k=k))
    assert nym.eye(A, B, dtype=bool).dtype == bool and nym.eye(A, "b", k=nym.named(k, ())).shape == (2, 2)


def test_eye_refuses():
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, a)")):
        nym.eye(A, "a")
    with pytest.raises(TypeError, match="A new axis needs a size"):
        nym.eye("a", B)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=escape("one axis is needed, not ()")):
        nym.eye(A, ())  # pyright: ignore[reportArgumentType]


SPACED = [(nym.linspace, jnp.linspace), (nym.logspace, jnp.logspace), (nym.geomspace, jnp.geomspace)]


@pytest.mark.parametrize(("make", "reference"), SPACED, ids=["linspace", "logspace", "geomspace"])
def test_spaced_values(make, reference):
    for size, options in ((5, {}), (5, {"endpoint": False}), (4, {"dtype": jnp.bfloat16}), (4, {"dtype": int})):
        x = make(Axis("i", size), start=-1, stop=-2.5, **options)
        expected = reference(-1, -2.5, size, **options)
        assert x.names == ("i",) and x.dtype == expected.dtype
        assert np.allclose(np.asarray(x.array, np.float32), np.asarray(expected, np.float32))
    for size in (0, 1):
        assert np.array_equal(make(Axis("i", size), start=2, stop=5).array, reference(2, 5, size))
    assert make(Axis("i", 3), start=1, stop=1j).dtype == jnp.complex64
    assert np.allclose(make("i", start=1.0, stop=2.0).array, reference(1.0, 2.0, 50))
    traced = jax.jit(lambda start: make(Axis("i", 3), start=start, stop=nym.named(2.0, ())))(1.0)
    assert np.allclose(traced.array, reference(1.0, 2.0, 3))


def test_logspace_has_a_base():
    for base in (2, nym.named(2.0, ())):
        assert np.allclose(nym.logspace(Axis("i", 3), start=0, stop=2, base=base).array, [1, 2, 4])


@pytest.mark.parametrize("make", [nym.linspace, nym.logspace, nym.geomspace], ids=["linspace", "logspace", "geomspace"])
def test_spaced_values_need_one_axis(make):
    for axes, shown in (((A, B), "(a: 2, b: 3)"), ((), "()")):
        with pytest.raises(ValueError, match=escape(f"one axis is needed, not {shown}")):
            make(axes, start=0.0, stop=1.0)
    with pytest.raises(TypeError, match="A new axis is given by an `Axis`, with a name and a size, not by 5"):
        make(5, start=0.0, stop=1.0)


def test_arange_needs_sizes():
    with pytest.raises(TypeError, match=escape("A new axis needs a size: give `Axis('i', size)` instead of 'i'.")):
        nym.arange("i")  # pyright: ignore[reportArgumentType]


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
            nym.geomspace(axes[0], start=1.0, stop=9.0),
            nym.arange(axes, step=2),
            nym.eye(axes[0], axes[2], k=1),
        )

    for x, spec in zip(
        (jax.jit(made) if inside else made)(),
        (
            *[("data", None, "model")] * 3,
            *[("data",)] * 2,
            ("model",),
            ("data",),
            ("data", None, "model"),
            ("data", "model"),
        ),
        strict=True,
    ):
        assert x.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P(*spec)), x.ndim)


def test_what_is_made_in_parts_has_the_right_values(mapped):
    axes = nym.make_axes(batch=8, pos=3, embed=4)
    assert np.array_equal(nym.arange(axes, step=2).array, 2 * np.arange(96).reshape(8, 3, 4))
    assert np.array_equal(nym.eye(axes[0], axes[2], k=1).array, np.eye(8, 4, 1))
    assert np.allclose(nym.linspace(axes[0], start=0.0, stop=3.5).array, np.arange(8) / 2)
    assert np.allclose(nym.logspace(axes[0], start=0, stop=7, base=2).array, 2.0 ** np.arange(8))


def test_where_an_array_lies_is_said_once(auto_mesh, equations):
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data"}):
        for make in (nym.zeros, nym.arange):
            assert [name for name, _ in equations(functools.partial(make, {"batch": 8}))].count(
                "sharding_constraint"
            ) == 1


def test_on_an_explicit_mesh_nothing_is_made_whole(explicit_mesh):
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        traced = str(jax.make_jaxpr(lambda: nym.full({"batch": 8, "embed": 4}, 2.0).array)())
        counted = str(jax.make_jaxpr(lambda: nym.arange({"batch": 8, "embed": 4}).array)())
        line = str(jax.make_jaxpr(lambda: nym.geomspace(Axis("batch", 8), start=1.0, stop=2.0).array)())
        unit = str(jax.make_jaxpr(lambda: nym.eye(Axis("batch", 8), Axis("embed", 4)).array)())
    assert "f32[8@data,4@model]" in traced and "f32[8,4]" not in traced
    assert "i32[8@data,4@model]" in counted and "i32[8,4]" not in counted
    assert "f32[8@data]" in line and "[8]" not in line and "[7]" not in line
    assert "f32[8@data,4@model]" in unit and "[8,4]" not in unit


def test_what_is_made_like_another_lies_where_that_does(mapped):
    x = nym.shard(nym.zeros(nym.make_axes(batch=8, embed=4)))
    for y in (nym.zeros_like(x), nym.ones_like(x), nym.full_like(x, 2.0)):
        assert y.sharding == x.sharding


def test_what_is_made_like_an_array_that_a_traced_function_closes_over_has_its_type(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data"}):
            x = nym.shard(nym.zeros(nym.make_axes(batch=8, embed=4)))
        for y in jax.eval_shape(lambda: (nym.zeros_like(x), nym.ones_like(x, int), nym.full_like(x, 2.0))):
            assert y.array.sharding.spec == jax.P("data", None)


def test_a_size_that_the_mesh_does_not_divide_is_refused(mapped):
    for make in (
        lambda: nym.zeros({"batch": 6}),
        lambda: nym.arange(Axis("batch", 6)),
        lambda: jax.jit(nym.ones, static_argnums=0)(Axis("batch", 6)),
    ):
        with pytest.raises(
            ValueError, match="axis 'batch' has size 6, which is not divisible by mesh axis 'data' of size 4"
        ):
            make()
