"""What layers share: parameters where they are used, and errors that name the layer."""

from typing import Any

from ..named._ambient import gathered
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSpec, Names, listed, positions, spec_axes
from ..named._base import described


def in_use(parameter: NamedArray) -> NamedArray:
    """Returns a parameter as the mapping in force shards it: under FSDP, gathered where it is used."""
    return gathered(parameter)


def shown(axes: AxisSpec) -> str:
    """Shows axes as error messages do, without the brackets."""
    one = spec_axes(axes)
    return listed([axis.name for axis in one], [axis.size for axis in one])[1:-1]


def check_input(layer: str, x: Any, axis: AxisSelection, new: Names = ()) -> None:
    """Raises an error that names the layer if its input lacks an axis or has one that the layer adds.

    Raises:
        TypeError: If the input is not a named array.
        ValueError: If an axis is missing, has another size, or is there already.
    """
    if not isinstance(x, NamedArray):
        raise TypeError(f"{layer}: the input must be a named array, not {type(x).__name__}; use `axonym.named`.")
    try:
        positions(x.names, x.array.shape, axis)
    except ValueError as error:
        raise ValueError(f"{layer}: {error}") from None
    if clash := [name for name in new if name in x.names]:
        raise ValueError(f"{layer}: the input {described(x)} has the output axis {clash[0]!r} already; `rename` it")
