"""`haliax.jax_utils`: small helpers around JAX."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .. import multihost
from .._ground.jax_compat import is_tracing
from ..named import _named_call
from ..named._array import is_named_array
from ..named._transforms import _checkpoint
from ._adapt import rename_parameters


combine = eqx.combine
filter_checkpoint = eqx.filter_checkpoint
filter_eval_shape = eqx.filter_eval_shape
is_in_jit = is_tracing
tree_checkpoint_name = rename_parameters(_checkpoint.tree_checkpoint_name, "x=tree")


class Static(eqx.Module):
    """A value that is part of the tree structure.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.Static(3).value
        3
    """

    value: Any = eqx.field(static=True)


def named_call(f: Callable[..., Any] | None = None, name: str | None = None) -> Any:
    """Names what a function computes, in jaxprs, HLO and profiles; also a decorator. See `axonym.named_call`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.named_call(lambda x: x + 1, name="increment")(1)
        2
    """
    return _named_call.named_call(f, name=name)


def maybe_rng_split(key: Any, num: int = 2) -> Any:
    """Splits a random key; None gives a list of None.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.maybe_rng_split(None)
        [None, None]
    """
    return [None] * num if key is None else jax.random.split(key, num)


def shaped_rng_split(key: Any, split_shape: int | Sequence[int] = 2) -> Any:
    """Splits a random key into an array of keys of a shape.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.jax_utils.shaped_rng_split(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """
    shape = (split_shape,) if isinstance(split_shape, int) else tuple(split_shape)
    keys = jax.random.split(key, math.prod(shape))
    return keys.reshape(*shape, *keys.shape[1:])


def is_jax_array_like(x: Any) -> bool:
    """Returns whether something has a shape and a dtype.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.is_jax_array_like(hax.ones({"i": 2})), hax.jax_utils.is_jax_array_like(1.0)
        (True, False)
    """
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_scalarish(x: Any) -> bool:
    """Returns whether something has no axes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.is_scalarish(1.0)
        True
    """
    return (x.ndim if is_named_array(x) else np.ndim(x)) == 0


def ensure_scalar(x: Any, *, name: str = "value") -> Any:
    """Returns the plain array of a named array without axes, and anything else as it is.

    Raises:
        TypeError: If it is a named array with axes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.ensure_scalar(hax.named(1.0, ()))
        Array(1., dtype=float32, weak_type=True)
    """
    if not is_named_array(x):
        return x
    if x.ndim:
        raise TypeError(f"`{name}` must be a scalar, it has the axes {', '.join(x.names)}")
    return x.array


def is_pallas_dslice(x: object) -> bool:
    """Returns whether something is a slice of `jax.experimental.pallas`.

    Example:
        >>> import axonym.haliax as hax
        >>> from jax.experimental import pallas
        >>> hax.jax_utils.is_pallas_dslice(pallas.ds(0, 2)), hax.jax_utils.is_pallas_dslice(hax.ds(0, 2))
        (True, False)
    """
    from jax.experimental import pallas  # which takes long to import

    return isinstance(x, pallas.Slice)


def is_on_mac_metal() -> bool:
    """Returns whether the default backend is Metal, for the GPUs of Apple.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.is_on_mac_metal()
        False
    """
    return jax.default_backend().lower() == "metal"


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Returns the values of process 0 on all processes; see `axonym.broadcast_from_host_zero`.

    Raises:
        ValueError: If another process should be the source.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.broadcast_one_to_all({"seed": 3})["seed"]
        3
    """
    if is_source is not None and is_source != (jax.process_index() == 0):
        raise ValueError("only process 0 can be the source of a broadcast; leave `is_source` out")
    return multihost.broadcast_from_host_zero(in_tree)


def sync_global_devices(name: str) -> None:
    """Waits until all processes have reached this call; see `axonym.barrier_sync`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.sync_global_devices("start")
    """
    multihost.barrier_sync(name=name)


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Raises an error if a tree of values is not the same in all processes; see `axonym.assert_same_on_all_hosts`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.assert_equal({"step": 3}, "step")
    """
    multihost.assert_same_on_all_hosts(in_tree, fail_message or "values")


def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Repeats each leaf of a prefix for all leaves below it in a full tree; see `jax.tree.broadcast`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.jax_utils.broadcast_prefix(1, {"a": 2, "b": 3})
        {'a': 1, 'b': 1}
    """
    return jax.tree.broadcast(prefix_tree, full_tree, is_leaf=is_leaf)


def multilevel_scan(
    f: Callable[..., Any], carry: Any, xs: Any, outer_size: int, length: int, reverse: bool = False, unroll: int = 1
) -> tuple[Any, Any]:
    """Scans in two nested loops, and saves only the carries of the outer one; see `jax.lax.scan`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> carry, sums = hax.jax_utils.multilevel_scan(lambda c, x: (c + x, c + x), 0, jnp.arange(4), 2, 4)
        >>> sums
        Array([0, 1, 3, 6], dtype=int32)
    """
    if length % outer_size:
        raise ValueError(f"{length} steps cannot be split into {outer_size} equal parts")
    parts = jax.tree.map(lambda x: x.reshape(outer_size, length // outer_size, *x.shape[1:]), xs)
    inner = functools.partial(jax.lax.scan, f, reverse=reverse, unroll=unroll)
    # The backward pass repeats the inner loop; `prevent_cse` is not needed within a scan.
    carry, results = jax.lax.scan(jax.checkpoint(inner, prevent_cse=False), carry, parts, reverse=reverse)
    return carry, jax.tree.map(lambda x: x.reshape(length, *x.shape[2:]), results)
