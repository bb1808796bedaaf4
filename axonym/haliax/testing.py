"""`haliax.testing`: decorators of tests that need devices or PyTorch."""

import functools
import importlib.util
import unittest
from collections.abc import Callable
from typing import Any

import jax


def _skip_unless(has_requirement: Callable[[], bool], reason: str) -> Callable[[Any], Any]:
    """Returns a decorator that skips a test, when it runs, if a requirement is not met."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not has_requirement():
                raise unittest.SkipTest(reason)
            return test(*args, **kwargs)

        return run

    return decorate


def skip_if_not_enough_devices(count: int, reason: str | None = None) -> Callable[[Any], Any]:
    """Returns a decorator that skips a test if there are fewer devices.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.testing.skip_if_not_enough_devices(1)(lambda: "ran")()
        'ran'
    """
    return _skip_unless(lambda: jax.device_count() >= count, reason or f"Not enough devices ({count} needed)")


def has_torch() -> bool:
    """Returns whether PyTorch is installed.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.testing.has_torch() in (True, False)
        True
    """
    return importlib.util.find_spec("torch") is not None


def skip_if_no_torch(f: Callable[..., Any]) -> Callable[..., Any]:
    """Skips a test if PyTorch is not installed; a decorator.

    Example:
        >>> import axonym.haliax as hax
        >>> @hax.testing.skip_if_no_torch
        ... def test_parity():
        ...     import torch
        >>> test_parity.__name__
        'test_parity'
    """
    return _skip_unless(has_torch, "PyTorch is not installed")(f)
