"""Gradients of functions of models and other trees whose result is a named scalar."""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

from .._ground.arguments import check_callable
from .._ground.errors import hide_library_frames, make_error
from .._ground.formats import format_value
from ._base import NamedBase, format_shape, get_plain_array
from ._named_call import enter_scope


P = ParamSpec("P")
R = TypeVar("R")


def value_and_grad(
    fn: Callable[P, R], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """Makes a function that returns the value of `fn` and its gradient; see `jax.value_and_grad`.

    Args:
        fn: Function whose result is a scalar: a named or a plain array without axes.
        argnums: The positional argument to differentiate with respect to, or a sequence of them.
        has_aux: Whether `fn` returns a pair, whose second element is returned as it is.

    Returns:
        Function of the same arguments, which returns the result of `fn` and the gradient. The gradient is a tree like
        the argument (a tuple of them if `argnums` is a sequence), with None for leaves that are not arrays of real or
        complex numbers, as in `equinox.filter_grad`. An argument that is itself a Python float has a gradient too.

    Raises:
        ValueError: When called, if the result has axes, or there is no such argument.
        TypeError: When called, if an argument has nothing to differentiate, or `fn` with `has_aux` does not return
            a pair.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 3.0], "embed")
        >>> nym.value_and_grad(lambda x: (x * x).sum())(x)
        (NamedArray(float32, 14.), NamedArray(float32, embed: 3, [2., 4., 6.]))
    """
    check_callable("value_and_grad", fn)

    def compute_value_and_grad(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any]:
        call_fn: Callable[..., Any] = fn  # as `P` rejects rebuilt arguments
        indices = _resolve_argnums(argnums, args)
        partitions = [_partition_argument(index, args[index]) for index in indices]

        def compute_loss(variables: Sequence[Any]) -> tuple[Any, Any]:
            arguments: list[Any] = list(args)
            for index, variable, (_, constants) in zip(indices, variables, partitions, strict=True):
                arguments[index] = eqx.combine(variable, constants)
            # JAX has rebuilt the arguments, so modules in them get their paths anew; see `named_call`.
            with enter_scope("", None, (*arguments, *kwargs.values())):
                returned = call_fn(*arguments, **kwargs)
            value = returned
            if has_aux:
                if not isinstance(returned, tuple) or len(returned) != 2:
                    raise make_error(
                        TypeError, "A function with `has_aux=True` must return a pair: its value and auxiliary data."
                    )
                value = returned[0]
            return _as_plain_scalar(value), returned

        variables = tuple(variable for variable, _ in partitions)
        try:
            (_, returned), gradients = jax.value_and_grad(compute_loss, has_aux=True)(variables)
        except Exception as error:
            hide_library_frames(error)
            raise
        return returned, gradients[0] if isinstance(argnums, int) else gradients

    return compute_value_and_grad


def grad(fn: Callable[P, Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[P, Any]:
    """Makes a function that returns the gradient of `fn`; see `jax.grad`.

    Args:
        fn: As for `value_and_grad`.
        argnums: As for `value_and_grad`.
        has_aux: As for `value_and_grad`.

    Returns:
        Function of the same arguments, which returns the gradient; see `value_and_grad`. With `has_aux` it returns a
        pair of it and the second element that `fn` returned.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 2.0, 3.0], "embed")
        >>> nym.grad(lambda x: (x * x).sum())(x)
        NamedArray(float32, embed: 3, [2., 4., 6.])
    """
    compute_value_and_grad = value_and_grad(fn, argnums, has_aux)

    def compute_grad(*args: P.args, **kwargs: P.kwargs) -> Any:
        returned, gradients = compute_value_and_grad(*args, **kwargs)
        return (gradients, returned[1]) if has_aux else gradients

    return compute_grad


def _resolve_argnums(argnums: int | Sequence[int], args: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the arguments to differentiate with respect to."""
    indices = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for index in indices:
        if not -len(args) <= index < len(args):
            raise make_error(
                ValueError, f"the gradient is for positional argument {index}, but {len(args)} are given by position"
            )
    return tuple(index % len(args) for index in indices)


def _partition_argument(index: int, argument: Any) -> tuple[Any, Any]:
    """Returns an argument as two trees: the arrays to differentiate with respect to, and all other leaves."""
    if isinstance(argument, float | complex):  # no array for `is_inexact_array`, but JAX differentiates it
        return argument, None
    variable, constants = eqx.partition(argument, eqx.is_inexact_array)
    if not jax.tree.leaves(variable):
        kind = type(argument).__name__
        if hasattr(argument, "dtype"):
            kind = f"{kind} {argument.dtype}"
        raise make_error(
            TypeError, f"Argument {index} has no array of real numbers to differentiate; it is of type {kind}."
        )
    return variable, constants


def _as_plain_scalar(value: Any) -> Any:
    """Returns the plain array or number of a loss, after checking that it is a scalar."""
    array = get_plain_array(value)
    if isinstance(array, tuple):
        raise make_error(
            TypeError,
            f"A gradient needs a scalar result, and the function returned a tuple of length {len(array)}; with "
            "`has_aux=True` it may return a pair of a scalar and anything else.",
        )
    if getattr(array, "shape", ()):
        text = format_shape(value) if isinstance(value, NamedBase) else format_value(value)
        raise make_error(
            ValueError, f"a gradient needs a scalar result, and the function returned {text}; use `.sum()` or `.mean()`"
        )
    return array
