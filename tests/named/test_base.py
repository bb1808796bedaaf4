"""What a named array says about itself: its shape, which answers by position and by name, its axes and its place."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.zeros({"batch": 2, "embed": 3})


def test_a_shape_answers_by_position():
    assert x.shape == (2, 3) and (2, 3) == x.shape
    assert x.shape != (3, 2) and x.shape != (2,) and x.shape != [2, 3]
    assert x.shape[0] == 2 and x.shape[-1] == 3 and x.shape[:1] == (2,)
    assert isinstance(x.shape, tuple) and len(x.shape) == 2 and list(x.shape) == [2, 3]
    batch, embed = x.shape
    assert (batch, embed) == (2, 3)
    assert hash(x.shape) == hash((2, 3))
    assert jnp.zeros(x.shape).shape == (2, 3)


def test_a_shape_answers_by_name():
    assert x.shape["batch"] == 2 and x.shape[Axis("embed", 3)] == 3
    assert x.shape == {"embed": 3, "batch": 2} and x.shape == nym.zeros({"batch": 2, "embed": 3}).shape
    assert x.shape != {"batch": 2} and x.shape != {"batch": 2, "embed": 4} and not x.shape != {"batch": 2, "embed": 3}
    assert x.shape.keys() == ("batch", "embed") and x.shape.values() == (2, 3)
    assert x.shape.items() == (("batch", 2), ("embed", 3))
    assert dict(x.shape) == dict(**x.shape) == {"batch": 2, "embed": 3}
    assert "batch" in x.shape and "bach" not in x.shape
    assert 2 in x.shape and 4 not in x.shape
    assert Axis("batch", 2) in x.shape and Axis("batch", 3) not in x.shape
    assert repr(x.shape) == str(x.shape) == "(batch: 2, embed: 3)"


def test_a_shape_says_what_it_has_not():
    with refusal("no axis 'bacth' in (batch: 2, embed: 3); did you mean 'batch'?"):
        x.shape["bacth"]
    with refusal("axis 'batch' has size 2 here, 3 was asked for"):
        x.shape[Axis("batch", 3)]
    with refusal("tuple index out of range", IndexError):
        x.shape[2]


def test_a_copy_of_a_shape_still_answers_by_name():
    for shape in (copy.copy(x.shape), copy.deepcopy(x.shape), pickle.loads(pickle.dumps(x.shape))):
        assert shape == (2, 3) and shape["embed"] == 3 and type(shape) is nym.Shape


def test_what_an_array_says_about_itself():
    assert x.axes == (Axis("batch", 2), Axis("embed", 3))
    assert x.names == ("batch", "embed")
    assert (x.ndim, x.size, x.nbytes, x.dtype) == (2, 6, 24, jnp.float32)
    assert x.sharding == x.array.sharding
    scalar = nym.named(1, ())
    assert (scalar.axes, scalar.shape, scalar.ndim, scalar.size) == ((), (), 0, 1)


def test_it_says_the_same_of_shapes_without_elements():
    shape = jax.eval_shape(lambda: x)
    assert isinstance(shape.array, jax.ShapeDtypeStruct)
    assert (shape.axes, shape.shape, shape.dtype, shape.ndim, shape.size) == (x.axes, (2, 3), x.dtype, 2, 6)


def test_finding_axes():
    assert x.axis_size("embed") == x.axis_size(Axis("embed", 3)) == 3
    assert x.resolve_axis("embed") == x.resolve_axis(Axis("embed", 3)) == Axis("embed", 3)
    for find in (x.axis_size, x.resolve_axis):
        with refusal("axis 'embed' has size 3 here, 4 was asked for"):
            find(Axis("embed", 4))


def test_where_an_array_lies(mapped):
    y = nym.zeros({"batch": 8, "embed": 4})
    assert y.sharding.spec == P("data", "model")  # pyright: ignore[reportAttributeAccessIssue]
    specs = []
    jax.jit(lambda y: specs.append(y.sharding.spec))(y)  # known to a traced function on an Explicit mesh alone
    assert specs == [P("data", "model") if mapped.axis_types[0] == jax.sharding.AxisType.Explicit else P(None, None)]


def test_numpy_arrays_may_be_inside():
    y = nym.NamedArray(np.arange(6.0, dtype=np.float32).reshape(2, 3), ("a", "b"))
    assert isinstance(y.array, np.ndarray) and y.sharding is not None and y.block_until_ready() is y
    results = y + 1, y["a", 1], y.at["a", 0].set(0.0), nym.dot(y, y, axis=None)
    assert [result.array.sum() for result in results] == [21, 12, 12, 55]
    assert y.rearrange(("b", "a")).shape == (3, 2) and y.astype(jnp.bfloat16).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "function",
    [
        lambda array: nym.rename(array, {"a": "b"}),
        lambda array: nym.rearrange(array, ("a",)),
        lambda array: nym.flatten_axes(array, "a", "b"),
        lambda array: nym.unflatten_axis(array, "a", {"b": 3}),
        lambda array: nym.broadcast_to(array, {"a": 3}),
        lambda array: nym.broadcast_axis(array, {"a": 3}),
        lambda array: nym.unbind(array, "a"),
        lambda array: nym.split(array, "a", [Axis("b", 3)]),
        lambda array: nym.stack("n", [array]),
        lambda array: nym.concatenate("a", [array]),
        lambda array: nym.dot(array, axis="a"),
        lambda array: nym.index(array, {"a": 0}),
        lambda array: nym.take(array, "a", 0),
        lambda array: nym.zeros_like(array),
        lambda array: nym.ones_like(array),
        lambda array: nym.full_like(array, 1.0),
    ],
)
def test_functions_of_names_need_a_named_array(function):
    for array, shown in ((np.ones(3), "an array of shape (3,)"), (jnp.ones(3), "an array of shape (3,)"), (2.0, "2.0")):
        with refusal(f"A named array is needed, not {shown}; make one with `axonym.named", TypeError):
            function(array)
