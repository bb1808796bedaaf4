"""The router of a mixture of experts, which chooses the experts of each token, and its auxiliary losses."""

from typing import Literal, NamedTuple

import equinox as eqx
import jax

from ..named._arguments import check_choice
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, parse_one_axis
from ..named._dot import dot
from ..named._named_call import named_call
from ..named._reduce._reductions import logsumexp, mean, softmax, sum
from ..named._search import top_k as find_largest
from ._gather_parameter import gather_parameter
from ._initializer import draw_scaled_normal
from ._inputs import check_input, format_layer_axes, widen_array
from ._layer import Layer


class Routing(NamedTuple):
    """The experts of each token.

    Attributes:
        weights: The weights of the chosen experts: the axes of the tokens, then the axis of the choices.
        experts: The chosen experts, integers with the same axes, those with the largest weights first.
        logits: The scores before the softmax: the axes of the tokens, then the expert axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> router = nym.nn.Router.init(*nym.make_axes(embed=4, experts=8), 2, key=jax.random.key(0))
        >>> routing = router(nym.ones({"batch": 3, "embed": 4}))
        >>> round(routing.weights.sum("top_k").mean().item(), 3), routing.logits.shape
        (1.0, (batch: 3, experts: 8))
    """

    weights: NamedArray
    experts: NamedArray
    logits: NamedArray


class Router(Layer):
    """A linear map to a score for each expert, of which the largest `k` are chosen.

    Attributes:
        weight: Array with the expert axis and the axis of the tokens' vectors.
        Embed: The axis contracted.
        Experts: The expert axis.
        TopK: The axis of the choices.
        softmax: Whether the softmax is taken over all experts "before" the choice or over the chosen ones "after" it.
        normalize: Whether the weights of the chosen experts are divided by their sum.
    """

    weight: NamedArray
    Embed: Axis = eqx.field(static=True)
    Experts: Axis = eqx.field(static=True)
    TopK: Axis = eqx.field(static=True)
    softmax: Literal["before", "after"] = eqx.field(static=True)
    normalize: bool = eqx.field(static=True)

    @staticmethod
    def init(
        Embed: Axis,
        Experts: Axis,
        top_k: int | Axis,
        *,
        key: jax.Array,
        softmax: Literal["before", "after"] = "before",
        normalize: bool = True,
        init_scale: float = 1.0,
    ) -> "Router":
        """Makes a router with random weights.

        Args:
            Embed: The axis of the tokens' vectors.
            Experts: The expert axis.
            top_k: Number of experts of each token, for an axis named `top_k`; or an `Axis` with another name.
            key: A random key.
            softmax: Whether the softmax is taken over all experts "before" the choice, as in Switch Transformer and
                Qwen3-MoE, or over the chosen ones "after" it. Both are the same if the weights are normalised.
            normalize: Whether to divide the weights of the chosen experts by their sum, as Mixtral and Qwen3-MoE do;
                after the choice they add up to 1 anyway.
            init_scale: As for `Linear.init`.

        Returns:
            A router sharded by the active mapping.

        Raises:
            ValueError: If there are fewer experts than are chosen, or `softmax` is another word.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Experts = nym.make_axes(embed=4, experts=8)
            >>> router = nym.nn.Router.init(Embed, Experts, 2, key=jax.random.key(0))
            >>> routing = router(nym.ones({"batch": 3, "embed": 4}))
            >>> routing.weights.shape, routing.experts.dtype
            ((batch: 3, top_k: 2), dtype('int32'))
        """
        Embed, Experts = parse_one_axis(Embed), parse_one_axis(Experts)
        chosen = top_k if isinstance(top_k, Axis) else Axis("top_k", top_k)
        if not 1 <= chosen.size <= Experts.size:
            raise ValueError(
                f"Router ({format_layer_axes(Embed)} -> {format_layer_axes(Experts)}): `top_k` must be from 1 to the "
                f"number of experts, it is {chosen.size}"
            )
        check_choice("Router: `softmax`", softmax, ("before", "after"))
        weight = draw_scaled_normal(key, (Experts, Embed), Embed, init_scale, None)
        return Router(weight, Embed, Experts, chosen, softmax, normalize)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> Routing:
        """Chooses the experts of each token, in float32 at least, as Switch Transformer does.

        Args:
            x: Array with the axis of the tokens' vectors and any others: those of the tokens.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            The weights, the experts and the logits.

        Raises:
            ValueError: If `x` lacks the axis of the vectors, or has the expert axis or that of the choices.
        """
        name = f"Router ({format_layer_axes(self.Embed)} -> {format_layer_axes(self.Experts)})"
        check_input(name, x, self.Embed, (self.Experts.name, self.TopK.name))
        logits = dot(widen_array(x), widen_array(gather_parameter(self.weight)), axis=self.Embed)
        before = self.softmax == "before"
        scores = softmax(logits, self.Experts) if before else logits
        weights, experts = find_largest(scores, self.Experts, self.TopK.size, self.TopK)
        if not before:
            weights = softmax(weights, self.TopK)
        elif self.normalize:
            weights = weights / sum(weights, self.TopK)
        return Routing(weights, experts, logits)


def load_balance_loss(
    tokens_per_expert: NamedArray, mean_probabilities: NamedArray, Experts: AxisSelector
) -> NamedArray:
    """Returns the auxiliary loss that is lowest, at 1, if each expert gets as many tokens as any other.

    It is the number of experts times the sum of `f * P` over the experts, where `f` is the share of an expert in all
    choices and `P` the mean over all tokens of its probability, through which the gradient flows: equation 4 of Switch
    Transformers (Fedus et al. 2021, arXiv:2101.03961), after the importance loss of Shazeer et al. (2017,
    arXiv:1701.06538). The loss in the `transformers` library is larger by the number of experts of each token. Both
    arguments may be averaged over micro-batches first.

    Args:
        tokens_per_expert: How often each expert was chosen, with the expert axis.
        mean_probabilities: The mean softmax of the logits, with the expert axis.
        Experts: The expert axis.

    Returns:
        Array without the expert axis.

    Raises:
        ValueError: If one of the arrays lacks the expert axis.

    Example:
        >>> import axonym as nym
        >>> tokens, probabilities = nym.named([4, 0], "experts"), nym.named([0.75, 0.25], "experts")
        >>> nym.nn.load_balance_loss(tokens, probabilities, "experts")
        NamedArray(float32, 1.5)
    """
    check_input("load_balance_loss", tokens_per_expert, Experts)
    check_input("load_balance_loss", mean_probabilities, Experts)
    counts = tokens_per_expert.astype(mean_probabilities.dtype)
    size = mean_probabilities.axis_size(Experts)
    return sum(counts / sum(counts, Experts) * mean_probabilities, Experts) * size


def router_z_loss(logits: NamedArray, Experts: AxisSelector) -> NamedArray:
    """Returns the mean over all tokens of the squared `logsumexp` of their logits, which keeps logits small.

    Equation 5 of ST-MoE (Zoph et al. 2022, arXiv:2202.08906).

    Args:
        logits: The scores of a `Router`, with the expert axis and those of the tokens.
        Experts: The expert axis.

    Returns:
        Array without axes.

    Raises:
        ValueError: If the logits lack the expert axis.

    Example:
        >>> import axonym as nym
        >>> nym.nn.router_z_loss(nym.zeros({"token": 3, "experts": 1}), "experts")
        NamedArray(float32, 0.)
    """
    check_input("router_z_loss", logits, Experts)
    return mean(logsumexp(logits, Experts) ** 2)
