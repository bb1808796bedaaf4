"""How a function of Axonym gets Haliax's names for its parameters, and returns arrays of this package."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..named._array import is_named_array
from ._array import convert_result


def adapt(
    fn: Callable[..., Any], spelling: str = "", convert: Callable[[Any], Any] = convert_result
) -> Callable[..., Any]:
    """Returns a function that accepts Haliax's names for its parameters and returns arrays of this package.

    Args:
        fn: The function.
        spelling: Pairs of Haliax's and Axonym's name of a parameter: `"a=x axis=axes"`.
        convert: What is applied to the result.

    Returns:
        Function of the same arguments; its signature shows Haliax's names, and it accepts both.
    """
    new_names = dict(pair.split("=") for pair in spelling.split())
    old_names = {new: old for old, new in new_names.items()}
    signature = inspect.signature(fn)
    parameters = [
        parameter.replace(name=old_names.get(parameter.name, parameter.name))
        for parameter in signature.parameters.values()
    ]

    @functools.wraps(fn)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        for name in new_names.keys() & kwargs.keys():
            kwargs[new_names[name]] = kwargs.pop(name)
        return convert(fn(*args, **kwargs))

    # `functools.wraps` alone would show the names of `fn`.
    adapted.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return adapted


def rename_parameters(fn: Callable[..., Any], spelling: str) -> Callable[..., Any]:
    """Returns a function that accepts Haliax's names for its parameters and returns trees as they are."""
    return adapt(fn, spelling, lambda result: result)


def adapt_reduction(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a reduction that also takes a tree, as those of Haliax do, of which it reduces each named array."""

    @functools.wraps(fn)
    def reduce_tree(x: Any, axis: Any = None, **options: Any) -> Any:
        if isinstance(x, dict | list | tuple):
            return jax.tree.map(lambda leaf: fn(leaf, axis, **options), x, is_leaf=is_named_array)
        return fn(x, axis, **options)

    return adapt(reduce_tree, "array=x")


def adapt_all(module: Any, table: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Returns adapted functions of a module by name, from a table of spellings and the functions that have them."""
    return {name: adapt(getattr(module, name), spelling) for spelling, names in table.items() for name in names.split()}
