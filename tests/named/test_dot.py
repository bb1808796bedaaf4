"""`dot`: what it sums and batches, the order of the result, what it costs, and what it refuses."""

from re import escape, findall

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym
from axonym import Axis


SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}
LETTERS = "abcd"


def drawn(names, seed):
    random = np.random.default_rng(seed)
    return nym.named(random.normal(size=[SIZES[name] for name in names]).astype("f"), tuple(names))


def einsum(operands, result):
    return np.einsum(
        ",".join("".join(x.names) for x in operands) + "->" + "".join(result.names), *map(np.asarray, operands)
    )


def promised(operands, summed):
    """The order without `out_axes`: what is batched first, then what each operand has left."""
    left = [name for x in operands for name in x.names if name not in summed]
    batched = [name for name in dict.fromkeys(left) if left.count(name) > 1]
    return (*batched, *(name for name in left if name not in batched))


subsets = st.sets(st.sampled_from(LETTERS)).flatmap(lambda names: st.permutations(sorted(names)))


@given(data=st.data(), count=st.integers(1, 4))
@settings(max_examples=40)
def test_it_is_an_einsum(data, count):
    operands = [drawn(data.draw(subsets), seed) for seed in range(count)]
    common = sorted(set(LETTERS).intersection(*(x.names for x in operands)))
    summed = tuple(name for name in common if data.draw(st.booleans()))
    result = nym.dot(*operands, axis=summed)
    assert result.names == promised(operands, summed)
    assert np.allclose(result.array, einsum(operands, result), rtol=1e-4, atol=1e-5)


x, y, z = drawn("abc", 1), drawn("cbd", 2), drawn("ca", 3)


@pytest.mark.parametrize("axis", ["c", Axis("c", 4), ("c",), [Axis("c", 4)], {"c": 4}, {"c": None}])
def test_the_axis_is_given_in_many_ways(axis):
    result = nym.dot(x, y, axis=axis)
    assert result.names == ("b", "a", "d") and np.allclose(result.array, einsum([x, y], result), atol=1e-5)
    assert np.array_equal(x.dot(y, axis=axis).array, result.array)


def test_several_axes():
    result = nym.dot(x, y, axis=("c", "b"))
    assert result.names == ("a", "d") and np.allclose(result.array, einsum([x, y], result), atol=1e-5)


def test_none_sums_over_everything():
    for operands in ([x], [x, y], [x, y, z]):
        result = nym.dot(*operands, axis=None)
        assert result.names == () and np.allclose(result.array, einsum(operands, result), rtol=1e-4)


def test_no_axes_make_an_outer_product():
    one, other = drawn("a", 1), drawn("c", 2)
    assert np.allclose(nym.dot(one, other, axis=()).array, np.outer(one, other))
    result = nym.dot(x, y, axis=())
    assert result.names == ("b", "c", "a", "d") and np.allclose(result.array, einsum([x, y], result), atol=1e-5)
    assert np.array_equal(nym.dot(x, axis=()).array, x.array)


def test_one_array_is_summed():
    assert nym.dot(x, axis="b").names == ("a", "c") and np.allclose(nym.dot(x, axis="b").array, x.array.sum(1))
    small = nym.ones({"a": 3}, jnp.int8)
    assert nym.dot(small, axis="a", preferred_element_type=jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (("d", "a", "b"), ("d", "a", "b")),
        (("d", ...), ("d", "b", "a")),
        ((..., "b"), ("a", "d", "b")),
        ((Axis("a", 2), ..., "d"), ("a", "b", "d")),
        ((...,), ("b", "a", "d")),
    ],
)
def test_out_axes_may_be_a_partial_order(order, names):
    result = nym.dot(x, y, axis="c", out_axes=order)
    assert result.names == names and np.allclose(result.array, einsum([x, y], result), atol=1e-5)


def test_two_operands_take_one_dot_general_and_nothing_else(equations):
    assert equations(lambda x, y: nym.dot(x, y, axis="c"), x, y) == [("dot_general", (3, 2, 2))]
    assert equations(lambda x, y: nym.dot(x, y, axis=("b", "c")), x, y) == [("dot_general", (2, 2))]
    assert equations(lambda x, y: nym.dot(x, y, axis=()), x, y) == [("dot_general", (3, 4, 2, 2))]
    reordered = equations(lambda x, y: nym.dot(x, y, axis="c", out_axes=("d", ...)), x, y)
    assert reordered == [("dot_general", (3, 2, 2)), ("transpose", (2, 3, 2))]


@pytest.mark.parametrize("names", [("b", "a", "d"), ("b", "d", "a")])
def test_the_order_of_the_operands_adds_no_transpose(names, equations):
    for operands in ((x, y), (y, x)):
        order = ["dot_general"]
        assert [name for name, _ in equations(lambda *o: nym.dot(*o, axis="c"), *operands)] == order
        assert [name for name, _ in equations(lambda *o: nym.dot(*o, axis="c", out_axes=names), *operands)] == order
        result = nym.dot(*operands, axis="c", out_axes=names)
        assert result.names == names and np.allclose(result.array, einsum(operands, result), atol=1e-5)


def test_each_operand_keeps_its_own_precision():
    def precision(**options):
        operands = drawn("ab", 1), drawn("bc", 2)
        traced = jax.make_jaxpr(lambda *o: nym.dot(*o, axis="b", precision=["default", "highest"], **options))(
            *operands
        )
        return findall(r"Precision\.(\w+)", str(traced))

    assert precision() == precision(out_axes=("c", "a")) == ["DEFAULT", "HIGHEST"]


def test_another_dot_general_may_multiply():
    calls = []

    def halved(x, y, dimension_numbers, precision=None, preferred_element_type=None, **options):
        calls.append((x.shape, y.shape, dimension_numbers))
        options |= {"precision": precision, "preferred_element_type": preferred_element_type}
        return jax.lax.dot_general(x, y, dimension_numbers, **options) / 2

    for out_axes in (None, ("b", "d", "a")):
        result = nym.dot(x, y, axis="c", dot_general=halved, out_axes=out_axes)
        assert np.allclose(result.array * 2, einsum([x, y], result), atol=1e-5)
    assert calls == [((2, 3, 4), (4, 3, 2), (((2,), (0,)), ((1,), (1,))))] * 2
    assert result.names == ("b", "d", "a")
    jitted = jax.jit(lambda x, y: x.dot(y, axis="c", dot_general=halved))(x, y)
    assert np.allclose(jitted.array * 2, einsum([x, y], jitted), atol=1e-5)
    for operands, axis in (((x,), "c"), ((x, y, z), "c"), ((x, y), None)):
        with pytest.raises(
            ValueError, match=r"a `dot_general` multiplies two arrays and sums over axes of both, .*\(a: 2"
        ):
            nym.dot(*operands, axis=axis, dot_general=halved)


def test_what_to_sum_over_is_said():
    with pytest.raises(TypeError, match=escape("which at least two operands must have, here (b, c); `axis=()`")):
        nym.dot(x, y)
    with pytest.raises(TypeError, match=escape("which at least two operands must have; `axis=()` sums over noth")):
        drawn("a", 1).dot(drawn("b", 1))
    for axis in ("c", Axis("c", 4)):
        with pytest.raises(TypeError, match=escape(f"by keyword: `dot(x, y, axis={axis!r})`")):
            nym.dot(x, y, axis)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("one", "other"),
    [(jnp.float32, jnp.bfloat16), (jnp.int32, jnp.float32), (jnp.int8, jnp.int32), (jnp.bfloat16, jnp.bfloat16)],
)
def test_element_types_are_promoted_as_in_jax(one, other):
    left, right = drawn("ab", 1).astype(one), drawn("bc", 2).astype(other)
    expected = jnp.einsum("ab,bc->ac", left.array, right.array)
    result = nym.dot(left, right, axis="b")
    assert result.dtype == expected.dtype and np.allclose(result.array, expected, atol=0.1)
    assert nym.dot(left, right, left, axis="b").dtype == jnp.result_type(one, other)


def test_numbers_do_not_widen():
    number = nym.named(2.0, ())
    half = drawn("ab", 1).astype(jnp.bfloat16)
    assert nym.dot(half, number, axis=()).dtype == (half * number).dtype


def test_precision_and_element_type_reach_jax():
    half = [drawn(names, 1).astype(jnp.bfloat16) for names in ("ab", "bc", "bd")]
    for operands in (half[:2], half):
        assert nym.dot(*operands, axis="b", preferred_element_type=jnp.float32).dtype == jnp.float32
        for precision in ("highest", jax.lax.Precision.HIGHEST, ["default", "highest"]):
            traced = str(jax.make_jaxpr(lambda *o, p=precision: nym.dot(*o, axis="b", precision=p))(*operands))
            assert "HIGHEST" in traced
    assert nym.dot(*half, axis="b").dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "operands",
    [(x, drawn("ab", 5)), (drawn("ab", 5), x), (drawn("ab", 5),), (drawn("ab", 5), drawn("ab", 5), drawn("a", 5))],
)
def test_every_operand_has_the_contracted_axis(operands):
    shown = " and ".join(map(repr, (one.shape for one in operands)))
    with pytest.raises(
        ValueError, match=f"^{escape(f'cannot contract {shown}: no axis ')}'c' in {escape('(a: 2, b: 3)')}"
    ):
        nym.dot(*operands, axis="c")
    with pytest.raises(ValueError, match="cannot contract"):
        jax.jit(lambda *operands: nym.dot(*operands, axis="c"))(*operands)


def test_of_three_arrays_two_have_the_contracted_axis(mapped):
    one, two, three = drawn("ab", 1), drawn("bc", 2), drawn("ca", 3)
    plain = one.array, two.array, three.array
    for axis, text in ((("b", "c"), "ab,bc,ca->a"), (("a", "b", "c"), "ab,bc,ca->"), (Axis("b", 3), "ab,bc,ca->ca")):
        result = jax.jit(lambda *o, axis=axis: nym.dot(*o, axis=axis))(one, two, three)
        assert np.allclose(result.rearrange(tuple(text.split("->")[1])).array, jnp.einsum(text, *plain), rtol=1e-5)
    gradient = nym.grad(lambda x: nym.dot(x, two, three, axis=("b", "c")).sum())(one)
    assert np.allclose(gradient.array, jnp.einsum("bc,ca->ab", *plain[1:]), rtol=1e-5)
    text = (
        "cannot contract (a: 2, b: 3) and (b: 3, c: 4) and (b: 3): only (b: 3, c: 4) has axis 'c'; `sum` over it first"
    )
    with pytest.raises(ValueError, match=escape(text)):
        nym.dot(one, two, drawn("b", 1), axis=("b", "c"))
    with pytest.raises(ValueError, match="axis 'b' has size 3 here, 4 was asked for"):
        nym.dot(one, two, three, axis=Axis("b", 4))


def test_what_does_not_fit_says_so():
    for axis in ("a", "b", ("a", "b"), None, ()):
        with pytest.raises(
            ValueError, match=r"axis 'b' has size 3 and size 5 in \(a: 2, b: 3, c: 4\) and \(b: 5, a: 2\)"
        ):
            nym.dot(x, nym.ones({"b": 5, "a": 2}), axis=axis)
    with pytest.raises(ValueError, match=r"cannot contract .*: axis 'c' has size 4 here, 5 was asked for"):
        nym.dot(x, y, axis=Axis("c", 5))
    with pytest.raises(ValueError, match=r"cannot contract .*: no axis 'cc' in .*; did you mean 'c'?"):
        nym.dot(x, y, axis="cc")
    with pytest.raises(ValueError, match=r"cannot contract .*: axis 'c' is given more than once"):
        nym.dot(x, y, axis=("c", "c"))
    with pytest.raises(ValueError, match=escape("the order (a) leaves out (b, d)")):
        nym.dot(x, y, axis="c", out_axes=("a",))
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by 1"):
        nym.dot(x, y, axis=1)  # pyright: ignore[reportArgumentType]
    for axis, out_axes in ((["c", ["b"]], None), ("c", (["a"], ...))):
        with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by a list of length 1"):
            nym.dot(x, y, axis=axis, out_axes=out_axes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("plain", [np.ones(4), jnp.ones(4), 2.0, None])
def test_only_named_arrays_are_multiplied(plain):
    for operands in ((x, plain), (plain, x), (plain,)):
        with pytest.raises(TypeError, match=r"A named array is needed, not .*; make one with `axonym.named"):
            nym.dot(*operands, axis="c")


def test_the_gradient_has_the_names_of_the_operands():
    loss = lambda x, y: jnp.sum(jnp.sin(nym.dot(x, y, axis="c").array))  # noqa: E731
    plain = lambda x, y: jnp.sum(jnp.sin(jnp.einsum("abc,cbd->bad", x, y)))  # noqa: E731
    for own, gradient, expected in zip(
        (x, y), jax.grad(loss, (0, 1))(x, y), jax.grad(plain, (0, 1))(x.array, y.array), strict=True
    ):
        assert gradient.names == own.names and np.allclose(gradient.array, expected, atol=1e-5)


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_sharded_operands(mapped, inside, draw):
    x, w, v = draw(batch=8, pos=3, embed=4), draw(embed=4, mlp=6, pos=3), draw(embed=4, batch=8)
    run = jax.jit if inside else lambda fn: fn
    for operands, axis, out_axes, spec in (
        ((x, w), "embed", None, (None, "data", None)),
        ((x, w), "pos", None, ("model", "data", None)),
        ((x, w), ("embed", "pos"), ("mlp", ...), (None, "data")),
        ((x, w, v), "embed", None, ("data", None, None)),
        ((x, w, v), (), ("batch", "embed", ...), ("data", "model", None, None)),
        ((v, v), None, None, ()),
    ):
        expected = nym.dot(*operands, axis=axis, out_axes=out_axes)
        result = run(lambda *o, a=axis, n=out_axes: nym.dot(*o, axis=a, out_axes=n))(*nym.shard(operands))
        assert result.names == expected.names and np.allclose(result.array, expected.array, rtol=1e-4, atol=1e-5)
        if mapped.axis_types[0] == jax.sharding.AxisType.Explicit:
            assert result.sharding.spec == jax.P(*spec)
