"""The models that benchmarks plan for have the arrays and parameters that were published."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import CRITEO_KAGGLE, MODELS
from benchmarks.sharding_quality import size, total_bytes


# The arrays, the parameters, and the bytes on each of 8, 64 and 256 devices if all were divided.
PUBLISHED = {
    "llama3-8b": (291, 8_030_261_248, "1.87G", "239.32M", "59.83M"),
    "llama3-8b-stacked": (12, 8_030_261_248, "1.87G", "239.32M", "59.83M"),
    "llama3-70b": (723, 70_553_706_496, "16.43G", "2.05G", "525.67M"),
    "mixtral-8x7b": (323, 46_702_792_704, "10.87G", "1.36G", "347.96M"),
    "gpt2-small": (148, 124_439_808, "59.34M", "7.42M", "1.85M"),
    "vit-l16": (392, 304_326_632, "145.11M", "18.14M", "4.53M"),
    "dlrm-criteo": (42, 4_323_978_753, "2.01G", "257.73M", "64.43M"),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_the_arrays_and_parameters_that_were_published(model: str):
    tree = MODELS[model]()
    leaves = jax.tree.leaves(tree)
    assert all(type(leaf) is jax.ShapeDtypeStruct for leaf in leaves)
    ideal = [size(total_bytes(tree) / devices) for devices in (8, 64, 256)]
    assert (len(leaves), sum(leaf.size for leaf in leaves), *ideal) == PUBLISHED[model]


def test_stacked_layers_hold_what_single_ones_do():
    single, stacked = MODELS["llama3-8b"](), MODELS["llama3-8b-stacked"]()
    layers = [single["layers"][str(at)] for at in range(len(single["layers"]))]
    joined = jax.tree.map(lambda *same: jax.ShapeDtypeStruct((len(same), *same[0].shape), same[0].dtype), *layers)
    assert stacked == {**single, "layers": joined}


def test_experts_are_stacked_and_few():
    layer = MODELS["mixtral-8x7b"]()["layers"]["31"]
    assert layer["moe"]["w2"] == jax.ShapeDtypeStruct((8, 14336, 4096), jnp.bfloat16)
    assert layer["moe"]["router"].shape == (4096, 8)


def test_attention_kernels_of_the_vision_transformer_have_heads():
    attention = MODELS["vit-l16"]()["layers"]["0"]["attn"]
    assert attention["query"] == {
        "kernel": jax.ShapeDtypeStruct((1024, 16, 64), jnp.float32),
        "bias": jax.ShapeDtypeStruct((16, 64), jnp.float32),
    }
    assert attention["out"]["kernel"].shape == (16, 64, 1024)


def test_tables_have_a_row_for_each_value_of_their_feature():
    tables = MODELS["dlrm-criteo"]()["tables"]
    assert [tables[str(at)].shape for at in range(26)] == [(values, 128) for values in CRITEO_KAGGLE]
    assert size(total_bytes(tables)) == "16.10G"
