"""The parameters of seven published models as shapes, without data: what the benchmarks of sharding rules plan for.

Each tree has one `jax.ShapeDtypeStruct` for each parameter of the model, in the layout of JAX: kernels are (in, out),
experts are stacked. The sizes are those of the published configurations, named in each function.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


Tree = dict[str, Any]

CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""How many values each of the 26 categorical features of the Criteo-Kaggle data set has (facebookresearch/dlrm)."""


def _shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _half(*sizes: int) -> jax.ShapeDtypeStruct:
    return _shape(*sizes, dtype=jnp.bfloat16)


def _dense(*kernel: int, bias: Sequence[int]) -> Tree:
    return {"kernel": _shape(*kernel), "bias": _shape(*bias)}


def _llama(layers: int, embed: int, mlp: int, heads: int, kv_heads: int, vocab: int, *, stacked: bool = False) -> Tree:
    """A model of the Llama 3 kind in bfloat16; stacked, all layers are in one array for each parameter."""
    key_value = embed // heads * kv_heads
    sizes = {
        "attn": {"q": (embed, embed), "k": (embed, key_value), "v": (embed, key_value), "o": (embed, embed)},
        "mlp": {"gate": (embed, mlp), "up": (embed, mlp), "down": (mlp, embed)},
        "input_norm": (embed,),
        "post_attention_norm": (embed,),
    }
    first = (layers,) if stacked else ()
    layer = jax.tree.map(lambda size: _half(*first, *size), sizes, is_leaf=lambda node: isinstance(node, tuple))
    return {
        "embed": _half(vocab, embed),
        "layers": layer if stacked else {str(at): layer for at in range(layers)},
        "norm": _half(embed),
        "lm_head": _half(embed, vocab),
    }


def llama3_8b(*, stacked: bool = False) -> Tree:
    """Llama 3 8B (`meta-llama/Meta-Llama-3-8B`, config.json): 8,030,261,248 parameters in bfloat16."""
    return _llama(32, 4096, 14336, 32, 8, 128256, stacked=stacked)


def llama3_70b() -> Tree:
    """Llama 3 70B (`meta-llama/Meta-Llama-3-70B`, config.json): 70,553,706,496 parameters in bfloat16."""
    return _llama(80, 8192, 28672, 64, 8, 128256)


def mixtral_8x7b() -> Tree:
    """Mixtral 8x7B (`mistralai/Mixtral-8x7B-v0.1`, config.json): 46,702,792,704 parameters in bfloat16."""
    embed, mlp, experts, key_value, vocab = 4096, 14336, 8, 1024, 32000
    layer = {
        "attn": {
            "q": _half(embed, embed),
            "k": _half(embed, key_value),
            "v": _half(embed, key_value),
            "o": _half(embed, embed),
        },
        "moe": {
            "router": _half(embed, experts),
            "w1": _half(experts, embed, mlp),
            "w2": _half(experts, mlp, embed),
            "w3": _half(experts, embed, mlp),
        },
        "input_norm": _half(embed),
        "post_attention_norm": _half(embed),
    }
    return {
        "embed": _half(vocab, embed),
        "layers": {str(at): layer for at in range(32)},
        "norm": _half(embed),
        "lm_head": _half(embed, vocab),
    }


def gpt2_small() -> Tree:
    """GPT-2 small (`openai-community/gpt2`, config.json), its head tied to `wte`: 124,439,808 parameters in float32."""
    embed, mlp = 768, 3072
    layer = {
        "ln_1": {"scale": _shape(embed), "bias": _shape(embed)},
        "attn": {"qkv": _dense(embed, 3 * embed, bias=(3 * embed,)), "o": _dense(embed, embed, bias=(embed,))},
        "ln_2": {"scale": _shape(embed), "bias": _shape(embed)},
        "mlp": {"up": _dense(embed, mlp, bias=(mlp,)), "down": _dense(mlp, embed, bias=(embed,))},
    }
    return {
        "wte": _shape(50257, embed),
        "wpe": _shape(1024, embed),
        "layers": {str(at): layer for at in range(12)},
        "ln_f": {"scale": _shape(embed), "bias": _shape(embed)},
    }


def vit_l16() -> Tree:
    """ViT-L/16 for 224 x 224 images and 1000 classes (`ViT-L_16`, google-research/vision_transformer), in float32.

    It has 304,326,632 parameters. Attention is as Flax has it: kernels (embed, heads, head size), and back.
    """
    embed, mlp, heads, head_size, patch, patches, classes = 1024, 4096, 16, 64, 16, 196, 1000
    norm = {"scale": _shape(embed), "bias": _shape(embed)}
    projection = _dense(embed, heads, head_size, bias=(heads, head_size))
    layer = {
        "norm_1": norm,
        "attn": {
            "query": projection,
            "key": projection,
            "value": projection,
            "out": _dense(heads, head_size, embed, bias=(embed,)),
        },
        "norm_2": norm,
        "mlp": {"up_proj": _dense(embed, mlp, bias=(mlp,)), "down_proj": _dense(mlp, embed, bias=(embed,))},
    }
    return {
        "patches": _dense(patch, patch, 3, embed, bias=(embed,)),
        "cls": _shape(1, 1, embed),
        "positions": _shape(1, patches + 1, embed),
        "layers": {str(at): layer for at in range(24)},
        "norm": norm,
        "head": _dense(embed, classes, bias=(classes,)),
    }


def dlrm_criteo() -> Tree:
    """DLRM for the features of Criteo-Kaggle, of width 128, in float32: 16 GiB of tables.

    The perceptrons are those of the DLRM of MLPerf Training: 13-512-256-128 below, 479-1024-1024-512-256-1 on top.
    """

    def perceptron(*sizes: int) -> Tree:
        pairs = enumerate(itertools.pairwise(sizes))
        return {str(at): _dense(inputs, outputs, bias=(outputs,)) for at, (inputs, outputs) in pairs}

    return {
        "tables": {str(at): _shape(values, 128) for at, values in enumerate(CRITEO_KAGGLE)},
        "bottom": perceptron(13, 512, 256, 128),
        "top": perceptron(479, 1024, 1024, 512, 256, 1),
    }


MODELS: dict[str, Callable[[], Tree]] = {
    "llama3-8b": llama3_8b,
    "llama3-8b-stacked": lambda: llama3_8b(stacked=True),
    "llama3-70b": llama3_70b,
    "mixtral-8x7b": mixtral_8x7b,
    "gpt2-small": gpt2_small,
    "vit-l16": vit_l16,
    "dlrm-criteo": dlrm_criteo,
}
"""The models by name, in the order in which tables show them."""
