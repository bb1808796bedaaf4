"""Mixtures of experts: the router, linear layers with a weight for each expert, and the layer of both."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from .._ground.arguments import check_choice, check_dtype, check_function, check_number
from .._ground.caches import cached_jit
from .._ground.formats import format_axes
from .._ground.jax_compat import find_platform
from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Names,
    axis_name,
    check_matching_sizes,
    intern_names,
    parse_axes,
    parse_one_axis,
    parse_selection,
)
from ..named._axis_layout import MeshAxes
from ..named._base import check_named, format_shape, with_array
from ..named._broadcasting import widen_integers
from ..named._creation import named, ones, zeros
from ..named._dot import dot
from ..named._named_call import enter_function_scope, named_call
from ..named._reduce._reductions import logsumexp, mean, softmax, sum
from ..named._search import top_k as find_largest
from ..named._shape._rearrange import rearrange
from ..named._sharding import constrain_sharding, gather_parameter, vary_like
from ..random import split
from ._activations import silu
from ._layer import Layer, check_input, format_layer_axes, read_known_values, widen_array
from ._linear import draw_scaled_normal
from ._map_shards import check_sharded_apart, map_shards


Dispatch: TypeAlias = Literal["auto", "gather", "all_to_all", "ragged_all_to_all"]
"""How tokens reach experts on other devices."""


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
        TopK = top_k if isinstance(top_k, Axis) else Axis("top_k", top_k)
        if not 1 <= TopK.size <= Experts.size:
            raise ValueError(
                f"Router ({format_layer_axes(Embed)} -> {format_layer_axes(Experts)}): `top_k` must be from 1 to the "
                f"number of experts, it is {TopK.size}"
            )
        check_choice("Router: `softmax`", softmax, ("before", "after"))
        weight = draw_scaled_normal(key, (Experts, Embed), Embed, init_scale, None)
        return Router(weight, Embed, Experts, TopK, softmax, normalize)

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
        if self.softmax == "after":  # which makes the weights add up to 1 already
            scores, experts = find_largest(logits, self.Experts, self.TopK.size, self.TopK)
            return Routing(softmax(scores, self.TopK), experts, logits)
        weights, experts = find_largest(softmax(logits, self.Experts), self.Experts, self.TopK.size, self.TopK)
        if self.normalize:
            weights = weights / sum(weights, self.TopK)
        return Routing(weights, experts, logits)


def load_balance_loss(
    tokens_per_expert: NamedArray, mean_probabilities: NamedArray, Experts: AxisSelector
) -> NamedArray:
    """Returns the auxiliary loss that is lowest, at 1, if each expert gets as many tokens as any other.

    It is the number of experts times the sum of `f * P` over the experts, where `f` is the share of an expert in all
    choices and `P` the mean over all tokens of its probability, through which the gradient flows: equation 4 of Switch
    Transformers (Fedus et al. 2021, arXiv:2101.03961), after the importance loss of Shazeer et al. (2017,
    arXiv:1701.06538). The loss in the `transformers` library is this one times the number of experts of each token.
    Both arguments may be averaged over micro-batches first.

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
    # Counts are integers: the gradient flows through the probabilities alone.
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


class MoELinear(Layer):
    """A linear map for each expert, applied to rows that are sorted by expert: `ragged_dot(x, weight, sizes, In)`.

    Attributes:
        weight: Array with the expert axis, the input axes and the output axes.
        bias: Array with the expert axis and the output axes, or None.
        Experts: The expert axis.
        In: The axes contracted.
        Out: The axes of the result in their place.
    """

    weight: NamedArray
    bias: NamedArray | None
    Experts: Axis = eqx.field(static=True)
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)

    @staticmethod
    def init(
        Experts: Axis,
        In: AxisSpec,
        Out: AxisSpec,
        *,
        key: jax.Array,
        use_bias: bool = True,
        out_first: bool = False,
        init_scale: float = 1.0,
    ) -> "MoELinear":
        """Makes a layer with random weights.

        Args:
            Experts: The expert axis.
            In: The input axes, one or several.
            Out: The output axes, one or several; none may also be an input axis.
            key: A random key.
            use_bias: Whether to add a bias, zero at first, of each expert.
            out_first: Whether the output axes of the weight come before its input axes, which takes a transpose in each
                call.
            init_scale: Factor of the weights, which are drawn from a normal distribution truncated at three standard
                deviations and scaled by `1 / sqrt(number of inputs)`.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If an axis is both input and output, or is the expert axis.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Experts, Embed, Mlp = nym.make_axes(experts=2, embed=4, mlp=8)
            >>> layer = nym.nn.MoELinear.init(Experts, Embed, Mlp, key=jax.random.key(0))
            >>> sizes = nym.named([1, 2], Experts)  # one row for the first expert, then two for the second
            >>> layer(nym.ones({"token": 3, "embed": 4}), sizes).shape
            (token: 3, mlp: 8)
        """
        Experts, inputs, outputs = parse_one_axis(Experts), parse_axes(In), parse_axes(Out)
        names = [axis.name for axis in (Experts, *inputs, *outputs)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{_format_moe_linear(Experts, inputs, outputs)}: axis {name!r} is given twice; give one of them "
                    "another name with `alias`"
                )
        axes = (*outputs, *inputs) if out_first else (*inputs, *outputs)
        weight = draw_scaled_normal(key, (Experts, *axes), inputs, init_scale, None)
        return MoELinear(weight, zeros((Experts, *outputs)) if use_bias else None, Experts, inputs, outputs)

    @named_call
    def __call__(self, x: NamedArray, group_sizes: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Applies to each row the map of its expert.

        Args:
            x: Array with the input axes and one more, whose elements, the rows, are sorted by expert.
            group_sizes: Integer array with the expert axis: the number of rows of each expert.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axis of the rows, then the output axes. Rows after those of the last expert are zero.

        Raises:
            ValueError: If `x` lacks an input axis, has an output axis or does not have exactly one axis of rows, or
                `group_sizes` has other axes than the expert axis.
        """
        name = _format_moe_linear(self.Experts, self.In, self.Out)
        check_input(name, x, self.In, (self.Experts.name, *(axis.name for axis in self.Out)))
        check_input(f"{name} (group sizes)", group_sizes, self.Experts)
        result = ragged_dot(x, gather_parameter(self.weight, may_be_reduced=False), group_sizes, self.In)
        if self.bias is None:
            return result
        # `ragged_dot` multiplies the bias with ones, so that, like the weight, it stays on the devices of its experts.
        inputs = tuple(axis.resize(1) for axis in self.In) or (Axis("in", 1),)
        bias = gather_parameter(self.bias, may_be_reduced=False)
        weight = rearrange(bias.broadcast_axis(inputs), (self.Experts, *inputs, ...))
        rows = ones((result.axes[0], *inputs), bias.dtype)
        return constrain_sharding(result + ragged_dot(rows, weight, group_sizes, inputs))


def _format_moe_linear(experts: Axis, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...]) -> str:
    return f"MoELinear ({experts.name}: {experts.size}, {format_layer_axes(inputs)} -> {format_layer_axes(outputs)})"


def ragged_dot(
    x: NamedArray,
    weight: NamedArray,
    group_sizes: NamedArray,
    axis: AxisSelection,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> NamedArray:
    """Multiplies rows, which are sorted by group, with the matrix of their group; see `jax.lax.ragged_dot`.

    Where the axis of the groups is sharded, each device multiplies the rows of its own groups, and the results are
    added up: rows travel, `weight` does not. Where the axis of the rows is sharded, each device multiplies its own.

    Args:
        x: Array with the axes to sum over and one more: that of the rows.
        weight: Array with the axis of the groups, the axes to sum over and any others.
        group_sizes: Integer array with the axis of the groups: the number of rows of each group.
        axis: The axes to sum over.
        precision: As for `jax.lax.ragged_dot`.
        preferred_element_type: Element type in which the sum is kept and returned.

    Returns:
        Array with the axis of the rows, then the other axes of `weight`. Rows after those of the last group are zero.

    Raises:
        ValueError: If an array lacks an axis or has more, a name has two sizes, the axes of rows and groups are
            sharded over the same mesh axis, or a group size is negative or the sizes add up to more than the rows.
            Sizes within a compiled function are not checked.
        TypeError: If the group sizes are not integers, or an operand is not a named array.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"token": 3, "embed": 2})
        >>> weight = nym.named([[1.0, 1.0], [5.0, 5.0]], ("experts", "embed"))
        >>> nym.nn.ragged_dot(x, weight, nym.named([1, 2], "experts"), axis="embed").array
        Array([ 2., 10., 10.], dtype=float32)
    """
    for operand in (x, weight, group_sizes):
        check_named(operand)
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise TypeError(f"The group sizes of `ragged_dot` are integers, not {group_sizes.dtype}.")
    if len(group_sizes.names) != 1:
        raise ValueError(f"the group sizes of `ragged_dot` have one axis, not {format_shape(group_sizes)}")
    attempt = f"cannot multiply {format_shape(x)} and {format_shape(weight)} by `ragged_dot`"
    (group,) = group_sizes.names
    check_matching_sizes(*((operand.names, operand.array.shape) for operand in (x, weight, group_sizes)))
    summed = tuple(x.names[dim] for dim in check_input(attempt, x, axis))
    check_input(attempt, weight, (group, *summed))
    row_names = tuple(name for name in x.names if name not in summed)
    if len(row_names) != 1 or row_names[0] in weight.names:
        raise ValueError(
            f"{attempt}: besides {format_axes(summed)}, the first must have exactly one axis, its rows, that the "
            f"second lacks, and it has {format_axes(row_names)}; merge several with `flatten_axes`"
        )
    (rows,) = row_names
    outputs = tuple(name for name in weight.names if name not in (group, *summed))
    sizes = read_known_values(group_sizes)
    if sizes is not None and (sizes < 0).any():
        raise ValueError(f"the group sizes of `ragged_dot` are numbers of rows, at least 0, but one is {sizes.min()}")
    if sizes is not None and sizes.sum() > x.axis_size(rows):
        raise ValueError(
            f"the group sizes of `ragged_dot` {format_shape(group_sizes)} add up to {sizes.sum()} rows, more than the "
            f"axis ({x.resolve_axis(rows)}) has"
        )
    check_dtype(preferred_element_type, "ragged_dot: `preferred_element_type`")

    x, weight = rearrange(x, (rows, *summed)), rearrange(weight, (group, *summed, *outputs))
    names = intern_names((rows, *outputs))
    with enter_function_scope("ragged_dot", summed, outputs):
        call = cached_jit(_compute_ragged_dot, x.names, weight.names, names, precision, preferred_element_type)
        return constrain_sharding(with_array(x, call(x.array, weight.array, group_sizes.array), names))


def _compute_ragged_dot(
    x_names: Names,
    weight_names: Names,
    names: Names,
    precision: Any,
    dtype: Any,
    x: Any,
    weight: Any,
    group_sizes: Any,
) -> Any:
    def multiply_shards(mesh_axes: MeshAxes, x: Any, weight: Any, group_sizes: Any) -> tuple[Any]:
        """Multiplies the rows of one device that belong to its groups, and adds up the results of all devices."""
        rows, *summed = x_names
        group = weight_names[0]
        check_sharded_apart("ragged_dot", mesh_axes, (rows, *weight_names))
        output_shape, row_count = weight.shape[len(x_names) :], x.shape[0]
        common_dtype = jnp.result_type(x, weight)
        # `ragged_dot` takes one summed dimension and one of outputs.
        weight = weight.astype(common_dtype).reshape(weight.shape[0], math.prod(x.shape[1:]), -1)
        x = x.astype(common_dtype).reshape(row_count, -1)
        first_row = jax.lax.axis_index(mesh_axes[rows]) * row_count if rows in mesh_axes else 0
        # The first and the last row of each group, among the rows of this device.
        group_sizes = widen_integers(group_sizes)
        ends = jnp.clip(jnp.cumsum(group_sizes) - first_row, 0, row_count)
        starts = jnp.concatenate([jnp.zeros_like(ends, shape=1), ends[:-1]])
        multiply = functools.partial(multiply_rows, precision=precision, preferred_element_type=dtype)
        if group in mesh_axes:
            # `ragged_dot` starts at the first row, so the rows of this device's groups are rolled there and back.
            first_group = jax.lax.axis_index(mesh_axes[group]) * weight.shape[0]
            starts = jax.lax.dynamic_slice_in_dim(starts, first_group, weight.shape[0])
            ends = jax.lax.dynamic_slice_in_dim(ends, first_group, weight.shape[0])
            is_local = (jnp.arange(row_count) < ends[-1] - starts[0])[:, None]
            x = jnp.where(is_local, jnp.roll(x, -starts[0], 0), 0)
            expected_rows = row_count * weight.shape[0] // group_sizes.size
            product = multiply(x, weight, ends - starts, expected_rows)
            product = jnp.roll(jnp.where(is_local, product, 0), starts[0], 0)
        else:
            product = multiply(x, weight, ends - starts, row_count)
        summed_mesh_axes = tuple(axis for name in (group, *summed) for axis in mesh_axes.get(name, ()))
        if summed_mesh_axes:
            product = jax.lax.psum(product, summed_mesh_axes)
        return (product.reshape(row_count, *output_shape),)

    operand_names = (x_names, weight_names, ("",))
    return map_shards(multiply_shards, (x, weight, group_sizes), operand_names, (names,), divides_mapped=True)[0]


def multiply_rows(rows: Any, weight: Any, group_sizes: Any, expected_rows: int, **options: Any) -> Any:
    """Computes `jax.lax.ragged_dot`; its scope tells the planner how many rows are of the groups, on average."""
    with jax.named_scope(f"rows({expected_rows} of {rows.shape[0]})"):
        return jax.lax.ragged_dot(rows, weight, group_sizes, **options)


MatrixProduct: TypeAlias = Callable[[Any, Any], Any]
"""A function of rows and the matrices of the experts, which multiplies each row with the matrix of its expert."""

ExpertFn: TypeAlias = Callable[[MatrixProduct, Any], Any]
"""A function that applies the experts to rows; its first argument computes their matrix products."""


class SortedChoices(NamedTuple):
    """The choices of the tokens of each group, sorted by expert so that the rows of one expert are neighbours.

    Choices are numbered by choice and then by token: all first choices come before all second ones.
    """

    ids: jax.Array  # the expert of each choice
    order: jax.Array  # the number of the choice at each rank
    ranks: jax.Array  # the rank of each choice
    starts: jax.Array  # the first rank of each expert
    counts: jax.Array  # how many choices each expert has

    def get_slots(self) -> jax.Array:
        """Returns how many choices of the same expert come before each choice."""
        return self.ranks - jnp.take_along_axis(self.starts, self.ids, -1)


def count_choices(expert_ids: Any, expert_count: int) -> jax.Array:
    """Returns how often each expert is chosen along the last axis."""
    return jax.nn.one_hot(expert_ids, expert_count, dtype=int).sum(-2)


def find_starts(counts: Any) -> Any:
    """Returns where each part of each row starts, given the sizes of the parts."""
    return jnp.cumsum(counts, -1) - counts


def sort_choices(expert_ids: Any, expert_count: int) -> SortedChoices:
    """Sorts the choices of tokens by expert, where `expert_ids` has axes of groups, tokens and choices.

    Numbers of no expert come last and count for none.
    """
    ids = expert_ids.swapaxes(-1, -2).reshape(expert_ids.shape[0], -1)
    order = jnp.argsort(ids, -1, stable=True)
    ranks = jnp.argsort(order, -1)  # sorting a permutation inverts it
    counts = count_choices(ids, expert_count)
    return SortedChoices(ids, order, ranks, find_starts(counts), counts)


def combine_choices(rows: Any, row_indices: Any, has_row: Any, weights: Any) -> Any:
    """Sums for each token the rows of its choices times their weights; choices without a row count as zero."""
    groups, tokens, choices = weights.shape
    row_indices = jnp.where(has_row, row_indices, 0)[..., None]
    rows = jnp.take_along_axis(rows, row_indices, 1, mode="promise_in_bounds")
    rows = jnp.where(has_row[..., None], rows, 0).reshape(groups, choices, tokens, -1)
    return jnp.einsum("gktd,gtk->gtd", rows, weights)


def select_experts(expert_count: int, mesh_axes: tuple[str, ...], gathered: Collection[str] = ()) -> jax.Array:
    """Returns the numbers of the experts of this device, and of devices that differ from it in `gathered` axes only."""
    # One dimension for each mesh axis, the first varying slowest, and one for the experts of a device.
    ids = jnp.arange(expert_count).reshape(*(jax.lax.axis_size(axis) for axis in mesh_axes), -1)
    for dim, axis in enumerate(mesh_axes):
        if axis not in gathered:
            ids = jax.lax.dynamic_index_in_dim(ids, jax.lax.axis_index(axis), dim)
    return ids.reshape(-1)


def mix_all_tokens(
    apply: ExpertFn, expert_count: int, mesh_axes: tuple[str, ...], x: Any, weights: Any, expert_ids: Any
) -> Any:
    """Applies the experts of this device to all tokens that chose them.

    Args:
        apply: Function of the experts.
        expert_count: The number of experts.
        mesh_axes: The mesh axes over which experts are sharded.
        x: Array of one group, its tokens and their vectors.
        weights: Array of one group, its tokens and their choices.
        expert_ids: The experts, in an array of the same shape.

    Returns:
        Array with the axes of `x`, which is to be added up over the mesh axes of the experts.
    """
    choices = sort_choices(expert_ids, expert_count)
    local_experts = select_experts(expert_count, mesh_axes)
    first_rank, counts = choices.starts[0, local_experts[0]], choices.counts[0, local_experts]
    total = counts.sum()
    # A row for each choice, because sizes are static; those of this device's experts come first.
    row_numbers = jnp.arange(expert_ids.size)
    choice_numbers = choices.order[0, (row_numbers + first_rank) % expert_ids.size]
    rows = x[0, choice_numbers % expert_ids.shape[1]]  # choices are numbered by choice and then by token
    if mesh_axes:  # rows of other devices must not reach the gradient, whatever a kernel makes of them
        rows = jnp.where((row_numbers < total)[:, None], rows, 0)
    expected_rows = expert_ids.size * local_experts.size // expert_count
    rows = apply(lambda rows, weight: multiply_rows(rows, weight, counts, expected_rows), rows)
    row_indices = choices.ranks - first_rank
    return combine_choices(rows[None], row_indices, (row_indices >= 0) & (row_indices < total), weights)


def mix_within_capacity(
    apply: ExpertFn,
    expert_count: int,
    mesh_axes: tuple[str, ...],
    shared_axes: tuple[str, ...],
    capacity: int,
    x: Any,
    weights: Any,
    expert_ids: Any,
) -> Any:
    """Applies the experts of this device to the first tokens of each group that chose them, up to a capacity.

    The tokens of each expert travel to its device where tokens are sharded over the mesh axes of the experts.

    Args:
        apply: Function of the experts.
        expert_count: The number of experts.
        mesh_axes: The mesh axes over which experts are sharded.
        shared_axes: Those of them over which tokens are sharded, too.
        capacity: How many tokens of a group each expert takes.
        x: Array of groups, tokens and vectors.
        weights: Array of groups, tokens and choices.
        expert_ids: The experts, in an array of the same shape.

    Returns:
        Array of groups, tokens and vectors, to be added up over the other mesh axes of the experts.
    """
    experts = select_experts(expert_count, mesh_axes, shared_axes)
    choices = sort_choices(expert_ids, expert_count)
    groups, tokens, _ = x.shape

    # Each expert has `capacity` slots for the tokens of a group; the last ones may stay empty.
    slot_numbers = jnp.arange(capacity)[None, None]
    ranks = choices.starts[:, experts, None] + slot_numbers
    ranks = jnp.clip(ranks, max=choices.order.shape[1] - 1).reshape(groups, -1)
    slot_tokens = jnp.take_along_axis(choices.order, ranks, 1) % tokens
    is_filled = (slot_numbers < choices.counts[:, experts, None]).reshape(groups, -1, 1)
    rows = jnp.where(is_filled, jnp.take_along_axis(x, slot_tokens[..., None], 1), 0)
    rows = rows.reshape(groups, experts.size, capacity, -1).swapaxes(0, 1)
    # The slots of each expert go to its device, which then has those from all devices along the dimension of groups.
    for axis in shared_axes:
        rows = jax.lax.all_to_all(rows, axis, 0, 1, tiled=True)
    flat = rows.reshape(rows.shape[0], -1, rows.shape[-1])
    rows = apply(lambda rows, weight: jnp.einsum("esd,edf->esf", rows, weight), flat).reshape(*rows.shape[:3], -1)
    for axis in reversed(shared_axes):
        rows = jax.lax.all_to_all(rows, axis, 1, 0, tiled=True)
    rows = rows.swapaxes(0, 1).reshape(groups, experts.size * capacity, -1)

    # From the slots of experts back to the choices of tokens.
    choice_slots, expert_index = choices.get_slots(), find_index(experts, choices.ids)
    has_row = (choice_slots < capacity) & (expert_index < experts.size)
    return combine_choices(rows, expert_index * capacity + choice_slots, has_row, weights)


def find_index(experts: Any, expert_ids: Any) -> Any:
    """Returns where each number is among `experts`; their size if it is not."""
    is_expert = expert_ids[..., None] == jnp.expand_dims(experts, tuple(range(expert_ids.ndim)))
    return jnp.where(is_expert.any(-1), jnp.argmax(is_expert, -1), experts.size)


def mix_sent_rows(
    apply: ExpertFn,
    expert_count: int,
    mesh_axes: tuple[str, ...],
    shared_axes: tuple[str, ...],
    capacity: int | None,
    x: Any,
    weights: Any,
    expert_ids: Any,
) -> Any:
    """Sends the row of each choice to the device of its expert, applies the experts there, and sends the rows back.

    Args:
        apply: Function of the experts.
        expert_count: The number of experts.
        mesh_axes: The mesh axes over which experts are sharded.
        shared_axes: Those of them over which tokens are sharded, too; at least one.
        capacity: How many tokens of a group each expert takes; None for all.
        x: Array of groups, tokens and vectors.
        weights: Array of groups, tokens and choices.
        expert_ids: The experts, in an array of the same shape.

    Returns:
        Array of groups, tokens and vectors, to be added up over the other mesh axes of the experts.
    """
    experts = select_experts(expert_count, mesh_axes, shared_axes)
    expert_index = find_index(experts, expert_ids)
    if capacity is not None:
        slots = sort_choices(expert_ids, expert_count).get_slots().reshape(expert_ids.swapaxes(1, 2).shape)
        expert_index = jnp.where(slots.swapaxes(1, 2) < capacity, expert_index, experts.size)
    # Choices that are dropped, or of experts elsewhere, come last and are not sent.
    groups, tokens = 1, x.shape[0] * x.shape[1]
    choices = sort_choices(expert_index.reshape(groups, tokens, -1), experts.size)
    rows = x.reshape(tokens, -1)[choices.order[0] % tokens]

    # How many rows each device sends to each expert of each device, and where they start: at the sender, and at the
    # receiver, which has the rows of an expert from all devices next to one another.
    devices, device = jax.lax.axis_size(shared_axes), jax.lax.axis_index(shared_axes)
    counts = jax.lax.all_gather(choices.counts[0], shared_axes).reshape(devices, devices, -1)
    sent_starts = find_starts(counts.reshape(devices, -1)).reshape(counts.shape)
    received_starts = counts.transpose(1, 2, 0)
    received_starts = find_starts(received_starts.reshape(devices, -1)).reshape(received_starts.shape)
    there = RowSlices(sent_starts[device], counts[device], received_starts[..., device])
    back = RowSlices(received_starts[device].T, counts[:, device], sent_starts[:, device])

    size = devices * tokens * min(expert_ids.shape[-1], counts.shape[-1])
    if capacity is not None:
        size = min(size, experts.size * x.shape[0] * capacity)
    received = exchange_rows(rows, size, there, back, shared_axes)
    group_sizes = counts[:, device].sum(0)
    expected_rows = min(size, devices * expert_ids.size * counts.shape[-1] // expert_count)
    received = apply(lambda rows, weight: multiply_rows(rows, weight, group_sizes, expected_rows), received)
    rows = exchange_rows(received, rows.shape[0], back, there, shared_axes)
    has_row = choices.ranks < choices.counts.sum()
    return combine_choices(rows[None], choices.ranks, has_row, weights.reshape(groups, tokens, -1)).reshape(x.shape)


class RowSlices(NamedTuple):
    """Slices of rows that a device sends, in arrays of devices that get them and slices for each of them."""

    starts: Any  # in the rows of this device
    sizes: Any
    targets: Any  # the first row of each at the device that gets it


def exchange_rows(rows: Any, size: int, sent: RowSlices, received: RowSlices, mesh_axes: tuple[str, ...]) -> Any:
    """Returns the rows that this device gets from all devices along the mesh axes, in an array of `size` rows.

    Args:
        rows: Array of rows and vectors.
        size: The number of rows of the result; those that no device sends are zero.
        sent: The slices that this device sends.
        received: The slices that this device gets, as it would send them back.
        mesh_axes: The mesh axes.
    """
    # `jax.lax.platform_dependent` would lose the mesh axis of a `vmap` around this.
    if find_platform() != "cpu":
        output = vary_like(jnp.zeros((size, *rows.shape[1:]), rows.dtype), rows)
        slices = (array.reshape(-1) for array in (*sent, received.sizes))
        return jax.lax.ragged_all_to_all(rows, output, *slices, axis_name=mesh_axes)
    # Backends of CPUs lack it: each device gathers all rows and takes its own.
    offsets = jnp.arange(size)[:, None, None] - received.starts[None]
    is_received = (offsets >= 0) & (offsets < received.sizes[None])
    first_rows = jnp.arange(len(received.sizes))[None, :, None] * len(rows) + received.targets[None]
    sources = jnp.where(is_received, first_rows + offsets, 0).sum((1, 2))
    gathered = jax.lax.all_gather(rows, mesh_axes, tiled=True)
    return jnp.where(is_received.any((1, 2))[:, None], gathered[sources], 0)


class MixtureMetrics(eqx.Module):
    """The auxiliary losses of one call of a mixture of experts, over all its tokens on all devices, and its load.

    Attributes:
        load_balance_loss: See `load_balance_loss`; a float32 array without axes. Add it to the loss of the model times
            a factor, such as 0.01.
        router_z_loss: See `router_z_loss`; the factor is about 0.001.
        tokens_per_expert: How many tokens chose each expert, integers with the expert axis.
        dropped_fraction: The share of all choices that were dropped because their expert was full; 0 without a
            capacity.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> axes = nym.make_axes(embed=4, mlp=8, experts=4)
        >>> layer = nym.nn.MixtureOfExperts.init(*axes, 2, key=jax.random.key(0))
        >>> _, metrics = jax.eval_shape(layer, nym.ones({"pos": 3, "embed": 4}))
        >>> metrics.tokens_per_expert.shape, metrics.dropped_fraction.shape
        ((experts: 4), ())
    """

    load_balance_loss: NamedArray
    router_z_loss: NamedArray
    tokens_per_expert: NamedArray
    dropped_fraction: NamedArray


class MixtureOfExperts(Layer):
    """Experts, which are gated layers such as SwiGLU, and a router, which sends each token to `k` of them.

    The result is the sum of `down(activation(gate(x)) * up(x))` over the chosen experts of each token, times their
    weights. Where the expert axis is sharded, tokens travel to the experts, and weights of experts do not travel.
    The products of the experts can be saved for the backward pass by the names `"gate"`, if there is one, `"up"` and
    `"down"`; see [`ScanCheckpointPolicy`][axonym.ScanCheckpointPolicy].

    Attributes:
        router: The router.
        gate: Array with the expert axis, the input axis and the hidden axis; None if the experts have no gate.
        up: Array with the same axes.
        down: Array with the expert axis, the hidden axis and the input axis.
        Embed: The axis of the tokens' vectors.
        Mlp: The hidden axis.
        activation: The function of the gate, or of `up` if there is no gate.
        capacity_factor: The capacity of each expert relative to an equal share of the choices; None if all are kept.
        capacity_axes: The names of the axes along which tokens compete for the capacity; None for all.
        dispatch: How tokens travel that are sharded over a mesh axis of the experts.
    """

    router: Router
    gate: NamedArray | None
    up: NamedArray
    down: NamedArray
    Embed: Axis = eqx.field(static=True)
    Mlp: Axis = eqx.field(static=True)
    activation: Callable[[Any], Any] = eqx.field(static=True)
    capacity_factor: float | None = eqx.field(static=True)
    capacity_axes: Names | None = eqx.field(static=True)
    dispatch: Dispatch = eqx.field(static=True, default="auto")

    @staticmethod
    def init(
        Embed: Axis,
        Mlp: Axis,
        Experts: Axis,
        top_k: int | Axis,
        *,
        key: jax.Array,
        activation: Callable[[Any], Any] = silu,
        gated: bool = True,
        softmax: Literal["before", "after"] = "before",
        normalize: bool = True,
        capacity_factor: float | None = None,
        capacity_axis: AxisSelection | None = None,
        dispatch: Dispatch = "auto",
        init_scale: float = 1.0,
    ) -> "MixtureOfExperts":
        """Makes a router and experts with random weights.

        Args:
            Embed: The axis of the tokens' vectors.
            Mlp: The hidden axis of each expert.
            Experts: The expert axis.
            top_k: As for `Router.init`.
            key: A random key.
            activation: Function of a named array.
            gated: Whether experts multiply `activation(gate(x))` with `up(x)`, or only take `activation(up(x))`.
            softmax: As for `Router.init`.
            normalize: As for `Router.init`.
            capacity_factor: If given, each expert takes at most this factor times an equal share of the choices,
                rounded up, and drops the others, whose tokens get nothing from it. First choices of all tokens come
                before second ones, and earlier tokens before later ones. If None, nothing is dropped.
            capacity_axis: The axes along which tokens compete for the capacity: each element of the other axes, such as
                each sequence of a batch, is a group with a capacity of its own. All axes of the tokens if None.
            dispatch: How tokens reach their experts where both are sharded over one mesh axis. "gather" gathers all
                tokens on each device and scatters the sums. "all_to_all" sends to each expert as many rows as its
                capacity, so it needs a `capacity_factor`. "ragged_all_to_all" sends the rows that chose the expert, by
                `jax.lax.ragged_all_to_all`; on CPUs, which lack it, all rows are gathered. "auto" is "all_to_all" with
                a capacity, and "gather" without one. The results are the same.
            init_scale: As for `Linear.init`.

        Returns:
            A layer sharded by the active mapping.

        Raises:
            ValueError: If there are fewer experts than are chosen, `capacity_factor` is not positive, or `dispatch` is
                another word, or "all_to_all" without a capacity.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp, Experts = nym.make_axes(embed=4, mlp=8, experts=4)
            >>> layer = nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts, 2, key=jax.random.key(0))
            >>> out, metrics = nym.named_jit(layer)(nym.ones({"batch": 2, "pos": 3, "embed": 4}))
            >>> out.shape, metrics.tokens_per_expert.sum().item()
            ((batch: 2, pos: 3, embed: 4), 12)
        """
        Embed, Mlp, Experts = parse_one_axis(Embed), parse_one_axis(Mlp), parse_one_axis(Experts)
        if capacity_factor is not None:
            capacity_factor = check_number(
                "MixtureOfExperts: `capacity_factor`, where None drops no token,", capacity_factor, above=0
            )
        check_choice("MixtureOfExperts: `dispatch`", dispatch, get_args(Dispatch))
        if dispatch == "all_to_all" and capacity_factor is None:
            raise ValueError(
                "MixtureOfExperts: `dispatch` 'all_to_all' sends as many rows as a capacity; give a `capacity_factor`, "
                "or take 'gather' or 'ragged_all_to_all', which drop no token"
            )
        check_function("MixtureOfExperts: `activation`", activation, "axonym.nn.silu")
        keys = split(key, 4)
        router = Router.init(
            Embed, Experts, top_k, key=keys[0], softmax=softmax, normalize=normalize, init_scale=init_scale
        )

        def make_matrix(In: Axis, Out: Axis, key: jax.Array) -> NamedArray:
            return MoELinear.init(Experts, In, Out, key=key, use_bias=False, init_scale=init_scale).weight

        gate = make_matrix(Embed, Mlp, keys[1]) if gated else None
        up, down = make_matrix(Embed, Mlp, keys[2]), make_matrix(Mlp, Embed, keys[3])
        axes = None if capacity_axis is None else tuple(map(axis_name, parse_selection(capacity_axis)))
        return MixtureOfExperts(router, gate, up, down, Embed, Mlp, activation, capacity_factor, axes, dispatch)

    @named_call
    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> tuple[NamedArray, MixtureMetrics]:
        """Sends each token to its experts.

        Args:
            x: Array with the axis of the tokens' vectors and any others: those of the tokens.
            key: Not used; accepted so that all layers have the same signature.

        Returns:
            Array with the axes and the element type of `x`, and the metrics.

        Raises:
            ValueError: If `x` lacks the axis of the vectors or one of the capacity, or has another axis of the layer;
                if an axis of the tokens is sharded over a mesh axis of the hidden axis; or if an axis is sharded along
                which tokens compete for the capacity.
        """
        Experts = self.router.Experts
        layer = f"MixtureOfExperts ({format_layer_axes((self.Embed, self.Mlp, Experts))})"
        check_input(layer, x, self.Embed, (Experts.name, self.Mlp.name, self.router.TopK.name))
        tokens = tuple(name for name in x.names if name != self.Embed.name)
        competing: Names = ()
        if self.capacity_factor is not None:
            capacity_axes = tokens if self.capacity_axes is None else self.capacity_axes
            check_input(f"{layer} (capacity)", x, capacity_axes)
            competing = tuple(name for name in tokens if name in capacity_axes)
            tokens = (*(name for name in tokens if name not in competing), *competing)  # groups, then their tokens

        input_matrices = [self.up] if self.gate is None else [self.gate, self.up]
        # `shard_map` takes no parameters that are typed `reduced`.
        matrices = [gather_parameter(matrix, may_be_reduced=False) for matrix in (*input_matrices, self.down)]
        operands = [
            rearrange(x, (*tokens, self.Embed)),
            gather_parameter(self.router.weight, may_be_reduced=False),
            *(rearrange(matrix, (Experts, self.Embed, self.Mlp)) for matrix in matrices[:-1]),
            rearrange(matrices[-1], (Experts, self.Mlp, self.Embed)),
        ]
        names = [tuple("" if name == self.Embed.name else name for name in array.names) for array in operands]
        names[1] = ("", "")  # each device chooses the experts of its tokens, with the entire router
        mixed, z_loss, probabilities, counts, dropped = map_shards(
            functools.partial(self._mix_shard, layer, operands[:2], competing),
            [array.array for array in operands],
            names,
            ((*tokens, ""), (), ("",), ("",), ()),
            divides_mapped=True,
        )
        result = rearrange(with_array(x, mixed, operands[0].names), x.names)
        tokens_per_expert = named(counts, Experts)
        metrics = MixtureMetrics(
            load_balance_loss(tokens_per_expert, named(probabilities, Experts), Experts),
            named(z_loss, ()),
            constrain_sharding(tokens_per_expert),
            named(dropped / counts.sum(), ()),
        )
        return constrain_sharding(result), metrics

    def _mix_shard(
        self, layer: str, templates: Sequence[NamedArray], competing: Names, mesh_axes: MeshAxes, *shards: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Chooses the experts of the tokens of one device, and sends the tokens to them.

        Args:
            layer: What stands before errors.
            templates: The whole arrays of tokens and router, whose names their shards get.
            competing: The names of the axes along which tokens compete for the capacity.
            mesh_axes: The mesh axes of all names.
            *shards: The tokens, the router, and the matrices of the experts of this device.

        Returns:
            The result, and the mean of the z-loss, the mean probabilities, the choices of each expert and the number of
            dropped choices over all devices.
        """
        for name in competing:
            if jax.lax.axis_size(mesh_axes.get(name, ())) > 1:  # `plan` traces with mesh axes of size 1
                raise ValueError(
                    f"{layer}: tokens compete for the capacity along axis {name!r}, which is sharded over "
                    f"{format_axes(mesh_axes[name])}; name other axes of {format_shape(templates[0])} with "
                    f"`capacity_axis`, or map {name!r} to None"
                )
        x, router_weight = (with_array(*pair) for pair in zip(templates, shards[:2], strict=True))
        routing = dataclasses.replace(self.router, weight=router_weight)(x)
        tokens, Experts = x.names[:-1], self.router.Experts
        check_sharded_apart(layer, mesh_axes, (*tokens, self.Mlp.name))
        dtype = jnp.result_type(x.array, *shards[2:])
        *input_matrices, down = (matrix.astype(dtype) for matrix in shards[2:])
        fields = ("up",) if self.gate is None else ("gate", "up")

        def apply(multiply: MatrixProduct, rows: Any) -> Any:
            names = (*(f"row{dim}" for dim in range(rows.ndim - 1)), self.Mlp.name)
            hidden = [
                with_array(x, checkpoint_name(multiply(rows, matrix), field), names)
                for field, matrix in zip(fields, input_matrices, strict=True)
            ]
            active = self.activation(hidden[0])
            return checkpoint_name(multiply((active if self.gate is None else active * hidden[1]).array, down), "down")

        token_axes = tuple(axis for name in tokens for axis in mesh_axes.get(name, ()))
        expert_axes = mesh_axes.get(Experts.name, ())
        shared_axes = tuple(axis for axis in expert_axes if axis in token_axes)
        dispatch = self.dispatch
        if dispatch == "auto":
            dispatch = "gather" if self.capacity_factor is None else "all_to_all"
        # Summed over at the end: mesh axes of experts over which tokens are not sharded, and those of the hidden axis.
        summed_axes = tuple(axis for axis in expert_axes if axis not in token_axes)
        summed_axes += mesh_axes.get(self.Mlp.name, ())
        # `pcast` here makes the gradient of the tokens one sum over devices, instead of one for each product below.
        varying_x = jax.lax.pcast(x.array.astype(dtype), summed_axes, to="varying")
        arrays = (
            array.reshape(-1, array.shape[-1]) for array in (varying_x, routing.weights.array, routing.experts.array)
        )
        dropped, group_size, capacity = jnp.zeros((), int), None, None
        if self.capacity_factor is not None:
            group_size = math.prod(x.shape[name] for name in competing)
            equal_share = group_size * self.router.TopK.size / Experts.size
            capacity = min(group_size, math.ceil(equal_share * self.capacity_factor))
            group_counts = count_choices(
                routing.experts.array.reshape(-1, group_size * self.router.TopK.size), Experts.size
            )
            dropped = jnp.maximum(group_counts - capacity, 0).sum()
        mixed = self._dispatch(dispatch, apply, expert_axes, shared_axes, group_size, capacity, *arrays)
        mixed = mixed.astype(x.dtype).reshape(x.array.shape)
        probabilities = mean(softmax(routing.logits, Experts), tokens).array
        z_loss = router_z_loss(routing.logits, Experts).array
        counts = count_choices(routing.experts.array.reshape(-1), Experts.size)
        if token_axes:
            z_loss, probabilities = jax.lax.pmean((z_loss, probabilities), token_axes)
            counts, dropped = jax.lax.psum((counts, dropped), token_axes)
        if summed_axes:
            mixed = jax.lax.psum(mixed, summed_axes)
        return mixed, z_loss, probabilities, counts, dropped

    def _dispatch(
        self,
        dispatch: str,
        apply: ExpertFn,
        expert_axes: tuple[str, ...],
        shared_axes: tuple[str, ...],
        group_size: int | None,
        capacity: int | None,
        *arrays: Any,
    ) -> Any:
        """Sends the tokens of one device to their experts, and returns the sums of their rows.

        Args:
            dispatch: How they travel.
            apply: Function of the experts of this device.
            expert_axes: The mesh axes over which experts are sharded.
            shared_axes: Those of them over which tokens are sharded, too.
            group_size: How many tokens compete for the capacity, next to one another; None without a capacity.
            capacity: How many tokens of a group each expert takes; None for all.
            *arrays: The tokens, their weights and their experts, each with an axis of all tokens and one more.
        """
        expert_count, width = self.router.Experts.size, arrays[0].shape[-1]
        is_gathered = dispatch == "gather" and bool(shared_axes)
        if is_gathered:
            arrays = tuple(jax.lax.all_gather(array, shared_axes, tiled=True) for array in arrays)
        groups = (1, -1) if group_size is None else (-1, group_size)
        arrays = tuple(array.reshape(*groups, array.shape[-1]) for array in arrays)
        if dispatch == "ragged_all_to_all" and shared_axes:
            mixed = mix_sent_rows(apply, expert_count, expert_axes, shared_axes, capacity, *arrays)
        elif capacity is None:
            mixed = mix_all_tokens(apply, expert_count, expert_axes, *arrays)
        else:
            sent_axes = () if is_gathered else shared_axes
            mixed = mix_within_capacity(apply, expert_count, expert_axes, sent_axes, capacity, *arrays)
        mixed = mixed.reshape(-1, width)
        return jax.lax.psum_scatter(mixed, shared_axes, tiled=True) if is_gathered else mixed
