"""Elementwise functions, each a thin front of the `jax.numpy` function of its name, grouped by what they are for.

Functions of one operand keep its axes; plain arrays and scalars pass through to `jax.numpy`. Functions of several
broadcast by name: one operand must have the names of all the others, and the result has its axes in its order.
"""

from ._arithmetic import (
    abs as abs,
    add as add,
    clip as clip,
    conj as conj,
    divide as divide,
    floor_divide as floor_divide,
    imag as imag,
    maximum as maximum,
    minimum as minimum,
    mod as mod,
    multiply as multiply,
    negative as negative,
    positive as positive,
    power as power,
    real as real,
    reciprocal as reciprocal,
    remainder as remainder,
    rsqrt as rsqrt,
    sign as sign,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    true_divide as true_divide,
    where as where,
)
from ._exponential import (
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
)
from ._logic import (
    bitwise_and as bitwise_and,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    equal as equal,
    greater as greater,
    greater_equal as greater_equal,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    left_shift as left_shift,
    less as less,
    less_equal as less_equal,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    not_equal as not_equal,
    right_shift as right_shift,
)
from ._rounding import (
    ceil as ceil,
    floor as floor,
    rint as rint,
    round as round,
)
from ._trigonometric import (
    arctan as arctan,
    arctan2 as arctan2,
    cos as cos,
    cosh as cosh,
    hypot as hypot,
    sin as sin,
    sinh as sinh,
    tan as tan,
    tanh as tanh,
)
