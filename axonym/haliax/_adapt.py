"""The adaptor that gives a function the parameter names of Haliax and arrays of this package as results.

And the errors for what this package does not have yet.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ._array import convert_result


def adapt(fn: Callable[..., Any], spelling: str = "") -> Callable[..., Any]:
    """Returns a function that accepts Haliax's names for its parameters and returns arrays of this package.

    Args:
        fn: The function.
        spelling: Pairs of Haliax's and Axonym's name of a parameter: `"a=x axis=axes"`.

    Returns:
        Function of the same arguments; its signature shows Haliax's names, and it accepts both.
    """
    new_names = dict(pair.split("=") for pair in spelling.split())
    old_names = {new: old for old, new in new_names.items()}
    signature = inspect.signature(fn)
    parameters = [one.replace(name=old_names.get(one.name, one.name)) for one in signature.parameters.values()]

    @functools.wraps(fn)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        for name in new_names.keys() & kwargs.keys():
            kwargs[new_names[name]] = kwargs.pop(name)
        return convert_result(fn(*args, **kwargs))

    adapted.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return adapted


def adapt_all(module: Any, table: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Returns adapted functions of a module by name, from a table of spellings and the functions that have them."""
    return {name: adapt(getattr(module, name), spelling) for spelling, names in table.items() for name in names.split()}


def make_getattr(module: str, pending: str = "") -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module, whose error tells names that are not there yet from mistakes.

    Args:
        module: Name of the module in Haliax.
        pending: The names that Haliax has and this package does not have yet.

    Returns:
        Function that raises an AttributeError.
    """
    names = frozenset(pending.split())

    def find_missing(name: str) -> Any:
        if name in names:
            raise AttributeError(
                f"`{module}.{name}` is not in `axonym.haliax` yet; the page 'Coming from Haliax' lists what is missing"
            )
        raise AttributeError(f"module 'axonym.{module}' has no attribute {name!r}")

    return find_missing
