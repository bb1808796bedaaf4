import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


def cells(x: nym.NamedArray) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", x._repr_html_())
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in rows]


def test_a_notebook_shows_a_row_for_each_axis():
    x = nym.zeros({"batch": 512, "embed": 1024})
    assert cells(x) == [["axis", "size"], ["batch", "512"], ["embed", "1024"]]
    assert "<caption>NamedArray, float32, 2 MiB</caption>" in x._repr_html_()


def test_a_notebook_shows_the_mesh_axes(mapped):
    x = nym.shard(nym.ones({"pos": 3, "batch": 8, "embed": 4}))
    expected = [["axis", "size", "mesh axes"], ["pos", "3", ""], ["batch", "8", "data"], ["embed", "4", "model"]]
    assert cells(x) == expected


def test_a_notebook_shows_few_elements_and_no_many():
    assert "<pre>[0, 1, 2]</pre>" in nym.arange(nym.Axis("i", 3))._repr_html_()
    assert "<pre>" not in nym.arange(nym.Axis("i", 9))._repr_html_()


def test_html_of_names_is_escaped():
    assert "<b>" not in nym.ones({"<b>": 2})._repr_html_()


@pytest.mark.parametrize("show", [repr, nym.NamedArray._repr_html_], ids=["line", "table"])
def test_anything_that_jax_puts_into_a_tree_is_shown(show):
    x = nym.ones({"a": 2})
    for leaf in (None, True, jax.ShapeDtypeStruct((2,), jnp.float32), np.ones((2, 2)), jax.random.key(0)):
        shown = show(jax.tree.unflatten(jax.tree.structure(x), [leaf]))
        assert "NamedArray" in shown and "a" in shown
    shown = []
    jax.jit(lambda x: shown.append(show(x)))(x)
    assert "float32" in shown[0]
