"""Llama two times: by hand on raw arrays, and as `examples/models/llama.py` has it, with the same parameters."""

import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from ..llama_by_hand import AXES, HandwrittenLlama, is_axes
from .decoder import Form


SIZES = {"vocab": 512, "layers": 4, "embed": 64, "heads": 2, "group": 2, "head_dim": 16, "mlp": 176}
BATCH, POS = 2, 64


def make_llamas() -> dict[str, Form]:
    """Returns the model in both forms, with the same random parameters and tokens."""
    random = np.random.default_rng(0)

    def draw(axes: tuple[str, ...]) -> jax.Array:
        shape = tuple(SIZES[name] for name in axes)
        return jnp.asarray(random.standard_normal(shape, np.float32) / math.sqrt(SIZES["embed"]))

    parameters = jax.tree.map(draw, AXES, is_leaf=is_axes)
    tokens = tuple(jnp.asarray(random.integers(SIZES["vocab"], size=(BATCH, POS))) for _ in range(2))
    by_hand = HandwrittenLlama(SIZES)
    return {
        "JAX": Form(by_hand.compute_loss, parameters, tokens),
        "Axonym": Form(
            _compute_loss, _name_parameters(parameters), tuple(nym.named(x, ("batch", "pos")) for x in tokens)
        ),
    }


def _name_parameters(parameters: Any) -> Any:
    llama = importlib.import_module("examples.models.llama")
    config = llama.Config(*nym.make_axes(**SIZES))
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: llama.Llama.init(config, key=jax.random.key(0))))
    leaves = jax.tree.leaves(parameters)
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in shapes]
    return jax.tree.unflatten(treedef, leaves)


def _compute_loss(model: Any, tokens: Any, targets: Any) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(tokens), "vocab", targets).scalar()
