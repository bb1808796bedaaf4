"""Masks of attention: what they are as arrays, their bounds over blocks, and errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Mask = nym.nn.AttentionMask
Batch, Pos, KeyPos = nym.make_axes(batch=2, pos=5, key_pos=7)
Q, K = np.arange(5)[:, None], np.arange(7)[None]
SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
KEY_SEGMENTS = np.array([[0, 0, 1, 1, 1, 2, 3], [0, 1, 1, 2, 2, 2, 2]])


def materialize(mask, *, names=("pos", "key_pos")):
    result = mask.materialize(Pos, KeyPos)
    assert result.names == names and result.dtype == jnp.bool_
    return np.asarray(result.array)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask.causal(), Q >= K),
        (Mask.causal(2, 1), Q + 2 >= K + 1),
        (Mask.causal(jnp.int32(3)), Q + 3 >= K),
        (Mask.prefix(3), K + 0 * Q < 3),
        (Mask.prefix(3, k_start=2), K + 2 + 0 * Q < 3),
        (Mask.sliding_window(2), abs(Q - K) < 2),
        (Mask.sliding_window(2, 1) & Mask.causal(1), (Q + 1 - K < 2) & (Q + 1 >= K)),
        (Mask.causal() | Mask.prefix(2), (Q >= K) | (K < 2)),
        (~Mask.causal(), Q < K),
        (~(Mask.sliding_window(2) | Mask.prefix(1)), (abs(Q - K) >= 2) & (K >= 1)),
        (Mask.explicit(nym.named(Q + K > 4, ("pos", "key_pos"))) & Mask.causal(), (Q + K > 4) & (Q >= K)),
        (Mask.causal() & nym.named(K[0] > 1, ("key_pos",)), (Q >= K) & (K > 1)),
    ],
)
def test_a_mask_is_the_comparison_that_it_states(mask, expected):
    assert (materialize(mask) == expected).all()
    traced = jax.jit(lambda mask: mask.materialize(Pos, KeyPos).array)(mask)
    assert (np.asarray(traced) == expected).all()


def test_segments_and_numbers_may_have_further_axes():
    ids, key_ids = nym.named(SEGMENTS, ("batch", "pos")), nym.named(KEY_SEGMENTS, ("batch", "key_pos"))
    same = SEGMENTS[:, :, None] == KEY_SEGMENTS[:, None]
    assert (materialize(Mask.segment_ids(ids, key_ids), names=("batch", "pos", "key_pos")) == same).all()
    starts = nym.named([1, 3], "batch")
    result = materialize(Mask.causal(starts) & Mask.prefix(starts + 2), names=("batch", "pos", "key_pos"))
    first = np.array([1, 3])[:, None, None]
    assert (result == ((Q + first >= K) & (K < first + 2))).all()
    mask = Mask.segment_ids(ids).materialize(Pos, Pos.alias("key_pos"))
    assert (np.asarray(mask.array) == (SEGMENTS[:, :, None] == SEGMENTS[:, None])).all()


@pytest.mark.parametrize(
    "mask",
    [
        Mask.causal(1),
        Mask.sliding_window(2),
        ~(Mask.causal() & Mask.sliding_window(3)),
        Mask.causal() | Mask.prefix(2),
        Mask.causal(jnp.int32(0)) & Mask.prefix(4),
    ],
)
def test_bounds_of_blocks_hold(mask):
    """`bound_block` tells which blocks may be skipped: never one with a query that attends to a key."""
    whole = materialize(mask)
    for q, k in itertools.product([(0, 1), (2, 4), (1, 1)], [(0, 2), (3, 6), (1, 1)]):
        block = whole[q[0] : q[1] + 1, k[0] : k[1] + 1]
        is_any, is_every = mask.bound_block(q, k)
        assert is_any or not block.any()
        assert not is_every or block.all()
    if all(isinstance(number, int) for number in jax.tree.leaves(mask)):
        is_any, is_every = mask.bound_block((Q, Q), (K, K))
        assert (is_any == whole).all() and (is_every == whole).all()


def test_errors_of_masks_name_what_is_wrong():
    with refusal("the size of a sliding window is at least 1, the position of the query, not 0"):
        Mask.sliding_window(0)
    with refusal("The positions and sizes of a mask are integers, not 0.5", TypeError):
        Mask.prefix(0.5)
    with refusal("A mask is an `AttentionMask` or a named boolean array, not ndarray", TypeError):
        Mask.causal() & np.ones((5, 7), bool)
    with refusal("`mask` must be boolean, not float32", TypeError):
        Mask.explicit(nym.zeros(Pos))
    with refusal("The segment ids of a mask are named arrays, not ndarray; use `named`.", TypeError):
        Mask.segment_ids(SEGMENTS)
    ids = nym.named(SEGMENTS, ("batch", "pos"))
    with refusal("the segment ids (batch: 2, pos: 5) lack the axis of query positions 'psoition'; give `key_ids`"):
        Mask.segment_ids(ids).materialize(nym.Axis("psoition", 5), KeyPos)
    with refusal("the segment ids (batch: 2, pos: 5) of keys lack their axis 'key_pos'"):
        Mask.segment_ids(ids, ids).materialize(Pos, KeyPos)
    with refusal("axis 'key_pos' has size 5 and size 7"):
        Mask.segment_ids(ids).materialize(Pos, KeyPos)
