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
    from ._annotations import (
        Bool as Bool,
        Complex as Complex,
        Float as Float,
        Inexact as Inexact,
        Int as Int,
        Named as Named,
        Num as Num,
        Shaped as Shaped,
        UInt as UInt,
        bf16 as bf16,
        c64 as c64,
        c128 as c128,
        f16 as f16,
        f32 as f32,
        f64 as f64,
        i8 as i8,
        i16 as i16,
        i32 as i32,
        i64 as i64,
        u8 as u8,
        u16 as u16,
        u32 as u32,
        u64 as u64,
    )
