"""A compiled function as a method of an instance."""

from typing import Any


class BoundMethod:
    """A compiled function bound to an instance, which is its first argument."""

    def __init__(self, jitted: Any, instance: Any) -> None:
        """Stores both."""
        self._jitted, self._instance = jitted, instance

    def __eq__(self, other: object) -> bool:
        """Returns whether the function and the instance are the same."""
        return isinstance(other, BoundMethod) and self._jitted is other._jitted and self._instance is other._instance

    def __hash__(self) -> int:
        """Returns the hash of their identities."""
        return hash((id(self._jitted), id(self._instance)))

    def __getattr__(self, name: str) -> Any:
        """Looks up other attributes in the function."""
        if name in ("_jitted", "_instance"):  # while a copy is being made
            raise AttributeError(name)
        return getattr(self._jitted, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function with the instance; see `NamedJit`."""
        return self._jitted(self._instance, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the function for the instance and arguments; see `NamedJit.lower`."""
        return self._jitted.lower(self._instance, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function for the instance and arguments; see `NamedJit.trace`."""
        return self._jitted.trace(self._instance, *args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the shapes of the result for the instance and arguments; see `NamedJit.eval_shape`."""
        return self._jitted.eval_shape(self._instance, *args, **kwargs)
