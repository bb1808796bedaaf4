"""Scores of tokens by a linear head, computed in blocks over the vocabulary; the kernel of `fused_cross_entropy`.

The log-normalizer is computed online, one block of logits after the other, and is all that the backward pass needs: it
computes each block of logits again, as in Cut Cross-Entropy (Wijmans et al., 2024). On a mesh each device has the
blocks of its own part of the vocabulary, and the parts are combined at the end.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..named._ambient import reshard_by_name
from ..named._axis import Names
from ..named._axis_layout import AxisLayout
from ..named._broadcasting import align_axes
from ..named._operation import use_operand_layout
from ._inputs import widen_dtype
from ._map_shards import find_layout, shard_map_by_name


class Head(NamedTuple):
    """All that is static: the names of the arrays `hidden`, `weight` and `targets`, options, and the sharding."""

    hidden: Names
    weight: Names
    targets: Names
    vocab: str
    block_size: int
    label_smoothing: float
    logit_soft_cap: float | None
    precision: Any
    layout: AxisLayout = AxisLayout()

    @property
    def tokens(self) -> Names:
        """The names of the axes of a loss."""
        return tuple(name for name in self.hidden if name not in self.weight)

    @property
    def logits(self) -> Names:
        """The names of a block of logits, in the order in which no product needs it transposed."""
        return (*self.tokens, self.vocab) if self.vocab_dim else (self.vocab, *self.tokens)

    @property
    def products(self) -> Names:
        """The names of the product of a block of logits and the weight, in the same order."""
        embed = tuple(name for name in self.weight if name != self.vocab)
        return (*self.tokens, *embed) if self.vocab_dim else (*embed, *self.tokens)

    @property
    def vocab_dim(self) -> int:
        """The position of the vocabulary in the weight."""
        return self.weight.index(self.vocab)


def score_tokens(head: Head, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """Returns the log-normalizer of each token and the score of its target, sharded by the names of the arrays.

    With label smoothing, the score is the expected one under the smoothed distribution.
    """
    names, arrays = (head.hidden, head.weight, head.targets), (hidden, weight, targets)
    with use_operand_layout(names, arrays):
        hidden, weight, targets = map(reshard_by_name, arrays, names)
        sizes = dict(zip(head.hidden + head.weight, hidden.shape + weight.shape, strict=True))
        products = (head.hidden, head.weight, head.logits)
        layout = find_layout(products, [tuple(sizes[name] for name in array_names) for array_names in products])
    if layout.entries:
        head = head._replace(layout=layout)
    return _score_sharded(head, hidden, weight, targets)


def _map_scores(head: Head, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    arrays, results = (head.hidden, head.weight, head.targets), (head.tokens, head.tokens)
    score = functools.partial(_score_part, head)
    return shard_map_by_name(score, head.layout, arrays, results, check_vma=False)(hidden, weight, targets)


_score_sharded: Any = jax.custom_vjp(_map_scores, nondiff_argnums=(0,))


def _keep_log_normalizers(head: Head, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    log_normalizers, scores = _map_scores(head, hidden, weight, targets)
    return (log_normalizers, scores), (hidden, weight, targets, log_normalizers)


def _differentiate_sharded(head: Head, saved: Any, gradients: Any) -> tuple[Any, Any, None]:
    arrays = (head.hidden, head.weight, head.targets, *[head.tokens] * 3)
    results, differentiate = (head.hidden, head.weight), functools.partial(_differentiate_part, head)
    return *shard_map_by_name(differentiate, head.layout, arrays, results, check_vma=False)(*saved, *gradients), None


_score_sharded.defvjp(_keep_log_normalizers, _differentiate_sharded)


def _score_part(head: Head, hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """Returns what `score_tokens` returns, for the part of the tokens on this device."""
    dim = head.logits.index(head.vocab)

    def add_block(start: Any, size: int, sums: Any) -> tuple[Any, Any]:
        log_normalizers, scores = sums
        block = _compute_block(head, hidden, weight, targets, start, size)
        chosen = jnp.where(block.is_target, block.logits, 0).sum(dim)
        if head.label_smoothing:
            chosen = (1 - head.label_smoothing) * chosen + block.smoothing * block.logits.sum(dim)
        return jnp.logaddexp(log_normalizers, jax.nn.logsumexp(block.logits, dim)), scores + chosen

    sizes = tuple(size for name, size in zip(head.hidden, hidden.shape, strict=True) if name in head.tokens)
    zeros = jnp.zeros(sizes, widen_dtype(hidden, weight))
    log_normalizers, scores = _fold_blocks(head, weight, add_block, (zeros - jnp.inf, zeros))
    if axes := head.layout.list_mesh_axes((head.vocab,)):
        most = jax.lax.pmax(log_normalizers, axes)
        log_normalizers = most + jnp.log(jax.lax.psum(jnp.exp(log_normalizers - most), axes))
        scores = jax.lax.psum(scores, axes)
    return log_normalizers, scores


def _differentiate_part(
    head: Head, hidden: Any, weight: Any, targets: Any, log_normalizers: Any, d_normalizers: Any, d_scores: Any
) -> tuple[Any, Any]:
    """Returns the gradients for the parts of the hidden array and the weight on this device."""
    saved = (log_normalizers, d_normalizers, d_scores)
    log_normalizers, d_normalizers, d_scores = (jnp.expand_dims(x, head.logits.index(head.vocab)) for x in saved)

    def add_block(start: Any, size: int, sums: Any) -> tuple[Any, Any]:
        d_hidden, d_weight = sums
        block = _compute_block(head, hidden, weight, targets, start, size)
        softmax = jnp.exp(block.logits - log_normalizers)
        chosen = jnp.asarray(1 - head.label_smoothing, block.logits.dtype)
        probabilities = jnp.where(block.is_target, chosen, 0) + block.smoothing
        d_logits = d_normalizers * softmax + d_scores * probabilities
        if head.logit_soft_cap is not None:
            d_logits = d_logits * (1 - jnp.square(block.logits / head.logit_soft_cap))
        d_logits = d_logits.astype(block.weight.dtype)
        d_part = _multiply(head, d_logits, head.logits, hidden, head.hidden, head.weight).astype(d_weight.dtype)
        d_weight = jax.lax.dynamic_update_slice_in_dim(d_weight, d_part, start, head.vocab_dim)
        return d_hidden + _multiply(head, d_logits, head.logits, block.weight, head.weight, head.products), d_weight

    ordered = align_axes(hidden, head.hidden, head.products)
    zeros = jnp.zeros_like(ordered, widen_dtype(hidden, weight)), jnp.zeros_like(weight)
    d_hidden, d_weight = _fold_blocks(head, weight, add_block, zeros)
    d_hidden = align_axes(d_hidden, head.products, head.hidden)
    if axes := head.layout.list_mesh_axes((head.vocab,)):
        d_hidden = jax.lax.psum(d_hidden, axes)
    if axes := head.layout.list_mesh_axes(head.tokens):
        d_weight = jax.lax.psum(d_weight, axes)
    return d_hidden.astype(hidden.dtype), d_weight


def _fold_blocks(head: Head, weight: Any, add_block: Callable[..., Any], sums: Any) -> Any:
    """Calls `add_block(start, size, sums)` for each block of the vocabulary in turn; the last one may be smaller."""
    size = min(head.block_size, weight.shape[head.vocab_dim])
    count, rest = divmod(weight.shape[head.vocab_dim], size)
    sums = jax.lax.fori_loop(0, count, lambda index, sums: add_block(index * size, size, sums), sums)
    return add_block(count * size, rest, sums) if rest else sums


class _Block(NamedTuple):
    """A block of the vocabulary.

    Attributes:
        weight: Its part of the weight.
        logits: Its logits.
        is_target: Which of its labels are the targets of the tokens.
        smoothing: The probability of each label from label smoothing.
    """

    weight: Any
    logits: Any
    is_target: Any
    smoothing: float


def _compute_block(head: Head, hidden: Any, weight: Any, targets: Any, start: Any, size: int) -> _Block:
    part = jax.lax.dynamic_slice_in_dim(weight, start, size, head.vocab_dim).astype(jnp.result_type(hidden, weight))
    logits = _multiply(head, hidden, head.hidden, part, head.weight, head.logits)
    if axes := head.layout.list_mesh_axes(tuple(name for name in head.weight if name != head.vocab)):
        logits = jax.lax.psum(logits, axes)
    if head.logit_soft_cap is not None:
        logits = head.logit_soft_cap * jnp.tanh(logits / head.logit_soft_cap)
    axes, total = head.layout.list_mesh_axes((head.vocab,)), weight.shape[head.vocab_dim]
    if axes:
        start, total = start + jax.lax.axis_index(axes) * total, total * jax.lax.axis_size(axes)
    labels = align_axes(start + jnp.arange(size), (head.vocab,), head.logits)
    is_target = labels == align_axes(targets, head.targets, head.logits)
    return _Block(part, logits, is_target, head.label_smoothing / total)


def _multiply(head: Head, one: Any, names: Names, other: Any, others: Names, result: Names) -> Any:
    """Multiplies two arrays and sums over the names that the result lacks, in float32 at least."""
    options: Any = {"precision": head.precision, "preferred_element_type": widen_dtype(one, other)}
    return jnp.einsum(one, names, other, others, result, **options)
