"""`haliax.nn.conv`: convolutions whose weights have the names of the spatial axes."""

from typing import Any, ClassVar

import equinox as eqx
import jax

from ... import nn
from ...named._axis import Axis, AxisSelection, axis_name, parse_selection
from ...named._named_call import named_call
from .._array import NamedArray, convert_result


class _ConvBase(eqx.Module):
    """Base class of the convolutions, which hold the options and parameters of a layer of `axonym.nn`."""

    Spatial: tuple[str | Axis, ...] = eqx.field(static=True)
    In: Axis = eqx.field(static=True)
    Out: Axis = eqx.field(static=True)
    weight: NamedArray
    bias: NamedArray | None
    kernel_size: tuple[int, ...] = eqx.field(static=True)
    stride: tuple[int, ...] = eqx.field(static=True)
    padding: Any = eqx.field(static=True)
    _kind: ClassVar[Any]
    _options: ClassVar[tuple[str, ...]] = ("In", "Out", "kernel_size", "stride", "padding", "dilation", "groups")

    @classmethod
    def _from_layer(cls, Spatial: AxisSelection, layer: Any) -> Any:
        # Here the axes of the window have the names of the spatial axes, and the group that of the input channels.
        kernels = dict(zip(layer.weight.names[2:], layer.Spatial, strict=True))
        weight = convert_result(layer.weight.rename({layer.weight.names[1]: layer.In.name, **kernels}))
        options = {name: getattr(layer, name) for name in cls._options}
        return cls(Spatial=parse_selection(Spatial), weight=weight, bias=convert_result(layer.bias), **options)

    @named_call
    def __call__(self, inputs: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies the layer."""
        names = tuple(map(axis_name, self.Spatial))
        options = {name: getattr(self, name) for name in self._options}
        group = self.In.name if options["groups"] == 1 else f"{self.In.name}_per_group"
        weight = self.weight.rename({self.In.name: group, **{name: f"kernel_{name}" for name in names}})
        layer = self._kind(weight, self.bias, Spatial=names, padding_mode="zeros", **options)
        return convert_result(layer(inputs))


class Conv(_ConvBase):
    """A convolution along any number of spatial axes; see `axonym.nn.Conv`.

    Attributes:
        Spatial: The spatial axes, as they were given.
        In: The axis of the input channels.
        Out: The axis of the output channels.
        weight: Array with the output channels, the input channels of one group, and the window by spatial axis.
        bias: Array with the output channels, or None.
        kernel_size: The size of the window along each spatial axis.
        stride: How far the window moves each time.
        padding: Pairs of numbers, or the name of a padding.
        dilation: The distance of the elements of a window.
        groups: Into how many groups the channels are split.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> Height, Rgb, Channels = hax.make_axes(height=8, rgb=3, channels=16)
        >>> layer = hax.nn.Conv.init(Height, Rgb, Channels, kernel_size=3, key=jax.random.key(0))
        >>> layer.weight.shape, layer(hax.ones((Height, Rgb))).shape
        ({'channels': 16, 'rgb': 3, 'height': 3}, {'height': 6, 'channels': 16})
    """

    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    _kind = nn.Conv

    @staticmethod
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: Any,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: Any,
    ) -> "Conv":
        """Makes a layer with random weights."""
        options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return Conv._from_layer(
            Spatial, nn.Conv.init(Spatial, In, Out, kernel_size, **options, use_bias=use_bias, key=key)
        )


class ConvTranspose(_ConvBase):
    """A transposed convolution along any number of spatial axes; see `axonym.nn.ConvTranspose`.

    Attributes:
        Spatial: The spatial axes, as they were given.
        In: The axis of the input channels.
        Out: The axis of the output channels.
        weight: Array with the output channels, the input channels of one group, and the window by spatial axis.
        bias: Array with the output channels, or None.
        kernel_size: The size of the window along each spatial axis.
        stride: The stride of the corresponding convolution.
        padding: The padding of the corresponding convolution.
        output_padding: How much longer the result is.
        dilation: The distance of the elements of a window.
        groups: Into how many groups the channels are split.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> Height, Channels, Rgb = hax.make_axes(height=3, channels=16, rgb=3)
        >>> layer = hax.nn.ConvTranspose.init(Height, Channels, Rgb, kernel_size=4, stride=2, key=jax.random.key(0))
        >>> layer(hax.ones((Height, Channels))).shape
        {'height': 8, 'rgb': 3}
    """

    output_padding: tuple[int, ...] = eqx.field(static=True)
    dilation: tuple[int, ...] = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    _kind = nn.ConvTranspose
    _options = (*_ConvBase._options, "output_padding")

    @staticmethod
    def init(
        Spatial: AxisSelection,
        In: Axis,
        Out: Axis,
        kernel_size: Any,
        *,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        use_bias: bool = True,
        key: Any,
    ) -> "ConvTranspose":
        """Makes a layer with random weights."""
        options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        options |= {"output_padding": output_padding, "use_bias": use_bias}
        return ConvTranspose._from_layer(
            Spatial, nn.ConvTranspose.init(Spatial, In, Out, kernel_size, **options, key=key)
        )
