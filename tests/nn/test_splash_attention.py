"""Splash attention compiled for TPUs that are described and not there: the kernel is used, and on shards."""

import os

import jax
import jax.numpy as jnp
import pytest

import axonym as nym

from ..hlo import Program


def compute_loss(query: nym.NamedArray, key: nym.NamedArray, value: nym.NamedArray, context: str) -> jax.Array:
    mask = nym.nn.AttentionMask.causal()
    operands = query, key, value, mask
    result = nym.nn.dot_product_attention("key_pos", "head_dim", *operands, QPos="pos", context=context)
    return (result.astype(jnp.float32) ** 2).sum().scalar()


# There are kernels for the result, for the gradient of the query, and for those of key and value. In a ring of two
# devices there are these for the first step and for the second. The arguments have whole keys, whose gradients are sums
# over the queries of devices, or gathered after a ring.
@pytest.mark.skipif(not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it.")
@pytest.mark.parametrize(
    ("axis_types", "sharded", "context", "kernels", "collectives"),
    [
        ("auto", "heads", "all_gather", 3, set()),
        ("explicit", "pos", "all_gather", 3, {"all-reduce"}),
        ("explicit", "pos", "ring", 6, {"collective-permute", "all-gather"}),
    ],
)
def test_auto_uses_the_kernel_for_tpus_on_shards(
    axis_types: str, sharded: str, context: str, kernels: int, collectives: set[str]
):
    axes = {"batch": 4, "heads": 2, "head_dim": 128}
    query, key = {**axes, "group": 2, "pos": 256}, {**axes, "key_pos": 256}
    devices = nym.planner.described_devices("v5e:2x4")
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types=axis_types, devices=devices)
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", sharded: "model"}):
        arrays = (jax.eval_shape(lambda shape=shape: nym.zeros(shape, jnp.bfloat16)) for shape in (query, key, key))
        step = nym.named_jit(jax.grad(compute_loss, (0, 1, 2)))
        program = nym.planner.compile_for(step, *arrays, context, cache=False)
    assert program.text.count('custom_call_target="tpu_custom_call"') == kernels
    assert {collective.kind for collective in Program(program.text).collectives()} == collectives
