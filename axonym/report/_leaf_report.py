"""`LeafReport`: the explanation of an array, the mesh axes it does not use, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._explanation import LeafExplanation


@dataclass(frozen=True, slots=True)
class Padding:
    """A larger size of one dimension of an array, which can be sharded over more mesh axes or makes its spec valid.

    Attributes:
        dimension: The dimension, counted from 0.
        size: Its size now.
        padded_size: The next size that is divisible by the mesh axes.
        mesh_axes: All mesh axes that then shard the dimension.
        bytes_per_device: The bytes of the array on each device then, padding included; if an invalid spec needs
            several paddings, with all of them.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> table = jax.ShapeDtypeStruct((50257, 768), "float32")
        >>> analyzer.sharding_report(table, P(None, "data")).leaves[0].padding[0]
        Padding(dimension=0, size=50257, padded_size=50258, mesh_axes=('model',), bytes_per_device=19299072)
    """

    dimension: int
    size: int
    padded_size: int
    mesh_axes: tuple[str, ...]
    bytes_per_device: int


@dataclass(frozen=True, slots=True)
class LeafReport(LeafExplanation):
    """What an array of a tree costs on each device, why, and what would change that.

    It has all attributes of `LeafExplanation`; `error` lists the problems of its spec.

    Attributes:
        unused: The mesh axes that the array is not sharded over, each with the reason.
        padding: Larger sizes of its dimensions with which it can be sharded over more mesh axes, the best first; if
            its spec is invalid, the sizes that make it valid, all together.
        place: Where it is if that is not the mesh of the report, as `"one device"`, `"the host"` or
            `"mesh (stage: 2)"`; None if it is on that mesh, or if its spec is given.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = jax.ShapeDtypeStruct((8, 5), "float32")
        >>> leaf = analyzer.sharding_report(weight, P("data")).leaves[0]
        >>> leaf.bytes, leaf.bytes_per_device, leaf.unused["model"]
        (160, 40, "unused; it could shard dimension 0 along with 'data'")
    """

    unused: Mapping[str, str] = field(default_factory=dict, hash=False)
    padding: tuple[Padding, ...] = ()
    place: str | None = None


def format_paddings(leaf: LeafReport, paddings: Sequence[Padding]) -> str:
    """Returns in words which dimensions of an array to pad, all of them together."""
    return " and ".join(
        f"{_format_dimension(leaf, one.dimension)} from {one.size} to {one.padded_size} for "
        f"{' x '.join(map(repr, one.mesh_axes))}"
        for one in paddings
    )


def _format_dimension(leaf: LeafReport, at: int) -> str:
    name = leaf.axes[at].name
    return f"dimension {at}" if name is None else f"axis {name!r}"


def list_padding_choices(leaf: LeafReport) -> list[tuple[Padding, ...]]:
    """Returns the ways to pad an array: one dimension, or together all that an invalid spec needs."""
    return [leaf.padding] if leaf.error and leaf.padding else [(one,) for one in leaf.padding]
