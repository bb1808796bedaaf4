"""How a call is passed on: what is static, what is an array, and results that hold more than arrays."""

import dataclasses
import enum
import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


class Model(eqx.Module):
    weight: nym.NamedArray
    bias: object
    act: object
    scale: float = 1.0
    name: str = eqx.field(static=True, default="model")

    def __call__(self, x):
        return self.act(x * self.weight + self.bias) * self.scale


def model(**changes):
    return Model(**{"weight": nym.named([1.0, 2.0], "i"), "bias": jnp.ones(()), "act": nym.tanh, **changes})


def counted(fn, **options):
    """Returns a function compiled by `named_jit`, and the list that grows by one with each trace."""
    traces = []

    def traced(*args, **kwargs):
        traces.append(args)
        return fn(*args, **kwargs)

    return nym.named_jit(traced, **options), traces


def test_one_trace_for_one_signature():
    fn, traces = counted(lambda model, x: model(x))
    x = nym.named([3.0, 4.0], "i")
    for _ in range(2):
        y = fn(model(), x)
        np.testing.assert_allclose(y.array, np.tanh(np.array([4.0, 9.0])), rtol=1e-6)
    assert len(traces) == 1
    fn(model(), nym.named([3, 4], "i"))
    assert len(traces) == 2
    fn(model(), nym.named([5.0, 6.0], "i"))
    assert len(traces) == 2


def test_arrays_of_every_kind_share_a_trace():
    fn, traces = counted(lambda x: x * 2)
    for array in (jnp.ones(3), np.ones(3, np.float32), jax.device_put(np.ones(3, np.float32), jax.devices()[0])):
        np.testing.assert_array_equal(fn(array), np.full(3, 2.0))
    for shape in (jax.ShapeDtypeStruct((3,), np.float32), jnp.ones(3)):
        fn.lower(shape)
        fn.trace(shape)
        fn.eval_shape(shape)
    jax.eval_shape(fn, jnp.ones(3))
    assert len(traces) == 1
    fn(np.float32(1.0))
    fn(jnp.float32(1.0))
    assert len(traces) == 2


class Mode(enum.Enum):
    TRAIN = enum.auto()
    TEST = enum.auto()


@pytest.mark.parametrize(
    "values",
    [
        (1, 2),
        (1, True, 1.0, 1j),
        (0, False, 0.0, None),
        (nym.tanh, nym.exp),
        ("a", "b"),
        (Mode.TRAIN, Mode.TEST),
        (np.dtype("float32"), np.dtype("int32")),
        (frozenset({1}), frozenset({2})),
        (nym.Axis("i", 2), nym.Axis("i", 3)),
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_leaves_that_are_not_arrays_are_static_by_value(values):
    seen = []

    @nym.named_jit
    def fn(x, tree, *, option):
        assert tree["deep"] is option or tree["deep"] == option
        seen.append(tree["deep"])
        return x

    for _ in range(2):
        for value in values:
            fn(jnp.ones(2), {"deep": value}, option=value)
    assert [(type(value), value) for value in seen] == [(type(value), value) for value in values]


@dataclasses.dataclass(frozen=True)
class Config:
    scale: object
    name: str = "config"
    parts: tuple = ()


@dataclasses.dataclass(eq=False)
class Holds:
    scale: float


def bits(value):
    """Returns a text that distinguishes numbers by type and bits."""
    return f"{value!r} {np.asarray(value).tobytes()!r}" if isinstance(value, float | complex) else repr(value)


@pytest.mark.parametrize(
    "values",
    [
        (0.0, -0.0, 0, False),
        (0j, complex(-0.0, 0.0), complex(0.0, -0.0)),
        (float("nan"), -float("nan"), float("inf")),
        (1, True, 1.0, 1 + 0j),
        (Config(0.0), Config(-0.0), Config(0), Config(False)),
        (Config(1, parts=(0.0, (1, Config(1)))), Config(1, parts=(0.0, (1, Config(1.0)))), Config(1, parts=(-0.0, ()))),
        (Config(np.float32(0.0)), Config(np.float32(-0.0)), Config(np.float16(0.0))),
    ],
    ids=["zeros", "complex", "nan", "ones", "dataclass", "nested", "NumPy"],
)
def test_static_numbers_are_told_apart_by_type_and_bits(values):
    fn, traces = counted(lambda x, value, *rest: x)
    for _ in range(2):
        for value in values:
            fn(jnp.ones(2), value)
            assert len(traces) <= len(values)
    assert [bits(value) for _, value in traces] == [bits(value) for value in values]
    for value in reversed(values):  # alongside others, one of them a leaf of a tuple
        fn(jnp.ones(2), value, (value, "text"))
    assert [bits(found) for _, _, (found, _) in traces[len(values) :]] == [bits(value) for value in values[::-1]]


def test_a_fresh_nan_finds_its_trace():
    fn, traces = counted(lambda x, value: x * value)
    for _ in range(3):
        assert np.isnan(fn(jnp.ones(()), float("nan")))
    assert len(traces) == 1
    compiled = fn.lower(jnp.ones(()), float("nan")).compile()
    assert np.isnan(compiled(jnp.ones(()), float("nan")))
    with pytest.raises(TypeError, match="another structure or other static values"):
        compiled(jnp.ones(()), -float("nan"))


def test_the_sign_of_a_zero_reaches_functions_within():
    x = nym.ones({"i": 2})

    def sign(carry, v, *, zero):
        return carry + v * jnp.copysign(1.0, zero)

    fold = nym.named_jit(lambda x, zero: nym.fold(sign, "i")(nym.named(0.0, ()), x, zero=zero))
    lift = nym.named_jit(lambda x, zero: nym.lift(lambda a, zero: a * jnp.copysign(1.0, zero), "i")(x, zero))
    for _ in range(2):
        assert [fold(x, zero).item() for zero in (0.0, -0.0)] == [2.0, -2.0]
        assert [lift(x, zero).array.tolist() for zero in (0.0, -0.0)] == [[1.0, 1.0], [-1.0, -1.0]]


def test_an_object_that_is_compared_by_identity_may_change():
    fn, traces = counted(lambda x, value: x)
    held = Holds(1.0)
    fn(jnp.ones(2), held)
    held.scale = 2.0
    fn(jnp.ones(2), held)
    assert len(traces) == 1


def test_a_dataclass_that_cannot_be_hashed_is_named():
    with pytest.raises(TypeError, match=r"value is not an array, so it is static, but a Config is not hashable"):
        nym.named_jit(lambda x, value: x)(jnp.ones(2), Config([1]))


def test_static_fields_and_leaves_of_modules_are_static():
    fn, traces = counted(lambda model, x: model(x))
    x = nym.named([3.0, 4.0], "i")
    models = [model(), model(act=nym.exp), model(scale=2.0), model(name="other"), model(bias=1.0)]
    for _ in range(2):
        for one in models:
            np.testing.assert_allclose(fn(one, x).array, one(x).array, rtol=1e-6)
    assert len(traces) == len(models)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda fn: fn({"a": [1, {2}]}), r"args\[0\]\['a'\]\[1\] is not an array, so it is static, but a set is not"),
        (
            lambda fn: fn(jnp.ones(2), model=model(act=bytearray())),
            r"model.act is not an array, so it is static, but a bytearray is not hashable; pass an array or a",
        ),
    ],
)
def test_a_static_leaf_that_cannot_be_hashed_is_named(call, text):
    for way in (nym.named_jit(lambda *args, **kwargs: 1.0), nym.named_jit(lambda *args, **kwargs: 1.0).lower):
        with pytest.raises(TypeError, match=text):
            call(way)


def test_an_error_of_the_function_itself_is_not_touched():
    def fn(x):
        raise TypeError("unhashable type: 'mine'")

    with pytest.raises(TypeError, match="unhashable type: 'mine'"):
        nym.named_jit(fn)(jnp.ones(2))


def test_results_hold_anything():
    shape = jax.ShapeDtypeStruct((3,), np.float32)

    @nym.named_jit
    def fn(model, x):
        return {"y": model(x), "model": model, "rest": ["text", 3, None, nym.exp, shape], "numpy": np.arange(2)}

    one, x = model(), nym.named([3.0, 4.0], "i")
    for _ in range(2):
        result = fn(one, x)
        np.testing.assert_allclose(result["y"].array, one(x).array, rtol=1e-6)
        assert result["rest"] == ["text", 3, None, nym.exp, shape]
        assert isinstance(result["numpy"], jax.Array)
        assert jax.tree.structure(result["model"]) == jax.tree.structure(one)
        assert result["model"].act is nym.tanh
        assert result["model"].scale == 1.0
        np.testing.assert_array_equal(result["model"].weight.array, one.weight.array)
    shapes = fn.eval_shape(one, x)
    assert shapes["y"].array == jax.ShapeDtypeStruct((2,), np.float32)
    assert shapes["rest"] == ["text", 3, None, nym.exp, shape]
    assert fn.lower(one, x).compile()(one, x)["rest"] == ["text", 3, None, nym.exp, shape]


@pytest.mark.parametrize("nothing", [None, (), {"a": None}, "text", 3])
def test_results_without_arrays(nothing):
    assert nym.named_jit(lambda x: nothing)(jnp.ones(2)) == nothing
    assert nym.named_jit(lambda: nothing)() == nothing


def test_the_result_structure_may_follow_the_shape_of_a_plain_array():
    """Names, rank and number of results all differ for one structure of arguments."""

    @nym.named_jit
    def fn(x):
        if x.ndim == 0:
            return x
        if x.ndim == 1:
            return (nym.named(x, "a"), x.shape)
        return [nym.named(x, ("b", "a")), "two"]

    for _ in range(2):
        one, shape = fn(np.ones(3))
        assert (one.names, shape) == (("a",), (3,))
        two, text = fn(np.ones((2, 3)))
        assert (two.names, text) == (("b", "a"), "two")
        assert fn(np.ones((), np.int32)).dtype == np.int32


def test_keyword_arguments_defaults_and_variadic_ones():
    fn, traces = counted(lambda a, *rest, b=3, **more: (a * b, len(rest), sorted(more)))
    assert fn(jnp.ones(()), b=2) == (2.0, 0, [])
    assert fn(jnp.ones(())) == (3.0, 0, [])
    assert fn(jnp.ones(()), 1, 2, b=2, y=1, x=2) == (2.0, 2, ["x", "y"])
    assert fn(jnp.ones(()), 1, 2, b=2, x=2, y=1) == (2.0, 2, ["x", "y"])
    assert len(traces) == 3


def test_nested_in_transformations():
    fn, traces = counted(lambda x, act, power=2: (act(x * x if power == 2 else x).sum().array, "text"))
    x = nym.named([0.5, 1.0], "i")
    want = np.exp([0.25, 1.0]).sum()
    np.testing.assert_allclose(jax.jit(lambda x: fn(x, nym.exp)[0])(x), want, rtol=1e-6)
    np.testing.assert_allclose(nym.named_jit(lambda x: fn(x, nym.exp)[0])(x), want, rtol=1e-6)
    grads = jax.grad(lambda x: fn(x, nym.exp)[0])(x)
    np.testing.assert_allclose(grads.array, 2 * x.array * np.exp(x.array**2), rtol=1e-6)
    rows = jax.vmap(lambda a: fn(nym.named(a, "i"), nym.exp)[0])(jnp.stack([x.array, x.array]))
    np.testing.assert_allclose(rows, [want, want], rtol=1e-6)
    total, _ = jax.lax.scan(lambda c, a: (c + fn(nym.named(a, "i"), nym.exp)[0], None), 0.0, x.array[None])
    np.testing.assert_allclose(total, want, rtol=1e-6)
    remat = jax.grad(lambda x: jax.checkpoint(lambda x: fn(x, nym.exp)[0])(x))(x)
    np.testing.assert_allclose(remat.array, grads.array, rtol=1e-6)
    assert len(traces) == 1


def test_mutable_arrays_are_arrays():
    def bump(ref):
        ref[...] += 1

    ref = jax.new_ref(jnp.zeros(2))
    fn, traces = counted(bump)
    fn(ref)
    fn(jax.new_ref(jnp.zeros(2)))
    jax.jit(fn)(ref)
    np.testing.assert_array_equal(ref[...], [2.0, 2.0])
    assert len(traces) == 1


def test_compiled_functions_do_not_pile_up():
    """Neither they nor what they close over outlive their last use. (JAX keeps values of static arguments a while.)"""

    def used():
        data = np.ones(3, np.float32)

        def fn(x, option):
            return x * data.sum(), option

        jitted = nym.named_jit(fn, donate_args=(lambda leaf: False,))
        jitted(nym.ones({"i": 3}), "text")
        jitted.lower(nym.ones({"i": 3}), "text").compile()
        return [weakref.ref(one) for one in (jitted, fn)]

    refs = [ref for _ in range(50) for ref in used()]
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 0


def test_sharding_a_tree_does_not_keep_what_it_holds():
    def used():
        def act(x):
            return x

        nym.shard(Holder(nym.ones({"i": 8}), act), {"i": "data"}, nym.create_mesh((8,), ("data",)))
        return weakref.ref(act)

    refs = [used() for _ in range(5)]
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 0


class Holder(eqx.Module):
    x: nym.NamedArray
    act: object = eqx.field(static=True)
