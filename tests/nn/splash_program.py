"""Compiles the gradient of attention for eight TPU v5e devices from their description alone, and saves the text.

A separate program, because JAX looks for TPUs wherever it finds libtpu. Its arguments are a folder, and for each text
the type of the mesh axes, the name of the axis that is sharded over "model", and the context, such as
"auto-heads-all_gather".
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

import axonym as nym


def compute_loss(query: nym.NamedArray, key: nym.NamedArray, value: nym.NamedArray, context: str) -> jax.Array:
    mask = nym.nn.AttentionMask.causal()
    operands = query, key, value, mask
    result = nym.nn.dot_product_attention("key_pos", "head_dim", *operands, QPos="pos", context=context)
    return (result.astype(jnp.float32) ** 2).sum().scalar()


def compile_gradient(axis_types: str, sharded: str, context: str, devices: Any) -> str:
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types=axis_types, devices=devices)
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", sharded: "model"}):
        axes = {"batch": 4, "heads": 2, "head_dim": 128}
        query, key = ({**axes, "group": 2, "pos": 256}, {**axes, "key_pos": 256})
        query, key = (jax.eval_shape(lambda shape=shape: nym.zeros(shape, jnp.bfloat16)) for shape in (query, key))
        step = nym.named_jit(jax.grad(compute_loss, (0, 1, 2)))
        return step.lower(query, key, key, context).compile().as_text()


def main(folder: str, *names: str) -> None:
    devices = topologies.get_topology_desc("v5e:2x4", "tpu").devices
    for name in names:
        (Path(folder) / name).write_text(compile_gradient(*name.split("-"), devices))


if __name__ == "__main__":
    main(*sys.argv[1:])
