"""The mapping in force: `axis_mapping`, and what named arrays ask of it through the seam in `named`."""

import contextlib
import functools
import threading
from types import TracebackType
from typing import Any, Self, cast

from jax.sharding import AxisType, NamedSharding

from ..named._ambient import context, get_entry_axes
from ..named._axis import Names
from .mapping._axis_mapping import AxisMapping, PhysicalAxisSpec, ResourceMapping, Uneven, current_mapping
from .sharding._placement import select_axis_type
from .sharding._shard import shard_array
from .specs._active_mesh import MeshLike, get_abstract_mesh
from .specs._resolve_spec import resolve_sharding, resolve_spec


class ActiveMapping:
    """A mapping as the value of the user context: it answers for the mesh in force where it is asked."""

    __slots__ = ("_hash", "mapping", "stored")

    def __init__(self, mapping: AxisMapping, stored: AxisMapping | None = None) -> None:
        self.mapping, self.stored = mapping, stored
        self._hash = hash((mapping, stored))  # which JAX asks for with each function that it looks up

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActiveMapping) and (self.mapping, self.stored) == (other.mapping, other.stored)

    def __hash__(self) -> int:
        return self._hash

    def constrain(self, array: Any, names: Names) -> Any:
        return shard_array(array, names, self.mapping)

    def gather(self, array: Any, names: Names) -> Any:
        mesh = None if self.stored is None or self.stored == self.mapping else get_abstract_mesh()
        if mesh is not None and AxisType.Auto in mesh.axis_types:
            # Said twice, because an Auto mesh knows no other way: the gathering starts here, from the slice of one
            # layer, and the gradient, constrained by both in turn, ends as parts, which need not be summed whole. On
            # Explicit meshes types say all that.
            with contextlib.suppress(ValueError):  # a part of a parameter need not fit the mesh as the whole does
                array = shard_array(array, names, cast(AxisMapping, self.stored))
        return self.constrain(array, names)

    def get_out_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        mesh = get_abstract_mesh()
        if mesh is None or AxisType.Explicit not in mesh.axis_types:
            return None
        return select_axis_type(resolve_sharding(names, sizes, self.mapping, mesh), AxisType.Explicit)

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        mesh = get_abstract_mesh()
        return () if mesh is None else _auto_axes(name, size, self.mapping, mesh)


@functools.lru_cache(maxsize=4096)
def _auto_axes(name: str, size: int, mapping: AxisMapping, mesh: MeshLike) -> tuple[str, ...]:
    """Returns the mesh axes of an axis that are Auto: JAX finds out about Explicit ones by itself."""
    (entry,) = resolve_spec((name,), (size,), mapping, mesh)
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return tuple(axis for axis in get_entry_axes(entry) if types[axis] == AxisType.Auto)


class _Entered(threading.local):
    """The context managers entered and not yet left, innermost last, of one thread."""

    def __init__(self) -> None:
        self.managers: list[Any] = []


class axis_mapping(contextlib.ContextDecorator):
    """Puts a mapping from axis names to mesh axes in force, for a `with` block or a decorated function.

    It holds for the current thread, can be entered again and nested; the inner one wins. It is part of every jit cache
    key: a compiled function is traced anew under another mapping and found again under the same one.

    Args:
        mapping: From names to mesh axes, one or several; None for a name leaves its axis undivided.
        merge: Whether entries of the mapping in force outside stay valid where this one says nothing.
        fallback: A sharding rule for plain arrays: a `ShardingRule`, or any hashable object whose `apply(array)` gives
            a `PartitionSpec`; see `AxisMapping`.
        uneven: What happens to an axis whose size the mesh does not divide: `"error"`, or `"replicate"` to leave
            it undivided.
        **entries: More entries, by keyword.

    Raises:
        TypeError: If a name or a mesh axis is not a string.
        ValueError: If an entry names a mesh axis twice.

    Example:
        >>> import axonym as nym
        >>> with nym.axis_mapping({"batch": "data"}):
        ...     with nym.axis_mapping(mlp="model", merge=True):
        ...         nym.current_mapping()
        AxisMapping({'batch': 'data', 'mlp': 'model'})
    """

    def __init__(
        self,
        mapping: ResourceMapping | None = None,
        *,
        merge: bool = False,
        fallback: Any = None,
        uneven: Uneven | None = None,
        **entries: PhysicalAxisSpec | None,
    ) -> None:
        """Checks the entries; see the class."""
        base = mapping if isinstance(mapping, AxisMapping) else AxisMapping(mapping)
        self._merge = merge
        self._fallback = base.fallback if fallback is None else fallback
        self._uneven: Uneven | None = base.uneven if uneven is None and base is mapping else uneven
        self._alone = base.merged(entries, fallback=self._fallback, uneven=self._uneven)
        self._entered = _Entered()

    def _mapping(self) -> AxisMapping:
        outer = current_mapping() if self._merge else None
        return self._alone if outer is None else outer.merged(self._alone, fallback=self._fallback, uneven=self._uneven)

    def __enter__(self) -> Self:
        """Puts the mapping in force."""
        entered = activate_mapping(self._mapping())
        entered.__enter__()
        self._entered.managers.append(entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Puts the outer mapping back in force."""
        self._entered.managers.pop().__exit__(kind, error, traceback)


def activate_mapping(mapping: AxisMapping, stored: AxisMapping | None = None) -> Any:
    """Returns a context manager that puts a mapping in force.

    Args:
        mapping: The mapping.
        stored: The mapping of parameters between their uses, if it is another one.
    """
    return context(ActiveMapping(mapping, stored))
