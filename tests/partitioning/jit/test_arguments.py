"""Arguments and results of compiled functions: what is static, what is an array, and by which mapping it is sharded."""

import dataclasses
import enum
import gc
import weakref
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import cg
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from ...refusals import refusal
from ..arrays import COLUMNS, NAMES, ROWS, VALUES, array, lies


ONES = np.ones(3, np.float32)


# What is static


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


def test_arrays_of_every_kind_share_a_trace():
    fn = nym.named_jit(lambda x: x * 2)
    for values in (jnp.ones(3), ONES, jax.device_put(ONES, jax.devices()[0])):
        np.testing.assert_array_equal(fn(values), np.full(3, 2.0))
    for shape in (jax.ShapeDtypeStruct((3,), np.float32), ONES):
        for stage in (fn.lower, fn.trace, fn.eval_shape):
            stage(shape)
    jax.eval_shape(fn, ONES)
    assert fn.trace_count == 1
    for number in (np.float32(1.0), jnp.float32(1.0), np.int32(1)):
        fn.eval_shape(number)
    assert fn.trace_count == 3


class Mode(enum.Enum):
    TRAIN = enum.auto()
    TEST = enum.auto()


@dataclasses.dataclass(frozen=True)
class Config:
    scale: object
    name: str = "config"
    parts: tuple = ()


def bits(value):
    """Returns a text that distinguishes numbers by type and bits."""
    return f"{value!r} {np.asarray(value).tobytes()!r}" if isinstance(value, float | complex) else repr(value)


@pytest.mark.parametrize(
    "values",
    [
        (1, 2, True, 1.0, 1 + 0j, 1j),
        (0.0, -0.0, 0, False, None),
        (0j, complex(-0.0, 0.0), complex(0.0, -0.0)),
        (float("nan"), -float("nan"), float("inf")),
        (Mode.TRAIN, Mode.TEST),
        (Config(0.0), Config(-0.0), Config(0), Config(False)),
        (Config(1, parts=(0.0, (1, Config(1)))), Config(1, parts=(0.0, (1, Config(1.0)))), Config(1, parts=(-0.0, ()))),
        (Config(np.float32(0.0)), Config(np.float32(-0.0)), Config(np.float16(0.0))),
    ],
    ids=lambda values: f"{type(values[0]).__name__}-{len(values)}",
)
def test_leaves_that_are_not_arrays_are_static_by_type_and_bits(values):
    traces = []

    @nym.named_jit(retrace_warning=False)
    def fn(x, value, *rest, option=None):
        traces.append((value, rest, option))

    for _ in range(2):
        for value in values:
            fn.eval_shape(ONES, {"deep": value}, option=value)
            assert len(traces) <= len(values)
    for seen in ([value["deep"] for value, _, _ in traces], [option for _, _, option in traces]):
        assert [bits(value) for value in seen] == [bits(value) for value in values]
    for value in reversed(values):  # alongside others, one of them a leaf of a tuple
        fn.eval_shape(ONES, value, (value, "text"))
    assert [bits(value) for _, ((value, _),), _ in traces[len(values) :]] == [bits(value) for value in values[::-1]]


def test_a_fresh_nan_and_an_object_that_changed_find_their_trace():
    held = dataclasses.make_dataclass("Holds", ["scale"], eq=False)(1.0)
    fn = nym.named_jit(lambda x, value, held: x * value)
    for held.scale in range(3):
        assert np.isnan(fn(ONES, float("nan"), held)).all()
    assert fn.trace_count == 1
    compiled = fn.lower(ONES, float("nan"), held).compile()
    assert np.isnan(compiled(ONES, float("nan"), held)).all()
    with refusal("another structure or other static values", TypeError):
        compiled(ONES, -float("nan"), held)


def test_the_sign_of_a_zero_reaches_functions_within():
    x = nym.ones({"i": 2})

    def sign(carry, v, *, zero):
        return carry + v * jnp.copysign(1.0, zero)

    fold = nym.named_jit(lambda x, zero: nym.fold(sign, "i")(nym.named(0.0, ()), x, zero=zero))
    lift = nym.named_jit(lambda x, zero: nym.lift(lambda a, zero: a * jnp.copysign(1.0, zero), "i")(x, zero))
    for _ in range(2):
        assert [fold(x, zero).item() for zero in (0.0, -0.0)] == [2.0, -2.0]
        assert [lift(x, zero).array.tolist() for zero in (0.0, -0.0)] == [[1.0, 1.0], [-1.0, -1.0]]


def test_static_fields_and_leaves_of_modules_are_static():
    fn = nym.named_jit(lambda model, x: model(x))
    x = nym.named([3.0, 4.0], "i")
    for changes in ({}, {"act": nym.exp}, {"scale": 2.0}, {"name": "other"}, {"bias": 1.0}):
        act, scale = changes.get("act", nym.tanh), changes.get("scale", 1.0)
        expected = (np.exp if act is nym.exp else np.tanh)(np.array([4.0, 9.0])) * scale
        for _ in range(2):
            np.testing.assert_allclose(fn(model(**changes), x).array, expected, rtol=1e-6)
    assert fn.trace_count == 5


def test_a_static_leaf_that_cannot_be_hashed_is_named():
    fn = nym.named_jit(lambda *args, **kwargs: 1.0)
    text = " is not an array, so it is static, but a {} is not hashable; pass an array or a"
    for way in (fn, fn.lower):
        with refusal("args[0]['a'][1]" + text.format("set"), TypeError):
            way({"a": [1, {2}]})
        with refusal("model.act" + text.format("bytearray"), TypeError):
            way(ONES, model=model(act=bytearray()))
        with refusal("args[0]" + text.format("Config"), TypeError):
            way(Config([1]))


def test_results_hold_anything():
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    rest = ["text", 3, None, nym.exp, shape]

    @nym.named_jit
    def fn(model, x):
        return {"y": model(x), "model": model, "rest": rest, "numpy": np.arange(2)}

    given, x = model(), nym.named([3.0, 4.0], "i")
    for _ in range(2):
        result = fn(given, x)
        np.testing.assert_allclose(result["y"].array, np.tanh(np.array([4.0, 9.0])), rtol=1e-6)
        assert result["rest"] == rest
        assert isinstance(result["numpy"], jax.Array)
        assert jax.tree.structure(result["model"]) == jax.tree.structure(given)
        assert (result["model"].act, result["model"].scale) == (nym.tanh, 1.0)
        np.testing.assert_array_equal(result["model"].weight.array, given.weight.array)
    shapes = fn.eval_shape(given, x)
    assert shapes["y"].array == jax.ShapeDtypeStruct((2,), np.float32)
    assert shapes["rest"] == fn.lower(given, x).compile()(given, x)["rest"] == rest
    for nothing in (None, (), {"a": None}, "text", 3):
        assert nym.named_jit(lambda x, nothing: nothing)(ONES, nothing) == nothing
    assert nym.named_jit(lambda: 3)() == 3


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
        vector, shape = fn(np.ones(3))
        assert (vector.names, shape) == (("a",), (3,))
        matrix, text = fn(np.ones((2, 3)))
        assert (matrix.names, text) == (("b", "a"), "two")
        assert fn(np.ones((), np.int32)).dtype == np.int32


def test_keyword_arguments_defaults_and_variadic_ones():
    fn = nym.named_jit(lambda a, *rest, b=3, **more: (a * b, len(rest), sorted(more)))
    a = np.float32(1)
    assert fn(a, b=2) == (2.0, 0, [])
    assert fn(a) == (3.0, 0, [])
    assert fn(a, 1, 2, b=2, y=1, x=2) == fn(a, 1, 2, b=2, x=2, y=1) == (2.0, 2, ["x", "y"])
    assert fn.trace_count == 3


def test_nested_in_transformations():
    fn = nym.named_jit(lambda x, act, power=2: (act(x * x if power == 2 else x).sum().array, "text"))
    x = nym.named([0.5, 1.0], "i")
    rows = np.stack([x.array, x.array])

    @jax.jit
    def transformed(x, rows):
        grads = jax.grad(lambda x: fn(x, nym.exp)[0])(x)
        mapped = jax.vmap(lambda a: fn(nym.named(a, "i"), nym.exp)[0])(rows)
        total, _ = jax.lax.scan(lambda c, a: (c + fn(nym.named(a, "i"), nym.exp)[0], None), 0.0, rows)
        remat = jax.grad(lambda x: jax.checkpoint(lambda x: fn(x, nym.exp)[0])(x))(x)
        nested = nym.named_jit(lambda x: fn(x, nym.exp)[0])(x)
        return nested, mapped, total, grads.array, remat.array

    expected, gradient = np.exp([0.25, 1.0]).sum(), 2 * np.array([0.5, 1.0]) * np.exp([0.25, 1.0])
    results = expected, np.full(2, expected), 2 * expected, gradient, gradient
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-6), transformed(x, rows), results)
    np.testing.assert_allclose(jax.grad(lambda x: fn(x, nym.exp)[0])(x).array, gradient, rtol=1e-6)
    assert fn.trace_count == 1


def test_mutable_arrays_are_arrays():
    def bump(ref):
        ref[...] += 1

    ref, fn = jax.new_ref(jnp.zeros(2)), nym.named_jit(bump)
    fn(ref)
    fn(jax.new_ref(jnp.zeros(2)))
    jax.jit(fn)(ref)
    np.testing.assert_array_equal(ref[...], [2.0, 2.0])
    assert fn.trace_count == 1


def test_neither_compiled_functions_nor_what_was_sharded_are_kept():
    """Nor what they hold or close over. (JAX keeps values of static arguments a while.)"""

    def used():
        def fn(x, option):
            return x * data.sum(), option

        def act(x):
            return x

        data, x = ONES.copy(), nym.NamedArray(np.ones(8, np.float32), "i")
        jitted = nym.named_jit(fn, donate_args=(lambda leaf: False,))
        jitted(x, "text")
        jitted.lower(x, "text").compile()
        nym.shard(Scale(np.ones((8, 4)), act), {"batch": "data"}, nym.create_mesh((8,), ("data",)))
        return [weakref.ref(kept) for kept in (jitted, fn, act)]

    refs = [ref for _ in range(5) for ref in used()]
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 0


# How they are sharded


def on(mesh, *spec):
    with jax.set_mesh(None):
        return jax.device_put(VALUES, NamedSharding(mesh, P(*spec)))


def other_mesh(mesh, *kinds):
    """A mesh of the same devices in another order."""
    return Mesh(mesh.devices[::-1], mesh.axis_names, axis_types=kinds or mesh.axis_types)


PLACES = {
    "NumPy": lambda mesh: np.asfortranarray(VALUES),
    "uncommitted": lambda mesh: jax.device_put(VALUES),
    "one device of the mesh": lambda mesh: jax.device_put(VALUES, mesh.devices[1, 1]),
    "some devices of the mesh": lambda mesh: on(Mesh(mesh.devices[:2, 0], "data"), "data"),
    "another order": lambda mesh: on(other_mesh(mesh), "data"),
    "other axes": lambda mesh: on(Mesh(mesh.devices.reshape(8), "all"), "all"),
    "Auto axes": lambda mesh: on(other_mesh(mesh, AxisType.Auto, AxisType.Auto), "data"),
    "Explicit axes": lambda mesh: on(other_mesh(mesh, AxisType.Explicit, AxisType.Explicit), "data"),
    "another layout": lambda mesh: on(mesh, None, "model"),
}


@pytest.fixture
def device_puts(monkeypatch):
    """The number of arrays in each call of `jax.device_put`."""
    calls, real = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *args: calls.append(len(x)) or real(x, *args))
    return calls


def test_arguments_are_moved_from_wherever_they_are_in_one_go(mesh, device_puts):
    fn = nym.named_jit(lambda x, *, more: (x * 2, more["y"] + 1, more["plain"]), in_axis_resources=ROWS)
    for place in PLACES.values():
        x = nym.NamedArray(place(mesh), NAMES)
        device_puts.clear()
        doubled, added, plain = fn(x, more={"y": x, "plain": ONES, "text": "text"})
        assert device_puts == [2]
        assert lies(doubled, "data", None)
        assert lies(added, "data", None)
        np.testing.assert_array_equal(np.asarray(doubled), 2 * VALUES)
        np.testing.assert_array_equal(plain, ONES)
    device_puts.clear()
    for _ in range(2):  # what is in place is not touched
        doubled, _, _ = fn(doubled, more={"y": doubled, "plain": ONES, "text": "text"})
    assert not device_puts
    np.testing.assert_array_equal(np.asarray(doubled), 8 * VALUES)


def test_without_a_mapping_for_arguments_one_that_is_elsewhere_is_named(mesh):
    fn = nym.named_jit(lambda state, x: state["w"] + x)
    text = (
        r"`<lambda>`: state\['w'\], float32\[8, 4\], is on .*; the active mesh is \(data: 4, model: 2\) of "
        r"(Auto|Explicit) axes and devices \[0, 1, 2, 3, 4, 5, 6, 7\]; move it with `shard`, or let "
    )
    x = nym.shard(array(), ROWS)
    other = "Auto axes" if "Explicit" in str(mesh.axis_types) else "Explicit axes"
    for place in ("one device of the mesh", "some devices of the mesh", "another order", other):
        given = {"w": nym.NamedArray(PLACES[place](mesh), NAMES)}
        for _ in range(2):
            with pytest.raises(ValueError, match=text) as caught:
                fn(given, x)
            assert isinstance(caught.value.__context__, ValueError)
        assert lies(fn({"w": nym.shard(given["w"], ROWS)}, x), "data", None)


def test_a_mapping_is_never_ignored_for_an_argument_on_a_mesh_of_other_axes(mesh):
    there = nym.NamedArray(PLACES["other axes"](mesh), NAMES)
    double, keep = nym.named_jit(lambda x: x * 2, ROWS), nym.named_jit(lambda x: x, ROWS)
    assert lies(double(nym.shard(array(), ROWS)), "data", None)
    if mesh.axis_types[0] == AxisType.Auto:
        assert lies(double(there), "data", None) and lies(keep(there), "data", None)
        explicit = Mesh(mesh.devices.reshape(8), "all", axis_types=(AxisType.Explicit,))
        there = nym.NamedArray(on(explicit, "all"), NAMES)
    text = r"x, float32\[8, 4\], is on the mesh \(all: 8\) of .*; the active mesh is \(data: 4, model: 2\).*`shard`"
    with pytest.raises(ValueError, match=text):
        double(there)
    assert lies(keep(nym.shard(there, COLUMNS)), "data", None)


def test_a_plain_array_that_is_elsewhere_stays_there_and_is_named(mesh):
    x, y = (jax.device_put(VALUES, jax.devices()[at]) for at in (1, 5))
    text = r"x, float32\[8, 4\], is on device \w+:1; .*; it has no names, so `in_axis_resources` does not move it; "
    with pytest.raises(ValueError, match=text):
        nym.named_jit(lambda x: x * 2, in_axis_resources=ROWS)(x)
    with refusal("5, 6, 7]; move it with `jax.device_put`, to `NamedSharding(mesh, P())`"):
        nym.named_jit(lambda x: x * 2)(x)
    text = r"y, float32\[8, 4\], is on device \w+:5; x is on device \w+:1, and there is no active mesh; move one of"
    with jax.set_mesh(None), pytest.raises(ValueError, match=text):
        nym.named_jit(lambda x, y: x + y)(x, y)
    cause = KeyError("cause")

    def fails(x):
        raise ValueError("context mesh") from cause

    with pytest.raises(ValueError, match="context mesh") as caught:
        nym.named_jit(fails)(nym.shard(array(), ROWS))
    assert caught.value.__cause__ is cause, "errors of the function itself are not touched"


def test_plain_arrays_on_an_explicit_mesh_are_named(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        model = {"up": jax.device_put(np.ones((8, 4), np.float32), P("data", "model")), "bias": np.ones(8, np.float32)}
        x = jax.device_put(np.ones((4, 8), np.float32), P("model", "data"))
        multiply = nym.named_jit(lambda model, x: model["up"] @ x)
        text = (
            "`<lambda>` computes with plain arrays on a mesh of Explicit axes, where JAX needs the sharding of each "
            "result: model['up'], float32[8, 4], is P('data', 'model'); x, float32[4, 8], is P('model', 'data'); let "
            "the compiler choose it, with `jax.sharding.auto_axes(fn, out_sharding=...)` around the function"
        )
        for call in (multiply, multiply.lower, multiply.eval_shape):
            with refusal(text):
                call(model, x)
        chosen = nym.named_jit(jax.sharding.auto_axes(lambda model, x: model["up"] @ x, out_sharding=P("data")))
        assert chosen(model, x).sharding.spec[0] == "data"
        with pytest.raises(Exception, match="shard") as caught:  # JAX's own error, where no argument is sharded
            nym.named_jit(lambda: x.T @ model["up"].T)()
        assert type(caught.value).__name__ == "ShardingTypeError"


def test_functions_of_other_libraries_on_an_explicit_mesh_are_named(explicit_mesh):
    """Those of JAX and Optax whose results JAX cannot shard, although each argument has names."""
    optimizer = optax.contrib.prodigy()

    def update(state, x):
        return optimizer.update(x, state, x)

    with jax.set_mesh(explicit_mesh), nym.axis_mapping(a="data"):
        x = nym.shard(nym.NamedArray(np.ones(8, np.float32), "a"))
        state = nym.named_jit(optimizer.init)(x)
        text = r"computes with the plain arrays in named ones on a mesh of Explicit axes, .*, float32\[8\], is P\("
        for function in (
            lambda state, x: cg(lambda y: 2 * y, x, maxiter=1)[0],
            lambda state, x: odeint(lambda y, t: -y, x, jnp.arange(2.0)),
            lambda state, x: jax.lax.associative_scan(nym.add, x),
            update,
        ):
            with pytest.raises(ValueError, match=text):
                nym.named_jit(function)(state, x)
        shardings = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, (x, state))
        updates, _ = nym.named_jit(jax.sharding.auto_axes(update, out_sharding=shardings))(state, x)
        assert updates.sharding.spec == P("data")


def test_results_follow_their_mapping_the_inner_one_or_the_active_one(mesh):
    def double(x):
        return {"y": x * 2, "constant": array(), "rest": "text"}

    with nym.axis_mapping({"embed": "data"}):
        for options, spec in [
            ({}, (None, "data")),
            ({"axis_resources": ROWS}, ("data", None)),
            ({"axis_resources": ROWS, "out_axis_resources": COLUMNS}, (None, "model")),
            ({"axis_resources": {}}, (None, None)),
            ({"axis_resources": ROWS, "out_axis_resources": {}}, (None, None)),
        ]:
            result = nym.named_jit(double, **options)(nym.shard(array(), ROWS))
            assert lies(result["y"], *spec), options
            assert lies(result["constant"], *spec), options
            assert result["rest"] == "text"
        assert nym.current_mapping() == {"embed": "data"}
    x = nym.shard(array(), ROWS)
    assert lies(nym.named_jit(lambda x: x * 2, in_axis_resources=ROWS)(x), "data", None), "it is left alone"
    assert "sharding_constraint" not in str(nym.named_jit(lambda x: x * 2).trace(x).jaxpr)


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=NAMES)
    act: object = nym.tanh


def test_declared_fields_are_resharded_on_entry_and_in_results(mesh):
    specs = []

    def double(scale):
        specs.append(jax.typeof(scale.weight).sharding.spec)
        return Scale(scale.weight * 2, scale.act)

    result = nym.named_jit(double, in_axis_resources=ROWS, out_axis_resources=COLUMNS)(Scale(VALUES))
    assert lies(result.weight, None, "model")
    assert result.act is nym.tanh
    assert specs == [P("data", None) if "Explicit" in str(mesh.axis_types) else P(None, None)]
    fn = nym.named_jit(lambda x: x.array * 2, in_axis_resources=ROWS)
    inside_jit = jax.jit(fn)(nym.named(VALUES, NAMES))
    assert inside_jit.sharding.is_equivalent_to(fn(array()).sharding, 2)


def swapped(x, y):
    return y * 2, x * 3


class Both(NamedTuple):
    rows: Any
    columns: Any


class Layer(eqx.Module):
    weight: nym.NamedArray

    @nym.named_jit(in_axis_resources=(COLUMNS, ROWS), out_axis_resources=[None, None])
    def __call__(self, x):
        return Both(self.weight * 2, {"x": x * 3, "text": "text"})


def test_each_argument_and_result_has_its_mapping_and_keeps_its_kind(mesh):
    seen = []

    def fn(x, y, *, z):
        seen.append(nym.current_mapping())
        return Both(y * 2, {"x": x * 3, "z": z * 4, "text": "text"})

    options = {"in_axis_resources": [ROWS, COLUMNS], "out_axis_resources": ({"batch": "model"}, None)}
    jitted = nym.named_jit(fn, ROWS, **options)
    z = nym.shard(array(), {"embed": "data"})
    for result in (jitted(array(), array(), z=z), jitted(y=array(), x=array(), z=z)):
        assert isinstance(result, Both)
        assert lies(result.rows, "model", None)
        assert lies(result.columns["x"], "data", None)
        assert result.columns["text"] == "text"
    assert seen == [nym.AxisMapping(ROWS)] * 2
    shapes = jitted.eval_shape(array(), array(), z=array())
    assert shapes.rows.array.sharding.spec == P("model", None)
    assert shapes.columns["x"].array.sharding.spec == P("data", None)
    of_method = Layer(array())(array())  # whose first argument is the instance
    assert lies(of_method.rows, None, "model")
    assert lies(of_method.columns["x"], "data", None)


def test_mappings_for_arguments_and_results_have_to_fit(mesh):
    three = (ROWS,) * 3
    for options, text in [
        ({"in_axis_resources": three}, "has 3 entries; the function takes 2 arguments by position: x, y"),
        ({"in_axis_resources": (ROWS,)}, "has 1 entries, but argument 'y' is number 2; give one for each argument by"),
        ({"in_axis_resources": ()}, "has 0 entries, but argument 'x' is number 1; give one for each argument"),
        ({"out_axis_resources": three}, "has 3 entries, and `swapped` returns 2 results; give one mapping for all"),
    ]:
        with refusal(text):
            nym.named_jit(swapped, **options)(array(), array())
    with refusal("has 2 entries, and `<lambda>` returns one result, a NamedArray; give one"):
        nym.named_jit(lambda x: x, out_axis_resources=(ROWS, COLUMNS))(array())
    for option in ("in_axis_resources", "out_axis_resources"):
        for wrong in (3, "data", (3,)):
            with refusal("A mapping goes from names to mesh axes, such as", TypeError):
                nym.named_jit(swapped, **{option: wrong})
        with jax.set_mesh(None), refusal("needs a mesh; set one with `jax.set_mesh(mesh)`"):
            nym.named_jit(swapped, **{option: (None, ROWS)})(array(), array())
    with jax.set_mesh(None):
        for options in ({"in_axis_resources": (None, None), "out_axis_resources": [None, {}]}, {"axis_resources": {}}):
            x, y = nym.named_jit(swapped, **options)(array(), array())
            np.testing.assert_array_equal(x.array, 2 * VALUES)
            assert y.shape == (8, 4)


def test_parts_with_a_mapping_of_their_own_keep_it_and_fsdp_takes_other_mappings_for_some_arguments(mesh):
    fn = nym.named_jit(lambda x, y: (x, y), in_axis_resources=(ROWS, None))
    x, y = fn({"a": array(), "b": nym.ShardedBy(array(), COLUMNS)}, nym.ShardedBy(array(), COLUMNS))
    assert lies(x["a"], "data", None)
    assert lies(x["b"].tree, None, "model") and lies(y.tree, None, "model")
    compute, parameters = {"batch": "data"}, {"batch": "data", "embed": "data"}
    w = nym.NamedArray(np.ones(4, np.float32), "embed")
    with pytest.raises(ValueError, match=r"'batch' and 'embed' of .* are both mapped to mesh axis 'data'"):
        nym.fsdp(lambda w, x: w + x, parameters, compute)(w, array())
    step = nym.fsdp(lambda w, x: w + nym.mean(x, "batch"), parameters, compute, in_axis_resources=(parameters, compute))
    assert lies(step(w, array()), "data")
