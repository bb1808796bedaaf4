"""Annotations such as `Named["batch embed"]` and `f32[NamedArray, "batch embed ..."]`.

At run time they are classes that check the names, dtype and sizes of arrays: under `jaxtyping.jaxtyped` a name has one
size in all arguments, as in jaxtyping's own annotations.
"""

from typing import Any

import jaxtyping

from .._ground.caches import cached_plan
from ..named._array import NamedArray
from ..named._axis import Names
from ..named._base import NamedBase
from ..named._pattern_parser import AxisPattern


class _AnnotationMeta(type):
    """Metaclass of annotations: `isinstance` checks the names, then jaxtyping checks the dtype and the sizes."""

    pattern: AxisPattern
    dtype: Any  # of jaxtyping, such as `jaxtyping.Float`

    def __instancecheck__(cls, x: Any) -> bool:
        if not isinstance(x, NamedBase) or not cls.pattern.matches(x.names, tuple(x.array.shape)):
            return False
        return isinstance(x, _make_jaxtyping_annotation(cls.dtype, cls.pattern, x.names))

    def __repr__(cls) -> str:
        return f"{cls.__module__}.{cls.__name__}"


@cached_plan
def _make_jaxtyping_annotation(dtype: Any, pattern: AxisPattern, names: Names) -> Any:
    """Returns jaxtyping's annotation for an array of these names, which binds a size to each name in the pattern."""
    # "_" is an axis whose size is not bound.
    axes = (name if name in pattern.names and name.isidentifier() else "_" for name in names)
    return dtype[NamedBase, " ".join(axes)]


class DtypeAnnotation:
    """Annotation of arrays with some dtypes, subscripted with an array class and axes.

    The axes are a string of names in order, in which `...` means any others, or a set of names in any order. For
    array classes other than `NamedArray` it is jaxtyping's annotation.
    """

    def __init__(self, name: str, dtype: Any) -> None:
        self._name = name
        self._dtype = dtype

    def __getitem__(self, item: Any) -> Any:
        """Returns the annotation for an array class and axes."""
        if not isinstance(item, tuple) or len(item) != 2 or isinstance(item[0], str):
            raise TypeError(f"`{self._name}` takes an array class and axes: {self._name}[NamedArray, 'batch embed'].")
        array, axes = item
        if isinstance(array, type) and issubclass(array, NamedBase):
            name = f"{self._name}[{array.__name__}, {axes!r}]"
            pattern = AxisPattern.parse(axes)
            attributes = {"__module__": "axonym.typing", "pattern": pattern, "dtype": self._dtype}
            return _AnnotationMeta(name, (), attributes)
        return self._dtype[array, axes]

    def __repr__(self) -> str:
        return f"axonym.typing.{self._name}"


class _NamedAnnotation(DtypeAnnotation):
    """Annotation of arrays of any dtype, in which the array class may be omitted."""

    def __getitem__(self, item: Any) -> Any:
        with_class = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], type)
        return super().__getitem__(item if with_class else (NamedArray, item))


Named = _NamedAnnotation("Named", jaxtyping.Shaped)
"""Arrays of any dtype with the given axes: `Named["batch embed ..."]`."""
Shaped = DtypeAnnotation("Shaped", jaxtyping.Shaped)
"""Arrays of any dtype, as `Named`, with the array class: `Shaped[NamedArray, "batch"]`."""
Bool = DtypeAnnotation("Bool", jaxtyping.Bool)
"""Arrays of booleans."""
Int = DtypeAnnotation("Int", jaxtyping.Int)
"""Arrays of signed integers."""
UInt = DtypeAnnotation("UInt", jaxtyping.UInt)
"""Arrays of unsigned integers."""
Float = DtypeAnnotation("Float", jaxtyping.Float)
"""Arrays of floats."""
Complex = DtypeAnnotation("Complex", jaxtyping.Complex)
"""Arrays of complex numbers."""
Inexact = DtypeAnnotation("Inexact", jaxtyping.Inexact)
"""Arrays of floats or complex numbers."""
Num = DtypeAnnotation("Num", jaxtyping.Num)
"""Arrays of any numbers."""
bf16 = DtypeAnnotation("bf16", jaxtyping.BFloat16)
"""Arrays of 16-bit brain floats."""
f16 = DtypeAnnotation("f16", jaxtyping.Float16)
"""Arrays of 16-bit floats."""
f32 = DtypeAnnotation("f32", jaxtyping.Float32)
"""Arrays of 32-bit floats."""
f64 = DtypeAnnotation("f64", jaxtyping.Float64)
"""Arrays of 64-bit floats."""
c64 = DtypeAnnotation("c64", jaxtyping.Complex64)
"""Arrays of 64-bit complex numbers."""
c128 = DtypeAnnotation("c128", jaxtyping.Complex128)
"""Arrays of 128-bit complex numbers."""
i8 = DtypeAnnotation("i8", jaxtyping.Int8)
"""Arrays of 8-bit integers."""
i16 = DtypeAnnotation("i16", jaxtyping.Int16)
"""Arrays of 16-bit integers."""
i32 = DtypeAnnotation("i32", jaxtyping.Int32)
"""Arrays of 32-bit integers."""
i64 = DtypeAnnotation("i64", jaxtyping.Int64)
"""Arrays of 64-bit integers."""
u8 = DtypeAnnotation("u8", jaxtyping.UInt8)
"""Arrays of 8-bit unsigned integers."""
u16 = DtypeAnnotation("u16", jaxtyping.UInt16)
"""Arrays of 16-bit unsigned integers."""
u32 = DtypeAnnotation("u32", jaxtyping.UInt32)
"""Arrays of 32-bit unsigned integers."""
u64 = DtypeAnnotation("u64", jaxtyping.UInt64)
"""Arrays of 64-bit unsigned integers."""
