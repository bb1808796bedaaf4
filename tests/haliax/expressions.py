"""The names that the expressions of `recorded.json` use, and a description of results that JSON can hold.

Also the public functions, classes and methods of Haliax with the names of their parameters, for `parameters.json`.
"""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


PAGE = Path(__file__).parents[2] / "docs" / "from-haliax.md"


def make_names(hax: Any) -> dict[str, Any]:
    """Returns the names that the page defines for its expressions, in Haliax or in a module with the same names."""
    names = {"hax": hax, "jax": jax, "jnp": jnp, "np": np, "dataclasses": dataclasses}
    block = re.search(r"^A, B, C, D = (?:.*\n)*?(?=```)", PAGE.read_text(), re.MULTILINE)
    assert block is not None
    exec(block.group(), names)
    return names


def describe(result: Any) -> Any:
    """Returns the axes and the values of an array, the values of an unnamed array, or the text of anything else."""
    if hasattr(result, "array"):
        return [[f"{axis.name}: {axis.size}" for axis in result.axes], describe(result.array)]
    if isinstance(result, jax.Array | np.ndarray):
        values = np.asarray(result)  # and convert in NumPy, which compiles nothing
        values = values.astype(complex) if jnp.issubdtype(result.dtype, jnp.inexact) else values
        parts = np.stack([values.real, values.imag], -1).round(3) if np.iscomplexobj(values) else values
        return [str(result.dtype), parts.ravel()[:60].tolist()]
    return repr(result)


def list_documented() -> list[tuple[str, str, str]]:
    """Returns the rows of the table of values and orders: the expression, and its results in Haliax and in Axonym."""
    table = PAGE.read_text().partition("| expression |")[2].partition("\n\n")[0]
    return [tuple(row) for row in re.findall(r"^\| `(.*)` \| `(.*)` \| `(.*)` \|$", table, re.MULTILINE)]


def list_parameters(package: str) -> dict[str, list[list[str]]]:
    """Returns the parameters by position and those by keyword of all public functions, classes and methods, by name.

    Names are without the package. Those that a module imports count in the package and in its `nn` alone.
    """
    root = importlib.import_module(package)
    paths = [package, *(module.name for module in pkgutil.walk_packages(root.__path__, f"{package}."))]
    found: dict[str, list[list[str]]] = {}
    for path in paths:
        if "._" in path or ".__" in path:
            continue
        for name, thing in vars(importlib.import_module(path)).items():
            home = getattr(thing, "__module__", None) or ""
            is_own = home == path or (path in (package, f"{package}.nn") and home.startswith(path))
            if name.startswith("_") or not is_own or not (inspect.isclass(thing) or inspect.isroutine(thing)):
                continue
            for key, callable_ in list_callables(f"{path}.{name}".removeprefix(f"{package}."), thing):
                if (parameters := describe_parameters(callable_)) is not None:
                    found[key] = parameters
    return found


def list_callables(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields a function or a class by name, and the public methods that a class has of its package."""
    yield name, thing
    if inspect.isclass(thing):
        package = thing.__module__.partition(".")[0]
        methods = {key: getattr(thing, key) for key in dir(thing) if not key.startswith("_")}
        for key, method in methods.items():
            if inspect.isroutine(method) and (getattr(method, "__module__", None) or "").startswith(package):
                yield f"{name}.{key}", method


def describe_parameters(function: Any) -> list[list[str]] | None:
    """Returns the names of the parameters by position and of those by keyword alone; None if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        [one.name for one in parameters if one.kind in by_position and one.name != "self"],
        [one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY],
    ]
