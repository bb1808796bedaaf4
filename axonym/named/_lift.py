"""`lift`: functions of plain arrays as functions of named arrays, vectorised over all other axes."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._ground.arguments import check_callable
from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value
from ._array import NamedArray, is_named_array
from ._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    check_matching_sizes,
    check_selected_once,
    check_unique_names,
    find_axis,
    intern_names,
    parse_selection,
)
from ._base import with_array
from ._broadcasting import broadcast_names
from ._operation import run_operation
from ._sharding import get_mesh_axes, reshard_by_name
from ._static_result import is_array, pack_result, unpack_result


def lift(
    fn: Callable[..., Any], *axes: AxisSelection, out_axes: AxisSelection | Sequence[AxisSelection] | None = None
) -> Callable[..., Any]:
    """Makes a function of plain arrays a function of named arrays, for functions without a named counterpart.

    The function receives each named array with the axes that it has of `axes`, in the order given. It is
    vectorised over all other axes, which broadcast by name as in arithmetic. Like `jax.vmap`, the lifted function
    compiles nothing by itself: wrap it in `named_jit` or `jax.jit` if it is called often.

    Args:
        fn: Function of plain arrays and other arguments, which returns an array or a tree of arrays.
        *axes: The axes that `fn` knows by position; one by one, or a sequence of them.
        out_axes: The axes of the results: one selection, or a sequence with one for each of several arrays. If None, a
            result without axes gets no names, and a result with as many axes as were given gets the same names; its
            sizes may differ.

    Returns:
        Function of the same arguments. The axes over which `fn` is vectorised come first in every result. Arguments
        that are not named are passed to every call as they are.

    Raises:
        ValueError: When called, if an axis is missing, the other axes do not broadcast, or `out_axes` is needed or does
            not fit.
        TypeError: When called, if no argument is named.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> x = nym.named([[3.0, 1.0, 2.0], [6.0, 4.0, 5.0]], ("batch", "pos"))
        >>> nym.lift(jnp.median, "pos")(x)
        NamedArray(float32, batch: 2, [2., 5.])
        >>> nym.lift(jnp.diff, "pos")(x).shape
        (batch: 2, pos: 2)
        >>> nym.lift(jnp.outer, "pos", "k", out_axes=("pos", "k"))(x, nym.ones({"k": 4})).shape
        (batch: 2, pos: 3, k: 4)
    """
    axes = tuple(axis for selection in axes for axis in parse_selection(selection))
    core = intern_names(tuple(map(axis_name, axes)))
    check_selected_once(core)
    check_callable("lift", fn)

    def call_lifted(*args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        named = [leaf for leaf in leaves if is_named_array(leaf)]
        loop = _find_loop_axes(named, axes)
        loop_names = tuple(axis.name for axis in loop)
        leaf_names = [leaf.names if is_named_array(leaf) else () for leaf in leaves]
        orders = [tuple(name for name in (*loop_names, *core) if name in names) for names in leaf_names]
        # Other arguments have no order; they are passed on as they are.
        arrays = [
            jnp.transpose(leaf.array, tuple(map(leaf.names.index, order))) if is_named_array(leaf) else leaf
            for leaf, order in zip(leaves, orders, strict=True)
        ]
        arrays, static = eqx.partition(arrays, is_array)

        def call_positional(arrays: list[Any]) -> Any:
            args, kwargs = jax.tree.unflatten(treedef, eqx.combine(arrays, static))
            result = fn(*args, **kwargs)
            if any(map(is_named_array, jax.tree.leaves(result, is_leaf=is_named_array))):
                raise make_error(
                    TypeError, f"`{_get_name(fn)}` returned a named array; `lift` is for functions of plain arrays."
                )
            return pack_result(result)

        vectorized = _vectorize_over(call_positional, loop, leaf_names)
        # On an Explicit mesh many functions have no sharding rule; the compiler has one for all of them.
        returned = run_operation(
            lambda *arrays: vectorized([*arrays]),
            [tuple("" if name in core else name for name in order) for order in orders],
            loop_names,
            *arrays,
            by_compiler=True,
            sizes=tuple(axis.size for axis in loop),
        )
        results, result_treedef = jax.tree.flatten(returned)
        selections = _spread_out_axes(fn, out_axes, results, result_treedef)
        named_results: list[NamedArray] = []
        for array, selection in zip(results, selections, strict=True):
            out_names = _find_out_names(fn, tuple(array.shape[len(loop) :]), core, selection)
            names = intern_names((*loop_names, *out_names))
            check_unique_names(names)
            named_results.append(with_array(named[0], reshard_by_name(array, names), names))
        return unpack_result(jax.tree.unflatten(result_treedef, named_results))

    return call_lifted


def _find_loop_axes(named: Sequence[NamedArray], axes: tuple[AxisSelector, ...]) -> tuple[Axis, ...]:
    """Returns the axes of named arrays other than those of the function, after checking both."""
    if not named:
        raise make_error(
            TypeError, "A lifted function needs a named array among its arguments; make one with `axonym.named`."
        )
    operands = [(x.names, tuple(x.array.shape)) for x in named]
    known_sizes = check_matching_sizes(*operands)
    for axis in axes:
        operands_with_axis = [operand for operand in operands if axis_name(axis) in operand[0]]
        for names, sizes in operands_with_axis or operands:  # an axis that all arrays lack is an error for the first
            find_axis(names, sizes, axis)
    core = set(map(axis_name, axes))
    loops = [tuple(name for name in names if name not in core) for names, _ in operands]
    names = broadcast_names(*((loop, tuple(known_sizes[name] for name in loop)) for loop in loops))
    return tuple(Axis(name, known_sizes[name]) for name in names)


def _vectorize_over(fn: Callable[..., Any], loop: tuple[Axis, ...], names: list[Names]) -> Callable[..., Any]:
    """Returns a function of a list of arrays vectorised over their loop axes, which come first."""
    for axis in reversed(loop):  # the last `vmap` is the outermost, so the first axis comes first
        dims = [0 if axis.name in leaf_names else None for leaf_names in names]
        mesh_axes = get_mesh_axes(axis.name, axis.size) or None
        fn = jax.vmap(fn, in_axes=(dims,), axis_size=axis.size, spmd_axis_name=mesh_axes)
    return fn


def _spread_out_axes(fn: Callable[..., Any], out_axes: Any, arrays: Sequence[Any], treedef: Any) -> Sequence[Any]:
    """Returns the entry of `out_axes` for each array that the function returned."""
    if out_axes is None:
        return [None] * len(arrays)
    if jax.tree_util.treedef_is_leaf(treedef):
        return [out_axes]
    if isinstance(out_axes, str | Axis) or not isinstance(out_axes, Sequence) or len(out_axes) != len(arrays):
        raise make_error(
            ValueError,
            f"`{_get_name(fn)}` returned {len(arrays)} arrays: `out_axes` must be a sequence of {len(arrays)} "
            f"selections, not {format_value(out_axes)}",
        )
    return out_axes


def _find_out_names(fn: Callable[..., Any], sizes: tuple[int, ...], core: Names, out: AxisSelection | None) -> Names:
    """Returns the names of the axes of a result without its loop axes."""
    if out is None:
        if len(sizes) in (0, len(core)):
            return core[: len(sizes)]
        raise make_error(
            ValueError,
            f"`{_get_name(fn)}` over {format_axes(core)} returned an array of shape {sizes}; name its axes with "
            "`out_axes`",
        )
    axes = parse_selection(out)
    if len(axes) != len(sizes):
        raise make_error(
            ValueError,
            f"`{_get_name(fn)}` returned an array of shape {sizes}, `out_axes` has {len(axes)} names for it: "
            f"{format_axes(tuple(map(axis_name, axes)))}",
        )
    for axis, size in zip(axes, sizes, strict=True):
        if isinstance(axis, Axis) and axis.size != size:
            raise make_error(
                ValueError, f"`{_get_name(fn)}` returned axis {axis.name!r} with size {size}, not {axis.size}"
            )
    return tuple(map(axis_name, axes))


def _get_name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
