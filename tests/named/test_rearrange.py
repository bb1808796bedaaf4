"""`rearrange` with an expression: what it does, what it costs, what aliases say, and what it refuses."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.named(jnp.arange(2.0 * 3 * 4 * 6).reshape(2, 3, 4, 6), ("batch", "height", "width", "embed"))
array = np.asarray(x.array)


def same(result, expected, names):
    return result.names == tuple(names) and np.array_equal(result.array, expected)


LETTERS = {"b": "batch", "h": "height", "w": "width", "e": "embed"}
ORDERS = {
    "b h w e -> e b w h": "ebwh",
    "b ... e -> e ... b": "ehwb",
    "... e -> e ...": "ebhw",
    "b h w e ... -> e b w h ...": "ebwh",
    "b ... -> ... b": "hweb",
    "... -> embed ... batch": "ehwb",
    "{embed batch} -> embed ... batch": "ehwb",
    "{width ... height} -> width height ...": "whbe",
    "{} -> width ...": "wbhe",
    "{embed width height batch} -> width embed height batch": "wehb",
}
SPLIT = array.reshape(2, 3, 4, 2, 3)
PATCHES = array.reshape(2, 3, 1, 2, 2, 6).transpose(0, 1, 3, 5, 2, 4).reshape(2, 6, 12)
# Expressions, aliases, what the result has as many elements as, and its axes.
CASES = [
    ("b h w e -> b (p: h w) e", {}, array.reshape(2, 12, 6), "batch p embed"),
    ("b h w e -> b (p: w h) e", {}, array.swapaxes(1, 2).reshape(2, 12, 6), "batch p embed"),
    ("b h w e -> (p: e b) (q: w h)", {}, array.transpose(3, 0, 2, 1).reshape(12, 12), "p q"),
    ("{height width} -> ... (p: height width) ...", {}, array.reshape(2, 12, 6), "batch p embed"),
    ("{width batch} -> ... (p: width batch) ...", {}, array.transpose(2, 0, 1, 3).reshape(8, 3, 6), "p height embed"),
    ("b ... -> b (rest: ...)", {}, array.reshape(2, 72), "batch rest"),
    ("{width} -> (rest: ...) width", {}, array.transpose(0, 1, 3, 2).reshape(36, 4), "rest width"),
    ("b h w e -> b (h: h w) e", {}, array.reshape(2, 12, 6), "batch height embed"),
    ("b h w e -> b (new: h) w e", {}, array, "batch new width embed"),
    ("b h w e ... -> b h w e (one: ...)", {}, array[..., None], "batch height width embed one"),
    ("b h w (n d) -> b n h w d", {"n": 2}, SPLIT.transpose(0, 3, 1, 2, 4), "batch n height width d"),
    ("b h w (e: n d) -> b h w n d", {"d": 3}, SPLIT, "batch height width n d"),
    ("b h w (n d) -> b h w (d: d n)", {"n": 2}, SPLIT.swapaxes(3, 4).reshape(2, 3, 4, 6), "batch height width d"),
    ("{(embed: n d)} -> d ... n", {"n": 2}, SPLIT.transpose(4, 0, 1, 2, 3), "d batch height width n"),
    ("{(e: n d)} -> ... n d", {"e": "embed", "n": 2}, SPLIT, "batch height width n d"),
    ("{(embed: n d)} -> ... n d", {"n": Axis("heads", 2), "d": "dim"}, SPLIT, "batch height width heads dim"),
    ("{(embed: n d)} -> ... n d", {"n": np.int32(2)}, SPLIT, "batch height width n d"),
    ("{(embed: embed n)} -> ... embed n", {"n": 3}, SPLIT, "batch height width embed n"),
    ("{(embed: new)} -> ... new", {}, array, "batch height width new"),
    ("b (h r) (w s) e -> b (patch: h w) (feature: e r s)", {"r": 1, "s": 2}, PATCHES, "batch patch feature"),
]


def test_axes_are_ordered_merged_and_split():
    transposed = [(text, {}, np.einsum(f"bhwe->{order}", array), order) for text, order in ORDERS.items()]
    cases = [(*case, " ".join(map(LETTERS.get, order))) for *case, order in transposed] + CASES
    results = jax.jit(lambda x: [x.rearrange(text, **aliases) for text, aliases, *_ in cases])(x)
    for result, (text, _, expected, names) in zip(results, cases, strict=True):
        assert same(result, expected, names.split()), text


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
            with refusal("the right side leaves out 'a'"):
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


def refused(text, at, message, **aliases):
    expected = f"cannot rearrange {x.shape!r}: {message}\n{text}\n{' ' * at}^"
    with pytest.raises(ValueError, match=f"^{escape(expected)}$"):
        x.rearrange(text, **aliases)


def test_a_caret_shows_what_does_not_fit():
    refused("-> b", 0, "the left side must name the axes; write '{...}' to name none")
    refused("b h w e, b -> b", 9, "`rearrange` takes one operand")
    refused("b h w -> b", 0, f"{x.shape!r} has 4 axes, 3 are given here; write '...' for the others")
    refused("b h w e f -> b", 0, f"{x.shape!r} has 4 axes, 5 are given here")
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
        with refusal("The alias 'n' must be an `Axis`, its name, or a size, not ", TypeError):
            x.rearrange("{(embed: n d)} -> n ... d", n=value)  # pyright: ignore[reportArgumentType]
    with refusal("size of axis 'n' must not be negative"):
        x.rearrange("{(embed: n d)} -> n ... d", n=-2)
    with refusal("Only an expression such as 'b h -> h b' takes aliases, (b) were given.", TypeError):
        x.rearrange(("embed", ...), b="batch")


SHARDED = {
    "transpose": (lambda y: y.rearrange("b p e -> e p b"), "mpd"),
    "merge": (lambda y: y.rearrange("b p e -> (batch: b p) e"), "dm"),
    "merge others": (lambda y: y.rearrange("b p e -> b (token: p e)"), "dp"),
    "split": (lambda y: y.rearrange("b p (h d) -> h b (embed: d p)", h=2), "pdm"),
    "split and merge": (lambda y: y.rearrange("(c b) p e -> e (batch: b p) c", b=4), "mdp"),
}


def test_sharded_arrays(check_sharded, draw):
    check_sharded(SHARDED, draw(batch=8, pos=3, embed=4), outside=SHARDED)


def test_an_axis_and_a_part_of_it_may_have_one_name(mapped):
    y = nym.named(np.arange(192.0).reshape(3, 8, 8), ("c", "h", "batch"))
    expected = y.array.reshape(3, 2, 4, 8).transpose(1, 2, 0, 3)
    for sizes in ({"patch_h": 2}, {"h": 4}, {"h": Axis("h", 4)}, {"h": 4, "patch_h": 2}):
        split = nym.rearrange(y, "{(h: patch_h h) ...} -> patch_h h ...", **sizes)
        assert split.shape == {"patch_h": 2, "h": 4, "c": 3, "batch": 8} and np.array_equal(split.array, expected)
        merged = nym.rearrange(split, "{patch_h h} -> ... (h: patch_h h) ...", h=4)
        assert np.array_equal(nym.rearrange(merged, ("c", "h", "batch")).array, y.array)
    with refusal("axis 'h' has 8 elements, the parts with known sizes have 3"):
        nym.rearrange(y, "{(h: patch_h h) ...} -> patch_h h ...", h=3)
