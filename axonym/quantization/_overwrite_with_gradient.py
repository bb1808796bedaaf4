"""State that gradients carry: modules whose gradient holds what their next state is made from."""

from typing import Any, Self, TypeVar

import equinox as eqx
import jax


T = TypeVar("T")


class OverwriteWithGradient(eqx.Module):
    """Base class of modules whose gradient holds what their next state is made from, in place of derivatives.

    An optimizer must not see such a gradient: `partition_overwrites` takes it out of the others, and `apply_updates`
    makes the next state from it.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> class Count(nym.quantization.OverwriteWithGradient):
        ...     steps: jax.Array
        >>> tree = {"count": Count(jax.numpy.zeros(())), "weight": jax.numpy.ones(())}
        >>> gradients = {"count": Count(jax.numpy.full((), 7.0)), "weight": jax.numpy.full((), 0.25)}
        >>> overwrites, gradients = nym.quantization.partition_overwrites(gradients)
        >>> tree = nym.quantization.apply_updates(tree, gradients, overwrites)
        >>> float(tree["count"].steps), float(tree["weight"])
        (7.0, 1.25)
    """

    def overwrite(self, gradient: Self) -> Self:
        """Returns the next state, made from this one and a gradient; unless overridden, it is the gradient."""
        return gradient

    def accumulate(self, other: Self) -> Self:
        """Combines the gradients of two microbatches; unless overridden, the second is kept.

        This module is the gradient of the microbatches before, or zeros before the first.
        """
        return other


def partition_overwrites(tree: T) -> tuple[T, T]:
    """Splits gradients, or a model, into modules that gradients overwrite and the rest, which an optimizer updates.

    Args:
        tree: Gradients or a model.

    Returns:
        Two trees like the first, with None in place of what the other one has: the instances of
        `OverwriteWithGradient`, and all else.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Embed, Mlp = nym.make_axes(embed=4, mlp=8)
        >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> layer = nym.quantization.quantize_linear_layers(layer, nym.quantization.Float8DotGeneral.init())
        >>> overwrites, parameters = nym.quantization.partition_overwrites(layer)
        >>> parameters.dot_general is None, overwrites.weight.array is None
        (True, True)
    """
    return eqx.partition(tree, _is_overwritten, is_leaf=_is_overwritten)


def apply_updates(tree: T, updates: Any, overwrites: Any) -> T:
    """Adds an optimizer's updates to a model, and gives modules that gradients overwrite their next state.

    Args:
        tree: The model.
        updates: What the optimizer adds to the parameters, None where nothing is added.
        overwrites: The first tree of `partition_overwrites` of the gradients.

    Returns:
        The next model.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> tree, updates = {"weight": jnp.ones(2), "step": 3}, {"weight": jnp.full(2, 0.5), "step": None}
        >>> nym.quantization.apply_updates(tree, updates, {"weight": None, "step": None})["weight"].tolist()
        [1.5, 1.5]
    """
    tree = eqx.apply_updates(tree, updates)
    return jax.tree.map(
        lambda gradient, module: module if gradient is None else module.overwrite(gradient),
        overwrites,
        tree,
        is_leaf=lambda x: x is None or _is_overwritten(x),
    )


def accumulate_gradients(accumulated: T, gradients: T) -> T:
    """Adds the gradients of a microbatch to those of the microbatches before it.

    Divide the sum by the number of microbatches after `partition_overwrites`, so that state is not divided.

    Args:
        accumulated: The gradients so far; before the first microbatch, zeros.
        gradients: The gradients of a microbatch.

    Returns:
        The sums, and for an `OverwriteWithGradient` what its method `accumulate` returns.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> nym.quantization.accumulate_gradients({"weight": 1.0, "bias": None}, {"weight": 0.5, "bias": None})
        {'bias': None, 'weight': 1.5}
    """
    return jax.tree.map(
        lambda total, gradient: total.accumulate(gradient) if _is_overwritten(total) else total + gradient,
        accumulated,
        gradients,
        is_leaf=_is_overwritten,
    )


def _is_overwritten(x: Any) -> bool:
    return isinstance(x, OverwriteWithGradient)
