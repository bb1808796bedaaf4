"""Hashes of lowered programs: what they depend on."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from axonym.planner._compiler._compile_cache import fingerprint_module


@functools.cache
def lower(fn: Callable[[Any], Any]) -> str:
    return jax.jit(fn).lower(1.0).compiler_ir().operation.get_asm(enable_debug_info=True)


def add(x: jax.Array) -> jax.Array:
    with jax.named_scope("outer"):
        return x + 1


@pytest.mark.parametrize(("before", "after"), [("outer/add", "inner/add"), ("stablehlo.add", "stablehlo.subtract")])
def test_names_and_operations_count(before: str, after: str):
    text = lower(add)
    assert before in text
    assert fingerprint_module(text, "") != fingerprint_module(text.replace(before, after), "")


def test_who_calls_the_function_and_the_numbers_of_locations_do_not_count():
    def write(first: int, line: int) -> str:
        """An operation of `f` in a.py, which `g` in b.py calls at a line."""
        at = [f"#loc{first + number}" for number in range(7)]
        return (
            f'%0 = add loc({at[6]})\n{at[0]} = loc("a.py":1:2 to :3)\n{at[1]} = loc("f"({at[0]}))\n'
            f'{at[2]} = loc("b.py":{line}:1 to :2)\n{at[3]} = loc("g"({at[2]}))\n'
            f'{at[4]} = loc(callsite({at[1]} at {at[3]}))\n{at[6]} = loc("jit(f)/add"({at[4]}))\n'
        )

    assert fingerprint_module(write(1, 5), "b.py") == fingerprint_module(write(9, 6), "b.py")
    assert fingerprint_module(write(1, 5), "c.py") == fingerprint_module(write(9, 5), "c.py")
    assert fingerprint_module(write(1, 5), "c.py") != fingerprint_module(write(1, 6), "c.py")
    assert fingerprint_module(write(1, 5), "b.py") != fingerprint_module(write(1, 5).replace("a.py", "d.py"), "b.py")
