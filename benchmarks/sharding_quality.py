"""How much memory the specs of the sharding rules take on each device, for seven models on five meshes.

    python -m benchmarks.sharding_quality [--json PATH] [--no-collectives]

A figure is the bytes of the parameters on each device in units of total / devices, which is what a model takes that is
divided completely: 1.00 is the least there can be. The column `best` is the optimum of each array, found by trying all
ways to put mesh axes on dimensions. JAX itself judges each spec, by `NamedSharding(mesh, spec).shard_shape`; an array
whose spec it refuses is counted as whole, and `!n` says how many they are. Where eformer can be imported, its rules are
measured the same way. `--json` writes the figures to a file; the collectives take minutes, and can be left out.
"""

import argparse
import functools
import importlib
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym
from benchmarks.models import MODELS, Tree


AXES = ("dp", "fsdp", "ep", "tp", "sp")
MESHES = ((2, 4, 1, 1, 1), (1, 8, 1, 8, 1), (2, 16, 1, 8, 1), (1, 4, 8, 2, 1), (1, 8, 1, 4, 2))
# One mesh of 64 devices for each strategy that is timed, all alike but for the names: what one has kept for later calls
# is of no use to the next, so that each first call is a cold one.
TIMED_MESHES = tuple(
    tuple(8 if name in pair else 1 for name in AXES) for pair in sorted(itertools.combinations(AXES, 2))
)
ROLES_MESH = (1, 8, 1, 8, 1)

Specs = Any
Planner = Callable[[Tree, Any], Specs]
NOBODY: Mapping[str, Planner] = {}


@dataclass(frozen=True)
class Planned:
    """What the specs of one strategy come to for one model on one mesh."""

    bytes_per_device: int
    invalid: int = 0


@dataclass(frozen=True)
class Cell:
    """One model on one mesh: what is ideal, what is possible, and what each strategy gives."""

    model: str
    mesh: tuple[int, ...]
    bytes: int
    best: int
    planned: dict[str, Planned] = field(default_factory=dict)

    @property
    def ideal(self) -> float:
        return self.bytes / math.prod(self.mesh)

    def ratio(self, strategy: str) -> float:
        return self.planned[strategy].bytes_per_device / self.ideal


@dataclass(frozen=True)
class Summary:
    """What one strategy gives over all cells; ratios are to total / devices."""

    geometric_mean: float
    worst: float
    equal_to_best: int
    within_one_percent: int
    cells: int
    invalid: int


def abstract_mesh(sizes: Iterable[int]) -> AbstractMesh:
    return AbstractMesh(tuple(sizes), AXES)


def device_mesh(sizes: Iterable[int]) -> Mesh:
    """A mesh of virtual devices, for rules that refuse one without; there must be as many."""
    sizes = tuple(sizes)
    return Mesh(np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes), AXES)


def nbytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def total_bytes(tree: Tree) -> int:
    return sum(map(nbytes, jax.tree.leaves(tree)))


def judged(tree: Any, specs: Specs, mesh: Mesh | AbstractMesh) -> Planned:
    """What JAX says of the specs of a tree: the bytes on each device, and how many of them it refuses."""

    @functools.cache
    def elements(shape: tuple[int, ...], spec: P) -> int | None:
        try:
            shard = NamedSharding(mesh, spec).shard_shape(shape)
        except Exception:  # JAX has errors of its own for some, which share no class.
            return None
        return math.prod(shard) if len(spec) <= len(shape) else None  # Where it places an array, JAX refuses more.

    leaves = jax.tree.leaves(tree)
    given = jax.tree.leaves(specs, is_leaf=lambda node: isinstance(node, P))
    shards = [elements(leaf.shape, spec) for leaf, spec in zip(leaves, given, strict=True)]
    held = [
        nbytes(leaf) if shard is None else shard * leaf.dtype.itemsize
        for leaf, shard in zip(leaves, shards, strict=True)
    ]
    return Planned(sum(held), shards.count(None))


@functools.cache
def most_parts(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """The most equal parts that mesh axes of these sizes can divide an array into, by trying all ways."""
    most = 1
    for places in itertools.product(range(len(shape) + 1), repeat=len(axes)):  # The last place is nowhere.
        parts = [1] * (len(shape) + 1)
        for place, size in zip(places, axes, strict=True):
            parts[place] *= size
        if all(size % count == 0 for size, count in zip(shape, parts, strict=False)):
            most = max(most, math.prod(parts[:-1]))
    return most


def best_bytes(tree: Tree, mesh: Iterable[int]) -> int:
    """The fewest bytes on each device that any specs can give."""
    axes = tuple(size for size in mesh if size > 1)
    return sum(nbytes(leaf) // most_parts(leaf.shape, axes) for leaf in jax.tree.leaves(tree))


def memory_limit(tree: Tree, sizes: tuple[int, ...]) -> int:
    """What a device is allowed to hold: 5 % more than total / devices, or the least that is possible."""
    return max(int(total_bytes(tree) / math.prod(sizes) * 1.05), best_bytes(tree, sizes))


def _memory(tree: Tree, mesh: AbstractMesh) -> Specs:
    limit = memory_limit(tree, tuple(mesh.shape.values()))
    return nym.MemoryConstrainedShardingRule(limit, mesh).apply(tree)


AXONYM: dict[str, Planner] = {
    "helper": lambda tree, mesh: nym.MeshPartitionHelper(mesh).partition_specs(tree),
    "helper(1024)": lambda tree, mesh: nym.MeshPartitionHelper(mesh).partition_specs(tree, min_shard_size=1024),
    "auto": lambda tree, mesh: nym.AutoShardingRule(mesh).apply(tree),
    "memory": _memory,
    "roles": lambda tree, mesh: nym.RoleShardingRule(mesh).apply(tree),
}
"""The strategies of Axonym, at their defaults unless said; they get an `AbstractMesh`."""


def eformer_strategies() -> dict[str, Planner]:
    """The strategies of eformer that its documentation names, none if it cannot be imported; they get a `Mesh`."""
    try:
        peer = importlib.import_module("eformer.escale")
    except ImportError:
        return {}

    def larger_axes(mesh: Mesh) -> list[str]:
        return [name for name, size in mesh.shape.items() if size > 1]

    def helper(tree: Tree, mesh: Mesh) -> Specs:
        """What `auto_shard_pytree` puts arrays by, without the arrays."""
        one = peer.MeshPartitionHelper(mesh)
        methods = one.analyze_pytree(tree)
        return jax.tree.map(lambda leaf: one.create_partition_spec(leaf.shape, methods[leaf.shape]), tree)

    def auto(tree: Tree, mesh: Mesh) -> Specs:
        rule = peer.AutoShardingRule(mesh, larger_axes(mesh), min_shard_size=mesh.size)
        return rule.apply(tree)

    def memory(tree: Tree, mesh: Mesh) -> Specs:
        return peer.MemoryConstrainedShardingRule(memory_limit(tree, tuple(mesh.shape.values())), mesh).apply(tree)

    def least(tree: Tree, mesh: Mesh) -> Specs:
        return peer.MemoryConstrainedShardingRule(1, mesh).apply(tree)

    def by_shape(tree: Tree, mesh: Mesh) -> Specs:
        patterns = {(None,) * rank: P(*[None] * (rank - 2), "fsdp", "tp") for rank in (2, 3, 4)}
        return peer.ShapeBasedShardingRule(patterns).apply(tree)

    def auto_spec(tree: Tree, mesh: Mesh) -> Specs:
        # It wants arrays: a view that has the shape and takes no memory is one.
        view = functools.cache(lambda shape, dtype: np.broadcast_to(np.zeros((), dtype), shape))
        return jax.tree.map(lambda leaf: peer.auto_partition_spec(view(leaf.shape, leaf.dtype), mesh), tree)

    return {
        "ef helper": helper,
        "ef auto": auto,
        "ef memory": memory,
        "ef 1 byte": least,
        "ef shapes": by_shape,
        "ef spec": auto_spec,
    }


def measured(
    model: str, sizes: tuple[int, ...], ours: Mapping[str, Planner] = AXONYM, theirs: Mapping[str, Planner] = NOBODY
) -> Cell:
    """Plans one model on one mesh by all strategies."""
    tree = MODELS[model]()
    mesh = abstract_mesh(sizes)
    planned = {name: judged(tree, plan(tree, mesh), mesh) for name, plan in ours.items()}
    for name, plan in theirs.items():
        planned[name] = judged(tree, plan(tree, device_mesh(sizes)), mesh)
    return Cell(model, sizes, total_bytes(tree), best_bytes(tree, sizes), planned)


def summary(cells: list[Cell], strategy: str) -> Summary:
    ratios = [cell.ratio(strategy) for cell in cells]
    to_best = [cell.planned[strategy].bytes_per_device / cell.best for cell in cells]
    return Summary(
        statistics.geometric_mean(ratios),
        max(ratios),
        sum(one == 1 for one in to_best),
        sum(one <= 1.01 for one in to_best),
        len(cells),
        sum(cell.planned[strategy].invalid for cell in cells),
    )


def best_summary(cells: list[Cell]) -> Summary:
    ratios = [cell.best / cell.ideal for cell in cells]
    return Summary(statistics.geometric_mean(ratios), max(ratios), len(cells), len(cells), len(cells), 0)


def milliseconds(plan: Planner, tree: Tree, mesh: Any) -> tuple[float, float]:
    """How long the first plan takes, and the shortest of five later ones.

    It is the time of the processor: plans are made in one thread, and what else the machine does is not to count.
    """
    took = []
    for _ in range(6):
        started = time.process_time()
        plan(tree, mesh)
        took.append((time.process_time() - started) * 1e3)
    return took[0], min(took[1:])


def times(theirs: Mapping[str, Planner]) -> dict[str, tuple[float, float]]:
    """The time to plan the 723 arrays of Llama 3 70B on 64 devices in milliseconds, cold and warm."""
    tree = MODELS["llama3-70b"]()
    judged(tree, jax.tree.map(lambda _: P(), tree), abstract_mesh(ROLES_MESH))  # JAX is started.
    others = iter([sizes for sizes in TIMED_MESHES if sizes != ROLES_MESH])
    found = {}
    for name, plan in {**AXONYM, **theirs}.items():
        sizes = ROLES_MESH if name in ("roles", "ef shapes") else next(others)
        if name == "memory":  # The limit is given; to find the least that is possible is the benchmark's own work.
            memory_limit(tree, sizes)
        found[name] = milliseconds(plan, tree, device_mesh(sizes) if name in theirs else abstract_mesh(sizes))
    return found


def size(count: float) -> str:
    """Bytes as people read them, in units of 1024."""
    unit = min(int(math.log2(max(count, 1))) // 10, 4)
    return f"{count / 1024**unit:.2f}{'BKMGT'[unit]}"


def shown_cells(cells: list[Cell]) -> str:
    """The table of all cells, as text."""
    strategies = list(cells[0].planned)
    rows = [["mesh", "model", "ideal", "best", *strategies]]
    for cell in cells:
        figures = [
            f"{cell.ratio(name):.2f}" + (f" !{cell.planned[name].invalid}" if cell.planned[name].invalid else "")
            for name in strategies
        ]
        mesh = ",".join(map(str, cell.mesh))
        rows.append([mesh, cell.model, size(cell.ideal), f"{cell.best / cell.ideal:.2f}", *figures])
    return aligned(rows)


def shown_summary(cells: list[Cell], took: Mapping[str, tuple[float, float]]) -> str:
    """The table of all strategies, as text; times in milliseconds."""
    rows = [["strategy", "geo. mean", "worst", "= best", "within 1 %", "invalid", "cold ms", "warm ms"]]
    summaries = {"best": best_summary(cells)} | {name: summary(cells, name) for name in cells[0].planned}
    for name, one in summaries.items():
        figures = [f"{one.geometric_mean:.3f}", f"{one.worst:.2f}", f"{one.equal_to_best}/{one.cells}"]
        cold_and_warm = [f"{ms:.1f}" for ms in took[name]] if name in took else ["", ""]
        rows.append([name, *figures, f"{one.within_one_percent}/{one.cells}", str(one.invalid), *cold_and_warm])
    return aligned(rows)


def aligned(rows: list[list[str]]) -> str:
    """A table with the first two columns to the left, and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = 2 if rows[0][0] == "mesh" else 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


LEGEND = """\
helper        MeshPartitionHelper(mesh).partition_specs
helper(1024)  the same with min_shard_size=1024, as auto_shard_pytree: arrays of fewer elements stay whole
auto          AutoShardingRule(mesh): arrays of fewer elements than devices stay whole
memory        MemoryConstrainedShardingRule at 1.05 * total / devices, or at the least that is possible
roles         RoleShardingRule(mesh): memory first, then what mesh axes are for; norms and biases stay whole
best          the optimum of each array, by trying all ways"""

PEER_LEGEND = """\
ef helper     MeshPartitionHelper.create_partition_spec with the methods of its analyze_pytree
ef auto       AutoShardingRule(min_shard_size=devices) with the mesh axes larger than 1; changes with PYTHONHASHSEED
ef memory     MemoryConstrainedShardingRule at the limit of `memory`
ef 1 byte     MemoryConstrainedShardingRule at a limit of 1 byte
ef shapes     ShapeBasedShardingRule: ("fsdp", "tp") on the last two dimensions
ef spec       auto_partition_spec"""


def to_json(cells: list[Cell], took: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    names = list(cells[0].planned)
    return {
        "jax": jax.__version__,
        "cells": [asdict(cell) | {"ratios": {name: cell.ratio(name) for name in names}} for cell in cells],
        "summary": {name: asdict(summary(cells, name)) for name in names} | {"best": asdict(best_summary(cells))},
        "milliseconds_for_723_arrays": {name: {"cold": cold, "warm": warm} for name, (cold, warm) in took.items()},
    }


def start_jax() -> None:
    """Gives JAX as many CPU devices as the largest mesh has, which it takes before its first array alone."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(map(math.prod, MESHES)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="PATH", help="a file to write the figures to")
    parser.add_argument("--no-collectives", action="store_true", help="leave out what is sent between devices")
    options = parser.parse_args(arguments)
    theirs = eformer_strategies()
    took = times(theirs)
    cells = [measured(model, sizes, theirs=theirs) for sizes in MESHES for model in MODELS]
    print(f"Bytes on each device / (total / devices), jax {jax.__version__}; mesh axes {', '.join(AXES)}\n")
    print(LEGEND, *([PEER_LEGEND] if theirs else []), "", shown_cells(cells), "", sep="\n")
    print(f"All {len(cells)} cells, and the processor time to plan the 723 arrays of llama3-70b on 64 devices\n")
    print(shown_summary(cells, took))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(to_json(cells, took), file, indent=1)
    if not options.no_collectives:
        # In a process of its own, which has as many devices as it wants.
        print(flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.blocks"], check=True)


if __name__ == "__main__":
    start_jax()
    main()
