"""Donation: which arguments of a compiled function give up their memory."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ...refusals import refusal


VALUES = np.ones(3, np.float32)


class State(eqx.Module):
    weight: nym.NamedArray
    moment: nym.NamedArray
    bias: nym.NamedArray | None
    act: object = jnp.tanh


def placed(values=VALUES):
    """An array on a device, made without a program."""
    return jax.device_put(values)


def state():
    return State(nym.named(placed(), "i"), nym.named(placed(0 * VALUES), "i"), None)


def step(state, x):
    """Uses all its memory again: each array of the state has one of the same size in the result."""
    return State(state.weight + x, state.moment + x, None, state.act)


def gone(tree) -> list[bool]:
    """Returns for each array whether it was donated."""
    return [leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def by_position(fn, state, x):
    return fn(state, x)


def by_keyword(fn, state, x):
    return fn(x=x, state=state)


def donating(call, **options) -> list[bool]:
    """Returns whether weight, moment and the other argument were donated."""
    fn, before, x = nym.named_jit(step, **options), state(), nym.named(placed(), "i")
    after = call(fn, before, x)
    assert not any(gone(after))
    np.testing.assert_array_equal(after.weight.array, np.full(3, 2.0))
    return gone((before, x))


def whole(flag) -> State:
    return jax.tree.map(lambda _: flag, state())


@pytest.mark.parametrize(
    ("call", "options", "donated"),
    [
        (by_position, {}, [False, False, False]),
        (by_position, {"donate_args": True}, [True, True, False]),
        (by_keyword, {"donate_args": (None, True)}, [False, False, True]),
        (by_position, {"donate_args": (whole(True), None)}, [True, True, False]),
        (by_keyword, {"donate_args": (State(True, False, None, False),)}, [True, False, False]),
        (
            by_position,
            {"donate_args": (State(np.bool_(False), lambda leaf: leaf.ndim == 1, None, False),)},
            [False, True, False],
        ),
        (by_position, {"donate_args": (eqx.is_array, None)}, [True, True, False]),
        (by_position, {"donate_args": (lambda leaf: getattr(leaf, "ndim", 0) > 1,)}, [False, False, False]),
        (by_position, {"donate_kwargs": {"state": True}}, [True, True, False]),
        (by_keyword, {"donate_kwargs": {"state": eqx.is_array, "x": False}}, [True, True, False]),
        (by_keyword, {"donate_args": (False,), "donate_kwargs": {"state": True}}, [True, True, False]),
    ],
)
def test_arguments_are_donated_however_they_are_passed(call, options, donated):
    assert donating(call, **options) == donated


def test_a_donated_state_is_given_back_each_step_and_may_not_be_passed_again(mesh):
    @nym.named_jit(donate_args=({"w": True, "n": False},))
    def add(state, act=None):
        return {**state, "w": state["w"] + 1 if act is None else act(state["w"])}

    with nym.axis_mapping({"batch": "data"}):
        now = {"w": nym.NamedArray(np.ones(8, np.float32), "batch"), "n": np.float32(1)}
        compiled = add.lower(now, nym.negative).compile()
        for _ in range(3):
            before, now = now, add(now)
        assert gone(before["w"]) == [True]
        with pytest.raises(ValueError, match=r"donates state\['w'\], which is deleted, .* pass what that call"):
            add(before)
        np.testing.assert_array_equal(now["w"].array, np.full(8, 4.0))
        assert gone(now["w"]) == [False]
        compiled(now, nym.negative)
        assert gone(now["w"]) == [True]


def test_functions_look_at_each_call_anew_and_trace_once():
    limit = [0]
    jitted = nym.named_jit(lambda a, b: (a + b, a - b), donate_args=(lambda leaf: float(leaf[0]) > limit[0],) * 2)
    for limit[0], donated in [(0.7, [True, False]), (0, [True, True]), (0.7, [True, False]), (0, [True, True])]:
        pair = placed(), placed(VALUES / 2)
        jitted(*pair)
        assert gone(pair) == donated
    assert jitted.trace_count == 2


def test_positions_without_names_and_names_without_positions():
    def fn(first, /, *rest, last, **more):
        return jax.tree.map(lambda x: x + 1, (first, rest, last, more))

    def call(**options):
        args = tuple(placed() for _ in range(6))
        nym.named_jit(fn, **options)(*args[:3], last=args[3], other=args[4], first=args[5])
        return gone(args)

    assert call(donate_args=(False, True)) == [False, True, False, False, False, False]
    assert call(donate_args=(True, False, True, True, True)) == [True, False, True, False, False, False]
    assert call(donate_kwargs={"last": True, "other": True}) == [False, False, False, True, True, False]


NO_FLAG = "Donation is specified by booleans, trees of booleans or functions, not {}; give one for each"
NAMES = "`donate_kwargs` is a mapping from names to booleans, not "


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"donate_kwargs": {"stat": False}}, ValueError, "`donate_kwargs` names 'stat'; the function takes state, x"),
        (
            {"donate_args": (True,) * 3},
            ValueError,
            "has 3 entries; the function takes 2 arguments by position: state, x",
        ),
        ({"donate_args": (False, 1)}, TypeError, NO_FLAG.format(1)),
        ({"donate_kwargs": True}, TypeError, f"{NAMES}True"),
        ({"donate_kwargs": ("state",)}, TypeError, f"{NAMES}('state',)"),
    ],
)
def test_mistakes_are_errors_when_the_function_is_made(options, error, text):
    with refusal(text, error):
        nym.named_jit(step, **options)
    with refusal(text, error):
        nym.named_jit(**options)(step)


def test_a_tree_that_does_not_fit_is_an_error_and_a_function_without_a_signature_takes_anything():
    for call, options in [
        (by_position, {"donate_args": ({"wieght": True},)}),
        (by_keyword, {"donate_kwargs": {"state": (True, False)}}),
    ]:
        with refusal("a tree of booleans for donation does not fit its argument"):
            donating(call, **options)
    assert nym.named_jit(max, donate_args=(False, False), donate_kwargs={"key": False})(1, 2) == 2


def half_used(state, x):
    return {"w": state["w"] + x}


def of_sizes(**sizes):
    return {name: nym.named(placed(np.ones(size, np.float32)), "i") for name, size in sizes.items()}


def caught(fn, *args) -> list[tuple[type, str]]:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        fn(*args)
    return [(warning.category, str(warning.message)) for warning in shown]


@pytest.mark.parametrize("kind", ["none", "auto", "explicit"])
def test_memory_that_is_not_reused_is_named_once_for_each_trace(request, kind):
    mesh = None if kind == "none" else request.getfixturevalue(f"{kind}_mesh")
    fn = nym.named_jit(half_used, donate_args=(True,))
    start = (
        "`half_used` cannot reuse donated memory, because no result has the same shape, dtype and sharding or because "
        "it does not use the argument: "
    )

    def warned(**sizes):
        return [text for kind, text in caught(fn, of_sizes(**sizes), np.float32(1)) if kind is RuntimeWarning]

    with jax.set_mesh(mesh):
        assert warned(w=8, moment=8, scale=5) == [start + "state['moment'], float32[8]; state['scale'], float32[5]"]
        assert warned(w=8, moment=8, scale=5) == []
        assert warned(w=6, moment=8, scale=6) == [start + "state['moment'], float32[8]; state['scale'], float32[6]"]
        assert warned(w=7) == []


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
def test_the_warning_points_to_the_call_and_keeps_the_filters():
    fn, filters = nym.named_jit(half_used, donate_args=(True,)), list(warnings.filters)
    with pytest.warns(RuntimeWarning, match="cannot reuse donated memory") as shown:
        fn(of_sizes(w=2, other=3), np.float32(1))
    assert {warning.filename for warning in shown if warning.category is RuntimeWarning} == {__file__}
    assert warnings.filters == filters


def test_donation_inside_another_function_or_while_jax_looks_for_nans_has_no_effect():
    fn = nym.named_jit(half_used, donate_args=(True,))
    given = of_sizes(w=2, other=3)
    assert caught(jax.jit(lambda state: fn(state, np.float32(1))), given) == []
    with jax.disable_jit():
        assert caught(fn, given, np.float32(1)) == []
    assert gone(given) == [False, False]
    with jax.debug_nans(True):
        assert caught(nym.named_jit(lambda x: x * 2, donate_args=(True,)), placed()) == []


def test_an_argument_that_is_no_array_has_nothing_to_donate():
    fn = nym.named_jit(step, donate_args=(False, True))
    text = "argument 'x' is to be donated, but is of type int; only arrays can be donated"
    assert caught(fn, state(), 3) == [(RuntimeWarning, text)]
    assert caught(fn, state(), 4) == []
    assert caught(nym.named_jit(step, donate_args=(whole(True),)), state(), 3) == []
    assert caught(nym.named_jit(lambda empty: empty, donate_args=(True,)), ()) == []


def test_what_is_moved_on_entry_gives_up_its_copy(mesh):
    """The array that the caller has is left as it is, or deleted if the copy shares its memory; never overwritten."""
    for mapping in ({"i": "data"}, {}):
        fn = nym.named_jit(lambda x: x + 1, in_axis_resources=mapping, donate_args=(True,))
        numpy = np.ones(8, np.float32)
        given = nym.named(jax.device_put(numpy, mesh.devices[0, 0]), "i")
        now = fn(given)
        if not given.array.is_deleted():
            np.testing.assert_array_equal(np.asarray(given.array), np.ones(8))
        for _ in range(2):
            before, now = now, fn(now)
            assert gone(before) == [True]
        np.testing.assert_array_equal(np.asarray(now), np.full(8, 4.0))
        assert fn(nym.NamedArray(numpy, "i")).shape == (8,)
        np.testing.assert_array_equal(numpy, np.ones(8))


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_a_copy_on_another_mesh_that_a_donation_deletes_is_named(axis_types):
    mesh, serving_mesh = (nym.create_mesh((4, 2), names, axis_types=axis_types) for names in (("a", "b"), ("c", "d")))
    model = nym.shard({"norm": nym.named(np.ones(8, np.float32), "mlp")}, {"mlp": "b"}, mesh)
    served = nym.shard(model, {"mlp": "d"}, serving_mesh)
    generate = nym.named_jit(lambda served: served["norm"].sum())
    with jax.set_mesh(mesh):
        nym.named_jit(lambda model: jax.tree.map(jnp.negative, model), donate_args=(True,))(model)
    text = r"takes served\['norm'\], which is deleted, because .* donated it, or an array in the same memory, which"
    with jax.set_mesh(serving_mesh), pytest.raises(ValueError, match=text):
        generate(served)


def test_an_array_that_is_donated_and_passed_twice_is_an_error(mesh):
    """XLA ends the process when this happens on several devices, at any call after the first."""

    def mix(model, average):
        return jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, average, model)

    model = {"weight": np.ones((8, 4), np.float32), "bias": np.ones(4, np.float32)}
    names = {"weight": ("embed", "mlp"), "bias": "mlp"}
    model = nym.shard({key: nym.named(values, names[key]) for key, values in model.items()}, {"mlp": "model"})
    average = nym.shard(model, {"mlp": "model", "embed": "data"})  # the bias is in place, so it is the same array
    text = "`mix` donates average['bias'], which is the same array as model['bias']; pass a copy for one of them"
    fn = nym.named_jit(mix, donate_args=(False, True))
    for _ in range(2):
        with refusal(text):
            fn(model, average)
        copied = jax.tree.map(jnp.copy, average)
        result = fn(model, copied)
        assert gone(copied) == [True, True]
        assert gone((model, result)) == [False] * 4
    fn = nym.named_jit(lambda a, b: (a + 1, b + 1), donate_args=(True, False), in_axis_resources={"i": "data"})
    x, y, z = (nym.named(placed(np.ones(8, np.float32)), "i") for _ in range(3))
    fn(x, y)  # moved on entry
    with refusal("donates a, which is the same array as b"):
        fn(z, z)
    fn(z, y)


def test_repeated_leaves_that_own_no_memory_may_be_donated():
    fn = nym.named_jit(lambda tree: (tree[0] + 1, tree[1] + 2, tree[2]), donate_args=True)
    numpy, shape = np.ones(3, np.float32), jax.ShapeDtypeStruct((3,), np.float32)
    np.testing.assert_array_equal(fn([numpy, numpy, nym.tanh, nym.tanh])[1], np.full(3, 3.0))
    np.testing.assert_array_equal(numpy, np.ones(3))
    fn.lower([shape, shape, nym.tanh, nym.tanh])
    jax.jit(lambda x: fn([x, x, nym.tanh, nym.tanh])[:2])(jnp.ones(3))
    assert fn.trace_count == 1
