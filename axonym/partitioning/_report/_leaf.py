"""What a report says of one array: what an explanation says, the mesh axes it leaves unused, and what would help."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._explanation import LeafExplanation


@dataclass(frozen=True, slots=True)
class Padding:
    """A larger size of one dimension of an array with which more mesh axes divide it.

    Attributes:
        dimension: Which dimension, counted from 0.
        size: Its size now.
        padded_size: The next size that the mesh axes divide.
        mesh_axes: All mesh axes that then divide the dimension.
        bytes_per_device: What each device then holds of the array, the padding included.

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
        padding: Larger sizes of its dimensions with which more mesh axes divide it, the best first.

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
