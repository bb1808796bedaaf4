"""`haliax.haxtyping`: annotations such as `f32["batch embed"]` and `f32[NamedArray, "batch embed"]`."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jaxtyping

from ._array import NamedArray, NamedArrayAxes as NamedArrayAxes


class _DtypeAnnotation:
    """An annotation of arrays with some dtypes, subscripted with axes, or with an array class and axes."""

    def __init__(self, dtype: Any, jaxtyping_class: Any) -> None:
        self._dtype = dtype
        self._jaxtyping_class = jaxtyping_class

    def __getitem__(self, item: Any) -> Any:
        array_class, axes = NamedArray, item
        if isinstance(item, tuple) and item and isinstance(item[0], type):
            array_class, axes = item
        if issubclass(array_class, NamedArray):
            return NamedArrayAxes.annotate(array_class, axes, self._dtype)
        return self._jaxtyping_class[array_class, axes]


@dataclasses.dataclass(frozen=True, repr=False)
class DTypeCategory:
    """A kind of dtypes, such as all floats.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.haxtyping.Float["batch"].__metadata__[0].dtype
        float
    """

    name: str
    category: Any

    def __repr__(self) -> str:
        """Formats the name."""
        return self.name


Named = _DtypeAnnotation(None, jaxtyping.Shaped)
Float = _DtypeAnnotation(DTypeCategory("float", jnp.floating), jaxtyping.Float)
Int = _DtypeAnnotation(DTypeCategory("int", jnp.signedinteger), jaxtyping.Int)
UInt = _DtypeAnnotation(DTypeCategory("uint", jnp.unsignedinteger), jaxtyping.UInt)
Complex = _DtypeAnnotation(DTypeCategory("complex", jnp.complexfloating), jaxtyping.Complex)
bool_ = _DtypeAnnotation(jnp.bool_, jaxtyping.Bool)
bf16 = _DtypeAnnotation(jnp.bfloat16, jaxtyping.BFloat16)
f16 = _DtypeAnnotation(jnp.float16, jaxtyping.Float16)
f32 = _DtypeAnnotation(jnp.float32, jaxtyping.Float32)
f64 = _DtypeAnnotation(jnp.float64, jaxtyping.Float64)
complex64 = _DtypeAnnotation(jnp.complex64, jaxtyping.Complex64)
complex128 = _DtypeAnnotation(jnp.complex128, jaxtyping.Complex128)
i8 = _DtypeAnnotation(jnp.int8, jaxtyping.Int8)
i16 = _DtypeAnnotation(jnp.int16, jaxtyping.Int16)
i32 = _DtypeAnnotation(jnp.int32, jaxtyping.Int32)
i64 = _DtypeAnnotation(jnp.int64, jaxtyping.Int64)
u8 = _DtypeAnnotation(jnp.uint8, jaxtyping.UInt8)
u16 = _DtypeAnnotation(jnp.uint16, jaxtyping.UInt16)
u32 = _DtypeAnnotation(jnp.uint32, jaxtyping.UInt32)
u64 = _DtypeAnnotation(jnp.uint64, jaxtyping.UInt64)
