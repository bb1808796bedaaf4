"""Gradients of functions whose result is a named scalar and whose arguments hold whatever a model holds."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

from ._axis import format_value
from ._base import NamedBase, format_shape


P = ParamSpec("P")
R = TypeVar("R")


def value_and_grad(
    fn: Callable[P, R], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """Makes a function that returns what `fn` does and the gradient of it; see `jax.value_and_grad`.

    Args:
        fn: Function whose result is one number: a named or a plain array without axes.
        argnums: Which positional argument the gradient is for, or which of several.
        has_aux: Whether `fn` returns a pair, of which the second part is handed on as it is.

    Returns:
        Function of the same arguments, which returns what `fn` returned, and the gradient. The gradient is a tree like
        the argument (a tuple of them if `argnums` is a sequence), with None for what is no array of real or complex
        numbers, as that of `equinox.filter_grad`. An argument that is itself a Python float has one too.

    Raises:
        ValueError: When called, if the result has axes, or there is no such argument.
        TypeError: When called, if an argument has nothing to differentiate, or `fn` returns no pair as `has_aux` says.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 3.0], "embed")
        >>> nym.value_and_grad(lambda x: (x * x).sum())(x)
        (NamedArray(float32, 14.), NamedArray(float32, embed: 3, [2., 4., 6.]))
    """

    def differentiated(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
        call: Callable[..., Any] = fn
        chosen = _chosen(argnums, args)
        parts = [_divided(at, args[at]) for at in chosen]

        def loss(variables: Sequence[Any]) -> tuple[Any, Any]:
            given: list[Any] = list(args)
            for at, variable, (_, rest) in zip(chosen, variables, parts, strict=True):
                given[at] = eqx.combine(variable, rest)
            returned = call(*given, **kwargs)
            return _scalar(_value(returned) if has_aux else returned), returned

        (_, returned), gradients = jax.value_and_grad(loss, has_aux=True)(tuple(variable for variable, _ in parts))
        return returned, gradients[0] if isinstance(argnums, int) else gradients

    return differentiated


def grad(fn: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[P, Any]:
    """Makes a function that returns the gradient of `fn`; see `jax.grad`.

    Args:
        fn: As for `value_and_grad`.
        argnums: As for `value_and_grad`.
        has_aux: As for `value_and_grad`.

    Returns:
        Function of the same arguments, which returns the gradient; see `value_and_grad`. With `has_aux` it returns a
        pair of it and what `fn` returned beside its result.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 3.0], "embed")
        >>> nym.grad(lambda x: (x * x).sum())(x)
        NamedArray(float32, embed: 3, [2., 4., 6.])
    """
    both = value_and_grad(fn, argnums, has_aux)

    def differentiated(*args: P.args, **kwargs: P.kwargs) -> Any:
        returned, gradients = both(*args, **kwargs)
        return (gradients, returned[1]) if has_aux else gradients

    return differentiated


def _chosen(argnums: int | Sequence[int], args: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the arguments that the gradient is for."""
    asked = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for at in asked:
        if not -len(args) <= at < len(args):
            raise ValueError(f"the gradient is for positional argument {at}, but {len(args)} are given by position")
    return tuple(at % len(args) for at in asked)


def _divided(at: int, argument: Any) -> tuple[Any, Any]:
    """Returns an argument in two trees: the arrays to differentiate by, and the rest."""
    if isinstance(argument, float | complex):
        return argument, None
    variable, rest = eqx.partition(argument, eqx.is_inexact_array)
    if not jax.tree.leaves(variable):
        kind = " ".join([type(argument).__name__, *map(str, [argument.dtype] if hasattr(argument, "dtype") else [])])
        raise TypeError(f"Argument {at} has no array of real numbers to differentiate by; it is of type {kind}.")
    return variable, rest


def _value(returned: Any) -> Any:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError("A function with `has_aux=True` must return a pair: its value and what else it computed.")
    return returned[0]


def _scalar(value: Any) -> Any:
    array = value.array if isinstance(value, NamedBase) else value
    if getattr(array, "shape", ()):
        what = format_shape(value) if isinstance(value, NamedBase) else format_value(value)
        raise ValueError(f"a gradient is that of a scalar, and the function returned {what}; use `.sum()` or `.mean()`")
    return array
