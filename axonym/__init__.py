"""Axonym: named-axis arrays for JAX, sharded by a mapping from axis names to the axes of a device mesh."""

from importlib import import_module
from typing import TYPE_CHECKING

from . import (
    axis as axis,
    fft as fft,
    interop as interop,
    linalg as linalg,
    mesh as mesh,
    multihost as multihost,
    partitioning as partitioning,
    poly as poly,
    random as random,
    report as report,
    rules as rules,
    state_dict as state_dict,
    training as training,
    tree as tree,
    tree_util as tree_util,
    typing as typing,
)
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
from .mesh import (
    calculate_host_mesh_shape as calculate_host_mesh_shape,
    cpu_context as cpu_context,
    create_abstract_mesh as create_abstract_mesh,
    create_cpu_mesh as create_cpu_mesh,
    create_mesh as create_mesh,
    describe_mesh as describe_mesh,
    force_cpu as force_cpu,
    parse_mesh_from_string as parse_mesh_from_string,
    set_mesh as set_mesh,
)
from .multihost import (
    assert_same_on_all_hosts as assert_same_on_all_hosts,
    barrier_sync as barrier_sync,
    broadcast_from_host_zero as broadcast_from_host_zero,
    global_to_host_local as global_to_host_local,
    host_local_to_global as host_local_to_global,
    initialize as initialize,
)
from .named._array import NamedArray as NamedArray, is_named_array as is_named_array
from .named._array_equal import allclose as allclose, array_equal as array_equal, array_equiv as array_equiv
from .named._axis import (
    Axis as Axis,
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialAxisSpec as PartialAxisSpec,
    make_axes as make_axes,
)
from .named._base import Shape as Shape
from .named._creation import (
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
from .named._dot import dot as dot
from .named._einsum import einsum as einsum
from .named._elementwise._arithmetic import (
    abs as abs,
    absolute as absolute,
    add as add,
    around as around,
    cbrt as cbrt,
    ceil as ceil,
    clip as clip,
    copy as copy,
    divide as divide,
    divmod as divmod,
    fabs as fabs,
    fix as fix,
    float_power as float_power,
    floor as floor,
    floor_divide as floor_divide,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    gcd as gcd,
    heaviside as heaviside,
    lcm as lcm,
    maximum as maximum,
    minimum as minimum,
    mod as mod,
    multiply as multiply,
    ndim as ndim,
    negative as negative,
    positive as positive,
    pow as pow,
    power as power,
    reciprocal as reciprocal,
    remainder as remainder,
    rint as rint,
    round as round,
    rsqrt as rsqrt,
    select as select,
    sign as sign,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    true_divide as true_divide,
    trunc as trunc,
    where as where,
)
from .named._elementwise._functions import (
    acos as acos,
    acosh as acosh,
    angle as angle,
    arccos as arccos,
    arccosh as arccosh,
    arcsin as arcsin,
    arcsinh as arcsinh,
    arctan as arctan,
    arctan2 as arctan2,
    arctanh as arctanh,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    conj as conj,
    conjugate as conjugate,
    copysign as copysign,
    cos as cos,
    cosh as cosh,
    deg2rad as deg2rad,
    degrees as degrees,
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    frexp as frexp,
    hypot as hypot,
    i0 as i0,
    imag as imag,
    iscomplex as iscomplex,
    isreal as isreal,
    ldexp as ldexp,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
    logaddexp2 as logaddexp2,
    modf as modf,
    nan_to_num as nan_to_num,
    nextafter as nextafter,
    rad2deg as rad2deg,
    radians as radians,
    real as real,
    signbit as signbit,
    sin as sin,
    sinc as sinc,
    sinh as sinh,
    spacing as spacing,
    tan as tan,
    tanh as tanh,
)
from .named._elementwise._logic import (
    bitwise_and as bitwise_and,
    bitwise_count as bitwise_count,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    equal as equal,
    greater as greater,
    greater_equal as greater_equal,
    invert as invert,
    isclose as isclose,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    isneginf as isneginf,
    isposinf as isposinf,
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
from .named._field import field as field
from .named._foreign_names import suggest_named_way as _suggest_named_way
from .named._grad import grad as grad, value_and_grad as value_and_grad
from .named._index import dblock as dblock, ds as ds, dslice as dslice, index as index, take as take
from .named._lift import lift as lift
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
from .named._named_call import named_call as named_call
from .named._named_ref import NamedRef as NamedRef, freeze as freeze, get as get, new_ref as new_ref, swap as swap
from .named._packbits import packbits as packbits, unpackbits as unpackbits
from .named._reduce._cumulative import (
    argsort as argsort,
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
    sort as sort,
)
from .named._reduce._reductions import (
    all as all,
    amax as amax,
    amin as amin,
    any as any,
    argmax as argmax,
    argmin as argmin,
    average as average,
    count_nonzero as count_nonzero,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    max as max,
    mean as mean,
    min as min,
    nanargmax as nanargmax,
    nanargmin as nanargmin,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmin as nanmin,
    nanprod as nanprod,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
    prod as prod,
    product as product,
    ptp as ptp,
    softmax as softmax,
    std as std,
    sum as sum,
    var as var,
)
from .named._reduce._statistics import (
    corrcoef as corrcoef,
    cov as cov,
    median as median,
    nanmedian as nanmedian,
    nanpercentile as nanpercentile,
    nanquantile as nanquantile,
    percentile as percentile,
    quantile as quantile,
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
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from .named._shape._broadcast import (
    broadcast_arrays as broadcast_arrays,
    broadcast_arrays_and_return_axes as broadcast_arrays_and_return_axes,
    broadcast_axis as broadcast_axis,
    broadcast_to as broadcast_to,
    expand as expand,
    rename as rename,
    squeeze as squeeze,
)
from .named._shape._concatenate import (
    concatenate as concatenate,
    repeat as repeat,
    split as split,
    stack as stack,
    tile as tile,
    unbind as unbind,
)
from .named._shape._flatten import (
    flatten as flatten,
    flatten_all_axes_but as flatten_all_axes_but,
    flatten_axes as flatten_axes,
    ravel as ravel,
    unflatten_axis as unflatten_axis,
)
from .named._shape._rearrange import rearrange as rearrange
from .named._shape._slice import (
    flip as flip,
    pad as pad,
    pad_left as pad_left,
    roll as roll,
    slice as slice,
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
from .partitioning import (
    AxisMapping as AxisMapping,
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    ResourceMappings as ResourceMappings,
    ShardedBy as ShardedBy,
    auto_sharded as auto_sharded,
    axis_mapping as axis_mapping,
    current_mapping as current_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
    infer_resource_partitions as infer_resource_partitions,
    named_jit as named_jit,
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for as pspec_for,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    shard as shard,
    shard_map as shard_map,
    shard_with_axis_mapping as shard_with_axis_mapping,
    sharding_for_axis as sharding_for_axis,
)
from .report import (
    Explanation as Explanation,
    ShardingAnalyzer as ShardingAnalyzer,
    ShardingReport as ShardingReport,
    assert_sharding_lock as assert_sharding_lock,
    create_monitored_function as create_monitored_function,
    explain as explain,
    visualize_shardings as visualize_shardings,
)
from .rules import (
    AutoShardingRule as AutoShardingRule,
    CompositeShardingRule as CompositeShardingRule,
    MemoryConstrainedShardingRule as MemoryConstrainedShardingRule,
    MeshPartitionHelper as MeshPartitionHelper,
    PathShardingRule as PathShardingRule,
    RoleShardingRule as RoleShardingRule,
    ShapeBasedShardingRule as ShapeBasedShardingRule,
    ShardingRule as ShardingRule,
)
from .training import (
    Policy as Policy,
    Precision as Precision,
    diloco as diloco,
    fsdp as fsdp,
    microbatch as microbatch,
    offloaded_optimizer as offloaded_optimizer,
    sharded_optimizer as sharded_optimizer,
)


__version__ = "0.1.0"


if TYPE_CHECKING:
    from . import (
        checkpoint as checkpoint,
        data as data,
        nn as nn,
        planner as planner,
        quantization as quantization,
    )
else:
    # Imported when they are used: together they take 10 % of `import jax, equinox, axonym`.
    _ON_DEMAND = frozenset({"checkpoint", "data", "nn", "planner", "quantization"})

    def __getattr__(name: str) -> object:
        """Imports a namespace, or raises an AttributeError that shows the named way for other libraries' functions."""
        if name in _ON_DEMAND:
            return import_module(f".{name}", __name__)
        hint = "" if name.startswith("_") else _suggest_named_way(name)
        raise AttributeError(f"module 'axonym' has no attribute {name!r}{hint}", name=name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_ON_DEMAND})
