"""`microbatch`: runs a function of a batch on parts of it, one after another: gradient accumulation."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis, AxisSelector, axis_name, check_callable
from ..named._base import format_shape, with_array
from ..named._broadcasting import jit_inline
from ..named._shape._flatten import unflatten_axis


P = ParamSpec("P")
R = TypeVar("R")

_PARTS = "axonym microbatches"


def microbatch(fn: Callable[P, R], axis: AxisSelector, count: int, *, dtype: Any = None) -> Callable[P, R]:
    """Makes a function that runs `fn` on parts of a batch, one after another, and averages what it returns.

    For the function that `jax.value_and_grad` makes of a mean loss, it returns the value and the gradient of the whole
    batch, and takes the memory for the activations of one part: gradient accumulation. The sums have the sharding of
    the gradients; under `fsdp`, that of the stored parameters.

    The batch stays where it is: microbatch `i` has the examples `i`, `i + count`, `i + 2 * count`..., so that each
    device has its share of each of them. Devices exchange gradients, and gather parameters, in each microbatch.

    Args:
        fn: A function whose results are averages over the batch, such as what `jax.value_and_grad` returns.
        axis: The axis of the batch. Named arrays among the arguments that have it are split; everything else is the
            same for all microbatches, except that typed random keys without axes are folded with their number.
        count: The number of microbatches; 1 calls `fn` as it is.
        dtype: The dtype in which floating-point results are added up, such as `jnp.float32` for gradients in bfloat16;
            that of each result if None.

    Returns:
        A function of the same arguments, which returns trees like those of `fn`: averages of floating-point arrays,
        sums of integers such as counts, and for modules with a method `accumulate`, such as
        [`OverwriteWithGradient`][axonym.quantization.OverwriteWithGradient], what that returns.

    Raises:
        TypeError: If `fn` cannot be called, or `count` is not an integer.
        ValueError: If `count` is less than 1. When called, if no argument has the axis, its size is not divisible by
            `count`, or a result has the axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> def loss(weight, x):
        ...     return (nym.dot(x, weight, axis="embed") ** 2).mean().scalar()
        >>> weight, x = nym.arange(nym.Axis("embed", 4)) / 4, nym.ones({"batch": 8, "embed": 4})
        >>> value, gradient = nym.microbatch(jax.value_and_grad(loss), "batch", 2)(weight, x)
        >>> value.item(), gradient
        (2.25, NamedArray(float32, embed: 4, [3., 3., 3., 3.]))
    """
    check_callable("microbatch", fn)
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"`count` is the number of microbatches, an integer; it was {count!r}")
    if count < 1:
        raise ValueError(f"`count` is the number of microbatches, 1 or more; it was {count}")
    name = axis_name(axis)

    @functools.wraps(fn)
    def run_microbatches(*args: P.args, **kwargs: P.kwargs) -> R:
        if count == 1:
            return fn(*args, **kwargs)
        leaves, treedef = jax.tree.flatten((args, kwargs), is_leaf=is_named_array)
        split = {at: _split_batch(leaf, name, count) for at, leaf in enumerate(leaves) if _has_axis(leaf, name)}
        if not split:
            raise ValueError(f"`microbatch` splits axis {name!r}, which no argument has")

        def call(number: Any, parts: list[Any]) -> R:
            given = [_fold_key(leaf, number) for leaf in leaves]
            for at, part in zip(split, parts, strict=True):
                given[at] = with_array(leaves[at], part)
            args, kwargs = jax.tree.unflatten(treedef, given)
            return fn(*args, **kwargs)

        return _accumulate(jit_inline(call), list(split.values()), name, count, dtype)

    return run_microbatches


def _has_axis(leaf: Any, name: str) -> bool:
    return isinstance(leaf, NamedArray) and name in leaf.names


def _split_batch(x: NamedArray, name: str, count: int) -> Any:
    """Returns the array of the microbatches, which come first; each has every `count`th example."""
    dim = x.names.index(name)
    size = x.array.shape[dim]
    if size % count:
        raise ValueError(f"axis {name!r} has size {size}, which is not divisible by {count} microbatches")
    split = unflatten_axis(x, name, (Axis(name, size // count), Axis(_PARTS, count)))
    return jnp.moveaxis(split.array, dim + 1, 0)


def _fold_key(leaf: Any, number: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and leaf.ndim == 0 and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.fold_in(leaf, number) if is_key else leaf


def _accumulate(call: Any, parts: list[Any], name: str, count: int, dtype: Any) -> Any:
    """Returns the averages of what a function of a number and one part of each array returns."""
    shapes = jax.eval_shape(lambda: call(0, [part[0] for part in parts]))
    for leaf in jax.tree.leaves(shapes, is_leaf=is_named_array):
        if _has_axis(leaf, name):
            raise ValueError(
                f"the function of `microbatch` returns an array with axis {name!r}, {format_shape(leaf)}; return "
                "averages over it, or sums of integers"
            )

    def add_results(totals: Any, given: tuple[Any, list[Any]]) -> tuple[Any, None]:
        results = call(*given)
        return jax.tree.map(_add_result, totals, results, is_leaf=_accumulates), None

    zeros = jax.tree.map(lambda shape: _make_zeros(shape, dtype), shapes, is_leaf=_accumulates)
    totals, _ = jax.lax.scan(add_results, zeros, (jnp.arange(count), parts))
    return jax.tree.map(lambda total, shape: _divide_total(total, shape, count), totals, shapes, is_leaf=_accumulates)


def _accumulates(x: Any) -> bool:
    return callable(getattr(type(x), "accumulate", None))


def _make_zeros(shape: Any, dtype: Any) -> Any:
    if _accumulates(shape):
        return jax.tree.map(jnp.zeros_like, shape)
    if jnp.issubdtype(shape.dtype, jnp.inexact):
        return jnp.zeros_like(shape, dtype=dtype or shape.dtype)
    return jnp.zeros_like(shape, dtype=jnp.promote_types(shape.dtype, jnp.int32))


def _add_result(total: Any, result: Any) -> Any:
    return total.accumulate(result) if _accumulates(total) else total + jnp.asarray(result).astype(total.dtype)


def _divide_total(total: Any, shape: Any, count: int) -> Any:
    if _accumulates(total) or not jnp.issubdtype(shape.dtype, jnp.inexact):
        return total
    return (total / count).astype(shape.dtype)
