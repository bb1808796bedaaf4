"""`scan`, `fold` and `map`: a function of slices, applied to one slice after another."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxpr_as_fun

from ..._ground.arguments import check_callable
from ..._ground.caches import jit_inline
from ..._ground.errors import hide_library_frames, make_error
from ..._ground.formats import format_value
from ..._ground.jax_compat import is_traced
from .._array import is_named_array
from .._axis import AxisSelection, AxisSelector
from .._base import format_shape
from .._operation import name_dims, replicate_axes
from .._sharding import reshard_named
from .._static_result import is_array, unpack_result
from .._wide_sums import differentiate_as, is_narrow_float, widen_float
from ._checkpoint import Policy, Remat, checkpoint_scan, parse_remat
from ._slices import SlicedArgs, SliceSpec, is_array_with_axes, pack_stacked, parse_mapped_axes, slice_args


P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


def scan(
    f: Callable[P, tuple[C, R]],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: SliceSpec = is_array_with_axes,
) -> Callable[P, tuple[C, R]]:
    """Runs a function over the slices of a named axis, or several, one after another, with a carry; see `jax.lax.scan`.

    Outside of `jax.jit` every call traces and compiles the loop anew. So it uses the current values of the Python
    variables that `f` reads, where `jax.lax.scan` keeps using those of its first call with the same function.

    Args:
        f: Function of the carry and of slices of the arguments, which returns the next carry and a result.
        axis: The axis to run along, or several of them, outermost first.
        remat: Whether to recompute each step in the backward pass, except for values that a policy saves: a
            `ScanCheckpointPolicy`, one of `jax.checkpoint_policies`, or `"nested"`, `"offload"`, `"full"` or
            `"recompute"` (which save nothing) and `"save_all"`.
        reverse: Whether to start at the end.
        unroll: How many steps to unroll, as for `jax.lax.scan`.
        is_scanned: Which plain arrays are sliced, and along which axis if not the first; see `default` of `vmap`.

    Returns:
        Function of the initial carry and the arguments, which returns the final carry and the results of all steps,
        stacked along the axis, which comes first.

    Raises:
        ValueError: When called, if no argument has an axis given by name, or sizes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> total, partial = nym.scan(lambda carry, v: (carry + v, carry + v), "i")(nym.named(0, ()), x)
        >>> total.item(), partial.array
        (6, Array([0, 1, 3, 6], dtype=int32))
    """
    check_callable("scan", f)

    def call_step(*args: P.args, **kwargs: P.kwargs) -> tuple[C, R]:
        return check_scan_result(f(*args, **kwargs))

    loop = _Loop("scan", f, call_step, parse_mapped_axes(axis), is_scanned, parse_remat(remat), reverse, unroll)

    def run_scan(init: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _run_loop(loop, init, (args, kwargs))

    return run_scan


def check_scan_result(returned: Any) -> tuple[Any, Any]:
    """Returns what the function given to `scan` returned; raises a TypeError if it is not a pair."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise make_error(TypeError, "The function given to `scan` must return a pair: the next carry and a result.")
    return returned


def fold(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: SliceSpec = is_array_with_axes,
) -> Callable[P, R]:
    """Runs a function over the slices of a named axis, one after another, and keeps only the carry; see `scan`.

    Args:
        fn: Function of the carry and of slices of the arguments, which returns the next carry.
        axis: The axis to run along, or several of them, outermost first.
        remat: As for `scan`.
        reverse: As for `scan`.
        unroll: As for `scan`.
        is_scanned: As for `scan`.

    Returns:
        Function of the initial carry and the arguments, which returns the final carry.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> nym.fold(lambda carry, v: carry + v, "i")(nym.named(0, ()), x).item()
        6
    """
    check_callable("fold", fn)

    def call_step(*args: P.args, **kwargs: P.kwargs) -> tuple[R, None]:
        return fn(*args, **kwargs), None

    loop = _Loop("fold", fn, call_step, parse_mapped_axes(axis), is_scanned, parse_remat(remat), reverse, unroll)

    def run_fold(init: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _run_loop(loop, init, (args, kwargs))[0]

    return run_fold


def map(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    remat: Remat = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: SliceSpec = is_array_with_axes,
) -> Callable[P, R]:
    """Applies a function to the slices of a named axis one after another; `vmap` does so all at once.

    Args:
        fn: Function of slices of the arguments.
        axis: The axis to run along, or several of them, outermost first.
        remat: As for `scan`.
        reverse: As for `scan`.
        unroll: As for `scan`.
        is_mapped: Which plain arrays are sliced, and along which axis if not the first; see `default` of `vmap`.

    Returns:
        Function of the arguments, whose results have the axis first.

    Example:
        >>> import axonym as nym
        >>> nym.map(lambda v: v * v, "i")(nym.arange(nym.Axis("i", 4))).array
        Array([0, 1, 4, 9], dtype=int32)
    """
    check_callable("map", fn)

    def call_step(carry: None, /, *args: P.args, **kwargs: P.kwargs) -> tuple[None, R]:
        return None, fn(*args, **kwargs)

    loop = _Loop("map", fn, call_step, parse_mapped_axes(axis), is_mapped, parse_remat(remat), reverse, unroll)

    def run_map(*args: P.args, **kwargs: P.kwargs) -> R:
        return _run_loop(loop, None, (args, kwargs))[1]

    return run_map


class _Loop(NamedTuple):
    """The body of a loop and the options given to `scan`, `fold` or `map`."""

    transform: str  # which of these three, for errors
    user_function: Callable[..., Any]  # for errors, which name its parameters
    step: Callable[..., tuple[Any, Any]]  # takes a carry and slices, returns the next carry and a result
    axes: tuple[AxisSelector, ...]  # outermost first
    slice_spec: SliceSpec
    policy: Policy
    reverse: bool
    unroll: int | bool


def _run_loop(loop: _Loop, init: Any, arguments: Any) -> tuple[Any, Any]:
    if not loop.axes:  # within the innermost loop
        args, kwargs = arguments
        return loop.step(init, *args, **kwargs)
    sliced_args = slice_args(arguments, loop.axes[0], loop.slice_spec, loop.transform, loop.user_function)
    if any(is_traced(leaf) for leaf in jax.tree.leaves((init, sliced_args.leaves))):
        carry, results = _scan_slices(loop, init, sliced_args)
    else:
        # Outside of a trace the loop is compiled here, with everything that is no array as part of the program.
        arrays, static = eqx.partition((init, sliced_args.leaves), is_array)

        def run_compiled(arrays: Any) -> tuple[Any, Any]:
            init, leaves = eqx.combine(arrays, static)
            return _scan_slices(loop, init, sliced_args._replace(leaves=leaves))

        # JAX keeps the program of a bare `jax.lax.scan`; the program of a function made here is discarded with it.
        try:
            carry, results = jit_inline(run_compiled)(arrays)
        except Exception as error:
            hide_library_frames(error)
            raise
    return carry, unpack_result(results)


def _scan_slices(loop: _Loop, init: Any, sliced_args: SlicedArgs) -> tuple[Any, Any]:
    name, size = sliced_args.axis.name, sliced_args.axis.size
    inner_loop = loop._replace(axes=loop.axes[1:])

    def run_step(carry: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        next_carry, results = _run_loop(inner_loop, carry, sliced_args.insert_slices(slices))
        _check_carry(loop.transform, carry, next_carry)
        return _reshard_carry(next_carry), pack_stacked(results, name)

    arrays = [_move_to_front(array, dim) for array, dim in zip(*sliced_args.get_sliced(), strict=True)]
    scan = functools.partial(jax.lax.scan, reverse=loop.reverse, unroll=loop.unroll)

    def run(step: Callable[..., Any], *operands: Any) -> Any:
        return checkpoint_scan(scan, step, loop.policy, size)(*operands)

    return _widen_gradients(run, run_step, _reshard_carry(init), arrays)


def _widen_gradients(run: Callable[..., Any], step: Callable[..., Any], *operands: Any) -> Any:
    """Runs a loop; gradients of the arrays that its step takes from around it add up in float32.

    `jax.lax.scan` itself adds up the gradients of all steps in the dtype of such an array.
    """
    traced_steps: dict[Any, tuple[Jaxpr, Any]] = {}

    def trace_step(*operands: Any) -> tuple[Jaxpr, Any]:
        leaves, treedef = jax.tree.flatten(operands)
        key = treedef, *(jax.typeof(leaf) for leaf in leaves)
        if key not in traced_steps:
            traced_steps[key] = jax.make_jaxpr(step, return_shape=True)(*operands)
        return traced_steps[key]

    def run_traced_step(*operands: Any) -> Any:
        return _evaluate_jaxpr(*trace_step(*operands), operands)

    # A step that is traced twice traces loops within it twice, and each of these its own step twice. So a loop over
    # 16-bit floats keeps its trace. Others seldom need it, and would take a tenth longer to trace.
    is_narrow = any(is_narrow_float(jax.typeof(leaf).dtype) for leaf in jax.tree.leaves(operands))
    first_step = run_traced_step if is_narrow else step
    loop_jaxpr, shapes = jax.make_jaxpr(functools.partial(run, first_step), return_shape=True)(*operands)
    narrow_arrays = [x for x in loop_jaxpr.consts if is_traced(x) and is_narrow_float(x.dtype)]
    if not narrow_arrays:
        return _evaluate_jaxpr(loop_jaxpr, shapes, operands)
    wide_arrays = {id(x): widen_float(x) for x in narrow_arrays}

    def run_wide_step(*operands: Any) -> Any:
        step_jaxpr, shapes = trace_step(*operands)
        consts: list[Any] = []
        for x in step_jaxpr.consts:
            if id(x) in wide_arrays:
                x = differentiate_as(jax.lax.stop_gradient(x), wide_arrays[id(x)])
            consts.append(x)
        return _evaluate_jaxpr(step_jaxpr.with_consts(consts), shapes, operands)

    return run(run_wide_step, *operands)


def _evaluate_jaxpr(jaxpr: Jaxpr, shapes: Any, operands: Any) -> Any:
    """Returns the tree of what a jaxpr computes of a tree."""
    results = jaxpr_as_fun(jaxpr)(*jax.tree.leaves(operands))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _check_carry(transform: str, carry: Any, next_carry: Any) -> None:
    """Raises a TypeError if a step changes the axes or dtype of its carry; JAX checks everything else."""
    leaves, treedef = jax.tree.flatten(carry, is_leaf=is_named_array)
    next_leaves, next_treedef = jax.tree.flatten(next_carry, is_leaf=is_named_array)
    if treedef != next_treedef:
        # A named array that becomes another tree, or the reverse; JAX reports all other changes of the structure.
        if not is_named_array(carry) and not is_named_array(next_carry):
            return
        leaves, next_leaves = [carry], [next_carry]
    for leaf, next_leaf in zip(leaves, next_leaves, strict=True):
        if not is_named_array(leaf) and not is_named_array(next_leaf):
            continue
        if _get_carry_axes(leaf) != _get_carry_axes(next_leaf):
            hint = ""
            if is_array(leaf) and is_named_array(next_leaf):
                sizes = dict(zip(next_leaf.names, next_leaf.array.shape, strict=True))
                start = f"axonym.zeros({sizes})" if sizes else "axonym.named(0.0, ())"
                hint = f", so start with `{start}`"
            raise make_error(
                TypeError,
                f"The carry of `{transform}` is {_format_carry(leaf)} before a step and {_format_carry(next_leaf)} "
                f"after it; every step must return it with the same axes in the same order{hint}.",
            )
        # JAX itself converts a weakly typed carry to the dtype that the step returns.
        if leaf.dtype != next_leaf.dtype and not jax.typeof(leaf.array).weak_type:
            raise make_error(
                TypeError,
                f"The carry of `{transform}` is {_format_carry(leaf)} of {leaf.dtype} before a step and of "
                f"{next_leaf.dtype} after it; convert it with `astype`.",
            )


def _get_carry_axes(leaf: Any) -> Any:
    return (leaf.names, leaf.array.shape) if is_named_array(leaf) else None


def _format_carry(leaf: Any) -> str:
    if isinstance(leaf, tuple):
        return f"({', '.join(_format_carry(item) for item in leaf)})"
    return f"a named array {format_shape(leaf)}" if is_named_array(leaf) else format_value(leaf)


def _reshard_carry(carry: Any) -> Any:
    """Returns a carry sharded by its names on an Explicit mesh, where JAX requires the same sharding at every step."""
    return jax.tree.map(lambda x: reshard_named(x) if is_named_array(x) else x, carry, is_leaf=is_named_array)


def _move_to_front(array: Any, dim: int) -> Any:
    """Returns an array with an axis first and sharded over no mesh axis, as `jax.lax.scan` requires."""
    array = jnp.moveaxis(array, dim, 0) if dim else array
    # Checked first, since each array of each call comes through here.
    if jax.typeof(array).sharding.spec.partitions[0] is None:
        return array
    names = name_dims(array)
    return replicate_axes(array, names, names[:1])
