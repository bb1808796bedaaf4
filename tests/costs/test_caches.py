"""Caches of plans and compiled functions are bounded."""

import functools
import gc
import importlib
import inspect
import pkgutil
from typing import Any

import pytest

import axonym
import axonym as nym
from axonym._ground.caches import CACHE_SIZE


PLUGIN = "axonym.typing.mypy_plugin"  # needs mypy


@pytest.fixture(scope="module")
def caches() -> list[Any]:
    """The caches of functions with parameters in all parts."""
    for part in pkgutil.walk_packages(axonym.__path__, "axonym."):
        if part.name != PLUGIN:
            importlib.import_module(part.name)
    gc.unfreeze()  # what is frozen for the time of the tests is not among the objects
    found = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
    gc.freeze()
    own = [one for one in found if str(getattr(one, "__module__", "")).startswith("axonym.")]
    return [one for one in own if inspect.signature(one).parameters]


def test_every_cache_is_bounded(caches):
    assert len(caches) > 20
    assert {"named", "partitioning"} <= {one.__module__.split(".")[1] for one in caches}
    assert [one.__qualname__ for one in caches if one.cache_parameters()["maxsize"] is None] == []
    named = [one for one in caches if one.__module__.startswith("axonym.named.")]
    assert {one.cache_parameters()["maxsize"] for one in named} == {CACHE_SIZE}


def test_the_caches_of_a_compiled_function_are_bounded():
    fn = nym.named_jit(lambda x, kind: x * 2)
    fn(nym.ones({"i": 2}), "train")
    caches = [kept for kept in vars(fn).values() if hasattr(kept, "cache_parameters")]
    assert [cache.cache_parameters()["maxsize"] for cache in caches] == [CACHE_SIZE] * 2
