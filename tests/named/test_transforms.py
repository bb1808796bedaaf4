"""`vmap`, `scan`, `fold` and `map` over named axes, against a loop in Python."""

import functools
import gc
import operator
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")
zero = nym.zeros({"a": 2, "c": 4})


def same(x, y):
    return x.names == y.names and x.dtype == y.dtype and np.allclose(x.array, y.array, rtol=1e-5, atol=1e-5)


def test_vmap_is_a_loop_over_slices():
    mapped = nym.vmap(lambda row, factor: row.sum("c") * factor, "b")(x, v)
    assert mapped.names == ("b", "a") and np.allclose(mapped.array, (np.asarray(x).sum(2) * np.asarray(v)).T)
    assert same(nym.vmap(lambda row: row, Axis("b", 3))(x), x.rearrange(("b", ...)))


def test_vmap_over_several_axes_puts_the_first_outermost():
    for axes in (("a", "c"), ["a", Axis("c", 4)], iter(("a", "c"))):
        mapped = nym.vmap(lambda row: nym.softmax(row, "b"), axes)(x)
        assert same(mapped, nym.softmax(x, "b").rearrange(("a", "c", "b")))
    fn = lambda row: row  # noqa: E731
    assert nym.vmap(fn, ()) is fn


def test_what_lacks_the_axis_is_given_whole():
    w = nym.ones({"c": 4})
    seen = []

    def fn(row, w, number, text, *, key=None):
        seen.append((row.names, w.names, number, text, key))
        return row * w

    result = nym.vmap(fn, "b")(x, w, 2, "text", key={"nested": (None, 3.5)})
    assert same(result, x.rearrange(("b", ...)))
    assert seen == [(("a", "c"), ("c",), 2, "text", {"nested": (None, 3.5)})]


def test_plain_arrays_take_part_along_their_first_axis():
    plain = jnp.arange(6.0).reshape(3, 2)
    for array in (plain, np.asarray(plain)):
        result, sums = nym.vmap(lambda factor, row: (factor, row.sum()), "b")(v, array)
        assert same(result, v) and isinstance(sums, jax.Array) and np.array_equal(sums, plain.sum(1))
    scalar = jnp.float32(2)
    assert same(nym.vmap(lambda factor, scale: factor * scale, "b")(v, scalar), v * 2)
    keys = jax.random.split(jax.random.key(0), 3)
    assert nym.vmap(lambda key: jax.random.uniform(key, (2,)), Axis("b", 3))(keys).shape == (3, 2)


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_on_a_mesh_a_mapped_axis_stays_sharded(mapped, inside, draw):
    run = jax.jit if inside else lambda fn: fn
    y, w = draw(batch=8, pos=4, embed=4), draw(embed=4)
    expected = y * 2 + w
    fn = lambda row, w: nym.auto_sharded(row * 2 + w)  # noqa: E731
    for axis, names, spec in (
        ("batch", ("batch", "pos", "embed"), ("data", None, "model")),
        ("pos", ("pos", "batch", "embed"), (None, "data", "model")),
        (("batch", "pos"), ("batch", "pos", "embed"), ("data", None, "model")),
    ):
        result = run(nym.vmap(fn, axis))(*nym.shard((y, w)))
        assert same(result, expected.rearrange(names))
        assert result.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P(*spec)), 3)


def test_on_an_auto_mesh_constraints_inside_divide_the_axis(auto_mesh):
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        whole = nym.named(jnp.ones((8, 4)), ("batch", "embed"))
        result = jax.jit(nym.vmap(nym.auto_sharded, "batch"))(whole)
        assert result.sharding.spec == jax.P("data", "model")


def test_on_a_mesh_vmap_gathers_nothing(mapped, draw):
    y = nym.shard(draw(batch=8, embed=4))
    compiled = jax.jit(nym.vmap(lambda row: nym.auto_sharded(nym.exp(row)), "batch")).lower(y).compile().as_text()
    assert "all-gather" not in compiled and "all-reduce" not in compiled and "all-to-all" not in compiled


def test_arguments_can_be_given_whole_and_plain_arrays_cut_where_one_says():
    tall, wide = jnp.arange(6.0).reshape(3, 2), jnp.arange(6.0).reshape(2, 3)

    def fn(row, rows, wide, tree):
        return row.array.sum(), rows.sum(), wide, tree

    said = (True, False, 1, {"last": -1, "own": lambda array: array.ndim - 1, "whole": None})
    tree = {"last": wide, "own": wide, "whole": tall}
    for run in (lambda f: f, jax.jit):
        sums, whole, cut, tree_of = run(nym.vmap(fn, "b", args=said))(v, v, wide, tree)
        assert np.array_equal(sums, v.array) and whole.names == ("b",) and np.array_equal(whole.array, [2.0] * 3)
        assert np.array_equal(cut, wide.T) and np.array_equal(tree_of["last"], wide.T)
        assert np.array_equal(tree_of["own"], wide.T) and tree_of["whole"].shape == (3, 3, 2)


def test_keyword_arguments_have_parts_of_their_own():
    whole = jnp.arange(5.0)
    fn = nym.vmap(lambda row, *, other, plain: (row * other.sum(), plain), "b", kwargs={"other": False, "plain": False})
    scaled, plain = fn(v, plain=whole, other=v)
    assert same(scaled, v * 2) and plain.shape == (3, 5)
    defaults = nym.vmap(lambda row, *, w: w, "b", default=False, kwargs={"missing": True})
    assert defaults(v, w=whole).shape == (3, 5)


def test_default_may_be_a_position():
    wide = jnp.arange(6.0).reshape(2, 3)
    assert np.array_equal(nym.vmap(lambda row, w: w, "b", default=1)(v, wide), wide.T)
    assert nym.vmap(lambda row, w: w, "b", default=None)(v, wide).shape == (3, 2, 3)
    assert nym.map(lambda row, w: w, "b", is_mapped=-1)(v, wide).shape == (3, 2)


def test_what_is_said_has_to_fit_the_arguments():
    fn = lambda *args: args[0]  # noqa: E731
    with refusal("the specs given to `vmap` for argument 1 are a tree that does not fit it"):
        nym.vmap(fn, "b", args=(True, {"k": True}))(v, {"l": jnp.ones(3)})
    with refusal("`vmap` with `args` for 2 positional arguments was given 1"):
        nym.vmap(fn, "b", args=(True, True))(v)
    with refusal("a plain array of shape (3,) has no axis at position 1"):
        nym.vmap(fn, "b", args=(True, 1))(v, jnp.ones(3))
    with refusal("must be True, False, None or the position of an axis, not 'first'", TypeError):
        nym.vmap(fn, "b", args=(True, "first"))(v, jnp.ones(3))
    with refusal("axis 'b' is given more than once in (b, b)"):
        nym.vmap(fn, ("b", Axis("b", 3)))


@pytest.mark.parametrize("types", ["Explicit Explicit", "Auto Explicit"])
def test_arrays_may_be_sharded_differently_along_the_mapped_axis(types):
    kinds = tuple(jax.sharding.AxisType[kind] for kind in types.split())
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds)
    x, weight = np.arange(8.0, dtype=np.float32)[::-1], np.arange(32.0, dtype=np.float32).reshape(4, 8)
    with jax.set_mesh(mesh), nym.axis_mapping({"a": "y", "b": "y"}):
        sharded = nym.shard(nym.named(x, "a")).rename({"a": "g"})
        other = nym.shard(nym.named(weight, ("b", "g")))
        product = x[:, None] * weight.T
        cases = [
            (sharded, nym.sort(sharded, "g"), x * np.sort(x)),
            (sharded, other, product),
            (other, sharded, product),
            (other, x, product),
        ]
        multiply = nym.vmap(lambda x, y: x * y, "g")
        for left, right, expected in cases:
            for fn in (multiply, jax.jit(multiply)):
                assert np.array_equal(fn(left, right).array, expected)


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


def loop(init, x, v, *, reverse=False):
    carry, results = init, []
    pairs = list(zip(x.unbind("b"), v.unbind("b"), strict=True))
    for row, factor in reversed(pairs) if reverse else pairs:
        carry, result = step(carry, row, factor)
        results.append(result)
    return carry, nym.stack("b", results[::-1] if reverse else results)


OPTIONS = [{}, {"reverse": True}, {"unroll": 2}, {"unroll": True}, {"remat": True}]
OPTIONS += [{"remat": jax.checkpoint_policies.dots_saveable, "reverse": True}]


@pytest.mark.parametrize("run", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
def test_scan_is_a_loop(run):
    def compute(options):
        folded = nym.fold(lambda c, row, factor: step(c, row, factor)[0], Axis("b", 3), **options)(zero, x, v)
        mapped = nym.map(lambda row, factor: nym.sin(row) * factor, "b", **options)(x, v)
        return nym.scan(step, "b", **options)(zero, x, v), folded, mapped

    forward, backward = jax.jit(lambda: (loop(zero, x, v), loop(zero, x, v, reverse=True)))()
    chosen = OPTIONS if run is jax.jit else [OPTIONS[0], OPTIONS[-1]]
    for options, (scanned, folded, mapped) in zip(chosen, run(lambda: [*map(compute, chosen)])(), strict=True):
        expected = backward if "reverse" in options else forward
        assert same(scanned[0], expected[0]) and same(scanned[1], expected[1]) and same(folded, expected[0]), options
        assert same(mapped, (nym.sin(x) * v).rearrange(("b", ...))), options


@pytest.mark.parametrize(
    "remat", [False, True, jax.checkpoint_policies.everything_saveable], ids=["no", "yes", "policy"]
)
def test_the_gradient_of_a_scan_is_that_of_a_loop(remat, equations):
    def compute_loss(scan, x, v):
        carry, results = scan(zero, x, v)
        return (carry.sum() + (results * v).sum()).scalar()

    scanned = functools.partial(compute_loss, nym.scan(step, "b", remat=remat))
    gradients = jax.jit(jax.grad(scanned, (0, 1)))(x, v)
    expected = jax.jit(jax.grad(functools.partial(compute_loss, loop), (0, 1)))(x, v)
    assert all(same(gradient, other) for gradient, other in zip(gradients, expected, strict=True))
    names = [name for name, _ in equations(jax.grad(scanned), x, v)]
    assert any("checkpoint" in name or "remat" in name for name in names) is (remat is not False)
    backward = jax.eval_shape(lambda x, v: jax.vjp(scanned, x, v)[1], x, v)
    kept = [leaf.shape for leaf in jax.tree.leaves(backward) if hasattr(leaf, "shape")]
    assert ((3, 2, 4) in kept) and (kept.count((3, 2, 4)) == 1) is (remat is True)


def test_a_scan_is_traced_as_one_written_by_hand(equations):
    def plain(c, x, v):
        def body(c, xs):
            c = c + jnp.sin(xs[0]) * xs[1]
            return c, c.sum(0)

        return jax.lax.scan(body, c, (jnp.moveaxis(x, 1, 0), v))

    assert equations(nym.scan(step, "b"), zero, x, v) == equations(plain, zero.array, x.array, v.array)


def test_keywords_are_cut_as_well():
    assert same(nym.fold(lambda c, *, row, fn: c + fn(row), "b")(zero, row=x, fn=nym.exp), nym.exp(x).sum("b"))
    assert same(nym.map(lambda init, carry: init * carry, "b")(init=v, carry=v), v * v)


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
    for result, other in zip(jax.tree.leaves(run(x)), before, strict=True):
        np.testing.assert_allclose(result, 10 * other, rtol=1e-5)


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
        expected = np.asarray(x) * np.reshape(np.ones(3, np.float32) * np.asarray(factor), (3, 1))
        assert np.allclose(fold(zero, x, factor).array, expected.sum(1), rtol=1e-5)
    kinds = []
    noted = nym.map(lambda row, factor: kinds.append(type(factor)) or row, "b")
    for factor in (1, True, 1.0, 1):
        noted(v, factor)
    assert list(dict.fromkeys(kinds)) == [int, bool, float]


@pytest.mark.parametrize(("unroll", "steps"), [(1, 1), (2, 2), (True, 3), (False, 1)])
def test_unroll_reaches_jax(unroll, steps):
    traced = str(jax.make_jaxpr(nym.scan(step, "b", unroll=unroll))(zero, x, v))
    assert f"unroll={steps}" in traced


def test_arguments_that_cannot_be_hashed():
    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

    expected = x.sum("b") + 3
    assert same(nym.fold(lambda c, row, extra: c + row + 1, "b")(zero, x, Unhashable()), expected)


def test_nothing_keeps_a_function_alive():
    def fold(amount):
        body = lambda carry, row: carry + row * amount  # noqa: E731
        nym.fold(body, "b")(zero, x)
        return weakref.ref(body)

    gone = fold(2.0)
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
def test_errors_name_the_function_the_axis_and_the_argument(transform):
    name, has_carry = transform.__name__, transform in (nym.fold, nym.scan)
    fn = (lambda carry, model, *rest, y=None: None) if has_carry else (lambda model, *rest, y=None: None)
    first, two, plain = (0,) * has_carry, nym.ones({"b": 2}), jnp.ones((2, 4))
    for axis, args, kwargs, text in (
        (Axis("b", 3), ({"w": (0, plain)},), {}, "; model['w'][1] has leading dimension 2"),
        (Axis("b", 3), (0, plain), {}, "; args[1] has leading dimension 2"),
        (Axis("b", 3), (0,), {"y": plain}, "shape (2, 4), which has size 2 there; y has leading dimension 2"),
        ("b", (x,), {"y": {"named": two}}, "of size 3 got (b: 2), which has size 2 there; it is y['named']"),
        *(("z", (arg,), {}, f"`{name}` over axis 'z': no argument has it; give an `Axis`") for arg in (x, 1, "", None)),
        (Axis("b", 5), (x,), {}, "axis 'b' has size 3 here, 5 was asked for"),
        ("b", (x, two), {}, f"`{name}` over axis 'b' of size 3 got (b: 2), which has size 2 there"),
        ("b", (jnp.ones((4, 1)), x), {}, f"`{name}` over axis 'b' of size 3 got a plain array of shape (4, 1), which"),
        ("z", (jnp.ones(2), jnp.ones(3)), {}, f"`{name}` over axis 'z' of size 2 got a plain array of shape (3,)"),
    ):
        with refusal(text):
            transform(fn, axis)(*first, *args, **kwargs)
    with refusal("given by an `Axis` or by its name, not by 0", TypeError):
        transform(fn, 0)(*first, x)


def test_a_result_that_has_the_axis_already():
    for run in (nym.vmap(lambda row: x, "b"), nym.map(lambda row: x, "b")):
        with refusal("the result (a: 2, b: 3, c: 4) already has axis 'b', along which results are stacked"):
            run(x)
    with refusal("the result (a: 2, b: 3, c: 4) already has axis 'b', along which results are stacked"):
        nym.scan(lambda carry, row: (carry, x), "b")(0, x)


def test_what_a_body_must_return():
    for wrong in (lambda carry, row: carry, lambda carry, row: (carry, row, row), lambda carry, row: [carry, row]):
        with refusal("given to `scan` must return a pair: the next carry and a result", TypeError):
            nym.scan(wrong, "b")(zero, x)
    with refusal("with the same axes in the same order", TypeError):
        nym.fold(lambda carry, row: carry.rearrange(("c", "a")), "b")(zero, x)


@pytest.mark.parametrize("axis", ["batch", "pos"])
def test_on_a_mesh_a_scan_is_still_a_loop(mapped, axis, draw):
    y, f = draw(batch=8, pos=4, embed=4), draw(batch=8, pos=4)
    body = lambda carry, row, factor: (carry + row * factor, row.sum("embed"))  # noqa: E731
    start = nym.zeros_like(y[axis, 0])
    expected = nym.scan(body, axis)(start, y, f)
    for run in (jax.jit(nym.scan(body, axis)), *([nym.scan(body, axis)] if axis == "batch" else [])):
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
    assert nym.vmap(lambda row: row.sum(), "b")(empty).shape == {"b": 0}
    carry, rows = nym.scan(lambda carry, row: (carry + row, row * 2), "b")(nym.ones({"c": 2}), empty)
    assert same(carry, nym.ones({"c": 2})) and rows.shape == {"b": 0, "c": 2}


def test_a_step_keeps_the_axes_of_the_carry():
    for wrong, after in (
        (lambda carry, row: carry + row, "a named array (a: 2, c: 4)"),
        (lambda carry, row: carry.array, "an array of shape ()"),
    ):
        with refusal(f"The carry of `fold` is a named array () before a step and {after} after", TypeError):
            nym.fold(wrong, "b")(nym.named(0.0, ()), x)


@pytest.mark.parametrize(("summed", "start"), [(("a", "c"), "named(0.0, ())"), ("c", "zeros({'a': 2})")])
def test_a_carry_without_names_is_told_how_to_start(summed, start):
    def add_up(x):
        return nym.fold(lambda carry, row: carry + row.sum(summed), "b")(0.0, x)

    for call in (add_up, nym.named_jit(add_up)):
        with refusal(f"the same axes in the same order, so start with `axonym.{start}`", TypeError):
            call(x)
