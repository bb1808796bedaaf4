"""Code written for Haliax's partitioning finds each function here, with parameters of the same names."""

import inspect

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


SIGNATURES = {
    "axis_mapping": ["mapping", "*", "merge", "**kwargs"],
    "shard": ["x", "mapping", "mesh"],
    "auto_sharded": ["x", "mesh"],
    "shard_with_axis_mapping": ["x", "mapping", "mesh"],
    "named_jit": [
        "fn",
        "axis_resources",
        "*",
        "in_axis_resources",
        "out_axis_resources",
        "donate_args",
        "donate_kwargs",
        "**pjit_args",
    ],
    "round_axis_for_partitioning": ["axis", "mapping"],
    "physical_axis_name": ["axis", "mapping"],
    "physical_axis_size": ["axis", "mapping"],
    "sharding_for_axis": ["axis", "mapping", "mesh"],
    "pspec_for_axis": ["axis", "mapping"],
}
OTHER_NAMES = {"x": "tree"}  # of parameters that are given by position
JIT_OPTIONS = {"keep_unused": True, "backend": None, "inline": True}


def parameters(fn) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(fn).parameters)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_takes_the_same_parameters(name):
    found, keyword_only = parameters(getattr(nym, name)), False
    positional = [key for key, one in found.items() if one.kind == one.POSITIONAL_OR_KEYWORD]
    for at, key in enumerate(SIGNATURES[name]):
        keyword_only |= key == "*"
        if key.startswith("**"):
            assert any(one.kind == one.VAR_KEYWORD for one in found.values())
        elif keyword_only and key != "*":
            assert key in found
        elif key != "*":
            assert positional[at] in (key, OTHER_NAMES.get(key))


@pytest.mark.parametrize("name", SIGNATURES)
def test_what_had_a_default_has_one(name):
    required = {"axis_mapping": 0, "shard_with_axis_mapping": 2, "named_jit": 0}
    found = parameters(getattr(nym, name)).values()
    assert sum(one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD for one in found) == required.get(
        name, 1
    )


def test_fsdp_is_a_function_and_a_decorator(auto_mesh):
    parameter_mapping, compute_mapping = {"embed": "data"}, {"batch": "data"}
    for decorated in (
        nym.fsdp(lambda x: x * 2, parameter_mapping, compute_mapping),
        nym.fsdp(parameter_mapping, compute_mapping)(lambda x: x * 2),
    ):
        with jax.set_mesh(auto_mesh):
            result = decorated(nym.ones({"batch": 8, "embed": 4}))
        assert result.sharding.is_equivalent_to(NamedSharding(auto_mesh, P(None, "data")), 2)


def test_named_jit_is_a_decorator_that_takes_the_options_of_jit():
    assert nym.named_jit(**JIT_OPTIONS)(lambda x: x + 1)(1) == 2


def test_what_named_jit_is_said_to_be_like(auto_mesh):
    mappings = {"batch": "data"}, {"embed": "data"}, {"batch": "model"}
    into, inside, out = mappings
    x, seen = nym.ones({"batch": 8, "embed": 4}), []

    def fn(x):
        seen.append(nym.current_mapping())
        return x * 2

    def by_hand(x):
        return nym.shard(fn(x), out)

    with jax.set_mesh(auto_mesh):
        with nym.axis_mapping(inside):
            wanted = jax.jit(by_hand)(nym.shard(x, into))
        result = nym.named_jit(fn, inside, in_axis_resources=into, out_axis_resources=out)(x)
    assert seen == [inside, inside]
    assert result.sharding.is_equivalent_to(wanted.sharding, 2) and np.array_equal(result.array, wanted.array)


def test_what_the_queries_are_said_to_answer(auto_mesh):
    mapping = {"batch": ("data", "model"), "vocab": "data"}
    with jax.set_mesh(auto_mesh), nym.axis_mapping(mapping):
        assert nym.round_axis_for_partitioning(nym.Axis("vocab", 10)).size == 12
        assert nym.physical_axis_name("vocab") == "data" and nym.physical_axis_name("embed") is None
        assert nym.physical_axis_size("batch") == 8
        assert nym.sharding_for_axis("batch") == NamedSharding(auto_mesh, P(("data", "model")))
        assert nym.pspec_for_axis(("vocab", "embed")) == P("data", None)
        assert nym.current_thread_local_mapping() == mapping
    assert nym.partitioning.ResourceMapping is nym.ResourceMapping
