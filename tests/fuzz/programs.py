"""Random programs of named arrays on meshes, each made by a seed alone, and compared with NumPy and plain JAX."""

import dataclasses
import functools
import math
import pprint
import traceback
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from .operations import DRAWS, NAMES, Again, Operation, count_operands, make_operation
from .plain import Plain, transpose


SIZES = {"a": 4, "b": 8, "c": 2, "d": 3, "e": 1}
TYPES = {
    "auto": [(AxisType.Auto,) * 3],
    "explicit": [(AxisType.Explicit,) * 3],
    "mixed": [(AxisType.Auto, AxisType.Explicit, AxisType.Auto), (AxisType.Explicit, AxisType.Auto, AxisType.Explicit)],
}
KNOWN_FAULTS = ("IsMonotonicWithDim0Major",)
"""What errors of XLA say that `docs/known-faults.md` lists; a program that meets one is not compared."""

LARGEST = 2048
"""How many elements an array has at most."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A few operations, each on earlier results; some of the results are returned."""

    inputs: tuple[Plain, ...]
    steps: tuple[tuple[Operation, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    seed: int = 0
    """The values of the inputs are drawn from it."""

    def run_plain(self, xp: Any, inputs: Sequence[Any]) -> list[Plain]:
        """Returns all values, computed by position."""
        found = [Plain(array, x.names) for array, x in zip(inputs, self.inputs, strict=True)]
        for step, operands in self.steps:
            found.append(step.plain(xp, *(found[at] for at in operands)))
        return found

    def run_named(self, one: Any, inputs: Sequence[nym.NamedArray]) -> list[nym.NamedArray]:
        """Returns all values, computed by name."""
        found = [*inputs]
        for step, operands in self.steps:
            found.append(step.named(one, *(found[at] for at in operands)))
        return found

    @functools.cached_property
    def values(self) -> list[Plain]:
        """All values, by NumPy."""
        return self.run_plain(np, [x.array for x in self.inputs])

    @functools.cached_property
    def weights(self) -> list[Any]:
        """What the outputs are multiplied with before all are summed to a loss."""
        shapes = [self.values[at].array.shape for at in self.outputs]
        return [np.cos(np.arange(math.prod(shape), dtype=np.float32)).reshape(shape) for shape in shapes]

    @functools.cached_property
    def gradients(self) -> list[Any]:
        """The gradients of the loss, by plain JAX on one device."""

        def compute_loss(inputs: Any) -> Any:
            found = self.run_plain(jnp, inputs)
            return sum(jnp.sum(found[at].array * weight) for at, weight in zip(self.outputs, self.weights, strict=True))

        return jax.jit(jax.grad(compute_loss))([jnp.asarray(x.array, jnp.float32) for x in self.inputs])


class Setting(NamedTuple):
    """Where and how a program runs."""

    types: tuple[AxisType, ...]
    mapping: dict[str, tuple[str, ...]]
    uneven: str
    is_compiled: bool


def make_program(seed: int, steps: int = 5) -> Program:
    """Returns the program of a seed."""
    random = Random(seed)
    names = [random.sample([*SIZES], random.choice([1, 2, 2, 3])) for _ in range(random.randint(1, 3))]
    inputs = make_inputs(seed, [{name: SIZES[name] for name in some} for some in names])
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
    last = len(found) - 1
    return Program(inputs, (*chosen,), tuple(dict.fromkeys([last, random.randint(len(inputs), last)])), seed)


def make_inputs(seed: int, sizes: Sequence[dict[str, int]]) -> tuple[Plain, ...]:
    values = np.random.default_rng(seed)
    return tuple(Plain(values.uniform(-1.5, 1.5, [*axes.values()]), (*axes,)) for axes in sizes)


def make_setting(seed: int, kind: str, program: Program) -> Setting:
    """Returns where and how the program of a seed runs on one kind of mesh."""
    random = Random(f"{kind} {seed}")
    types = random.choice(TYPES[kind])
    mapping = draw_mapping(random, types)
    sizes = {item for x in program.values for item in x.sizes.items()}
    fits = all(size == 1 or size % 2 ** len(mapping.get(name, ())) == 0 for name, size in sizes)
    return Setting(types, mapping, "error" if fits else "replicate", random.random() < 0.85)


def print_source(program: Program, setting: Setting) -> str:
    """Returns a program and its setting as a dict of numbers, texts and tuples, from which `restore` makes them."""
    source = {
        "seed": program.seed,
        "inputs": tuple(x.sizes for x in program.inputs),
        "steps": tuple((operands, *step.source) for step, operands in program.steps),
        "outputs": program.outputs,
        **setting._asdict(),
        "types": tuple(kind.name for kind in setting.types),
    }
    return pprint.pformat(source, width=120, sort_dicts=False)


def restore(source: dict[str, Any]) -> tuple[Program, Setting]:
    """Returns the program and the setting that `print_source` has printed, whatever seeds draw since."""
    inputs = make_inputs(source["seed"], source["inputs"])
    found: list[Plain] = [*inputs]
    steps: list[tuple[Operation, tuple[int, ...]]] = []
    for operands, name, *arguments in source["steps"]:
        values = [found[at] for at in operands]
        step = make_operation(name, Again(arguments), *(x.sizes for x in values))
        assert step is not None and step.source == (name, *arguments), f"{name} of {arguments} is {step} now"
        steps.append((step, operands))
        found.append(step.plain(np, *values))
    setting = Setting(**{field: source[field] for field in Setting._fields})
    setting = setting._replace(types=tuple(AxisType[name] for name in setting.types))
    return Program(inputs, (*steps,), source["outputs"], source["seed"]), setting


def draw_step(random: Random, found: list[Plain]) -> tuple[Operation, tuple[int, ...]] | None:
    """Returns an operation with its operands, of which late results are more likely; None if it does not apply."""
    name = random.choice([*DRAWS])
    count = count_operands(name)
    for _ in range(10):  # most pairs of operands do not fit most operations
        operands = tuple(min(len(found) - 1, int(random.triangular(0, len(found), len(found)))) for _ in range(count))
        sizes = [found[at].sizes for at in operands]
        if all(sizes[0].get(name, size) == size for other in sizes[1:] for name, size in other.items()):
            drawn = make_operation(name, random, *sizes)
            if drawn is not None:
                return drawn, operands
    return None


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


def find_problems(program: Program, setting: Setting) -> list[str]:
    """Returns where a program differs from NumPy, plain JAX and its mapping, or the error that it raises."""
    mesh = make_mesh(setting.types)
    mapping = nym.AxisMapping(setting.mapping, uneven=setting.uneven)  # pyright: ignore[reportArgumentType]

    def compute_loss(inputs: Any, one: Any) -> Any:
        found = program.run_named(one, inputs)
        outputs = [found[at] for at in program.outputs]
        names = [program.values[at].names for at in program.outputs]
        weighted = zip(outputs, program.weights, names, strict=True)
        return sum((x * nym.named(jnp.asarray(weight), names)).sum() for x, weight, names in weighted), outputs

    def compute(inputs: Any, one: Any) -> Any:
        (_, outputs), gradients = nym.value_and_grad(compute_loss, has_aux=True)(inputs, one)
        return outputs, gradients

    try:
        with jax.set_mesh(mesh), nym.axis_mapping(mapping):
            inputs = [nym.shard(nym.named(np.float32(x.array), x.names)) for x in program.inputs]
            run = nym.named_jit(compute) if setting.is_compiled else compute
            outputs, gradients = jax.block_until_ready(run(inputs, jnp.int32(1)))
    except Exception as error:
        return [] if any(fault in str(error) for fault in KNOWN_FAULTS) else [traceback.format_exc()]
    problems = []
    for at, output in zip(program.outputs, outputs, strict=True):
        problems += compare(f"v{at}", output, program.values[at], 1e-4)
    for at, (gradient, wanted) in enumerate(zip(gradients, program.gradients, strict=True)):
        problems += compare(f"the gradient of v{at}", gradient, Plain(wanted, program.inputs[at].names), 1e-3)
    if setting.is_compiled:
        for at, x in [*zip(program.outputs, outputs, strict=True), *enumerate(gradients)]:
            problems += compare_sharding(f"v{at}", x, setting.mapping, mesh)
    return problems


def compare(what: str, found: nym.NamedArray, wanted: Plain, tolerance: float) -> list[str]:
    """Returns the differences in axes and values."""
    if sorted(found.names) != sorted(wanted.names) or dict(found.shape) != {**found.shape, **wanted.sizes}:
        return [f"{what} has axes {dict(found.shape)}, not {wanted.sizes}"]
    expected = np.asarray(transpose(wanted, found.names).array)
    error = np.max(np.abs(np.asarray(found.array) - expected), initial=0)
    bound = tolerance * (1 + np.max(np.abs(expected), initial=0))
    return [] if error <= bound else [f"{what} differs by {error:g}, more than {bound:g}:\n{found.array}\n{expected}"]


def compare_sharding(what: str, x: nym.NamedArray, mapping: dict[str, tuple[str, ...]], mesh: Mesh) -> list[str]:
    """Returns the difference from the sharding that the mapping defines."""
    entries = []
    for name, size in x.shape.items():
        axes = mapping.get(name, ())
        entries.append(axes if axes and size % math.prod(mesh.shape[axis] for axis in axes) == 0 else None)
    wanted = NamedSharding(mesh, P(*entries))
    same = x.array.sharding.is_equivalent_to(wanted, len(entries))
    return [] if same else [f"{what} with axes {dict(x.shape)} has {x.array.sharding.spec}, not {wanted.spec}"]
