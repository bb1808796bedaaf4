"""A compiled function as a method of an instance."""

import functools
from typing import Any


class BoundMethod:
    """A compiled function bound to an instance, which is its first argument."""

    def __init__(self, jitted: Any, instance: Any) -> None:
        self._jitted, self._instance = jitted, instance

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and self._jitted is other._jitted and self._instance is other._instance

    def __hash__(self) -> int:
        return hash((id(self._jitted), id(self._instance)))

    def __getattr__(self, name: str) -> Any:
        """Looks up other attributes in the function; those that take its arguments are bound too."""
        if name in ("_jitted", "_instance"):  # while a copy is being made
            raise AttributeError(name)
        found = getattr(self._jitted, name)
        return functools.partial(found, self._instance) if name in ("lower", "trace", "eval_shape") else found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(self._instance, *args, **kwargs)
