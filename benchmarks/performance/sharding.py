"""What sharding costs: arrays moved to their devices outside of jit, and stated inside.

Kept lists of arrays on one device are sharded again and again, so that every call has to move everything.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from .contenders import agree, haliax
from .dispatch import Model, model
from .measure import Effort, Row, timed


DEVICES = 8
SIZES = {"embed": 64, "mlp": 32}
MAPPING = {"embed": "data", "mlp": "model"}
LEAVES = 100
ADDITIONS = 50


def meshes() -> Iterator[tuple[str, Mesh]]:
    for kind in (AxisType.Auto, AxisType.Explicit):
        yield kind.name, jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))


def raw() -> jax.Array:
    return jax.device_put(np.ones(tuple(SIZES.values()), np.float32), jax.devices()[0])


def named() -> Any:
    return nym.named(raw(), tuple(SIZES))


def of_haliax() -> Any:
    return haliax.named(raw(), tuple(SIZES))


def trees(leaves: int) -> dict[str, Any]:
    """Returns as many arrays on one device for each contender: a flat list for JAX, a model for the others."""
    found = {"JAX": [raw() for _ in range(leaves)], "Axonym": model(leaves, named)}
    return found if haliax is None else {**found, "Haliax": model(leaves, of_haliax)}


def rows(effort: Effort) -> Iterator[Row]:
    for kind, mesh in meshes():
        with jax.set_mesh(mesh), in_force():
            sharding = NamedSharding(mesh, P(*MAPPING.values()))
            yield from eager_rows(kind, sharding, effort)
            yield constraint_row(kind, sharding, effort)
            yield tree_row(kind, sharding, effort)
            yield specs_row(kind, sharding, effort)


@contextlib.contextmanager
def in_force() -> Iterator[None]:
    """Puts the mapping in force for every contender."""
    with nym.axis_mapping(MAPPING):
        if haliax is None:
            yield
        else:
            with haliax.axis_mapping(MAPPING):
                yield


def eager_rows(kind: str, sharding: NamedSharding, effort: Effort) -> Iterator[Row]:
    for leaves in (LEAVES,) if effort.smoke else (LEAVES, 3 * LEAVES):
        shardings = [sharding] * leaves
        apart = trees(leaves)
        together = {who: call() for who, call in _calls(apart, shardings).items()}
        check(together, sharding)
        yield timed(
            f"eager `shard` of {leaves} leaves from 1 device to 8, {kind} mesh",
            "one `jax.device_put` of the flat list",
            1.1,
            _calls(apart, shardings),
            effort,
        )
        yield timed(
            f"eager `shard` of {leaves} leaves that are in place, {kind} mesh",
            "one `jax.device_put` of the flat list",
            0.1,
            _calls(together, shardings),
            effort,
        )


def _calls(of: dict[str, Any], shardings: list[NamedSharding]) -> dict[str, Callable[[], Any]]:
    found = {"JAX": lambda: jax.device_put(of["JAX"], shardings), "Axonym": lambda: nym.shard(of["Axonym"])}
    return found if haliax is None else {**found, "Haliax": lambda: haliax.shard(of["Haliax"])}


def check(sharded: dict[str, Any], sharding: NamedSharding) -> None:
    agree(sharded)
    for tree in sharded.values():
        for leaf in jax.tree.leaves(tree):
            assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def constraint_row(kind: str, sharding: NamedSharding, effort: Effort) -> Row:
    array, stated = jax.device_put(raw(), sharding), by_hand(kind)

    def repeated(said: Callable[[Any], Any], x: Any) -> Callable[[], None]:
        return traced(lambda x: functools.reduce(lambda x, _: said(x + 1), range(ADDITIONS), x), x)

    calls = {
        "JAX": repeated(lambda x: stated(x, sharding), array),
        "Axonym": repeated(nym.auto_sharded, nym.named(array, tuple(SIZES))),
    }
    if haliax is not None and kind == "Auto":
        x = haliax.named(array, tuple(SIZES))
        calls["Haliax"] = repeated(haliax.auto_sharded, x)
    if kind == "Explicit":  # where the sum has that sharding already: `reshard` says it again, and Axonym sees it
        calls["JAX, unstated"] = repeated(lambda x: x, array)
    what = f"trace of {ADDITIONS} additions, each sharded, {kind} mesh"
    return timed(what, f"`{stated.__name__}` of each", 1.2, calls, effort)


def by_hand(kind: str) -> Callable[[Any, Any], Any]:
    """Returns what states a sharding inside: Haliax constrains alone, which on an Explicit mesh is an error."""
    return jax.lax.with_sharding_constraint if kind == "Auto" else jax.reshard


def tree_row(kind: str, sharding: NamedSharding, effort: Effort) -> Row:
    of, stated = trees(LEAVES), by_hand(kind)
    calls = {
        "JAX": traced(lambda tree: stated(tree, [sharding] * len(tree)), of["JAX"]),
        "Axonym": traced(nym.shard, of["Axonym"]),
    }
    if haliax is not None and kind == "Auto":
        calls["Haliax"] = traced(haliax.shard, of["Haliax"])
    against = f"one `{stated.__name__}` of the flat list"
    return timed(f"trace of `shard` of {LEAVES} leaves, {kind} mesh", against, None, calls, effort)


def traced(fn: Callable[[Any], Any], tree: Any) -> Callable[[], None]:
    def call() -> None:
        jax.make_jaxpr(lambda x: fn(x))(tree)  # a function that JAX has not seen

    return call


def specs_row(kind: str, sharding: NamedSharding, effort: Effort) -> Row:
    of = trees(LEAVES)
    shapes: Model = jax.eval_shape(lambda: of["Axonym"])
    spec = P(*MAPPING.values())
    calls = {
        "JAX": lambda: [NamedSharding(sharding.mesh, spec) for _ in of["JAX"]],
        "Axonym": lambda: nym.infer_resource_partitions(shapes),
    }
    if haliax is not None:
        of_shapes: Any = jax.eval_shape(lambda: of["Haliax"])
        calls["Haliax"] = lambda: haliax.partitioning.infer_resource_partitions(of_shapes)
    against = "one `NamedSharding` for each, unchecked"
    return timed(f"shardings of {LEAVES} leaves, nothing moved, {kind} mesh", against, None, calls, effort)
