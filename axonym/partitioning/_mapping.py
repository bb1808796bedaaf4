"""Mappings from axis names to mesh axes, `AxisMapping`, and warnings of mistyped names in them.

Mappings compare equal whatever the order or spelling of their entries, because the active mapping is part of every jit
cache key. Names and mesh axes that look mistyped cause a warning.
"""

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jax.sharding import AbstractMesh, Mesh

from .._ground.caches import cached_plan
from .._ground.errors import find_stacklevel, make_error
from .._ground.formats import format_axes, format_value, suggest_name
from .._ground.similar_names import is_typo
from ..named._axis import Axis
from ..named._sharding import mapping_context


PhysicalAxisSpec: TypeAlias = str | Sequence[str]
"""One mesh axis, or several over which one array axis is sharded, the first varying slowest."""

ResourceMapping: TypeAlias = Mapping[str, PhysicalAxisSpec | None]
"""From names of array axes to mesh axes; None replicates an axis."""

Uneven: TypeAlias = Literal["error", "replicate"]


def check_uneven(uneven: Any) -> Uneven:
    if uneven not in ("error", "replicate"):
        raise make_error(ValueError, f"`uneven` is 'error' or 'replicate', not {uneven!r}.")
    return uneven


class AxisMapping(Mapping[str, Any]):
    """Which mesh axes each named axis is sharded over, and what happens to axes that are missing or do not fit.

    `mapping | {"pos": "context"}` is the mapping with an entry replaced. It keeps `fallback` and `uneven`, which
    a dict made of its entries does not have.

    Args:
        entries: From names of array axes to mesh axes; None replicates an axis, as does leaving it out, but states that
            this is intended.
        fallback: A sharding rule for plain arrays: a `ShardingRule`, which gets all plain arrays of a tree at once, or
            any other hashable object whose `apply(array)` returns a `PartitionSpec` for one array. Where the rule
            returns None an array stays where it is; where it returns `P()` the array is replicated on all devices.
        uneven: What happens to an axis whose size is not divisible by its mesh axes: `"error"`, or `"replicate"` to
            replicate it.

    Raises:
        TypeError: If a name or a mesh axis is not a string, or the fallback is not a rule or not hashable.
        ValueError: If an entry names a mesh axis twice, or `uneven` is something else.

    Example:
        >>> from axonym.partitioning import AxisMapping
        >>> AxisMapping({"batch": "data", "mlp": ["model"]}) == AxisMapping({"mlp": "model", "batch": ("data",)})
        True
        >>> AxisMapping({"batch": "data"}, uneven="replicate") | {"batch": None, "mlp": "model"}
        AxisMapping({'mlp': 'model'}, uneven='replicate')
    """

    __slots__ = ("_axes", "_hash", "_replicated", "fallback", "uneven")

    fallback: Any
    uneven: Uneven

    def __init__(
        self,
        entries: ResourceMapping | None = None,
        *,
        fallback: Any = None,
        uneven: Uneven = "error",
    ) -> None:
        check_uneven(uneven)
        mesh_axes = {name: _parse_mesh_axes(name, value) for name, value in _get_mapping_entries(entries).items()}
        axes = {name: value for name, value in mesh_axes.items() if value}
        _check_fallback(fallback)
        set_slot = functools.partial(object.__setattr__, self)  # `__setattr__` raises
        set_slot("_axes", axes)
        set_slot("_replicated", frozenset(mesh_axes) - frozenset(axes))
        set_slot("fallback", fallback)
        set_slot("uneven", uneven)
        set_slot("_hash", hash((frozenset(axes.items()), fallback, uneven)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of axes that have an entry, which may be None."""
        return *self._axes, *self._replicated

    def mesh_axes(self, name: str) -> tuple[str, ...]:
        """Returns the mesh axes of a named axis, none if it is not mapped."""
        return self._axes.get(name, ())

    def knows(self, name: str) -> bool:
        """Returns whether a named axis has an entry, which may be None."""
        return name in self._axes or name in self._replicated

    def merged(
        self,
        entries: ResourceMapping,
        *,
        fallback: Any = None,
        uneven: Uneven | None = None,
    ) -> "AxisMapping":
        """Returns this mapping with some entries replaced, or removed where they are None; `|` does so, too.

        Args:
            entries: The new entries.
            fallback: Another fallback rule; this mapping's rule if None.
            uneven: What happens to uneven axes; as in this mapping if None.
        """
        return AxisMapping(
            {**_get_mapping_entries(self), **_get_mapping_entries(entries)},
            fallback=self.fallback if fallback is None else fallback,
            uneven=uneven or self.uneven,
        )

    def __or__(self, entries: ResourceMapping) -> "AxisMapping":
        return self.merged(entries) if isinstance(entries, Mapping) else NotImplemented

    def __ror__(self, entries: ResourceMapping) -> "AxisMapping":
        return AxisMapping(entries).merged(self, fallback=self.fallback, uneven=self.uneven)

    def __getitem__(self, name: str) -> PhysicalAxisSpec:
        """Returns the mesh axis of a named axis, a tuple if there are several."""
        axes = self._axes[name]
        return axes[0] if len(axes) == 1 else axes

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __bool__(self) -> bool:
        """Returns whether the mapping shards anything."""
        return bool(self._axes) or self.fallback is not None

    def __eq__(self, other: object) -> bool:
        """Compares entries and options; a plain mapping is compared by its entries."""
        if isinstance(other, AxisMapping):
            return self._axes == other._axes and self.uneven == other.uneven and self.fallback == other.fallback
        return super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An `AxisMapping` never changes, so {name!r} cannot be set; use `merged`.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles entries and options, without the hash, which differs between processes."""
        make_mapping = functools.partial(AxisMapping, fallback=self.fallback, uneven=self.uneven)
        return make_mapping, (_get_mapping_entries(self),)

    def __repr__(self) -> str:
        options = "" if self.fallback is None else f", fallback={self.fallback!r}"
        options += "" if self.uneven == "error" else f", uneven={self.uneven!r}"
        return f"AxisMapping({dict(self)}{options})"


def _check_fallback(rule: Any) -> None:
    if rule is not None and (isinstance(rule, type) or not callable(getattr(rule, "apply", None))):
        raise make_error(
            TypeError,
            "A `fallback` is a `ShardingRule`, or an object whose `apply(array)` returns a `PartitionSpec`, "
            f"not {format_value(rule)}.",
        )
    try:
        hash(rule)
    except TypeError:
        raise make_error(
            TypeError,
            f"A `fallback` is part of the key of compiled functions, and a {type(rule).__name__} is not hashable; "
            "make it a frozen dataclass.",
        ) from None


def _get_mapping_entries(entries: ResourceMapping | None) -> dict[str, PhysicalAxisSpec | None]:
    """Returns entries as a dict, including those that are None."""
    if entries is not None and not isinstance(entries, Mapping):
        remedy = ""
        if isinstance(entries, Mesh | AbstractMesh):
            remedy = (
                "; set a mesh with `with jax.set_mesh(mesh):`, or pass it after the mapping, as in "
                "`shard(x, mapping, mesh)`"
            )
        raise make_error(
            TypeError,
            f"A mapping goes from names to mesh axes, such as {{'batch': 'data'}}, not "
            f"{format_value(entries)}{remedy}.",
        )
    replicated = entries._replicated if isinstance(entries, AxisMapping) else ()
    return {**dict.fromkeys(replicated), **(entries or {})}


def check_name(name: Any) -> None:
    if not isinstance(name, str):
        remedy = f"; use {name.name!r}" if isinstance(name, Axis) else ""
        raise make_error(
            TypeError, f"A mapping goes from names of axes to mesh axes, but {name!r} is not a name{remedy}."
        )


def _parse_mesh_axes(name: Any, value: Any) -> tuple[str, ...]:
    check_name(name)
    if value is None:
        return ()
    axes = (value,) if isinstance(value, str) else value
    if not isinstance(axes, Sequence) or not all(isinstance(axis, str) for axis in axes):
        remedy = "; set a mesh with `with jax.set_mesh(mesh):`" if isinstance(value, Mesh | AbstractMesh) else ""
        raise make_error(
            TypeError,
            f"Axis {name!r} is mapped to {format_value(value)}; give a mesh axis, several of them, or None{remedy}.",
        )
    if len(set(axes)) != len(axes):
        raise make_error(ValueError, f"axis {name!r} is mapped to {tuple(axes)}, which names a mesh axis twice")
    return tuple(axes)


def as_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Returns the given mapping, or the active mapping if it is None."""
    if mapping is None:
        return current_mapping()
    return mapping if isinstance(mapping, AxisMapping) else AxisMapping(mapping)


def current_mapping() -> AxisMapping | None:
    """Returns the active mapping of this thread, or None.

    Example:
        >>> import axonym as nym
        >>> nym.current_mapping() is None
        True
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_mapping()
        AxisMapping({'batch': 'data'})
    """
    ambient = mapping_context.value
    return None if ambient is None else ambient.mapping


def current_policy() -> Any:
    """Returns the policy of the active mapping of this thread, or None."""
    ambient = mapping_context.value
    return None if ambient is None else ambient.policy


def current_thread_local_mapping() -> AxisMapping | None:
    """Returns the active mapping of this thread, or None: `current_mapping` under its older name.

    Example:
        >>> import axonym as nym
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_thread_local_mapping() == nym.current_mapping()
        True
    """
    return current_mapping()


def warn_unknown_name(name: str, mapping: AxisMapping) -> None:
    """Warns if a name without an entry in a mapping looks like the name of an entry."""
    for entry in mapping:
        if is_typo(name, entry):
            warn_once(
                f"axis {name!r} is replicated: the mapping has no {name!r}, but has {entry!r}; correct the name, or "
                f"map {name!r} to None"
            )


def warn_unknown_mesh_axes(mapping: AxisMapping, mesh: Mesh | AbstractMesh) -> None:
    """Warns of entries whose mesh axes the mesh lacks, if they look mistyped: one mapping may serve several meshes."""
    for name in mapping:
        for axis in mapping.mesh_axes(name):
            if axis in mesh.axis_names:
                continue
            if name in mesh.axis_names:
                warn_once(
                    f"{describe_unknown_mesh_axis(name, axis, mesh)}, but it has {name!r}; a mapping goes from names "
                    f"to mesh axes: should {axis!r} be sharded over {name!r}?"
                )
            elif any(is_typo(axis, mesh_axis, 3) for mesh_axis in mesh.axis_names):
                warn_once(f"{describe_unknown_mesh_axis(name, axis, mesh)}{suggest_name(axis, mesh.axis_names)}")


def describe_unknown_mesh_axis(name: str, axis: str, mesh: Mesh | AbstractMesh) -> str:
    """Returns the message about an axis that is mapped to an unknown mesh axis."""
    sizes = format_axes(mesh.axis_names, tuple(mesh.shape.values()))
    return f"axis {name!r} is mapped to mesh axis {axis!r}, which the mesh {sizes} does not have"


@cached_plan
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=find_stacklevel())
