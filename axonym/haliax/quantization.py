"""`haliax.quantization`: dots in 8-bit integers and floats, and state that gradients overwrite."""

import dataclasses
import re
from typing import Any, Protocol, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import quantization
from ..quantization import (
    Float8DotGeneral,
    Int8DotGeneral,
    OverwriteWithGradient as OverwriteWithGradient,
    accumulate_gradients as add_gradients,
    apply_updates as apply_updates,
    partition_overwrites,
)
from ._adapt import rename_parameters


T = TypeVar("T")

CustomGradientAccumulation = OverwriteWithGradient


class DotGeneralOp(Protocol):
    """The signature of a `dot_general` of linear layers, that of `jax.lax.dot_general`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.quantization.DotGeneralOp.default()
        DefaultDotGeneralOp()
    """

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Multiplies two plain arrays."""
        ...

    @staticmethod
    def default() -> "DefaultDotGeneralOp":
        """Returns the product in the element type of the operands."""
        return DefaultDotGeneralOp()


class DefaultDotGeneralOp(eqx.Module):
    """The `dot_general` of JAX as a module.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> dot_general = hax.quantization.DefaultDotGeneralOp.init()
        >>> hax.nn.Linear.init(
        ...     *hax.make_axes(embed=4, mlp=8), key=jax.random.key(0), dot_general=dot_general
        ... ).dot_general
        DefaultDotGeneralOp()
    """

    @staticmethod
    def init() -> "DefaultDotGeneralOp":
        """Makes the module."""
        return DefaultDotGeneralOp()

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Multiplies two plain arrays."""
        return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, **kwargs)


class Int8DotGeneralOp(Int8DotGeneral):
    """A `dot_general` in 8-bit integers; see `axonym.quantization.Int8DotGeneral`.

    Results are those of Haliax; gradients are not quantised, whereas Haliax quantises that of the left operand.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> int8 = hax.quantization.Int8DotGeneralOp.init()
        >>> hax.nn.Linear.init(*hax.make_axes(embed=4, mlp=8), key=jax.random.key(0), dot_general=int8).dot_general
        Int8DotGeneralOp()
    """

    @staticmethod
    def init() -> "Int8DotGeneralOp":
        """Makes the module."""
        return Int8DotGeneralOp()


class Fp8DotGeneralOp(OverwriteWithGradient):
    """A `dot_general` in 8-bit floats with delayed scaling; see `axonym.quantization.Float8DotGeneral`.

    Attributes:
        dot_general: The product.
        compute_dtype: Kept for programs that read it. Haliax converts the rounded operands to this type before it
            multiplies them; here they are multiplied in 8 bits.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.quantization.Fp8DotGeneralOp.init(16).input_amax_history.shape
        (16,)
    """

    dot_general: Float8DotGeneral
    compute_dtype: Any = eqx.field(static=True)

    @staticmethod
    def init(
        amax_history_length: int = 1024,
        compute_dtype: Any = None,
        fwd_dtype: Any = jnp.float8_e4m3fn,
        rev_dtype: Any = jnp.float8_e5m2,
    ) -> "Fp8DotGeneralOp":
        """Makes a dot without a history."""
        dot_general = Float8DotGeneral.init(amax_history_length, dtype=fwd_dtype, gradient_dtype=rev_dtype)
        return Fp8DotGeneralOp(dot_general, compute_dtype)

    def __call__(
        self,
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Multiplies two plain arrays."""
        return self.dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, **kwargs)

    def overwrite(self, gradient: Any) -> Self:
        """Returns this dot with the magnitudes of a step in its histories."""
        return dataclasses.replace(self, dot_general=self.dot_general.overwrite(gradient.dot_general))

    def accumulate(self, other: Any) -> Self:
        """Combines the gradients of two microbatches."""
        return dataclasses.replace(self, dot_general=self.dot_general.accumulate(other.dot_general))

    @property
    def input_amax_history(self) -> jax.Array:
        """The largest magnitudes of the input in the last steps: the newest, then the others from the oldest on."""
        return _order_history(self.dot_general.lhs_amax)

    @property
    def input_scale(self) -> jax.Array:
        """The scale of the input in the last step, along an axis of size 1."""
        return _compute_last_scale(self.dot_general.lhs_amax, self.dot_general.dtype)

    @property
    def kernel_amax_history(self) -> jax.Array:
        """The largest magnitudes of the weight in the last steps, in the same order."""
        return _order_history(self.dot_general.rhs_amax)

    @property
    def kernel_scale(self) -> jax.Array:
        """The scale of the weight in the last step, along an axis of size 1."""
        return _compute_last_scale(self.dot_general.rhs_amax, self.dot_general.dtype)

    @property
    def output_grad_amax_history(self) -> jax.Array:
        """The largest magnitudes of the gradient of the output in the last steps, in the same order."""
        return _order_history(self.dot_general.gradient_amax)

    @property
    def output_grad_scale(self) -> jax.Array:
        """The scale of the gradient of the output in the last step, along an axis of size 1."""
        return _compute_last_scale(self.dot_general.gradient_amax, self.dot_general.gradient_dtype)


def _order_history(history: Any) -> jax.Array:
    """Converts a history from newest first to the order of Haliax, which rolls it and overwrites the first element."""
    return jnp.concatenate([history.array[..., :1], jnp.flip(history.array[..., 1:], -1)], -1)


def _compute_last_scale(history: Any, dtype: Any) -> jax.Array:
    """Returns the scale that the steps before the last one gave, with an axis of size 1."""
    amax = jnp.max(history.array[..., 1:], -1, keepdims=True, initial=0)
    return compute_scale(amax, jnp.ones_like(amax), float(jnp.finfo(dtype).max))


def compute_scale(amax: Any, scale: Any, fp8_max: Any, margin: int = 0) -> jax.Array:
    """Returns the scale with which the largest magnitude of a tensor becomes the largest number of an 8-bit float.

    Args:
        amax: The largest magnitude; plain, of any shape.
        scale: The scale to keep where `amax` is zero or not finite.
        fp8_max: The largest number of the type.
        margin: How many powers of two to leave unused.

    Returns:
        `amax / fp8_max * 2**margin`, or `scale`.

    Example:
        >>> import axonym.haliax as hax
        >>> [hax.quantization.compute_scale(amax, 1.0, 448.0).item() for amax in (896.0, 0.0)]
        [2.0, 1.0]
    """
    is_known = (jnp.asarray(amax) > 0) & jnp.isfinite(amax)
    return jnp.where(is_known, amax / fp8_max * 2**margin, scale)


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Which linear layers are quantised, and how.

    Attributes:
        targets: Names of the fields that hold the layers, or a regular expression that matches their path, with dots
            between its keys, from the start; the path of stacked layers starts with `stacked`. None for all layers.
        amax_history_length: How many steps the largest magnitude is taken over, for `fp8`.
        compute_dtype: Changes nothing; see `Fp8DotGeneralOp`.
        fp8: Whether to multiply in 8-bit floats.
        int8: Whether to multiply in 8-bit integers.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.quantization.QuantizationConfig(targets="layers.[01]", int8=True).amax_history_length
        1024
    """

    targets: list[str] | str | None = None
    amax_history_length: int = 1024
    compute_dtype: Any = None
    fp8: bool = False
    int8: bool = False

    def __post_init__(self):
        """Raises a ValueError if both element types are asked for."""
        if self.fp8 and self.int8:
            raise ValueError("`fp8` and `int8` are both set; choose one of them")


def quantize_linear_layers(tree: T, config: QuantizationConfig) -> T:
    """Replaces the `dot_general` of linear layers; see `axonym.quantization.quantize_linear_layers`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mlp = hax.nn.MLP.init(*hax.make_axes(pixel=64, label=10), 32, 1, key=jax.random.key(0))
        >>> config = hax.quantization.QuantizationConfig(targets=["0"], int8=True)
        >>> [layer.dot_general for layer in hax.quantization.quantize_linear_layers(mlp, config).layers]
        [Int8DotGeneralOp(), None]
    """
    if not (config.fp8 or config.int8):
        return tree
    dot_general = Int8DotGeneralOp()
    if config.fp8:
        dot_general = Fp8DotGeneralOp.init(config.amax_history_length, config.compute_dtype)

    def is_target(path: str, layer: Any) -> bool:
        keys = path.split("/")
        if isinstance(config.targets, str):
            start = max((position for position, key in enumerate(keys) if key == "stacked"), default=0)
            return re.match(config.targets, ".".join(keys[start:])) is not None
        return config.targets is None or keys[-1] in config.targets

    return quantization.quantize_linear_layers(tree, dot_general, is_target)


partition_for_grad_overwrite = rename_parameters(partition_overwrites, "grad=tree")
accumulate_gradients = rename_parameters(add_gradients, "gradient=gradients")
