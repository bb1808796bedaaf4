"""Picking and replacing elements, against what NumPy does on a positional reference."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
import axonym.haliax as hax
from axonym import Axis, dslice


SIZES = {"a": 3, "b": 4, "c": 5}
NAMES = tuple(SIZES)
base = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5)
x = nym.named(base, NAMES)


def reference(index: dict[str, object]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Positions in `base` of the elements picked, one axis after another, and the names of their axes.

    Each axis is turned into an array of positions with the names that it brings; all arrays are then lined up by name.
    """
    arrays, axes = [], []
    for name, size in SIZES.items():
        given = index.get(name, slice(None))
        if isinstance(given, nym.NamedArray):
            array, names = np.asarray(given), given.names
        elif isinstance(given, dslice):
            start = int(given.start) + (size if given.start < 0 else 0)
            array, names = np.arange(start, start + given.length), (name,)
        else:
            array = np.arange(size)[given]
            names = (name,) * array.ndim
        arrays.append(array)
        axes.append(names)
    result = tuple(dict.fromkeys(name for names in axes for name in names))
    lined = []
    for array, names in zip(arrays, axes, strict=True):
        order = [names.index(name) for name in result if name in names]
        shape = [array.shape[names.index(name)] if name in names else 1 for name in result]
        lined.append(array.transpose(order).reshape(shape) if names else array)
    positions = np.ravel_multi_index(
        [np.asarray(one) % size for one, size in zip(lined, SIZES.values(), strict=True)], base.shape
    )
    return np.broadcast_to(positions, np.broadcast_shapes(*(one.shape for one in lined))), result


KINDS = {
    "int": lambda random, name, size: int(random.integers(-size, size)),
    "jax int": lambda random, name, size: jnp.asarray(random.integers(-size, size)),
    "named int": lambda random, name, size: nym.named(random.integers(-size, size), ()),
    "list": lambda random, name, size: random.integers(-size, size, 2).tolist(),
    "numpy": lambda random, name, size: random.integers(-size, size, 3),
    "jax": lambda random, name, size: jnp.asarray(random.integers(-size, size, 3)),
    "i": lambda random, name, size: nym.named(random.integers(-size, size, 2), "i"),
    "ij": lambda random, name, size: nym.named(random.integers(-size, size, (2, 3)), ("i", "j")),
    "ji": lambda random, name, size: nym.named(random.integers(-size, size, (3, 2)), ("j", "i")),
    "own": lambda random, name, size: nym.named(random.integers(-size, size, 2), name),
    "b": lambda random, name, size: nym.named(random.integers(-size, size, 4), "b"),
    "cb": lambda random, name, size: nym.named(random.integers(-size, size, (5, 4)), ("c", "b")),
    "dslice": lambda random, name, size: dslice(int(random.integers(size - 1)), 2),
    "jax dslice": lambda random, name, size: dslice(jnp.asarray(random.integers(-size, -1)), 2),
    "front": lambda random, name, size: slice(None, 2),
    "back": lambda random, name, size: slice(-2, None),
    "reversed": lambda random, name, size: slice(None, None, -1),
    "steps back": lambda random, name, size: slice(9, -9, -2),
    "steps": lambda random, name, size: slice(1, None, 2),
    "nothing": lambda random, name, size: slice(2, 1),
}
INDICES = [
    *({"b": kind} for kind in KINDS if kind not in ("b", "cb")),
    {"a": "int", "b": "int", "c": "int"},
    {"a": "int", "c": "i"},
    {"a": "i", "b": "i"},
    {"a": "i", "c": "i"},
    {"a": "i", "b": "reversed", "c": "jax int"},
    {"a": "int", "b": "front", "c": "list"},
    {"a": "list", "b": "numpy"},
    {"a": "list", "c": "jax"},
    {"a": "dslice", "b": "ij"},
    {"b": "ij", "c": "ji"},
    {"a": "ji", "b": "steps", "c": "i"},
    {"b": "dslice", "c": "jax dslice"},
    {"a": "jax dslice", "b": "steps back", "c": "own"},
    {"a": "front", "b": "back", "c": "reversed"},
    {"a": "b"},
    {"a": "cb"},
    {"c": "b", "a": "int"},
    {"c": "b", "a": "b"},
    {"a": "cb", "b": "b"},
    {"c": "i", "b": "dslice", "a": "nothing"},
]
each = pytest.mark.parametrize("kinds", INDICES, ids=str)


def drawn(kinds, random):
    return {name: KINDS[kind](random, name, SIZES[name]) for name, kind in kinds.items()}


@each
def test_indexing_equals_numpy(kinds, getkey):
    random = np.random.default_rng(getkey.seed)
    for _ in range(10):
        index = drawn(kinds, random)
        positions, names = reference(index)
        picked = x[index]
        assert picked.names == names, index
        assert np.array_equal(picked.array, base.ravel()[positions]), index


def test_axes_that_are_not_neighbours():
    wide = np.arange(120.0, dtype=np.float32).reshape(3, 4, 5, 2)
    y = nym.named(wide, (*NAMES, "d"))
    i, j, k = nym.named([3, 0, 1], "i"), nym.named([1, 0, 1], "i"), nym.named([[1, 0]], ("j", "k"))
    both = y["b", i, "d", j]
    assert both.names == ("a", "i", "c") and np.array_equal(both.array, wide[:, [3, 0, 1], :, [1, 0, 1]].swapaxes(0, 1))
    outer = y["b", i, "d", k]
    assert outer.names == ("a", "i", "c", "j", "k")
    assert np.array_equal(outer.array, wide[:, [3, 0, 1]][..., [[1, 0]]])
    one = y["b", 2, "d", j]
    assert one.names == ("a", "c", "i") and np.array_equal(one.array, wide[:, 2][..., [1, 0, 1]])
    changed = y.at["b", 2, "d", nym.named([1, 0], "i")].set(nym.named([-1.0, -2.0], "i"))
    assert np.array_equal(changed.array[:, 2], np.broadcast_to([-2.0, -1.0], (3, 5, 2)))


PLAIN = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


@each
def test_replacing_equals_numpy(kinds, getkey):
    random = np.random.default_rng(getkey.seed)
    at = INDICES.index(kinds)
    for method in ("set",) if at % 2 else (list(PLAIN)[at // 2 % 4],):
        for _ in range(8):
            index = drawn(kinds, random)
            positions, names = reference(index)
            kept = [name for name in names if name not in ("b", "j")]  # a value need not have every axis
            if method == "set" and len(np.unique(positions)) < positions.size:
                kept = []  # of several values for one element any may win
            sizes = {name: positions.shape[names.index(name)] for name in kept}
            value = nym.named(random.normal(size=list(sizes.values())).astype("f") * 30, tuple(kept))
            full = np.asarray(value).reshape([sizes.get(name, 1) for name in names])
            full = np.broadcast_to(full, positions.shape)
            expected = base.ravel().copy()
            if method == "set":
                expected[positions] = full
            else:
                PLAIN[method].at(expected, positions, full)
            result = getattr(x.at[index], method)(value)
            assert result.names == NAMES and result.dtype == jnp.float32
            assert np.allclose(result.array.ravel(), expected, rtol=1e-4), (method, index)


def test_positions_that_jit_knows_and_does_not_know():
    def picked(x, i, j):
        return (
            x["b", i],
            x["b", 2],
            x["b", i, "c", 1],
            x["b", i, "a", 1:],
            x["b", dslice(i, 2)],
            x["b", dslice(1, 2), "c", nym.named(jnp.stack([i, i + 1]), "k")],
            x["b", nym.named(i, ())],
            x["b", dslice(nym.named(i, ()), Axis("any", 3))],
            x.at["b", i].set(0.0),
            x.at["b", 2].set(0.0),
            x.at["b", dslice(i, 2), "c", j].add(1.0),
        )

    outside, inside = picked(x, 1, 3), jax.jit(picked)(x, 1, 3)
    for one, other in zip(outside, inside, strict=True):
        assert one.names == other.names and np.array_equal(one.array, other.array)
    assert np.array_equal(outside[4].array, base[:, 1:3]) and np.array_equal(outside[7].array, base[:, 1:4])


@pytest.mark.parametrize(("a", "b"), [(3, 2), (3, 3), (2, 3), (4, 3)])
def test_sizes_never_choose_an_axis(a, b):
    y = nym.named(np.arange(float(a * b)).reshape(a, b), ("a", "b"))
    for plain in (list, np.array, jnp.array):
        picked = y["a", plain([0, 1, 1])]
        assert picked.names == ("a", "b") and np.array_equal(picked.array, np.asarray(y)[[0, 1, 1]])
        assert np.array_equal(y.at["a", plain([0, 1])].set(1.0).array[:2], np.ones((2, b)))
        both = y["a", plain([0, 1]), "b", plain([1, 0])]
        assert both.names == ("a", "b") and np.array_equal(both.array, np.asarray(y)[np.ix_([0, 1], [1, 0])])


def test_a_shared_name_is_aligned():
    position = nym.named([4, 0, 2], "a")
    assert np.array_equal(x["c", position].array, base[np.arange(3), :, [4, 0, 2]]) and x["c", position].names == (
        "a",
        "b",
    )
    two = x["c", position, "b", nym.named([1, 3, 1], "a")]
    assert two.names == ("a",) and np.array_equal(two.array, base[np.arange(3), [1, 3, 1], [4, 0, 2]])
    marked = x.at["c", position].set(-1.0)
    assert np.array_equal(np.argwhere(np.asarray(marked)[:, 0] == -1), [[0, 4], [1, 0], [2, 2]])


def test_ways_to_write_an_index():
    expected = base[1, :, 2:4]
    for picked in (
        x["a", 1, "c", 2:4],
        x["c", 2:4, "a", 1],
        x[{"a": 1, "c": slice(2, 4)}],
        x[Axis("a", 3), 1, Axis("c", 5), 2:4],
        x["a", 1]["c", 2:4],
        nym.index(x, {"a": 1, "c": slice(2, 4)}),
        x.at["a", 1, "c", 2:4].get(),
        x.at[{"a": 1, "c": slice(2, 4)}].get(),
    ):
        assert picked.names == ("b", "c") and np.array_equal(picked.array, expected)
    assert x[{}] is x and x[()] is x and x.at[{}].get() is x
    assert np.array_equal(x.at[{}].add(1.0).array, base + 1)


def test_take_is_an_index_of_one_axis():
    tokens = nym.named([[1, 0, 3]], ("batch", "pos"))
    for taken in (nym.take(x, "b", tokens), x.take("b", tokens), x.take(Axis("b", 4), tokens)):
        assert taken.names == ("a", "batch", "pos", "c") and np.array_equal(taken.array, base[:, [[1, 0, 3]]])
    assert x.take("b", 1).names == ("a", "c") and x.take("b", [1]).names == NAMES
    assert np.array_equal(x.take("b", [7], mode="clip").array, base[:, 3:])


def test_indices_of_every_integer_type():
    for dtype in (jnp.int8, jnp.uint8, jnp.int32, jnp.uint32):
        assert np.array_equal(x["b", jnp.array([3, 1], dtype)].array, base[:, [3, 1]])
        assert np.array_equal(x["b", jnp.array(3, dtype)].array, base[:, 3])
    assert np.array_equal(x["b", np.int64(-1)].array, base[:, -1])
    assert x["b", []].shape == (3, 0, 5) and x["b", np.array([], int)].shape == (3, 0, 5)


LONG = nym.arange(Axis("c", 300))  # 8 bits cannot hold its size


def write_ref(start):
    ref = nym.new_ref(LONG)
    ref["c", start] = -1
    return ref[...]


def view_ref(index):
    return hax.new_ref(hax.arange({"c": 300})).slice({"c": slice(10, 290)}).slice({"c": index}).value()


NARROW = {
    "integer": lambda start, ids: LONG["c", start],
    "named": lambda start, ids: LONG["c", nym.named(ids, "i")],
    "shared": lambda start, ids: nym.arange({"i": 3, "c": 300})["c", nym.named(ids, "i")],
    "fill": lambda start, ids: nym.take(LONG, "c", nym.named(ids, "i"), mode="fill", fill=-9),
    "add": lambda start, ids: LONG.at["c", nym.named(ids, "i")].add(7),
    "window": lambda start, ids: LONG["c", nym.ds(start, 2)],
    "promised": lambda start, ids: nym.index(LONG, {"c": nym.ds(start, 2)}, mode="promise_in_bounds"),
    "block": lambda start, ids: LONG["c", nym.dblock(ids[1] // 2, 5)],
    "set block": lambda start, ids: LONG.at["c", nym.dblock(nym.named(ids[1] // 2, ()), 5)].set(-1),
    "slice": lambda start, ids: nym.slice(LONG, "c", start=start, length=2),
    "updated slice": lambda start, ids: nym.updated_slice(LONG, {"c": start}, nym.full({"c": 2}, -1)),
    "along axis": lambda start, ids: nym.take_along_axis(LONG, nym.named(ids, "c"), "c"),
    "roll": lambda start, ids: nym.roll(LONG, start, "c"),
    "repeat": lambda start, ids: nym.repeat(
        nym.arange(Axis("i", 3)), nym.named(ids * 0 + 90, "i"), "i", total_repeat_length=270
    ),
    "bincount": lambda start, ids: nym.bincount(nym.named(abs(ids), "i"), Axis("v", 300)),
    "sorter": lambda start, ids: nym.searchsorted(
        LONG["c", 127::-1], 64, sorter=nym.named(jnp.arange(128, dtype=ids.dtype)[::-1], "c")
    ),
    "ref": lambda start, ids: write_ref(start),
    "one hot": lambda start, ids: nym.nn.one_hot(nym.named(ids, "i"), Axis("v", 300)),
    "embedding": lambda start, ids: nym.nn.Embedding(nym.arange({"v": 300, "d": 1}), Axis("v", 300), (Axis("d", 1),))(
        nym.named(ids, "i")
    ),
    "group sizes": lambda start, ids: nym.nn.ragged_dot(
        nym.ones({"token": 300, "d": 1}), nym.ones({"i": 3, "d": 1}), nym.named(ids * 0 + 90, "i"), axis="d"
    ),
    "mask": lambda start, ids: nym.nn.AttentionMask.causal(start, start + 20).materialize(*nym.make_axes(q=9, k=9)),
    "alibi": lambda start, ids: nym.nn.alibi_bias(Axis("h", 1), Axis("k", 300), k_start=start),
    "haliax block": lambda start, ids: hax.arange({"c": 300})["c", hax.dblock(ids[1] // 2, 5)],
    "haliax view": lambda start, ids: view_ref(hax.named(ids, "i")),
    "haliax window": lambda start, ids: view_ref(hax.ds(start, 2)),
}


@pytest.mark.parametrize(("dtype", "start", "ids"), [("int8", -3, [-1, 110, 5]), ("uint8", 200, [0, 110, 44])])
def test_indices_of_8_bits_are_those_of_32_bits(dtype, start, ids):
    def run(*indices):
        return {name: operation(*indices).array for name, operation in NARROW.items()}

    expected = jax.jit(run)(jnp.asarray(start), jnp.asarray(ids))
    narrow = jax.jit(run)(jnp.asarray(start, dtype), jnp.asarray(ids, dtype))
    for name, array in expected.items():
        assert np.array_equal(narrow[name], array), name
    for name in ("integer", "named", "window", "block"):  # NumPy's are known to the library
        assert np.array_equal(NARROW[name](np.array(start, dtype)[()], np.array(ids, dtype)).array, expected[name]), (
            name
        )


def test_repeated_indices_add_up():
    counts = nym.zeros({"v": 4}).at["v", nym.named([1, 1, 3, 1], "i")].add(1.0)
    assert np.array_equal(counts.array, [0, 3, 0, 1])
    counts = nym.zeros({"v": 4}).at["v", [1, 1]].add(nym.named([1.0, 2.0], "v"))
    assert np.array_equal(counts.array, [0, 3, 0, 0])


@pytest.mark.parametrize("index", [4, -5, [0, 4], np.array([-5]), np.array(4)], ids=repr)
def test_an_index_out_of_range_is_an_error_where_it_is_known(index):
    shown = "an index" if np.ndim(index) else f"index {index}"
    text = escape(f"{shown} of axis 'b' of (a: 3, b: 4, c: 5) is out of range for size 4; if")
    for pick in (
        lambda x: x["b", index],
        lambda x: x.at["b", index].get(),
        lambda x: x.at["b", index].set(0.0),
        lambda x: x.take("b", index),
    ):
        with pytest.raises(IndexError, match=text):
            pick(x)
        with pytest.raises(IndexError, match=text):
            jax.jit(pick)(x)
    remedy = escape("as in `axonym.index(x, {'b': index}, mode='clip')` or `x.at['b', index].set(value, mode='drop')`")
    with pytest.raises(IndexError, match=remedy):
        x["b", index]
    assert x.take("b", index, mode="clip").array.size  # unless it is said what to do
    assert np.isnan(x.at["b", index].get(mode="fill").array).any()
    assert x.at["b", jnp.asarray(index)].get().array.size  # or only a program knows


def test_modes():
    far = nym.named([1, 9], "i")
    assert np.array_equal(nym.index(x, {"b": far}, mode="clip").array, base[:, [1, 3]])
    assert np.isnan(nym.index(x, {"b": far}, mode="fill")["i", 1].array).all()
    assert np.array_equal(x.at["b", far].set(0.0, mode="drop").array, x.at["b", 1].set(0.0).array)
    assert np.array_equal(x.at["b", far].set(0.0, mode="clip").array, x.at["b", [1, 3]].set(0.0).array)


@pytest.mark.parametrize(
    ("items", "kind", "text"),
    [
        (("z", 0), ValueError, "no axis 'z' in (a: 3, b: 4, c: 5)"),
        ((Axis("b", 5), 0), ValueError, "axis 'b' has size 4 here, 5 was asked for"),
        (("a", 0, "a", 1), ValueError, "axis 'a' is given more than once in (a, a)"),
        (
            "a",
            ValueError,
            "an index names its axes, as in x['a', 3], x['a', 3, 'c', 0:2], or x[{'a': 3}], not x['a']",
        ),
        (0, ValueError, "not x[0]"),
        (("a", 0, "b"), ValueError, "not x['a', 0, 'b']"),
        (slice(None), ValueError, "not x[:]"),
        ((slice(None), 0), ValueError, "not x[:, 0]"),
        ((..., slice(1, 9, 2)), ValueError, "not x[..., 1:9:2]"),
        (
            (0, 1),
            ValueError,
            "an index names its axes, as in x['a', 3], x['a', 3, 'c', 0:2], or x[{'a': 3}], not x[0, 1]",
        ),
        (("a", 0, 1, 2), ValueError, "not x['a', 0, 1, 2]"),
        (jnp.arange(7), ValueError, "not x[an array of shape (7,)]"),
        (
            x > 0,
            ValueError,
            "not x[an array of shape (3, 4, 5)]; `axonym.where(mask, x, 0)` keeps the axes, and x['a', mask] picks",
        ),
        ((jnp.arange(7), 0, "a"), ValueError, "not x[an array of shape (7,), 0, 'a']"),
        ({0: 1}, TypeError, "An axis is given by an `Axis` or by its name, not by 0."),
        (
            ("a", True),
            TypeError,
            "axis 'a' of (a: 3, b: 4, c: 5) is indexed by integers or by a mask with this axis, not by a single "
            "boolean; use `axonym.where` to choose by a condition",
        ),
        (("a", np.bool_(False)), TypeError, "not by a single boolean"),
        (("a", jnp.array(True)), TypeError, "not by a single boolean"),
        (("a", nym.named(True, ())), TypeError, "not by a single boolean"),
        (("aa", 0), ValueError, "no axis 'aa' in (a: 3, b: 4, c: 5); did you mean 'a'?"),
        (("a", 1.0), TypeError, "is indexed by integers, not by float"),
        (("a", None), TypeError, "is indexed by integers, not by None"),
        (("a", ...), TypeError, "is indexed by integers, not by Ellipsis"),
        (("a", "b"), TypeError, "is indexed by integers, not by 'b'"),
        (("a", [0.5]), TypeError, "is indexed by integers, not by float"),
        (
            ("a", [[0, 1]]),
            ValueError,
            "an index of shape (1, 2) for axis 'a' of (a: 3, b: 4, c: 5) has no axis names; give it",
        ),
        (("a", jnp.zeros((1, 2), int)), ValueError, "an index of shape (1, 2) for axis 'a'"),
        (("a", slice(0, 1, 0)), ValueError, "slice step cannot be zero"),
        (
            ("a", slice(0.5, 1)),
            TypeError,
            "a slice of axis 'a' of (a: 3, b: 4, c: 5) needs integers that are known before the program runs; "
            "`axonym.ds(start, length)` is a slice from a traced start",
        ),
        (("a", dslice(0, 4)), ValueError, "a `dslice` of 4 elements does not fit into axis 'a' of (a: 3, b: 4, c: 5)"),
        (("a", dslice(0, -1)), ValueError, "a `dslice` of -1 elements does not fit into axis 'a'"),
        (("a", dslice(0.5, 2)), TypeError, "is indexed by integers, not by float"),
        (
            ("a", dslice([0, 1], 2)),
            ValueError,
            "a `dslice` of axis 'a' of (a: 3, b: 4, c: 5) starts at an array of shape (2,)",
        ),
        (("a", dslice(nym.arange(Axis("i", 2)), 2)), ValueError, "starts at an array of shape (2,), not at an integer"),
        (("a", dslice(0, 1.5)), TypeError, "the length of a `dslice` must be an integer, not 1.5"),  # pyright: ignore[reportArgumentType]
        (("a", nym.named([0, 1], "b")), ValueError, "axis 'b' has size 4 and size 2 in (b: 4, c: 5) and (b: 2)"),
        (
            ("a", nym.named([0, 1, 1, 0], "b"), "b", 0),
            ValueError,
            "axis 'b' of (a: 3, b: 4, c: 5) is indexed by itself and by an index array that has it",
        ),
        (("a", nym.named([0, 1], "b"), "b", slice(2)), ValueError, "is indexed by itself and by an index array"),
        (
            ("a", nym.named([0, 1], "i"), "b", nym.named([0, 1, 2], "i")),
            ValueError,
            "axis 'i' has size 2 and size 3 in",
        ),
    ],
)
def test_wrong_indices(items, kind, text):
    for pick in (lambda: x[items], lambda: x.at[items]):
        with pytest.raises(kind, match=escape(text)):
            pick()


def test_what_is_known_to_jit_is_a_plain_slice(equations):
    assert equations(lambda x: x["b", 2], x) == [("slice", (3, 1, 5)), ("squeeze", (3, 5))]
    assert equations(lambda x: x["b", 1:3], x) == [("slice", (3, 2, 5))]
    window = equations(lambda x: x["b", dslice(1, 2)], x)
    assert window[-1] == ("dynamic_slice", (3, 2, 5)) and not any("gather" in name for name, _ in window)
    update = equations(lambda x, i, v: x.at["b", dslice(i, 2)].set(v), x, 1, nym.ones({"c": 5}))
    assert update[-1] == ("dynamic_update_slice", (3, 4, 5)) and not any("scatter" in name for name, _ in update)


def test_gradients():
    weights = np.random.default_rng(0).normal(size=(3, 2, 5)).astype("f")
    index = jnp.array([2, 0])

    def loss(x):
        return jnp.sum(x["b", index].array * weights) + jnp.sum(x["b", dslice(1, 2)].array * weights)

    def plain(x):
        return jnp.sum(x[:, index] * weights) + jnp.sum(x[:, 1:3] * weights)

    gradient = jax.grad(loss)(x)
    assert gradient.names == NAMES and np.allclose(gradient.array, jax.grad(plain)(x.array))
    gradient = jax.grad(lambda v: jnp.sum(x.at["b", dslice(1, 2)].set(v).array * base))(nym.ones({"b": 2, "c": 5}))
    assert np.allclose(gradient.array, base[:, 1:3].sum(0))
