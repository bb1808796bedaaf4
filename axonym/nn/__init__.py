"""Neural-network layers and functions on named arrays: Equinox modules that shard their results."""

from ..named._reduce._softmax import log_softmax as log_softmax, logsumexp as logsumexp, softmax as softmax
from ._activations import (
    elu as elu,
    gelu as gelu,
    glu as glu,
    hard_tanh as hard_tanh,
    leaky_relu as leaky_relu,
    log_sigmoid as log_sigmoid,
    relu as relu,
    relu6 as relu6,
    sigmoid as sigmoid,
    silu as silu,
    softplus as softplus,
    swish as swish,
)
from ._attention import dot_product_attention as dot_product_attention
from ._attention_mask import AttentionMask as AttentionMask
from ._cross_entropy import cross_entropy_loss as cross_entropy_loss
from ._dropout import Dropout as Dropout
from ._embedding import Embedding as Embedding
from ._kv_cache import KVCache as KVCache
from ._linear import Linear as Linear
from ._mask_block import causal_mask as causal_mask
from ._mlp import MLP as MLP
from ._normalization import LayerNorm as LayerNorm, RmsNorm as RmsNorm
from ._rotary import rotary_embedding as rotary_embedding
from ._rotary_scaling import (
    DynamicRotaryScaling as DynamicRotaryScaling,
    LinearRotaryScaling as LinearRotaryScaling,
    Llama3RotaryScaling as Llama3RotaryScaling,
    RotaryScaling as RotaryScaling,
    YarnRotaryScaling as YarnRotaryScaling,
)
from ._stacked import Stacked as Stacked
