"""`shard_map`: a function of the shards that single devices hold, with specs that follow from names.

The specs of the results follow from the names of what the function returns, and JAX needs them before it traces the
function. So the function is jitted on the shards, and called twice: the first call traces it and finds the names, and
the second one takes that trace from JAX's cache.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import equinox as eqx
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from .._ground.arguments import check_callable
from .._ground.caches import jit_inline
from .._ground.errors import make_error
from .._ground.formats import format_axes, suggest_name
from .._ground.jax_compat import is_tracing
from ..named._array import is_named_array
from ..named._axis_layout import count_parts, get_entry_axes, make_spec_entry
from ..named._base import format_shape
from ..named._sharding import mapping_context
from ..named._static_result import is_array
from ._active_mapping import ActiveMapping
from ._active_mesh import MeshLike, format_mesh, is_manual_axis, resolve_mesh
from ._mapping import AxisMapping, ResourceMapping, as_mapping, current_policy
from ._placement import constrain_arrays, move_arrays, rewrap_arrays, select_axis_type
from ._resolve_spec import resolve_spec


Args = ParamSpec("Args")
R = TypeVar("R")


class _Region(NamedTuple):
    """The mapping and the mesh of a call, and the mesh axes over which the function sees shards."""

    mapping: AxisMapping
    mesh: MeshLike
    manual: frozenset[str]

    def restrict(self, spec: P) -> P:
        """Returns the part of a spec over the mesh axes of the function."""
        return P(*(make_spec_entry(tuple(a for a in get_entry_axes(entry) if a in self.manual)) for entry in spec))


class _Argument(NamedTuple):
    """An array among the arguments, named or plain, its spec, and whether this follows from its names."""

    node: Any
    spec: P
    is_by_name: bool


@overload
def shard_map(
    fn: Callable[Args, R],
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Callable[Args, R]: ...
@overload
def shard_map(
    fn: None = None,
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Callable[[Callable[Args, R]], Callable[Args, R]]: ...
def shard_map(
    fn: Any = None,
    *,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
) -> Any:
    """Runs a function on each device, on its own shard of every named array; see `jax.shard_map`. Also a decorator.

    Inside, a named array has the same names as outside, and the sizes of one shard. Collectives need the mesh axis:
    `jax.lax.psum(x, "data")` takes named arrays as well. Results are assembled by their names: a mapped axis is taken
    to be sharded. Everything that is not mapped must be the same on all devices.

    Like `jax.shard_map`, it traces the function at each call outside of `jit`; wrap it in `named_jit` or `jax.jit` to
    compile it.

    Args:
        fn: The function.
        mapping: From names to mesh axes; the active mapping if None. It is active inside.
        mesh: The mesh; the active mesh if None.
        in_specs: A sequence with a `PartitionSpec` for each positional argument, or a tree of them; with None, named
            arrays are sharded by their names, and plain arrays are replicated.
        out_specs: The same for the result.
        axis_names: The mesh axes over which the function sees shards; all if None. Over the others, arrays have their
            full size inside, and are sharded as outside of `shard_map`.
        check_vma: Whether JAX checks that replicated results are the same on all devices.

    Returns:
        Function of the same arguments.

    Raises:
        ValueError: When called, if there is no mapping or no mesh, the mesh lacks one of `axis_names`, an array cannot
            be sharded by the mapping, a result that is not sharded may differ from device to device, a mapped axis of
            a result is no shard since it comes from an array that the function closes over or makes, or a result has
            lost or gained an axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> @nym.shard_map
        ... def total(x):
        ...     return jax.lax.psum(x.sum("batch"), "data")
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))), nym.axis_mapping({"batch": "data"}):
        ...     total(nym.ones({"batch": 8, "embed": 2}))
        NamedArray(float32, embed: 2, [8., 8.])
    """
    if fn is None:
        return functools.partial(
            shard_map,
            mapping=mapping,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
        )

    check_callable("shard_map", fn)

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        axis_mapping = as_mapping(mapping)
        if axis_mapping is None:
            raise make_error(ValueError, "`shard_map` needs a mapping; use `with axis_mapping(...)` or pass `mapping=`")
        region_mesh = resolve_mesh(mesh, "`shard_map`")
        # Sharding is strict, because a shard must never be taken for the full array.
        strict_mapping = axis_mapping.merged({}, uneven="error")
        region = _Region(strict_mapping, region_mesh, _find_manual_axes(axis_names, region_mesh))
        _check_specs(jax.tree.leaves((in_specs, out_specs)), region)
        dynamic, static = eqx.partition((args, kwargs), is_array)
        arguments, treedef = _infer_arguments(dynamic, in_specs, region)
        placed = jax.tree.unflatten(treedef, _place_arguments(arguments, region))
        policy = current_policy()
        static_results: list[Any] = []

        def body(dynamic: Any) -> Any:
            args, kwargs = eqx.combine(dynamic, static)
            with mapping_context(ActiveMapping(region.mapping, policy=policy)):
                arrays, static_result = eqx.partition(fn(*args, **kwargs), is_array)
            static_results[:] = [static_result]
            return arrays

        body.__name__ = getattr(fn, "__name__", type(fn).__name__)
        jitted_body = jit_inline(body)
        specs = jax.tree.unflatten(treedef, [region.restrict(argument.spec) for argument in arguments])
        map_shards = functools.partial(
            jax.shard_map, mesh=region.mesh, in_specs=(specs,), axis_names=region.manual, check_vma=check_vma
        )
        # The first call finds the names of the results, from which follow the specs that the second one needs.
        types: list[Any] = []
        record_types = map_shards(lambda x: types.append(jax.tree.map(jax.typeof, jitted_body(x))), out_specs=None)
        jax.eval_shape(record_types, placed)
        result_specs = _infer_out_specs(types[0], arguments, out_specs, region, check_vma)
        return eqx.combine(map_shards(jitted_body, out_specs=result_specs)(placed), static_results[0])

    return mapped


def _find_manual_axes(axis_names: Collection[str] | None, mesh: MeshLike) -> frozenset[str]:
    """Returns the mesh axes over which the function sees shards: by default all that are not Manual already."""
    if axis_names is None:
        return frozenset(axis for axis in mesh.axis_names if not is_manual_axis(mesh, axis))
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    mesh_text = format_mesh(mesh)
    if not names:
        raise make_error(ValueError, f"the `axis_names` of `shard_map` are mesh axes of {mesh_text}, at least one")
    for name in set(names) - set(mesh.axis_names):
        hint = suggest_name(name, mesh.axis_names)
        raise make_error(
            ValueError,
            f"mesh axis {name!r} is in the `axis_names` of `shard_map`, but not in the mesh {mesh_text}{hint}",
        )
    return frozenset(names)


def _check_specs(specs: Sequence[P], region: _Region) -> None:
    for spec in specs:
        for axis in (axis for entry in spec for axis in get_entry_axes(entry)):
            if axis not in region.manual:
                raise make_error(
                    ValueError,
                    f"{spec} is given to `shard_map`, which shards over {format_axes(sorted(region.manual))} "
                    f"here and leaves mesh axis {axis!r} as it is; leave {axis!r} out of the spec, or add it to "
                    "`axis_names`",
                )


def _broadcast_specs(specs: Any, tree: Any, message: str) -> list[P | None]:
    """Returns the spec given for each array of a tree, None if there is none."""
    broadcast: list[P | None] = []

    def repeat(spec: P | None, subtree: Any) -> None:
        broadcast.extend([spec] * len(jax.tree.leaves(subtree, is_leaf=is_named_array)))

    try:
        jax.tree.map(repeat, specs, tree, is_leaf=lambda x: x is None)
    except ValueError:
        raise make_error(ValueError, message) from None
    return broadcast


def _infer_arguments(tree: Any, in_specs: Any, region: _Region) -> tuple[list[_Argument], Any]:
    """Returns the arrays among the arguments with their specs, and the structure of the arguments."""
    nodes, treedef = jax.tree.flatten(tree, is_leaf=is_named_array)
    argument_specs = (None if in_specs is None else tuple(in_specs), None)
    specs = _broadcast_specs(argument_specs, tree, "the `in_specs` of `shard_map` do not fit its positional arguments")
    arguments: list[_Argument] = []
    for node, spec in zip(nodes, specs, strict=True):
        if spec is not None or not is_named_array(node):
            arguments.append(_Argument(node, P() if spec is None else spec, False))
            continue
        try:
            by_name = resolve_spec(node.names, tuple(node.array.shape), region.mapping, region.mesh)
        except ValueError as error:
            remedy = "whatever `uneven` is, so leave an axis out of the mapping to replicate it"
            raise make_error(ValueError, f"{error}; `shard_map` shards every mapped axis {remedy}") from None
        arguments.append(_Argument(node, by_name, True))
    _check_sharded_alike(arguments)
    return arguments, treedef


def _check_sharded_alike(arguments: Sequence[_Argument]) -> None:
    """Raises a ValueError if an axis is sharded in one argument, and replicated in another because it has size 1 there.

    A result with this axis could be either; its name alone does not say which.
    """
    sharded: dict[str, bool] = {}
    for node, spec, is_by_name in arguments:
        for name, entry in zip(node.names, spec, strict=True) if is_by_name else ():
            if sharded.setdefault(name, entry is not None) != (entry is not None):
                raise make_error(
                    ValueError,
                    f"axis {name!r} has size 1 in one argument of `shard_map` and is sharded in another; `rename` "
                    "it in one of them",
                )


def _find_unsharded_axes(arguments: Sequence[_Argument]) -> list[str]:
    """Returns the names of axes that no argument is sharded along, even if the mapping has them."""
    named = [(node.names, spec) for node, spec, _ in arguments if is_named_array(node)]
    sharded = {name for names, spec in named for name, entry in zip(names, spec, strict=False) if get_entry_axes(entry)}
    return sorted({name for names, _ in named for name in names} - sharded)


def _place_arguments(arguments: Sequence[_Argument], region: _Region) -> list[Any]:
    is_traced = is_tracing() or not isinstance(region.mesh, Mesh)  # on an abstract mesh nothing can be placed
    arrays = [node.array if is_named_array(node) else node for node, _, _ in arguments]
    pairs = zip(arguments, arrays, strict=True)
    shardings = [_infer_sharding(argument, array, region, is_traced) for argument, array in pairs]
    if is_traced:
        placed = list(map(_constrain_argument, arguments, arrays, shardings))
    else:
        placed = move_arrays(arrays, shardings)
    return rewrap_arrays([argument.node for argument in arguments], placed)


def _infer_sharding(argument: _Argument, array: Any, region: _Region, is_traced: bool) -> NamedSharding:
    """Returns the sharding of an argument; without names, it keeps its own over the other mesh axes."""
    spec = argument.spec
    current = jax.typeof(array).sharding if is_traced else getattr(array, "sharding", None)
    if not argument.is_by_name and isinstance(current, NamedSharding) and current.mesh.shape == region.mesh.shape:
        entries: list[Any] = []
        for entry, current_entry in itertools.zip_longest(spec, current.spec):
            other_axes = [axis for axis in get_entry_axes(current_entry) if axis not in region.manual]
            entries.append(make_spec_entry((*get_entry_axes(entry), *other_axes)))
        spec = P(*entries)
    return NamedSharding(region.mesh, spec)


def _constrain_argument(argument: _Argument, array: Any, sharding: NamedSharding) -> Any:
    if argument.is_by_name:
        return constrain_arrays([array], [sharding])[0]
    # `shard_map` itself reshards over Auto mesh axes.
    explicit_sharding = select_axis_type(sharding, AxisType.Explicit)
    return array if explicit_sharding is None else jax.reshard(array, explicit_sharding)


def _infer_out_specs(
    shapes: Any, arguments: Sequence[_Argument], out_specs: Any, region: _Region, check_vma: bool
) -> Any:
    """Returns the spec of each result: given, or inferred from its names."""
    # A mapped axis of size 1 is replicated in the arguments, so it is replicated in the results as well.
    region = region._replace(mapping=region.mapping.merged(dict.fromkeys(_find_unsharded_axes(arguments))))
    nodes, treedef = jax.tree.flatten(shapes, is_leaf=is_named_array)
    given_specs = _broadcast_specs(
        out_specs, shapes, "the `out_specs` of `shard_map` do not fit what the function returned"
    )
    specs = []
    for node, spec in zip(nodes, given_specs, strict=True):
        names = node.names if is_named_array(node) else ()
        if is_named_array(node) and len(names) != len(node.array.shape):
            raise make_error(
                ValueError,
                f"a result of `shard_map` with axes {format_axes(names)} is an array of shape "
                f"{tuple(node.array.shape)}: a collective such as `jax.lax.all_gather` has changed its axes; use "
                "`tiled=True`, or name the array anew",
            )
        by_name = region.restrict(resolve_spec(names, (None,) * len(names), region.mapping, region.mesh))
        if spec is None and check_vma:
            _check_replicated(node, by_name, region)
            _check_sharded(node, by_name, arguments, region)
        specs.append(by_name if spec is None else spec)
    return jax.tree.unflatten(treedef, specs)


def _check_replicated(node: Any, spec: P, region: _Region) -> None:
    """Raises a ValueError if a result may differ from device to device where its spec does not shard it."""
    array = node.array if is_named_array(node) else node
    sharded = {axis for entry in spec for axis in get_entry_axes(entry)}
    varying = sorted(array.manual_axis_type.varying & region.manual - sharded)
    if varying:
        result_text = format_shape(node) if is_named_array(node) else f"a plain array of shape {node.shape}"
        raise make_error(
            ValueError,
            f"the result {result_text} may differ from device to device along mesh axis {varying[0]!r}, to which "
            f"none of its axes is mapped; combine the shards with `jax.lax.psum(x, {varying[0]!r})` or the like, "
            "or pass `check_vma=False` if you know that it does not differ",
        )


def _check_sharded(node: Any, spec: P, arguments: Sequence[_Argument], region: _Region) -> None:
    """Raises a ValueError if a result that is the same on all devices is taken for the shards of its mapped axes.

    Only a new array may be both, such as zeros of the size of a shard of an argument.
    """
    named_nodes = [argument.node for argument in arguments if is_named_array(argument.node)]
    full_sizes = {axis.name: axis.size for named_node in named_nodes for axis in named_node.axes}
    for dim, entry in enumerate(spec):
        name, mesh_axes = node.names[dim], get_entry_axes(entry)
        joined_size = node.array.shape[dim] * count_parts(mesh_axes, region.mesh)
        repeating = set(mesh_axes) - node.array.manual_axis_type.varying
        if repeating and joined_size != full_sizes.get(name):
            raise make_error(
                ValueError,
                f"the result {format_shape(node)} of `shard_map` is the same on all devices along mesh axis "
                f"{min(repeating)!r}, so its axis {name!r} is no shard, and would be joined to size {joined_size}; "
                "give the array from which it comes to the function as an argument, instead of closing over it or "
                f"making it inside, or leave {name!r} out of the mapping",
            )
