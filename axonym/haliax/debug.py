"""`haliax.debug`: drawings of shardings, and a check of modules for arrays that are reused or static."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..named._array import NamedArray, is_named_array
from ..report import visualize_shardings as visualize_shardings


class ModuleProblems(Exception):
    """What `diagnose_common_issues` found: arrays with the fields that share them, and static fields that hold one.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.debug.ModuleProblems([(None, ["a", "b"])], [])
        ModuleProblems('the fields a, b share an array')
    """

    def __init__(self, reused_arrays: Any = (), static_arrays: Any = ()) -> None:
        """Stores the paths of the fields."""
        self.reused_arrays = list(reused_arrays)
        self.static_arrays = list(static_arrays)
        parts = [f"the fields {', '.join(map(str, paths))} share an array" for _, paths in self.reused_arrays]
        parts += [f"the static field {path} holds an array" for path in self.static_arrays]
        super().__init__("; ".join(parts))

    def __bool__(self) -> bool:
        """Returns whether there is any problem."""
        return bool(self.reused_arrays or self.static_arrays)


def diagnose_common_issues(module: eqx.Module) -> None:
    """Raises `ModuleProblems` if two fields of a module share an array, or a static field holds one.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.debug.diagnose_common_issues(hax.nn.Linear.init(*hax.make_axes(a=2, b=3), key=jax.random.key(0)))
    """
    paths: dict[int, tuple[Any, list[str]]] = {}
    leaves = jax.tree_util.tree_flatten_with_path(module, is_leaf=is_named_array)[0]
    for path, leaf in leaves:
        array = leaf.array if is_named_array(leaf) else leaf
        if isinstance(array, jax.Array | np.ndarray):
            # The array is kept with its id, which another one could get after it.
            paths.setdefault(id(array), (array, []))[1].append(jax.tree_util.keystr(path))
    reused = [(array, fields) for array, fields in paths.values() if len(fields) > 1]
    problems = ModuleProblems(reused, list(_find_static_arrays(module)))
    if problems:
        raise problems


def _find_static_arrays(module: Any, path: str = "") -> Any:
    """Yields the paths of static fields that hold arrays."""
    for field in dataclasses.fields(module):
        value, name = getattr(module, field.name, None), f"{path}.{field.name}"
        if field.metadata.get("static"):
            leaves = jax.tree.leaves(value, is_leaf=is_named_array)
            if any(isinstance(leaf, NamedArray | jax.Array | np.ndarray) for leaf in leaves):
                yield name
        elif isinstance(value, eqx.Module):
            yield from _find_static_arrays(value, name)


def describe_array(arr: Any) -> str:
    """Returns the axes or the shape of an array, and its dtype.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.debug.describe_array(hax.ones({"i": 2}))
        "NamedArray(axes=(Axis(name='i', size=2),), dtype=float32)"
    """
    if is_named_array(arr):
        return f"NamedArray(axes={arr.axes}, dtype={arr.dtype})"
    return f"ndarray(shape={arr.shape}, dtype={arr.dtype})"


def visualize_named_sharding(axes: Any, sharding: Any) -> None:
    """Prints how an array with these axes is sharded.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        >>> hax.debug.visualize_named_sharding(hax.make_axes(i=2), sharding)  # doctest: +SKIP
    """
    shape = jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), np.float32, sharding=sharding)
    visualize_shardings(NamedArray(shape, axes))
