"""Neural-network layers and functions on named arrays: Equinox modules that shard their results."""

from ..named._elementwise._functions import tanh as tanh
from ..named._reduce._reductions import (
    log_softmax as log_softmax,
    logmeanexp as logmeanexp,
    logsumexp as logsumexp,
    softmax as softmax,
)
from ..named._stages import PipelineSchedule as PipelineSchedule
from ._activations import (
    celu as celu,
    elu as elu,
    gelu as gelu,
    hard_sigmoid as hard_sigmoid,
    hard_silu as hard_silu,
    hard_swish as hard_swish,
    hard_tanh as hard_tanh,
    identity as identity,
    leaky_relu as leaky_relu,
    log1mexp as log1mexp,
    log_sigmoid as log_sigmoid,
    mish as mish,
    quick_gelu as quick_gelu,
    relu as relu,
    relu6 as relu6,
    relu_squared as relu_squared,
    selu as selu,
    sigmoid as sigmoid,
    silu as silu,
    soft_sign as soft_sign,
    softplus as softplus,
    sparse_plus as sparse_plus,
    sparse_sigmoid as sparse_sigmoid,
    squareplus as squareplus,
    swish as swish,
)
from ._attention._attention import (
    AttentionChoice as AttentionChoice,
    dot_product_attention as dot_product_attention,
    explain_attention as explain_attention,
)
from ._attention._context import zigzag_positions as zigzag_positions
from ._attention._kv_cache import KVCache as KVCache
from ._attention._mask import AttentionMask as AttentionMask, causal_mask as causal_mask
from ._conv import Conv as Conv, ConvTranspose as ConvTranspose
from ._dropout import Dropout as Dropout
from ._embedding import Embedding as Embedding, one_hot as one_hot
from ._linear import Linear as Linear, initialize_weight as initialize_weight
from ._losses import (
    binary_cross_entropy_loss as binary_cross_entropy_loss,
    cross_entropy_loss as cross_entropy_loss,
    cross_entropy_loss_and_log_normalizers as cross_entropy_loss_and_log_normalizers,
    fused_cross_entropy as fused_cross_entropy,
    mean_squared_error as mean_squared_error,
    reduce_loss as reduce_loss,
)
from ._mixture import (
    MixtureMetrics as MixtureMetrics,
    MixtureOfExperts as MixtureOfExperts,
    MoELinear as MoELinear,
    Router as Router,
    Routing as Routing,
    load_balance_loss as load_balance_loss,
    ragged_dot as ragged_dot,
    router_z_loss as router_z_loss,
)
from ._mlp import MLP as MLP, geglu as geglu, glu as glu, reglu as reglu, swiglu as swiglu
from ._mup import (
    HiddenLinear as HiddenLinear,
    InputLinear as InputLinear,
    MupEmbedding as MupEmbedding,
    OutputLinear as OutputLinear,
    mup_learning_rates as mup_learning_rates,
)
from ._normalization import (
    BatchNorm as BatchNorm,
    BatchStatistics as BatchStatistics,
    GroupNorm as GroupNorm,
    LayerNorm as LayerNorm,
    RmsNorm as RmsNorm,
    standardize as standardize,
)
from ._pool import max_pool as max_pool, mean_pool as mean_pool, min_pool as min_pool
from ._positions import (
    DynamicRotaryScaling as DynamicRotaryScaling,
    LinearRotaryScaling as LinearRotaryScaling,
    Llama3RotaryScaling as Llama3RotaryScaling,
    RotaryScaling as RotaryScaling,
    YarnRotaryScaling as YarnRotaryScaling,
    alibi_bias as alibi_bias,
    alibi_slopes as alibi_slopes,
    rotary_embedding as rotary_embedding,
)
from ._stack import BlockSeq as BlockSeq, LayerStack as LayerStack, Stacked as Stacked
