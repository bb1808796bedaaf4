"""`RoleShardingRule`: arrays divided by their part in the model, which is read from their paths and sizes."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from ...named._ambient import get_entry_axes
from ...named._axis import format_axes
from ..specs._resolve_spec import MeshLike, make_spec_entry
from ._assignment import MeshAxes, best_spec
from ._role_layout import Arrays, Layout
from ._rule_options import OnAMesh, checked_mesh, whole_number
from ._sharding_rule import (
    ShardingRule,
    check_mesh_axes,
    flatten_for_rule,
    get_array_shape,
    get_usable_axes,
    parse_axis_names,
)


TENSOR = ("tp", "tensor", "model", "mp", "mdl", "tensor_parallel")
FSDP = ("fsdp", "data", "dp", "zero", "batch", "replica")
EXPERT = ("ep", "expert", "experts", "expert_parallel")
VECTORS = ("norm", "bias", "vector")
LARGEST_WHOLE = 2**15


@dataclasses.dataclass(frozen=True, repr=False)
class RoleShardingRule(OnAMesh, ShardingRule):
    """Divides each array by its role in the model, so that layers fit together and devices exchange little.

    A layer that widens (a *column*: queries, keys, values, the first matrices of an MLP) has its output divided by the
    tensor axis, the layer after it (a *row*) its input, as in Megatron-LM (Shoeybi et al., 2019, arXiv:1909.08053), so
    that what is between them is never moved. The other dimension of both is divided by the FSDP axis (Rajbhandari et
    al., 2020, arXiv:1910.02054).

    | role | input or only dimension | output |
    |---|---|---|
    | `column`, `head`, `conv` | FSDP | tensor |
    | `row` | tensor | FSDP |
    | `embedding` of a tree with a `head` | vocabulary: FSDP | width: tensor |
    | `embedding` that is the head as well | width: FSDP | vocabulary: tensor |
    | `expert column`, `expert row` | as column and row; experts: expert axis | |
    | `router` | all | |
    | `position`, large `norm`, `bias`, `vector` | all, on the last dimension | |

    Memory comes first: an array is always divided into as many parts as its sizes and the mesh allow. Of the ways that
    do, the one is taken that puts most mesh axes where the role wants them. So a vocabulary of 50257, which no mesh
    axis divides, leaves its table to be divided along the width by all of them. Where several mesh axes divide one
    dimension of a matrix, the tensor axis comes first: to gather the parts of the others leaves what it wants. It comes
    last in a vector, so that compilers do not divide activations by it. A table of tokens with a head beside it is
    divided the other way round if the FSDP axis has more parts than the tensor axis: all tokens are looked up in each
    part of the vocabulary, so the width is what should have more parts.

    Norms, biases and vectors of up to 32768 elements in each layer stay whole, as each that is divided has to be
    gathered; the bias of a column, a head or a filter is divided as its output is, by the tensor axis alone.

    The role is read from the names in the path, those of Flax, Equinox and Hugging Face among them. Layers with plain
    names (`Dense_0`, `layers[1]` of an `eqx.nn.MLP`) are columns and rows in turn where several follow one another,
    because each takes what the one before it gives; one alone is a row if it makes its input smaller. How a matrix is
    stored is seen from its name (`kernel` is (in, out)), the size of its bias (that of the output), the width of the
    model (the size of the nearest norms, or the one most matrices have), then from the layers around it; if nothing
    tells, `weight` is (out, in) and all else (in, out).

    Layers stacked for `jax.lax.scan` have more dimensions than their role needs: a matrix more than two, or three if it
    is one of stacked experts or keeps attention heads apart (the shapes of query and output then have those in common);
    a norm or a bias more than one. Those in front are left whole if that costs no memory, and whatever it costs if they
    are proved to be stacked layers: by norms or a bias with the same, or a path through `layers`, `blocks` or `h`
    without a number. Layers stacked along the second dimension are told by norms that begin with the width.

    What is said of an array depends on its layer and those around it; on the rest of the tree only in whether there is
    a head, so apply the rule to a table of tokens together with the head.

    Arrays of unknown role (two dimensions or more, and a name that says nothing) are divided by memory alone, as by
    `AutoShardingRule`; `decide` says None for these, so that a composite goes on to its next rule.

    Args:
        mesh: The mesh, with devices or abstract; the one in force when the rule is applied if None.
        tensor: The mesh axis of tensor parallelism, or several. If None, those named `tp`, `tensor`, `model`, `mp`,
            `mdl` or `tensor_parallel`.
        fsdp: The mesh axis that weights are divided over otherwise, or several. If None, all that have no other role;
            if given, those of no role divide nothing.
        expert: The mesh axis of experts, or several; it divides other arrays as the FSDP axis does. If None, those
            named `ep`, `expert`, `experts` or `expert_parallel`.
        batch: Mesh axes that divide no parameters.
        min_shard_size: Arrays with fewer elements stay whole; the number of devices if None.

    Attributes:
        mesh: The mesh to shard across, None for the one in force.
        tensor: The mesh axes given for tensor parallelism, as a tuple, None if they are told by name.
        fsdp: The mesh axes given for weights, in the same way.
        expert: The mesh axes given for experts, in the same way.
        batch: The mesh axes that divide no parameters.
        min_shard_size: The fewest elements that an array is divided with, None for the number of devices.

    Raises:
        TypeError: If an argument is no name and no list of names, or `mesh` is no mesh.
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
    _sees_shapes_alone = True

    def __post_init__(self) -> None:
        """Checks the options; see the class."""
        mesh, owners = checked_mesh(self.mesh), dict[str, str]()
        if self.min_shard_size is not None:
            self._keep(min_shard_size=whole_number(self.min_shard_size, "min_shard_size"))
        for role in ("tensor", "fsdp", "expert", "batch"):
            names = getattr(self, role)
            if names is not None:
                names = parse_axis_names(names, role)
                self._keep(**{role: names})
            for name in names or ():
                if name in owners:
                    raise ValueError(
                        f"mesh axis {name!r} is given as `{owners[name]}` and as `{role}`; a mesh axis has one role"
                    )
                owners[name] = role
        if mesh is not None:
            check_mesh_axes(mesh, tuple(owners))

    def apply(self, pytree: Any) -> Any:
        """Chooses a spec for each array of a tree.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf: with one entry for each axis where an array is
            divided, empty for other leaves.

        Raises:
            ValueError: If there is no mesh, the one in force lacks one of the axes, or no axis has a known role.
        """
        return self._specs(pytree, known_alone=False)

    def decide(self, pytree: Any) -> Any:
        """Returns the same as `apply`, but None for arrays of unknown role and for leaves that are no arrays."""
        return self._specs(pytree, known_alone=True)

    def roles(self, pytree: Any) -> Any:
        """Tells the role that each array of a tree is given; no mesh is needed.

        Args:
            pytree: Any tree; named arrays count as one leaf each.

        Returns:
            The tree with a string in place of each leaf: a role of the table of the class, `"stacked "` in front of
            that of stacked layers, `"scalar"`, `"unknown"`, or `"static"` for what is no array.

        Example:
            >>> import axonym as nym
            >>> import jax.numpy as jnp
            >>> layers = {"up_proj": jnp.ones((3, 16, 64)), "down_proj": jnp.ones((3, 64, 16))}
            >>> nym.RoleShardingRule().roles({"layers": layers, "filter": jnp.ones((4, 4)), "depth": 3})
            {'depth': 'static', 'filter': 'unknown', 'layers': {'down_proj': 'stacked row', 'up_proj': ...}}
        """
        leaves, treedef = flatten_for_rule(pytree)
        named = [_role(shape, layout) for shape, layout in _layouts(leaves)]
        return jax.tree.unflatten(treedef, named)

    def _specs(self, pytree: Any, known_alone: bool) -> Any:
        """Returns a spec for each leaf; None where the role is unknown, if only known ones are asked for."""
        mesh = self._mesh_here()
        axes, wanted = self._axes(mesh)
        least = self._least(mesh)
        leaves, treedef = flatten_for_rule(pytree)
        specs: list[P | None] = []
        for shape, layout in _layouts(leaves):
            if known_alone and layout is None:
                specs.append(None)
            elif shape is None or math.prod(shape) < least:
                specs.append(P())
            else:
                specs.append(_spec(shape, layout, axes, wanted))
        return jax.tree.unflatten(treedef, specs)

    def _least(self, mesh: MeshLike) -> int:
        """Returns the fewest elements that an array is divided with."""
        return math.prod(mesh.shape.values()) if self.min_shard_size is None else self.min_shard_size

    def _reasons(self, pytree: Any) -> list[str] | None:
        """Returns for each leaf what it is divided by, in words."""
        least = self._least(self._mesh_here())
        leaves, _ = flatten_for_rule(pytree)
        return [_reason(shape, layout, least) for shape, layout in _layouts(leaves)]

    def _axes(self, mesh: MeshLike) -> tuple[MeshAxes, dict[str, tuple[str, ...]]]:
        """Returns the mesh axes that divide something, and those of each role."""
        given = {name: role for role in ("tensor", "fsdp", "expert", "batch") for name in getattr(self, role) or ()}
        check_mesh_axes(mesh, tuple(given))
        axes = [one for one in get_usable_axes(mesh) if given.get(one[0]) != "batch"]
        usual = {"tensor": TENSOR, "expert": EXPERT, "fsdp": FSDP}
        known = {
            name: given.get(name) or next((role for role, names in usual.items() if _told(self, role, name, names)), "")
            for name, _ in axes
        }
        if axes and not any(known.values()):
            shown = format_axes(tuple(mesh.axis_names), tuple(mesh.shape.values()))
            raise ValueError(
                f"no axis of mesh {shown} has a name that tells its role, as 'tp' or 'fsdp' would; "
                "pass `tensor=` or `fsdp=` with the mesh axes for each"
            )
        rest = "fsdp" if self.fsdp is None else ""
        roles = {name: role or rest for name, role in known.items()}
        used = tuple((name, size) for name, size in axes if roles[name])
        return used, {role: tuple(name for name, _ in used if roles[name] == role) for role in usual}


def _told(rule: RoleShardingRule, role: str, name: str, names: tuple[str, ...]) -> bool:
    """Tells whether the name of a mesh axis tells its role, where the rule does not say which axes have that role."""
    return getattr(rule, role) is None and name in names


def _layouts(leaves: list[Any]) -> list[tuple[tuple[int, ...] | None, Layout | None]]:
    """Returns the sizes and the layout of each leaf, None for what is no array or not known."""
    shapes = [get_array_shape(leaf) for _, leaf in leaves]
    arrays = Arrays([(path, shape) for (path, _), shape in zip(leaves, shapes, strict=True) if shape is not None])
    found = arrays.layouts()
    return [(shape, None if shape is None else next(found)) for shape in shapes]


def _reason(shape: tuple[int, ...] | None, layout: Layout | None, least: int) -> str:
    """Returns what an array is divided by, or why it stays whole, in words."""
    if shape is None:
        return ""
    if math.prod(shape) < least:
        return f"the rule to leave fewer than {least} elements whole"
    return "its sizes, as its role is unknown" if layout is None else f"the role '{_role(shape, layout)}'"


def _role(shape: tuple[int, ...] | None, layout: Layout | None) -> str:
    """Returns how a role is written."""
    if shape is None or layout is None:
        return "static" if shape is None else "unknown"
    return f"stacked {layout.role}" if layout.stacked else layout.role


def _spec(shape: tuple[int, ...], layout: Layout | None, axes: MeshAxes, by_role: dict[str, tuple[str, ...]]) -> P:
    """Returns the spec of an array: of those that divide it most, the one nearest to what its role wants."""
    if layout is None:
        return best_spec(shape, axes, order=tuple(sorted(range(len(shape)), key=lambda at: (-shape[at], at))))
    if layout.role in VECTORS and layout.experts is None and layout.elements(shape) <= LARGEST_WHOLE:
        names = by_role["tensor"] if layout.of in ("column", "head", "conv") else ()
        others = frozenset(range(len(shape))) - {layout.outputs}
        return best_spec(shape, tuple(one for one in axes if one[0] in names), whole=others)
    tensor, data = layout.outputs, layout.inputs
    if layout.role in ("row", "expert row", "router"):
        tensor, data = layout.inputs, layout.outputs if layout.role != "router" else layout.inputs
    sizes = {role: math.prod(dict(axes)[name] for name in names) for role, names in by_role.items()}
    if layout.role == "embedding" and data < tensor and sizes["tensor"] < sizes["fsdp"] * sizes["expert"]:
        tensor, data = data, tensor
    experts = data if layout.experts is None else layout.experts
    places = {"tensor": tensor, "fsdp": data, "expert": experts}
    wanted = tuple((name, places[role]) for role, names in by_role.items() for name in names)
    whole = frozenset(layout.stacked)
    spec = best_spec(shape, axes, wanted=wanted, whole=whole)
    kept = frozenset() if layout.kept is None else frozenset({layout.kept})
    better = (best_spec(shape, axes, wanted=wanted, whole=whole.union(layout.front, more)) for more in (kept, ()))
    spec = next((one for one in better if _parts(one, axes) == _parts(spec, axes)), spec)
    order = {name: (name in by_role["tensor"]) == (layout.role in VECTORS) for name, _ in axes}
    return P(*(make_spec_entry(tuple(sorted(get_entry_axes(entry), key=order.__getitem__))) for entry in spec))


def _parts(spec: P, axes: MeshAxes) -> int:
    """Returns into how many parts a spec divides an array."""
    return math.prod(dict(axes)[name] for entry in spec for name in get_entry_axes(entry))
