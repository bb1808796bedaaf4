"""What stands in an annotation: `Named["batch embed"]`, and `f32[NamedArray, "batch embed ..."]` and its family.

For type checkers the package says that each of them is `NamedArray`. At run time they are classes that know their
arrays by names, element type and sizes: under `jaxtyping.jaxtyped` a name has one size in all arguments, as in
jaxtyping's own annotations.
"""

import functools
from typing import Any

import jaxtyping

from ..named._array import NamedArray
from ..named._axis import Names
from ..named._axis_pattern import AxisPattern
from ..named._base import NamedBase


class _Annotation(type):
    """The class of annotations: `isinstance` asks for the names, then jaxtyping for the element type and the sizes."""

    pattern: AxisPattern
    elements: Any

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, NamedBase) or not cls.pattern.matches(x.names, tuple(x.array.shape)):
            return False
        return isinstance(x, _sized(cls.elements, cls.pattern, x.names))

    def __repr__(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"


@functools.lru_cache(maxsize=4096)
def _sized(elements: Any, pattern: AxisPattern, names: Names) -> Any:
    """Returns jaxtyping's annotation for an array of these names, which binds a size to each name described."""
    bound = (name if name in pattern.names and name.isidentifier() else "_" for name in names)
    return elements[NamedBase, " ".join(bound)]


class Elements:
    """Arrays of one kind of elements; subscribed with an array class and axes, it is an annotation.

    The axes are described by a string of names in their order, in which `...` stands for any others, or by a set of
    names in any order. For other classes of arrays than `NamedArray` it is jaxtyping's annotation.
    """

    def __init__(self, name: str, elements: Any) -> None:
        """Keeps its name, and what stands for the elements in jaxtyping."""
        self._name = name
        self._elements = elements

    def __getitem__(self, item: Any) -> Any:
        """Returns the annotation for a class of arrays and a description of axes."""
        if not isinstance(item, tuple) or len(item) != 2 or isinstance(item[0], str):
            raise TypeError(f"`{self._name}` takes an array class and axes: {self._name}[NamedArray, 'batch embed'].")
        array, axes = item
        if isinstance(array, type) and issubclass(array, NamedBase):
            return _annotation(f"{self._name}[{array.__name__}, {axes!r}]", self._elements, AxisPattern.parse(axes))
        return self._elements[array, axes]

    def __repr__(self) -> str:
        """Shows its name."""
        return f"axonym.typing.{self._name}"


class _Named(Elements):
    """Arrays of any elements, which need no array class beside the axes."""

    def __getitem__(self, item: Any) -> Any:
        with_class = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], type)
        return super().__getitem__(item if with_class else (NamedArray, item))


def _annotation(name: str, elements: Any, pattern: AxisPattern) -> Any:
    return _Annotation(name, (), {"__module__": "axonym.typing", "pattern": pattern, "elements": elements})


Named = _Named("Named", jaxtyping.Shaped)
"""Arrays of any elements with the axes described: `Named["batch embed ..."]`."""
Shaped = Elements("Shaped", jaxtyping.Shaped)
"""Arrays of any elements, as `Named`, with the array class: `Shaped[NamedArray, "batch"]`."""
Bool = Elements("Bool", jaxtyping.Bool)
"""Arrays of truth values."""
Int = Elements("Int", jaxtyping.Int)
"""Arrays of signed integers."""
UInt = Elements("UInt", jaxtyping.UInt)
"""Arrays of unsigned integers."""
Float = Elements("Float", jaxtyping.Float)
"""Arrays of floats."""
Complex = Elements("Complex", jaxtyping.Complex)
"""Arrays of complex numbers."""
Inexact = Elements("Inexact", jaxtyping.Inexact)
"""Arrays of floats or complex numbers."""
Num = Elements("Num", jaxtyping.Num)
"""Arrays of any numbers."""
bf16 = Elements("bf16", jaxtyping.BFloat16)
"""Arrays of 16-bit brain floats."""
f16 = Elements("f16", jaxtyping.Float16)
"""Arrays of 16-bit floats."""
f32 = Elements("f32", jaxtyping.Float32)
"""Arrays of 32-bit floats."""
f64 = Elements("f64", jaxtyping.Float64)
"""Arrays of 64-bit floats."""
c64 = Elements("c64", jaxtyping.Complex64)
"""Arrays of 64-bit complex numbers."""
c128 = Elements("c128", jaxtyping.Complex128)
"""Arrays of 128-bit complex numbers."""
i8 = Elements("i8", jaxtyping.Int8)
"""Arrays of 8-bit integers."""
i16 = Elements("i16", jaxtyping.Int16)
"""Arrays of 16-bit integers."""
i32 = Elements("i32", jaxtyping.Int32)
"""Arrays of 32-bit integers."""
i64 = Elements("i64", jaxtyping.Int64)
"""Arrays of 64-bit integers."""
u8 = Elements("u8", jaxtyping.UInt8)
"""Arrays of 8-bit unsigned integers."""
u16 = Elements("u16", jaxtyping.UInt16)
"""Arrays of 16-bit unsigned integers."""
u32 = Elements("u32", jaxtyping.UInt32)
"""Arrays of 32-bit unsigned integers."""
u64 = Elements("u64", jaxtyping.UInt64)
"""Arrays of 64-bit unsigned integers."""
