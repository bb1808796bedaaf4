"""Mappings from axis names to mesh axes: the value that says how arrays are sharded, immutable and comparable.

Equal mappings are equal whatever the order or spelling of their entries, because the mapping in force is part of every
jit cache key.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ...named._ambient import context
from ...named._axis import format_value


PhysicalAxisSpec: TypeAlias = str | Sequence[str]
"""One mesh axis, or several that one array axis is divided over, the first varying slowest."""

ResourceMapping: TypeAlias = Mapping[str, PhysicalAxisSpec | None]
"""From names of array axes to mesh axes; None leaves an axis undivided."""

Uneven: TypeAlias = Literal["error", "replicate"]


class AxisMapping(Mapping[str, Any]):
    """Which mesh axes each named axis is divided over, and what to do where that says nothing or does not fit.

    Args:
        entries: From names of array axes to mesh axes; None leaves an axis undivided, which is the same as to leave it
            out, but says that it is meant.
        fallback: A sharding rule for plain arrays: a `ShardingRule`, which is asked for all those of a tree at once, or
            any other hashable object, whose `apply(array)` gives a `PartitionSpec` for one. Where it gives None an
            array stays where it is; where it gives `P()` the array is put on each device.
        uneven: What happens to an axis whose size the mesh does not divide: `"error"`, or `"replicate"` to leave
            it undivided.

    Raises:
        TypeError: If a name or a mesh axis is not a string, or the fallback is no rule or cannot be hashed.
        ValueError: If an entry names a mesh axis twice, or `uneven` is something else.

    Example:
        >>> from axonym.partitioning import AxisMapping
        >>> AxisMapping({"batch": "data", "mlp": ["model"]}) == AxisMapping({"mlp": "model", "batch": ("data",)})
        True
    """

    __slots__ = ("_axes", "_hash", "_undivided", "fallback", "uneven")

    fallback: Any
    uneven: Uneven

    def __init__(
        self,
        entries: ResourceMapping | None = None,
        *,
        fallback: Any = None,
        uneven: Uneven = "error",
    ) -> None:
        """Normalises the entries; see the class."""
        if uneven not in ("error", "replicate"):
            raise ValueError(f"`uneven` is 'error' or 'replicate', not {uneven!r}.")
        stated = {name: _mesh_axes(name, value) for name, value in _stated(entries).items()}
        axes = {name: value for name, value in stated.items() if value}
        keep = functools.partial(object.__setattr__, self)
        keep("_axes", axes)
        keep("_undivided", frozenset(stated) - frozenset(axes))
        keep("fallback", fallback)
        keep("uneven", uneven)
        keep("_hash", hash((frozenset(axes.items()), _checked_rule(fallback), uneven)))

    def mesh_axes(self, name: str) -> tuple[str, ...]:
        """Returns the mesh axes of a named axis, none if it is not mapped."""
        return self._axes.get(name, ())

    def knows(self, name: str) -> bool:
        """Tells whether a named axis has an entry, be it None."""
        return name in self._axes or name in self._undivided

    def merged(self, entries: ResourceMapping, *, fallback: Any = None, uneven: Uneven | None = None) -> "AxisMapping":
        """Returns this mapping with some entries replaced, or removed where they are None.

        Args:
            entries: The new entries.
            fallback: Another fallback rule; the one of this mapping if None.
            uneven: What else happens to uneven axes; as in this mapping if None.
        """
        return AxisMapping(
            {**_stated(self), **_stated(entries)},
            fallback=self.fallback if fallback is None else fallback,
            uneven=uneven or self.uneven,
        )

    def __getitem__(self, name: str) -> PhysicalAxisSpec:
        """Returns the mesh axis of a named axis, a tuple if there are several."""
        axes = self._axes[name]
        return axes[0] if len(axes) == 1 else axes

    def __iter__(self) -> Iterator[str]:
        """Runs over the names that are mapped."""
        return iter(self._axes)

    def __len__(self) -> int:
        """Returns how many names are mapped."""
        return len(self._axes)

    def __bool__(self) -> bool:
        """Tells whether the mapping says of anything where it goes."""
        return bool(self._axes) or self.fallback is not None

    def __eq__(self, other: object) -> bool:
        """Compares what the mappings say; a plain mapping is compared by its entries."""
        if isinstance(other, AxisMapping):
            return (self._axes, self.uneven) == (
                other._axes,
                other.uneven,
            ) and self.fallback == other.fallback
        return super().__eq__(other)

    def __hash__(self) -> int:
        """Returns a hash of what the mapping says."""
        return self._hash

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses: a mapping never changes."""
        raise AttributeError(f"An `AxisMapping` never changes, so {name!r} cannot be set; use `merged`.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what the mapping says; its hash is another one in another process."""
        return functools.partial(AxisMapping, fallback=self.fallback, uneven=self.uneven), (_stated(self),)

    def __repr__(self) -> str:
        """Shows the entries."""
        options = "" if self.fallback is None else f", fallback={self.fallback!r}"
        options += "" if self.uneven == "error" else f", uneven={self.uneven!r}"
        return f"AxisMapping({dict(self)}{options})"


def _checked_rule(rule: Any) -> Any:
    """Returns a fallback rule, or raises an error that says what one is."""
    if rule is not None and (isinstance(rule, type) or not callable(getattr(rule, "apply", None))):
        raise TypeError(
            "A `fallback` is a `ShardingRule`, or an object whose `apply(array)` gives a `PartitionSpec`, "
            f"not {format_value(rule)}."
        )
    try:
        hash(rule)
    except TypeError:
        raise TypeError(
            f"A `fallback` is part of the key of compiled functions, and a {type(rule).__name__} cannot be hashed; "
            "make it a frozen dataclass, say."
        ) from None
    return rule


def _stated(entries: ResourceMapping | None) -> dict[str, PhysicalAxisSpec | None]:
    """Returns entries as a dict, those that are None included."""
    if entries is not None and not isinstance(entries, Mapping):
        raise TypeError(
            f"A mapping is one from names to mesh axes, as {{'batch': 'data'}} is, not {format_value(entries)}."
        )
    undivided = entries._undivided if isinstance(entries, AxisMapping) else ()
    return {**dict.fromkeys(undivided), **(entries or {})}


def _mesh_axes(name: Any, value: Any) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise TypeError(f"A mapping goes from names of axes to mesh axes, {name!r} is not a name.")
    axes = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(axes, Sequence) or not all(isinstance(axis, str) for axis in axes):
        raise TypeError(f"Axis {name!r} is mapped to {value!r}; give a mesh axis, several of them, or None.")
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis {name!r} is mapped to {tuple(axes)}, which names a mesh axis twice")
    return tuple(axes)


def as_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Returns the mapping given, or the one in force if it is None."""
    if mapping is None:
        return current_mapping()
    return mapping if isinstance(mapping, AxisMapping) else AxisMapping(mapping)


def current_mapping() -> AxisMapping | None:
    """Returns the mapping in force in this thread, or None.

    Example:
        >>> import axonym as nym
        >>> nym.current_mapping() is None
        True
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_mapping()
        AxisMapping({'batch': 'data'})
    """
    ambient = context.value
    return None if ambient is None else ambient.mapping


def current_thread_local_mapping() -> AxisMapping | None:
    """Returns the mapping in force in this thread, or None: `current_mapping` under its older name.

    Example:
        >>> import axonym as nym
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_thread_local_mapping() == nym.current_mapping()
        True
    """
    return current_mapping()
