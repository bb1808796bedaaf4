"""Group normalisation, with statistics in float32 at least."""

from typing import Any

import equinox as eqx
import jax

from ..named._ambient import constrain_sharding
from ..named._arguments import check_integer, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, Names, axis_name, check_selected_once, parse_selection
from ..named._base import with_array
from ..named._broadcasting import cached_jit
from ..named._creation import ones, zeros
from ..named._named_call import named_call
from ..named._operation import run_operation
from ._inputs import cast_array, check_input, widen_array
from ._layer import Layer
from ._normalization import normalize_dims, scale_and_shift


class GroupNorm(Layer):
    """Splits channels into groups and normalises each, then applies weight and bias (Wu and He, 2018).

    One group is layer normalisation over channels and other axes, a group for each channel instance normalisation.

    Attributes:
        weight: Array with the channels, or None.
        bias: Array with the channels, or None.
        Channels: The axis that is split into groups.
        groups: The number of groups.
        axis: The names of the other axes normalised over.
        eps: Added to the variance.
    """

    weight: NamedArray | None
    bias: NamedArray | None
    Channels: Axis = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    axis: Names = eqx.field(static=True)
    eps: float = eqx.field(static=True)

    @staticmethod
    def init(
        Channels: Axis,
        groups: int,
        axis: AxisSelection = (),
        eps: float = 1e-5,
        *,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
    ) -> "GroupNorm":
        """Makes a layer with weight 1 and bias 0.

        Args:
            Channels: The axis that is split into groups of neighbours.
            groups: The number of groups.
            axis: More axes over which each group is normalised, such as height and width, by name.
            eps: Added to the variance.
            use_weight: Whether to multiply by a weight for each channel.
            use_bias: Whether to add a bias for each channel.
            dtype: dtype of weight and bias.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            TypeError: If `Channels` is not an `Axis`.
            ValueError: If the number of channels is not divisible by the number of groups, or an axis occurs twice.

        Example:
            >>> import axonym as nym
            >>> layer = nym.nn.GroupNorm.init(nym.Axis("channels", 4), 2)
            >>> layer(nym.named([1.0, 3.0, 5.0, 5.0], "channels")).array.round(3)
            Array([-1.,  1.,  0.,  0.], dtype=float32)
        """
        if not isinstance(Channels, Axis):
            raise TypeError(f"GroupNorm: `Channels` is an `Axis`, not {Channels!r}.")
        groups, eps = check_integer("GroupNorm: `groups`", groups, 1), check_number("GroupNorm: `eps`", eps, least=0)
        if Channels.size % groups:
            raise ValueError(f"GroupNorm ({Channels}): the number of channels is not divisible by {groups} groups")
        names = tuple(map(axis_name, parse_selection(axis)))
        check_selected_once((Channels.name, *names))
        weight = ones(Channels, dtype) if use_weight else None
        return GroupNorm(weight, zeros(Channels, dtype) if use_bias else None, Channels, groups, names, eps)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalises.

        Args:
            x: Array with the channels, the other axes normalised over, and any others.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes and the dtype of `x`.

        Raises:
            ValueError: If `x` lacks one of the axes.
        """
        dim, *dims = check_input(f"GroupNorm ({self.Channels})", x, (self.Channels, *self.axis))
        wide = widen_array(x)
        normalize = cached_jit(_normalize_groups, wide.names, dim, tuple(dims), self.groups, float(self.eps))
        result = scale_and_shift(with_array(wide, normalize(wide.array)), self.weight, self.bias)
        return constrain_sharding(cast_array(result, x.dtype))


def _normalize_groups(
    names: Names, dim: int, dims: tuple[int, ...], groups: int, eps: float, array: jax.Array
) -> jax.Array:
    def normalize(array: jax.Array) -> jax.Array:
        shape = array.shape
        split = array.reshape((*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :]))
        inner = (dim + 1, *(other + (other > dim) for other in dims))
        return normalize_dims(inner, eps, True, split).reshape(shape)

    # Groups need not be divisible by the mesh axes of the channels.
    return run_operation(normalize, [names], names, array, by_compiler=True, sizes=array.shape)
