"""Mappings by argument and by result, and what to say of arguments that cannot go in where they are."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AxisType, Mesh
from jax.tree_util import keystr

from ..._jax_compat import is_tracing
from ...named._axis import format_axes
from ..mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping
from ..sharding._shard import shard_by_mapping, shard_leaves, shard_tree, skip_unmapped_leaves
from ..specs._active_mesh import get_active_mesh, require_mesh
from ..specs._leaves import Leaf, describe_leaves
from ._parameters import ArgumentKey, Parameters
from ._static_args import Plan


ResourceMappings: TypeAlias = ResourceMapping | Sequence[ResourceMapping | None]
"""One mapping for everything, or one for each argument or result, None for those that have none."""


_HINTS = ("Received incompatible devices", "context mesh", "Mesh for all inputs should be equal")


class Mappings:
    """The mapping of all arguments or results, or one of each.

    Args:
        given: A mapping, or a sequence of mappings and None.

    Raises:
        TypeError: If it is something else.
    """

    __slots__ = ("each", "every", "leaves_some", "only", "shards")

    def __init__(self, given: Any) -> None:
        """Normalises the mappings; see the class."""
        self.each: tuple[AxisMapping | None, ...] | None = None
        self.every = AxisMapping()
        if isinstance(given, list | tuple):
            self.each = tuple([None if one is None else as_mapping(one) for one in given])
        else:
            self.every = as_mapping(given) or AxisMapping()
        different = {one for one in self.each or (self.every,) if one is not None}
        self.only = different.pop() if len(different) == 1 else None  # the mapping of all that go by one
        self.shards = bool(self.every) or any(self.each or ())
        self.leaves_some = self.each is not None and None in self.each

    def arguments(self, parameters: Parameters, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Leaf]:
        """Returns what is known of each leaf of a call, the mapping of its argument included.

        Raises:
            ValueError: If there is no entry for one of the arguments by position.
        """
        if self.each is None:
            return parameters.leaves(args, kwargs)
        found: list[Leaf] = []
        for at, (name, value) in enumerate(parameters.arguments(args, kwargs)):
            place = at if at < len(args) else parameters.place(name)
            if place is not None and place >= len(self.each):
                raise ValueError(
                    f"`in_axis_resources` has {len(self.each)} entries, argument {name!r} is number {place + 1}; give "
                    "one for each argument by position, None for an argument that is left as it is"
                )
            found += _by(None if place is None else self.each[place], value, (ArgumentKey(name),))
        return found

    def check_number(self, parameters: Parameters) -> None:
        """Checks that there are not more mappings than arguments by position.

        Raises:
            ValueError: If there are.
        """
        most = len(parameters.positional)
        if len(self.each or ()) > most and not parameters.any_position:
            raise ValueError(
                f"`in_axis_resources` has {len(self.each or ())} entries; the function takes {most} arguments by "
                f"position: {', '.join(parameters.positional)}"
            )

    def placed(self, leaves: list[Any], plan: Plan, purpose: str) -> list[Any]:
        """Returns the leaves of a call where they have to be; most calls find all of them there.

        Raises:
            ValueError: If there is no mesh and a mapping, or a leaf cannot be sharded so.
        """
        mesh, described = require_mesh(purpose) if self.shards else get_active_mesh(), plan.described or []
        if not isinstance(mesh, Mesh):  # traced arrays are constrained, and do not tell where they lie
            return shard_leaves(leaves, described, self.every, mesh)
        found = mesh, [getattr(leaf, "shape", None) for leaf in leaves], [getattr(x, "sharding", None) for x in leaves]
        if plan.in_place == found:
            return leaves
        result = shard_leaves(leaves, described, self.every, mesh)
        if result is leaves and not self._asks_a_rule(described):
            plan.in_place = found
        return result

    def _asks_a_rule(self, described: Sequence[Leaf]) -> bool:
        """Tells whether a fallback rule is asked about one of these leaves, which may look at more than its shape."""
        mappings = {self.every, *(leaf.mapping for leaf in described)}
        return any(one is not None and one.fallback is not None for one in mappings)

    def results(self, result: Any, other: AxisMapping | None, name: str) -> Any:
        """Returns the result of a function, each part by its mapping, by another one where it has none.

        Raises:
            ValueError: If there are more or fewer mappings than results.
        """
        if self.each is None:
            return shard_tree(result, self.every)
        if not isinstance(result, tuple | list) or len(result) != len(self.each):
            several = isinstance(result, tuple | list)
            what = f"{len(result)} results" if several else f"one result, a {type(result).__name__}"
            raise ValueError(
                f"`out_axis_resources` has {len(self.each)} entries, and `{name}` returns {what}; give one mapping for "
                "all, or as many as there are results"
            )
        pairs = zip(result, self.each, strict=True)
        parts = [shard_by_mapping(part, other if own is None else own) for part, own in pairs]
        return jax.tree.unflatten(jax.tree.structure(result, is_leaf=lambda x: x is not result), parts)


def _by(mapping: AxisMapping | None, value: Any, path: tuple[Any, ...]) -> list[Leaf]:
    """Returns what is known of the leaves of an argument that goes by a mapping, or stays as it is if that is None."""
    leaves = describe_leaves(value, path, mapping)
    return skip_unmapped_leaves(leaves) if mapping is None else leaves


def misplaced(
    error: Exception, name: str, described: Sequence[Leaf], call: Any, mappings: Mappings | None
) -> ValueError | None:
    """Returns the error for an argument that is on other devices than the mesh, or than the first argument.

    Args:
        error: What JAX said.
        name: What the function is called.
        described: What is known of the leaves of the call.
        call: The arguments as they were passed on.
        mappings: The mappings for arguments, None if they are not sharded on entry.

    Returns:
        None if JAX said something else, or all arguments are where they have to be.
    """
    if not any(hint in str(error) for hint in _HINTS) or is_tracing():
        return None
    mesh, pairs = get_active_mesh(), zip(described, jax.tree.leaves(call), strict=True)
    committed = [(about, leaf) for about, leaf in pairs if isinstance(leaf, jax.Array) and leaf.committed]
    for about, leaf in committed:
        expected = mesh if isinstance(mesh, Mesh) else committed[0][1].sharding
        if _fits(leaf.sharding, expected):
            continue
        first = f"{keystr(committed[0][0].path)} is on {_shown_place(expected)}, and no mesh is in force"
        return ValueError(
            f"`{name}`: {keystr(about.path)}, {leaf.dtype}{list(leaf.shape)}, is on {_shown_place(leaf.sharding)}; "
            f"{f'the mesh in force is {_shown_mesh(mesh)}' if isinstance(mesh, Mesh) else first}; "
            f"{_remedy(about, mesh, mappings is not None)}"
        )
    return None


def _remedy(about: Leaf, mesh: Any, moves: bool) -> str:
    if mesh is None:
        return "move one of them with `jax.device_put`, or set a mesh with `jax.set_mesh` and `shard` them"
    if about.names is not None:
        return "move it with `shard`, or let `in_axis_resources` do that at each call"
    without = "it has no names, so `in_axis_resources` leaves it; " if moves else ""
    return f"{without}move it with `jax.device_put`, to `NamedSharding(mesh, P())` if it is to be whole on each device"


def _fits(sharding: Any, expected: Any) -> bool:
    """Tells whether an array with this sharding can go in where the mesh, or the sharding of another, is expected."""
    one, other = _mesh(sharding), _mesh(expected)
    if (
        one is not None
        and other is not None
        and one != other
        and AxisType.Explicit in (*one.axis_types, *other.axis_types)
    ):
        return False
    return _devices(sharding) == _devices(expected)


def _mesh(place: Any) -> Mesh | None:
    return place if isinstance(place, Mesh) else getattr(place, "mesh", None)


def _devices(place: Any) -> tuple[Any, ...]:
    mesh = _mesh(place)
    return tuple(place.device_set) if mesh is None else tuple(mesh.devices.flat)


def _shown_place(sharding: Any) -> str:
    mesh = _mesh(sharding)
    if mesh is not None:
        return f"the mesh {_shown_mesh(mesh)}"
    devices = sorted(f"{device.platform}:{device.id}" for device in sharding.device_set)
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {', '.join(devices)}"


def _shown_mesh(mesh: Mesh) -> str:
    """Shows the axes of a mesh, their types and the devices, in order."""
    ids = [device.id for device in mesh.devices.flat]
    types = ", ".join(dict.fromkeys(kind.name for kind in mesh.axis_types))
    shown = str(ids) if len(ids) <= 8 else f"[{ids[0]}, {ids[1]}, ..., {ids[-1]}]"
    return f"{format_axes(mesh.axis_names, tuple(mesh.shape.values()))} of {types} axes and devices {shown}"
