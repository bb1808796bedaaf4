"""`haliax.nn`: layers and functions with Haliax's names, defaults and attributes."""

from typing import Any

import jax.numpy as jnp

from ... import nn
from ...named._array import is_named_array
from ...named._axis import Axis
from .._array import convert_result
from . import (
    activations as activations,
    attention as attention,
    conv as conv,
    embedding as embedding,
    linear as linear,
    loss as loss,
    mlp as mlp,
    mup as mup,
    normalization as normalization,
    pool as pool,
    scan as scan,
)
from .conv import Conv as Conv, ConvTranspose as ConvTranspose
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
from .moe_linear import MoELinear as MoELinear
from .normalization import (
    LayerNorm as LayerNorm,
    RmsNorm as RmsNorm,
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
    standardize as standardize,
)
from .pool import max_pool as max_pool, mean_pool as mean_pool, min_pool as min_pool
from .ragged_dot import ragged_dot as ragged_dot
from .scan import BlockSeq as BlockSeq, ScanCheckpointPolicy as ScanCheckpointPolicy, Stacked as Stacked


globals().update(activations.FUNCTIONS)


def one_hot(x: Any, class_axis: Axis, *, dtype: Any = None) -> Any:
    """Returns 1 at the position that each integer gives along a new last axis, and 0 elsewhere; see `jax.nn.one_hot`.

    A plain integer that is negative counts from the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nn.one_hot(1, hax.Axis("label", 3)).array
        Array([0., 1., 0.], dtype=float32)
    """
    if not is_named_array(x):
        x = jnp.where(jnp.asarray(x) < 0, x + class_axis.size, x)
    return convert_result(nn.one_hot(x, class_axis, dtype=dtype))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
