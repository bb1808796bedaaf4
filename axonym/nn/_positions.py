"""Encodings of positions: rotary embeddings, their scalings for long contexts, and linear biases (ALiBi)."""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype, check_integer, check_number
from .._ground.formats import format_axes, format_value
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, AxisSpec, axis_name, get_names_and_sizes, parse_axes, parse_one_axis
from ..named._base import format_shape, get_plain_array
from ..named._creation import arange, named
from ..named._dot import dot
from ..named._elementwise._arithmetic import clip, maximum
from ..named._elementwise._functions import cos, sin
from ..named._named_call import enter_function_scope
from ..named._reduce._reductions import max as max_of
from ..named._shape._broadcast import broadcast_axis
from ..named._shape._concatenate import concatenate, split, stack, unbind
from ..named._shape._flatten import flatten_axes, unflatten_axis
from ..named._shape._rearrange import rearrange
from ..named._wide_sums import is_narrow_float
from ._layer import check_input


def compute_rotary_frequencies(Half: Axis, theta: float | NamedArray) -> NamedArray:
    """Returns the angle per position of each pair, in float32: `theta ** (-i / number of pairs)` for pair `i`."""
    return theta ** (arange(Half, dtype="float32") * (-1 / Half.size))


class RotaryScaling(abc.ABC):
    """Base class of the scalings that `rotary_embedding` takes: immutable, hashable, and compared by value.

    Example:
        >>> import axonym as nym
        >>> class TwiceAsSlow(nym.nn.RotaryScaling):
        ...     def compute_frequencies(self, Half, theta, positions):
        ...         return nym.nn.LinearRotaryScaling(1.0).compute_frequencies(Half, theta, positions) / 2
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> rotated = nym.nn.rotary_embedding(x, "pos", "head_dim", scaling=TwiceAsSlow())
        >>> [f"{value:.2f}" for value in rotated["pos", 1].array]
        ['0.88', '0.48']
    """

    @abc.abstractmethod
    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the angle per position of each pair.

        Args:
            Half: The axis of pairs.
            theta: Base of the angles.
            positions: The positions of the sequence.
        """

    def compute_attention_factor(self) -> float:
        """Returns the factor of the rotated elements."""
        return 1.0


def _check_factor(scaling: RotaryScaling, factor: float) -> None:
    check_number(f"{type(scaling).__name__}: `factor`, the length over the one trained on,", factor, least=1)


def _check_original_positions(scaling: RotaryScaling, original_positions: int) -> None:
    check_integer(f"{type(scaling).__name__}: `original_positions`", original_positions, 1)


@dataclasses.dataclass(frozen=True)
class LinearRotaryScaling(RotaryScaling):
    """Divides all positions by a factor (Chen et al., 2023).

    Args:
        factor: How many times longer sequences become, at least 1.

    Raises:
        ValueError: If `factor` is below 1.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> rotated = nym.nn.rotary_embedding(x, "pos", "head_dim", scaling=nym.nn.LinearRotaryScaling(2.0))
        >>> [f"{value:.2f}" for value in rotated["pos", 1].array]  # by half a radian
        ['0.88', '0.48']
    """

    factor: float

    def __post_init__(self) -> None:
        """Checks the factor."""
        _check_factor(self, self.factor)

    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the frequencies divided by the factor."""
        return compute_rotary_frequencies(Half, theta) / self.factor


@dataclasses.dataclass(frozen=True)
class DynamicRotaryScaling(RotaryScaling):
    """Raises `theta` once a sequence is longer than those trained on: NTK-aware scaling by the current length.

    As in `transformers`, the length is the largest position plus 1; keys that a cache rotated earlier stay as they are.

    Args:
        factor: How fast `theta` grows with the length, at least 1.
        original_positions: Length of the sequences trained on.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If `factor` or `original_positions` is below 1.

    Example:
        >>> import axonym as nym
        >>> scaling = nym.nn.DynamicRotaryScaling(2.0, original_positions=2048)
        >>> x = nym.ones({"pos": 4, "head_dim": 8})  # short, so not scaled
        >>> long = nym.nn.rotary_embedding(x, "pos", "head_dim", scaling=scaling)
        >>> nym.allclose(long, nym.nn.rotary_embedding(x, "pos", "head_dim")).item()
        True
    """

    factor: float
    original_positions: int

    def __post_init__(self) -> None:
        """Checks the factor."""
        _check_factor(self, self.factor)
        _check_original_positions(self, self.original_positions)

    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the frequencies for the larger `theta`."""
        if Half.size < 2:
            raise ValueError(f"DynamicRotaryScaling: there are {2 * Half.size} rotated elements; it needs at least 4")
        length = maximum(max_of(positions).astype("float32") + 1, float(self.original_positions))
        growth = self.factor * length / self.original_positions - (self.factor - 1)
        return compute_rotary_frequencies(Half, theta * growth ** (Half.size / (Half.size - 1)))


@dataclasses.dataclass(frozen=True)
class Llama3RotaryScaling(RotaryScaling):
    """Divides low frequencies by a factor and keeps high ones, with a transition between them (Llama 3.1, 2024).

    Args:
        factor: How many times longer sequences become, at least 1.
        original_positions: Length of the sequences trained on.
        low_frequency_factor: Pairs that turn fewer times than this within that length are divided by the factor.
        high_frequency_factor: Pairs that turn more times than this are kept; larger than `low_frequency_factor`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a number is out of its range, or `high_frequency_factor` is not the larger one.

    Example:
        >>> import axonym as nym
        >>> scaling = nym.nn.Llama3RotaryScaling(8.0, original_positions=8192)
        >>> x = nym.ones({"pos": 4, "head_dim": 8})
        >>> nym.nn.rotary_embedding(x, "pos", "head_dim", theta=500000.0, scaling=scaling).shape
        (pos: 4, head_dim: 8)
    """

    factor: float
    original_positions: int
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0

    def __post_init__(self) -> None:
        """Checks the factors."""
        _check_factor(self, self.factor)
        _check_original_positions(self, self.original_positions)
        check_number("Llama3RotaryScaling: `low_frequency_factor`", self.low_frequency_factor, least=0)
        check_number("Llama3RotaryScaling: `high_frequency_factor`", self.high_frequency_factor, above=0)
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"Llama3RotaryScaling: `high_frequency_factor` is {self.high_frequency_factor}, which is not larger "
                f"than `low_frequency_factor`, {self.low_frequency_factor}"
            )

    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the frequencies, low ones divided by the factor."""
        frequencies = compute_rotary_frequencies(Half, theta)
        turns = frequencies * (self.original_positions / (2 * math.pi))
        low, high = self.low_frequency_factor, self.high_frequency_factor
        undivided_share = clip((turns - low) / (high - low), 0, 1)
        return frequencies * ((1 - undivided_share) / self.factor + undivided_share)


@dataclasses.dataclass(frozen=True)
class YarnRotaryScaling(RotaryScaling):
    """Divides low frequencies by a factor, and scales the rotated elements up (YaRN, Peng et al., 2023).

    Args:
        factor: How many times longer sequences become, at least 1.
        original_positions: Length of the sequences trained on.
        beta_fast: Pairs that turn more times than this within that length are kept.
        beta_slow: Pairs that turn fewer times than this are divided by the factor.
        attention_factor: Factor of the rotated elements; `0.1 * log(factor) + 1` if None.
        truncate: Whether the transition begins and ends at whole pairs.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a number is out of its range, or `beta_fast` is not larger than `beta_slow`.

    Example:
        >>> import axonym as nym
        >>> scaling = nym.nn.YarnRotaryScaling(4.0, original_positions=32768)
        >>> x = nym.ones({"pos": 4, "head_dim": 8})
        >>> nym.nn.rotary_embedding(x, "pos", "head_dim", theta=1000000.0, scaling=scaling).shape
        (pos: 4, head_dim: 8)
    """

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Checks the factor and the bounds."""
        _check_factor(self, self.factor)
        _check_original_positions(self, self.original_positions)
        check_number("YarnRotaryScaling: `beta_fast`", self.beta_fast, above=0)
        check_number("YarnRotaryScaling: `beta_slow`", self.beta_slow, above=0)
        if self.attention_factor is not None:
            check_number("YarnRotaryScaling: `attention_factor`", self.attention_factor, above=0)
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"YarnRotaryScaling: `beta_fast` is {self.beta_fast}, which is not larger than `beta_slow`, "
                f"{self.beta_slow}"
            )

    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the frequencies, low ones divided by the factor."""

        def find_pair(turns: float) -> float:
            """Returns which pair turns this many times within the original length."""
            return Half.size * math.log(self.original_positions / (turns * 2 * math.pi)) / math.log(theta)

        low, high = find_pair(self.beta_fast), find_pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * Half.size - 1)
        # 0.001 as in the authors' code: the transition may be empty.
        divided_share = clip((arange(Half, dtype="float32") - low) / max(high - low, 0.001), 0, 1)
        return compute_rotary_frequencies(Half, theta) * (divided_share / self.factor + 1 - divided_share)

    def compute_attention_factor(self) -> float:
        """Returns the factor of the rotated elements."""
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor


def rotary_embedding(
    x: NamedArray,
    Pos: AxisSelector,
    Key: AxisSelector,
    *,
    positions: NamedArray | None = None,
    theta: float = 10000.0,
    scaling: RotaryScaling | None = None,
    rotary_size: int | None = None,
    interleaved: bool = False,
) -> NamedArray:
    """Rotates pairs of elements by angles that grow with the position (Su et al., 2021).

    Element `i` of the first half of `Key` is paired with element `i` of the second half, and the pair is rotated by
    `position * theta ** (-2 i / size)` radians.

    Args:
        x: Array with both axes and any others, such as queries or keys.
        Pos: The axis of positions.
        Key: The axis whose elements are rotated, of even size.
        positions: Position of each element along `Pos`, with any other axes of `x`; counted from 0 if None.
        theta: Base of the angles.
        scaling: How the angles change for sequences longer than those trained on: a `LinearRotaryScaling`,
            `DynamicRotaryScaling`, `Llama3RotaryScaling` or `YarnRotaryScaling`.
        rotary_size: How many elements of `Key` are rotated, an even number; the others stay as they are. All if None.
        interleaved: Whether element `2 i` is paired with element `2 i + 1` instead.

    Returns:
        Array with the axes and the dtype of `x`.

    Raises:
        ValueError: If `x` lacks an axis, the number of rotated elements is odd or does not fit `Key`, or `positions`
            lacks `Pos` or has an axis that `x` lacks.
        TypeError: If `scaling` is not a scaling, `x` has no floating-point numbers, or `positions` are floats of fewer
            bits than float32.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> rotated = nym.nn.rotary_embedding(x, "pos", "head_dim")
        >>> [[f"{value:.2f}" for value in row] for row in rotated.array]
        [['1.00', '0.00'], ['0.54', '0.84']]
    """
    check_input("rotary_embedding", x, (Pos, Key))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"rotary_embedding: the input is of floating-point numbers, not {x.dtype}; convert it first.")
    if not isinstance(get_plain_array(theta), jax.Array):
        check_number("rotary_embedding: `theta`", theta, above=0)
    axis = x.resolve_axis(Key)
    size = axis.size if rotary_size is None else check_integer("rotary_embedding: `rotary_size`", rotary_size)
    if rotary_size is not None and not 0 < size <= axis.size:
        raise ValueError(
            f"rotary_embedding: `rotary_size` is {rotary_size}, and axis {axis.name!r} has size {axis.size}; give an "
            "even number of its elements"
        )
    if size % 2:
        subject = f"axis {axis.name!r} has size" if rotary_size is None else "`rotary_size` is"
        raise ValueError(f"rotary_embedding: {subject} {size}, which is odd")
    if positions is not None:
        check_input("rotary_embedding (positions)", positions, Pos)
        if is_narrow_float(positions.dtype):
            raise TypeError(
                f"rotary_embedding: `positions` {format_shape(positions)} are of {positions.dtype}, which rounds large "
                "positions; pass integers, or numbers of float32."
            )
        if extra := [name for name in positions.names if name not in x.names or name == axis.name]:
            raise ValueError(
                f"rotary_embedding: `positions` {format_shape(positions)} has axes {format_axes(extra)}; allowed are "
                f"the axes of {format_shape(x)} except {axis.name!r}"
            )
    if scaling is not None and not isinstance(scaling, RotaryScaling):
        raise TypeError(
            f"rotary_embedding: `scaling` is made by `LinearRotaryScaling` and the like, it is not "
            f"{format_value(scaling)}."
        )
    with enter_function_scope("rotary_embedding", (axis_name(Pos), axis.name)):
        positions = arange(x.resolve_axis(Pos)) if positions is None else positions
        rotated_axis = axis.resize(size)
        rotated, unrotated = x, ()
        if rotary_size:
            rotated, *unrotated = split(x, axis, (rotated_axis, axis.resize(axis.size - size)))
        half, pair = axis.resize(size // 2), Axis("_pair", 2)
        cosine, sine = (factor.astype(x.dtype) for factor in _compute_rotation(positions, half, theta, scaling))
        if interleaved:
            first, second = unbind(unflatten_axis(rotated, rotated_axis, (half, pair)), pair)
        else:
            first, second = split(rotated, rotated_axis, (half, half))
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        if interleaved:
            rotated = rearrange(flatten_axes(stack(pair, turned), (half, pair), rotated_axis), x.names)
        else:
            rotated = concatenate(rotated_axis, turned)
        return concatenate(axis, (rotated, *unrotated)) if unrotated else rotated


def _compute_rotation(
    positions: NamedArray, Half: Axis, theta: float, scaling: RotaryScaling | None
) -> tuple[NamedArray, NamedArray]:
    """Returns cosine and sine of the angle of each pair at each position."""
    if scaling is None:
        frequencies, factor = compute_rotary_frequencies(Half, theta), 1.0
    else:
        frequencies, factor = scaling.compute_frequencies(Half, theta, positions), scaling.compute_attention_factor()
    angles = broadcast_axis(frequencies, positions.axes) * positions.astype(jnp.float32)
    cosine, sine = cos(angles), sin(angles)
    return (cosine, sine) if factor == 1 else (cosine * factor, sine * factor)


def alibi_slopes(Heads: AxisSpec, bias_max: float = 8, dtype: Any = jnp.float32) -> NamedArray:
    """Makes the slopes of ALiBi (Press et al., 2021): a geometric sequence from `2 ** (-bias_max / heads)` on.

    If the number of heads is not a power of two, every other slope of twice as many heads follows those of the power of
    two below.

    Args:
        Heads: The axis of heads, or several whose elements are all heads, such as groups of queries.
        bias_max: The exponent of the last slope is minus this.
        dtype: Element type of the result.

    Returns:
        Array with the axes of heads.

    Raises:
        ValueError: If there are no heads, or `bias_max` is not positive.

    Example:
        >>> import axonym as nym
        >>> nym.nn.alibi_slopes(nym.Axis("heads", 4)).array
        Array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    names, sizes = get_names_and_sizes(parse_axes(Heads))
    if 0 in sizes:
        raise ValueError(f"alibi_slopes: there are no heads in {format_axes(names, sizes)}")
    bias_max = check_number("alibi_slopes: `bias_max`", bias_max, above=0)
    check_dtype(dtype)
    return named(jnp.asarray(_list_slopes(math.prod(sizes), bias_max), dtype).reshape(sizes), names)


def alibi_bias(
    Heads: AxisSpec, KPos: Axis, bias_max: float = 8, dtype: Any = jnp.float32, k_start: Any = 0
) -> NamedArray:
    """Makes the bias of ALiBi (Press et al., 2021): the position of a key times the slope of the head.

    The softmax does not change if a query adds the same to all its scores, so this equals a bias that falls linearly
    with the distance to keys before the query. Use it with a causal mask.

    Args:
        Heads: The axis of heads, or several whose elements are all heads.
        KPos: The axis of key positions.
        bias_max: As for `alibi_slopes`.
        dtype: Element type of the result.
        k_start: Position of the first key; it may be traced.

    Returns:
        Array with the axes of heads, then that of key positions.

    Example:
        >>> import axonym as nym
        >>> nym.nn.alibi_bias(*nym.make_axes(heads=1, key_pos=3)).array
        Array([[0.        , 0.00390625, 0.0078125 ]], dtype=float32)
    """
    slopes = alibi_slopes(Heads, bias_max, dtype)
    return dot(slopes, (arange(parse_one_axis(KPos)) + k_start).astype(dtype), axis=())


def _list_slopes(heads: int, bias_max: float) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-bias_max * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + _list_slopes(2 * power, bias_max)[::2][: heads - power]
