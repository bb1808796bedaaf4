"""Random programs of named arrays on meshes, each made by a seed alone, and compared with NumPy and plain JAX."""

import functools
import math
import traceback
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from .operations import DRAWS, NAMES, Operation
from .plain import Plain, transpose


SIZES = {"a": 4, "b": 8, "c": 2, "d": 3, "e": 1}
TYPES = {
    "auto": [(AxisType.Auto,) * 3],
    "explicit": [(AxisType.Explicit,) * 3],
    "mixed": [(AxisType.Auto, AxisType.Explicit, AxisType.Auto), (AxisType.Explicit, AxisType.Auto, AxisType.Explicit)],
}
LARGEST = 2048
"""How many elements an array has at most."""


class Program(NamedTuple):
    """A few operations, each on earlier results; the last results are returned."""

    seed: int
    inputs: tuple[Plain, ...]
    steps: tuple[tuple[Operation, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    mapping: dict[str, tuple[str, ...]]
    types: tuple[AxisType, ...]
    uneven: str
    is_compiled: bool

    def __str__(self) -> str:
        lines = [f"v{at} = {dict(x.sizes)}" for at, x in enumerate(self.inputs)]
        for at, (step, operands) in enumerate(self.steps, len(self.inputs)):
            lines.append(f"v{at} = {step.text}, of {', '.join(f'v{one}' for one in operands)}")
        types = ", ".join(kind.name for kind in self.types)
        way = "in named_jit" if self.is_compiled else "outside of jit"
        return "\n".join([
            f"seed {self.seed}, {way}, on (x: 2, y: 2, z: 2) of types {types}, by {self.mapping}, uneven={self.uneven!r}",
            *lines, f"returns {', '.join(f'v{one}' for one in self.outputs)}",
        ])  # fmt: skip

    def run_plain(self, xp: Any, inputs: Sequence[Any]) -> list[Plain]:
        """Returns all results, computed by position."""
        found = [Plain(array, x.names) for array, x in zip(inputs, self.inputs, strict=True)]
        for step, operands in self.steps:
            found.append(step.plain(xp, *(found[at] for at in operands)))
        return found

    def run_named(self, one: Any, inputs: Sequence[nym.NamedArray]) -> list[nym.NamedArray]:
        """Returns all results, computed by name."""
        found = [*inputs]
        for step, operands in self.steps:
            found.append(step.named(one, *(found[at] for at in operands)))
        return found


def make_program(seed: int, kind: str, steps: int = 5) -> Program:
    """Returns the program of a seed on one kind of mesh."""
    random = Random(f"{kind} {seed}")
    values = np.random.default_rng(seed)
    inputs = []
    for _ in range(random.randint(1, 3)):
        names = random.sample([*SIZES], random.choice([1, 2, 2, 3]))
        inputs.append(Plain(values.uniform(-1.5, 1.5, [SIZES[name] for name in names]), tuple(names)))
    found: list[Plain] = [*inputs]
    chosen: list[tuple[Operation, tuple[int, ...]]] = []
    while len(chosen) < steps:
        step = draw_step(random, found)
        if step is not None:
            found.append(step[0].plain(np, *(found[at] for at in step[1])))
            if is_usable(found[-1]):
                chosen.append(step)
            else:
                found.pop()
    types = random.choice(TYPES[kind])
    mapping = draw_mapping(random, types)
    parts = {name: 2 ** len(axes) for name, axes in mapping.items()}
    fits = all(size == 1 or size % parts.get(name, 1) == 0 for x in found for name, size in x.sizes.items())
    last = len(found) - 1
    outputs = tuple(dict.fromkeys([last, random.randint(len(inputs), last)]))
    uneven = "error" if fits else "replicate"
    return Program(seed, (*inputs,), (*chosen,), outputs, mapping, types, uneven, random.random() < 0.85)


def draw_step(random: Random, found: list[Plain]) -> tuple[Operation, tuple[int, ...]] | None:
    """Returns an operation with its operands, of which late results are more likely; None if it does not apply."""
    count, draw = random.choice(DRAWS)
    operands = tuple(min(len(found) - 1, int(random.triangular(0, len(found), len(found)))) for _ in range(count))
    sizes = [found[at].sizes for at in operands]
    if any(sizes[0].get(name, size) != size for other in sizes[1:] for name, size in other.items()):
        return None
    drawn = draw(random, *sizes)
    return None if drawn is None else (drawn, operands)


def is_usable(x: Plain) -> bool:
    """Returns whether values are neither many nor large, so that they can be compared."""
    return 0 < x.array.size <= LARGEST and bool(np.all(np.isfinite(x.array))) and np.max(np.abs(x.array)) < 100


def draw_mapping(random: Random, types: tuple[AxisType, ...]) -> dict[str, tuple[str, ...]]:
    """Returns a mapping in which no two names share a mesh axis, and each uses mesh axes of one type."""
    mapping: dict[str, tuple[str, ...]] = {}
    kinds = dict(zip("xyz", types, strict=True))
    for axis in random.sample("xyz", 3):
        name = random.choice([*SIZES, random.choice(NAMES), None])
        if name is not None and all(kinds[other] == kinds[axis] for other in mapping.get(name, ())):
            mapping[name] = (*mapping.get(name, ()), axis)
    return mapping


@functools.cache
def make_mesh(types: tuple[AxisType, ...]) -> Mesh:
    return jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=types)


def find_problems(program: Program) -> list[str]:
    """Returns where a program differs from NumPy, plain JAX and its mapping, or the error that it raises."""
    mesh = make_mesh(program.types)
    mapping = nym.AxisMapping(program.mapping, uneven=program.uneven)  # pyright: ignore[reportArgumentType]
    wanted = program.run_plain(np, [x.array for x in program.inputs])
    weights = [np.cos(np.arange(wanted[at].array.size)).reshape(wanted[at].array.shape) for at in program.outputs]

    def compute_loss(inputs: Any, one: Any) -> Any:
        found = program.run_named(one, inputs)
        terms = [
            (found[at] * nym.named(jnp.asarray(weight, jnp.float32), wanted[at].names)).sum()
            for at, weight in zip(program.outputs, weights, strict=True)
        ]
        return sum(terms[1:], terms[0]), [found[at] for at in program.outputs]

    def compute(inputs: Any, one: Any) -> Any:
        (_, results), gradients = nym.value_and_grad(compute_loss, has_aux=True)(inputs, one)
        return results, gradients

    try:
        with jax.set_mesh(mesh), nym.axis_mapping(mapping):
            inputs = [nym.shard(nym.named(np.float32(x.array), x.names)) for x in program.inputs]
            results, gradients = (nym.named_jit(compute) if program.is_compiled else compute)(inputs, jnp.int32(1))
    except Exception:
        return [traceback.format_exc()]
    problems = []
    for at, result in zip(program.outputs, results, strict=True):
        problems += compare(f"v{at}", result, wanted[at], 1e-4)
    plain_gradients = compute_plain_gradients(program, weights)
    for at, (gradient, x) in enumerate(zip(gradients, program.inputs, strict=True)):
        problems += compare(f"the gradient of v{at}", gradient, Plain(plain_gradients[at], x.names), 1e-3)
    if program.is_compiled:
        for what, x in [*zip(program.outputs, results, strict=True), *enumerate(gradients)]:
            problems += compare_sharding(f"v{what}", x, program, mesh)
    return problems


def compute_plain_gradients(program: Program, weights: list[Any]) -> list[Any]:
    """Returns the gradients of the weighted sum of the results with plain JAX on one device."""

    def compute_loss(inputs: Any) -> Any:
        found = program.run_plain(jnp, inputs)
        return sum(jnp.sum(found[at].array * weight) for at, weight in zip(program.outputs, weights, strict=True))

    return jax.jit(jax.grad(compute_loss))([jnp.asarray(x.array, jnp.float32) for x in program.inputs])


def compare(what: str, found: nym.NamedArray, wanted: Plain, tolerance: float) -> list[str]:
    """Returns the differences in axes and values."""
    if sorted(found.names) != sorted(wanted.names) or dict(found.shape) != {**found.shape, **wanted.sizes}:
        return [f"{what} has axes {dict(found.shape)}, not {wanted.sizes}"]
    expected = np.asarray(transpose(wanted, found.names).array)
    error = np.max(np.abs(np.asarray(found.array) - expected), initial=0)
    bound = tolerance * (1 + np.max(np.abs(expected), initial=0))
    return [] if error <= bound else [f"{what} differs by {error:g}, more than {bound:g}:\n{found.array}\n{expected}"]


def compare_sharding(what: str, x: nym.NamedArray, program: Program, mesh: Mesh) -> list[str]:
    """Returns the difference from the sharding that the mapping defines."""
    entries = []
    for name, size in x.shape.items():
        axes = program.mapping.get(name, ())
        entries.append(axes if axes and size % math.prod(mesh.shape[axis] for axis in axes) == 0 else None)
    wanted = NamedSharding(mesh, P(*entries))
    assert x.array.sharding.mesh is not None
    same = x.array.sharding.is_equivalent_to(wanted, len(entries))
    return [] if same else [f"{what} with axes {dict(x.shape)} has {x.array.sharding.spec}, not {wanted.spec}"]
