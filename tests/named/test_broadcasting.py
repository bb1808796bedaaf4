"""Lining operands up by name: what broadcasts, in which order, at what cost, and what is refused."""

import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.named.comparing import assert_same
from tests.refusals import refusal


SIZES = {"a": 2, "b": 3, "c": 4}
ORDERS = ["".join(order) for count in range(4) for order in itertools.permutations("abc", count)]
x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))


def drawn(names, seed, sizes=SIZES):
    random = np.random.default_rng(seed)
    return nym.named(random.normal(size=[sizes[name] for name in names]).astype("f"), tuple(names))


def positional(x, names):
    """The elements in an order of names that has all of the array's own, with size 1 where it lacks one."""
    array = np.asarray(x).transpose([x.names.index(name) for name in names if name in x.names])
    return array.reshape([x.shape[name] if name in x.names else 1 for name in names])


def test_broadcasting_is_by_name_alone(getkey):
    random = np.random.default_rng(getkey.seed)
    pairs = [(drawn(random.choice(ORDERS), 0), drawn(random.choice(ORDERS), 1)) for _ in range(30)]
    pairs += [(drawn("ab", 0, SIZES | {"b": 1}), drawn("bca", 1, SIZES | {"b": 1}))]  # never a question of sizes
    fitting = []
    for pair in pairs:
        fewer, more = sorted((set(x.names) for x in pair), key=len)
        if fewer <= more:
            fitting.append(pair)
        else:
            with refusal("cannot broadcast"):
                operator.sub(*pair)
    fitting = fitting[-10:]
    differences = jax.jit(lambda pairs: [operator.sub(*pair) for pair in pairs])(fitting)
    for pair, difference in zip(fitting, differences, strict=True):
        widest = max((x.names for x in pair), key=len)
        assert_same(difference, widest, operator.sub(*(positional(x, widest) for x in pair)))


def test_several_operands_broadcast_as_two_do():
    operands = drawn("ab", 0), drawn("bca", 1), drawn("c", 2)
    orders = list(itertools.permutations(operands))
    results = jax.jit(lambda orders: [nym.where(condition > 0, x, y) for condition, x, y in orders])(orders)
    for order, result in zip(orders, results, strict=True):
        condition, first, second = (positional(x, "bca") for x in order)
        assert_same(result, "bca", np.broadcast_to(np.where(condition > 0, first, second), result.shape))
    with refusal("cannot broadcast"):
        nym.where(operands[0] > 0, operands[2], 0.0)


def test_of_operands_with_the_same_axes_the_first_gives_the_order():
    y = nym.named(np.asarray(x).transpose(2, 0, 1), ("c", "a", "b"))
    assert_same(x - y, "abc", np.zeros((2, 3, 4)))
    assert (y + x).names == nym.where(y > 0, x, 0.0).names == ("c", "a", "b")


def test_a_scalar_goes_with_any_axes():
    numbers = [2, 2.0, True, np.float32(2), np.array(2.0), jnp.array(2.0), nym.named(2.0, ())]

    @jax.jit
    def compute(x, traced):
        return [(x - number, number / (x + 1), number < x) for number in (*numbers, traced)]

    for number, (difference, quotient, truth) in zip((*numbers, 2.0), compute(x, 2.0), strict=True):
        value = np.float32(number if not isinstance(number, nym.NamedArray) else number.item())
        assert difference.dtype == quotient.dtype == np.float32 and truth.dtype == bool
        assert_same(difference, "abc", np.asarray(x) - value)
        assert_same(quotient, "abc", value / (np.asarray(x) + 1), rtol=1e-6)
        assert_same(truth, "abc", value < np.asarray(x))


def test_plain_arrays_with_axes_are_refused_on_either_side():
    for plain in (np.ones(4), jnp.ones(4), np.ones((2, 3, 4)), jnp.ones(1), np.ones((0,))):
        text = f"A plain array of shape {plain.shape} has no axis names; give it some with `axonym.named(array, "
        for op in (operator.add, operator.mul, operator.sub, operator.pow, operator.eq, operator.ge):
            for operands in ((x, plain), (plain, x)):
                with refusal(text, TypeError):
                    op(*operands)
        for operands in ((plain > 0, x, 0.0), (x > 0, plain, 0.0), (x > 0, x, plain)):
            with refusal(text, TypeError):
                nym.where(*operands)
        with refusal(text, TypeError):
            x.clip(plain, None)
    for other in ([1.0, 2.0], [[1, 2, 3, 4]], (1.0, 2.0)):
        with refusal("has no axis names", TypeError):
            x + other


def test_what_is_no_array_and_no_number_is_refused():
    for call, shown in (
        (lambda: x + object(), "<object object at"),
        (lambda: x * {"i": 1}, "{'i': 1}."),
        (lambda: nym.Axis("i", 2) + x, "Axis(name='i'"),
        (lambda: nym.where(x > 0, float, x), "`float`."),
        (lambda: x + None, "None."),
        (lambda: nym.sin("x"), "'x'."),
        (lambda: nym.abs(nym.sin), "`sin`."),
        (lambda: nym.add("x", 1), "'x'."),
        (lambda: nym.add(1, "x"), "'x'."),
    ):
        with refusal(f"An operand is a named array or a number, not {shown}", TypeError):
            call()


def test_two_sizes_for_a_name():
    y = nym.ones({"a": 2, "b": 4})
    for add in (lambda: x + y, lambda: y + x, lambda: jax.jit(operator.add)(x, y), lambda: nym.where(x > 0, x, y)):
        with pytest.raises(ValueError, match=r"axis 'b' has size [34] and size [34] in .*\(a: 2, b: 4\)"):
            add()
    with refusal("axis 'c' has size 4 and size 1 in (a: 2, b: 3, c: 4) and (c: 1)"):
        x + nym.ones({"c": 1})


def test_no_operand_has_all_the_axes():
    for other, lacking in (
        ({"d": 2}, "'d' of one operand and 'a', 'b', 'c' of the other"),
        ({"b": 3, "d": 2}, "'d' of one operand and 'a', 'c' of the other"),
        ({"c": 4, "d": 2, "e": 1}, "'d', 'e' of one operand and 'a', 'b' of the other"),
    ):
        y = nym.ones(other)
        with refusal(f"cannot broadcast (a: 2, b: 3, c: 4) and {y.shape}: {lacking}") as error:
            x + y
        assert str(error.value).endswith("`broadcast_axis`")
        with refusal("cannot broadcast"):
            jax.jit(lambda x, y: y * x)(x, y)
        jax.eval_shape(lambda y: x.broadcast_axis(y.axes) + y, y)  # what the message says helps
    text = "'embd' of one operand and 'embed' of the other have no counterpart; did you mean 'embed'?; add"
    with refusal(text) as error:
        nym.full({"batch": 2, "embed": 3}, 123456.0) + nym.full({"batch": 2, "embd": 3}, 654321.0)
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
    _, backward = jax.vjp(lambda v: (x * v).array, nym.ones({"b": 3}))
    kept = [leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert (2, 3, 4) in kept and all(np.prod(shape) <= 24 for shape in kept) and len(kept) <= 2


def test_sharded_operands_line_up(mapped, draw):
    x = draw(batch=8, pos=3, embed=4)
    others = [draw(embed=4), draw(embed=4, batch=8), draw(pos=3), draw(embed=4, pos=3, batch=8)]

    def add(x, others):
        return [x + y for y in others]

    sharded = nym.shard((x, others))
    for y, inside, outside in zip(others, jax.jit(add)(*sharded), add(*sharded), strict=True):
        for result in (inside, outside):
            assert_same(result, x.names, np.asarray(x) + positional(y, x.names))
            assert result.sharding.spec == jax.P("data", None, "model")


def test_operands_whose_shardings_clash_are_lined_up_by_the_mapping(mesh):
    rows, scale = np.arange(32.0, dtype=np.float32).reshape(8, 4), np.arange(4.0, dtype=np.float32)
    x = nym.shard(nym.named(rows, ("batch", "embed")), {"batch": "data"})
    weight = nym.shard(nym.named(scale, "embed"), {"embed": "data"})  # as FSDP keeps it between steps

    def compute(x, weight):
        gradient = jax.grad(lambda weight: (x * weight).sum().scalar())(weight)
        return nym.auto_sharded(x * weight), gradient

    with nym.axis_mapping({"batch": "data"}):
        for run in (compute, jax.jit(compute)):
            product, gradient = run(x, weight)
            assert product.sharding.is_equivalent_to(nym.sharding_for_axis(product.axes), 2)
            assert_same(product, ("batch", "embed"), rows * scale)
            assert_same(gradient, ("embed",), rows.sum(0))


@pytest.mark.parametrize("number", [2**40, 2**70, np.int64(2**40)])
def test_integers_that_jax_lacks_are_refused(number):
    x = nym.ones({"i": 2})
    for apply in (
        lambda x: x + number,
        lambda x: number * x,
        lambda x: nym.where(x > 0, x, number),
        lambda x: nym.random.uniform(jax.random.key(0), x.axes, maxval=number),
        lambda x: nym.full(x.axes, number),
    ):
        for call in (apply, jax.jit(apply)):
            with refusal(f"the integer {number} does not fit int32; set `jax_enable_x64`, or", OverflowError):
                call(x)
