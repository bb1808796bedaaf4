"""`vmap`, `scan`, `fold` and `map` over named axes, against a loop in Python."""

import functools
import gc
import operator
import sys
import weakref
from re import escape

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")
zero = nym.zeros({"a": 2, "c": 4})


def same(one, other):
    return (
        one.names == other.names
        and one.dtype == other.dtype
        and np.allclose(one.array, other.array, rtol=1e-5, atol=1e-5)
    )


def slices(x, axis="b"):
    return x.unbind(axis)


def test_default_says_which_plain_arrays_take_part():
    whole = jnp.arange(5.0)
    result = nym.vmap(lambda factor, row: (factor, row.sum()), "b", default=lambda array: False)(v, whole)
    assert np.array_equal(result[1], [10.0] * 3)
    result = nym.scan(lambda c, f, row: (c, row.sum()), "b", is_scanned=lambda array: array.shape[0] == 3)
    assert np.array_equal(result(0, v, whole)[1], [10.0] * 3)
    mapped = nym.map(lambda f, row: row.sum(), "b", is_mapped=lambda array: False)(v, whole)
    assert np.array_equal(mapped, [10.0] * 3)
    assert nym.fold(lambda c, f, row: c + row.sum(), "b", is_scanned=lambda array: False)(0.0, v, whole) == 30


def test_results_that_are_no_arrays_come_back_as_they_are():
    marker = object()

    def fn(*args):
        row = args[-1]
        return {"row": row, "rest": (marker, "text", None, 3, row.array.sum(), operator.add)}

    for result in (
        nym.vmap(fn, "b")(x),
        nym.map(fn, "b")(x),
        nym.scan(lambda carry, row: (carry, fn(row)), "b")(0, x)[1],
        nym.map(fn, "b")(x),
    ):
        assert same(result["row"], x.rearrange(("b", ...)))
        first, text, nothing, number, sums, function = result["rest"]
        assert first is marker and (text, nothing, number, function) == ("text", None, 3, operator.add)
        assert np.allclose(sums, x.sum(("a", "c")).array)


def test_an_axis_with_a_size_needs_no_argument():
    assert nym.vmap(lambda: nym.ones({"c": 2}), Axis("b", 3))().shape == {"b": 3, "c": 2}
    assert nym.fold(lambda carry: carry * 2, Axis("b", 3))(1.0) == 8
    assert nym.map(lambda: nym.named(1, ()), Axis("b", 3))().shape == {"b": 3}


def step(carry, row, factor):
    carry = carry + nym.sin(row) * factor
    return carry, carry.sum("a")


def looped(init, x, v, *, reverse=False):
    carry, results = init, []
    pairs = list(zip(slices(x), slices(v), strict=True))
    for row, factor in reversed(pairs) if reverse else pairs:
        carry, result = step(carry, row, factor)
        results.append(result)
    return carry, nym.stack("b", results[::-1] if reverse else results)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reverse": True},
        {"unroll": 2},
        {"unroll": True},
        {"remat": True},
        {"remat": jax.checkpoint_policies.dots_saveable, "reverse": True},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_scan_is_a_loop(options, inside):
    run = jax.jit if inside else lambda fn: fn
    expected = looped(zero, x, v, reverse=options.get("reverse", False))
    carry, results = run(nym.scan(step, "b", **options))(zero, x, v)
    assert same(carry, expected[0]) and same(results, expected[1])
    folded = run(nym.fold(lambda c, row, factor: step(c, row, factor)[0], Axis("b", 3), **options))(zero, x, v)
    assert same(folded, expected[0])
    mapped = run(nym.map(lambda row, factor: nym.sin(row) * factor, "b", **options))(x, v)
    assert same(mapped, (nym.sin(x) * v).rearrange(("b", ...)))


@pytest.mark.parametrize(
    "remat", [False, True, jax.checkpoint_policies.everything_saveable], ids=["no", "yes", "policy"]
)
def test_the_gradient_of_a_scan_is_that_of_a_loop(remat, equations):
    def loss(scan, x, v):
        carry, results = scan(zero, x, v)
        return (carry.sum() + (results * v).sum()).scalar()

    scanned = functools.partial(loss, nym.scan(step, "b", remat=remat))
    gradients = jax.grad(scanned, (0, 1))(x, v)
    expected = jax.grad(functools.partial(loss, looped), (0, 1))(x, v)
    assert all(same(one, other) for one, other in zip(gradients, expected, strict=True))
    names = [name for name, _ in equations(jax.grad(scanned), x, v)]
    assert any("checkpoint" in name or "remat" in name for name in names) is (remat is not False)
    _, backward = jax.vjp(scanned, x, v)
    kept = [leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert ((3, 2, 4) in kept) and (kept.count((3, 2, 4)) == 1) is (remat is True)


def test_a_scan_is_traced_as_one_written_by_hand(equations):
    def plain(c, x, v):
        def body(c, xs):
            c = c + jnp.sin(xs[0]) * xs[1]
            return c, c.sum(0)

        return jax.lax.scan(body, c, (jnp.moveaxis(x, 1, 0), v))

    assert equations(nym.scan(step, "b"), zero, x, v) == equations(plain, zero.array, x.array, v.array)


def test_pytrees_are_carried_and_returned():
    def body(carry, row):
        total, (count, nothing) = carry
        return (total + row, (count + 1, nothing)), {"row": row, "count": count}

    (total, (count, nothing)), results = nym.scan(body, "b")((zero, (0, None)), x)
    assert same(total, x.sum("b")) and count == 3 and nothing is None
    assert same(results["row"], x.rearrange(("b", ...))) and np.array_equal(results["count"], [0, 1, 2])


def test_keywords_are_cut_as_well():
    assert same(nym.fold(lambda c, *, row, fn: c + fn(row), "b")(zero, row=x, fn=nym.exp), nym.exp(x).sum("b"))
    assert same(nym.map(lambda init, carry: init * carry, "b")(init=v, carry=v), v * v)


def test_modules_are_cut():
    class Shift(eqx.Module):
        amount: nym.NamedArray
        name: str
        scale: float

        def __call__(self, carry):
            return carry + self.amount * self.scale

    layers = Shift(nym.named(np.ones((3, 4), np.float32), ("b", "c")), "shift", 2.0)
    result = nym.fold(lambda carry, layer: layer(carry), "b")(nym.zeros({"c": 4}), layers)
    assert np.array_equal(result.array, [6.0] * 4)


factor = 1.0


@pytest.mark.parametrize(
    "run",
    [
        nym.vmap(lambda row: row * factor, "b"),
        nym.map(lambda row: row * factor, "b"),
        nym.map(lambda row: row * factor, "b", remat=True),
        functools.partial(nym.fold(lambda carry, row: carry + row * factor, "b"), zero),
        functools.partial(nym.fold(lambda carry, row: carry + row * factor, ("b", "a"), remat="nested"), zero["a", 0]),
        functools.partial(nym.scan(lambda carry, row: (carry, row * factor), "b"), 0),
        functools.partial(nym.scan(lambda carry, row: (carry + row * factor, None), "b"), zero),
        nym.grad(lambda x: nym.fold(lambda carry, row: carry + (row * factor).sum(), "b")(nym.named(0.0, ()), x)),
        nym.value_and_grad(lambda x: (x * factor).sum()),
        nym.lift(lambda row: row * factor, "b"),
    ],
    ids=["vmap", "map", "remat", "fold", "nested", "scan", "carry", "grad", "value_and_grad", "lift"],
)
def test_a_changed_global_is_seen_by_the_next_eager_call(run, monkeypatch):
    before = jax.tree.leaves(run(x))
    monkeypatch.setattr(sys.modules[__name__], "factor", 10.0)
    assert all(np.allclose(after, 10 * one) for after, one in zip(jax.tree.leaves(run(x)), before, strict=True))


def test_under_jit_a_loop_is_traced_once():
    traced = []

    def body(carry, row):
        traced.append(1)
        return carry + row, carry

    run = jax.jit(nym.scan(body, "b"))
    for _ in range(3):
        run(zero, x)
    assert len(traced) <= 2  # JAX may trace a body twice


def test_static_arguments_of_different_types_are_told_apart():
    def body(carry, row, factor):
        return carry + row * factor

    fold = nym.fold(body, "b")
    for factor in (1, True, 1.0, 2.0, jnp.float32(3), v):
        expected = sum((row * f for row, f in zip(slices(x), slices(nym.ones_like(v) * factor), strict=True)), zero)
        assert same(fold(zero, x, factor), expected)
    kinds = []
    noted = nym.map(lambda row, factor: kinds.append(type(factor)) or row, "b")
    for factor in (1, True, 1.0, 1):
        noted(v, factor)
    assert list(dict.fromkeys(kinds)) == [int, bool, float]


@pytest.mark.parametrize(("unroll", "steps"), [(1, 1), (2, 2), (True, 3), (False, 1)])
def test_unroll_reaches_jax(unroll, steps):
    traced = str(jax.make_jaxpr(nym.scan(step, "b", unroll=unroll))(zero, x, v))
    assert f"unroll={steps}" in traced


def test_functions_and_arguments_that_cannot_be_hashed():
    class Adder(eqx.Module):
        amount: jax.Array

        def __call__(self, carry, row, extra=None):
            return carry + row + self.amount

    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

    expected = x.sum("b") + 3
    assert same(nym.fold(Adder(jnp.float32(1)), "b")(zero, x), expected)
    assert same(nym.fold(lambda c, row, extra: c + row + 1, "b")(zero, x, Unhashable()), expected)
    assert same(nym.fold(operator.add, "b")(zero, x), x.sum("b"))


def test_nothing_keeps_a_function_alive():
    def loop(amount):
        body = lambda carry, row: carry + row * amount  # noqa: E731
        nym.fold(body, "b")(zero, x)
        return weakref.ref(body)

    gone = loop(2.0)
    gc.collect()
    assert gone() is None


def test_a_function_may_close_over_what_is_traced():
    def fn(x, w):
        return nym.fold(lambda carry, row: carry + row * w, "b")(zero, x)

    w = nym.ones({"c": 4}) * 2
    assert same(jax.jit(fn)(x, w), x.sum("b") * 2)
    gradient = jax.grad(lambda w: fn(x, w).sum().scalar())(w)
    assert same(gradient, x.sum(("a", "b")))
    outer = nym.vmap(lambda w: fn(x, nym.ones({"c": 4}) * w), "k")(nym.named(jnp.arange(2.0), "k"))
    assert outer.names == ("k", "a", "c") and np.allclose(outer.array[1], x.sum("b").array)


@pytest.mark.parametrize("transform", [nym.vmap, nym.map, nym.fold, nym.scan])
def test_errors_about_sizes_name_the_argument(transform):
    has_carry = transform in (nym.fold, nym.scan)
    fn = (lambda carry, model, *rest, y=None: None) if has_carry else (lambda model, *rest, y=None: None)
    run, first, plain = transform(fn, Axis("b", 3)), (0,) * has_carry, jnp.ones((2, 4))
    with pytest.raises(ValueError, match=r"shape \(2, 4\), .*; model\['w'\]\[1\] has leading dimension 2$"):
        run(*first, {"w": (0, plain)})
    with pytest.raises(ValueError, match=r"; args\[1\] has leading dimension 2$"):
        run(*first, 0, plain)
    with pytest.raises(ValueError, match=r"; y has leading dimension 2$"):
        run(*first, 0, y=plain)
    run = transform(fn, "b")
    with pytest.raises(ValueError, match=r"of size 3 got \(b: 2\), which has size 2 there; it is y\['named'\]$"):
        run(*first, x, y={"named": nym.ones({"b": 2})})


@pytest.mark.parametrize("transform", [nym.vmap, nym.map, nym.fold, nym.scan])
def test_errors_name_the_function_and_the_axis(transform):
    name = transform.__name__
    first = () if transform in (nym.vmap, nym.map) else (0,)
    fn = lambda *args: args[0]  # noqa: E731
    for argument in (x, 1, "text", None):
        with pytest.raises(
            ValueError, match=f"^`{name}` over axis 'z': no argument has it; give an `Axis` with its size$"
        ):
            transform(fn, "z")(*first, argument)
    with pytest.raises(ValueError, match="axis 'b' has size 3 here, 5 was asked for"):
        transform(fn, Axis("b", 5))(*first, x)
    with pytest.raises(ValueError, match=rf"`{name}` over axis 'b' of size 3 got \(b: 2\), which has size 2 there"):
        transform(fn, "b")(*first, x, nym.ones({"b": 2}))
    with pytest.raises(
        ValueError, match=rf"`{name}` over axis 'b' of size 3 got a plain array of shape \(4, 1\), which has size 4"
    ):
        transform(fn, "b")(*first, jnp.ones((4, 1)), x)
    with pytest.raises(
        ValueError, match=rf"`{name}` over axis 'z' of size 2 got a plain array of shape \(3,\), which has size 3"
    ):
        transform(fn, "z")(*first, jnp.ones(2), jnp.ones(3))
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by 0"):
        transform(fn, 0)(*first, x)


def test_a_result_that_has_the_axis_already():
    for run in (
        lambda: nym.vmap(lambda row: x, "b")(x),
        lambda: nym.map(lambda row: x, "b")(x),
        lambda: nym.scan(lambda carry, row: (carry, x), "b")(0, x),
    ):
        with pytest.raises(
            ValueError,
            match=escape("the result (a: 2, b: 3, c: 4) already has axis 'b', along which results are stacked"),
        ):
            run()


def test_what_a_body_must_return():
    for wrong in (lambda carry, row: carry, lambda carry, row: (carry, row, row), lambda carry, row: [carry, row]):
        with pytest.raises(TypeError, match="given to `scan` must return a pair: the next carry and a result"):
            nym.scan(wrong, "b")(zero, x)
    with pytest.raises(TypeError, match="with the same axes in the same order"):
        nym.fold(lambda carry, row: carry.rearrange(("c", "a")), "b")(zero, x)


@pytest.mark.parametrize("axis", ["batch", "pos"])
def test_on_a_mesh_a_scan_is_still_a_loop(mapped, axis, draw):
    y, f = draw(batch=8, pos=4, embed=4), draw(batch=8, pos=4)
    body = lambda carry, row, factor: (carry + row * factor, row.sum("embed"))  # noqa: E731
    start = nym.zeros_like(y[axis, 0])
    expected = nym.scan(body, axis)(start, y, f)
    for run in (nym.scan(body, axis), jax.jit(nym.scan(body, axis))):
        carry, results = run(*nym.shard((start, y, f)))
        assert same(carry, expected[0]) and same(results, expected[1])
        rest = jax.P(*({"batch": "data", "embed": "model"}.get(name) for name in carry.names))
        assert mapped.axis_types[0] == AxisType.Auto or carry.sharding.spec == rest
    gradient = jax.jit(jax.grad(lambda y: nym.fold(lambda c, row: c + row * row, axis)(start, y).sum().scalar()))
    assert same(gradient(nym.shard(y)), y * 2)


def test_a_carry_is_sharded_by_its_names_from_the_first_step_on(mesh):
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        x = nym.shard(nym.ones({"layers": 3, "batch": 8, "embed": 4}))
        start = nym.named(np.zeros((8, 4), np.float32), ("batch", "embed"))  # lies on one device
        for compiled in (lambda f: f, jax.jit):
            total = compiled(lambda start, x: nym.fold(lambda carry, row: carry + row, "layers")(start, x))(start, x)
            assert total.sharding.spec == P("data", "model")
            np.testing.assert_array_equal(np.asarray(total), np.full((8, 4), 3.0))


def test_loops_over_several_axes_are_nested_the_first_outermost():
    for axes in (("a", "b"), ["b", Axis("a", 2)]):
        order = tuple(getattr(axis, "name", axis) for axis in axes)
        mapped = nym.map(lambda row: nym.softmax(row, "c"), axes)(x)
        assert same(mapped, nym.softmax(x, "c").rearrange((*order, "c")))
        total, partial = nym.scan(lambda carry, row: (carry + row.sum(), carry), axes)(nym.named(0.0, ()), x)
        sums = np.asarray(x.sum("c").rearrange(order).array)
        before = np.concatenate([[0.0], np.cumsum(sums)[:-1]]).reshape(sums.shape)
        assert total.item() == 276 and partial.names == order and np.array_equal(partial.array, before)
    backwards = nym.fold(lambda carry, row: carry * 0.5 + row, ("a", "b"), reverse=True)(nym.zeros({"c": 4}), x)
    expected = nym.zeros({"c": 4})
    for row in (x["a", i, "b", j] for i in (1, 0) for j in (2, 1, 0)):
        expected = expected * 0.5 + row
    assert same(backwards, expected)


def test_an_axis_without_elements():
    empty = nym.zeros({"b": 0, "c": 2})
    assert nym.map(lambda row: row.sum(), "b")(empty).shape == {"b": 0}
    carry, rows = nym.scan(lambda carry, row: (carry + row, row * 2), "b")(nym.ones({"c": 2}), empty)
    assert same(carry, nym.ones({"c": 2})) and rows.shape == {"b": 0, "c": 2}


def test_a_step_keeps_the_axes_of_the_carry():
    for wrong, after in (
        (lambda carry, row: carry + row, r"a named array \(a: 2, c: 4\)"),
        (lambda carry, row: carry.array, r"an array of shape \(\)"),
    ):
        with pytest.raises(
            TypeError, match=rf"The carry of `fold` is a named array \(\) before a step and {after} after"
        ):
            nym.fold(wrong, "b")(nym.named(0.0, ()), x)


@pytest.mark.parametrize(
    ("summed", "start"), [(("a", "c"), r"`axonym.named\(0.0, \(\)\)`"), ("c", r"`axonym.zeros\({'a': 2}\)`")]
)
def test_a_carry_without_names_is_told_how_to_start(summed, start):
    def add_up(x):
        return nym.fold(lambda carry, row: carry + row.sum(summed), "b")(0.0, x)

    for call in (add_up, nym.named_jit(add_up)):
        with pytest.raises(TypeError, match=f"the same axes in the same order, so start with {start}"):
            call(x)
