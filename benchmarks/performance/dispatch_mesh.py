"""What a call of a compiled function costs on a mesh, with a mapping in force, for arrays that are in place already."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym

from .contenders import haliax
from .dispatch import calls, loss, trees, updated
from .measure import Effort, Row, timed


DEVICES = 8
MAPPING = {"embed": "data", "mlp": "model"}
SIZES = {"embed": 8, "mlp": 4}
LEAVES = (1, 100, 300)


def raw() -> jax.Array:
    mesh = jax.sharding.get_mesh()
    return jax.device_put(jnp.ones(tuple(SIZES.values())), NamedSharding(mesh, P(*MAPPING.values())))


def named() -> nym.NamedArray:
    return nym.NamedArray(raw(), SIZES)


def of_haliax() -> Any:
    return haliax.NamedArray(raw(), tuple(haliax.Axis(name, size) for name, size in SIZES.items()))


def rows(effort: Effort) -> Iterator[Row]:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING):
        for leaves in LEAVES[:1] if effort.smoke else LEAVES:
            yield from _rows(trees(leaves, raw, named, of_haliax), leaves, effort)


def _rows(given: dict[str, Any], leaves: int, effort: Effort) -> Iterator[Row]:
    against = "`jax.jit` on a flat list of raw arrays, 8 devices"
    what = "`named_jit` on a mesh, " + (f"a model of {leaves} leaves" if leaves > 1 else "one array")
    bar = 1.25 if leaves == 300 else None
    for fn, result in ((loss, "scalar result"), (updated, "all of it as the result")):
        by = {"JAX": jax.jit(fn), "Axonym": nym.named_jit(fn)}  # Equinox awaits its results, which takes longer here
        if haliax is not None:
            by["Haliax"] = haliax.named_jit(fn, axis_resources=MAPPING)
        yield timed(f"{what}, {result}", against, bar, calls(by, given), effort)
    entered = {"JAX": jax.jit(loss), "Axonym": nym.named_jit(loss, in_axis_resources=MAPPING)}
    in_place = f"{what} and in place for `in_axis_resources`, scalar result"
    yield timed(in_place, against, None, calls(entered, given), effort)
