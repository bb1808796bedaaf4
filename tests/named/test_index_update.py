"""Ways to replace elements, against the methods of `jax.numpy.ndarray.at`; and the values that they take."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, dslice


NAMES = ("a", "b", "c")
base = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5) + 1
x = nym.named(base, NAMES)
METHODS = ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")


@pytest.mark.parametrize("method", METHODS)
def test_methods_do_what_those_of_jax_do(method):
    value = np.array([0.5, 2.0, 3.0, 1.0, -2.0], np.float32)
    named, wide, where = nym.named(value, "c"), jnp.broadcast_to(value, (3, 2, 5)), jnp.array([3, 3])
    plain = getattr(x.array.at[:, where], method)(wide)
    update = getattr(x.at["b", where], method)
    assert np.allclose(update(named).array, plain)
    assert np.allclose(getattr(x.at["b", 1:3], method)(named).array, getattr(x.array.at[:, 1:3], method)(wide))
    assert np.allclose(getattr(x.at["b", dslice(1, 2)], method)(named).array, getattr(x.array.at[:, 1:3], method)(wide))
    assert np.allclose(getattr(x.at[{}], method)(2.0).array, getattr(x.array.at[:], method)(2.0))
    sorted_ = update(named, mode="clip", indices_are_sorted=True)
    assert np.allclose(sorted_.array, plain)
    once = getattr(x.at["b", [0, 2]], method)(named, unique_indices=True, mode="promise_in_bounds")
    assert np.allclose(once.array, getattr(x.array.at[:, jnp.array([0, 2])], method)(wide))


def test_options_reach_jax():
    def traced(fn):
        return str(jax.make_jaxpr(fn)(x, jnp.array([0, 2])))

    assert "indices_are_sorted=True" in traced(lambda x, i: x.at["b", i].get(indices_are_sorted=True))
    assert "unique_indices=True" in traced(lambda x, i: x.at["b", i].get(unique_indices=True))
    assert "mode=GatherScatterMode.CLIP" in traced(lambda x, i: x.at["b", i].get(mode="clip"))
    text = traced(lambda x, i: x.at["b", i].add(1.0, indices_are_sorted=True, unique_indices=True))
    assert "indices_are_sorted=True" in text and "unique_indices=True" in text
    text = traced(lambda x, i: x.at["b", i, "c", i].get(indices_are_sorted=True))
    assert "indices_are_sorted=True" not in text  # sorted each, but not as pairs


def test_a_traced_index_out_of_range_reads_the_last_and_writes_nothing():
    far = jax.jit(lambda x, i: (x["b", i], x.at["b", i].set(0.0)))
    read, written = far(x, jnp.array([1, 9]))
    assert np.array_equal(read.array, base[:, [1, 3]])
    assert np.array_equal(written.array[:, 1], np.zeros((3, 5))) and np.array_equal(written.array[:, 2:], base[:, 2:])
    read, _ = far(x, 9)
    assert np.array_equal(read.array, base[:, 3])


def test_a_function_is_applied_to_elements():
    assert np.allclose(x.at["b", 1].apply(jnp.sqrt).array, x.array.at[:, 1].apply(jnp.sqrt))
    assert np.allclose(x.at["b", 1:3].apply(jnp.negative).array, x.array.at[:, 1:3].apply(jnp.negative))
    assert np.allclose(x.at["b", dslice(2, 2)].apply(jnp.negative).array, x.array.at[:, 2:].apply(jnp.negative))
    assert np.allclose(x.at[{}].apply(jnp.negative).array, -base)
    whole = nym.arange(Axis("i", 3)).at["i", 1:].apply(lambda y: 3 * y)
    assert whole.dtype == jnp.int32 and np.array_equal(whole.array, [0, 3, 6])


def test_a_function_is_applied_once_for_each_time_an_element_is_named():
    index = nym.named([1, 3, 1], "i")
    expected = x.array.at[:, jnp.array([1, 3, 1])].apply(lambda y: 2 * y)
    assert np.array_equal(x.at["b", index].apply(lambda y: 2 * y).array, expected)
    assert np.array_equal(jax.jit(lambda x: x.at["b", index].apply(lambda y: 2 * y))(x).array, expected)
    window = x.at["b", index, "c", dslice(1, 2)].apply(lambda y: 2 * y)
    assert np.array_equal(window.array[..., 1:3], expected[..., 1:3])


def test_gradients_of_updates():
    def plain(x, v, at, method):
        return jnp.sum(getattr(x.at[:, at], method)(jnp.broadcast_to(v, (3, 2, 5)), unique_indices=True) * base)

    def ours(x, v, at, method):
        return jnp.sum(getattr(x.at["b", at], method)(v, unique_indices=True).array * base)

    value, index = nym.named(np.linspace(1, 2, 5, dtype=np.float32), "c"), jnp.array([0, 2])
    for method in ("set", "subtract", "multiply", "divide", "power"):
        got = jax.grad(ours, (0, 1))(x / 10, value, index, method)
        want = jax.grad(plain, (0, 1))(x.array / 10, value.array, index, method)
        for one, other in zip(got, want, strict=True):
            assert np.allclose(one.array, other, rtol=1e-4), method
    once = jax.grad(lambda x: jnp.sum(x.at["b", [0, 2]].apply(jnp.square, unique_indices=True).array))(x)
    assert np.allclose(once.array, np.where(np.isin(np.arange(4), [0, 2])[:, None], 2 * base, 1))


def test_an_index_along_other_axes_of_the_array_names_no_element_twice():
    index = nym.named([1, 3, 1], "a")  # JAX multiplies differentiably only if it knows
    gradient = jax.grad(lambda x: jnp.sum(x.at["b", index].multiply(3.0).array))(x)
    assert np.array_equal(gradient.array, jnp.ones((3, 4, 5)).at[jnp.arange(3), jnp.array([1, 3, 1])].set(3.0))
    gradient = jax.grad(lambda x: jnp.sum(x.at["b", index].apply(jnp.square).array))(x)
    squares = jnp.ones((3, 4, 5)).at[jnp.arange(3), jnp.array([1, 3, 1])].set(2 * base[range(3), [1, 3, 1]])
    assert np.allclose(gradient.array, squares)
    assert np.array_equal(x.at["b", index].add(1.0).array, x.array.at[jnp.arange(3), jnp.array([1, 3, 1])].add(1.0))


def test_functions_that_do_not_keep_the_shape():
    with pytest.raises(ValueError, match=escape("applied to elements (a: 3, c: 5) must keep their shape, it returned")):
        x.at["b", 1].apply(jnp.sum)


def test_integers_are_not_divided():
    with pytest.raises(TypeError, match="An array of int32 cannot hold quotients; convert it with `astype`"):
        nym.arange(Axis("i", 3)).at["i", 0].divide(2)


def test_blocks_and_other_names_for_slices():
    assert nym.ds is dslice and dslice.block(2, 3) == nym.dblock(2, 3) == dslice(6, length=3)
    y = nym.arange(Axis("i", 8))
    assert np.array_equal(y["i", nym.dblock(1, 3)].array, [3, 4, 5])
    assert np.array_equal(y["i", nym.dblock(-1, Axis("block", 2))].array, [6, 7])
    with pytest.raises(IndexError, match="a `dslice` of 3 elements from 6 runs over the end of axis 'i'"):
        y["i", nym.dblock(2, 3)]
    picked = jax.jit(lambda y, i: (y["i", nym.dblock(i, 2)], y["i", nym.dblock(nym.named(i, ()), 2)]))(y, 3)
    assert all(np.array_equal(one.array, [6, 7]) for one in picked)
    with pytest.raises(TypeError, match=r"the length of a `dslice` must be an integer, not 1\.5"):
        nym.dblock(1, 1.5)  # pyright: ignore[reportArgumentType]


def test_values_that_do_not_fit():
    at = x.at["b", 0:2]
    for value in (np.ones(5), jnp.ones((3, 2, 5)), [1.0, 2.0]):
        with pytest.raises(TypeError, match=r"A plain array of shape .* has no axis names"):
            at.set(value)
    with pytest.raises(
        ValueError, match=escape("the value has axes (q), which the chosen elements (a: 3, b: 2, c: 5) lack")
    ):
        at.set(nym.ones({"q": 2}))
    with pytest.raises(ValueError, match=escape("axis 'b' has size 2 and size 4 in (a: 3, b: 2, c: 5) and (b: 4)")):
        at.set(nym.ones({"b": 4}))
    with pytest.raises(ValueError, match=escape("the value has axes (b), which the chosen elements (a: 3, c: 5) lack")):
        x.at["b", 0].set(nym.ones({"b": 4}))


def test_values_are_converted_where_nothing_is_lost():
    whole = nym.arange(Axis("i", 3))
    for lost in (1.5, jnp.float32(1.0), nym.ones({"i": 3})):
        with pytest.raises(
            TypeError, match="Elements of int32 cannot take values of float32; convert either with `astype`"
        ):
            whole.at["i", 0:3].set(lost)
    with pytest.raises(TypeError, match="Elements of float32 cannot take values of complex64"):
        x.at["a", 0].add(1j)
    half = x.astype(jnp.bfloat16)
    assert half.at["a", 0].set(x["a", 0]).dtype == jnp.bfloat16 and half.at["a", 0].set(0.1).dtype == jnp.bfloat16
    assert whole.at["i", 0].set(True).array[0] == 1 and x.at["a", 0].set(1).dtype == jnp.float32


FILLS = {
    "set": lambda x, value: x.at["i", 0].set(value),
    "ref": lambda x, value: nym.swap(nym.new_ref(x), ("i", 0), value),
    "index": lambda x, value: nym.index(x, {"i": nym.named([5], "j")}, mode="fill", fill=value),
    "pad": lambda x, value: nym.pad(x, {"i": 1}, constant_values=(0, value)),
    "pad_left": lambda x, value: nym.pad_left(x, "i", Axis("i", 4), value),
    "linear_ramp": lambda x, value: nym.pad(x, {"i": 1}, mode="linear_ramp", end_values=value),
    "full_like": nym.full_like,
    "full": lambda x, value: nym.full(x.axes, value, x.dtype),
    "unique": lambda x, value: nym.unique(x, Axis("j", 4), fill_value=value),
    "unique_counts": lambda x, value: nym.unique_counts(x, Axis("j", 4), fill_value=value),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_values_that_elements_cannot_take(fill, run):
    narrow = nym.arange(Axis("i", 3)).astype(jnp.uint8)
    for value in (np.nan, np.float32(1)):
        with pytest.raises(TypeError, match="Elements of uint8 cannot take values of float32; convert either with `a"):
            run(lambda x, value=value: fill(x, value))(narrow)
    for value in (-1, np.int64(300)):
        text = f"elements of uint8 are from 0 to 255 and cannot take {value}; convert the array with `astype`"
        with pytest.raises(ValueError, match=text):
            run(lambda x, value=value: fill(x, value))(narrow)
    fill(narrow, 255)
    with pytest.raises(ValueError, match="elements of uint8 are from 0 to 255 and cannot take 300"):
        narrow.at["i", 0].set(np.array(300))


def test_fills_of_a_mask_and_of_positions():
    narrow, mask = nym.arange(Axis("i", 3)).astype(jnp.uint8), nym.named([True, False, True], "i")
    assert nym.index(narrow, {"i": mask}, fill=0.5).array.tolist() == [0, 0.5, 2]  # as `where` does
    with pytest.raises(ValueError, match="elements of uint8 are from 0 to 255 and cannot take 300"):
        nym.index(narrow, {"i": mask}, fill=300)
    with pytest.raises(TypeError, match="Elements of int32 cannot take values of float32"):
        nym.nonzero(mask, size=4, fill_value=(0.5,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Elements of int32 cannot take values of float32"):
        nym.where(mask, fill_value=np.nan, new_axis=Axis("j", 4))
    for fill, shown in (([[1]], "a list of length 1"), ("ab", "'ab'"), (np.arange(2), r"an array of shape \(2,\)")):
        text = f"`fill_value` is a position, or a tuple of one for each axis, not {shown}"
        for fill_positions in (
            lambda fill: nym.nonzero(mask, size=4, fill_value=fill),
            lambda fill: nym.where(mask, fill_value=fill, new_axis=Axis("j", 4)),
        ):
            with pytest.raises(TypeError, match=text):
                fill_positions(fill)
    assert nym.where(mask, fill_value=[9], new_axis=Axis("j", 3))[0].array.tolist() == [0, 2, 9]
