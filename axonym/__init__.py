"""Axonym: named-axis arrays for JAX, and a mapping from their names to the axes of a device mesh."""

import importlib as _importlib
import typing as _typing

from . import axis as axis
from .axis import (
    axis_name as axis_name,
    axis_size as axis_size,
    axis_spec_to_tuple as axis_spec_to_tuple,
    concat_axes as concat_axes,
    concat_axis_specs as concat_axis_specs,
    eliminate_axes as eliminate_axes,
    replace_axis as replace_axis,
    resolve_axis as resolve_axis,
    selects_axis as selects_axis,
    to_jax_shape as to_jax_shape,
    union_axes as union_axes,
)
from .named._array import (
    NamedArray as NamedArray,
    is_named_array as is_named_array,
)
from .named._axis import (
    Axis as Axis,
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialAxisSpec as PartialAxisSpec,
    make_axes as make_axes,
)
from .named._base import (
    Shape as Shape,
)
from .named._bits import (
    packbits as packbits,
    unpackbits as unpackbits,
)
from .named._compare import (
    allclose as allclose,
    array_equal as array_equal,
    array_equiv as array_equiv,
)
from .named._contract import (
    dot as dot,
)
from .named._create import (
    arange as arange,
    eye as eye,
    full as full,
    full_like as full_like,
    geomspace as geomspace,
    linspace as linspace,
    logspace as logspace,
    named as named,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from .named._einsum import (
    einsum as einsum,
)
from .named._elementwise import (
    abs as abs,
    absolute as absolute,
    acos as acos,
    acosh as acosh,
    add as add,
    angle as angle,
    arccos as arccos,
    arccosh as arccosh,
    arcsin as arcsin,
    arcsinh as arcsinh,
    arctan as arctan,
    arctan2 as arctan2,
    arctanh as arctanh,
    around as around,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    bitwise_and as bitwise_and,
    bitwise_count as bitwise_count,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    cbrt as cbrt,
    ceil as ceil,
    clip as clip,
    conj as conj,
    conjugate as conjugate,
    copy as copy,
    copysign as copysign,
    cos as cos,
    cosh as cosh,
    deg2rad as deg2rad,
    degrees as degrees,
    divide as divide,
    divmod as divmod,
    equal as equal,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    fabs as fabs,
    fix as fix,
    float_power as float_power,
    floor as floor,
    floor_divide as floor_divide,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    frexp as frexp,
    gcd as gcd,
    greater as greater,
    greater_equal as greater_equal,
    heaviside as heaviside,
    hypot as hypot,
    i0 as i0,
    imag as imag,
    invert as invert,
    isclose as isclose,
    iscomplex as iscomplex,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    isneginf as isneginf,
    isposinf as isposinf,
    isreal as isreal,
    lcm as lcm,
    ldexp as ldexp,
    left_shift as left_shift,
    less as less,
    less_equal as less_equal,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
    logaddexp2 as logaddexp2,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    maximum as maximum,
    minimum as minimum,
    mod as mod,
    modf as modf,
    multiply as multiply,
    nan_to_num as nan_to_num,
    ndim as ndim,
    negative as negative,
    nextafter as nextafter,
    not_equal as not_equal,
    positive as positive,
    pow as pow,
    power as power,
    rad2deg as rad2deg,
    radians as radians,
    real as real,
    reciprocal as reciprocal,
    remainder as remainder,
    right_shift as right_shift,
    rint as rint,
    round as round,
    rsqrt as rsqrt,
    select as select,
    sign as sign,
    signbit as signbit,
    sin as sin,
    sinc as sinc,
    sinh as sinh,
    spacing as spacing,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    tan as tan,
    tanh as tanh,
    true_divide as true_divide,
    trunc as trunc,
    where as where,
)
from .named._field import (
    field as field,
)
from .named._gradient import (
    grad as grad,
    value_and_grad as value_and_grad,
)
from .named._index import (
    dblock as dblock,
    ds as ds,
    dslice as dslice,
    index as index,
    take as take,
)
from .named._lift import (
    lift as lift,
)
from .named._matrix import (
    cross as cross,
    diag as diag,
    diagonal as diagonal,
    kron as kron,
    outer as outer,
    trace as trace,
    tril as tril,
    triu as triu,
)
from .named._reduce import (
    all as all,
    amax as amax,
    amin as amin,
    any as any,
    argmax as argmax,
    argmin as argmin,
    argsort as argsort,
    average as average,
    corrcoef as corrcoef,
    count_nonzero as count_nonzero,
    cov as cov,
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    max as max,
    mean as mean,
    median as median,
    min as min,
    nanargmax as nanargmax,
    nanargmin as nanargmin,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmedian as nanmedian,
    nanmin as nanmin,
    nanpercentile as nanpercentile,
    nanprod as nanprod,
    nanquantile as nanquantile,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
    percentile as percentile,
    prod as prod,
    product as product,
    ptp as ptp,
    quantile as quantile,
    softmax as softmax,
    sort as sort,
    std as std,
    sum as sum,
    var as var,
)
from .named._ref import (
    NamedRef as NamedRef,
    freeze as freeze,
    get as get,
    new_ref as new_ref,
    swap as swap,
)
from .named._search import (
    bincount as bincount,
    histogram as histogram,
    interp as interp,
    isin as isin,
    nonzero as nonzero,
    searchsorted as searchsorted,
    take_along_axis as take_along_axis,
    top_k as top_k,
)
from .named._sets import (
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from .named._shape import (
    broadcast_arrays as broadcast_arrays,
    broadcast_arrays_and_return_axes as broadcast_arrays_and_return_axes,
    broadcast_axis as broadcast_axis,
    broadcast_to as broadcast_to,
    concatenate as concatenate,
    expand as expand,
    flatten as flatten,
    flatten_all_axes_but as flatten_all_axes_but,
    flatten_axes as flatten_axes,
    flip as flip,
    pad as pad,
    pad_left as pad_left,
    ravel as ravel,
    rearrange as rearrange,
    rename as rename,
    repeat as repeat,
    roll as roll,
    slice as slice,
    split as split,
    squeeze as squeeze,
    stack as stack,
    tile as tile,
    unbind as unbind,
    unflatten_axis as unflatten_axis,
    updated_slice as updated_slice,
)
from .named._transforms import (
    ScanCheckpointPolicy as ScanCheckpointPolicy,
    fold as fold,
    map as map,
    scan as scan,
    tree_checkpoint_name as tree_checkpoint_name,
    vmap as vmap,
)


__version__ = "0.1.0"


if _typing.TYPE_CHECKING:
    from . import (
        fft as fft,
        linalg as linalg,
        mesh as mesh,
        nn as nn,
        partitioning as partitioning,
        poly as poly,
        random as random,
        tree as tree,
        tree_util as tree_util,
        typing as typing,
    )
    from ._later import *  # noqa: F403
else:  # Loaded when first used, so that `import axonym` takes no longer than named arrays do.
    _PARTS = {"fft", "linalg", "mesh", "nn", "partitioning", "poly", "random", "tree", "tree_util", "typing"}

    def __getattr__(name):
        if name == "__all__":  # What `from axonym import *` asks for.
            return [name for name in __dir__() if not name.startswith("_")]
        if name in _PARTS:
            return _importlib.import_module(f".{name}", __name__)
        if name.startswith("_") or not hasattr(later := _importlib.import_module("._later", __name__), name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(later, name))

    def __dir__():
        later = _importlib.import_module("._later", __name__)
        return sorted({*globals(), *_PARTS, *(name for name in vars(later) if not name.startswith("_"))})
