"""`haliax.nn.mup`: parametrizations of linear layers and embeddings, the standard one and muP.

Each gives the scale of the initial weights, the factor of the products and the factor of Adam's learning rate; see
`axonym.nn.HiddenLinear` and its siblings.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any

from ...named._axis import AxisSpec, parse_axes


def count_elements(axes: AxisSpec) -> int:
    """Returns the product of the sizes of axes."""
    return max(1, math.prod(axis.size for axis in parse_axes(axes)))  # scales divide by it


class AbstractReparam(ABC):
    """A parametrization in the sense of Yang & Hu, 2021: scales of products, initial weights and learning rates."""

    @staticmethod
    @abstractmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Returns the standard deviation of the initial weights."""

    @property
    @abstractmethod
    def lr_scale(self) -> float:
        """The factor of Adam's learning rate."""

    @property
    @abstractmethod
    def active_scale(self) -> float:
        """The factor of the products with the weight."""


@dataclasses.dataclass
class AbstractLinearReparam(AbstractReparam):
    """A parametrization of a linear layer.

    Attributes:
        In: The input axes.
        Out: The output axes.
    """

    In: AxisSpec
    Out: AxisSpec


@dataclasses.dataclass
class AbstractEmbeddingReparam(AbstractReparam):
    """A parametrization of an embedding, whose `init_scale` takes the vocabulary and the axes of a vector.

    Attributes:
        Embed: The axes of a vector.
        Vocab: The vocabulary axis.
    """

    Embed: AxisSpec
    Vocab: AxisSpec

    @property
    @abstractmethod
    def unembed_active_scale(self) -> float:
        """The factor of the scores of `unembed`."""


class LinearStandardParam(AbstractLinearReparam):
    """The standard parametrization of a linear layer: weights of standard deviation 1 / sqrt(inputs)."""

    lr_scale = active_scale = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Returns 1 / sqrt(inputs)."""
        return 1 / math.sqrt(count_elements(In))


class InputLinearMup(AbstractLinearReparam):
    """The parametrization of an input layer under muP: weights of standard deviation 1."""

    lr_scale = active_scale = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Returns 1."""
        return 1


class HiddenLinearMup(LinearStandardParam):
    """The parametrization of a hidden layer under muP: the learning rate is divided by the number of inputs."""

    @property
    def lr_scale(self) -> float:
        """1 / inputs."""
        return 1 / count_elements(self.In)


class OutputLinearMup(InputLinearMup):
    """The parametrization of an output layer under muP: products are divided by the number of inputs."""

    @property
    def active_scale(self) -> float:
        """1 / inputs."""
        return 1 / count_elements(self.In)


class EmbeddingStandardParam(AbstractEmbeddingReparam):
    """The standard parametrization of an embedding: weights of standard deviation 1 / vector size."""

    lr_scale = active_scale = unembed_active_scale = 1  # pyright: ignore

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Returns 1 / vector size."""
        return 1 / count_elements(Out)


class EmbeddingMup(AbstractEmbeddingReparam):
    """The parametrization of an embedding under muP: scores are divided by the vector size."""

    lr_scale = active_scale = 1  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    @staticmethod
    def init_scale(In: AxisSpec, Out: AxisSpec) -> float:
        """Returns 1."""
        return 1

    @property
    def unembed_active_scale(self) -> float:
        """1 / vector size."""
        return 1 / count_elements(self.Embed)


class ReparamEnabled(ABC):
    """A module with a parametrization."""

    reparam: Any
