"""`haliax.field`: fields of modules whose plain arrays have named axes."""

from typing import Any

from ..named import _field


def field(*, axis_names: Any = None, metadata: Any = None, **kwargs: Any) -> Any:
    """Declares a field of a module, with names for the axes of the plain array it holds; see `axonym.field`.

    Example:
        >>> import axonym.haliax as hax
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Scale:
        ...     weight: object = hax.field(axis_names=("embed",))
        >>> dataclasses.fields(Scale)[0].metadata["axis_names"]
        ('embed',)
    """
    names = {} if axis_names is None else {"axis_names": axis_names}
    return _field.field(axis_names=axis_names, metadata={**(metadata or {}), **names}, **kwargs)
