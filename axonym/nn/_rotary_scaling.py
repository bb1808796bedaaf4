"""Changes to the frequencies of rotary embeddings, for sequences longer than those that a model was trained on."""

import abc
import dataclasses
import math

from ..named._arguments import check_integer, check_number
from ..named._array import NamedArray
from ..named._axis import Axis
from ..named._creation import arange
from ..named._elementwise._arithmetic import clip, maximum
from ..named._reduce._reductions import max as max_of


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


def _check_positions(scaling: RotaryScaling, original_positions: int) -> None:
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
        _check_positions(self, self.original_positions)

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
        _check_positions(self, self.original_positions)
        check_number("Llama3RotaryScaling: `low_frequency_factor`", self.low_frequency_factor, least=0)
        check_number("Llama3RotaryScaling: `high_frequency_factor`", self.high_frequency_factor, above=0)
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"Llama3RotaryScaling: `high_frequency_factor` is {self.high_frequency_factor}, which is not larger "
                f"than `low_frequency_factor`, {self.low_frequency_factor}"
            )

    def compute_frequencies(self, Half: Axis, theta: float, positions: NamedArray) -> NamedArray:
        """Returns the frequencies, of which low ones are divided by the factor."""
        frequencies = compute_rotary_frequencies(Half, theta)
        turns = frequencies * (self.original_positions / (2 * math.pi))
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = clip((turns - low) / (high - low), 0, 1)
        return frequencies * ((1 - kept) / self.factor + kept)


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
        _check_positions(self, self.original_positions)
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
        """Returns the frequencies, of which low ones are divided by the factor."""

        def find_pair(turns: float) -> float:
            """Returns which pair turns this many times within the original length."""
            return Half.size * math.log(self.original_positions / (turns * 2 * math.pi)) / math.log(theta)

        low, high = find_pair(self.beta_fast), find_pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * Half.size - 1)
        divided = clip((arange(Half, dtype="float32") - low) / max(high - low, 0.001), 0, 1)
        return compute_rotary_frequencies(Half, theta) * (divided / self.factor + 1 - divided)

    def compute_attention_factor(self) -> float:
        """Returns the factor of the rotated elements."""
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor
