"""What models in plain JAX share: shardings, shapes of parameters and inputs, layers, and the train step.

Parameters are those of the model in `examples/models`. A train step casts all of them to the type to compute in, and
each is gathered where it is used. Mappings from names of axes to mesh axes give the shardings, because a plan for a TPU
pod is as easily written so.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec as P


class Input(NamedTuple):
    """An input of the loss.

    Attributes:
        axes: The names of its axes.
        of: The axis from which it selects elements, for integers; None for floats.
    """

    axes: tuple[str, ...]
    of: str | None = None

    @property
    def dtype(self) -> Any:
        return jnp.float32 if self.of is None else jnp.int32


TOKENS = Input(("batch", "pos"), of="vocab")


class Affine(NamedTuple):
    """A weight and a bias, or the axes of each; those of a norm unless said."""

    weight: Any = ("embed",)
    bias: Any = ("embed",)


def is_axes(x: Any) -> bool:
    """Returns whether this is the axes of one array, and not a tuple of the axes of several."""
    return isinstance(x, tuple) and all(isinstance(name, str) for name in x)


def stack_axes(name: str, axes: Any) -> Any:
    """Returns the axes of stacked parameters: those of each, with one more in front."""
    return jax.tree.map(lambda one: (name, *one), axes, is_leaf=is_axes)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return (wide * weight).astype(x.dtype)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide - jnp.mean(wide, -1, keepdims=True)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return (wide * weight + bias).astype(x.dtype)


def hide_future(scores: jax.Array, window: int | None = None) -> jax.Array:
    """Returns scores, lowest where a key comes after its query, or `window` positions or more before it."""
    queries, keys = jnp.arange(scores.shape[-2])[:, None], jnp.arange(scores.shape[-1])
    is_seen = queries >= keys
    if window is not None:
        is_seen &= queries - keys < window
    return jnp.where(is_seen, scores, jnp.finfo(scores.dtype).min)


@dataclasses.dataclass(frozen=True)
class HandwrittenModel:
    """A model's loss and train step; a subclass has `compute_loss(parameters, *inputs)`.

    Attributes:
        axes: The names of the axes of each parameter, as a tree whose leaves have the order of the example's.
        inputs: The inputs of the loss.
        sizes: The size of each axis, those of inputs included.
        stored: From names of axes to mesh axes, for parameters between steps.
        compute: The same, for parameters and activations where they are used.
        dtype: The dtype in which a train step computes.
        mesh: The mesh, or None for one device.
        remat: Whether blocks are computed again on the way back.
    """

    axes: ClassVar[Any]
    inputs: ClassVar[tuple[Input, ...]] = (TOKENS, TOKENS)

    sizes: Mapping[str, int]
    stored: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compute: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32
    mesh: Any = None
    remat: bool = True

    def make_sharding(self, axes: tuple[str, ...], mapping: Mapping[str, Any]) -> NamedSharding:
        return NamedSharding(self.mesh, P(*(mapping.get(name) for name in axes)))

    def shard(self, x: jax.Array, *axes: str) -> jax.Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, self.make_sharding(axes, self.compute))

    def use(self, weights: Any, axes: Any) -> Any:
        """Returns one or a tree of parameters, gathered from where they are stored."""
        return jax.tree.map(self._use_weight, axes, weights, is_leaf=is_axes)

    def _use_weight(self, axes: tuple[str, ...], weight: jax.Array) -> jax.Array:
        if self.mesh is not None:  # both, so that the gradient is scattered, too
            weight = jax.lax.with_sharding_constraint(weight, self.make_sharding(axes, self.stored))
        return self.shard(weight, *axes)

    def checkpoint(self, block: Any) -> Any:
        """Returns the body of a scan over layers, computed again on the way back if the model is so."""
        return jax.checkpoint(block, prevent_cse=False) if self.remat else block

    def compute_cross_entropy(
        self,
        logits: jax.Array,
        targets: jax.Array,
        where: jax.Array | None = None,
        axes: tuple[str, ...] = ("batch", "pos", "vocab"),
    ) -> jax.Array:
        """Returns the mean cross entropy of logits with these axes, of the targets that `where` selects."""
        logits = self.shard(logits, *axes).astype(jnp.float32)
        # Not `take_along_axis`, which would gather the scores of the whole vocabulary.
        chosen = jnp.where(targets[..., None] == jnp.arange(logits.shape[-1]), logits, 0).sum(-1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen, where=where)

    def compute_loss(self, parameters: Any, *inputs: jax.Array) -> jax.Array:
        raise NotImplementedError(f"{type(self).__name__} has no loss; define `compute_loss(parameters, *inputs)`")

    def make_shapes(self, optimizer: Any) -> tuple[Any, ...]:
        """Returns the shapes of parameters, optimizer state and each input, each with its sharding."""

        def make_shape(axes: tuple[str, ...], mapping: Mapping[str, Any], dtype: Any) -> jax.ShapeDtypeStruct:
            shape = tuple(self.sizes[name] for name in axes)
            sharding = None if self.mesh is None else self.make_sharding(axes, mapping)
            return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

        parameters = jax.tree.map(lambda axes: make_shape(axes, self.stored, jnp.float32), self.axes, is_leaf=is_axes)
        whole = None if self.mesh is None else NamedSharding(self.mesh, P())
        state = optax.tree.map_params(
            optimizer,
            lambda shape, parameter: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=parameter.sharding),
            jax.eval_shape(optimizer.init, parameters),
            parameters,
            transform_non_params=lambda shape: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=whole),
        )
        return parameters, state, *(make_shape(one.axes, self.compute, one.dtype) for one in self.inputs)

    def make_train_step(self, optimizer: Any) -> Any:
        """Returns the compiled step, which donates parameters and optimizer state."""

        def compute_loss(parameters: Any, *inputs: jax.Array) -> jax.Array:
            # Not each layer in the loop, which would keep the gradients of all layers in the wider type.
            return self.compute_loss(jax.tree.map(lambda x: x.astype(self.dtype), parameters), *inputs)

        def train_step(parameters: Any, state: Any, *inputs: jax.Array) -> Any:
            loss, gradients = jax.value_and_grad(compute_loss)(parameters, *inputs)
            updates, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss

        parameters, state = jax.tree.map(lambda shape: shape.sharding, self.make_shapes(optimizer)[:2])
        whole = None if self.mesh is None else NamedSharding(self.mesh, P())
        return jax.jit(train_step, donate_argnums=(0, 1), out_shardings=(parameters, state, whole))
