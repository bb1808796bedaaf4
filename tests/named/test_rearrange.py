"""`rearrange` with an expression: what it does, what it costs, what aliases say, and what it refuses."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym
from axonym import Axis


x = nym.named(jnp.arange(2.0 * 3 * 4 * 6).reshape(2, 3, 4, 6), ("batch", "height", "width", "embed"))
array = np.asarray(x.array)


def same(result, expected, names):
    return result.names == tuple(names) and np.array_equal(result.array, expected)


@pytest.mark.parametrize(
    ("text", "order", "names"),
    [
        ("b h w e -> b h w e", (0, 1, 2, 3), ("batch", "height", "width", "embed")),
        ("b h w e -> e b w h", (3, 0, 2, 1), ("embed", "batch", "width", "height")),
        ("b ... e -> e ... b", (3, 1, 2, 0), ("embed", "height", "width", "batch")),
        ("... e -> e ...", (3, 0, 1, 2), ("embed", "batch", "height", "width")),
        ("b h w e ... -> e b w h ...", (3, 0, 2, 1), ("embed", "batch", "width", "height")),
        ("b ... -> ... b", (1, 2, 3, 0), ("height", "width", "embed", "batch")),
        ("... -> embed ... batch", (3, 1, 2, 0), ("embed", "height", "width", "batch")),
        ("{embed batch} -> embed ... batch", (3, 1, 2, 0), ("embed", "height", "width", "batch")),
        ("{width ... height} -> width height ...", (2, 1, 0, 3), ("width", "height", "batch", "embed")),
        ("{} -> width ...", (2, 0, 1, 3), ("width", "batch", "height", "embed")),
        ("{embed width height batch} -> width embed height batch", (2, 3, 1, 0), ("width", "embed", "height", "batch")),
    ],
)
def test_the_order(text, order, names):
    assert same(x.rearrange(text), array.transpose(order), names)


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        ("b h w e -> b (p: h w) e", array.reshape(2, 12, 6), ("batch", "p", "embed")),
        ("b h w e -> b (p: w h) e", array.swapaxes(1, 2).reshape(2, 12, 6), ("batch", "p", "embed")),
        ("b h w e -> (p: e b) (q: w h)", array.transpose(3, 0, 2, 1).reshape(12, 12), ("p", "q")),
        ("{height width} -> ... (p: height width) ...", array.reshape(2, 12, 6), ("batch", "p", "embed")),
        (
            "{width batch} -> ... (p: width batch) ...",
            array.transpose(2, 0, 1, 3).reshape(8, 3, 6),
            ("p", "height", "embed"),
        ),
        ("b ... -> b (rest: ...)", array.reshape(2, 72), ("batch", "rest")),
        ("{width} -> (rest: ...) width", array.transpose(0, 1, 3, 2).reshape(36, 4), ("rest", "width")),
        ("b h w e -> b (h: h w) e", array.reshape(2, 12, 6), ("batch", "height", "embed")),
        ("b h w e -> b (new: h) w e", array, ("batch", "new", "width", "embed")),
        ("b h w e ... -> b h w e (one: ...)", array[..., None], ("batch", "height", "width", "embed", "one")),
    ],
)
def test_axes_are_merged(text, expected, names):
    assert same(x.rearrange(text), expected, names)


split = array.reshape(2, 3, 4, 2, 3)


@pytest.mark.parametrize(
    ("text", "aliases", "expected", "names"),
    [
        ("b h w (n d) -> b n h w d", {"n": 2}, split.transpose(0, 3, 1, 2, 4), ("batch", "n", "height", "width", "d")),
        ("b h w (e: n d) -> b h w n d", {"d": 3}, split, ("batch", "height", "width", "n", "d")),
        ("b h w (n d) -> b h w (d: d n)", {"n": 2}, split.swapaxes(3, 4).reshape(2, 3, 4, 6), (*x.names[:3], "d")),
        ("{(embed: n d)} -> d ... n", {"n": 2}, split.transpose(4, 0, 1, 2, 3), ("d", *x.names[:3], "n")),
        ("{(e: n d)} -> ... n d", {"e": "embed", "n": 2}, split, (*x.names[:3], "n", "d")),
        ("{(embed: n d)} -> ... n d", {"n": Axis("heads", 2), "d": "dim"}, split, (*x.names[:3], "heads", "dim")),
        ("{(embed: n d)} -> ... n d", {"n": np.int32(2)}, split, (*x.names[:3], "n", "d")),
        ("{(embed: embed n)} -> ... embed n", {"n": 3}, split, (*x.names[:3], "embed", "n")),
        ("{(embed: new)} -> ... new", {}, array, (*x.names[:3], "new")),
        (
            "b (h r) (w s) e -> b (patch: h w) (feature: e r s)",
            {"r": 1, "s": 2},
            array.reshape(2, 3, 1, 2, 2, 6).transpose(0, 1, 3, 5, 2, 4).reshape(2, 6, 12),
            ("batch", "patch", "feature"),
        ),
    ],
)
def test_axes_are_split(text, aliases, expected, names):
    assert same(x.rearrange(text, **aliases), expected, names)


def test_aliases_name_and_check():
    result = x.rearrange("b h w e -> (p: h w) b e", p=Axis("pixel", 12), b="batch", e=6, h=Axis("height", 3))
    assert result.shape == {"pixel": 12, "batch": 2, "embed": 6}
    assert x.rearrange("{b} -> ... b", b="batch").names[-1] == "batch"
    assert x.rearrange("{} -> ... b", b=Axis("batch", 2)).names[-1] == "batch"
    assert x.rearrange("x order h e -> order x h e", order="height").names[0] == "height"


def test_several_dots_keep_others_where_they_were():
    y = nym.zeros(dict(zip("abcdef", (1, 2, 3, 4, 5, 6), strict=True)))
    for text, names in (
        ("{c e} -> ... c e ...", "abcedf"),
        ("{c e} -> ... e c ...", "abecdf"),
        ("{b e} -> ... b ... e ...", "abcdef"),
        ("{b e} -> ... e ... b ...", "acdebf"),
        ("{a f} -> f ... a ...", "fabcde"),
        ("{b d} -> ... (m: d b) ...", "amcef"),
        ("a b ... e f -> ... b ... f", None),
        ("{a b c d e f} -> ... f e d c b a ...", "fedcba"),
    ):
        if names is None:
            with pytest.raises(ValueError, match="the right side leaves out 'a'"):
                y.rearrange(text)
        else:
            assert y.rearrange(text).names == tuple(names)


def kinds(equations, text, **aliases):
    return [name for name, _ in equations(lambda x: x.rearrange(text, **aliases), x)]


def test_it_costs_a_transpose_and_two_reshapes_at_most(equations):
    assert kinds(equations, "b h w e -> b h w e") == kinds(equations, "{(embed: new)} -> ... new") == []
    assert kinds(equations, "b h w e -> h b w e") == ["transpose"]
    assert (
        kinds(equations, "b h w e -> b (p: h w) e") == kinds(equations, "b h w (n d) -> b h w n d", n=2) == ["reshape"]
    )
    assert kinds(equations, "b h w (n d) -> b (p: h w) n d", n=2) == ["reshape"]
    assert kinds(equations, "b h w e -> (p: w h) b e") == ["transpose", "reshape"]
    assert kinds(equations, "b h w (n d) -> n d b h w", n=2) == ["reshape", "transpose"]
    assert kinds(equations, "b h w (n d) -> d (p: h w) (q: n b)", n=2) == ["reshape", "transpose", "reshape"]


def test_nothing_to_do_is_the_array_itself():
    assert x.rearrange("b h w e -> b h w e") is x and x.rearrange("... -> ...") is x
    assert x.rearrange("{(embed: new)} -> ... new").array is x.array
    assert nym.named(1.0, ()).rearrange("{} ->").shape == ()


@given(sizes=st.lists(st.integers(0, 3), min_size=4, max_size=4), order=st.permutations("abcd"), cut=st.integers(0, 3))
@settings(max_examples=20)
def test_there_and_back_is_the_identity(sizes, order, cut):
    y = nym.named(np.arange(np.prod(sizes)).reshape(sizes), ("p", "q", "r", "s"))
    merged = f"{' '.join(order[:cut])} (m: {' '.join(order[cut:])})"
    there = y.rearrange(f"a b c d -> {merged}")
    dims = ["abcd".index(name) for name in order]
    shape = [*(sizes[dim] for dim in dims[:cut]), np.prod([sizes[dim] for dim in dims[cut:]])]
    assert np.array_equal(there.array, np.transpose(y.array, dims).reshape(shape))
    names = dict(zip("abcd", y.axes, strict=True))
    back = there.rearrange(f"{merged} -> a b c d", **{part: names[part] for part in order[cut:]})
    assert back.names == y.names and np.array_equal(back.array, y.array)


def refused(text, at, message, **aliases):
    expected = f"cannot rearrange {x.shape!r}: {message}\n{text}\n{' ' * at}^"
    with pytest.raises(ValueError, match=f"^{escape(expected)}$"):
        x.rearrange(text, **aliases)


def test_a_caret_shows_what_does_not_fit():
    refused("-> b", 0, "the left side must name the axes; write '{...}' to name none")
    refused("b h w e, b -> b", 9, "`rearrange` takes one operand")
    refused("b h w -> b", 0, f"{x.shape!r} has 4 axes, 3 are given here; write '...' for the others")
    refused("b h w e f -> b", 0, f"{x.shape!r} has 4 axes, 5 are given here")
    refused("b h w e ... f -> b", 0, f"{x.shape!r} has 4 axes, 5 are given here")
    refused("{widht} -> widht ...", 1, f"no axis 'widht' in {x.shape!r}; did you mean 'width'?")
    refused("{w} -> w ...", 1, "no axis 'length' in " + repr(x.shape), w="length")
    refused(
        "b width height e -> b width height e",
        2,
        f"'width' is at the position of axis 'height' of {x.shape!r}; give the axes in their order, or by name in "
        "braces",
    )
    refused("b h w e -> b h e", 4, "the right side leaves out 'w'")
    refused(
        "{batch} -> batch", 11, "the right side leaves out (height: 3, width: 4, embed: 6); write '...' for the others"
    )
    refused("b h w e -> b h w ... e", 17, "this '...' needs one on the left side")
    refused("b h w e -> b h w e c", 19, "no axis 'c' on the left side")
    refused("b h w emb -> b h w embed", 19, "axis 'embed' is 'emb' on the left side")
    refused("{batch} -> batch ... hight", 21, "no axis 'hight' on the left side; did you mean 'height'?")
    refused("b h w e -> b h w c", 17, "no axis 'channel' for 'c' on the left side", c="channel")
    refused("b h w e -> b (batch: h w) e", 13, "the result would have two axes 'batch'")
    refused(
        "b h w (width d) -> b h w width d", 7, "there is an axis 'width' already; give another name with an alias", d=2
    )


def test_a_caret_shows_sizes_that_do_not_fit():
    refused("{(embed: n d)} -> n ... d", 11, "the sizes of 'n' and 'd' are both unknown; give one of them: d=...")
    both = "axis 'embed' has 6 elements, the parts with known sizes have"
    refused("{(embed: n d)} -> n ... d", 1, f"{both} 4", n=4)
    refused("{(embed: n d)} -> n ... d", 1, f"{both} 0", n=0)
    refused("{(embed: n d)} -> n ... d", 1, f"{both} 4", n=2, d=Axis("d", 2))
    refused("b h w e -> w h b e", 2, "axis 'height' has size 3 here, 4 was asked for", h=4)
    refused("{} -> ... b", 10, "axis 'batch' has size 2 here, 4 was asked for", b=Axis("batch", 4))
    refused("b h w (n d) -> b h w (e: d n)", 21, "axis 'e' has size 6 here, 3 was asked for", d=3, e=3)
    refused("{embed} -> (p: ...) embed", 11, "axis 'pixel' has size 24 here, 12 was asked for", p=Axis("pixel", 12))


def test_a_caret_shows_aliases_that_do_not_fit():
    refused("b h w e -> e ...", 0, "the alias 'embed' is not used", embed=6)
    refused("b h w embd -> embd w h b", 6, "the alias 'embed' is not used; did you mean 'embd'?", embed=6)
    refused("b h w e -> w h b e", 0, "'b' is axis 'embed' by its alias, and axis 'batch' by its position", b="embed")


def test_what_is_no_alias_says_so():
    for value in (True, None, 2.0, ("n", 2)):
        with pytest.raises(TypeError, match="The alias 'n' must be an `Axis`, its name, or a size, not "):
            x.rearrange("{(embed: n d)} -> n ... d", n=value)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="size of axis 'n' must not be negative"):
        x.rearrange("{(embed: n d)} -> n ... d", n=-2)
    with pytest.raises(
        TypeError, match=escape("Only an expression such as 'b h -> h b' takes aliases, (b) were given.")
    ):
        x.rearrange(("embed", ...), b="batch")


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_sharded_arrays(mapped, inside, draw):
    y = draw(batch=8, pos=3, embed=4)
    run = jax.jit if inside else lambda fn: fn
    for text, aliases, spec in (
        ("b p e -> e p b", {}, ("model", None, "data")),
        ("b p e -> (batch: b p) e", {}, ("data", "model")),
        ("b p e -> b (token: p e)", {}, ("data", None)),
        ("b p (h d) -> h b (embed: d p)", {"h": 2}, (None, "data", "model")),
        ("(c b) p e -> e (batch: b p) c", {"b": 4}, ("model", "data", None)),
    ):
        expected = y.rearrange(text, **aliases)
        result = run(lambda y, t=text, a=aliases: y.rearrange(t, **a))(nym.shard(y))
        assert same(result, expected.array, expected.names)
        if mapped.axis_types[0] == jax.sharding.AxisType.Explicit:
            assert result.sharding.spec == jax.P(*spec)


def test_it_has_a_gradient():
    loss = lambda y: jnp.sum(jnp.sin(y.rearrange("b h w (n d) -> d (p: w b) n h", n=2).array) * 2)  # noqa: E731
    gradient = jax.grad(loss)(x)
    assert gradient.names == x.names and np.allclose(gradient.array, 2 * np.cos(array), atol=1e-5)


def test_an_axis_and_a_part_of_it_may_have_one_name(mapped):
    y = nym.named(np.arange(192.0).reshape(3, 8, 8), ("c", "h", "batch"))
    expected = y.array.reshape(3, 2, 4, 8).transpose(1, 2, 0, 3)
    for sizes in ({"patch_h": 2}, {"h": 4}, {"h": Axis("h", 4)}, {"h": 4, "patch_h": 2}):
        split = nym.rearrange(y, "{(h: patch_h h) ...} -> patch_h h ...", **sizes)
        assert split.shape == {"patch_h": 2, "h": 4, "c": 3, "batch": 8} and np.array_equal(split.array, expected)
        merged = nym.rearrange(split, "{patch_h h} -> ... (h: patch_h h) ...", h=4)
        assert np.array_equal(nym.rearrange(merged, ("c", "h", "batch")).array, y.array)
    with pytest.raises(ValueError, match="axis 'h' has 8 elements, the parts with known sizes have 3"):
        nym.rearrange(y, "{(h: patch_h h) ...} -> patch_h h ...", h=3)
