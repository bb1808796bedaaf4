"""Dropout, in which all elements along chosen axes can be dropped together."""

from typing import Any

import equinox as eqx
import jax

from .. import random
from .._ground.arguments import check_number
from ..named._array import NamedArray
from ..named._axis import AxisSelection, axis_name, parse_selection
from ..named._elementwise._arithmetic import where
from ..named._named_call import named_call
from ..named._sharding import constrain_sharding
from ._layer import check_input


def _check_pdrop(pdrop: Any) -> Any:
    if isinstance(pdrop, jax.Array):
        raise TypeError("`pdrop` is a static Python number, not a JAX array; `axonym.random.bernoulli` takes arrays.")
    return check_number("Dropout: `pdrop`", pdrop, least=0, most=1)


class Dropout(eqx.Module):
    """Sets elements to zero with a probability, and scales the rest so that the mean stays the same.

    Args:
        pdrop: The probability of zero. It is static: not a leaf of the tree, and a new value causes a new trace.
        broadcast_axes: Axes along which all elements are dropped together; None for none.
        inference: Whether to return inputs unchanged; `equinox.nn.inference_mode` switches it.

    Raises:
        TypeError: If `pdrop` is a JAX array, or not a number.
        ValueError: If `pdrop` is not between 0 and 1.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.ones({"batch": 2, "embed": 1000})
        >>> dropped = nym.nn.Dropout(0.5)(x, key=jax.random.key(0))
        >>> float(dropped.max()), bool((dropped == 0).any())
        (2.0, True)
    """

    pdrop: float = eqx.field(static=True, default=0.5, converter=_check_pdrop)
    broadcast_axes: AxisSelection | None = eqx.field(static=True, default=None)
    inference: bool = False

    @named_call
    def __call__(self, x: NamedArray, *, inference: bool | None = None, key: jax.Array | None = None) -> NamedArray:
        """Drops elements.

        Args:
            x: Array of any axes.
            inference: Whether to return `x` unchanged; the layer's own setting if None.
            key: A random key, needed unless nothing is dropped.

        Returns:
            Array with the axes of `x`.

        Raises:
            ValueError: If the key is missing where one is needed, or `x` lacks one of `broadcast_axes`.
            TypeError: If `x` is not a named array.
        """
        shared = () if self.broadcast_axes is None else parse_selection(self.broadcast_axes)
        check_input("Dropout", x, shared)
        if inference is None:
            inference = self.inference
        if inference or self.pdrop == 0:
            return x
        if key is None:
            raise ValueError("`Dropout` needs a `key` when it drops elements; give one, or set `inference=True`.")
        names = {axis_name(axis) for axis in shared}
        mask = random.bernoulli(key, tuple(axis for axis in x.axes if axis.name not in names), 1.0 - self.pdrop)
        scaled = x if self.pdrop == 1 else x / (1 - self.pdrop)
        return constrain_sharding(where(mask, scaled, 0))
