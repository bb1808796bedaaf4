"""Lining operands up by name: what broadcasts, in which order, at what cost, and what is refused."""

import operator
from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym


NAMES = ("a", "b", "c", "d")
SMALL = {"a": 2, "b": 3, "c": 4, "d": 2}
x = nym.named(np.arange(24.0).reshape(2, 3, 4), ("a", "b", "c"))


def drawn(names, sizes, seed):
    random = np.random.default_rng(seed)
    return nym.named(random.normal(size=[sizes[name] for name in names]).astype("f"), tuple(names))


def positional(x, names):
    """The elements in an order of names that has all of the array's own, with size 1 where it lacks one."""
    array = np.asarray(x).transpose([x.names.index(name) for name in names if name in x.names])
    return array.reshape([x.shape[name] if name in x.names else 1 for name in names])


subsets = st.sets(st.sampled_from(NAMES)).flatmap(lambda names: st.permutations(sorted(names)))
sizes = st.fixed_dictionaries({name: st.sampled_from([1, SMALL[name]]) for name in NAMES})


@given(wide=subsets, narrow=subsets, sizes=sizes)
@settings(max_examples=50)
def test_broadcasting_is_by_name_alone(wide, narrow, sizes):
    x, y = drawn(wide, sizes, 0), drawn(narrow, sizes, 1)
    widest = x.names if len(x.names) >= len(y.names) else y.names
    if not set(x.names) | set(y.names) <= set(widest):
        with pytest.raises(ValueError, match="cannot broadcast"):
            x - y
        return
    difference = x - y
    assert difference.names == widest  # never a question of sizes
    assert np.array_equal(difference.array, positional(x, widest) - positional(y, widest))
    swapped = (-(y - x)).rearrange(widest)
    assert np.array_equal(difference.array, swapped.array)


@given(first=subsets, second=subsets, third=subsets)
@settings(max_examples=30)
def test_several_operands_broadcast_as_two_do(first, second, third):
    operands = [drawn(names, SMALL, seed) for seed, names in enumerate((first, second, third))]
    widest = max((x.names for x in operands), key=len)
    if not all(set(x.names) <= set(widest) for x in operands):
        with pytest.raises(ValueError, match="cannot broadcast"):
            nym.where(operands[0] > 0, operands[1], operands[2])
        return
    chosen = nym.where(operands[0] > 0, operands[1], operands[2])
    condition, one, other = (positional(x, widest) for x in operands)
    assert chosen.names == widest
    assert np.array_equal(chosen.array, np.broadcast_to(np.where(condition > 0, one, other), chosen.shape))


def test_of_operands_with_the_same_axes_the_first_gives_the_order():
    y = x.rearrange(("c", "a", "b"))
    assert (x + y).names == ("a", "b", "c") and (y + x).names == ("c", "a", "b")
    assert np.array_equal((x - y).array, np.zeros((2, 3, 4)))
    assert nym.where(y > 0, x, 0.0).names == ("c", "a", "b")


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.truediv, operator.pow, operator.lt])
@pytest.mark.parametrize("number", [2, 2.0, True, np.float32(2), np.array(2.0), jnp.array(2.0), nym.named(2.0, ())])
def test_a_scalar_goes_with_any_axes(op, number):
    value = number.array if isinstance(number, nym.NamedArray) else number
    for result, expected in (
        (op(x, number), op(x.array, value)),
        (op(number, x), op(value, x.array)),
    ):
        assert result.names == x.names and result.dtype == expected.dtype
        assert np.array_equal(result.array, expected)


@pytest.mark.parametrize("plain", [np.ones(4), jnp.ones(4), np.ones((2, 3, 4)), jnp.ones(1), np.ones((0,))])
@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.sub, operator.pow, operator.eq, operator.ge])
def test_plain_arrays_with_axes_are_refused_on_either_side(op, plain):
    text = escape(f"A plain array of shape {plain.shape} has no axis names; give it some with `axonym.named(array, ")
    for left, right in ((x, plain), (plain, x)):
        with pytest.raises(TypeError, match=text):
            op(left, right)
    for operands in ((plain > 0, x, 0.0), (x > 0, plain, 0.0), (x > 0, x, plain)):
        with pytest.raises(TypeError, match=text):
            nym.where(*operands)
    with pytest.raises(TypeError, match=text):
        x.clip(plain, None)


@pytest.mark.parametrize("other", [[1.0, 2.0], [[1, 2, 3, 4]], (1.0, 2.0)])
def test_lists_are_plain_arrays_too(other):
    with pytest.raises(TypeError, match="has no axis names"):
        x + other


def test_two_sizes_for_a_name():
    y = nym.ones({"a": 2, "b": 4})
    for add in (lambda: x + y, lambda: y + x, lambda: jax.jit(operator.add)(x, y), lambda: nym.where(x > 0, x, y)):
        with pytest.raises(ValueError, match=r"axis 'b' has size [34] and size [34] in .*\(a: 2, b: 4\)"):
            add()
    with pytest.raises(ValueError, match=escape("axis 'c' has size 4 and size 1 in (a: 2, b: 3, c: 4) and (c: 1)")):
        x + nym.ones({"c": 1})
    with pytest.raises(ValueError, match=escape("axis 'b' has size 1 and size 3 in (a: 2, b: 1) and (a: 2, b: 3)")):
        nym.ones({"a": 2, "b": 1}) + nym.ones({"a": 2, "b": 3})


@pytest.mark.parametrize(
    ("other", "lacking"),
    [
        ({"d": 2}, "'d' of one operand and 'a', 'b', 'c' of the other"),
        ({"b": 3, "d": 2}, "'d' of one operand and 'a', 'c' of the other"),
        ({"c": 4, "d": 2, "e": 1}, "'d', 'e' of one operand and 'a', 'b' of the other"),
    ],
)
def test_no_operand_has_all_the_axes(other, lacking):
    y = nym.ones(other)
    text = escape(f"cannot broadcast (a: 2, b: 3, c: 4) and {y.shape}: {lacking}") + ".*`broadcast_axis`$"
    with pytest.raises(ValueError, match=text):
        x + y
    with pytest.raises(ValueError, match="cannot broadcast"):
        jax.jit(lambda x, y: y * x)(x, y)
    assert (x.broadcast_axis(y.axes) + y).sum().item() is not None  # what the message says helps


def test_close_names_of_operands_are_suggested():
    text = escape("'embd' of one operand and 'embed' of the other have no counterpart; did you mean 'embed'?; add")
    with pytest.raises(ValueError, match=text):
        nym.ones({"batch": 2, "embed": 3}) + nym.ones({"batch": 2, "embd": 3})


def test_errors_never_show_elements():
    with pytest.raises(ValueError, match="cannot broadcast") as error:
        nym.named([123456.0], "a") + nym.named([654321.0], "b")
    assert "123456" not in str(error.value) and "654321" not in str(error.value)


def test_missing_axes_are_broadcast_in_place(equations):
    v, w = nym.ones({"b": 3}), nym.ones({"c": 4, "a": 2})
    assert equations(lambda x, v: x * v, x, v) == [("broadcast_in_dim", (1, 3, 1)), ("mul", (2, 3, 4))]
    assert equations(lambda v, x: v * x, v, x) == [("broadcast_in_dim", (1, 3, 1)), ("mul", (2, 3, 4))]
    transposing = [("transpose", (2, 4)), ("broadcast_in_dim", (2, 1, 4)), ("mul", (2, 3, 4))]
    assert equations(lambda x, w: x * w, x, w) == transposing
    assert equations(lambda x: x * x, x) == equations(lambda x: x * 2.0, x) == [("mul", (2, 3, 4))]
    assert ("transpose", (2, 3, 4)) not in equations(lambda x, v: nym.where(x > 0, x, v), x, v)


def test_a_broadcast_keeps_no_full_copy_for_the_backward_pass():
    v = nym.ones({"b": 3})
    _, backward = jax.vjp(lambda v: (x * v).array, v)
    kept = [leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert (2, 3, 4) in kept and all(np.prod(shape) <= 24 for shape in kept) and len(kept) <= 2


def test_sharded_operands_line_up(mapped, draw):
    x = draw(batch=8, pos=3, embed=4)
    for y in (draw(embed=4), draw(embed=4, batch=8), draw(pos=3), draw(embed=4, pos=3, batch=8)):
        expected = np.asarray(x) + positional(y, x.names)
        added = [fn(*nym.shard((x, y))) for fn in (operator.add, jax.jit(operator.add))]
        for result in added:
            assert result.names == x.names and np.array_equal(result.array, expected)
            assert result.sharding.spec == jax.P("data", None, "model")


def test_operands_whose_shardings_clash_are_lined_up_by_the_mapping(mesh):
    rows, scale = np.arange(32.0, dtype=np.float32).reshape(8, 4), np.arange(4.0, dtype=np.float32)
    x = nym.shard(nym.named(rows, ("batch", "embed")), {"batch": "data"})
    weight = nym.shard(nym.named(scale, "embed"), {"embed": "data"})  # as FSDP keeps it between steps
    with nym.axis_mapping({"batch": "data"}):
        for compiled in (lambda f: f, jax.jit):
            y = compiled(lambda x, weight: nym.auto_sharded(x * weight))(x, weight)
            assert y.sharding.is_equivalent_to(nym.sharding_for_axis(y.axes), 2)
            np.testing.assert_array_equal(np.asarray(y), rows * scale)
        gradient = jax.grad(lambda weight: (x * weight).sum().scalar())(weight)
    np.testing.assert_array_equal(np.asarray(gradient), rows.sum(0))


@pytest.mark.parametrize("number", [2**40, 2**70, np.int64(2**40)])
@pytest.mark.parametrize(
    "apply",
    [
        lambda x, number: x + number,
        lambda x, number: number * x,
        lambda x, number: nym.where(x > 0, x, number),
        lambda x, number: nym.random.uniform(jax.random.key(0), x.axes, maxval=number),
        lambda x, number: nym.full(x.axes, number),
    ],
    ids=["binary", "reflected", "broadcast", "draw", "full"],
)
def test_integers_that_jax_lacks_are_refused(apply, number):
    x = nym.ones({"i": 2})
    for call in (apply, lambda x, number: jax.jit(lambda x: apply(x, number))(x)):
        with pytest.raises(OverflowError, match=f"the integer {number} does not fit int32; set `jax_enable_x64`, or"):
            call(x, number)
