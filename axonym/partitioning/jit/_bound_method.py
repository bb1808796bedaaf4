"""A compiled function as a method: what a class returns for it when it is asked through an instance."""

from typing import Any


class Method:
    """A compiled function bound to an instance, which is its first argument."""

    def __init__(self, jitted: Any, instance: Any) -> None:
        """Keeps both."""
        self._jitted, self._instance = jitted, instance

    def __eq__(self, other: object) -> bool:
        """Tells whether it is the same function of the same instance."""
        return isinstance(other, Method) and self._jitted is other._jitted and self._instance is other._instance

    def __hash__(self) -> int:
        """Returns the hash of which function and instance they are."""
        return hash((id(self._jitted), id(self._instance)))

    def __getattr__(self, name: str) -> Any:
        """Looks up everything else in the function."""
        if name in ("_jitted", "_instance"):  # asked of a copy that is not made yet
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
