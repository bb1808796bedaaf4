"""Losses, and their reduction with weights and a mask."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._ground.arguments import check_function, check_integer, check_number
from .._ground.caches import cached_jit
from .._ground.formats import format_axes
from .._ground.jax_compat import find_mapped_mesh_axes
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector, Names, axis_name, check_matching_sizes, parse_selection
from ..named._axis_layout import AxisLayout
from ..named._base import format_shape, with_array
from ..named._broadcasting import align_axes, apply_broadcast
from ..named._creation import arange, ones_like
from ..named._elementwise import _arithmetic
from ..named._named_call import enter_function_scope
from ..named._operation import use_operand_layout
from ..named._reduce import _reductions
from ..named._reduced_types import get_reduced_axes, set_reduced_axes
from ..named._sharding import constrain_sharding, find_varying_axes, gather_parameter, reshard_by_name, vary_like
from ._layer import cast_array, check_axes_among, check_input, widen_array, widen_dtype
from ._map_shards import find_layout, shard_map_by_name


def reduce_loss(
    losses: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    reduction_axis: AxisSelection | None = None,
    *,
    where: NamedArray | None = None,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Reduces losses with a mask and weights, as all losses of `axonym.nn` do.

    The mean is that of the losses where `where` is True, each with its weight: the sum of losses times weights, divided
    by the sum of the weights. It is 0, with a gradient of 0, if this divisor is 0, as for a batch that is masked
    entirely. Any other reduction gets the losses times their weights.

    Args:
        losses: Array of any axes.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        reduction_axis: The axes reduced over; all of them if None.
        where: Boolean array with some of the axes of `losses`; losses where it is False are left out, or are 0 if the
            reduction is None.
        weight: Array with some of the axes of `losses`; 1 if None.

    Returns:
        Array with the remaining axes.

    Raises:
        ValueError: If `losses` lacks an axis that is reduced over, or an axis of `where` or `weight`.
        TypeError: If `losses`, `where` or `weight` is not a named array, or `reduction` not a function.

    Example:
        >>> import axonym as nym
        >>> losses, weight = nym.named([1.0, 3.0], "batch"), nym.named([3.0, 1.0], "batch")
        >>> nym.nn.reduce_loss(losses, weight=weight).item(), nym.nn.reduce_loss(losses, nym.sum, weight=weight).item()
        (1.5, 6.0)
    """
    check_input("reduce_loss", losses, ())
    if weight is not None:
        check_axes_among("reduce_loss", "weights", weight, "losses", losses)
    if reduction is _reductions.mean and not (where is None and weight is None and losses.size):
        return _compute_weighted_mean(losses, reduction_axis, where, weight)
    if weight is not None:
        losses = apply_broadcast(_weigh, losses, _widen_like(weight, losses))
    if reduction is not None:
        check_function("reduce_loss: `reduction`", reduction, "axonym.mean")
        return reduction(losses, reduction_axis, where=where)
    return losses if where is None else _arithmetic.where(where, losses, 0)


def _compute_weighted_mean(
    losses: NamedArray, axis: AxisSelection | None, where: NamedArray | None, weight: NamedArray | None
) -> NamedArray:
    """Returns the sum of losses times weights, divided by the sum of the weights, or 0 if that is 0."""
    losses = widen_array(losses)
    weights = ones_like(losses) if weight is None else ones_like(losses) * _widen_like(weight, losses)
    total = _reductions.sum(apply_broadcast(_weigh, losses, weights), axis, where=where)
    divisor = _reductions.sum(weights, axis, where=where)
    # A divisor that is replaced beforehand has a gradient of 0 instead of nan.
    return _arithmetic.where(divisor == 0, 0, total / _arithmetic.where(divisor == 0, 1, divisor))


def _widen_like(x: NamedArray, other: NamedArray) -> NamedArray:
    """Returns an array in the common dtype of two, float32 at least."""
    return cast_array(x, widen_dtype(x.array, other.array))


def cross_entropy_loss(
    logits: NamedArray,
    Label: AxisSelector,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> NamedArray:
    """Computes the cross entropy between `softmax(logits)` over the label axis and the targets, in nats.

    `fused_cross_entropy` computes the same from the input of the last layer, without storing the logits.

    Args:
        logits: Scores with the label axis and any others.
        Label: The label axis.
        targets: Either integer labels, without the label axis, or probabilities with it. For a label out of range, the
            score of the target is 0.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.
        label_smoothing: Share of the probability of the targets that is spread evenly over all labels (Szegedy et al.,
            2016), between 0 and 1.
        z_loss: Factor of the squared log-normalizer, which is added to each loss and keeps the logits from drifting
            (Chowdhery et al., 2022, with 1e-4).

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If `logits` lacks the label axis, the axes of `targets` are not among those of `logits`, they
            are neither integer labels nor probabilities, or `label_smoothing` is not between 0 and 1.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits = nym.zeros({"batch": 3, "vocab": 4})
        >>> nym.nn.cross_entropy_loss(logits, "vocab", nym.named([0, 1, 2], "batch")).item()  # log 4
        1.386...
    """
    _check_targets("cross_entropy_loss", logits, Label, targets, label_smoothing)
    check_number("cross_entropy_loss: `z_loss`", z_loss, least=0)
    with enter_function_scope("cross_entropy_loss", (axis_name(Label),)):
        losses = _compute_losses(logits, Label, targets, label_smoothing)
        if z_loss:
            losses = add_z_loss(losses, _reductions.logsumexp(widen_array(logits), Label), z_loss)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def cross_entropy_loss_and_log_normalizers(
    logits: NamedArray, Label: AxisSelector, targets: NamedArray, *, label_smoothing: float = 0.0
) -> tuple[NamedArray, NamedArray]:
    """Computes the cross entropy of each example, and its log-normalizer: `logsumexp(logits, Label)`.

    Args:
        logits: Scores with the label axis and any others.
        Label: The label axis.
        targets: As for `cross_entropy_loss`.
        label_smoothing: As for `cross_entropy_loss`.

    Returns:
        Two arrays with the other axes of `logits`, in float32 at least. `reduce_loss` reduces them.

    Raises:
        ValueError: As for `cross_entropy_loss`.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits, targets = nym.zeros({"batch": 2, "vocab": 4}), nym.named([0, 1], "batch")
        >>> losses, log_normalizers = nym.nn.cross_entropy_loss_and_log_normalizers(logits, "vocab", targets)
        >>> (losses - log_normalizers).array
        Array([0., 0.], dtype=float32)
    """
    _check_targets("cross_entropy_loss_and_log_normalizers", logits, Label, targets, label_smoothing)
    with enter_function_scope("cross_entropy_loss_and_log_normalizers", (axis_name(Label),)):
        losses = _compute_losses(logits, Label, targets, label_smoothing)
        return losses, _reductions.logsumexp(widen_array(logits), Label)


def _check_targets(
    function: str, logits: NamedArray, Label: AxisSelector, targets: NamedArray, label_smoothing: float
) -> None:
    check_input(function, logits, Label)
    check_axes_among(function, "targets", targets, "logits", logits)
    check_number(f"{function}: `label_smoothing`", label_smoothing, least=0, most=1)
    if not targets.has_axis(axis_name(Label)) and not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"{function}: targets of {targets.dtype} without axis {axis_name(Label)!r} are neither integer labels nor "
            "probabilities"
        )


def add_z_loss(losses: NamedArray, log_normalizers: NamedArray, z_loss: float) -> NamedArray:
    """Returns the losses with the squared log-normalizers times a factor added."""
    return losses + log_normalizers * log_normalizers * z_loss


def _compute_losses(logits: NamedArray, Label: AxisSelector, targets: NamedArray, label_smoothing: float) -> NamedArray:
    wide = widen_array(logits)
    label = wide.resolve_axis(Label)
    if targets.has_axis(label.name):
        targets = _widen_like(targets, wide)
        if label_smoothing:
            targets = targets * (1 - label_smoothing) + label_smoothing / label.size
        return -_reductions.sum(apply_broadcast(_weigh, _reductions.log_softmax(wide, label), targets), label)
    # A comparison with all labels instead of a gather, because the label axis may be sharded. For a label out of range
    # the score is 0.
    scores = _reductions.sum(apply_broadcast(_select_target_scores, wide, targets, arange(label)), label)
    if label_smoothing:
        scores = scores * (1 - label_smoothing) + _reductions.mean(wide, label) * label_smoothing
    return _reductions.logsumexp(wide, label) - scores


def _weigh(scores: Any, weights: Any) -> Any:
    """Returns scores times weights; infinite scores with a weight of 0 count nothing."""
    return jnp.where((weights == 0) & jnp.isinf(scores), 0, scores) * weights


def _select_target_scores(scores: Any, targets: Any, labels: Any) -> Any:
    return jnp.where(labels == targets, scores, 0)


def binary_cross_entropy_loss(
    logits: NamedArray,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Computes the cross entropy between `sigmoid(logits)` and the targets, in nats.

    It is computed as `max(logits, 0) * (1 - targets) + max(-logits, 0) * targets + log(1 + exp(-abs(logits)))`, without
    overflow, and is 0 for infinite logits that are right.

    Args:
        logits: Scores of any axes.
        targets: Labels 0 and 1, booleans or probabilities, with some of the axes of `logits`.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If the axes of `targets` are not among those of `logits`.
        TypeError: If `logits` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> logits, targets = nym.zeros({"batch": 2}), nym.named([True, False], "batch")
        >>> nym.nn.binary_cross_entropy_loss(logits, targets).item()  # log 2
        0.693...
    """
    check_input("binary_cross_entropy_loss", logits, ())
    check_axes_among("binary_cross_entropy_loss", "targets", targets, "logits", logits)
    with enter_function_scope("binary_cross_entropy_loss", ()):
        wide = widen_array(logits)
        losses = apply_broadcast(_compute_binary_losses, wide, _widen_like(targets, wide))
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def _compute_binary_losses(logits: Any, targets: Any) -> Any:
    # Not `abs`, whose derivative at 0 is 1 in JAX.
    positive, negative = jnp.maximum(logits, 0), jnp.maximum(-logits, 0)
    return _weigh(positive, 1 - targets) + _weigh(negative, targets) + jnp.log1p(jnp.exp(-positive - negative))


def mean_squared_error(
    predictions: NamedArray,
    targets: NamedArray,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
) -> NamedArray:
    """Computes the squared difference between predictions and targets, and its mean or another reduction.

    Args:
        predictions: Array of any axes.
        targets: Array with some of the axes of `predictions`.
        reduction: How the squares are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; squares where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the squares, as for `reduce_loss`.

    Returns:
        Array with the remaining axes, in float32 at least.

    Raises:
        ValueError: If the axes of `targets` are not among those of `predictions`.
        TypeError: If `predictions` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> predictions, targets = nym.named([1.0, 2.0], "batch"), nym.named([1.0, 4.0], "batch")
        >>> nym.nn.mean_squared_error(predictions, targets).item()
        2.0
    """
    check_input("mean_squared_error", predictions, ())
    check_axes_among("mean_squared_error", "targets", targets, "predictions", predictions)
    with enter_function_scope("mean_squared_error", ()):
        wide = widen_array(predictions)
        losses = apply_broadcast(_square_differences, wide, _widen_like(targets, wide))
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


def _square_differences(predictions: Any, targets: Any) -> Any:
    return jnp.square(predictions - targets)


def fused_cross_entropy(
    hidden: NamedArray,
    head: NamedArray,
    targets: NamedArray,
    Embed: AxisSelection,
    Vocab: AxisSelector,
    reduction: Callable[..., Any] | None = _reductions.mean,
    where: NamedArray | None = None,
    reduction_axis: AxisSelection | None = None,
    *,
    weight: NamedArray | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_soft_cap: float | None = None,
    block_size: int = 4096,
    precision: Any = None,
) -> NamedArray:
    """Computes the cross entropy of the logits `dot(hidden, head, axis=Embed)`, which are never stored as a whole.

    It equals `cross_entropy_loss` of these logits. Its memory grows with `block_size` instead of the vocabulary: a
    block of logits at a time, in the forward and in the backward pass, which computes the logits again. With the
    vocabulary sharded, each device has the blocks of its own part. Gradients are those of reverse mode only.

    Args:
        hidden: Array with `Embed` and any others, such as batch and position.
        head: The weight of the head with `Vocab` and `Embed`, such as `Linear.weight` or `Embedding.weight`. It is
            gathered as layers gather their parameters.
        targets: Integer labels with some of the axes of `hidden` except `Embed`. For a label out of range, the score of
            the target is 0.
        Embed: The axes to contract.
        Vocab: The label axis.
        reduction: How the losses are reduced, such as `axonym.mean` or `axonym.sum`; None keeps them all.
        where: Boolean array; losses where it is False are left out.
        reduction_axis: The axes reduced over; all of them if None.
        weight: Weights of the losses, as for `reduce_loss`.
        label_smoothing: As for `cross_entropy_loss`.
        z_loss: As for `cross_entropy_loss`.
        logit_soft_cap: Replaces logits by `logit_soft_cap * tanh(logits / logit_soft_cap)`, as Gemma 2 does.
        block_size: How many labels a block has, also on a device that has only a part of the vocabulary.
        precision: As for `jax.lax.dot_general`.

    Returns:
        Array with the remaining axes of `hidden`, in float32 at least. Sums over `Embed` are kept in that type too.

    Raises:
        ValueError: If an array lacks one of its axes, `head` has others, the axes of `targets` are not among those of
            `hidden`, the targets are not integers, or an option is out of range.
        TypeError: If `hidden`, `head` or `targets` is not a named array.

    Example:
        >>> import axonym as nym
        >>> hidden, head = nym.zeros({"batch": 3, "embed": 2}), nym.ones({"vocab": 4, "embed": 2})
        >>> targets = nym.named([0, 1, 2], "batch")
        >>> nym.nn.fused_cross_entropy(hidden, head, targets, "embed", "vocab", block_size=2).item()  # log 4
        1.386...
    """
    vocab = axis_name(Vocab)
    check_input("fused_cross_entropy (hidden)", hidden, Embed, (vocab,))
    embed = tuple(map(axis_name, parse_selection(Embed)))
    check_input("fused_cross_entropy (head)", head, (Vocab, *parse_selection(Embed)))
    check_matching_sizes((hidden.names, hidden.array.shape), (head.names, head.array.shape))
    if extra_axes := [name for name in head.names if name not in (vocab, *embed)]:
        raise ValueError(
            f"fused_cross_entropy: the head {format_shape(head)} has axes {format_axes(extra_axes)} besides "
            f"{format_axes(sorted((vocab, *embed)))}; for several heads, use `axonym.vmap` over these axes"
        )
    check_axes_among("fused_cross_entropy", "targets", targets, "hidden", hidden)
    check_matching_sizes((hidden.names, hidden.array.shape), (targets.names, targets.array.shape))
    for name in targets.names:
        if name in head.names:
            raise ValueError(f"fused_cross_entropy: the targets {format_shape(targets)} must not have axis {name!r}")
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(
            f"fused_cross_entropy: targets of {targets.dtype} are not integer labels; `cross_entropy_loss` takes "
            "probabilities"
        )
    label_smoothing = check_number("fused_cross_entropy: `label_smoothing`", label_smoothing, least=0, most=1)
    check_number("fused_cross_entropy: `z_loss`", z_loss, least=0)
    block_size = check_integer("fused_cross_entropy: `block_size`", block_size, 1)
    if logit_soft_cap is not None:
        logit_soft_cap = check_number("fused_cross_entropy: `logit_soft_cap`", logit_soft_cap, above=0)
    config = FusedLossConfig(
        hidden_names=hidden.names,
        weight_names=head.names,
        target_names=targets.names,
        vocab=vocab,
        block_size=block_size,
        label_smoothing=label_smoothing,
        logit_soft_cap=logit_soft_cap,
        precision=precision,
    )
    with enter_function_scope("fused_cross_entropy", embed, (vocab,)):
        hidden, head, targets = constrain_sharding(hidden), gather_parameter(head), constrain_sharding(targets)
        arrays = cached_jit(score_tokens, config)(hidden.array, head.array, targets.array)
        log_normalizers, scores = (with_array(hidden, array, config.token_names) for array in arrays)
        losses = log_normalizers - scores
        if z_loss:
            losses = add_z_loss(losses, log_normalizers, z_loss)
        return reduce_loss(losses, reduction, reduction_axis, where=where, weight=weight)


class FusedLossConfig(NamedTuple):
    """The static configuration of `fused_cross_entropy`.

    Attributes:
        hidden_names: The names of the array `hidden`.
        weight_names: The names of the weight of the head.
        target_names: The names of the targets.
        vocab: The name of the label axis.
        block_size: As for `fused_cross_entropy`.
        label_smoothing: As for `fused_cross_entropy`.
        logit_soft_cap: As for `fused_cross_entropy`.
        precision: As for `fused_cross_entropy`.
        layout: How the axes are sharded.
        reduced: The mesh axes over which the weight is `reduced`, so that its gradient is not added up here.
        is_mapped: Whether a `vmap` over an Explicit mesh axis is around this, also when JAX calls the backward pass.
    """

    hidden_names: Names
    weight_names: Names
    target_names: Names
    vocab: str
    block_size: int
    label_smoothing: float
    logit_soft_cap: float | None
    precision: Any
    layout: AxisLayout = AxisLayout()
    reduced: frozenset[str] = frozenset()
    is_mapped: bool = False

    @property
    def token_names(self) -> Names:
        """The names of the axes of a loss."""
        return tuple(name for name in self.hidden_names if name not in self.weight_names)

    @property
    def logit_names(self) -> Names:
        """The names of a block of logits, in the order in which no product needs it transposed."""
        return (*self.token_names, self.vocab) if self.vocab_dim else (self.vocab, *self.token_names)

    @property
    def product_names(self) -> Names:
        """The names of the product of a block of logits and the weight, in the same order."""
        embed = tuple(name for name in self.weight_names if name != self.vocab)
        return (*self.token_names, *embed) if self.vocab_dim else (*embed, *self.token_names)

    @property
    def vocab_dim(self) -> int:
        """The position of the vocabulary in the weight."""
        return self.weight_names.index(self.vocab)


def score_tokens(config: FusedLossConfig, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """Returns the log-normalizer of each token and the score of its target, sharded by the names of the arrays.

    With label smoothing, the score is the expected one under the smoothed distribution.
    """
    names, arrays = (config.hidden_names, config.weight_names, config.target_names), (hidden, weight, targets)
    with use_operand_layout(names, arrays):
        hidden, targets = reshard_by_name(hidden, config.hidden_names), reshard_by_name(targets, config.target_names)
        reduced_axes = get_reduced_axes(weight)
        if not reduced_axes:  # otherwise it is sharded by its names already
            weight = reshard_by_name(weight, config.weight_names)
        sizes = dict(zip(config.hidden_names + config.weight_names, hidden.shape + weight.shape, strict=True))
        names = (config.hidden_names, config.weight_names, config.logit_names)
        layout = find_layout(names, [tuple(sizes[name] for name in array_names) for array_names in names])
    if layout.entries:
        reduced_token_axes = reduced_axes.intersection(layout.list_mesh_axes(config.token_names))
        is_mapped = bool(find_mapped_mesh_axes())
        config = config._replace(layout=layout, reduced=reduced_token_axes, is_mapped=is_mapped)
    weight = set_reduced_axes(weight, config.reduced)
    return _score_with_gradient(config, hidden, weight, targets)


def _score_sharded(config: FusedLossConfig, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    score = shard_map_by_name(
        functools.partial(_score_shard, config),
        config.layout,
        (config.hidden_names, config.weight_names, config.target_names),
        (config.token_names, config.token_names),
        check_vma=False,
        divides_mapped=config.is_mapped,
    )
    return score(hidden, set_reduced_axes(weight, ()), targets)


def _score_forward(config: FusedLossConfig, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    log_normalizers, scores = _score_sharded(config, hidden, weight, targets)
    return (log_normalizers, scores), (hidden, weight, targets, log_normalizers)


def _score_backward(config: FusedLossConfig, saved: Any, gradients: Any) -> tuple[Any, Any, None]:
    differentiate = shard_map_by_name(
        functools.partial(_differentiate_shard, config),
        config.layout,
        (
            config.hidden_names,
            config.weight_names,
            config.target_names,
            config.token_names,
            config.token_names,
            config.token_names,
        ),
        (config.hidden_names, config.weight_names),
        check_vma=False,
        divides_mapped=config.is_mapped,
        unreduced=(frozenset(), config.reduced),
    )
    hidden, weight, targets, log_normalizers = saved
    weight = set_reduced_axes(weight, ())
    d_hidden, d_weight = differentiate(hidden, weight, targets, log_normalizers, *gradients)
    return _add_up_like(d_hidden, hidden), _add_up_like(d_weight, weight), None


def _add_up_like(gradient: Any, array: Any) -> Any:
    """Returns a gradient added up over the mesh axes of the user's `shard_map` over which the array is the same."""
    axes = find_varying_axes(gradient) - find_varying_axes(array)
    return jax.lax.psum(gradient, tuple(axes)) if axes else gradient


_score_with_gradient: Any = jax.custom_vjp(_score_sharded, nondiff_argnums=(0,))
_score_with_gradient.defvjp(_score_forward, _score_backward)


def _score_shard(config: FusedLossConfig, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """Returns what `score_tokens` returns, for the part of the tokens on this device."""
    dim = config.logit_names.index(config.vocab)

    def add_block(start: Any, size: int, sums: Any) -> tuple[Any, Any]:
        log_normalizers, scores = sums
        _, logits, is_target, smoothing = _compute_block(config, hidden, weight, targets, start, size)
        block_scores = jnp.where(is_target, logits, 0).sum(dim)
        if config.label_smoothing:
            block_scores = (1 - config.label_smoothing) * block_scores + smoothing * logits.sum(dim)
        return jnp.logaddexp(log_normalizers, jax.nn.logsumexp(logits, dim)), scores + block_scores

    sizes = tuple(
        size for name, size in zip(config.hidden_names, hidden.shape, strict=True) if name in config.token_names
    )
    zeros = vary_like(jnp.zeros(sizes, widen_dtype(hidden, weight)), hidden, weight, targets)
    log_normalizers, scores = _fold_blocks(config, weight, add_block, (zeros - jnp.inf, zeros))
    if axes := config.layout.list_mesh_axes((config.vocab,)):  # `logsumexp` over all devices
        highest = jax.lax.pmax(log_normalizers, axes)
        log_normalizers = highest + jnp.log(jax.lax.psum(jnp.exp(log_normalizers - highest), axes))
        scores = jax.lax.psum(scores, axes)
    return log_normalizers, scores


def _differentiate_shard(
    config: FusedLossConfig,
    hidden: Any,
    weight: Any,
    targets: Any,
    log_normalizers: Any,
    d_normalizers: Any,
    d_scores: Any,
) -> tuple[Any, Any]:
    """Returns the gradients for the parts of the hidden array and the weight on this device."""
    log_normalizers, d_normalizers, d_scores = (
        jnp.expand_dims(x, config.logit_names.index(config.vocab)) for x in (log_normalizers, d_normalizers, d_scores)
    )

    def add_block(start: Any, size: int, sums: Any) -> tuple[Any, Any]:
        d_hidden, d_weight = sums
        part, logits, is_target, smoothing = _compute_block(config, hidden, weight, targets, start, size)
        softmax = jnp.exp(logits - log_normalizers)
        target_probability = jnp.asarray(1 - config.label_smoothing, logits.dtype)
        # The derivative of a log-normalizer is the softmax, that of a score the probability of each label.
        probabilities = jnp.where(is_target, target_probability, 0) + smoothing
        d_logits = d_normalizers * softmax + d_scores * probabilities
        if config.logit_soft_cap is not None:
            # The derivative of the cap, 1 - tanh², in terms of the capped logits.
            d_logits = d_logits * (1 - jnp.square(logits / config.logit_soft_cap))
        d_logits = d_logits.astype(part.dtype)
        d_block = _multiply(config, d_logits, config.logit_names, hidden, config.hidden_names, config.weight_names)
        d_block = d_block.astype(d_weight.dtype)
        d_weight = jax.lax.dynamic_update_slice_in_dim(d_weight, d_block, start, config.vocab_dim)
        d_hidden = d_hidden + _multiply(
            config, d_logits, config.logit_names, part, config.weight_names, config.product_names
        )
        return d_hidden, d_weight

    ordered = align_axes(hidden, config.hidden_names, config.product_names)
    zeros = [
        vary_like(zeros, hidden, weight, targets, d_normalizers, d_scores)
        for zeros in (jnp.zeros_like(ordered, widen_dtype(hidden, weight)), jnp.zeros_like(weight))
    ]
    d_hidden, d_weight = _fold_blocks(config, weight, add_block, tuple(zeros))
    d_hidden = align_axes(d_hidden, config.product_names, config.hidden_names)
    if axes := config.layout.list_mesh_axes((config.vocab,)):
        d_hidden = jax.lax.psum(d_hidden, axes)
    sum_axes = tuple(axis for axis in config.layout.list_mesh_axes(config.token_names) if axis not in config.reduced)
    if sum_axes:
        d_weight = jax.lax.psum(d_weight, sum_axes)
    return d_hidden.astype(hidden.dtype), d_weight


def _fold_blocks(config: FusedLossConfig, weight: Any, add_block: Callable[..., Any], sums: Any) -> Any:
    """Calls `add_block(start, size, sums)` for each block of the vocabulary in turn; the last one may be smaller."""
    size = min(config.block_size, weight.shape[config.vocab_dim])
    count, last_size = divmod(weight.shape[config.vocab_dim], size)
    sums = jax.lax.fori_loop(0, count, lambda index, sums: add_block(index * size, size, sums), sums)
    return add_block(count * size, last_size, sums) if last_size else sums


def _compute_block(
    config: FusedLossConfig, hidden: Any, weight: Any, targets: Any, start: Any, size: int
) -> tuple[Any, Any, Any, float]:
    """Returns what the loss needs of a block of the vocabulary.

    Returns:
        Its part of the weight, its logits, whether each of its labels is the target of each token, and the probability
        that label smoothing gives each label.
    """
    part = jax.lax.dynamic_slice_in_dim(weight, start, size, config.vocab_dim).astype(jnp.result_type(hidden, weight))
    logits = _multiply(config, hidden, config.hidden_names, part, config.weight_names, config.logit_names)
    if axes := config.layout.list_mesh_axes(tuple(name for name in config.weight_names if name != config.vocab)):
        logits = jax.lax.psum(logits, axes)
    if config.logit_soft_cap is not None:
        logits = config.logit_soft_cap * jnp.tanh(logits / config.logit_soft_cap)
    label_count = weight.shape[config.vocab_dim]
    if axes := config.layout.list_mesh_axes((config.vocab,)):  # labels are numbered across all devices
        start = start + jax.lax.axis_index(axes) * label_count
        label_count = label_count * jax.lax.axis_size(axes)
    labels = align_axes(start + jnp.arange(size), (config.vocab,), config.logit_names)
    is_target = labels == align_axes(targets, config.target_names, config.logit_names)
    return part, logits, is_target, config.label_smoothing / label_count


def _multiply(config: FusedLossConfig, x: Any, x_names: Names, y: Any, y_names: Names, names: Names) -> Any:
    """Multiplies two arrays and sums over the names that the result lacks, in float32 at least."""
    # Axes given as sequences of names, not as a string, are a form of `einsum` that its types do not have.
    einsum: Any = jnp.einsum
    return einsum(x, x_names, y, y_names, names, precision=config.precision, preferred_element_type=widen_dtype(x, y))
