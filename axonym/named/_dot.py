"""`dot`: products of arrays summed over named axes, computed by `dot_general` without transposes."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype
from .._ground.caches import cached_plan, jit_inline
from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value
from ._axis import (
    Axis,
    AxisSelection,
    Names,
    Operand,
    PartialAxisSpec,
    axis_name,
    check_matching_sizes,
    check_selected_once,
    complete_order,
    find_axis,
    intern_names,
    make_hashable_selection,
    parse_selection,
)
from ._base import N, NamedBase, check_named, format_shape, with_array
from ._named_call import format_scope
from ._operation import use_operand_layout
from ._reduce import _reductions
from ._reduced_types import get_reduced_axes, list_sharded_axes, set_reduced_axes
from ._shape._rearrange import rearrange
from ._sharding import get_out_sharding, reshard_by_name


_MISSING: Any = object()


@overload  # type checkers require `axis`
def dot(
    first: N,
    /,
    *others: N,
    axis: AxisSelection,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: PartialAxisSpec | None = None,
    dot_general: Callable[..., Any] | None = None,
) -> N: ...
@overload
def dot(
    first: N,
    /,
    *others: N,
    axis: None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: PartialAxisSpec | None = None,
    dot_general: Callable[..., Any] | None = None,
) -> N: ...
def dot(
    first: N,
    /,
    *others: N,
    axis: AxisSelection | None = _MISSING,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_axes: PartialAxisSpec | None = None,
    dot_general: Callable[..., Any] | None = None,
) -> N:
    """Multiplies arrays and sums over axes that at least two of them have; other shared axes are batch axes.

    Args:
        first: Array of any axes.
        *others: More arrays of any axes.
        axis: The axes to sum over, a required argument: one, several, `()` for an outer product, or None for all axes
            of all arrays.
        precision: As for `jax.lax.dot_general`.
        preferred_element_type: Element type in which the sum is kept and returned.
        out_axes: The order of the result, with `...` for the other axes.
        dot_general: Replacement for `jax.lax.dot_general` with the same arguments.

    Returns:
        Array with the axes that are not summed over. Without `out_axes` they have the order of `dot_general`: batch
        axes, then axes of the left operand, then axes of the right operand. So no transpose is ever added; with
        `out_axes` there is none if exchanging two operands gives that order.

    Raises:
        ValueError: If fewer than two operands have a contracted axis, a name has two sizes, or a `dot_general` is given
            for more or less than two arrays.
        TypeError: If an operand is not a named array, or `axis` is not given.

    Example:
        >>> import axonym as nym
        >>> x, w = nym.ones({"batch": 2, "embed": 3}), nym.ones({"embed": 3, "mlp": 4})
        >>> nym.dot(x, w, axis="embed").shape
        (batch: 2, mlp: 4)
    """
    arrays = (first, *others)
    _check_arguments(arrays, axis)
    operand_names, shapes = tuple([x.names for x in arrays]), tuple([x.array.shape for x in arrays])
    selection = axis if type(axis) is str else make_hashable_selection(axis)  # the common cases without a call
    out_order = None if out_axes is None else make_hashable_selection(out_axes)
    summed, names = _plan_contraction(operand_names, shapes, selection, out_order)
    if len(arrays) == 1 and dot_general is None:
        result = _reductions.sum(first, summed, dtype=preferred_element_type)
        return result if out_axes is None else rearrange(result, names)
    return contract_axes(arrays, summed, names, precision, preferred_element_type, dot_general)


def _check_arguments(arrays: tuple[Any, ...], axis: Any) -> None:
    for x in arrays:
        if isinstance(x, NamedBase):
            continue
        if type(x) is str or isinstance(x, Axis):
            raise TypeError(f"`dot` takes the axes to sum over by keyword: `dot(x, y, axis={format_value(x)})`.")
        check_named(x)
    if axis is _MISSING:
        names = [name for x in arrays for name in x.names]
        shared = [name for name in dict.fromkeys(names) if names.count(name) >= min(len(arrays), 2)]
        hint = f", here {format_axes(shared)}" if shared else ""
        raise TypeError(
            f"`dot` needs `axis=`, the axes to sum over, which at least two operands must have{hint}; `axis=()` sums "
            "over nothing, and `axis=None` over all axes."
        )


def contract_axes(
    arrays: Sequence[N],
    summed: Names,
    names: Names,
    precision: Any = None,
    dtype: Any = None,
    dot_general: Callable[..., Any] | None = None,
    function: str = "dot",
) -> N:
    """Multiplies arrays whose sizes are known to match, sums over names, and orders the others."""
    operand_names = tuple([x.names for x in arrays])
    precision = tuple(precision) if isinstance(precision, list) else precision  # to be hashed
    static = (function, operand_names, summed, names, precision, dtype)
    if dot_general is not None:
        check_dot_general(dot_general)
        if not _is_dot_general(operand_names, summed):
            shapes = " and ".join(map(format_shape, arrays))
            raise ValueError(f"a `dot_general` multiplies two arrays and sums over axes of both, not {shapes}")
        # It may close over arrays, so the compiled function cannot be cached.
        contract = functools.partial(_run_contraction, *static, dot_general)
    else:
        contract = _jit_contraction(*static)
    try:
        result = contract(*[x.array for x in arrays])
    except TypeError:
        check_dtype(dtype, f"{function}: `preferred_element_type`")
        raise
    return with_array(arrays[0], result, names)


def check_dot_general(dot_general: Any) -> None:
    """Raises a TypeError for a replacement of `jax.lax.dot_general` that is not a function, or a class of modules."""
    if isinstance(dot_general, type) or not callable(dot_general):
        hint = "; make an instance of it" if isinstance(dot_general, type) else ""
        raise TypeError(
            "A `dot_general` must be a function or a module such as `axonym.quantization.Int8DotGeneral()`, not "
            f"{format_value(dot_general)}{hint}."
        )


@cached_plan
def _jit_contraction(function: str, *static: Any) -> Callable[..., Any]:
    contract: Any = functools.partial(_run_contraction, function, *static, None)
    contract.__name__ = function  # what profiles and logs call the program
    return jit_inline(contract)


def _run_contraction(
    function: str,
    operand_names: tuple[Names, ...],
    summed: Names,
    names: Names,
    precision: Any,
    dtype: Any,
    dot_general: Callable[..., Any] | None,
    *arrays: Any,
) -> Any:
    """Computes the contraction of plain arrays, in a scope named after the axes."""
    fn: Callable[..., Any] = _compute_einsum
    if len(operand_names) == 1:
        fn = _compute_sum
    elif _is_dot_general(operand_names, summed):
        fn = functools.partial(_compute_dot_general, dot_general)
    new_names = tuple(name for name in names if name not in operand_names[0])
    with jax.named_scope(format_scope(function, summed, new_names)), use_operand_layout(operand_names, arrays):
        return fn(operand_names, summed, names, precision, dtype, *arrays)


def _is_dot_general(operand_names: tuple[Names, ...], summed: Names) -> bool:
    """Returns whether one `dot_general` does it: two operands that both have all names that are summed over."""
    return len(operand_names) == 2 and all(set(summed) <= set(names) for names in operand_names)


@cached_plan
def _plan_contraction(
    operand_names: tuple[Names, ...],
    shapes: tuple[tuple[int, ...], ...],
    axis: AxisSelection | None,
    out_axes: Any,
) -> tuple[Names, Names]:
    """Returns the names summed over, and the names of the result in order."""
    operands = [*zip(operand_names, shapes, strict=True)]
    summed = _find_summed(operands, axis)
    sizes = check_matching_sizes(*operands)
    names = get_natural_order(operand_names, summed)
    if out_axes is not None:
        names = complete_order(names, tuple(sizes[name] for name in names), parse_selection(out_axes))
    return summed, intern_names(names)


def get_natural_order(operand_names: tuple[Names, ...], summed: Collection[str]) -> Names:
    """Returns the names that are not summed in the order of `dot_general`: batch axes, then those of each operand."""
    result_names = [name for names in operand_names for name in names if name not in summed]
    batch_names = [name for name in dict.fromkeys(result_names) if result_names.count(name) > 1]
    return (*batch_names, *(name for name in result_names if name not in batch_names))


def _find_summed(operands: list[Operand], axis: AxisSelection | None) -> Names:
    if axis is None:
        return tuple(dict.fromkeys(name for names, _ in operands for name in names))
    selectors = parse_selection(axis)
    summed = tuple(map(axis_name, selectors))
    try:
        for name, selector in zip(summed, selectors, strict=True):
            operands_with_axis = [(names, sizes) for names, sizes in operands if name in names]
            if len(operands_with_axis) == 1 and len(operands) > 2:
                names, sizes = operands_with_axis[0]
                raise ValueError(f"only {format_axes(names, sizes)} has axis {name!r}; `sum` over it first")
            if len(operands_with_axis) < 2:
                operands_with_axis = operands  # so that `find_axis` raises for one that lacks the axis
            for names, sizes in operands_with_axis:
                find_axis(names, sizes, selector)
        check_selected_once(summed)
    except ValueError as error:
        text = " and ".join(format_axes(names, sizes) for names, sizes in operands)
        raise make_error(ValueError, f"cannot contract {text}: {error}") from None
    return summed


def _compute_sum(operand_names: tuple[Names], summed: Names, names: Names, precision: Any, dtype: Any, x: Any) -> Any:
    (x_names,) = operand_names
    # `jnp.sum` alone would widen small integers, unlike `jnp.einsum`.
    dtype = x.dtype if dtype is None else dtype
    total = jnp.sum(x, tuple(map(x_names.index, summed)), dtype) if summed else x.astype(dtype)
    order = tuple(name for name in x_names if name not in summed)
    if order != names:
        total = jnp.transpose(total, tuple(map(order.index, names)))
    return reshard_by_name(total, names)


def _compute_dot_general(
    dot_general: Callable[..., Any] | None,
    operand_names: tuple[Names, ...],
    summed: Names,
    names: Names,
    precision: Any,
    dtype: Any,
    x: Any,
    y: Any,
) -> Any:
    """Multiplies two arrays in the order without a transpose, if there is one."""
    x_names, y_names = operand_names
    batch_names = tuple(name for name in names if name in x_names and name in y_names)
    x_free = tuple(name for name in x_names if name not in batch_names and name not in summed)
    y_free = tuple(name for name in y_names if name not in batch_names and name not in summed)
    order = (*batch_names, *x_free, *y_free)  # what `dot_general` returns
    swapped_order = (*batch_names, *y_free, *x_free)
    # A replacement may treat its operands differently, and a pair of precisions is one for each.
    if dot_general is None and swapped_order == names != order and not isinstance(precision, tuple):
        x_names, y_names, x, y, order = y_names, x_names, y, x, swapped_order
        x_free, y_free = y_free, x_free
    sizes = {**dict(zip(x_names, x.shape, strict=True)), **dict(zip(y_names, y.shape, strict=True))}
    contracting_dims = tuple(map(x_names.index, summed)), tuple(map(y_names.index, summed))
    batch_dims = tuple(map(x_names.index, batch_names)), tuple(map(y_names.index, batch_names))
    if get_reduced_axes(x) or get_reduced_axes(y):
        # Each operand is reduced over the mesh axes that shard the free axes of the other one, but over none for a
        # replacement of `dot_general`, which may have operations for which JAX has no rules.
        x_mesh_axes = list_sharded_axes(x, map(x_names.index, x_free)) if dot_general is None else ()
        y_mesh_axes = list_sharded_axes(y, map(y_names.index, y_free)) if dot_general is None else ()
        x, y = set_reduced_axes(x, y_mesh_axes, y), set_reduced_axes(y, x_mesh_axes, x)
    operand_dtype = jnp.result_type(x, y)  # `dot_general` does not promote as arithmetic does
    sharding = get_out_sharding(order, tuple(sizes[name] for name in order))
    # Replacements need not accept `out_sharding` where no mesh axis is Explicit.
    options = {} if sharding is None else {"out_sharding": sharding}
    result = (dot_general or jax.lax.dot_general)(
        x.astype(operand_dtype),
        y.astype(operand_dtype),
        (contracting_dims, batch_dims),
        precision=precision,
        preferred_element_type=dtype,
        **options,
    )
    return result if order == names else jnp.transpose(result, tuple(map(order.index, names)))


def _compute_einsum(
    operand_names: tuple[Names, ...], summed: Names, names: Names, precision: Any, dtype: Any, *arrays: Any
) -> Any:
    arrays = tuple(set_reduced_axes(array, ()) for array in arrays)
    sizes: dict[str, int] = {}
    for x_names, x in zip(operand_names, arrays, strict=True):
        sizes.update(zip(x_names, x.shape, strict=True))
    # `jnp.einsum` takes arrays alternating with lists of integers that stand for their axes.
    numbers = {name: number for number, name in enumerate(sizes)}
    inputs: list[Any] = []
    for x_names, x in zip(operand_names, arrays, strict=True):
        inputs += [x, [numbers[name] for name in x_names]]
    return jnp.einsum(
        *inputs,
        [numbers[name] for name in names],
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=get_out_sharding(names, tuple(sizes[name] for name in names)),
    )
