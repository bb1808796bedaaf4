"""What tests of named arrays share: a mapping in force on each mesh, and a look into traced programs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import axonym as nym


@pytest.fixture
def mapped(mesh: Mesh) -> Iterator[Mesh]:
    """Runs the test on both meshes, with a mapping in force that divides `batch` by 4 and `embed` by 2."""
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        yield mesh


ComputeSharded = Callable[..., Any]


@pytest.fixture
def compute_sharded(mapped: Mesh) -> ComputeSharded:
    """Returns a function that compiles another for sharded operands, on each mesh, and returns its results.

    They are checked against those of the same operands on one device.
    """

    def compute(fn: Callable[..., Any], *operands: Any, tolerance: float = 1e-5) -> Any:
        with jax.set_mesh(None):
            expected = jax.jit(fn)(*operands)
        results = jax.jit(fn)(*nym.shard(operands))
        assert jax.tree.structure(results) == jax.tree.structure(expected)  # with the names of axes
        for (path, result), other in zip(jax.tree.leaves_with_path(results), jax.tree.leaves(expected), strict=True):
            assert result.dtype == other.dtype
            np.testing.assert_allclose(
                result, other, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path)
            )
        return results

    return compute


CheckSharded = Callable[..., None]
Operation = tuple[Callable[..., Any], str]


@pytest.fixture
def check_sharded(mapped: Mesh, compute_sharded: ComputeSharded) -> CheckSharded:
    """Returns a function that runs operations on sharded operands, on each mesh, and checks values and shardings.

    An operation is a function and a letter for each axis of its result: d(ata), m(odel), or p for none. All are
    compiled as one program; those of the names `outside` are run outside of it as well.
    """

    def check(operations: dict[str, Operation], *operands: Any, outside: Iterable[str] = ()) -> None:
        def compute(*operands: Any) -> dict[str, Any]:
            return {name: operation(*operands) for name, (operation, _) in operations.items()}

        inside = compute_sharded(compute, *operands)
        sharded = nym.shard(operands)
        results = [*inside.items(), *((name, operations[name][0](*sharded)) for name in outside)]
        for name, result in results:
            assert result.names == inside[name].names, name
            np.testing.assert_allclose(result.array, inside[name].array, rtol=1e-5, atol=1e-5, err_msg=name)
            if mapped.axis_types[0] == AxisType.Explicit:
                spec = jax.P(*({"d": "data", "m": "model", "p": None}[letter] for letter in operations[name][1]))
                assert result.sharding.spec == spec, name

    return check


Equations = Callable[..., list[tuple[str, tuple[int, ...]]]]


@pytest.fixture
def equations() -> Equations:
    """Returns a function that traces another and lists its equations, nested ones too: primitive and shape."""

    def traced(fn: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[int, ...]]]:
        return [(eqn.primitive.name, eqn.outvars[0].aval.shape) for eqn in _nested(jax.make_jaxpr(fn)(*args))]

    return traced


def _nested(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        inner = [leaf for leaf in jax.tree.leaves([*eqn.params.values()]) if hasattr(leaf, "eqns")]
        if eqn.primitive.name != "jit":
            yield eqn
        for inner_jaxpr in inner:
            yield from _nested(inner_jaxpr)
