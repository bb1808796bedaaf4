"""How arguments come in: from wherever they are, by one mapping for all or one for each; and results the same way."""

from re import escape
from typing import NamedTuple

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


ROWS, COLUMNS = {"batch": "data"}, {"embed": "model"}
NAMES = ("batch", "embed")
VALUES = np.arange(32.0, dtype=np.float32).reshape(8, 4)


def array(values=VALUES):
    return nym.NamedArray(values, NAMES)


def lies(x, *spec) -> bool:
    return x.sharding.is_equivalent_to(NamedSharding(jax.sharding.get_mesh(), P(*spec)), x.ndim)


def on(mesh, *spec):
    with jax.set_mesh(None):
        return jax.device_put(VALUES, NamedSharding(mesh, P(*spec)))


def other_mesh(mesh, kind=None):
    """A mesh of the same devices in another order."""
    return Mesh(mesh.devices[::-1], mesh.axis_names, axis_types=(kind or mesh.axis_types[0],) * 2)


def unlike(mesh):
    """The other of Auto and Explicit."""
    return {AxisType.Auto: AxisType.Explicit, AxisType.Explicit: AxisType.Auto}[mesh.axis_types[0]]


PLACES = {
    "NumPy": lambda mesh: VALUES,
    "NumPy, not contiguous": lambda mesh: np.asfortranarray(VALUES),
    "uncommitted": lambda mesh: jnp.asarray(VALUES),
    "one device of the mesh": lambda mesh: jax.device_put(VALUES, mesh.devices[1, 1]),
    "some devices of the mesh": lambda mesh: on(Mesh(mesh.devices[:2, 0], "data"), "data"),
    "another order": lambda mesh: on(other_mesh(mesh), "data"),
    "other axes": lambda mesh: on(Mesh(mesh.devices.reshape(8), "all"), "all"),
    "the other type": lambda mesh: on(other_mesh(mesh, unlike(mesh)), "data"),
    "another layout": lambda mesh: on(mesh, None, "model"),
    "whole": lambda mesh: on(mesh),
}


@pytest.mark.parametrize("place", PLACES)
def test_arguments_are_moved_from_wherever_they_are(mesh, place):
    fn = nym.named_jit(lambda x: x * 2, in_axis_resources=ROWS)
    result = fn(array(PLACES[place](mesh)))
    assert lies(result, "data", None)
    np.testing.assert_array_equal(np.asarray(result), 2 * VALUES)


@pytest.mark.parametrize(
    "place", ["one device of the mesh", "some devices of the mesh", "another order", "the other type"]
)
def test_without_a_mapping_for_arguments_one_that_is_elsewhere_is_named(mesh, place):
    fn = nym.named_jit(lambda state, x: state["w"] + x)
    given = {"w": array(PLACES[place](mesh))}
    text = (
        r"`<lambda>`: state\['w'\], float32\[8, 4\], is on .*; the active mesh is \(data: 4, model: 2\) of "
        r"(Auto|Explicit) axes and devices \[0, 1, 2, 3, 4, 5, 6, 7\]; move it with `shard`, or let "
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=text) as caught:
            fn(given, nym.shard(array(), ROWS))
        assert isinstance(caught.value.__context__, ValueError)
    assert lies(fn({"w": nym.shard(given["w"], ROWS)}, nym.shard(array(), ROWS)), "data", None)


def test_a_mapping_is_never_ignored_for_an_argument_on_a_mesh_of_other_axes(mesh):
    there = array(PLACES["other axes"](mesh))
    double, keep = nym.named_jit(lambda x: x * 2, ROWS), nym.named_jit(lambda x: x, ROWS)
    assert lies(double(nym.shard(array(), ROWS)), "data", None)
    if mesh.axis_types[0] == AxisType.Auto:
        assert lies(double(there), "data", None) and lies(keep(there), "data", None)
    else:
        text = r"x, float32\[8, 4\], is on the mesh \(all: 8\) of .*; the active mesh is \(data: 4, model: 2\).*`shard`"
        with pytest.raises(ValueError, match=text):
            double(there)
    assert lies(keep(nym.shard(there, COLUMNS)), "data", None)


def test_an_explicit_argument_on_a_mesh_of_other_axes_is_named(auto_mesh):
    there = array(on(Mesh(auto_mesh.devices.reshape(8), "all", axis_types=(AxisType.Explicit,)), "all"))
    with (
        jax.set_mesh(auto_mesh),
        pytest.raises(ValueError, match=r"`<lambda>`: x, float32.*, is on the mesh \(all: 8\)"),
    ):
        nym.named_jit(lambda x: x, ROWS)(there)


def test_a_plain_array_that_is_elsewhere_stays_there_and_is_named(mesh):
    x = jax.device_put(VALUES, mesh.devices[1, 1])
    text = r"x, float32\[8, 4\], is on device \w+:3; .*; it has no names, so `in_axis_resources` does not move it; "
    with pytest.raises(ValueError, match=text):
        nym.named_jit(lambda x: x * 2, in_axis_resources=ROWS)(x)
    with pytest.raises(
        ValueError, match=r"5, 6, 7\]; move it with `jax.device_put`, to `NamedSharding\(mesh, P\(\)\)`"
    ):
        nym.named_jit(lambda x: x * 2)(x)


def test_plain_arrays_on_an_explicit_mesh_are_named(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        model = {"up": jax.device_put(jnp.ones((8, 4)), P("data", "model")), "bias": jnp.ones(8)}
        x = jax.device_put(jnp.ones((4, 8)), P("model", "data"))
        multiply = nym.named_jit(lambda model, x: model["up"] @ x)
        text = (
            "`<lambda>` computes with plain arrays on a mesh of Explicit axes, where JAX needs the sharding of each "
            "result: model['up'], float32[8, 4], is P('data', 'model'); x, float32[4, 8], is P('model', 'data'); let "
            "the compiler choose it, with `jax.sharding.auto_axes(fn, out_sharding=...)` around the function"
        )
        for call in (multiply, multiply.lower, multiply.eval_shape):
            with pytest.raises(ValueError, match=escape(text)):
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

    functions = {
        "cg": lambda state, x: cg(lambda y: 2 * y, x, maxiter=1)[0],
        "odeint": lambda state, x: odeint(lambda y, t: -y, x, jnp.arange(2.0)),
        "associative_scan": lambda state, x: jax.lax.associative_scan(nym.add, x),
        "update": update,
    }
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(a="data"):
        x = nym.shard(nym.ones({"a": 8}))
        state = nym.named_jit(optimizer.init)(x)
        text = r"computes with the plain arrays in named ones on a mesh of Explicit axes, .*, float32\[8\], is P\("
        for function in functions.values():
            with pytest.raises(ValueError, match=text):
                nym.named_jit(function)(state, x)
        shardings = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, (x, state))
        updates, _ = nym.named_jit(jax.sharding.auto_axes(update, out_sharding=shardings))(state, x)
        assert updates.sharding.spec == P("data")


def test_two_places_without_a_mesh_are_named():
    one, other = (jax.device_put(VALUES, jax.devices()[at]) for at in (1, 5))
    text = r"y, float32\[8, 4\], is on device \w+:5; x is on device \w+:1, and there is no active mesh; move one of"
    with pytest.raises(ValueError, match=text):
        nym.named_jit(lambda x, y: x + y)(one, other)


def test_errors_of_the_function_itself_are_not_touched(mesh):
    cause = KeyError("cause")

    def fn(x):
        raise ValueError("context mesh") from cause

    with pytest.raises(ValueError, match="context mesh") as caught:
        nym.named_jit(fn)(nym.shard(array(), ROWS))
    assert caught.value.__cause__ is cause


def swapped(x, y):
    return y * 2, x * 3


@pytest.mark.parametrize("several", [tuple, list])
def test_each_argument_and_result_has_its_mapping(mesh, several):
    seen = []

    def fn(x, y, *, z):
        seen.append(nym.current_mapping())
        return y * 2, x * 3, z * 4

    jitted = nym.named_jit(
        fn,
        ROWS,
        in_axis_resources=several((ROWS, COLUMNS)),
        out_axis_resources=several(({"batch": "model"}, None, {})),
    )
    y, x, z = jitted(array(), array(), z=nym.shard(array(), {"embed": "data"}))
    assert lies(y, "model", None)
    assert lies(x, "data", None)
    assert lies(z)
    assert seen == [nym.AxisMapping(ROWS)]
    shapes = jitted.eval_shape(array(), array(), z=array())
    assert [shape.array.sharding.spec for shape in shapes] == [P("model", None), P("data", None), P(None, None)]


def test_the_mapping_of_an_argument_holds_by_position_and_by_keyword(mesh):
    fn = nym.named_jit(lambda x, y: (x, y), in_axis_resources=(None, ROWS))
    given = nym.shard(array(), COLUMNS)
    for x, y in (fn(given, array()), fn(given, y=array()), fn(y=array(), x=given)):
        assert lies(x, None, "model")
        assert lies(y, "data", None)


def test_a_part_with_a_mapping_of_its_own_keeps_it(mesh):
    fn = nym.named_jit(lambda x, y: (x, y), in_axis_resources=(ROWS, None))
    x, y = fn({"a": array(), "b": nym.ShardedBy(array(), COLUMNS)}, nym.ShardedBy(array(), COLUMNS))
    assert lies(x["a"], "data", None)
    assert lies(x["b"].tree, None, "model")
    assert lies(y.tree, None, "model")


class Both(NamedTuple):
    one: object
    other: object


def test_results_keep_their_kind(mesh):
    fn = nym.named_jit(lambda x: Both(x, {"text": "text", "x": x}), out_axis_resources=(ROWS, COLUMNS))
    result = fn(array())
    assert isinstance(result, Both)
    assert lies(result.one, "data", None)
    assert lies(result.other["x"], None, "model")
    assert result.other["text"] == "text"


class Model(eqx.Module):
    weight: nym.NamedArray

    @nym.named_jit(in_axis_resources=(COLUMNS, ROWS))
    def __call__(self, x):
        return self.weight, x


def test_the_instance_is_the_first_argument_of_a_method(mesh):
    weight, x = Model(array())(array())
    assert lies(weight, None, "model")
    assert lies(x, "data", None)


def test_a_step_of_zero_1_has_a_mapping_for_each_part(mesh):
    compute = {"batch": "data"}
    divided = {"embed": "data"}

    def step(parameters, moment, batch):
        grads = jax.grad(lambda p: nym.mean(nym.dot(batch, p, axis="embed") ** 2).array)(parameters)
        moment = 0.9 * moment + grads
        return parameters - 0.1 * moment, moment

    fn = nym.named_jit(
        step,
        compute,
        in_axis_resources=(compute, divided, compute),
        out_axis_resources=(compute, divided),
        donate_args=(True, True, False),
    )
    parameters, moment = (nym.NamedArray(np.ones(4, np.float32), "embed") for _ in range(2))
    for _ in range(2):
        parameters, moment = fn(parameters, moment, array())
        assert lies(parameters)
        assert lies(moment, "data")
    assert fn.trace_count == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"in_axis_resources": (ROWS,) * 3}, "has 3 entries; the function takes 2 arguments by position: x, y"),
        ({"in_axis_resources": (ROWS,)}, "has 1 entries, but argument 'y' is number 2; give one for each argument by"),
        ({"in_axis_resources": ()}, "has 0 entries, but argument 'x' is number 1; give one for each argument"),
        (
            {"out_axis_resources": (ROWS,) * 3},
            "has 3 entries, and `swapped` returns 2 results; give one mapping for all",
        ),
    ],
)
def test_the_number_of_mappings_has_to_fit(mesh, options, text):
    with pytest.raises(ValueError, match=text):
        nym.named_jit(swapped, **options)(array(), array())


def test_mappings_for_several_results_need_several(mesh):
    with pytest.raises(ValueError, match="has 2 entries, and `<lambda>` returns one result, a NamedArray; give one"):
        nym.named_jit(lambda x: x, out_axis_resources=(ROWS, COLUMNS))(array())


def test_what_is_no_mapping_is_an_error():
    for option in ("in_axis_resources", "out_axis_resources"):
        for wrong in (3, "data", (3,)):
            with pytest.raises(TypeError, match="A mapping goes from names to mesh axes, such as"):
                nym.named_jit(swapped, **{option: wrong})


def test_mappings_of_arguments_need_a_mesh():
    for options in ({"in_axis_resources": (None, ROWS)}, {"out_axis_resources": (None, ROWS)}):
        with pytest.raises(ValueError, match=r"needs a mesh; set one with `jax.set_mesh\(mesh\)`"):
            nym.named_jit(swapped, **options)(array(), array())
    x, y = nym.named_jit(swapped, in_axis_resources=(None, None), out_axis_resources=[None, {}])(array(), array())
    assert x.shape == y.shape == (8, 4)


def test_fsdp_takes_other_mappings_for_some_arguments(mesh):
    compute, parameters = {"batch": "data"}, {"batch": "data", "embed": "data"}
    with pytest.raises(ValueError, match=r"'batch' and 'embed' of .* are both mapped to mesh axis 'data'"):
        nym.fsdp(lambda w, x: w + x, parameters, compute)(nym.ones({"embed": 4}), array())
    step = nym.fsdp(lambda w, x: w + nym.mean(x, "batch"), parameters, compute, in_axis_resources=(parameters, compute))
    assert lies(step(nym.ones({"embed": 4}), array()), "data")
