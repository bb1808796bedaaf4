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
from axonym.named._cache import CACHE_SIZE
from axonym.partitioning.jit import _named_jit


PLUGIN = "axonym.typing.mypy_plugin"  # needs mypy


@pytest.fixture(scope="module")
def caches() -> list[Any]:
    """The caches of functions with parameters, in all parts."""
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


def test_plans_for_many_structures_are_bounded(monkeypatch):
    monkeypatch.setattr(_named_jit, "_MOST_PLANS", 4)
    fn, x, planned, mixed = nym.named_jit(lambda x, **_: x * 2), nym.ones({"i": 2}), [], []
    for number in range(11):
        assert fn(x, **{f"kind{number}": "train"}).tolist() == [2.0, 2.0]
        planned.append(len(fn._plans))
        mixed.append(len(fn._mixed))
    for count in (planned, mixed):
        assert count[:4] == [1, 2, 3, 4]
        assert max(count) == 4


def test_what_was_planned_before_the_bound_was_met_is_planned_again(monkeypatch):
    monkeypatch.setattr(_named_jit, "_MOST_PLANS", 2)
    fn, x = nym.named_jit(lambda x, **_: x * 2), nym.ones({"i": 2})
    for _ in range(2):
        for number in range(3):
            assert fn(x, **{f"kind{number}": "train"}).tolist() == [2.0, 2.0]
