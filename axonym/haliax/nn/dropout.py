"""`haliax.nn.dropout`: dropout as a layer and as a function."""

from typing import Any

from ... import nn
from .._array import convert_result


class Dropout(nn.Dropout):
    """Sets elements to zero with a probability; see `axonym.nn.Dropout`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.Dropout(0.5).is_active, hax.nn.Dropout(0.5, inference=True).is_active
        (True, False)
    """

    def __call__(self, x: Any, *, inference: bool | None = None, key: Any = None) -> Any:
        """Drops elements."""
        return convert_result(super().__call__(x, inference=inference, key=key))

    @property
    def is_active(self) -> bool:
        """Whether elements are dropped."""
        return not self.inference and self.pdrop > 0


def dropout(x: Any, pdrop: float, broadcast_axes: Any = None, *, inference: bool, key: Any = None) -> Any:
    """Sets elements to zero with a probability; see `axonym.nn.Dropout`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.dropout(hax.ones({"i": 2}), 0.5, inference=True).array
        Array([1., 1.], dtype=float32)
    """
    return Dropout(pdrop, broadcast_axes, inference)(x, key=key)
