"""What a report says of one array: what an explanation says, the mesh axes it leaves unused, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ._explanation import LeafExplanation


@dataclass(frozen=True, slots=True)
class Padding:
    """A larger size of one dimension of an array, with which more mesh axes divide it or its spec fits.

    Attributes:
        dimension: Which dimension, counted from 0.
        size: Its size now.
        padded_size: The next size that the mesh axes divide.
        mesh_axes: All mesh axes that then divide the dimension.
        bytes_per_device: What each device then holds of the array, the padding included; where a spec is refused and
            fits with several paddings only, with all of them.

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

    It has all attributes of `LeafExplanation`; `error` lists what is wrong with its spec.

    Attributes:
        unused: The mesh axes that do not divide the array, each with the reason.
        padding: Larger sizes of its dimensions with which more mesh axes divide it, the best first; if its spec
            is refused, those that it needs to fit, all together.
        place: Where it is if that is not on the mesh of the report, as `"one device"`, `"the host"` or
            `"mesh (stage: 2)"`; None if it is there, or if its spec is given.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> weight = jax.ShapeDtypeStruct((8, 5), "float32")
        >>> leaf = analyzer.sharding_report(weight, P("data")).leaves[0]
        >>> leaf.bytes, leaf.bytes_per_device, leaf.unused["model"]
        (160, 40, "nothing asks for it; it could divide dimension 0 beside 'data'")
    """

    unused: Mapping[str, str] = field(default_factory=dict, hash=False)
    padding: tuple[Padding, ...] = ()
    place: str | None = None


def padding_shown(leaf: LeafReport, paddings: Sequence[Padding]) -> str:
    """Returns in words which dimensions of an array to pad, all of them together."""
    return " and ".join(_one_padding(leaf, one) for one in paddings)


def padding_choices(leaf: LeafReport) -> list[tuple[Padding, ...]]:
    """Returns the ways to pad an array: each size alone, or together all that a refused spec needs."""
    return [leaf.padding] if leaf.error and leaf.padding else [(one,) for one in leaf.padding]


def _one_padding(leaf: LeafReport, one: Padding) -> str:
    name = leaf.axes[one.dimension].name
    where = f"dimension {one.dimension}" if name is None else f"axis {name!r}"
    return f"{where} from {one.size} to {one.padded_size} for {' x '.join(map(repr, one.mesh_axes))}"
