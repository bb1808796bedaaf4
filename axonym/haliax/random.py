"""`haliax.random`: named arrays of random numbers."""

from typing import Any

from .. import random
from ..named._axis import parse_axes
from ..named._wide_sums import widen_float_dtype
from ._adapt import adapt, adapt_all
from ._array import convert_result


globals().update(
    adapt_all(
        random,
        {
            "": """
            ball bernoulli beta cauchy choice exponential gamma gumbel laplace loggamma logistic normal
            pareto permutation poisson randint t truncated_normal uniform weibull_min
            """
        },
    )
)


def categorical(key: Any, logits: Any, axis: Any, shape: Any = None) -> Any:
    """Draws from categories along an axis, with the samples of Haliax for the same key and logits in float32.

    Args:
        key: A random key.
        logits: Unnormalised log-probabilities with the axis and any others.
        axis: The axis of the categories.
        shape: Axes of the result, among them those of the logits but for `axis`; these by default.

    Returns:
        Integer array.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> logits = hax.named([[0.0, -100.0], [-100.0, 0.0]], ("batch", "label"))
        >>> hax.random.categorical(jax.random.key(0), logits, "label").array
        Array([0, 1], dtype=int32)
    """
    axes = logits.axes
    if shape is not None:
        # Haliax draws with the axis of the categories before those that follow it in the logits.
        axes, class_axis = list(parse_axes(shape)), logits.resolve_axis(axis)
        following = logits.names[logits.names.index(class_axis.name) + 1 :]
        positions = (position for position, batch_axis in enumerate(axes) if batch_axis.name in following)
        axes.insert(next(positions, len(axes)), class_axis)
        logits = logits.broadcast_to(axes)
    # The largest of logits plus Gumbel noise is a draw from their softmax.
    dtype = widen_float_dtype(logits.dtype)
    noise = random.gumbel(key, axes, dtype)
    return convert_result((noise + logits.astype(dtype)).argmax(axis))


def rademacher(key: Any, shape: Any, dtype: Any = float) -> Any:
    """Returns -1 or 1 with equal probability, as floats by default; see `axonym.random.rademacher`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.random.rademacher(jax.random.key(0), {"i": 2}).dtype
        dtype('float32')
    """
    return adapt(random.rademacher)(key, shape, dtype)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
