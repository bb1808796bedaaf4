"""The seam between names and sharding: what arrays ask of the value in force, and when they ask nothing."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


sharding = importlib.import_module("axonym.named._sharding")
x = nym.named(jnp.ones((2, 3)), ("a", "b"))


class Asked:
    """A value in force that notes what it is asked and shards nothing."""

    def __init__(self):
        self.constrained, self.stated = [], []

    def constrain(self, array, names):
        self.constrained.append(names)
        return array

    def get_out_sharding(self, names, sizes):
        self.stated.append((names, sizes))

    def get_mesh_axes(self, name, size):
        return ()


@pytest.fixture
def asked():
    value = Asked()
    with sharding.mapping_context(value):
        yield value


@pytest.mark.parametrize(
    ("operation", "names", "sizes"),
    [
        (lambda: nym.dot(x, x["b", 0], axis="a"), ("b",), (3,)),
        (lambda: nym.dot(x, x, x, axis="a"), ("b",), (3,)),
        (lambda: x.flatten_axes(("b", "a"), "c"), ("c",), (6,)),
        (lambda: x.unflatten_axis("b", {"c": 3, "d": 1}), ("a", "c", "d"), (2, 3, 1)),
        (lambda: x.broadcast_axis(Axis("c", 4)), ("c", "a", "b"), (4, 2, 3)),
        (lambda: nym.stack("n", [x, x]), ("n", "a", "b"), (2, 2, 3)),
        (lambda: nym.concatenate("a", [x, x]), ("a", "b"), (4, 3)),
        (lambda: x["b", 0:2], ("a", "b"), (2, 2)),
        (lambda: x["b", nym.named([[0, 1]], ("i", "j"))], ("a", "i", "j"), (2, 1, 2)),
        (lambda: x.at["b", 0].set(1.0), ("a", "b"), (2, 3)),
        (lambda: x.cumsum("b"), ("a", "b"), (2, 3)),
        (lambda: nym.zeros({"c": 1, "d": 2}), ("c", "d"), (1, 2)),
    ],
)
def test_operations_state_the_names_of_what_they_return(asked, operation, names, sizes):
    result = operation()
    assert result.names == names and result.shape == sizes
    assert asked.stated and asked.stated[-1] == (names, sizes)


def test_what_is_made_is_constrained_and_array_maths_is_not(asked):
    nym.zeros({"a": 2})
    nym.arange(Axis("b", 3))
    nym.linspace(Axis("c", 3), start=0.0, stop=1.0)
    made = list(asked.constrained)
    assert list(dict.fromkeys(made)) == [("a",), ("b",), ("c",)]
    nym.exp(x) + x.sum("a") * 2
    nym.dot(x, x, axis="a").rearrange(("b",))
    assert asked.constrained == made


def test_another_value_in_force_is_traced_anew_and_the_same_one_is_not():
    traced = []
    fn = jax.jit(lambda x: traced.append(nym.current_mapping()) or x.sum("a"))
    for mapping in ({"a": "data"}, {"a": "model"}, {"a": "data"}):
        with nym.axis_mapping(mapping):
            assert fn(x).names == ("b",)
    fn(x)
    assert traced == [{"a": "data"}, {"a": "model"}, None]


def test_without_a_mapping_results_are_sharded_as_operands(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        y = nym.named(jax.device_put(jnp.ones((4, 2)), jax.P("data", "model")), ("batch", "embed"))
        assert (y * y["embed", 0:2]).sharding.spec == jax.P("data", "model")
        assert y.sum("embed").sharding.spec == jax.P("data")
        assert y.rearrange(("embed", "batch")).sharding.spec == jax.P("model", "data")
        assert y["batch", 1].sharding.spec == jax.P("model")
        assert y.cumsum("batch").sharding.spec == jax.P("data", "model")


def test_results_are_right_wherever_operands_lie(mapped):
    plain = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    x = nym.shard(nym.named(plain, ("batch", "embed")))
    whole = nym.named(jax.device_put(np.full_like(plain, 9), jax.NamedSharding(mapped, jax.P())), x.names)

    def compute(x, y):
        turned = x.rename({"batch": "embed", "embed": "batch"}).broadcast_to({"embed": 8, "batch": 4, "pos": 2})
        window = x.at["batch", nym.dslice(0, 4)].set(nym.shard(y["batch", 0:4]))
        return nym.where(x > 3, x, y), nym.maximum(x, y), window, turned["pos", 1]

    expected = np.where(plain > 3, plain, 9), np.maximum(plain, 9), np.vstack([np.full((4, 4), 9), plain[4:]]), plain
    for results in (jax.jit(compute)(x, whole), compute(x, whole)):
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.array, other)
