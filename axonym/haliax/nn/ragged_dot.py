"""`haliax.nn.ragged_dot`: products of groups of rows with one matrix each."""

from typing import Literal, TypeAlias, get_args

import jax

from ... import nn
from ...named._creation import named


Implementation: TypeAlias = Literal["auto", "megablox", "triton", "triton_group_grid", "triton_tile_map", "xla"]


def ragged_dot(
    lhs_: jax.Array, rhs_: jax.Array, group_sizes_: jax.Array, ar: bool = False, implementation: Implementation = "auto"
) -> jax.Array:
    """Multiplies rows, which are sorted by group, with the matrix of their group; see `axonym.nn.ragged_dot`.

    Takes plain arrays.

    Args:
        lhs_: The rows.
        rhs_: The matrices: groups, inputs and outputs.
        group_sizes_: The number of rows of each group.
        ar: Has no effect: partial sums of devices are always added up.
        implementation: Has no effect: the compiler chooses how the product is computed.

    Returns:
        Array of rows and outputs.

    Raises:
        ValueError: If there is no such implementation in Haliax.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax.numpy as jnp
        >>> hax.nn.ragged_dot(jnp.ones((3, 2)), jnp.ones((2, 2, 4)), jnp.array([1, 2])).shape
        (3, 4)
    """
    if implementation not in get_args(Implementation):
        choices = ", ".join(get_args(Implementation))
        raise ValueError(f"`implementation` is one of {choices}, not {implementation!r}")
    x, weight = named(lhs_, ("rows", "in")), named(rhs_, ("groups", "in", "out"))
    return nn.ragged_dot(x, weight, named(group_sizes_, "groups"), "in").array
