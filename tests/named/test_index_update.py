"""Ways to replace elements, against the methods of `jax.numpy.ndarray.at`; and the values that they take."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, dslice
from tests.named.comparing import assert_close, assert_same
from tests.refusals import refusal


base = np.arange(60.0, dtype=np.float32).reshape(3, 4, 5) + 1
x = nym.named(base, ("a", "b", "c"))
METHODS = ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")


def test_methods_do_what_those_of_jax_do_with_repeated_indices():
    value = np.array([0.5, 2.0, 3.0, 1.0, -2.0], np.float32)

    @jax.jit
    def compute(x, value, where):
        updates = [getattr(x.at["b", where], method)(value) for method in METHODS]
        wide = jnp.broadcast_to(value.array, (3, 2, 5))
        return updates, [getattr(x.array.at[:, where], method)(wide) for method in METHODS]

    for result, expected in zip(*compute(x, nym.named(value, "c"), np.array([3, 3])), strict=True):
        assert_close(result, "abc", expected)


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
    read, written, last = jax.jit(lambda x, i: (x["b", i], x.at["b", i].set(0.0), x["b", i[1]]))(x, np.array([1, 9]))
    assert_same(read, "abc", base[:, [1, 3]])
    assert_same(written, "abc", np.where(np.arange(4)[:, None] == 1, 0, base))
    assert_same(last, "ac", base[:, 3])


def test_a_function_is_applied_once_for_each_time_an_element_is_named():
    index = nym.named([1, 3, 1], "i")

    @jax.jit
    def apply(x):
        doubled = x.at["b", index].apply(lambda y: 2 * y)
        return x.at["b", 1].apply(jnp.sqrt), doubled, x.at["b", index, "c", dslice(1, 2)].apply(lambda y: 2 * y)

    root, doubled, window = apply(x)
    times = np.array([1, 4, 1, 2])[:, None]
    assert_close(root, "abc", np.where(np.arange(4)[:, None] == 1, np.sqrt(base), base))
    assert_same(doubled, "abc", base * times)
    assert_same(window, "abc", np.where(np.isin(np.arange(5), [1, 2]), base * times, base))
    assert_same(x.at[{}].apply(jnp.negative), "abc", -base)
    whole = nym.named(np.arange(3), "i").at["i", 1:].apply(lambda y: 3 * y)
    assert whole.dtype == jnp.int32 and np.array_equal(whole.array, [0, 3, 6])


def test_an_index_along_other_axes_of_the_array_names_no_element_twice():
    index = nym.named([1, 3, 1], "a")  # JAX multiplies differentiably only if it knows
    at = np.arange(3), [1, 3, 1]

    @jax.jit
    def compute(x):
        product = nym.grad(lambda x: x.at["b", index].multiply(3.0).sum())(x)
        squares = nym.grad(lambda x: x.at["b", index].apply(jnp.square).sum())(x)
        once = nym.grad(lambda x: x.at["b", [0, 2]].apply(jnp.square, unique_indices=True).sum())(x)
        return product, squares, once, x.at["b", index].add(1.0)

    tripled, doubled, added = np.ones_like(base), np.ones_like(base), base.copy()
    tripled[at], doubled[at] = 3, 2 * base[at]
    added[at] += 1
    even = np.where(np.isin(np.arange(4), [0, 2])[:, None], 2 * base, 1)
    for result, expected in zip(compute(x), (tripled, doubled, even, added), strict=True):
        assert_close(result, "abc", expected)


def test_what_an_update_cannot_take_is_refused():
    at, whole = x.at["b", 0:2], nym.named(np.arange(3), "i")
    for value in (np.ones(5), jnp.ones((3, 2, 5)), [1.0, 2.0]):
        with pytest.raises(TypeError, match=r"A plain array of shape .* has no axis names"):
            at.set(value)
    with refusal("the value has axes (q), which the chosen elements (a: 3, b: 2, c: 5) lack"):
        at.set(nym.ones({"q": 2}))
    with refusal("axis 'b' has size 2 and size 4 in (a: 3, b: 2, c: 5) and (b: 4)"):
        at.set(nym.ones({"b": 4}))
    with refusal("applied to elements (a: 3, c: 5) must keep their shape, it returned"):
        x.at["b", 1].apply(jnp.sum)
    with refusal("An array of int32 cannot hold quotients; convert it with `astype`", TypeError):
        whole.at["i", 0].divide(2)
    for lost in (1.5, jnp.float32(1.0), nym.ones({"i": 3})):
        with refusal("Elements of int32 cannot take values of float32; convert either with `astype`", TypeError):
            whole.at["i", 0:3].set(lost)
    with refusal("Elements of float32 cannot take values of complex64", TypeError):
        x.at["a", 0].add(1j)


def test_values_are_converted_where_nothing_is_lost():
    def convert(x, whole):
        half = x.astype(jnp.bfloat16)
        return half.at["a", 0].set(x["a", 0]), half.at["a", 0].set(0.1), x.at["a", 0].set(1), whole.at["i", 0].set(True)

    results = jax.eval_shape(convert, x, nym.named(np.arange(3), "i"))
    assert [result.dtype for result in results] == [jnp.bfloat16, jnp.bfloat16, jnp.float32, jnp.int32]


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
def test_values_that_elements_cannot_take(fill):
    narrow = nym.named(np.arange(3, dtype=np.uint8), "i")
    for run in (lambda fn: fn, jax.jit):
        for value in (np.nan, np.float32(1)):
            with refusal("Elements of uint8 cannot take values of float32; convert either with `a", TypeError):
                run(lambda x, value=value: fill(x, value))(narrow)
        for value in (-1, np.int64(300)):
            with refusal(f"elements of uint8 are from 0 to 255 and cannot take {value}; convert the array with `a"):
                run(lambda x, value=value: fill(x, value))(narrow)
    jax.eval_shape(lambda x: fill(x, 255), narrow)
    with refusal("elements of uint8 are from 0 to 255 and cannot take 300"):
        narrow.at["i", 0].set(np.array(300))


def test_fills_of_a_mask_and_of_positions():
    narrow, mask = nym.named(np.arange(3, dtype=np.uint8), "i"), nym.named([True, False, True], "i")
    assert nym.index(narrow, {"i": mask}, fill=0.5).array.tolist() == [0, 0.5, 2]  # as `where` does
    with refusal("elements of uint8 are from 0 to 255 and cannot take 300"):
        nym.index(narrow, {"i": mask}, fill=300)
    with refusal("Elements of int32 cannot take values of float32", TypeError):
        nym.nonzero(mask, size=4, fill_value=(0.5,))  # pyright: ignore[reportArgumentType]
    with refusal("Elements of int32 cannot take values of float32", TypeError):
        nym.where(mask, fill_value=np.nan, new_axis=Axis("j", 4))
    for fill, shown in (([[1]], "a list of length 1"), ("ab", "'ab'"), (np.arange(2), "an array of shape (2,)")):
        text = f"`fill_value` is a position, or a tuple of one for each axis, not {shown}"
        for fill_positions in (
            lambda fill: nym.nonzero(mask, size=4, fill_value=fill),
            lambda fill: nym.where(mask, fill_value=fill, new_axis=Axis("j", 4)),
        ):
            with refusal(text, TypeError):
                fill_positions(fill)
    assert nym.where(mask, fill_value=[9], new_axis=Axis("j", 3))[0].array.tolist() == [0, 2, 9]
