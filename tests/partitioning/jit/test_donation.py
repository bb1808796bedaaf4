"""Donation: which arguments of a compiled function give up their memory."""

import threading
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


class State(eqx.Module):
    weight: nym.NamedArray
    moment: nym.NamedArray
    bias: nym.NamedArray | None
    act: object = jnp.tanh


def state():
    return State(nym.ones({"i": 3}), nym.zeros({"i": 3}), None)


def step(state, x):
    """Uses all its memory again: each array of the state has one of the same size in the result."""
    return State(state.weight + x, state.moment + x, None, state.act)


def gone(tree) -> list[bool]:
    """Tells of each array whether its memory was given up."""
    return [leaf.is_deleted() for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]


def by_position(fn, state, x):
    return fn(state, x)


def by_keyword(fn, state, x):
    return fn(x=x, state=state)


def mixed(fn, state, x):
    return fn(state, x=x)


def donating(call, **options) -> list[bool]:
    """Tells of weight, moment and the other argument whether they were donated."""
    fn, before, x = nym.named_jit(step, **options), state(), nym.ones({"i": 3})
    after = call(fn, before, x)
    assert not any(gone(after))
    np.testing.assert_array_equal(after.weight.array, np.full(3, 2.0))
    return gone((before, x))


def whole(flag) -> State:
    return jax.tree.map(lambda _: flag, state())


CALLS = pytest.mark.parametrize("call", [by_position, by_keyword, mixed])


@CALLS
@pytest.mark.parametrize(
    ("options", "donated"),
    [
        ({}, [False, False, False]),
        ({"donate_args": (True,)}, [True, True, False]),
        ({"donate_args": [True, False]}, [True, True, False]),
        ({"donate_args": True}, [True, True, False]),
        ({"donate_args": (None, True)}, [False, False, True]),
        ({"donate_args": (False, False), "donate_kwargs": {}}, [False, False, False]),
        ({"donate_args": (whole(True), None)}, [True, True, False]),
        ({"donate_args": (State(True, False, None, False),)}, [True, False, False]),
        ({"donate_args": (State(np.bool_(False), lambda leaf: leaf.ndim == 1, None, False),)}, [False, True, False]),
        ({"donate_args": (eqx.is_array, None)}, [True, True, False]),
        ({"donate_args": (lambda leaf: getattr(leaf, "ndim", 0) > 1,)}, [False, False, False]),
        ({"donate_kwargs": {"state": True}}, [True, True, False]),
        ({"donate_kwargs": {"state": eqx.is_array, "x": False}}, [True, True, False]),
        ({"donate_args": (True,), "donate_kwargs": {"x": False}}, [True, True, False]),
    ],
)
def test_arguments_are_donated_however_they_are_passed(call, options, donated):
    assert donating(call, **options) == donated


def test_what_is_said_by_name_goes_for_keywords():
    options = {"donate_args": (False,), "donate_kwargs": {"state": True}}
    assert donating(by_keyword, **options) == [True, True, False]
    assert donating(by_position, **options) == [False, False, False]


def test_a_donated_state_is_given_back_each_step():
    fn, now, x = nym.named_jit(step, donate_args=(True,)), state(), nym.ones({"i": 3})
    for _ in range(3):
        before, now = now, fn(now, x)
        assert gone(before) == [True, True]
    np.testing.assert_array_equal(now.weight.array, np.full(3, 4.0))
    with pytest.raises((ValueError, RuntimeError), match="deleted"):
        fn(before, x)


def test_functions_look_at_each_call_anew_and_trace_once():
    traces, limit = [], [0]

    def fn(a, b):
        traces.append(a)
        return a + b, a - b

    jitted = nym.named_jit(fn, donate_args=(lambda leaf: leaf.sum() > limit[0],) * 2)
    for limit[0], donated in [(2, [True, False]), (0, [True, True]), (2, [True, False]), (0, [True, True])]:
        pair = jnp.ones(3), jnp.full(3, 0.5)
        jitted(*pair)
        assert gone(pair) == donated
    assert len(traces) == 2


def test_positions_without_names_and_names_without_positions():
    def fn(first, /, *rest, last, **more):
        return first + 1, [one + 1 for one in rest], last + 1, {name: one + 1 for name, one in more.items()}

    def call(**options):
        args = tuple(jnp.full(3, i) for i in range(5))
        nym.named_jit(fn, **options)(*args[:3], last=args[3], other=args[4])
        return gone(args)

    assert call(donate_args=(False, True)) == [False, True, False, False, False]
    assert call(donate_args=(True, False, True, True, True)) == [True, False, True, False, False]
    assert call(donate_kwargs={"last": True}) == [False, False, False, True, False]
    assert call(donate_kwargs={"other": True}) == [False, False, False, False, True]


def test_resharded_arguments_are_donated_too(mesh):
    fn = nym.named_jit(lambda x: x + 1, in_axis_resources={"i": "data"}, donate_args=(True,))
    x = nym.shard(nym.ones({"i": 8}), {"i": "data"})
    y = fn(x)
    assert gone(x) == [True]
    np.testing.assert_array_equal(np.asarray(fn(nym.NamedArray(np.ones(8, np.float32), "i"))), np.asarray(y))


def test_a_decorated_function_donates_when_lowered():
    @nym.named_jit(donate_args=(True,))
    def fn(x, act):
        return act(x)

    compiled = fn.lower(jax.ShapeDtypeStruct((3,), np.float32), jnp.sin).compile()
    x = jnp.zeros(3)
    np.testing.assert_array_equal(compiled(x, jnp.sin), np.zeros(3))
    assert gone(x) == [True]


def one(state, x):
    return state


NO_FLAG = "What is donated is said by booleans, trees of booleans or functions, {} is none of them; give one for each"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"donate_kwargs": {"stat": True}}, ValueError, "`donate_kwargs` names 'stat'; the function takes state, x"),
        ({"donate_kwargs": {"stat": False}}, ValueError, "`donate_kwargs` names 'stat'; the function takes state, x"),
        (
            {"donate_args": (True, False, False)},
            ValueError,
            "`donate_args` has 3 entries; the function takes 2 arguments by position: state, x",
        ),
        ({"donate_args": (0,)}, TypeError, NO_FLAG.format(0)),
        ({"donate_args": (False, 1)}, TypeError, NO_FLAG.format(1)),
        ({"donate_args": "state"}, TypeError, NO_FLAG.format("'state'")),
        ({"donate_kwargs": {"state": "yes"}}, TypeError, NO_FLAG.format("'yes'")),
        ({"donate_kwargs": True}, TypeError, "`donate_kwargs` goes from names to booleans, True does not"),
        (
            {"donate_kwargs": ("state",)},
            TypeError,
            r"`donate_kwargs` goes from names to booleans, \('state',\) does not",
        ),
    ],
)
def test_mistakes_are_errors_when_the_function_is_made(options, error, text):
    with pytest.raises(error, match=text):
        nym.named_jit(one, **options)
    with pytest.raises(error, match=text):
        nym.named_jit(**options)(one)


@CALLS
def test_a_tree_that_does_not_fit_is_an_error(call):
    text = "a tree of booleans for donation does not fit its argument"
    with pytest.raises(ValueError, match=text):
        donating(call, donate_args=({"wieght": True},))
    with pytest.raises(ValueError, match=text):
        donating(call, donate_kwargs={"state": (True, False)})


def test_a_function_without_a_signature_takes_anything():
    assert nym.named_jit(max, donate_args=(False, False), donate_kwargs={"key": False})(1, 2) == 2


def half_used(state, x):
    return {"w": state["w"] + x}


def of_sizes(**sizes):
    return {name: nym.ones({"i": size}) for name, size in sizes.items()}


def caught(fn, *args) -> list[tuple[type, str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fn(*args)
    return [(one.category, str(one.message)) for one in said]


@pytest.mark.parametrize("kind", ["none", "auto", "explicit"])
def test_memory_that_is_not_used_again_is_named_once_for_each_trace(request, kind):
    mesh = None if kind == "none" else request.getfixturevalue(f"{kind}_mesh")
    fn = nym.named_jit(half_used, donate_args=(True,))
    start = (
        "`half_used` is given memory that it cannot use again, because no result has the same shape, dtype and "
        "sharding or because it does not use the argument: "
    )
    with jax.set_mesh(mesh):
        given = of_sizes(w=8, moment=8, scale=5)
        said = caught(fn, given, np.float32(1))
        assert said == [(RuntimeWarning, start + "state['moment'], float32[8]; state['scale'], float32[5]")]
        assert gone(given) == [False, False, True]
        assert caught(fn, of_sizes(w=8, moment=8, scale=5), np.float32(1)) == []
        said = caught(fn, of_sizes(w=6, moment=8, scale=6), np.float32(1))
        assert said == [(RuntimeWarning, start + "state['moment'], float32[8]; state['scale'], float32[6]")]
        assert caught(fn, of_sizes(w=7), np.float32(1)) == []


def test_the_warning_points_to_the_call_and_keeps_the_filters():
    fn, filters = nym.named_jit(half_used, donate_args=(True,)), list(warnings.filters)
    with pytest.warns(RuntimeWarning, match="memory that it cannot use again") as said:
        fn(of_sizes(w=2, other=3), np.float32(1))
    assert said[0].filename == __file__
    assert warnings.filters == filters
    with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        jax.jit(lambda x: x.sum(), donate_argnums=0)(jnp.ones(5))


def test_nothing_is_said_of_memory_inside_another_function():
    fn = nym.named_jit(half_used, donate_args=(True,))
    given = of_sizes(w=2, other=3)
    assert caught(jax.jit(lambda state: fn(state, np.float32(1))), given) == []
    with jax.disable_jit():
        assert caught(fn, given, np.float32(1)) == []
    assert gone(given) == [False, False]


def test_an_argument_that_is_no_array_has_nothing_to_donate():
    fn = nym.named_jit(step, donate_args=(False, True))
    text = "argument 'x', of type int, is to be donated; only arrays have memory to give"
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


def test_memory_that_is_donated_twice_or_donated_and_used_is_an_error(mesh):
    """XLA would end the process."""
    model = {"weight": nym.ones({"embed": 8, "mlp": 4}), "bias": nym.ones({"mlp": 4})}
    model = nym.shard(model, {"mlp": "model"})
    average = nym.shard(model, {"mlp": "model", "embed": "data"})
    text = r"`mix` is given the memory of average\['bias'\], which is the memory of model\['bias'\] as well: .*; copy"

    def mix(model, average):
        return jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, average, model)

    with pytest.raises(ValueError, match=text):
        nym.named_jit(mix, donate_args=(False, True))(model, average)
    with pytest.raises(ValueError, match="is given the memory of a, which is the memory of b as well"):
        nym.named_jit(lambda a, b: (a, b), donate_args=(True, True))(*[jnp.ones(3)] * 2)
    average = jax.tree.map(jnp.copy, average)
    mixed = nym.named_jit(mix, donate_args=(False, True))(model, average)
    assert gone(average) == [True, True]
    assert gone((model, mixed)) == [False] * 4


def test_names_that_go_by_position_only_may_be_keywords_as_well():
    def fn(x, /, **others):
        return x + others["x"]

    x, other = jnp.ones(3), jnp.ones(3)
    nym.named_jit(fn, donate_args=(True,))(x, x=other)
    assert gone((x, other)) == [True, False]


def test_what_jax_keeps_to_look_for_nans_gets_no_warning():
    with jax.debug_nans(True):
        nym.named_jit(lambda x: x * 2, donate_args=(True,))(jnp.ones(3))


def test_threads_that_donate_leave_the_filters_of_warnings_as_they_were():
    before, start = list(warnings.filters), threading.Barrier(2)

    def run(size):
        start.wait()
        for extra in range(3):
            nym.named_jit(lambda x: x * 2, donate_args=(True,))(jnp.ones(size + extra))

    threads = [threading.Thread(target=run, args=(size,)) for size in (2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
