"""Another size for one axis of all arrays of a tree."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from axonym.tree_util import resize_axis
from tests.refusals import refusal


Vocab, Embed = nym.make_axes(vocab=4, embed=2)
TABLE = nym.named([[0.0, 10.0], [2.0, 10.0], [4.0, 10.0], [6.0, 10.0]], (Vocab, Embed))
KEY = jax.random.key(0)


def test_an_axis_is_cut_in_every_array_that_has_it():
    tree = {"table": TABLE, "head": TABLE.rearrange(("embed", "vocab")), "bias": nym.ones(Embed), "n": 3, "no": None}
    resized = resize_axis(tree, "vocab", 3)
    assert resized["table"].shape == {"vocab": 3, "embed": 2} and resized["head"].names == ("embed", "vocab")
    np.testing.assert_array_equal(resized["table"].array, TABLE.array[:3])
    np.testing.assert_array_equal(resized["head"].array, TABLE.array[:3].T)
    assert resized["bias"] is tree["bias"] and resized["n"] == 3 and resized["no"] is None
    assert resize_axis(TABLE, Vocab, 0).shape == {"vocab": 0, "embed": 2}


def test_the_same_size_changes_nothing():
    assert resize_axis([TABLE], "vocab", 4, KEY)[0] is TABLE


@pytest.mark.parametrize("dtype", [jnp.bfloat16, bool])
def test_without_a_key_an_axis_grows_by_zeros(dtype):
    table = TABLE.astype(dtype)
    resized = resize_axis(table, Vocab, 6)
    assert resized.dtype == dtype and resized.shape == {"vocab": 6, "embed": 2}
    np.testing.assert_array_equal(resized.array, np.pad(table.array, ((0, 2), (0, 0))))


def test_with_a_key_an_axis_grows_by_more_of_its_kind():
    resized = resize_axis(TABLE, "vocab", 4004, KEY).array
    np.testing.assert_array_equal(resized[:4], TABLE.array)
    np.testing.assert_array_equal(resized[4:, 1], np.full(4000, 10.0))
    np.testing.assert_allclose(resized[4:, 0].mean(), 3.0, atol=0.2)
    np.testing.assert_allclose(resized[4:, 0].std(), TABLE.array[:, 0].std(), atol=0.2)


def test_what_is_no_float_or_has_nothing_old_grows_by_zeros():
    assert not resize_axis(TABLE.astype(int), "vocab", 6, KEY).array[4:].any()
    assert not resize_axis(nym.ones({"vocab": 0, "embed": 2}), "vocab", 2, KEY).array.any()


def test_each_array_draws_with_its_own_key():
    table = TABLE["embed", 0]
    first, second = resize_axis([table, table], "vocab", 8, KEY)
    assert not np.array_equal(first.array[4:], second.array[4:])
    again = jax.jit(lambda tree, key: resize_axis(tree, "vocab", 8, key))([table, table], KEY)
    np.testing.assert_allclose(again[1].array, second.array, rtol=1e-6)


def test_a_resized_array_is_sharded_by_name(mesh):
    with nym.axis_mapping({"vocab": "data", "embed": "model"}):
        table = nym.shard(TABLE)
        grown, cut = resize_axis(table, "vocab", 8, KEY), resize_axis(resize_axis(table, "vocab", 8), "vocab", 4)
        assert grown.sharding.spec == cut.sharding.spec == jax.P("data", "model")
    np.testing.assert_array_equal(cut.array, TABLE.array)
    np.testing.assert_array_equal(np.asarray(grown.array)[:4], TABLE.array)


class Model(eqx.Module):
    embed: nym.nn.Embedding
    layers: list[dict[str, nym.nn.Linear]]
    kept: tuple[Any, ...] = eqx.field(static=True)
    size: Axis
    config: dict[str, int] = eqx.field(static=True, default_factory=lambda: {"b": 1, "a": 2})


def test_modules_keep_the_new_axis():
    embed, head = nym.nn.Embedding.init(Vocab, Embed, key=KEY), nym.nn.Linear.init(Embed, Vocab, key=KEY)
    other = Axis("vocab", 7)
    model = Model(embed, [{"head": head}], (Vocab, (other, "vocab")), Vocab)
    resized = resize_axis(model, Vocab, 6, KEY)
    new = Vocab.resize(6)
    assert resized.embed.Vocab == resized.size == new and resized.layers[0]["head"].Out == (new,)
    assert resized.kept == (new, (other, "vocab")) and list(resized.config) == ["b", "a"]
    assert resize_axis(model, "vocab", 6).kept == (new, (new, "vocab"))
    ids = nym.named([5, 0], "pos")
    assert resized.layers[0]["head"](resized.embed(ids)).shape == {"pos": 2, "vocab": 6}
    assert (model.embed.Vocab, model.size, head.Out) == (Vocab, Vocab, (Vocab,))


def test_stacked_layers_can_be_resized():
    stack = nym.nn.Stacked.init(Axis("layers", 3), nym.nn.RmsNorm)(Embed)
    resized = resize_axis(resize_axis(stack, "layers", 2), "embed", 5)
    assert resized.fold(nym.ones({"embed": 5})).shape == {"embed": 5} and resized.Block.size == 2


def test_a_new_size_must_make_sense():
    missing = "no array of the tree has an axis 'vocba'; the axes are (vocab, embed); did you mean 'vocab'"
    for axis, size, text, error in (
        ("vocba", 6, missing, ValueError),
        (Axis("vocab", 5), 6, "axis 'vocab' has size 4 here, 5 was asked for", ValueError),
        ("vocab", -1, "size of axis 'vocab' must not be negative, -1 was given", ValueError),
        ("vocab", 5.0, "size of axis 'vocab' must be an integer, not 5.0", TypeError),
        (3, 5, "by an `Axis` or by its name, not by 3", TypeError),
    ):
        with refusal(text, error):
            resize_axis({"table": TABLE}, axis, size)
