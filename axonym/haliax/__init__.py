"""Haliax's names and conventions on Axonym's arrays: `import axonym.haliax as hax`.

A program written for Haliax runs with this import in place of `import haliax as hax`, unless it uses one of the few
parts that are missing or relies on what Axonym refuses; the page "Coming from Haliax" lists both. Names, orders and
scales that Haliax has and Axonym has not are in this package alone; new programs import `axonym` itself.
"""

from typing import Any

from ..named._axis import (
    Axis as Axis,
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialAxisSpec as PartialAxisSpec,
)
from . import (
    _src as _src,
    axis as axis,
    core as core,
    debug as debug,
    haxtyping as haxtyping,
    hof as hof,
    jax_utils as jax_utils,
    nn as nn,
    ops as ops,
    partitioning as partitioning,
    quantization as quantization,
    random as random,
    specialized_fns as specialized_fns,
    state_dict as state_dict,
    testing as testing,
    tree as tree,
    tree_util as tree_util,
    types as types,
    util as util,
    wrap as wrap,
)
from ._array import NamedArray as NamedArray, NamedArrayAxes as NamedArrayAxes
from ._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy
from .axis import (
    axis_name as axis_name,
    axis_size as axis_size,
    axis_spec_to_tuple as axis_spec_to_tuple,
    concat_axes as concat_axes,
    concat_axis_specs as concat_axis_specs,
    dblock as dblock,
    ds as ds,
    dslice as dslice,
    eliminate_axes as eliminate_axes,
    replace_axis as replace_axis,
    resolve_axis as resolve_axis,
    selects_axis as selects_axis,
    to_jax_shape as to_jax_shape,
    union_axes as union_axes,
)
from .core import (
    NamedArrayAxesSpec as NamedArrayAxesSpec,
    are_shape_checks_enabled as are_shape_checks_enabled,
    enable_shape_checks as enable_shape_checks,
)
from .fft import (
    fft as fft,
    fftfreq as fftfreq,
    fftshift as fftshift,
    hfft as hfft,
    ifft as ifft,
    ifftshift as ifftshift,
    ihfft as ihfft,
    irfft as irfft,
    rfft as rfft,
    rfftfreq as rfftfreq,
)
from .field import field as field
from .haxtyping import Named as Named
from .hof import vmap as vmap
from .jax_utils import tree_checkpoint_name as tree_checkpoint_name
from .partitioning import (
    auto_sharded as auto_sharded,
    axis_mapping as axis_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
    fsdp as fsdp,
    named_jit as named_jit,
    set_mesh as set_mesh,
    shard as shard,
    shard_map as shard_map,
    shard_with_axis_mapping as shard_with_axis_mapping,
)
from .poly import (
    poly as poly,
    polyadd as polyadd,
    polyder as polyder,
    polydiv as polydiv,
    polyfit as polyfit,
    polyint as polyint,
    polymul as polymul,
    polysub as polysub,
    polyval as polyval,
    roots as roots,
    trim_zeros as trim_zeros,
    vander as vander,
)
from .ref import NamedRef as NamedRef, freeze as freeze, get as get, new_ref as new_ref, swap as swap
from .types import NamedOrNumeric as NamedOrNumeric, Scalar as Scalar
from .util import is_named_array as is_named_array
from .wrap import (
    ReductionFunction as ReductionFunction,
    SimpleReductionFunction as SimpleReductionFunction,
    wrap_axiswise_call as wrap_axiswise_call,
    wrap_elemwise_binary as wrap_elemwise_binary,
    wrap_elemwise_unary as wrap_elemwise_unary,
    wrap_reduction_call as wrap_reduction_call,
)


globals().update({name: function for name, function in core.FUNCTIONS.items() if name not in globals()})


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'axonym.haliax' has no attribute {name!r}")
