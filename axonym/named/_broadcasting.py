"""Broadcasting by name, planned once per combination of names and sizes.

The names of one operand must include the names of all others; it gives the order of the result. An operand gets axes
of size 1 for the names it lacks, so that nothing is copied to full size.
"""

import functools
import operator
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.caches import cached_jit, cached_plan, jit_inline
from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value, suggest_name
from .._ground.jax_compat import is_sharding_type_error
from ._axis import Names, Operand, check_matching_sizes, check_rank
from ._axis_layout import get_entry_axes, make_mesh_error
from ._base import N, NamedBase, format_shape, with_array
from ._operation import run_operation
from ._reduced_types import broadcast_reduced, get_reduced_axes
from ._sharding import get_out_sharding, reshard_by_name


def align_axes(array: Any, names: Names, target: Names) -> Any:
    """Returns the array with its axes in the order of `target`, which has all of them; size 1 where it lacks one.

    Scalars are returned as they are.
    """
    if not names or names == target:
        return array
    order = tuple(names.index(name) for name in target if name in names)
    if order != tuple(range(len(order))):
        array = jnp.transpose(array, order)
    return jnp.expand_dims(array, tuple(dim for dim, name in enumerate(target) if name not in names))


def _make_broadcast_error(operands: tuple[Operand, ...], widest: Names) -> ValueError:
    operands = tuple(operand for operand in operands if operand[0])
    text = " and ".join(format_axes(names, sizes) for names, sizes in operands)
    extra = dict.fromkeys(name for names, _ in operands for name in names if name not in widest)
    missing = [name for name in widest if any(name not in names for names, _ in operands)]
    hint = next(filter(None, (suggest_name(name, missing) for name in extra)), "")
    return make_error(
        ValueError,
        f"cannot broadcast {text}: {', '.join(map(repr, extra))} of one operand and {', '.join(map(repr, missing))} "
        f"of the other have no counterpart{hint}; add the missing axes to one operand with `broadcast_axis`",
    )


def broadcast_names(*operands: Operand) -> Names:
    """Returns the names of the operands broadcast together: the names of the first operand with the most axes."""
    check_matching_sizes(*operands)
    widest = max((names for names, _ in operands), key=len)
    if not all(set(names) <= set(widest) for names, _ in operands):
        raise _make_broadcast_error(operands, widest)
    return widest


@cached_plan
def plan_broadcast(fn: Callable[..., Any], *operands: Operand) -> tuple[Callable[..., Any], Names]:
    """Returns `fn` compiled for arrays with these names and sizes, and the names of its result."""
    names = broadcast_names(*operands)
    operand_names = tuple(names for names, _ in operands)
    widest = operand_names.index(names)

    def call_aligned(*arrays: Any) -> Any:
        # On an Explicit mesh JAX broadcasts shardings itself, but refuses operands whose shardings conflict.
        if get_out_sharding((), ()) is not None and _has_sharding_conflict(operand_names, arrays):
            arrays = tuple(map(reshard_by_name, arrays, operand_names))
        aligned = [align_axes(array, axes, names) for axes, array in zip(operand_names, arrays, strict=True)]
        for position, (array, axes) in enumerate(zip(arrays, operand_names, strict=True)):
            if axes and get_reduced_axes(array):
                aligned[position] = broadcast_reduced(array, tuple(map(names.index, axes)), aligned[widest])
        return fn(*aligned)

    return jit_inline(functools.partial(run_operation, call_aligned, operand_names, None)), names


def _has_sharding_conflict(operands: tuple[Names, ...], arrays: tuple[Any, ...]) -> bool:
    """Returns whether the shardings of operands on an Explicit mesh conflict, so that JAX would raise an error.

    They do if two axes are sharded over the same mesh axis, or operands shard one axis differently.
    """
    spec_entries: dict[str, Any] = {}
    sharded_names: dict[str, str] = {}
    for names, array in zip(operands, arrays, strict=True):
        for name, entry in zip(names, jax.typeof(array).sharding.spec.partitions, strict=False):
            if spec_entries.setdefault(name, entry) != entry:
                return True
            for mesh_axis in get_entry_axes(entry):
                if sharded_names.setdefault(mesh_axis, name) != name:
                    return True
    return False


def check_scalar(x: Any) -> Any:
    """Returns an operand without names; raises a TypeError for a plain array with axes, which would need names.

    Raises an OverflowError for an integer that does not fit the integers of JAX.
    """
    if type(x) in _NUMBERS and (type(x) is not int or -(2**31) <= x < 2**31):
        return x
    _check_array_like(x)
    if np.ndim(x):
        if hasattr(x, "dims"):  # of xarray
            raise make_error(
                TypeError,
                f"A `{type(x).__name__}` is no named array; make one with `axonym.interop.from_xarray(array)`.",
            )
        raise make_error(
            TypeError,
            f"A plain array of shape {np.shape(x)} has no axis names; give it some with `axonym.named(array, axes)`.",
        )
    if isinstance(x, int | np.integer):
        dtype = jax.dtypes.canonicalize_dtype(np.result_type(int if isinstance(x, int) else x))
        if not jnp.iinfo(dtype).min <= x <= jnp.iinfo(dtype).max:
            raise make_error(
                OverflowError,
                f"the integer {x} does not fit {dtype}; set `jax_enable_x64`, or give it as a float or `np.uint32` "
                "where that will do",
            )
    return x


def _check_array_like(x: Any) -> None:
    if not _is_array_like(x):
        raise make_error(TypeError, f"An operand is a named array or a number, not {format_value(x)}.")


def _is_array_like(x: Any) -> bool:
    """Returns whether NumPy or JAX would take an operand: an array, a number, or a list of them."""
    if isinstance(x, type):
        return False
    return hasattr(x, "dtype") or hasattr(x, "__jax_array__") or isinstance(x, int | float | complex | list | tuple)


def as_integer(x: Any) -> Any:
    """Returns an integer, or the plain array of an integer scalar, which may be traced; None for anything else."""
    if type(x) is int:
        return x
    number = x.array if isinstance(x, NamedBase) else x
    if not _is_array_like(number) or np.ndim(number) or not jnp.issubdtype(jnp.result_type(number), jnp.integer):
        return None
    return widen_integers(number) if isinstance(number, jax.Array) else operator.index(number)


def widen_integers(array: Any) -> Any:
    """Returns an array of integers with at least 32 bits, because JAX adds the size of an axis to negative indices.

    Integers of 8 or 16 bits cannot hold that size; JAX raises an error for an array of them, and takes another element
    for a scalar.
    """
    return array if array.dtype.itemsize >= 4 else array.astype(np.int32)


def split_operand(x: Any) -> tuple[Any, Names]:
    """Returns the array of an operand and its names, which are empty for a scalar; see `check_scalar`."""
    return (get_array(x), x.names) if isinstance(x, NamedBase) else (check_scalar(x), ())


def get_scalar(argument: str, value: Any) -> Any:
    """Returns the plain number or array of a scalar operand, or raises a ValueError if it has axes."""
    array, names = split_operand(value)
    if names:
        raise make_error(ValueError, f"{argument} must be a scalar, not an array with axes {format_shape(value)}")
    return array


def get_array(x: NamedBase) -> Any:
    """Returns the plain array of a named array, after checking that it has an axis for each name."""
    array = x.array
    if len(array.shape) != len(x.names):
        check_rank(x.names, array.shape)
    return array


_NUMBERS = frozenset({int, float, bool, complex})


def apply_unary(fn: Callable[..., Any], x: Any) -> Any:
    """Applies an elementwise function of one operand, which may be named."""
    if isinstance(x, NamedBase):
        return with_array(x, fn(get_array(x)))
    try:
        return fn(x)
    except TypeError:
        _check_array_like(x)
        raise


def apply_binary(fn: Callable[..., Any], x: Any, y: Any) -> Any:
    """Applies an elementwise function of two operands, each of which may be named."""
    if not isinstance(x, NamedBase):
        if isinstance(y, NamedBase):
            return with_array(y, fn(check_scalar(x), get_array(y)))
        try:
            return fn(x, y)
        except TypeError:
            _check_array_like(x)
            _check_array_like(y)
            raise
    if not isinstance(y, NamedBase):
        return with_array(x, fn(get_array(x), check_scalar(y)))
    x_array, y_array, names = x.array, y.array, x.names
    x_sizes, y_sizes = x_array.shape, y_array.shape
    # Operands with the same axes need no plan.
    if names == y.names and x_sizes == y_sizes and len(x_sizes) == len(names):
        try:
            return with_array(x, fn(x_array, y_array))
        except Exception as error:  # the class that JAX raises is not public
            if not is_sharding_type_error(error):
                _check_meshes(error, x, y)
                raise
        # On an Explicit mesh the operands are sharded differently, which the planned call resolves by name.
    call, names = plan_broadcast(fn, (names, x_sizes), (y.names, y_sizes))
    try:
        return with_array(x, call(x_array, y_array), names)
    except Exception as error:
        _check_meshes(error, x, y)
        raise


def _check_meshes(error: Exception, *operands: Any) -> None:
    """Raises a ValueError if JAX raised because arrays are on different meshes, since its error does not name them."""
    if isinstance(error, TypeError):  # about dtypes: on Auto axes JAX takes arrays of different meshes
        return
    places = [(format_shape(x), jax.typeof(x.array).sharding.mesh) for x in operands if isinstance(x, NamedBase)]
    places.append(("the result", jax.sharding.get_abstract_mesh()))
    places = [(label, mesh) for label, mesh in dict.fromkeys(places) if not mesh.empty]
    if any(mesh != places[0][1] for _, mesh in places):
        raise make_mesh_error(*places) from None


def apply_broadcast(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies an elementwise function of any number of operands, named or scalar."""
    arrays, shapes = [], []
    template = None  # the first named operand, whose class the result has
    for x in operands:
        if isinstance(x, NamedBase):
            template = x if template is None else template
            arrays.append(x.array)
            shapes.append((x.names, x.array.shape))
        else:
            arrays.append(x)
            shapes.append(_NO_AXES)
    if template is None:
        return fn(*operands)
    if _NO_AXES in shapes:
        for x in operands:
            if not isinstance(x, NamedBase):
                check_scalar(x)
    call, names = plan_broadcast(fn, *shapes)
    try:
        return with_array(template, call(*arrays), names)
    except Exception as error:
        _check_meshes(error, *operands)
        raise


_NO_AXES: Operand = ((), ())


def apply_to_whole_axes(
    fn: Callable[..., Any],
    x: N,
    dims: tuple[int, ...],
    *static: Hashable,
    args: tuple[Any, ...] = (),
    by_compiler: bool = False,
) -> N:
    """Applies a positional function along axes that it needs unsharded; it may change their sizes but not drop them.

    `fn` takes a plain array, the positions `dims`, `static` and `args`, which may be traced.
    """
    return with_array(x, cached_jit(_run_on_whole_axes, fn, x.names, dims, static, by_compiler)(x.array, *args))


def _run_on_whole_axes(
    fn: Callable[..., Any],
    names: Names,
    dims: tuple[int, ...],
    static: tuple[Any, ...],
    by_compiler: bool,
    array: Any,
    *args: Any,
) -> Any:
    return run_operation(
        lambda array: fn(array, dims, *static, *args),
        [names],
        names,
        array,
        whole={names[dim] for dim in dims},
        by_compiler=by_compiler,
    )
