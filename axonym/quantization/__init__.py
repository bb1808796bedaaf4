"""Dots in 8-bit integers and floats, as a `dot_general` of linear layers, and state that gradients carry."""

from ._dot_general import Float8DotGeneral as Float8DotGeneral, Int8DotGeneral as Int8DotGeneral
from ._overwrite_with_gradient import (
    OverwriteWithGradient as OverwriteWithGradient,
    accumulate_gradients as accumulate_gradients,
    apply_updates as apply_updates,
    partition_overwrites as partition_overwrites,
)
from ._quantize_linear_layers import quantize_linear_layers as quantize_linear_layers
