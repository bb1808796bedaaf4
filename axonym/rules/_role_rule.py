"""`RoleShardingRule`: arrays sharded by their role in the model, which is found from their paths and sizes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from ..named._axis_layout import get_entry_axes, make_spec_entry
from ..partitioning._active_mesh import MeshLike, check_mesh, check_mesh_axes, format_mesh
from ._best_spec import MeshAxes, find_best_spec, get_usable_axes
from ._layer_roles import Layout, find_layouts
from ._sharding_rule import BuiltInRule, Decision, HasMesh, RuleTree, check_integer, parse_axis_names


_AXIS_NAMES = {
    "tensor": ("tp", "tensor", "model", "mp", "mdl", "tensor_parallel"),
    "expert": ("ep", "expert", "experts", "expert_parallel"),
    "fsdp": ("fsdp", "data", "dp", "zero", "batch", "replica"),
}
"""Names of mesh axes from which their role follows."""

_ROLE_OPTIONS = ("tensor", "fsdp", "expert", "batch")

_VECTOR_ROLES = ("norm", "bias", "vector")
_LARGEST_REPLICATED = 2**15  # elements of one layer's norm, bias or vector


@dataclasses.dataclass(frozen=True, repr=False)
class RoleShardingRule(HasMesh, BuiltInRule):
    """Shards each array by its role in the model, so that layers fit together and devices exchange little.

    A layer that widens (a *column*: queries, keys, values, the first matrices of an MLP) has its output sharded over
    the tensor axis, the layer after it (a *row*) its input, as in Megatron-LM (Shoeybi et al., 2019, arXiv:1909.08053),
    so that the activations between them are never moved. The other dimension of both is sharded over the FSDP axis
    (Rajbhandari et al., 2020, arXiv:1910.02054).

    | role | input or only dimension | output |
    |---|---|---|
    | `column`, `head`, `conv` | FSDP | tensor |
    | `row` | tensor | FSDP |
    | `embedding` of a tree with a `head` | vocabulary: FSDP | width: tensor |
    | `embedding` that is the head as well | width: FSDP | vocabulary: tensor |
    | `expert column`, `expert row` | as column and row; experts: expert axis | |
    | `router` | all | |
    | `position`, large `norm`, `bias`, `vector` | all, on the last dimension | |

    Memory comes first: an array is always sharded into as many parts as its sizes and the mesh allow. Of the specs that
    do so, the rule uses the spec with most mesh axes where the role wants them. So a vocabulary of 50257, which is
    not divisible by any mesh axis, leaves its table to be sharded along the width by all of them. Where several mesh
    axes shard one dimension of a matrix, the tensor axis comes first: gathering the shards over the others leaves what
    it needs. It comes last in a vector, so that compilers do not shard activations by it. A table of tokens is sharded
    the other way round if the tree has a head too and the FSDP axis has more parts than the tensor axis: all tokens are
    looked up in each part of the vocabulary, so the width should have more parts.

    Norms, biases and vectors of up to 32768 elements in each layer are replicated, as each sharded one has to be
    gathered; the bias of a column, a head or a filter is sharded like its output, over the tensor axis alone.

    The role follows from the names in the path, those of Flax, Equinox and Hugging Face among them. Layers with plain
    names (`Dense_0`, `layers[1]` of an `eqx.nn.MLP`) are columns and rows in turn where several follow one another; a
    single one is a row if its output is smaller than its input. How a matrix is stored follows from its name (`kernel`
    is (in, out)), the size of its bias (equal to the output), the width of the model (the size of the nearest norms, or
    the most frequent size of matrices), then from the layers around it; otherwise `weight` is (out, in) and all else
    (in, out).

    Layers stacked for `jax.lax.scan` have more dimensions than their role needs: a matrix more than two, or three if it
    is one of stacked experts or keeps attention heads apart (the shapes of query and output then have those in common);
    a norm or a bias more than one. The leading ones are replicated if that costs no memory, and at any cost if they are
    proved to be stacked layers: by norms or a bias with the same, or a path through `layers`, `blocks` or `h` without a
    number. Layers stacked along the second dimension are recognised by norms that begin with the width.

    The spec of an array depends on its layer and those around it; on the rest of the tree only in whether there is a
    head, so apply the rule to a table of tokens together with the head.

    Arrays of unknown role (two dimensions or more, and a name without meaning) are sharded by memory alone, as by
    `AutoShardingRule`; `decide` returns None for these, so that a composite asks its next rule.

    Args:
        mesh: The mesh, with devices or abstract; the active mesh when the rule is applied if None.
        tensor: The mesh axis of tensor parallelism, or several. If None, those named `tp`, `tensor`, `model`, `mp`,
            `mdl` or `tensor_parallel`.
        fsdp: The mesh axis that weights are sharded over otherwise, or several. If None, all that have no other role;
            if given, axes without a role are not used.
        expert: The mesh axis of experts, or several; it shards other arrays as the FSDP axis does. If None, those
            named `ep`, `expert`, `experts` or `expert_parallel`.
        batch: Mesh axes that shard no parameters.
        min_shard_size: Arrays with fewer elements are replicated; the number of devices if None.

    Raises:
        TypeError: If an argument is not a name or a list of names, or `mesh` is not a mesh.
        ValueError: If a mesh axis has two roles, the mesh does not have it, or `min_shard_size` is negative.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> block = {"q_proj": jnp.ones((16, 16)), "o_proj": jnp.ones((16, 16)), "norm": jnp.ones(16)}
        >>> rule = nym.RoleShardingRule(nym.create_mesh((4, 2), ("data", "model")))
        >>> rule.roles(block)
        {'norm': 'norm', 'o_proj': 'row', 'q_proj': 'column'}
        >>> rule.apply(block)
        {'norm': P(), 'o_proj': P('model', 'data'), 'q_proj': P('data', 'model')}
    """

    mesh: MeshLike | None = None
    _: dataclasses.KW_ONLY
    tensor: str | Sequence[str] | None = None
    fsdp: str | Sequence[str] | None = None
    expert: str | Sequence[str] | None = None
    batch: str | Sequence[str] = ()
    min_shard_size: int | None = None

    def __post_init__(self) -> None:
        mesh, roles = check_mesh(self.mesh), dict[str, str]()
        if self.min_shard_size is not None:
            self._set_options(min_shard_size=check_integer(self.min_shard_size, "min_shard_size"))
        for role in _ROLE_OPTIONS:
            names = getattr(self, role)
            if names is not None:
                names = parse_axis_names(names, role)
                self._set_options(**{role: names})
            for name in names or ():
                if name in roles:
                    raise ValueError(
                        f"mesh axis {name!r} is given as `{roles[name]}` and as `{role}`; a mesh axis has one role"
                    )
                roles[name] = role
        if mesh is not None:
            check_mesh_axes(mesh, roles)

    def roles(self, pytree: Any) -> Any:
        """Returns the role that each array of a tree has; no mesh is needed.

        Args:
            pytree: Any tree; named arrays count as one leaf each.

        Returns:
            The tree with a string in place of each leaf: a role of the table of the class, with `"stacked "` before
            the role of stacked layers, `"scalar"`, `"unknown"`, or `"static"` for other leaves.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> layers = {"up_proj": jnp.ones((3, 16, 64)), "down_proj": jnp.ones((3, 64, 16))}
            >>> nym.RoleShardingRule().roles({"layers": layers, "filter": jnp.ones((4, 4)), "depth": 3})
            {'depth': 'static', 'filter': 'unknown', 'layers': {'down_proj': 'stacked row', 'up_proj': ...}}
        """
        tree = RuleTree.from_tree(pytree)
        pairs = zip(tree.leaves, find_layouts(tree.leaves), strict=True)
        return tree.fill("static" if leaf.shape is None else _format_role(layout) for leaf, layout in pairs)

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        mesh = self._resolve_mesh(mesh)
        axes, by_role = self._assign_roles(mesh)
        min_elements = mesh.size if self.min_shard_size is None else self.min_shard_size
        decisions: list[Decision] = []
        for leaf, layout in zip(tree.leaves, find_layouts(tree.leaves), strict=True):
            shape = leaf.shape
            if shape is None:
                spec, reason = P(), ""
            elif math.prod(shape) < min_elements:
                spec, reason = P(), f"`{type(self).__name__}`: the rule to replicate fewer than {min_elements} elements"
            else:
                spec = _choose_role_spec(shape, layout, axes, by_role)
                basis = "its sizes, as its role is unknown" if layout is None else f"the role '{_format_role(layout)}'"
                reason = f"`{type(self).__name__}`: {basis}"
            decisions.append(Decision(spec, reason, mesh=mesh, is_final=layout is not None))
        return decisions

    def _assign_roles(self, mesh: MeshLike) -> tuple[MeshAxes, dict[str, tuple[str, ...]]]:
        """Returns the mesh axes that shard something, and the names of the mesh axes of each role."""
        given_roles = {name: role for role in _ROLE_OPTIONS for name in getattr(self, role) or ()}
        check_mesh_axes(mesh, given_roles)
        axes = [axis for axis in get_usable_axes(mesh) if given_roles.get(axis[0]) != "batch"]
        by_name = {name: role for role, names in _AXIS_NAMES.items() if getattr(self, role) is None for name in names}
        axis_roles = {name: given_roles.get(name) or by_name.get(name) for name, _ in axes}
        if axes and not {*given_roles.values()} - {"batch"} and not any(axis_roles.values()):
            small = [repr(name) for name in mesh.axis_names if mesh.shape[name] == 1 and name in by_name]
            exception_text = f"except {', '.join(small)} of size 1, " if small else ""
            raise ValueError(
                f"no axis of mesh {format_mesh(mesh)} has a name from which its role follows, {exception_text}such as "
                "'tp' or 'fsdp'; pass `tensor=` or `fsdp=` with the mesh axes for each"
            )
        default = "fsdp" if self.fsdp is None else None
        roles = {name: role or default for name, role in axis_roles.items()}
        used = tuple(axis for axis in axes if roles[axis[0]])
        return used, {role: tuple(name for name, _ in used if roles[name] == role) for role in _AXIS_NAMES}


def _format_role(layout: Layout | None) -> str:
    if layout is None:
        return "unknown"
    return f"stacked {layout.role}" if layout.stacked else layout.role


def _choose_role_spec(
    shape: tuple[int, ...], layout: Layout | None, axes: MeshAxes, by_role: dict[str, tuple[str, ...]]
) -> P:
    """Returns the spec of an array: among those with the most parts, the nearest to what its role wants."""
    if layout is None:
        return find_best_spec(shape, axes, order=tuple(sorted(range(len(shape)), key=lambda dim: (-shape[dim], dim))))
    if layout.role in _VECTOR_ROLES and layout.experts is None and layout.count_elements(shape) <= _LARGEST_REPLICATED:
        names = by_role["tensor"] if layout.bias_of in ("column", "head", "conv") else ()
        other_dims = frozenset(range(len(shape))) - {layout.outputs}
        return find_best_spec(shape, tuple(axis for axis in axes if axis[0] in names), replicated=other_dims)
    places = _place_roles(layout, axes, by_role)
    wanted_dims = tuple((name, places[role]) for role, names in by_role.items() for name in names)
    stacked = frozenset(layout.stacked)
    spec = find_best_spec(shape, axes, wanted_dims=wanted_dims, replicated=stacked)
    # Other leading dimensions and the features of a head are replicated where that costs no parts.
    leading = stacked | frozenset(layout.leading)
    head_size = frozenset() if layout.head_size is None else frozenset({layout.head_size})
    for replicated in (leading | head_size, leading):
        candidate = find_best_spec(shape, axes, wanted_dims=wanted_dims, replicated=replicated)
        if _count_parts(candidate, axes) == _count_parts(spec, axes):
            spec = candidate
            break
    # On one dimension the tensor axis comes first in a matrix and last in a vector: see the docstring of the rule.
    order = {name: (name in by_role["tensor"]) == (layout.role in _VECTOR_ROLES) for name, _ in axes}
    return P(*(make_spec_entry(tuple(sorted(get_entry_axes(entry), key=order.__getitem__))) for entry in spec))


def _place_roles(layout: Layout, axes: MeshAxes, by_role: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Returns the dimension that the mesh axes of each role should shard."""
    tensor, fsdp = layout.outputs, layout.inputs
    if layout.role in ("row", "expert row"):
        tensor, fsdp = fsdp, tensor
    elif layout.role == "router":
        tensor = fsdp
    # All tokens are looked up in each part of the vocabulary, so the width of a table gets the more parts.
    parts = {role: math.prod(dict(axes)[name] for name in names) for role, names in by_role.items()}
    if layout.role == "embedding" and fsdp < tensor and parts["tensor"] < parts["fsdp"] * parts["expert"]:
        tensor, fsdp = fsdp, tensor
    return {"tensor": tensor, "fsdp": fsdp, "expert": fsdp if layout.experts is None else layout.experts}


def _count_parts(spec: P, axes: MeshAxes) -> int:
    return math.prod(dict(axes)[name] for entry in spec for name in get_entry_axes(entry))
