"""`dot`: what it sums and batches, the order of the result, what it costs, and what it refuses."""

import itertools
from re import findall

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.named.comparing import assert_close
from tests.refusals import refusal


SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}


def drawn(names, seed):
    random = np.random.default_rng(seed)
    return nym.named(random.normal(size=[SIZES[name] for name in names]).astype("f"), tuple(names))


def einsum(operands, names):
    letters = ",".join("".join(x.names) for x in operands)
    return np.einsum(f"{letters}->{''.join(names)}", *map(np.asarray, operands))


def promised(operands, summed):
    """The order without `out_axes`: what is batched first, then what each operand has left."""
    left = [name for x in operands for name in x.names if name not in summed]
    batched = [name for name in dict.fromkeys(left) if left.count(name) > 1]
    return (*batched, *(name for name in left if name not in batched))


x, y, z = drawn("abc", 1), drawn("cbd", 2), drawn("ca", 3)


def test_it_is_an_einsum(getkey):
    random = np.random.default_rng(getkey.seed)
    operands = [[x], [x], [x, y], [x, y], [x, y, z], [x, y, z]]
    summed = [("b",), (), ("c", "b"), (), ("b", "c"), ("c", "a", "b")]
    for _ in range(6):
        orders = [random.permutation(list("abcd"))[: random.integers(1, 5)] for _ in range(random.integers(1, 5))]
        operands.append([drawn(order, seed) for seed, order in enumerate(orders)])
        summed.append(tuple(name for name in sorted(set("abcd").intersection(*orders)) if random.random() < 0.5))

    @jax.jit
    def compute(operands):
        return [nym.dot(*arrays, axis=axis) for arrays, axis in zip(operands, summed, strict=True)]

    for arrays, axis, result in zip(operands, summed, compute(operands), strict=True):
        names = promised(arrays, axis)
        assert_close(result, names, einsum(arrays, names))


def test_axes_are_given_in_many_ways_and_results_in_any_order():
    axes = ["c", Axis("c", 4), ("c",), [Axis("c", 4)], {"c": 4}, {"c": None}]
    orders = {
        "dab": ("d", "a", "b"),
        "dba": ("d", ...),
        "adb": (..., "b"),
        "abd": (Axis("a", 2), ..., "d"),
        "bad": (...,),
    }

    @jax.jit
    def compute(x, y):
        ordered = {names: nym.dot(x, y, axis="c", out_axes=order) for names, order in orders.items()}
        everything = [nym.dot(*operands, axis=None) for operands in ([x], [x, y], [x, y, z])]
        return [nym.dot(x, y, axis=axis) for axis in axes], ordered, everything

    results, ordered, everything = compute(x, y)
    for result in (*results, x.dot(y, axis="c")):
        assert_close(result, "bad", einsum([x, y], "bad"))
    for names, result in ordered.items():
        assert_close(result, names, einsum([x, y], names))
    for operands, result in zip(([x], [x, y], [x, y, z]), everything, strict=True):
        assert_close(result, (), einsum(operands, ()))


def test_two_operands_take_one_dot_general_and_nothing_else(equations):
    assert equations(lambda x, y: nym.dot(x, y, axis="c"), x, y) == [("dot_general", (3, 2, 2))]
    assert equations(lambda x, y: nym.dot(x, y, axis=("b", "c")), x, y) == [("dot_general", (2, 2))]
    assert equations(lambda x, y: nym.dot(x, y, axis=()), x, y) == [("dot_general", (3, 4, 2, 2))]
    reordered = equations(lambda x, y: nym.dot(x, y, axis="c", out_axes=("d", ...)), x, y)
    assert reordered == [("dot_general", (3, 2, 2)), ("transpose", (2, 3, 2))]
    for operands, names in itertools.product(((x, y), (y, x)), (None, ("b", "a", "d"), ("b", "d", "a"))):
        traced = equations(lambda *o, names=names: nym.dot(*o, axis="c", out_axes=names), *operands)
        assert [name for name, _ in traced] == ["dot_general"]
        assert jax.eval_shape(lambda o, names=names: nym.dot(*o, axis="c", out_axes=names), operands).names[0] == "b"


def test_precision_and_element_type_reach_jax():
    def precision(*operands, given=("default", "highest"), **options):
        program = jax.make_jaxpr(lambda *o: nym.dot(*o, axis="b", precision=given, **options))(*operands)
        return findall(r"Precision\.(\w+)", str(program))

    half = [nym.named(np.ones((3, 3), jnp.bfloat16), tuple(names)) for names in ("ab", "bc", "bd")]
    assert precision(*half[:2]) == precision(*half[:2], out_axes=("c", "a")) == ["DEFAULT", "HIGHEST"]
    for operands in (half[:2], half):
        traced = jax.eval_shape(lambda *o: nym.dot(*o, axis="b", preferred_element_type=jnp.float32), *operands)
        assert traced.dtype == jnp.float32
        for given in ("highest", jax.lax.Precision.HIGHEST, ["default", "highest"]):
            assert "HIGHEST" in precision(*operands, given=given)
    assert nym.dot(nym.ones({"a": 3}, jnp.int8), axis="a", preferred_element_type=jnp.float32).dtype == jnp.float32


def test_element_types_are_promoted_as_in_jax():
    for types in ((jnp.float32, jnp.bfloat16), (jnp.int32, jnp.float32), (jnp.int8, jnp.int32), (jnp.bfloat16,) * 2):
        first = nym.named(np.zeros((2, 2), types[0]), ("a", "b"))
        second = nym.named(np.zeros((2, 2), types[1]), ("b", "c"))
        expected = jax.eval_shape(lambda x, y: jnp.einsum("ab,bc->ac", x, y), first.array, second.array)
        assert jax.eval_shape(lambda x, y: nym.dot(x, y, axis="b"), first, second).dtype == expected.dtype
        three = jax.eval_shape(lambda x, y: nym.dot(x, y, x, axis="b"), first, second)
        assert three.dtype == jnp.result_type(*types)
    half = nym.ones({"a": 2}, jnp.bfloat16)
    assert nym.dot(half, nym.named(2.0, ()), axis=()).dtype == jnp.bfloat16  # numbers do not widen


def test_another_dot_general_may_multiply():
    calls = []

    def halved(x, y, dimension_numbers, precision=None, preferred_element_type=None, **options):
        calls.append((x.shape, y.shape, dimension_numbers))
        options |= {"precision": precision, "preferred_element_type": preferred_element_type}
        return jax.lax.dot_general(x, y, dimension_numbers, **options) / 2

    @jax.jit
    def compute(x, y):
        return [nym.dot(x, y, axis="c", dot_general=halved, out_axes=names) for names in (None, ("b", "d", "a"))]

    for result, names in zip(
        (x.dot(y, axis="c", dot_general=halved), *compute(x, y)), ("bad", "bad", "bda"), strict=True
    ):
        assert_close(result, names, einsum([x, y], names) / 2)
    assert calls == [((2, 3, 4), (4, 3, 2), (((2,), (0,)), ((1,), (1,))))] * 3
    for operands, axis in (((x,), "c"), ((x, y, z), "c"), ((x, y), None)):
        with refusal("a `dot_general` multiplies two arrays and sums over axes of both, ") as error:
            nym.dot(*operands, axis=axis, dot_general=halved)
        assert "(a: 2" in str(error.value)
    with refusal("A `dot_general` must be a function", TypeError):
        nym.dot(x, x, axis="a", dot_general="int8")  # pyright: ignore[reportArgumentType]


SHARDED = {
    "batched": (lambda x, w, v: nym.dot(x, w, axis="embed"), "pdp"),
    "two axes": (lambda x, w, v: nym.dot(x, w, axis=("embed", "pos"), out_axes=("mlp", ...)), "pd"),
    "three": (lambda x, w, v: nym.dot(x, w, v, axis="embed"), "dpp"),
    "outer": (lambda x, w, v: nym.dot(x, w, v, axis=(), out_axes=("batch", "embed", ...)), "dmpp"),
    "everything": (lambda x, w, v: nym.dot(v, v, axis=None), ""),
}


def test_sharded_operands(check_sharded, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(embed=4, mlp=6, pos=3), draw(embed=4, batch=8)
    check_sharded(SHARDED, *operands, outside=SHARDED)


def test_what_to_sum_over_is_said():
    with refusal("which at least two operands must have, here (b, c); `axis=()`", TypeError):
        nym.dot(x, y)
    with refusal("which at least two operands must have; `axis=()` sums over noth", TypeError):
        drawn("a", 1).dot(drawn("b", 1))
    for axis in ("c", Axis("c", 4)):
        with refusal(f"by keyword: `dot(x, y, axis={axis!r})`", TypeError):
            nym.dot(x, y, axis)  # pyright: ignore[reportArgumentType]


def test_two_operands_have_the_contracted_axis():
    pair = drawn("ab", 5)
    for operands in ((x, pair), (pair, x), (pair,), (pair, pair, drawn("a", 5))):
        shown = " and ".join(map(repr, (each.shape for each in operands)))
        with refusal(f"cannot contract {shown}: no axis 'c' in (a: 2, b: 3)"):
            nym.dot(*operands, axis="c")
    with refusal("cannot contract"):
        jax.jit(lambda *operands: nym.dot(*operands, axis="c"))(x, pair)
    text = "(a: 2, b: 3) and (b: 3, c: 4) and (b: 3): only (b: 3, c: 4) has axis 'c'; `sum` over it first"
    with refusal(f"cannot contract {text}"):
        nym.dot(pair, drawn("bc", 2), drawn("b", 1), axis=("b", "c"))


def test_what_does_not_fit_says_so():
    for axis in ("a", "b", None, ()):
        with refusal("axis 'b' has size 3 and size 5 in (a: 2, b: 3, c: 4) and (b: 5, a: 2)"):
            nym.dot(x, nym.ones({"b": 5, "a": 2}), axis=axis)
    for axis, text in (
        (Axis("c", 5), "axis 'c' has size 4 here, 5 was asked for"),
        ("cc", "no axis 'cc' in (a: 2, b: 3, c: 4); did you mean 'c'?"),
        (("c", "c"), "axis 'c' is given more than once"),
    ):
        with refusal(text) as error:
            nym.dot(x, y, axis=axis)
        assert str(error.value).startswith("cannot contract ")
    with refusal("the order (a) leaves out (b, d)"):
        nym.dot(x, y, axis="c", out_axes=("a",))
    for axis, out_axes, shown in (
        (1, None, "1"),
        (["c", ["b"]], None, "a list of le"),
        ("c", (["a"], ...), "a list of"),
    ):
        with refusal(f"given by an `Axis` or by its name, not by {shown}", TypeError):
            nym.dot(x, y, axis=axis, out_axes=out_axes)  # pyright: ignore[reportArgumentType]
    for plain in (np.ones(4), jnp.ones(4), 2.0, None):
        for operands in ((x, plain), (plain, x), (plain,)):
            with pytest.raises(TypeError, match=r"A named array is needed, not .*; make one with `axonym.named"):
                nym.dot(*operands, axis="c")
    with refusal("dot: `preferred_element_type` must be an element type such as `jnp.float32` or 'bf", TypeError):
        nym.dot(x, x, axis="a", preferred_element_type="fp8")
