"""A thousand random indices, and two hundred random updates, against a loop over the elements one by one.

What is static about an index is drawn rarely and its values often, so that little is compiled.
"""

import itertools
from typing import Any

import numpy as np

import axonym as nym


SIZES = {"a": 3, "b": 4, "c": 2}
NEW = {"i": 2, "j": 3}
base = np.arange(24, dtype=np.float32).reshape(3, 4, 2) + 1
x = nym.named(base, tuple(SIZES))


def signature(random: np.random.Generator, kinds: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    """Draws which axes are indexed, how, and what else is static: bounds, lengths or names."""
    names = [name for name in SIZES if random.random() < 0.7] or ["b"]
    chosen = {name: str(random.choice(kinds)) for name in names}
    free = [name for name in SIZES if chosen.get(name, "array") == "array"]
    drawn: dict[str, tuple[str, Any]] = {}
    for name, kind in chosen.items():
        detail: Any = None
        if kind == "slice":
            low, high = (None if random.random() < 0.2 else int(random.integers(-6, 7)) for _ in range(2))
            detail = slice(low, high, random.choice([None, 1, 2, -1, -2]))
        elif kind == "int":
            detail = random.random() < 0.3  # whether it is in a named array
        elif kind in ("list", "plain", "mask"):
            detail = int(random.integers(1, SIZES[name] + 1))
        elif kind == "array":
            count = int(random.integers(1, 3))
            detail = tuple(map(str, random.permutation([*NEW, *free])[:count]))
        drawn[name] = kind, detail
    return drawn


def drawn(random: np.random.Generator, signature: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """Draws the values of an index."""
    index: dict[str, Any] = {}
    for name, (kind, detail) in signature.items():
        size = SIZES[name]
        if kind == "int":
            one = int(random.integers(-size, size))
            index[name] = nym.named(one, ()) if detail else one
        elif kind == "slice":
            index[name] = detail
        elif kind == "list":
            index[name] = random.integers(-size, size, detail).tolist()
        elif kind == "plain":
            index[name] = random.integers(-size, size, detail)
        elif kind == "mask":
            mask = random.permutation(np.arange(size) < detail)
            index[name] = mask if detail % 2 else nym.named(mask, name)
        else:
            shape = [(SIZES | NEW)[one] for one in detail]
            index[name] = nym.named(random.integers(-size, size, shape), detail)
    return index


def chosen(index: dict[str, Any]) -> tuple[dict[str, int], dict[tuple[int, ...], tuple[int, ...]]]:
    """Returns the axes of what an index picks, and for each place in that the place in `base` it comes from."""
    axes: dict[str, int] = {}
    arrays: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, size in SIZES.items():
        one = index.get(name, slice(None))
        if isinstance(one, nym.NamedArray) and one.dtype != bool:
            arrays[name] = one.names, np.asarray(one)
        else:
            array = np.arange(size)[np.asarray(one) if isinstance(one, nym.NamedArray) else one]
            arrays[name] = (name,) * array.ndim, array
        axes |= dict(zip(arrays[name][0], arrays[name][1].shape, strict=True))
    places = {}
    for place in itertools.product(*map(range, axes.values())):
        at = dict(zip(axes, place, strict=True))
        source = [(array[tuple(at[one] for one in own)], SIZES[name]) for name, (own, array) in arrays.items()]
        places[place] = tuple(int(i) % size for i, size in source)
    return axes, places


def test_a_thousand_random_indices_pick_what_a_loop_picks(getkey):
    random = np.random.default_rng(getkey.seed)
    for _ in range(40):
        static = signature(random, ("int", "slice", "list", "plain", "array", "array", "mask"))
        for _ in range(25):
            index = drawn(random, static)
            axes, places = chosen(index)
            expected = np.zeros(tuple(axes.values()), np.float32)
            for place, source in places.items():
                expected[place] = base[source]
            picked = x[index]
            assert picked.names == tuple(axes) and np.array_equal(picked.array, expected), index


def test_two_hundred_random_updates_change_what_a_loop_changes(getkey):
    random = np.random.default_rng(getkey.seed)
    for method in ("set", "add") * 6:
        static = signature(random, ("int", "slice", "list", "array", "array", "mask"))
        for _ in range(17):
            index = drawn(random, static)
            masks = {name: np.asarray(one) for name, one in index.items() if static[name][0] == "mask"}
            axes, places = chosen({name: one for name, one in index.items() if name not in masks})
            repeated = method == "set" and len(set(places.values())) < len(places)
            own = () if repeated else tuple(axes)[1:]  # of several values for one element any may win
            value = random.integers(1, 9, [axes[name] for name in own]).astype(np.float32)
            expected = base.copy()
            for place, source in places.items():
                at = dict(zip(axes, place, strict=True))
                if all(mask[source[list(SIZES).index(name)]] for name, mask in masks.items()):
                    new = value[tuple(at[name] for name in own)]
                    expected[source] = new if method == "set" else expected[source] + new
            result = getattr(x.at[index], method)(nym.named(value, own))
            assert result.names == x.names and np.array_equal(result.array, expected), (method, index)
