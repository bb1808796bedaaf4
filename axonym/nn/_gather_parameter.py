"""Gathering of parameters where layers use them; this is where FSDP collects the shards of a weight."""

from ..named._ambient import context
from ..named._array import NamedArray
from ..named._base import with_array


def gather_parameter(parameter: NamedArray) -> NamedArray:
    """Returns a parameter sharded by the active mapping, gathered from its stored shards if it is stored by another.

    The gradient is scattered back to the stored shards.
    """
    ambient = context.value
    if ambient is None or not parameter.names:
        return parameter
    return with_array(parameter, ambient.gather(parameter.array, parameter.names))
