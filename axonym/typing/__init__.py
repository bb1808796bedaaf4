"""Annotations for named arrays: `NamedArray` to type checkers, checked by jaxtyping at run time."""

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from typing import (
        Annotated as Bool,
        Annotated as Complex,
        Annotated as Float,
        Annotated as Inexact,
        Annotated as Int,
        Annotated as Num,
        Annotated as Shaped,
        Annotated as UInt,
        Annotated as bf16,
        Annotated as c64,
        Annotated as c128,
        Annotated as f16,
        Annotated as f32,
        Annotated as f64,
        Annotated as i8,
        Annotated as i16,
        Annotated as i32,
        Annotated as i64,
        Annotated as u8,
        Annotated as u16,
        Annotated as u32,
        Annotated as u64,
    )

    from ..named._array import NamedArray as Named
else:
    import jaxtyping

    from ._annotations import DtypeAnnotation, NamedAnnotation

    Named = NamedAnnotation("Named", jaxtyping.Shaped)
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
