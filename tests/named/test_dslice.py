"""Slices with a traced start that run over an end, read and updated by mode, against arrays of their positions."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis, ds, dslice
from tests.named.updates import UPDATES


base = np.arange(1.0, 61.0, dtype=np.float32).reshape(3, 4, 5)
x = nym.named(base, ("a", "b", "c"))
STARTS = (0, 1, 2, 3, 4, 9, -1, -2, -4, -5, -9)


def find_places(start, length, size):
    """The positions of a slice, counted from the front; some of them may be out of range."""
    return [(start + size if start < 0 else start) + i for i in range(length)]


@pytest.mark.parametrize("start", [4, 3, -1, -5, np.int64(3), np.asarray(-9)])
def test_a_known_start_over_the_end_is_an_error(start):
    text = escape(f"a `dslice` of 2 elements from {start} runs over the end of axis 'b' of (a: 3, b: 4, c: 5)")
    ref = nym.new_ref(x)

    def replace():
        ref["b", ds(start, 2)] = 0.0

    for run in (
        lambda: x["b", ds(start, 2)],
        lambda: nym.take(x, "b", ds(start, 2)),
        lambda: x.at["b", ds(start, 2)].set(0.0),
        lambda: x.at["b", ds(start, 2)].apply(jnp.negative),
        lambda: jax.jit(lambda x: x["b", ds(start, 2)])(x),
        lambda: ref["b", ds(start, 2)],
        lambda: nym.swap(ref, ("b", ds(start, 2)), 0.0),
        replace,
    ):
        with pytest.raises(IndexError, match=text):
            run()


def test_slices_that_end_with_the_axis_or_are_empty():
    for start, length in ((2, 2), (-2, 2), (-4, 4), (0, 4), (4, 0), (0, 0)):
        places = find_places(start, length, 4)
        assert np.array_equal(x["b", ds(start, length)].array, base[:, places])
        assert np.array_equal(x.at["b", ds(start, length)].set(0.0)["b", places].array, base[:, places] * 0)
        assert np.array_equal(jax.jit(lambda i, n=length: x["b", ds(i, n)])(start).array, base[:, places])


@pytest.mark.parametrize("mode", [None, "clip", "fill", jax.lax.GatherScatterMode.FILL_OR_DROP])
def test_a_traced_slice_is_read_by_mode(mode):
    read = jax.jit(lambda x, start: nym.index(x, {"b": ds(start, 2)}, mode=mode))
    for start in STARTS:
        places = np.array(find_places(start, 2, 4))
        expected = base[:, np.clip(places, 0, 3)]
        if mode not in (None, "clip"):
            expected[:, (places < 0) | (places > 3)] = np.nan
        outside = nym.index(x, {"b": ds(jnp.asarray(start), 2)}, mode=mode)
        known = [] if mode is None else [nym.index(x, {"b": ds(start, 2)}, mode=mode)]
        for result in (read(x, start), outside, *known):
            assert result.names == x.names and np.array_equal(result.array, expected, equal_nan=True), start
    filled = nym.index(x, {"b": ds(jnp.int8(3), 2)}, mode="fill", fill=-1)
    assert np.array_equal(filled.array[:, 1], np.full((3, 5), -1))


@pytest.mark.parametrize("method", UPDATES)
@pytest.mark.parametrize("mode", [None, "drop", "clip"])
def test_a_traced_slice_is_updated_by_mode(method, mode):
    random = np.random.default_rng(0)
    for names in ((), ("c",), ("b", "c"), ("c", "a", "b")):
        sizes = {"a": 3, "b": 2, "c": 5}
        value = nym.named(random.integers(1, 4, [sizes[name] for name in names]).astype("f"), names)
        full = np.asarray(value.broadcast_axis([Axis(name, sizes[name]) for name in sizes if name not in names]))
        order = [name for name in sizes if name not in names] + list(names)
        full = full.transpose([order.index(name) for name in "abc"])
        update = jax.jit(lambda x, start, value: getattr(x.at["b", ds(start, 2)], method)(value, mode=mode))
        for start in STARTS:
            expected, clipped = base.copy(), find_places(start, 2, 4)
            if mode == "clip":
                clipped = [min(max(place, 0), 3) for place in clipped]
                if method == "set" and len(set(clipped)) < 2:
                    continue  # either value may win
            for place, new in zip(clipped, full.swapaxes(0, 1), strict=True):
                if 0 <= place < 4:
                    expected[:, place] = UPDATES[method](expected[:, place], new)
            assert np.allclose(update(x, start, value).array, expected), (names, start)


def test_slices_of_several_axes_and_other_indices():
    index = nym.named([4, 0, 9], "a")

    def run(x, i, j, value):
        at = {"b": ds(i, 2), "c": ds(j, 3)}
        return (
            nym.index(x, at, mode="fill", fill=0),
            x.at[at].set(value),
            x.at[at].multiply(value, mode="drop"),
            x.at["b", ds(i, 2), "c", index % 5].add(1.0),
            x.at["b", ds(i, 2), "c", ds(1, 2)].set(0.0),
            x.at["b", ds(i, 2)].apply(jnp.square),
        )

    value = nym.named(np.arange(2.0, 8.0, dtype=np.float32).reshape(3, 2), ("c", "b"))
    for i, j in ((0, 0), (3, 4), (-1, -6), (1, 3), (5, 1)):
        rows, columns = find_places(i, 2, 4), find_places(j, 3, 5)
        read = np.zeros((3, 2, 3), np.float32)
        written, scaled, added, cleared, squared = (base.copy() for _ in range(5))
        for k, row in enumerate(rows):
            if not 0 <= row < 4:
                continue
            cleared[:, row, 1:3], squared[:, row] = 0, base[:, row] ** 2
            added[range(3), row, np.asarray(index) % 5] += 1
            for m, column in enumerate(columns):
                if 0 <= column < 5:
                    read[:, k, m] = base[:, row, column]
                    written[:, row, column] = value.array[m, k]
                    scaled[:, row, column] *= value.array[m, k]
        found = jax.jit(run)(x, i, j, value)
        for one, expected in zip(found, (read, written, scaled, added, cleared, squared), strict=True):
            assert np.allclose(one.array, expected), (i, j)


@pytest.mark.parametrize("method", UPDATES)
def test_gradients_equal_those_of_positions(method):
    weights = np.linspace(0.1, 1.0, 60, dtype=np.float32).reshape(3, 4, 5)
    value = nym.named(np.linspace(1.5, 2.5, 10, dtype=np.float32).reshape(2, 5), ("b", "c"))

    def ours(x, value, start):
        picked = x["b", ds(start, 2)] * value
        return jnp.sum(getattr(x.at["b", ds(start, 2)], method)(value).array * weights) + jnp.sum(picked.array)

    def plain(x, value, start):
        places = jnp.where(start < 0, start + 4, start) + jnp.arange(2)
        valid = ((places >= 0) & (places < 4))[:, None]
        total = jnp.sum(x[:, jnp.clip(places, 0, 3)] * value)
        for k in range(2):
            old = x[:, jnp.clip(places[k], 0, 3)]
            new = {"set": lambda old, new: new, "min": jnp.minimum, "max": jnp.maximum}.get(
                method, getattr(jnp, method, None)
            )(old, jnp.broadcast_to(value[k], (3, 5)))
            row = jnp.where(valid[k], new, old)
            x = jnp.where((jnp.arange(4) == places[k])[:, None], row[:, None], x)
        return total + jnp.sum(x * weights)

    compute_expected = jax.jit(jax.grad(plain, (0, 1)))
    for start in STARTS:
        got = jax.grad(ours, (0, 1))(x / 10, value, jnp.asarray(start))
        with jax.numpy_rank_promotion("allow"):
            want = compute_expected(x.array / 10, value.array, start)
        for one, other in zip(got, want, strict=True):
            assert np.allclose(one.array, other, rtol=1e-4), (method, start)


def test_dropped_elements_make_no_gradient_nan():
    zeros = nym.named([1.0, 0.0], "b")  # the second one runs over the end

    def loss(x, value, start):
        divided = x.at["b", ds(start, 2)].divide(value, mode="drop")
        return jnp.sum(divided.at["b", ds(start, 2)].power(value).array)

    assert np.isfinite(jax.grad(loss)(x - 70, zeros, jnp.asarray(3)).array).all()


def test_sharded_slices_over_the_end(mapped, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(batch=4, embed=4), draw(batch=8, pos=2)

    def run(y, rows, columns, i, j):
        def loss(y, rows, columns):
            read = nym.index(y, {"batch": ds(i, 4)}, mode="fill", fill=0)
            written = y.at["batch", ds(i, 4)].set(rows, mode="drop").at["pos", ds(j, 2)].multiply(columns)
            clipped = y.at["batch", ds(i, 4)].add(rows, mode="clip")
            return (read**2).sum().array + (written**2).sum().array + clipped.sum().array, (read, written, clipped)

        return jax.grad(loss, (0, 1, 2), has_aux=True)(y, rows, columns)

    expected = jax.jit(run)(*operands, 6, -4)
    results = jax.jit(run)(*nym.shard(operands), 6, -4)
    for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert np.allclose(one, other, rtol=1e-5)
    if mapped.axis_types[0] == AxisType.Explicit:
        assert results[1][1].sharding.spec == jax.P("data", None, "model")


def test_a_ref_is_read_and_updated_by_a_traced_slice(mesh):
    @jax.jit
    def step(ref, start):
        picked = ref["b", ds(start, 2)]
        ref["b", ds(start, 2)] = -1.0
        return picked

    ref = nym.new_ref(x)
    assert np.array_equal(step(ref, 3).array, base[:, [3, 3]])
    assert np.array_equal(ref[...].array[:, 3], np.full((3, 5), -1)) and np.array_equal(
        ref[...].array[:, 2], base[:, 2]
    )


def test_what_is_promised_to_fit_is_one_slice(equations):
    def read(x, i):
        return nym.index(x, {"b": dslice(i, 2)}, mode="promise_in_bounds")

    def write(x, i, v):
        return x.at["b", dslice(i, 2)].set(v, mode="promise_in_bounds")

    for run in (lambda x: x["b", dslice(1, 2)], lambda x: read(x, 1)):
        assert not any("gather" in name for name, _ in equations(run, x))
    assert equations(read, x, 1)[-1] == ("dynamic_slice", (3, 2, 5))
    names = [name for name, _ in equations(write, x, 1, nym.ones({"b": 2, "c": 5}))]
    assert names[-1] == "dynamic_update_slice" and not {"gather", "scatter"} & set(names)
