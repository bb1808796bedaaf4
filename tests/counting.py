"""What an operation costs without a clock: the Python functions it enters, by the package they belong to."""

import collections
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax

import axonym
from benchmarks.performance.programs import equations


OWN = str(Path(axonym.__file__).parent)


def python_calls(operation: Callable[[], Any], warm: int = 3) -> collections.Counter[str]:
    """Returns how often each Python function is entered by an operation that has run before, as `package:function`.

    Functions of Axonym are `axonym:name`; others have the name of their top-level package, or `other`.
    """
    for _ in range(warm):
        operation()
    found: collections.Counter[str] = collections.Counter()

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[f"{_package(frame.f_code.co_filename)}:{frame.f_code.co_name}"] += 1

    before = sys.getprofile()
    gc.disable()  # what a collection calls back must not be counted
    sys.setprofile(entered)
    try:
        operation()
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


def own(operation: Callable[[], Any], warm: int = 3) -> dict[str, int]:
    """Returns how often each function of Axonym is entered by an operation that has run before.

    Two kinds are left out, and nothing else: comprehensions, which are functions before Python 3.12 only, and
    `__hash__` and `__eq__`, since how often JAX looks up what a trace depends on is its own affair.
    """
    found = python_calls(operation, warm)
    left_out = ("comp>", ":__hash__", ":__eq__")
    names = [key for key in found if key.startswith("axonym:") and not key.endswith(left_out)]
    return {key.removeprefix("axonym:"): found[key] for key in names}


def own_calls(operation: Callable[[], Any], warm: int = 3) -> int:
    """Returns how many functions of Axonym an operation enters that has run before; see `own`."""
    return sum(own(operation, warm).values())


def own_calls_per_array(call: Callable[[int], Callable[[], Any]]) -> float:
    """Returns how many functions of Axonym are entered for one more array, given a call for a number of arrays.

    Lambdas are left out: one takes an array apart, and how often JAX asks for that is its own affair.
    """
    few, many = 2, 22
    counts = [sum(n for name, n in own(call(count)).items() if name != "<lambda>") for count in (few, many)]
    return (counts[1] - counts[0]) / (many - few)


def all_calls(operation: Callable[[], Any]) -> int:
    """Returns how many Python functions a warm operation enters, itself not counted."""
    return sum(python_calls(operation).values()) - 1


def primitives(fn: Callable[..., Any], *args: Any) -> list[str]:
    """Returns the primitives of the equations that a function is traced to, those of inner functions included."""
    return [one.primitive.name for one in equations(jax.make_jaxpr(fn)(*args))]


def _package(filename: str) -> str:
    if filename.startswith(OWN):
        return "axonym"
    parts = Path(filename).parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else "other"
