"""Meshes without devices: the same checks as with them, and what can be planned on them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import axonym as nym
from axonym.mesh import create_abstract_mesh, create_mesh

from ..refusals import refusal


@pytest.mark.parametrize(
    ("axis_types", "expected"),
    [
        (None, (AxisType.Auto, AxisType.Auto)),
        ("explicit", (AxisType.Explicit, AxisType.Explicit)),
        (["auto", AxisType.Manual], (AxisType.Auto, AxisType.Manual)),
    ],
)
def test_an_abstract_mesh_has_the_sizes_and_types_that_were_asked(axis_types, expected):
    mesh = create_abstract_mesh((128, 8), ("data", "model"), axis_types=axis_types)
    assert isinstance(mesh, AbstractMesh)
    assert dict(mesh.shape) == {"data": 128, "model": 8}
    assert mesh.axis_types == expected


@pytest.mark.parametrize("axis_types", [None, "explicit", ("explicit", "auto")])
def test_an_abstract_mesh_has_the_types_of_the_mesh_it_stands_for(axis_types):
    real = create_mesh((4, 2), ("data", "model"), axis_types=axis_types)
    mesh = create_abstract_mesh((4, 2), ("data", "model"), axis_types=axis_types)
    assert (mesh.shape, mesh.axis_types) == (real.shape, real.axis_types)


def test_a_wildcard_takes_what_is_left_of_the_number_stated():
    mesh = create_abstract_mesh((-1, 8), ("data", "model"), device_count=1024)
    assert dict(mesh.shape) == {"data": 128, "model": 8}


def test_a_wildcard_needs_a_number_of_devices():
    with refusal("mesh (data: -1, model: 8) has a size to infer from the number of devices; pass"):
        create_abstract_mesh((-1, 8), ("data", "model"))


def test_a_string_is_read_as_for_a_mesh_of_devices():
    mesh = create_abstract_mesh("model: 8, data: -1", ("data", "model", "expert"), device_count=1024)
    assert dict(mesh.shape) == {"data": 128, "model": 8, "expert": 1}
    with refusal("no mesh axis 'modle' for 'modle:8'; did you mean 'model'?"):
        create_abstract_mesh("modle:8", ("data", "model"))


@pytest.mark.parametrize(
    ("sizes", "names", "count", "message"),
    [
        (
            (100, 8),
            ("data", "model"),
            1024,
            "mesh (data: 100, model: 8) needs 800 devices, but there are 1024; the nearest fit is "
            "(data: 128, model: 8), or pass `device_count=800`",
        ),
        (
            (3, -1),
            ("a", "b"),
            8,
            "mesh (a: 3, b: -1) needs a multiple of 3 devices, but there are 8; the nearest fit is",
        ),
        ((-1, -1), ("a", "b"), 8, "mesh (a: -1, b: -1) over 8 devices has more than one `-1`; the nearest fit is"),
        ((-2, 4), ("a", "b"), None, "mesh axis 'a' has size -2 in mesh (a: -2, b: 4) over 4 devices; sizes are"),
        ((0, 4), ("a", "b"), None, "mesh axis 'a' has size 0"),
        ((2, 4), ("a", "a"), None, "more than one axis called 'a'; the nearest fit is (a: 2, a_2: 4)"),
        ((2, 4), ("a",), None, "`axis_dims` (2, 4) and `axis_names` ('a',) for a mesh over 8 devices have 2 and 1"),
        ((-1, 4), ("a",), None, "have 2 and 1 entries"),
        ((), (), None, "needs at least one axis"),
        ((2, 4), ("a", "b"), 0, "`device_count` is 0; a mesh needs at least one device"),
    ],
)
def test_impossible_meshes_are_the_same_errors_as_with_devices(sizes, names, count, message):
    with refusal(message):
        create_abstract_mesh(sizes, names, device_count=count)


def test_wrong_sizes_names_and_types_are_an_error():
    with pytest.raises(TypeError, match=r"`axis_dims` holds 2\.0, which is not an integer"):
        create_abstract_mesh((2.0, 4), ("a", "b"))
    with pytest.raises(TypeError, match="`axis_names` is a sequence of strings"):
        create_abstract_mesh((2, 4), "ab")
    with pytest.raises(TypeError, match=r"`device_count` holds 8\.0, which is not an integer"):
        create_abstract_mesh((2, 4), ("a", "b"), device_count=8.0)
    with pytest.raises(ValueError, match="no axis type 'explict'; did you mean 'explicit'"):
        create_abstract_mesh((2, 4), ("a", "b"), axis_types="explict")


def test_an_error_about_very_many_devices_comes_at_once():
    with refusal("the nearest fit is (a: 1000000000000, a_2: 2)"):
        create_abstract_mesh((10**12, 2), ("a", "a"))


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_shapes_are_sharded_for_a_machine_that_is_not_there(axis_types):
    mesh = create_abstract_mesh((128, 8), ("data", "model"), axis_types=axis_types)
    shapes = jax.eval_shape(lambda: nym.zeros({"embed": 4096, "mlp": 16384}))
    planned = nym.shard(shapes, {"embed": "data", "mlp": "model"}, mesh)
    assert planned.array.sharding.shard_shape(planned.array.shape) == (32, 2048)
    assert planned.array.sharding.mesh == mesh
    with refusal("axis 'embed' has size 4000, which is not divisible by mesh axis 'data' of size 128"):
        nym.shard(jax.eval_shape(lambda: nym.zeros({"embed": 4000})), {"embed": "data"}, mesh)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_a_compiled_function_is_planned_under_an_abstract_mesh(axis_types):
    mesh = create_abstract_mesh((128, 8), ("data", "model"), axis_types=axis_types)
    x = nym.named(jax.ShapeDtypeStruct((1024, 64), jnp.float32), ("batch", "embed"))
    double = nym.named_jit(lambda x: 2 * x, {"batch": "data", "embed": "model"})
    with jax.sharding.use_abstract_mesh(mesh):
        assert double.eval_shape(x).axes == x.axes
        wrong = nym.named(jax.ShapeDtypeStruct((1000,), jnp.float32), ("batch",))
        with refusal("axis 'batch' has size 1000, which is not divisible by mesh axis 'data' of size 128"):
            double.eval_shape(wrong)
