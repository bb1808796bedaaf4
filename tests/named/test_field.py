"""Declaring the axes of plain arrays in modules."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("batch", Axis("embed", 4)))
    bias: jax.Array = nym.field(axis_names="embed", converter=jnp.asarray)
    other: jax.Array = nym.field(default=None)
    eps: float = nym.field(static=True, converter=float, default=1e-5)


class Noted(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("batch",), metadata={"kept": 1})


scale = Scale(jnp.ones((8, 4)), [1.0, 2.0, 3.0, 4.0])  # pyright: ignore[reportArgumentType]


def test_a_field_is_an_equinox_field():
    assert isinstance(scale.bias, jax.Array) and scale.other is None and scale.eps == 1e-5
    assert len(jax.tree.leaves(scale)) == 2
    assert dataclasses.fields(Noted)[0].metadata["kept"] == 1


def test_a_converter_goes_with_names_and_with_static_fields():
    made = Scale(jnp.ones((8, 4)), np.arange(4), eps="0.5")  # pyright: ignore[reportArgumentType]
    assert isinstance(made.bias, jax.Array) and made.eps == 0.5
    assert jax.tree.structure(made) != jax.tree.structure(Scale(jnp.ones((8, 4)), made.bias))
    assert dataclasses.fields(Scale)[3].metadata["static"] and not dataclasses.fields(Scale)[1].metadata.get("static")


def test_declared_arrays_are_sharded_by_name_in_subclasses_too(mapped):
    class More(Scale):
        gain: jax.Array = nym.field(axis_names="batch", default_factory=lambda: jnp.ones(8))

    for sharded in nym.shard((scale, More(scale.weight, scale.bias))):
        assert sharded.weight.sharding.spec == jax.P("data", "model") and sharded.bias.sharding.spec == jax.P("model")
    assert sharded.gain.sharding.spec == jax.P("data")


def test_wrong_declarations():
    with refusal("axis 'embed' occurs more than once in (embed, embed)"):
        nym.field(axis_names=("embed", "embed"))
    with refusal("cannot be declared for it") as error:
        nym.field(axis_names="embed", static=True)
    assert "static field holds no array, so axes " in str(error.value)
    for names in (3, ("embed", 3)):
        with refusal("given by an `Axis` or by its name, not by 3", TypeError):
            nym.field(axis_names=names)
