"""Arrays that are made: from plain ones, filled, and with evenly spaced values, on one device and on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.named.comparing import assert_close, assert_same
from tests.refusals import refusal


A, B = nym.make_axes(a=2, b=3)


def test_named_takes_anything_array_like():
    for array in ([[1, 2, 3], [4, 5, 6]], np.arange(6).reshape(2, 3), jnp.ones((2, 3)), ((1.0, 2, 3),) * 2):
        x = nym.named(array, (A, "b"))
        assert x.names == ("a", "b") and isinstance(x.array, jax.Array) and np.array_equal(x.array, np.asarray(array))
        assert nym.named(x.array, {"a": 2, "b": 3}).array is x.array
    shape = jax.ShapeDtypeStruct((2,), jnp.float32)
    assert nym.named(shape, "a").array is shape
    for number in (1, 2.5, True, np.float32(3), jnp.int32(1)):
        x = nym.named(number, ())
        assert x.names == () and x.item() == number and x.dtype == jnp.asarray(number).dtype


def test_filled_arrays():
    for fn, value in ((nym.zeros, 0), (nym.ones, 1)):
        x = fn((A, B))
        assert x.axes == (A, B) and x.dtype == jnp.float32 and (np.asarray(x) == value).all()
        assert fn({"a": 2}, int).dtype == jnp.int32 and fn({"a": 2}, dtype=jnp.bfloat16).dtype == jnp.bfloat16
        assert fn(()).shape == () and fn(A).shape == (2,)
    assert_same(nym.full((A, B), 2.5), "ab", np.full((2, 3), 2.5))
    assert nym.full(A, 7).dtype == jnp.int32 and nym.full(A, 7, jnp.float32).dtype == jnp.float32


def test_a_value_is_one_number():
    two = nym.named(2, ())
    assert_same(nym.full(A, two), "a", [2, 2])
    assert_same(nym.full_like(nym.ones(A), two), "a", [2, 2])
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
        with refusal("A plain array of shape (2,) has no axis names", TypeError):
            make(np.ones(2))
        with refusal("(a: 2) is not a scalar"):
            make(nym.ones(A))


def test_arrays_like_others():
    x = nym.named(np.ones((2, 3), np.int32), (A, B))
    for fn, value in ((nym.zeros_like, 0), (nym.ones_like, 1), (lambda x: nym.full_like(x, 5), 5)):
        assert fn(x).dtype == x.dtype
        assert_same(fn(x), "ab", np.full((2, 3), value))
    assert nym.ones_like(x, jnp.float32).dtype == nym.full_like(x, 0.5, jnp.float32).dtype == jnp.float32
    for dtype in (jnp.uint32, jnp.float32):
        assert_same(nym.full_like(x, 3_000_000_000, dtype), "ab", np.full((2, 3), 3e9))
        assert_same(nym.full((A, B), 3_000_000_000, dtype), "ab", np.full((2, 3), 3e9))
    for fill in (lambda dtype: nym.full_like(x, 3_000_000_000, dtype), lambda dtype: nym.full(A, 3_000_000_000, dtype)):
        with refusal("elements of int32 are from -2147483648 to 2147483647 and cannot take 3000000000"):
            fill("int64")


def test_arange():
    cases = [(0, 1, None), (5, 1, None), (5, -2, None), (0.5, 1, None), (1, 0.25, None), (1, 2, jnp.float32)]
    several = (A, B, Axis("c", 4))

    @jax.jit
    def make(start, step):
        known = [nym.arange(Axis("i", 4), start=start, step=step, dtype=dtype) for start, step, dtype in cases]
        traced = nym.arange(Axis("i", 3), start=start, step=step)
        return known, traced, [nym.arange(several, start=1, step=2, dtype=dtype) for dtype in (None, jnp.bfloat16)]

    known, traced, wide = make(np.int32(2), np.int32(3))
    for (start, step, dtype), result in zip(cases, known, strict=True):
        assert_same(result, "i", start + step * np.arange(4))
        assert result.dtype == (dtype or jax.dtypes.canonicalize_dtype(np.result_type(type(start), type(step))))
    assert_same(traced, "i", [2, 5, 8])
    for dtype, result in zip((jnp.int32, jnp.bfloat16), wide, strict=True):
        assert result.dtype == dtype
        assert_same(result, "abc", np.arange(1, 49, 2).reshape(2, 3, 4))
    assert nym.arange(Axis("i", 0)).shape == (0,) and nym.arange({"a": 0, "b": 2}).shape == (0, 2)
    assert nym.arange((), start=3).item() == 3
    assert_same(nym.arange({"i": 2}, start=nym.named(3, ())), "i", [3, 4])


def test_eye():
    shifts = [0, 1, -1, 5]

    @jax.jit
    def make(shifts):
        traced = [nym.eye(B, "other", k=k, dtype=int) for k in shifts]
        return traced, nym.eye(A, B, dtype=bool), nym.eye(A, "b", k=nym.named(1, ()))

    traced, truth, square = make(shifts)
    for k, result in zip(shifts, traced, strict=True):
        assert_same(result, ("b", "other"), np.eye(3, k=k))
    assert_same(nym.eye(A, B, k=-1), "ab", np.eye(2, 3, -1))
    assert truth.dtype == bool and square.shape == (2, 2)
    with refusal("axis 'a' occurs more than once in (a, a)"):
        nym.eye(A, "a")
    with refusal("one axis is needed, not ()"):
        nym.eye(A, ())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["linspace", "logspace", "geomspace"])
def test_spaced_values(name):
    make, reference = getattr(nym, name), getattr(np, name)
    cases = [(5, {}), (5, {"endpoint": False}), (4, {"dtype": jnp.bfloat16}), (0, {}), (1, {}), (50, {})]

    @jax.jit
    def compute(start):
        known = [make(Axis("i", size), start=-1, stop=-2.5, **options) for size, options in cases]
        whole, line = make(Axis("i", 4), start=-1, stop=-2.5, dtype=int), make(Axis("i", 3), start=1, stop=1j)
        return known, whole, line, make("i", start=start, stop=nym.named(2.0, ()))

    known, whole, line, traced = compute(1.0)
    for (size, options), result in zip(cases, known, strict=True):
        expected = reference(-1, -2.5, size, **({"endpoint": False} if "endpoint" in options else {}))
        assert result.names == ("i",) and result.dtype == options.get("dtype", jnp.float32)
        tolerance = 0.02 if "dtype" in options else 1e-5
        np.testing.assert_allclose(np.asarray(result.array, np.float32), expected, tolerance, atol=1e-6)
    assert whole.dtype == jnp.int32 and np.array_equal(whole.array, getattr(jnp, name)(-1, -2.5, 4, dtype=int))
    assert line.dtype == jnp.complex64
    assert_close(traced, "i", reference(1.0, 2.0, 50))
    for axes, shown in (((A, B), "(a: 2, b: 3)"), ((), "()")):
        with refusal(f"one axis is needed, not {shown}"):
            make(axes, start=0.0, stop=1.0)


def test_logspace_has_a_base():
    for base in (2, nym.named(2.0, ())):
        assert_close(nym.logspace(Axis("i", 3), start=0, stop=2, base=base), "i", [1, 2, 4])


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_what_is_made_is_sharded_by_the_mapping(mapped, inside):
    axes = nym.make_axes(batch=8, pos=3, embed=4)

    def make():
        return (
            nym.zeros(axes),
            nym.full(axes, 2, int),
            nym.arange(axes[0], start=2, step=3),
            nym.linspace(axes[2], start=0.0, stop=1.0),
            nym.logspace(axes[0], start=0, stop=7, base=2),
            nym.arange(axes, step=2),
            nym.eye(axes[0], axes[2], k=1),
        )

    expected = [
        (("data", None, "model"), np.zeros((8, 3, 4))),
        (("data", None, "model"), np.full((8, 3, 4), 2)),
        (("data",), 2 + 3 * np.arange(8)),
        (("model",), np.linspace(0, 1, 4)),
        (("data",), 2.0 ** np.arange(8)),
        (("data", None, "model"), 2 * np.arange(96).reshape(8, 3, 4)),
        (("data", "model"), np.eye(8, 4, 1)),
    ]
    for x, (spec, values) in zip((jax.jit(make) if inside else make)(), expected, strict=True):
        assert x.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P(*spec)), x.ndim)
        assert_close(x, x.names, values)


def test_where_an_array_lies_is_said_once(auto_mesh, equations):
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data"}):
        for make in (nym.zeros, nym.arange):
            names = [name for name, _ in equations(lambda make=make: make({"batch": 8}))]
            assert names.count("sharding_constraint") == 1


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
        with refusal("axis 'batch' has size 6, which is not divisible by mesh axis 'data' of size 4"):
            make()
