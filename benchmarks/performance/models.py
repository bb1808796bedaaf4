"""Models two times: by hand on raw arrays, and as `examples/models` has them, with the same parameters and inputs."""

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from ..by_hand.bert import HandwrittenBERT
from ..by_hand.gemma2 import HandwrittenGemma2
from ..by_hand.gpt2 import HandwrittenGPT2
from ..by_hand.handwritten_model import HandwrittenModel, is_axes
from ..by_hand.llama import HandwrittenLlama
from ..by_hand.mixtral import HandwrittenMixtral
from ..by_hand.qwen3 import HandwrittenQwen3
from ..by_hand.vit import HandwrittenViT
from ..by_hand.whisper import HandwrittenWhisper
from .decoder import Form


def compute_token_loss(model: Any, tokens: Any, targets: Any) -> jax.Array:
    """Returns the cross entropy of the next token."""
    return nym.nn.cross_entropy_loss(model(tokens), "vocab", targets).scalar()


def compute_masked_loss(model: Any, tokens: Any, mask: Any, types: Any, targets: Any, is_masked: Any) -> jax.Array:
    """Returns the cross entropy of masked tokens."""
    logits = model(tokens, mask == 1, types)
    return nym.nn.cross_entropy_loss(logits, "vocab", targets, where=is_masked == 1).scalar()


def compute_label_loss(model: Any, images: Any, labels: Any) -> jax.Array:
    """Returns the cross entropy of the labels of images."""
    return nym.nn.cross_entropy_loss(model(images), "labels", labels).scalar()


def compute_speech_loss(model: Any, features: Any, tokens: Any, targets: Any) -> jax.Array:
    """Returns the cross entropy of the next token of what is spoken."""
    return nym.nn.cross_entropy_loss(model(features, tokens), "vocab", targets).scalar()


def make_config(module: Any, axes: Mapping[str, nym.Axis], **options: Any) -> Any:
    """Returns the configuration of an example."""
    return module.Config(**{name: axis for name, axis in axes.items() if name in module.Config._fields}, **options)


def make_speech_config(module: Any, axes: Mapping[str, nym.Axis], **options: Any) -> Any:
    """Returns the configuration of an encoder and a decoder of the same size."""
    stack = tuple(axes[name] for name in ("layers", "heads", "head_dim", "mlp"))
    return make_config(module, axes, encoder=stack, decoder=stack, **options)


class Model(NamedTuple):
    """A model in both forms.

    Attributes:
        name: The name of the example's class.
        by_hand: The class by hand.
        sizes: The size of each axis, small enough to be compiled in seconds.
        options: What else the example's `Config` and the class by hand are told.
        compute_loss: The loss of the example, a function of the model and the inputs.
        make_config: The configuration of the example, a function of its module, axes by name, and the options.
    """

    name: str
    by_hand: type[HandwrittenModel]
    sizes: Mapping[str, int]
    options: Mapping[str, Any] = {}
    compute_loss: Callable[..., jax.Array] = compute_token_loss
    make_config: Callable[..., Any] = make_config

    def init(self, sizes: Mapping[str, int], *, key: jax.Array) -> Any:
        """Makes the example's model with these sizes."""
        module = importlib.import_module(f"examples.models.{self.name.lower()}")
        axes = {name: nym.Axis(name, size) for name, size in sizes.items()}
        return getattr(module, self.name).init(self.make_config(module, axes, **self.options), key=key)


TEXT = {"batch": 2, "pos": 64, "vocab": 512, "embed": 64, "head_dim": 16}
HEADS = {"layers": 4, "heads": 4, "mlp": 256}
GROUPED = {"layers": 4, "heads": 2, "group": 2, "mlp": 176}
PAIRED = {**TEXT, **HEADS, "positions": 128, "types": 2, "flags": 2, "head_embed": 64}
IMAGES = {"batch": 2, "channels": 3, "height": 64, "width": 64, "labels": 128, "embed": 64, "head_dim": 16}
PATCHES = {"rows": 8, "columns": 8, "patch_rows": 8, "patch_columns": 8, "patches": 65}
SPEECH = {"mel": 16, "frames": 128, "source": 64, "kernel": 3, "hidden": 64, "positions": 128}
MODELS = {
    "GPT-2": Model("GPT2", HandwrittenGPT2, {**TEXT, **HEADS, "positions": 128, "qkv": 3}),
    "Llama": Model("Llama", HandwrittenLlama, {**TEXT, **GROUPED}),
    "Qwen 3": Model("Qwen3", HandwrittenQwen3, {**TEXT, **GROUPED}),
    "Gemma 2": Model("Gemma2", HandwrittenGemma2, {**TEXT, **GROUPED, "pairs": 2}, {"window": 16, "scale": 0.25}),
    "Mixtral": Model("Mixtral", HandwrittenMixtral, {**TEXT, **GROUPED, "experts": 4}, {"top_k": 2}),
    "BERT": Model("BERT", HandwrittenBERT, PAIRED, compute_loss=compute_masked_loss),
    "ViT": Model("ViT", HandwrittenViT, {**IMAGES, **PATCHES, **HEADS}, compute_loss=compute_label_loss),
    "Whisper": Model(
        *("Whisper", HandwrittenWhisper, {**TEXT, **HEADS, **SPEECH, "pos": 32}),
        compute_loss=compute_speech_loss,
        make_config=make_speech_config,
    ),
}


def make_forms(model: Model, sizes: Mapping[str, int] | None = None) -> dict[str, Form]:
    """Returns a model in both forms, with the same random parameters and inputs; `sizes` replace some of its own."""
    sizes = {**model.sizes, **(sizes or {})}
    random = np.random.default_rng(0)

    def draw(axes: tuple[str, ...], of: str | None = None) -> jax.Array:
        shape = tuple(sizes[name] for name in axes)
        if of is not None:
            return jnp.asarray(random.integers(sizes[of], size=shape), jnp.int32)
        return jnp.asarray(random.standard_normal(shape, np.float32) / math.sqrt(sizes["embed"]))

    by_hand = model.by_hand(sizes, **model.options)
    parameters = jax.tree.map(draw, by_hand.axes, is_leaf=is_axes)
    inputs = tuple(draw(*one) for one in by_hand.inputs)
    named = tuple(nym.named(x, one.axes) for x, one in zip(inputs, by_hand.inputs, strict=True))
    return {
        "JAX": Form(by_hand.compute_loss, parameters, inputs),
        "Axonym": Form(model.compute_loss, _name_parameters(model, sizes, parameters), named),
    }


def _name_parameters(model: Model, sizes: Mapping[str, int], parameters: Any) -> Any:
    shapes, treedef = jax.tree.flatten(jax.eval_shape(lambda: model.init(sizes, key=jax.random.key(0))))
    leaves = jax.tree.leaves(parameters)
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in shapes]
    return jax.tree.unflatten(treedef, leaves)


def make_named_step(
    model: Model, sizes: Mapping[str, int], stored: Any, compute: Any, optimizer: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of an example's model in bfloat16, and the shapes of its arguments; the mesh must be set."""

    def compute_loss(parameters: Any, *inputs: Any) -> jax.Array:
        parameters, inputs = jax.tree.map(
            lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, (parameters, inputs)
        )
        return model.compute_loss(parameters, *inputs)

    @nym.fsdp(stored, compute, donate_args=(True, True), retrace_warning=False)
    def train_step(parameters: Any, state: Any, *inputs: Any) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(parameters, *inputs)
        updates, state = optimizer.update(gradients, state, parameters)
        return eqx.apply_updates(parameters, updates), state, loss

    parameters = jax.eval_shape(lambda: model.init(sizes, key=jax.random.key(0)))
    axes = [nym.make_axes(**{name: sizes[name] for name in one.axes}) for one in model.by_hand.inputs]
    inputs = jax.eval_shape(
        lambda: tuple(nym.zeros(own, one.dtype) for own, one in zip(axes, model.by_hand.inputs, strict=True))
    )
    return train_step, (parameters, jax.eval_shape(optimizer.init, parameters), *inputs)
