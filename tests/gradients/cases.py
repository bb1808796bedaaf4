"""Functions of named arrays with their arguments, whose gradients are compared on meshes and on one device."""

import functools
from collections.abc import Callable, Iterator, Sequence
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


def find_differences(cases: list[Case], axis_types: Sequence[AxisType]) -> list[str]:
    """Returns where results or gradients on meshes differ from those on one device, for each case and mapping."""
    arguments = [case.make_arguments() for case in cases]

    def compute_on_device(arguments: list[Any]) -> list[Any]:
        return [compute(*pair) for pair in zip(cases, arguments, strict=True)]

    expected = jax.device_get(jax.jit(compute_on_device)(arguments))
    problems = []
    for axis_type in axis_types:
        mesh = jax.make_mesh((2, 2, 2), ("data", "model", "unused"), axis_types=(axis_type,) * 3)
        with jax.set_mesh(mesh):
            problems += [f"{axis_type.name}: {problem}" for problem in _find_differences(cases, arguments, expected)]
    return problems


def _find_differences(cases: list[Case], arguments: list[Any], expected: list[Any]) -> list[str]:
    """Computes all cases by all their mappings in one program."""
    problems: list[str] = []
    placements = [(number, mapping) for number, case in enumerate(cases) for mapping in list_mappings(case)]

    def compute_mapped(number: int, mapping: nym.AxisMapping, values: list[Any]) -> Any:
        try:
            with nym.axis_mapping(mapping):
                return compute(cases[number], values)
        except Exception as error:
            problems.append(f"{cases[number]} by {mapping}: {type(error).__name__}: {error}")

    def compute_on_mesh(arguments: list[Any]) -> list[Any]:
        return [compute_mapped(*placement, values) for placement, values in zip(placements, arguments, strict=True)]

    sharded = [nym.shard(arguments[number], mapping) for number, mapping in placements]
    found = jax.device_get(jax.jit(compute_on_mesh)(sharded))
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
