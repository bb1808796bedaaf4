"""Caches of plans and compiled functions are bounded."""

import functools
import gc
import importlib
import inspect
import pkgutil
from typing import Any

import jax
import pytest

import axonym
import axonym as nym
from axonym.named._cache import CACHE_SIZE


PLUGIN = "axonym.typing.mypy_plugin"  # needs mypy


@pytest.fixture(scope="module")
def caches() -> list[Any]:
    """The caches of functions with parameters in all parts."""
    for part in pkgutil.walk_packages(axonym.__path__, "axonym."):
        if part.name != PLUGIN:
            importlib.import_module(part.name)
    found = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
    own = [one for one in found if str(getattr(one, "__module__", "")).startswith("axonym.")]
    return [one for one in own if inspect.signature(one).parameters]


def test_every_cache_is_bounded(caches):
    assert len(caches) > 20
    assert {"named", "partitioning"} <= {one.__module__.split(".")[1] for one in caches}
    assert [one.__qualname__ for one in caches if one.cache_parameters()["maxsize"] is None] == []
    named = [one for one in caches if one.__module__.startswith("axonym.named.")]
    assert {one.cache_parameters()["maxsize"] for one in named} == {CACHE_SIZE}


def test_what_a_compiled_function_keeps_for_many_structures_is_bounded():
    fn, x, most = nym.named_jit(lambda x, **_: x * 2), nym.ones({"i": 2}), 0
    with jax.disable_jit():  # which compiles nothing, but keeps the same plans
        for number in (*range(2500), 0):
            assert fn(x, **{f"kind{number}": "train"}) is not None
            most = max(most, *(len(kept) for kept in vars(fn).values() if isinstance(kept, dict | set)))
    assert 100 < most < 2000
    for number in (0, 1):
        assert fn(x, **{f"kind{number}": "train"}).tolist() == [2.0, 2.0]
