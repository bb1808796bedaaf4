"""`haliax.nn`: layers and functions with Haliax's names, defaults and attributes."""

from typing import Any

import jax
import jax.numpy as jnp

from ...named._array import is_named_array
from ...named._axis import Axis
from ...named._creation import arange
from .._adapt import make_getattr
from .._array import convert_result
from . import (
    activations as activations,
    attention as attention,
    embedding as embedding,
    linear as linear,
    loss as loss,
    mlp as mlp,
    normalization as normalization,
    scan as scan,
)
from .activations import (
    celu as celu,
    glu as glu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_swish as hard_swish,
    quick_gelu as quick_gelu,
    relu_squared as relu_squared,
    selu as selu,
    soft_sign as soft_sign,
)
from .dropout import Dropout as Dropout, dropout as dropout
from .embedding import Embedding as Embedding
from .linear import Linear as Linear
from .loss import (
    binary_cross_entropy_loss as binary_cross_entropy_loss,
    cross_entropy_loss as cross_entropy_loss,
    cross_entropy_loss_and_log_normalizers as cross_entropy_loss_and_log_normalizers,
    reduce_loss as reduce_loss,
)
from .mlp import MLP as MLP
from .normalization import (
    LayerNorm as LayerNorm,
    RmsNorm as RmsNorm,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
    standardize as standardize,
)
from .scan import BlockSeq as BlockSeq, ScanCheckpointPolicy as ScanCheckpointPolicy, Stacked as Stacked


def one_hot(x: Any, class_axis: Axis, *, dtype: Any = None) -> Any:
    """Returns 1 at the position that each integer gives along a new last axis, and 0 elsewhere; see `jax.nn.one_hot`.

    A plain integer that is negative counts from the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.one_hot(1, hax.Axis("label", 3)).array
        Array([0., 1., 0.], dtype=float32)
    """
    dtype = jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype
    classes = arange(class_axis)
    if not is_named_array(x):
        position = jnp.where(jnp.asarray(x) < 0, x + class_axis.size, x)
        return convert_result((classes == position).astype(dtype))
    wide = x.broadcast_axis(class_axis).rearrange((..., class_axis))
    return convert_result((wide == classes).astype(dtype))


_find_missing = make_getattr(
    "haliax.nn",
    "Conv ConvTranspose MoELinear conv max_pool mean_pool min_pool mup pool ragged_dot",
)


def __getattr__(name: str) -> Any:
    if name in vars(activations):
        return getattr(activations, name)
    return _find_missing(name)
