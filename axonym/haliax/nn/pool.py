"""`haliax.nn.pool`: pooling, with any function or with maximum, minimum and mean."""

from collections.abc import Callable
from typing import Any

from ... import nn
from ...named._axis import AxisSpec
from ...named._base import with_array
from ...named._sharding import constrain_sharding
from ...nn._pool import plan_pool, reduce_windows
from ...nn._window import Padding as Padding
from .._adapt import adapt
from .._array import convert_result


DEFAULT_PADDING = "VALID"

max_pool = adapt(nn.max_pool, "inputs=x")
mean_pool = adapt(nn.mean_pool, "inputs=x")
min_pool = adapt(nn.min_pool, "inputs=x")


def pool(
    Window: AxisSpec,
    inputs: Any,
    init: Any,
    reduce_fn: Callable[..., Any],
    stride: Any = None,
    padding: Any = "VALID",
    use_ceil: bool = False,
) -> Any:
    """Reduces each window with a function of two elements, such as `jax.lax.add`; arguments as for `nn.max_pool`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.nn.pool.pool(hax.Axis("i", 2), hax.arange(hax.Axis("i", 4)), 0, jax.lax.add).array.tolist()
        [1, 3, 5]
    """
    plan = plan_pool("pool", Window, inputs, stride, padding, use_ceil)
    result = reduce_windows(inputs.names, plan, init, reduce_fn, inputs.array)
    return convert_result(constrain_sharding(with_array(inputs, result)))
