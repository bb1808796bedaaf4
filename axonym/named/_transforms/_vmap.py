"""`vmap`: a function of slices, applied to all slices of named axes at once."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from ..._ground.arguments import check_callable
from ..._ground.errors import hide_library_frames, make_error
from ..._ground.jax_compat import is_mapped_twice_error, is_missing_gradient_error
from .._array import is_named_array
from .._axis import AxisSelection, AxisSelector
from .._axis_layout import read_layout
from .._sharding import get_mesh_axes
from .._static_result import unpack_result
from ._slices import UNSLICED, SliceSpec, is_array_with_axes, pack_stacked, parse_mapped_axes, slice_args


P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    default: SliceSpec = is_array_with_axes,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Callable[P, R]:
    """Vectorises a function over a named axis, or several; see `jax.vmap`.

    `args` and `kwargs` specify for each argument which arrays are sliced: True slices its plain arrays along their
    first axis, an integer along the axis at that position, a function is called with each plain array and returns one
    of these; False and None pass the argument to every slice as it is, including named arrays with the axis. A tree
    of these specifies parts of the argument.

    Args:
        fn: Function of any trees of arrays; inside, named arrays lack the axis.
        axis: The axis, or several of them, outermost first. An `Axis` gives the size where no argument has it.
        default: Which plain arrays are sliced in all other arguments: by default all that have axes.
        args: Specs of the positional arguments, in order; the remaining ones use `default`.
        kwargs: Specs of keyword arguments.

    Returns:
        Function of the same arguments. Arrays that it returns have the axis first, other results are returned as they
        are. On a mesh over which the active mapping shards the axis, constraints inside apply to each slice and the
        axis stays sharded.

    Raises:
        ValueError: When called, if no argument has an axis given by name, sizes differ, or a spec does not fit its
            argument.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> nym.vmap(lambda row: row.sum("embed"), "batch")(x)
        NamedArray(float32, batch: 2, [3., 3.])
        >>> def products(row, rows):
        ...     return nym.dot(row, rows, axis="embed").rename({"batch": "other"})
        >>> nym.vmap(products, "batch", args=(True, False))(x, x).shape
        (batch: 2, other: 2)
    """
    check_callable("vmap", fn)
    find_specs = functools.partial(_find_specs, default, tuple(args), dict(kwargs or {}))
    mapped: Any = fn
    for mapped_axis in reversed(parse_mapped_axes(axis)):
        mapped = functools.partial(_apply_vmap, mapped, mapped_axis, find_specs)
    return mapped


def _apply_vmap(
    fn: Callable[..., Any], axis: AxisSelector, find_specs: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    sliced_args = slice_args((args, kwargs), axis, find_specs(args, kwargs), "vmap", fn)
    name, size = sliced_args.axis.name, sliced_args.axis.size
    arrays, dims = sliced_args.get_sliced()

    def call_with_slices(*slices: Any) -> Any:
        args, kwargs = sliced_args.insert_slices(slices)
        return pack_stacked(fn(*args, **kwargs), name)

    arrays = _align_shardings(arrays, dims)
    # Constraints on slices then keep the mapped axis sharded.
    spmd_axes = get_mesh_axes(name, size) or None
    mapped = jax.vmap(call_with_slices, in_axes=tuple(dims), axis_size=size, spmd_axis_name=spmd_axes)
    try:
        return unpack_result(mapped(*arrays))
    except Exception as error:
        hide_library_frames(error)
        if is_mapped_twice_error(error):
            raise make_error(
                ValueError,
                f"`vmap` maps {sliced_args.axis} over a mesh axis that also shards an array inside, such as the "
                "gradient of a parameter that is stored over it, of which each slice would have one; shard the axis or "
                f"the parameter over another mesh axis, or map one of them to None; JAX's error: {error}",
            ) from None
        if is_missing_gradient_error(error):
            raise make_error(
                ValueError,
                f"`vmap` maps {sliced_args.axis} over an Explicit mesh axis, which some layers, such as experts, "
                "divide themselves, and these have no gradients within the `vmap`; take the gradient around the "
                f"`vmap`, or make the mesh axis Auto; JAX's error: {error}",
            ) from None
        raise


def _align_shardings(arrays: list[Any], dims: Sequence[int]) -> list[Any]:
    """Returns arrays that are all sharded along their mapped dimension as the first one that is sharded along it."""
    if not any(jax.typeof(array).sharding.spec.partitions[dim] for array, dim in zip(arrays, dims, strict=True)):
        return arrays  # checked first, since each array of each call comes through here
    names = [
        tuple("mapped" if i == dim else str(i) for i in range(x.ndim)) for x, dim in zip(arrays, dims, strict=True)
    ]
    layouts = [read_layout(*operand) for operand in zip(names, arrays, strict=True)]
    leader = next(layout for layout in layouts if "mapped" in layout.mesh_axes)
    mesh_axes = leader.mesh_axes["mapped"]
    aligned = []
    for array, array_names, layout in zip(arrays, names, layouts, strict=True):
        if layout.mesh_axes.get("mapped") != mesh_axes:
            layout = layout.assign("mapped", mesh_axes)._replace(mesh=leader.mesh)
            array = jax.reshard(array, layout.sharding(array_names))
        aligned.append(array)
    return aligned


def _find_specs(
    default: SliceSpec, specs: tuple[Any, ...], kwspecs: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SliceSpec | list[SliceSpec]:
    """Returns the spec of each leaf of the arguments, or a single spec for all of them."""
    if not specs and not kwspecs:
        return default
    if len(specs) > len(args):
        raise make_error(ValueError, f"`vmap` with `args` for {len(specs)} positional arguments was given {len(args)}")
    spec_by_key = {**dict(enumerate(specs)), **kwspecs}
    leaf_specs: list[SliceSpec] = []
    for key, argument in (*enumerate(args), *sorted(kwargs.items())):  # sorted, as JAX flattens them
        if key in spec_by_key:
            leaf_specs += _spread_spec(key, spec_by_key[key], argument)
        else:
            leaf_specs += [default] * _count_leaves(argument)
    return leaf_specs


def _spread_spec(key: int | str, spec: Any, argument: Any) -> list[SliceSpec]:
    """Returns the spec of each leaf of an argument, given a tree of specs that is a prefix of it."""
    leaf_specs: list[SliceSpec] = []

    def repeat_spec(spec: SliceSpec, subtree: Any) -> None:
        leaf_specs.extend([UNSLICED if spec is None or spec is False else spec] * _count_leaves(subtree))

    try:
        jax.tree.map(repeat_spec, spec, argument, is_leaf=lambda x: x is None)
    except ValueError:
        raise make_error(
            ValueError, f"the specs given to `vmap` for argument {key!r} are a tree that does not fit it"
        ) from None
    return leaf_specs


def _count_leaves(tree: Any) -> int:
    return len(jax.tree.leaves(tree, is_leaf=is_named_array))
