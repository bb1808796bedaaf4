"""Functions of named arrays with their arguments, whose gradients are compared on meshes and on one device."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

import axonym as nym


SIZES = {
    **{"a": 4, "b": 8, "c": 2, "row": 4, "col": 4, "col2": 4, "k": 4},
    **{"batch": 4, "pos": 8, "key_pos": 8, "embed": 4, "mlp": 8, "heads": 4, "group": 2, "head_dim": 4},
    **{"vocab": 8, "experts": 4, "token": 8, "height": 8, "width": 4, "layers": 2},
}
TOLERANCE = 1e-4
KINDS = AxisType.Auto, AxisType.Explicit


def axis(name: str) -> nym.Axis:
    """Returns the axis of a name, whose size is the same in all cases."""
    return nym.Axis(name, SIZES[name])


def make_array(names: str, key: Any) -> nym.NamedArray:
    """Returns an array with these axes."""
    return nym.zeros(tuple(map(axis, names.split())))


class Case(NamedTuple):
    """A function and what it gets."""

    names: str
    """The public functions and layers that the case is for, by their paths below `axonym`."""
    fn: Callable[..., Any]
    """Returns named arrays, of which those of floats are differentiated."""
    arguments: tuple[Any, ...]
    """The axes of an array to be drawn, or a function that makes a layer from a key."""
    note: str = ""
    is_thorough: bool = False
    """Whether each night is often enough, since it takes long or resembles another case."""

    def __str__(self) -> str:
        return f"{self.names} {self.note}".strip()

    def make_arguments(self) -> list[Any]:
        """Returns the arguments, the same ones at each call."""
        random = np.random.default_rng(0)

        def draw(leaf: Any) -> Any:
            if not isinstance(leaf, jax.ShapeDtypeStruct):
                return leaf
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                return random.uniform(-1, 1, leaf.shape).astype(leaf.dtype)
            return np.zeros(leaf.shape, leaf.dtype)

        found = []
        for argument in self.arguments:
            make = functools.partial(make_array, argument) if isinstance(argument, str) else argument
            found.append(jax.tree.map(draw, eqx.filter_eval_shape(make, jax.random.key(0))))
        return found


def list_mappings(case: Case) -> list[nym.AxisMapping]:
    """Returns mappings that shard the first axis, alone and with each of the others; the last mesh axis is unused."""
    first, *others = dict.fromkeys(name for array in list_arrays(case.make_arguments()) for name in array.names)
    both = [{first: "data", other: "model"} for other in others]
    return [nym.AxisMapping(entries, uneven="replicate") for entries in ({first: "model"}, *both)]


def list_arrays(tree: Any) -> list[nym.NamedArray]:
    """Returns the named arrays of a tree."""
    leaves = jax.tree.leaves(tree, is_leaf=nym.is_named_array)
    return [leaf for leaf in leaves if nym.is_named_array(leaf) and leaf.array is not None]


def compute(case: Case, arguments: list[Any]) -> tuple[Any, Any]:
    """Returns the results of a case, and the gradients of a sum in which each of their elements has another weight."""
    differentiated, static = eqx.partition(arguments, eqx.is_inexact_array)

    def compute_loss(differentiated: Any) -> tuple[Any, Any]:
        results = list_arrays(case.fn(*eqx.combine(differentiated, static)))
        return sum(map(_add_up, results)), results

    gradients, results = jax.grad(compute_loss, has_aux=True)(differentiated)
    return results, list_arrays(gradients)


def _add_up(x: nym.NamedArray) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _add_up(nym.real(x)) + 2 * _add_up(nym.imag(x))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return 0.0
    weights = np.cos(1 + np.arange(x.size, dtype=np.float32)).reshape(tuple(x.shape))
    return (x * nym.named(jnp.asarray(weights), x.names)).sum().scalar()


Placements = list[tuple[int, nym.AxisMapping]]
"""Numbers of cases, and mappings that shard their arguments."""


def list_placements(cases: list[Case], *, is_thorough: bool) -> dict[AxisType, Placements]:
    """Returns what is computed on each kind of mesh: all cases by all mappings, or each on one of the two by one."""
    mappings = [list_mappings(case) for case in cases]
    if is_thorough:
        placements = [(number, mapping) for number, some in enumerate(mappings) for mapping in some]
        return {kind: placements for kind in KINDS}
    chosen = [(number, some[1:] or some) for number, some in enumerate(mappings)]  # that shard two axes if there are
    placements = [(number, some[number // 2 % len(some)]) for number, some in chosen]
    return {kind: placements[first::2] for first, kind in enumerate(KINDS)}


def find_differences(cases: list[Case], *, is_thorough: bool = True) -> list[str]:
    """Returns where results or gradients on meshes differ from those on one device, for each case and mapping.

    What is not computed on a mesh of Explicit axes is at least traced there, which finds errors in types.
    """
    arguments = [case.make_arguments() for case in cases]

    def compute_on_device(arguments: list[Any]) -> list[Any]:
        return [compute(*pair) for pair in zip(cases, arguments, strict=True)]

    expected = jax.device_get(jax.jit(compute_on_device)(arguments))
    placements = list_placements(cases, is_thorough=is_thorough)
    problems = []
    for kind in KINDS:
        mesh = jax.make_mesh((2, 2, 2), ("data", "model", "unused"), axis_types=(kind,) * 3)
        with jax.set_mesh(mesh):
            found = _find_differences(cases, placements[kind], arguments, expected)
            if kind == AxisType.Explicit and not is_thorough:
                found += _find_differences(cases, placements[AxisType.Auto], arguments, None)
            problems += [f"{kind.name}: {problem}" for problem in found]
    return problems


def _find_differences(
    cases: list[Case], placements: Placements, arguments: list[Any], expected: list[Any] | None
) -> list[str]:
    """Computes cases by mappings in one program, or only traces it if nothing is expected."""
    problems: list[str] = []

    def compute_mapped(number: int, mapping: nym.AxisMapping, values: list[Any]) -> Any:
        try:
            with nym.axis_mapping(mapping):
                return compute(cases[number], values)
        except Exception as error:
            problems.append(f"{cases[number]} by {mapping}: {type(error).__name__}: {error}")

    @jax.jit
    def compute_on_mesh(arguments: list[Any]) -> list[Any]:
        return [compute_mapped(*placement, values) for placement, values in zip(placements, arguments, strict=True)]

    sharded = [nym.shard(arguments[number], mapping) for number, mapping in placements]
    if expected is None:
        compute_on_mesh.trace(sharded)
        return problems
    found = jax.device_get(compute_on_mesh(sharded))
    for (number, mapping), computed in zip(placements, found, strict=True):
        for what, *pair in zip(("result", "gradient"), computed or ((), ()), expected[number], strict=True):
            for place, (x, y) in enumerate(zip(*pair, strict=computed is not None)):
                problems += [f"{cases[number]} by {mapping}: {what} {place} {problem}" for problem in compare(x, y)]
    return problems


def compare(x: nym.NamedArray, y: nym.NamedArray) -> Iterator[str]:
    """Yields what is wrong with an array that should be equal to another one."""
    if x.names != y.names or x.array.shape != y.array.shape:
        yield f"has axes {x.shape}, not {y.shape}"
        return
    left, right = np.asarray(x.array), np.asarray(y.array)
    scale = 1 + np.max(np.abs(right[np.isfinite(right)]), initial=0)
    if not np.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
        ratio = np.median(left[right != 0] / right[right != 0]) if np.any(right != 0) else np.nan
        yield f"is wrong, {ratio:.3g} times what it should be"
