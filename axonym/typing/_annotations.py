"""Annotations such as `Named["batch embed"]` and `f32[NamedArray, "batch embed ..."]`.

At run time they are classes that check the names, dtype and sizes of arrays: under `jaxtyping.jaxtyped` a name has one
size in all arguments, as in jaxtyping's own annotations.
"""

from typing import Any

from ..named._array import NamedArray
from ..named._axis import Names
from ..named._base import NamedBase
from ..named._cache import cached_plan
from ..named._pattern_parser import AxisPattern


class _AnnotationMeta(type):
    """Metaclass of annotations: `isinstance` checks the names, then jaxtyping checks the dtype and the sizes."""

    pattern: AxisPattern
    elements: Any

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, NamedBase) or not cls.pattern.matches(x.names, tuple(x.array.shape)):
            return False
        return isinstance(x, _make_jaxtyping_annotation(cls.elements, cls.pattern, x.names))

    def __repr__(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"


@cached_plan
def _make_jaxtyping_annotation(elements: Any, pattern: AxisPattern, names: Names) -> Any:
    """Returns jaxtyping's annotation for an array of these names, which binds a size to each name in the pattern."""
    # "_" is an axis whose size is not bound.
    axes = (name if name in pattern.names and name.isidentifier() else "_" for name in names)
    return elements[NamedBase, " ".join(axes)]


class DtypeAnnotation:
    """Annotation of arrays with some dtypes, subscripted with an array class and axes.

    The axes are a string of names in order, in which `...` means any others, or a set of names in any order. For
    array classes other than `NamedArray` it is jaxtyping's annotation.
    """

    def __init__(self, name: str, elements: Any) -> None:
        self._name = name
        self._elements = elements

    def __getitem__(self, item: Any) -> Any:
        """Returns the annotation for an array class and axes."""
        if not isinstance(item, tuple) or len(item) != 2 or isinstance(item[0], str):
            raise TypeError(f"`{self._name}` takes an array class and axes: {self._name}[NamedArray, 'batch embed'].")
        array, axes = item
        if isinstance(array, type) and issubclass(array, NamedBase):
            name = f"{self._name}[{array.__name__}, {axes!r}]"
            pattern = AxisPattern.parse(axes)
            attributes = {"__module__": "axonym.typing", "pattern": pattern, "elements": self._elements}
            return _AnnotationMeta(name, (), attributes)
        return self._elements[array, axes]

    def __repr__(self) -> str:
        return f"axonym.typing.{self._name}"


class NamedAnnotation(DtypeAnnotation):
    """Annotation of arrays of any dtype, in which the array class may be omitted."""

    def __getitem__(self, item: Any) -> Any:
        with_class = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], type)
        return super().__getitem__(item if with_class else (NamedArray, item))
