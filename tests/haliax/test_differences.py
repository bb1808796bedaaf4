"""Which differences from Haliax hold in `axonym.haliax` too, and which in Axonym alone, as the page says."""

import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
import axonym.haliax as hax


# What both packages refuse: the expression, the error and its text.
REFUSED = [
    ('hax.dot(x, y, axis="d")', ValueError, "no axis 'd' in (a: 2, b: 3, c: 4)"),
    ("hax.nn.Linear.init(C, D, key=key)(hax.ones(A))", ValueError, "Linear (c: 4 -> d: 5): no axis 'c' in (a: 2)"),
    ('x["a", hax.ds(1, 5)]', ValueError, "a `dslice` of 5 elements does not fit into axis 'a'"),
    ('x["a", 5]', IndexError, "index 5 of axis 'a' of (a: 2, b: 3, c: 4) is out of range for size 2"),
    ('x["a", [0, 5]]', IndexError, "an index of axis 'a' of (a: 2, b: 3, c: 4) is out of range"),
    ("x[x > 3]", ValueError, "not x[an array of shape (2, 3, 4)]"),
    ("np.ones((2, 3, 4)) + x", TypeError, "A plain array of shape (2, 3, 4) has no axis names"),
    ("hax.NamedArray(jnp.ones(2), (A.resize(3),))", ValueError, "axis 'a' has size 2 here, 3 was asked for"),
    ("jax.vmap(lambda row: row.sum())(x)", ValueError, "use `axonym.vmap`"),
    ('hax.dot(x, x, x, axis="c", dot_general=lambda *args: None)', ValueError, "a `dot_general` multiplies two arrays"),
    ('hax.rearrange(x, "b a c -> a b c")', ValueError, "'b' is at the position of axis 'a'"),
    ('hax.einsum("a b c -> a", x, q="z")', ValueError, "the alias 'q' is not used"),
    ('hax.arange(A).at["a", 0].set(0.5)', TypeError, "convert either with `astype`"),
    ("hax.new_ref(jnp.ones(3))", TypeError, "A named array is needed, not an array of shape (3,)"),
]

# What works in Haliax and `axonym.haliax` and is an error in Axonym itself.
REFUSED_BY_AXONYM = [
    ('hax.tile(x, {"q": 2})', ValueError, "no axis 'q' in (a: 2, b: 3, c: 4)"),
    ("hax.cumsum(x, None)", TypeError, "An axis is given by an `Axis` or by its name, not by None"),
    ('hax.sum({"t": x})["t"]', TypeError, "A named array is needed, not {'t': f32[a: 2, b: 3, c: 4]}"),
    ('hax.rearrange(x, (..., "b", ...))', ValueError, "`...` may occur only once in an order of axes"),
]


def evaluate(expression: str, package: ModuleType) -> Any:
    A, B, C, D = package.make_axes(a=2, b=3, c=4, d=5)
    arrays = {"x": package.arange((A, B, C)).astype(float), "y": package.ones((C, D)), "key": jax.random.key(0)}
    return eval(expression, {"hax": package, "A": A, "C": C, "D": D, "jax": jax, "jnp": jnp, "np": np, **arrays})


@pytest.mark.parametrize("package", [nym, hax], ids=["axonym", "axonym.haliax"])
@pytest.mark.parametrize(("expression", "error", "text"), REFUSED, ids=[row[0] for row in REFUSED])
def test_both_packages_refuse(expression: str, error: type[Exception], text: str, package: ModuleType):
    with pytest.raises(error, match=re.escape(text)):
        evaluate(expression, package)


@pytest.mark.parametrize(("expression", "error", "text"), REFUSED_BY_AXONYM, ids=[row[0] for row in REFUSED_BY_AXONYM])
def test_axonym_alone_refuses(expression: str, error: type[Exception], text: str):
    assert evaluate(expression, hax).size >= 1
    with pytest.raises(error, match=re.escape(text)):
        evaluate(expression, nym)


PAGE = (Path(__file__).parents[2] / "docs" / "from-haliax.md").read_text()
SPELLINGS = PAGE.partition("### Names with another spelling")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "row", re.findall(r"^\| `(hax\..*)` \| `(.*)` \|$", SPELLINGS, re.MULTILINE), ids=lambda row: row[0]
)
def test_names_with_another_spelling_give_the_same(row: tuple[str, str]):
    names: dict[str, Any] = {}
    exec(SPELLINGS.partition("```python")[2].partition("```")[0], names)
    found, expected = (jax.tree.leaves(eval(code.replace("\\|", "|"), names)) for code in row)
    assert len(found) == len(expected) > 0
    assert all(bool((one == other).all()) for one, other in zip(found, expected, strict=True))


def test_functions_of_axonym_accept_arrays_of_haliax():
    x, y = hax.ones({"a": 2}), nym.ones({"a": 2})
    results = [nym.median(x), nym.exp(x), x + y, y + x, hax.add(y, y), hax.named(y.array, y.axes)]
    assert [type(one) for one in results] == [hax.NamedArray] * len(results)
    assert type(nym.named(x.array, x.axes)) is nym.NamedArray


def test_shape_checks_stay_on():
    for enabled in (False, True):
        with hax.enable_shape_checks(enabled) as previous:
            assert previous is True and hax.are_shape_checks_enabled()
            with pytest.raises(ValueError, match="axis 'a' has size 2 here, 3 was asked for"):
                hax.NamedArray(jnp.ones(2), (hax.Axis("a", 3),))
    assert hax.core.enable_shape_checks is hax.enable_shape_checks


@pytest.mark.parametrize("shard", [nym.shard, hax.shard, hax.shard_with_axis_mapping])
@pytest.mark.parametrize("mapping", [None, {"a": "data"}], ids=["no mapping", "no mesh"])
def test_warnings_of_shard_point_to_the_caller(shard: Any, mapping: Any):
    x = hax.ones({"a": 2})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shard(x, mapping)
    assert [(one.category, one.filename) for one in caught] == [(RuntimeWarning, __file__)]


def test_warning_of_dot_points_to_the_caller():
    x = hax.ones({"a": 2})
    for dot in (lambda: hax.dot("a", x, x), lambda: x.dot("a", x)):
        with pytest.warns(DeprecationWarning, match="`dot` takes its axes by keyword") as caught:
            dot()
        assert [one.filename for one in caught] == [__file__]
