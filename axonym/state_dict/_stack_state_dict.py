"""`stack_state_dict` and `unstack_state_dict`: between numbered layers and arrays with an axis for the layers."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from ..named._numpy_input import MASK_PROBLEM
from ._keys import check_key_part, check_state_dict


def stack_state_dict(state_dict: Mapping[str, Any], prefix: str | None = None) -> dict[str, Any]:
    """Stacks the arrays of numbered layers: `blocks.0.weight`, `blocks.1.weight` and so on become `blocks.weight`.

    Args:
        state_dict: Plain arrays by key.
        prefix: What precedes the number of a layer; None if it comes first.

    Returns:
        A state dict in which the arrays of layers have an axis for the layers first. Other arrays are as they were.

    Raises:
        TypeError: If the state dict is not a mapping with strings as keys, or the prefix is not a string.
        ValueError: If the numbers of the layers that have an array have gaps, its shape differs between layers, there
            is already an array with the key of the stacked one, or an array is a masked one of NumPy.

    Example:
        >>> import axonym as nym
        >>> import numpy as np
        >>> state = {"blocks.0.bias": np.zeros(3), "blocks.1.bias": np.ones(3), "scale": np.ones(2)}
        >>> {key: x.shape for key, x in nym.state_dict.stack_state_dict(state, "blocks").items()}
        {'blocks.bias': (2, 3), 'scale': (2,)}
    """
    check_state_dict(state_dict)
    check_key_part(prefix)
    start = f"{prefix}." if prefix else ""
    layers: dict[str, dict[int, Any]] = {}
    stacked: dict[str, Any] = {}
    for key, array in state_dict.items():
        number, _, name = key.removeprefix(start).partition(".")
        if key.startswith(start) and number.isdecimal() and name:
            layers.setdefault(name, {})[int(number)] = array
            stacked.setdefault(start + name, None)
        else:
            stacked[key] = array
    for name, arrays in layers.items():
        if stacked[start + name] is not None:
            raise ValueError(f"two arrays would have the key {start + name!r}; rename the one that is not of a layer")
        stacked[start + name] = _stack_layers(f"{start}*.{name}", arrays)
    return stacked


def _stack_layers(key: str, arrays: Mapping[int, Any]) -> Any:
    if missing_numbers := sorted(set(range(max(arrays))) - set(arrays)):
        raise ValueError(
            f"{key!r} cannot be stacked: there is none of layer {missing_numbers[0]}, but one of {max(arrays)}"
        )
    layers = [arrays[number] for number in range(len(arrays))]
    if any(isinstance(array, MaskedArray) for array in layers):
        raise ValueError(f"{key!r} {MASK_PROBLEM}")
    if len(shapes := {np.shape(array): None for array in layers}) > 1:
        raise ValueError(f"{key!r} cannot be stacked: it has the shapes {', '.join(map(str, shapes))}")
    return jnp.stack(layers) if any(isinstance(array, jax.Array) for array in layers) else np.stack(layers)


def unstack_state_dict(state_dict: Mapping[str, Any], prefix: str | None = None) -> dict[str, Any]:
    """Splits the arrays below a prefix along their first axis; the inverse of `stack_state_dict`.

    Args:
        state_dict: Plain arrays by key.
        prefix: What precedes the names of the stacked arrays; None if nothing does.

    Returns:
        A state dict with one array for each layer, which has its number in the key.

    Raises:
        TypeError: If the state dict is not a mapping with strings as keys, or the prefix is not a string.
        ValueError: If an array below the prefix has no axes or is a masked one of NumPy.

    Example:
        >>> import axonym as nym
        >>> import numpy as np
        >>> list(nym.state_dict.unstack_state_dict({"blocks.bias": np.zeros((2, 3)), "scale": np.ones(2)}, "blocks"))
        ['blocks.0.bias', 'blocks.1.bias', 'scale']
    """
    check_state_dict(state_dict)
    check_key_part(prefix)
    start = f"{prefix}." if prefix else ""
    unstacked: dict[str, Any] = {}
    for key, array in state_dict.items():
        if not key.startswith(start):
            unstacked[key] = array
            continue
        if isinstance(array, MaskedArray):
            raise ValueError(f"{key!r} {MASK_PROBLEM}")
        if np.ndim(array) == 0:
            raise ValueError(f"{key!r} has no axes, so that it cannot be split into layers; leave it out")
        name = key.removeprefix(start)
        unstacked |= {f"{start}{number}.{name}": layer for number, layer in enumerate(array)}
    return unstacked
