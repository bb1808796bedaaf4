"""Picking and replacing elements, against what NumPy does on a positional reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
import axonym.haliax as hax
from axonym import Axis, dslice
from tests.named.comparing import UPDATES, assert_close, assert_same
from tests.refusals import refusal


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
    "mask": lambda random, name, size: random.permutation(np.arange(size) < 2),
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
    {"a": "mask", "b": "ij", "c": "back"},
    {"a": "i", "b": "i"},
    {"a": "i", "c": "i"},
    {"a": "i", "c": "ij"},
    {"a": "i", "b": "reversed", "c": "jax int"},
    {"a": "int", "b": "front", "c": "list"},
    {"a": "list", "b": "numpy"},
    {"a": "dslice", "b": "ij"},
    {"b": "ij", "c": "ji"},
    {"a": "ji", "b": "steps", "c": "i"},
    {"b": "dslice", "c": "jax dslice"},
    {"a": "jax dslice", "b": "steps back", "c": "own"},
    {"a": "b"},
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
    for _ in range(2):
        index = drawn(kinds, random)
        positions, names = reference(index)
        assert_same(x[index], names, base.ravel()[positions])


@pytest.mark.parametrize("kinds", INDICES[1::2], ids=str)
def test_replacing_equals_numpy(kinds, getkey):
    random = np.random.default_rng(getkey.seed)
    method = ("set", "add", "set", "multiply", "set", "max")[INDICES.index(kinds) // 2 % 6]
    for _ in range(2):
        index = drawn(kinds, random)
        positions, names = reference(index)
        kept = [name for name in names if name not in ("b", "j")]  # a value need not have every axis
        if method == "set" and len(np.unique(positions)) < positions.size:
            kept = []  # of several values for one element any may win
        sizes = {name: positions.shape[names.index(name)] for name in kept}
        value = nym.named(random.normal(size=list(sizes.values())).astype("f") * 30, tuple(kept))
        new = np.broadcast_to(np.asarray(value).reshape([sizes.get(name, 1) for name in names]), positions.shape)
        expected = base.ravel().copy()
        if method == "set":
            expected[positions] = new
        else:
            UPDATES[method].at(expected, positions, new)
        result = getattr(x.at[index], method)(value)
        assert result.dtype == np.float32
        assert_close(result, NAMES, expected.reshape(base.shape))


def test_ways_to_write_an_index():
    tokens = nym.named([[1, 0, 3]], ("batch", "pos"))

    @jax.jit
    def pick(x):
        same = (
            x["a", 1, "c", 2:4],
            x["c", 2:4, "a", 1],
            x[{"a": 1, "c": slice(2, 4)}],
            x[Axis("a", 3), 1, Axis("c", 5), 2:4],
            x["a", 1]["c", 2:4],
            nym.index(x, {"a": 1, "c": slice(2, 4)}),
            x.at["a", 1, "c", 2:4].get(),
            x.at[{"a": 1, "c": slice(2, 4)}].get(),
        )
        return same, [nym.take(x, "b", tokens), x.take(Axis("b", 4), tokens)]

    same, taken = pick(x)
    for picked in same:
        assert_same(picked, "bc", base[1, :, 2:4])
    for picked in taken:
        assert_same(picked, ("a", "batch", "pos", "c"), base[:, [[1, 0, 3]]])
    assert x[{}] is x and x[()] is x and x.at[{}].get() is x
    assert x["b", []].shape == (3, 0, 5) and x["b", np.array([], int)].shape == (3, 0, 5)
    assert_same(x.at[{}].add(1.0), "abc", base + 1)


LONG = nym.arange(Axis("c", 300))  # 8 bits cannot hold its size


def write_ref(start):
    ref = nym.new_ref(LONG)
    ref["c", start] = -1
    return ref[...]


def view_ref(index):
    return hax.new_ref(hax.arange({"c": 300})).slice({"c": slice(10, 290)}).slice({"c": index}).value()


def pick_narrow(start, ids):
    picked = {
        "integer": LONG["c", start],
        "named": LONG["c", nym.named(ids, "i")],
        "window": LONG["c", nym.ds(start, 2)],
        "block": LONG["c", nym.dblock(ids[1] // 2, 5)],
    }
    return {name: result.array for name, result in picked.items()}


@jax.jit
def compute_narrow(start, ids):
    i, starts, order = nym.named(ids, "i"), nym.arange({"i": 3, "c": 300}), jnp.arange(128, dtype=ids.dtype)[::-1]
    results = {
        "shared": starts["c", i],
        "fill": nym.take(LONG, "c", i, mode="fill", fill=-9),
        "add": LONG.at["c", i].add(7),
        "promised": nym.index(LONG, {"c": nym.ds(start, 2)}, mode="promise_in_bounds"),
        "set block": LONG.at["c", nym.dblock(nym.named(ids[1] // 2, ()), 5)].set(-1),
        "slice": nym.slice(LONG, "c", start=start, length=2),
        "updated slice": nym.updated_slice(LONG, {"c": start}, nym.full({"c": 2}, -1)),
        "along axis": nym.take_along_axis(LONG, nym.named(ids, "c"), "c"),
        "roll": nym.roll(LONG, start, "c"),
        "repeat": nym.repeat(nym.arange(Axis("i", 3)), i * 0 + 90, "i", total_repeat_length=270),
        "bincount": nym.bincount(abs(i), Axis("v", 300)),
        "sorter": nym.searchsorted(LONG["c", 127::-1], 64, sorter=nym.named(order, "c")),
        "ref": write_ref(start),
        "one hot": nym.nn.one_hot(i, Axis("v", 300)),
        "embedding": nym.nn.Embedding(nym.arange({"v": 300, "d": 1}), Axis("v", 300), (Axis("d", 1),))(i),
        "group sizes": nym.nn.ragged_dot(
            nym.ones({"t": 300, "d": 1}), nym.ones({"i": 3, "d": 1}), i * 0 + 90, axis="d"
        ),
        "mask": nym.nn.AttentionMask.causal(start, start + 20).materialize(*nym.make_axes(q=9, k=9)),
        "alibi": nym.nn.alibi_bias(Axis("h", 1), Axis("k", 300), k_start=start),
        "haliax block": hax.arange({"c": 300})["c", hax.dblock(ids[1] // 2, 5)],
        "haliax view": view_ref(hax.named(ids, "i")),
        "haliax window": view_ref(hax.ds(start, 2)),
    }
    return pick_narrow(start, ids) | {name: result.array for name, result in results.items()}


@pytest.mark.parametrize(("dtype", "start", "ids"), [("int8", -3, [-1, 110, 5]), ("uint8", 200, [0, 110, 44])])
def test_indices_of_8_bits_are_those_of_32_bits(dtype, start, ids):
    expected = compute_narrow(np.int32(start), np.int32(ids))
    narrow = np.array(start, dtype)[()], np.array(ids, dtype)
    for results in (compute_narrow(*narrow), pick_narrow(*narrow)):  # NumPy's are known to the library
        for name, array in results.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("index", [4, -5, [0, 4], np.array([-5]), np.array(4)], ids=repr)
def test_an_index_out_of_range_is_an_error_where_it_is_known(index):
    shown = "an index" if np.ndim(index) else f"index {index}"
    for pick in (
        lambda x: x["b", index],
        lambda x: x.at["b", index].get(),
        lambda x: x.at["b", index].set(0.0),
        lambda x: x.take("b", index),
    ):
        for run in (pick, jax.jit(pick)):
            with refusal(f"{shown} of axis 'b' of (a: 3, b: 4, c: 5) is out of range for size 4; if", IndexError):
                run(x)
    remedy = "as in `axonym.index(x, {'b': index}, mode='clip')` or `x.at['b', index].set(value, mode='drop')`"
    with refusal(remedy, IndexError):
        x["b", index]


def test_modes():
    far = nym.named([1, 9], "i")

    @jax.jit
    def compute(x):
        read = x.take("b", far, mode="clip"), nym.index(x, {"b": far}, mode="fill")
        return read, x.at["b", far].set(0.0, mode="drop"), x.at["b", far].set(0.0, mode="clip")

    (clipped, filled), dropped, written = compute(x)
    assert_same(clipped, "aic", base[:, [1, 3]])
    assert np.isnan(filled.array[:, 1]).all() and not np.isnan(filled.array[:, 0]).any()
    for result, places in ((dropped, [1]), (written, [1, 3])):
        assert_same(result, "abc", np.where(np.isin(np.arange(4), places)[:, None], 0, base))
    assert np.isnan(x.at["b", [0, 4]].get(mode="fill").array).any()  # no error if it is said what to do
    assert x.at["b", jnp.array([0, 4])].get().array.size  # or only a program knows


WRONG_VALUES = [
    ((Axis("b", 5), 0), "axis 'b' has size 4 here, 5 was asked for"),
    (("a", 0, "a", 1), "axis 'a' is given more than once in (a, a)"),
    (("aa", 0), "no axis 'aa' in (a: 3, b: 4, c: 5); did you mean 'a'?"),
    ("a", "an index names its axes, as in x['a', 3], x['a', 3, 'c', 0:2], or x[{'a': 3}], not x['a']"),
    ((..., slice(1, 9, 2)), "not x[..., 1:9:2]"),
    (x > 0, "not x[an array of shape (3, 4, 5)]; `axonym.where(mask, x, 0)` keeps the axes, and x['a', mask] picks"),
    (("a", [[0, 1]]), "an index of shape (1, 2) for axis 'a' of (a: 3, b: 4, c: 5) has no axis names; give it"),
    (("a", slice(0, 1, 0)), "slice step cannot be zero"),
    (("a", dslice(0, 4)), "a `dslice` of 4 elements does not fit into axis 'a' of (a: 3, b: 4, c: 5)"),
    (("a", dslice(nym.arange(Axis("i", 2)), 2)), "starts at an array of shape (2,), not at an integer"),
    (("a", nym.named([0, 1], "b")), "axis 'b' has size 4 and size 2 in (b: 4, c: 5) and (b: 2)"),
    (("a", nym.named([0, 1, 1, 0], "b"), "b", 0), "(a: 3, b: 4, c: 5) is indexed by itself and by an index array that"),
    (("a", nym.named([0, 1], "i"), "b", nym.named([0, 1, 2], "i")), "axis 'i' has size 2 and size 3 in"),
]
NO_BOOLEAN = "indexed by integers or by a mask with this axis, not by a single boolean; use `axonym.where` to choose by"
WRONG_TYPES = [
    ({0: 1}, "An axis is given by an `Axis` or by its name, not by 0."),
    *((("a", boolean), NO_BOOLEAN) for boolean in (True, jnp.array(True), nym.named(True, ()))),
    (("a", 1.0), "is indexed by integers, not by float"),
    (("a", ...), "is indexed by integers, not by Ellipsis"),
    (
        ("a", slice(0.5, 1)),
        "a slice of axis 'a' of (a: 3, b: 4, c: 5) needs integers that are known before the program",
    ),
    (("a", dslice(0.5, 2)), "is indexed by integers, not by float"),
]


def test_wrong_indices():
    for error, cases in ((ValueError, WRONG_VALUES), (TypeError, WRONG_TYPES)):
        for items, text in cases:
            for place in (x, x.at):
                with refusal(text, error):
                    place[items]


def test_what_is_known_to_jit_is_a_plain_slice(equations):
    assert equations(lambda x: x["b", 2], x) == [("slice", (3, 1, 5)), ("squeeze", (3, 5))]
    assert equations(lambda x: x["b", 1:3], x) == [("slice", (3, 2, 5))]
    window = equations(lambda x: x["b", dslice(1, 2)], x)
    assert window[-1] == ("dynamic_slice", (3, 2, 5)) and not any("gather" in name for name, _ in window)
    update = equations(lambda x, i, v: x.at["b", dslice(i, 2)].set(v), x, 1, nym.ones({"c": 5}))
    assert update[-1] == ("dynamic_update_slice", (3, 4, 5)) and not any("scatter" in name for name, _ in update)
