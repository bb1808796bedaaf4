"""Slices with a traced start that run over an end, read and updated by mode, against arrays of their positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis, ds, dslice
from tests.named.comparing import UPDATES, assert_close, assert_same
from tests.refusals import refusal


base = np.arange(1.0, 61.0, dtype=np.float32).reshape(3, 4, 5)
x = nym.named(base, ("a", "b", "c"))
STARTS = (0, 1, 2, 3, 4, 9, -1, -2, -4, -5, -9)


def find_places(start, length, size):
    """The positions of a slice, counted from the front; some of them may be out of range."""
    return [(start + size if start < 0 else start) + i for i in range(length)]


@pytest.mark.parametrize("start", [3, -5, np.int64(3), np.asarray(-9)])
def test_a_known_start_over_the_end_is_an_error(start):
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
        with refusal(f"a `dslice` of 2 elements from {start} runs over the end of axis 'b' of (a: 3, b:", IndexError):
            run()


def test_a_traced_slice_is_read_by_mode():
    modes = (None, "clip", "fill", jax.lax.GatherScatterMode.FILL_OR_DROP)

    @jax.jit
    def read(x, start):
        return [nym.index(x, {"b": ds(start, 2)}, mode=mode) for mode in modes]

    for start in STARTS:
        places = np.array(find_places(start, 2, 4))
        clipped = base[:, np.clip(places, 0, 3)]
        filled = np.where(((places >= 0) & (places < 4))[:, None], clipped, np.nan)
        for mode, result in zip(modes, read(x, start), strict=True):
            assert_same(result, "abc", clipped if mode in (None, "clip") else filled)
    for start in (ds(3, 2), ds(jnp.int8(3), 2)):  # outside of jit
        filled = nym.index(x, {"b": start}, mode="fill", fill=-1)
        assert_same(filled, "abc", np.stack([base[:, 3], np.full((3, 5), -1)], 1))


def test_a_traced_slice_is_updated_by_mode():
    random = np.random.default_rng(0)
    sizes = {"a": 3, "b": 2, "c": 5}
    values = {
        names: nym.named(random.integers(1, 4, [sizes[name] for name in names]).astype("f"), tuple(names))
        for names in ("", "c", "bc", "cab")
    }
    orders = dict(zip(UPDATES, ("cab", "c", "bc", "", "bc", "c", "cab", "bc"), strict=True))
    runs = [(method, mode) for mode in (None, "clip") for method in UPDATES] + [("set", "drop")]

    @jax.jit
    def update(x, start, values):
        place = x.at["b", ds(start, 2)]
        return [getattr(place, method)(values[orders[method]], mode=mode) for method, mode in runs]

    for start in STARTS:
        for (method, mode), result in zip(runs, update(x, start, values), strict=True):
            value = values[orders[method]]
            full = np.einsum(f"{orders[method]},abc->abc", np.asarray(value), np.ones((3, 2, 5), np.float32))
            places = find_places(start, 2, 4)
            if mode == "clip":
                places = [min(max(place, 0), 3) for place in places]
                if method == "set" and len(set(places)) < 2:
                    continue  # either value may win
            expected = base.copy()
            for place, new in zip(places, full.swapaxes(0, 1), strict=True):
                if 0 <= place < 4:
                    expected[:, place] = UPDATES[method](expected[:, place], new)
            np.testing.assert_allclose(result.array, expected, rtol=1e-5, err_msg=f"{method} {mode} {start}")


def test_slices_of_several_axes_and_other_indices():
    columns = nym.named([4, 0, 3], "a")
    value = nym.named(np.arange(2.0, 8.0, dtype=np.float32).reshape(3, 2), ("c", "b"))

    @jax.jit
    def run(x, i, j, value):
        at = {"b": ds(i, 2), "c": ds(j, 3)}
        read, written = nym.index(x, at, mode="fill", fill=0), x.at[at].set(value)
        added, cleared = x.at["b", ds(i, 2), "c", columns].add(1.0), x.at["b", ds(i, 2), "c", ds(1, 2)].set(0.0)
        return read, written, added, cleared, x.at["b", ds(i, 2)].apply(jnp.square)

    for i, j in ((0, 0), (3, 4), (-1, -6), (1, 3), (5, 1)):
        read = np.zeros((3, 2, 3), np.float32)
        written, added, cleared, squared = (base.copy() for _ in range(4))
        for k, row in enumerate(find_places(i, 2, 4)):
            if not 0 <= row < 4:
                continue
            cleared[:, row, 1:3], squared[:, row] = 0, base[:, row] ** 2
            added[range(3), row, np.asarray(columns)] += 1
            for m, column in enumerate(find_places(j, 3, 5)):
                if 0 <= column < 5:
                    read[:, k, m] = base[:, row, column]
                    written[:, row, column] = value.array[m, k]
        for result, expected in zip(run(x, i, j, value), (read, written, added, cleared, squared), strict=True):
            assert_close(result, "abc", expected)


def test_gradients_equal_those_of_positions():
    weights = np.linspace(0.1, 1.0, 60, dtype=np.float32).reshape(3, 4, 5)
    value = np.linspace(1.5, 2.5, 10, dtype=np.float32).reshape(2, 5)
    methods = ("set", "multiply", "divide", "power")

    @jax.jit
    def differentiate(x, value, start):
        def compute_loss(x, value):
            updated = sum(getattr(x.at["b", ds(start, 2)], method)(value) for method in methods)
            return (updated * nym.named(weights, x.names)).sum() + (x["b", ds(start, 2)] * value).sum()

        return nym.grad(compute_loss, (0, 1))(x, value)

    @jax.jit
    def differentiate_plain(x, value, places):
        def compute_loss(x, value):
            at, wide = x.at[:, jnp.where(places < 0, 9, places)], jnp.broadcast_to(value, (3, 2, 5))
            updated = sum(getattr(at, method)(wide, mode="drop", unique_indices=True) for method in methods)
            return jnp.sum(updated * weights) + jnp.sum(x[:, jnp.clip(places, 0, 3)] * wide)

        return jax.grad(compute_loss, (0, 1))(x, value)

    for start in STARTS:
        results = differentiate(nym.named(base / 10, x.names), nym.named(value, ("b", "c")), start)
        expected = differentiate_plain(base / 10, value, np.array(find_places(start, 2, 4)))
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_allclose(result.array, other, rtol=1e-4, err_msg=str(start))


def test_dropped_elements_make_no_gradient_nan():
    @jax.jit
    def differentiate(x, value, start):
        def compute_loss(x):
            divided = x.at["b", ds(start, 2)].divide(value, mode="drop")
            return divided.at["b", ds(start, 2)].power(value).sum()

        return nym.grad(compute_loss)(x)

    value = nym.named([1.0, 0.0], "b")  # the second one runs over the end
    assert np.isfinite(differentiate(nym.named(base - 70, x.names), value, 3).array).all()


def test_sharded_slices_over_the_end(mapped, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(batch=4, embed=4)

    @jax.jit
    def differentiate(y, rows, i):
        def compute_loss(y, rows):
            read = nym.index(y, {"batch": ds(i, 4)}, mode="fill", fill=0)
            written = y.at["batch", ds(i, 4)].set(rows, mode="drop")
            return (read**2).sum() + (written**2).sum(), (read, written)

        return nym.grad(compute_loss, (0, 1), has_aux=True)(y, rows)

    with jax.set_mesh(None):
        expected = differentiate(*operands, 6)
    results = differentiate(*nym.shard(operands), 6)
    for result, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5)
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
    assert_same(ref[...], "abc", np.where(np.arange(4)[:, None] == 3, -1, base))


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


def test_blocks_and_other_names_for_slices():
    assert nym.ds is dslice and dslice.block(2, 3) == nym.dblock(2, 3) == dslice(6, length=3)
    y = nym.named(np.arange(8), "i")
    assert_same(y["i", nym.dblock(1, 3)], "i", [3, 4, 5])
    assert y["i", ds(8, 0)].shape == (0,)
    assert_same(y["i", nym.dblock(-1, Axis("block", 2))], "i", [6, 7])
    blocks = jax.jit(lambda y, i: (y["i", nym.dblock(i, 2)], y["i", nym.dblock(nym.named(i, ()), 2)]))(y, 3)
    for block in blocks:
        assert_same(block, "i", [6, 7])
    with refusal("a `dslice` of 3 elements from 6 runs over the end of axis 'i'", IndexError):
        y["i", nym.dblock(2, 3)]
    with refusal("the length of a `dslice` must be an integer, not 1.5", TypeError):
        nym.dblock(1, 1.5)  # pyright: ignore[reportArgumentType]
    with refusal("The number of a block must be an integer, not 0.5.", TypeError):
        nym.dblock(0.5, 2)  # pyright: ignore[reportArgumentType]
