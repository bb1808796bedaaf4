"""`AxisLayout`: which mesh axes shard the axis of each name, and the one function that turns names into a spec.

A layout comes from a mapping, or from the operands of an operation. One policy holds for both: an axis whose size its
mesh axes do not divide is an error, unless the layout replicates such axes; an axis of size 1 is replicated.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .._ground.errors import make_error
from .._ground.formats import format_axes
from ._axis import Names


MeshLike: TypeAlias = Mesh | AbstractMesh

MeshAxes: TypeAlias = Mapping[str, tuple[str, ...]]
"""The mesh axes over which the axis of each name is sharded."""


class AxisLayout(NamedTuple):
    """Which mesh axes shard the axis of each name.

    Attributes:
        mesh: The mesh; without one, sizes are not checked.
        entries: Pairs of a name and its mesh axes, the first varying slowest.
        uneven: What happens to an axis whose size is not divisible.
        source: What the layout was read from, which decides the remedies that errors name.
        reduced: The Explicit mesh axes over which the values are equal and gradients are added up.
        unreduced: The Explicit mesh axes over which the values are still to be added up.
    """

    mesh: MeshLike | None = None
    entries: tuple[tuple[str, tuple[str, ...]], ...] = ()
    uneven: Literal["error", "replicate"] = "error"
    source: Literal["mapping", "operands"] = "mapping"
    reduced: frozenset[str] = frozenset()
    unreduced: frozenset[str] = frozenset()

    @property
    def mesh_axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes of each name that has any."""
        return dict(self.entries)

    def list_mesh_axes(self, names: Names) -> tuple[str, ...]:
        """Returns all mesh axes over which these names are sharded."""
        mesh_axes = self.mesh_axes
        return tuple(axis for name in names for axis in mesh_axes.get(name, ()))

    def count_shards(self, names: Names) -> int:
        """Returns into how many shards these names divide an array."""
        return 1 if self.mesh is None else count_parts(self.list_mesh_axes(names), self.mesh)

    def assign(self, name: str, axes: tuple[str, ...]) -> "AxisLayout":
        """Returns the layout in which an axis is sharded over these mesh axes, and no other axis over any of them."""
        entries = []
        for other_name, other_axes in self.entries:
            free_axes = tuple(axis for axis in other_axes if axis not in axes)
            if other_name != name and free_axes:
                entries.append((other_name, free_axes))
        return self._replace(entries=(*entries, (name, axes)))

    def merge(self, other: "AxisLayout") -> "AxisLayout":
        """Returns the layout with the axes of both, without the mesh axes over which values are reduced or unreduced.

        Raises:
            ValueError: If they shard an axis differently, or are on different meshes.
        """
        if self.mesh is not None and other.mesh is not None and self.mesh.shape != other.mesh.shape:
            raise make_mesh_error(("an operand", self.mesh), ("another", other.mesh))
        mesh_axes = self.mesh_axes
        for name, axes in other.entries:
            if mesh_axes.setdefault(name, axes) != axes:
                raise make_error(
                    ValueError,
                    f"axis {name!r} is sharded over {format_axes(mesh_axes[name])} in one operand and "
                    f"over {format_axes(axes)} in another; {STATE_SHARDING}",
                )
        mesh = self.mesh if other.mesh is None else other.mesh
        return AxisLayout(mesh, tuple(mesh_axes.items()), self.uneven, self.source)

    def sharding(self, names: Names, sizes: Sequence[int | None] | None = None) -> NamedSharding:
        """Returns the sharding of an array with these names and sizes; see `spec`."""
        assert self.mesh is not None
        return NamedSharding(self.mesh, self.spec(names, sizes))

    def spec(self, names: Names, sizes: Sequence[int | None] | None = None) -> PartitionSpec:
        """Returns the spec of an array with these names and sizes.

        Args:
            names: The names of its axes; "" stands for an axis that is not sharded.
            sizes: Their sizes, None where a size is not known or known to fit.

        Raises:
            ValueError: If a size is not divisible by its mesh axes, or a mesh axis would shard two axes.
        """
        sizes = (None,) * len(names) if sizes is None else sizes
        mesh_axes = self.mesh_axes
        sharded_names: dict[str, str] = {}
        spec_entries: list[Any] = []
        for name, size in zip(names, sizes, strict=True):
            axes = mesh_axes.get(name, ())
            if not self._is_divisible(size, axes):
                if size != 1 and self.uneven == "error":
                    raise make_error(ValueError, self._describe_uneven(name, size, axes, names, sizes))
                axes = ()
            for axis in axes:
                if axis in sharded_names:
                    conflict = self._describe_conflict(axis, sharded_names[axis], name, names, sizes)
                    raise make_error(ValueError, conflict)
                sharded_names[axis] = name
            spec_entries.append(make_spec_entry(axes))
        return PartitionSpec(*spec_entries, reduced=self.reduced, unreduced=self.unreduced)

    def _is_divisible(self, size: int | None, axes: tuple[str, ...]) -> bool:
        if size is None or not axes:
            return True
        if self.mesh is None:  # then only an axis of size 1 is known to be too short for its shards
            return size != 1
        return size % count_parts(axes, self.mesh) == 0

    def _describe_uneven(
        self, name: str, size: int | None, axes: tuple[str, ...], names: Names, sizes: Sequence[int | None]
    ) -> str:
        assert self.mesh is not None
        problem = describe_uneven(f"axis {name!r}", size, axes, self.mesh)
        if self.source == "mapping":
            remedy = " (`round_axis_for_partitioning`), or replicate the axis with `uneven='replicate'`"
        else:
            remedy = f"; replicate the axis of the operands first, as with `shard(x, {{{name!r}: None}})`"
        return f"{problem}{remedy}{describe_array(names, sizes)}"

    def _describe_conflict(self, axis: str, first: str, second: str, names: Names, sizes: Sequence[int | None]) -> str:
        array = format_known_sizes(names, sizes)
        if self.source == "mapping":
            return (
                f"axes {first!r} and {second!r} of {array} are both mapped to mesh axis {axis!r}; map one of them to "
                "another mesh axis or to None"
            )
        return f"axes {first!r} and {second!r} of {array} are both sharded over mesh axis {axis!r}; {STATE_SHARDING}"


def read_layout(names: Names, array: Any) -> AxisLayout:
    """Returns how a plain array with these names is sharded over Explicit mesh axes; "" leaves an axis out.

    The layout of an array that is not sharded has no mesh.
    """
    sharding = jax.typeof(array).sharding
    spec = sharding.spec
    if not any(spec.partitions):
        return AxisLayout(source="operands", reduced=spec.reduced, unreduced=spec.unreduced)
    pairs = zip(names, spec.partitions, strict=True)
    entries = tuple((name, get_entry_axes(entry)) for name, entry in pairs if name and entry)
    return AxisLayout(sharding.mesh, entries, "error", "operands", spec.reduced, spec.unreduced)


STATE_SHARDING = "state the sharding of the result with `axis_mapping`, or `shard` one of the operands first"


def get_axes_of_type(mesh: MeshLike, kind: AxisType) -> tuple[str, ...]:
    """Returns the axes of a mesh that have a type."""
    return tuple(axis for axis, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True) if axis_type == kind)


def get_entry_axes(entry: Any) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec as a tuple."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def make_spec_entry(axes: tuple[str, ...]) -> Any:
    """Returns the entry of a spec for an axis that is sharded over these mesh axes."""
    if not axes:
        return None
    return axes[0] if len(axes) == 1 else axes


def count_parts(axes: Iterable[Any], mesh: MeshLike) -> int:
    """Returns into how many parts these mesh axes shard an axis."""
    return math.prod(mesh.shape[axis] for axis in axes)


def round_up(size: int, parts: int) -> int:
    """Returns the next size that is divisible by a number of parts."""
    return -(-size // parts) * parts


def format_mesh(mesh: MeshLike) -> str:
    """Returns the axes of a mesh with their sizes."""
    return format_axes(tuple(map(str, mesh.axis_names)), tuple(mesh.shape.values()))


def format_mesh_types(mesh: MeshLike) -> str:
    """Returns the axes of a mesh with their sizes and types."""
    if mesh.empty:
        return "no mesh"
    types = ", ".join(dict.fromkeys(kind.name for kind in mesh.axis_types))
    return f"{format_mesh(mesh)} of {types} axes"


def make_mesh_error(*places: tuple[str, MeshLike]) -> ValueError:
    """Makes the error for arrays, each with a label, that are on different meshes."""
    places_text = ", ".join(f"{label} on {format_mesh_types(mesh)}" for label, mesh in places)
    return make_error(
        ValueError, f"cannot compute on different meshes: {places_text}; move arrays to one of them with `shard`"
    )


def format_mesh_axes(axes: Iterable[Any], mesh: MeshLike) -> str:
    """Returns mesh axes with their sizes, as in `'data' of size 4 x 'model' of size 2`."""
    return " x ".join(f"{axis!r} of size {mesh.shape[axis]}" for axis in axes)


def describe_uneven(where: str, size: int | None, axes: Sequence[Any], mesh: MeshLike) -> str | None:
    """Returns the message for a size that is not divisible by its mesh axes; None if it is divisible or unknown."""
    parts = count_parts(axes, mesh)
    if size is None or size % parts == 0:
        return None
    return (
        f"{where} has size {size}, which is not divisible by mesh axis {format_mesh_axes(axes, mesh)}; "
        f"the next size that fits is {round_up(size, parts)}"
    )


def format_known_sizes(names: Names, sizes: Sequence[int | None]) -> str:
    """Formats names with their sizes, or alone if one of the sizes is not known."""
    return format_axes(names, None if None in sizes else sizes)  # pyright: ignore[reportArgumentType]


def describe_array(names: Names, sizes: Sequence[int | None]) -> str:
    """Returns the end of an error message about one axis that shows the array, if it has more axes."""
    return f"; the array is {format_known_sizes(names, sizes)}" if len(names) > 1 else ""
