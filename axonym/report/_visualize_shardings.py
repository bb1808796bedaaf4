"""`visualize_shardings`: the arrays of a tree as a table, and a picture of the devices of each sharding."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from ..named._axis_layout import MeshLike
from ..partitioning._active_mesh import get_active_mesh
from ..partitioning._shard import get_own_sharding, pad_spec
from ._explain import find_common_mesh, list_arrays
from ._sharding_report import report_own_shardings


_MOST_SHARDED_AXES = 2  # that JAX draws


def visualize_shardings(tree: Any, mesh: MeshLike | None = None) -> None:
    """Prints how the arrays of a tree are sharded: the table of their report, and a picture of each sharding.

    The arrays are shown with their own shardings, whatever mapping is active. The pictures are those of
    `jax.debug.visualize_sharding`, with the sharded axes as rows and columns. Arrays without devices, such as shapes
    and traced ones, and those with more than two sharded axes have none. The pictures need rich, which
    `pip install axonym[report]` brings.

    Args:
        tree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays.
        mesh: The mesh of the report; None is the mesh of the arrays, or else the active mesh.

    Raises:
        ValueError: If rich is not installed.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> weight = nym.shard(nym.ones({"embed": 8, "mlp": 4}), {"embed": "data", "mlp": "model"}, mesh)
        >>> nym.visualize_shardings(weight)
        mesh (data: 4, model: 2), 8 devices; by the arrays' own shardings; 0.0% of the bytes unsharded; imbalance 1.00
        ...
        embed over data, mlp over model:
        ...
    """
    arrays = list_arrays(tree)
    if mesh is None:
        mesh = find_common_mesh(arrays) or get_active_mesh()
    print(report_own_shardings(tree, mesh))
    pictures: dict[tuple[str, Mesh], tuple[tuple[int, ...], NamedSharding]] = {}
    for array, info in arrays:
        sharding = get_own_sharding(array)
        if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
            continue
        names = info.names_of(array.shape)
        entries = pad_spec(sharding.spec, len(array.shape))
        sharded_dims = [dim for dim, entry in enumerate(entries) if entry]
        if not 1 <= len(sharded_dims) <= _MOST_SHARDED_AXES:
            continue
        labels: list[str] = []
        for dim in sharded_dims:
            axis = f"dimension {dim}" if names is None else names[dim]
            labels.append(f"{axis} over {entries[dim]}")
        shape = tuple(array.shape[dim] for dim in sharded_dims)
        spec = P(*(entries[dim] for dim in sharded_dims))
        pictures.setdefault((", ".join(labels), sharding.mesh), (shape, NamedSharding(sharding.mesh, spec)))
    for (label, _), (shape, sharding) in pictures.items():
        print(f"\n{label}:")
        jax.debug.visualize_sharding(shape, sharding)
