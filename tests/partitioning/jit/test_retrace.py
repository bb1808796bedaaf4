"""Why a function was traced again, in one line: each cause with exactly one trace more, and what causes none."""

import contextlib
import dataclasses
import functools
import inspect
import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ...refusals import refusal


class Model(eqx.Module):
    weight: nym.NamedArray
    bias: jax.Array | None = None
    act: object = nym.tanh
    rate: float = 0.1
    name: str = eqx.field(static=True, default="first")
    parts: tuple = ()


def array(rows=8, names=("batch", "embed"), dtype=np.float32):
    return nym.NamedArray(np.ones((rows, 4), dtype), names)


def model(**changes):
    return Model(**{"weight": array(), **changes})


def step(model, x, *, scale=1.0):
    return x


def changes(first, *later) -> list[str]:
    """Traces a function for some arguments and then for others; returns what is said to have changed."""
    fn = nym.named_jit(step)
    shape_of(fn, first)
    texts = []
    for arguments in later:
        before = fn.trace_count
        for _ in range(2):
            shape_of(fn, arguments)
            assert fn.trace_count == before + 1
        start = f"`step` has been traced {before + 1} times; changed since the nearest earlier trace: "
        assert fn.explain_retrace().startswith(start)
        texts.append(fn.explain_retrace().removeprefix(start))
    return texts


def shape_of(fn, arguments):
    """Traces without compiling."""
    args, kwargs = arguments
    return fn.eval_shape(*args, **kwargs)


def given(*args, **kwargs):
    return args, kwargs


ARGUMENTS = {
    "shape": (given(model(), array(16)), "x: float32[8,4] -> float32[16,4]"),
    "names": (given(model(), array(names=("pos", "embed"))), "x: axes (batch, embed) -> (pos, embed)"),
    "named or plain": (given(model(), array().array), "x: float32[8,4] with axes (batch, embed) -> float32[8,4]"),
    "static leaf": (given(model(rate=0.2), array()), "model.rate: 0.1 -> 0.2"),
    "type of a static leaf": (given(model(rate=1), array()), "model.rate: 0.1 -> 1"),
    "long value": (given(model(name="x" * 99), array()), f"model.name: 'first' -> '{'x' * 36}..."),
    "array for none": (given(model(bias=np.ones(3)), array()), "model.bias: None -> float32[3]"),
    "part more": (given(model(parts=(nym.tanh, 2)), array()), "model.parts[0]: nothing -> tanh; model.parts[1]: noth"),
    "another type": (given(model(parts=[]), array()), "model.parts: a tuple -> a list"),
    "static for array": (given(model(), 3), "x: float32[8,4] with axes (batch, embed) -> 3"),
    "argument more": (given(model(), array(), scale=2.0), "scale: nothing -> 2.0"),
    "by keyword": (given(model(), x=array()), "x passed by: 'position' -> 'keyword'"),
    "partial": (given(model(act=functools.partial(jnp.add, jnp.ones(3))), array()), "model.act: tanh -> a partial"),
    "two": (given(model(rate=0.2), array(16)), "model.rate: 0.1 -> 0.2; x: float32[8,4] -> float32[16,4]"),
}


@pytest.mark.parametrize("cause", ARGUMENTS)
def test_a_change_of_the_arguments_is_said_by_path(cause):
    arguments, text = ARGUMENTS[cause]
    (shown,) = changes(given(model(), array()), arguments)
    assert shown == text or (len(shown) > len(text) and shown.startswith(text))


def test_values_that_look_alike_are_said_to_be_others():
    first, second = (eval("lambda x: x") for _ in range(2))
    assert changes(given(model(act=first), array()), given(model(act=second), array())) == [
        "model.act: <lambda> -> another <lambda>"
    ]
    assert changes(given(0.0, X), given(-0.0, X)) == ["model: 0.0 -> -0.0"]
    assert changes(given(Config(1), X), given(Config(True), X)) == ["model: Config(scale=1) -> Config(scale=True)"]


def test_the_nearest_of_the_earlier_traces_counts_and_some_of_many_changes_are_said():
    texts = changes(
        given(model(), array(8)),
        given(model(rate=0.2), array(16)),
        given(model(rate=0.2), array(24)),
        given(model(), array(32)),
    )
    assert texts[1:] == ["x: float32[16,4] -> float32[24,4]", "x: float32[8,4] -> float32[32,4]"]
    (text,) = changes(given({i: i for i in range(9)}, 1), given({i: i + 1 for i in range(9)}, 1))
    assert text == "; ".join(f"model[{i}]: {i} -> {i + 1}" for i in range(5)) + ", and 4 more"
    (text,) = changes(given(model(), jnp.ones(3)), given(model(), jnp.full(3, 1.0)))
    assert text == "x: float32[3] -> float32[3] (weakly typed)"
    partial, thing = functools.partial(jnp.add, np.full(3, 7.25)), type("Thing", (), {})()
    texts = changes(given(model(), X), given(model(act=thing), X), given(model(act=partial), X))
    assert not re.search(r"7\.25|0x", " ".join(texts)), "values of arrays and addresses are not said"


def test_what_is_donated_is_told():
    donate = [False]
    options = {"donate_args": (False, lambda leaf: donate[0])}
    fn = nym.named_jit(step, **options)
    for donate[0] in (False, True, False, True):
        fn(model(), nym.ones({"batch": 8}))
    text = "`step` has been traced 2 times; changed since the nearest earlier trace: x: donated"
    assert fn.explain_retrace() == text


def test_a_changed_mapping_is_told_entry_by_entry(mesh):
    fn, arguments = nym.named_jit(step), given(1, array())
    changed = "active mapping: 'batch': 'data' -> ('data', 'model')"
    uneven = "active mapping: uneven: 'error' -> 'replicate'"
    for mapping, count, text in (
        ({"batch": "data"}, 1, ""),
        ({"batch": ("data", "model")}, 2, changed),
        ({"batch": "data"}, 2, changed),
        ({"embed": "model", "batch": "data"}, 3, "active mapping: 'embed': nothing -> 'model'"),
        (nym.AxisMapping({"batch": "data"}, uneven="replicate"), 4, uneven),
        ({"batch": ("data", "model")}, 4, uneven),
        (None, 5, "active mapping: an AxisMapping -> None"),
    ):
        with contextlib.nullcontext() if mapping is None else nym.axis_mapping(mapping):
            shape_of(fn, arguments)
        assert (fn.trace_count, fn.explain_retrace().partition("trace: ")[2]) == (count, text)


def test_a_changed_mesh_is_told(auto_mesh, explicit_mesh):
    fn, x = nym.named_jit(step), np.ones(8, np.float32)
    flat = jax.sharding.Mesh(auto_mesh.devices.reshape(8), "data")
    reordered = jax.sharding.Mesh(auto_mesh.devices[::-1], auto_mesh.axis_names)
    for mesh, count, text in (
        (None, 1, ""),
        (auto_mesh, 2, "mesh: None -> (data: 4, model: 2) of Auto axes"),
        (explicit_mesh, 3, "mesh: (data: 4, model: 2) of Auto axes -> (data: 4, model: 2) of Explicit axes"),
        (flat, 4, " -> (data: 8) of Auto axes"),
        (reordered, 4, " -> (data: 8) of Auto axes"),  # what is traced does not depend on the order of the devices
    ):
        with jax.set_mesh(mesh):
            fn(1, x)
        assert fn.trace_count == count
        assert fn.explain_retrace().partition("trace: ")[2].endswith(text)


def test_where_an_array_is_can_be_part_of_its_type(auto_mesh, explicit_mesh):
    x = array()
    with jax.set_mesh(explicit_mesh):
        first, second = (nym.shard(x, mapping) for mapping in ({"batch": "data"}, {"batch": ("data", "model")}))
        assert changes(given(1, first), given(1, second)) == ["x: float32[8@data,4] -> float32[8@(data,model),4]"]
    with jax.set_mesh(auto_mesh):
        text = "x: float32[8,4] on no mesh -> float32[8,4] on (data: 4, model: 2) of Auto axes"
        assert changes(given(1, x), given(1, nym.shard(x, {"batch": "data"}))) == [text]


def test_settings_and_cleared_caches_are_told_and_what_cannot_be_seen_is_not_guessed():
    fn, context, arguments = nym.named_jit(step), jax.make_user_context(), given(1, array())
    assert fn.explain_retrace() == "`step` has not been traced yet"
    for _ in range(2):
        shape_of(fn, arguments)
        assert fn.explain_retrace() == "`step` has been traced once; that was its first trace"
    with jax.default_matmul_precision("highest"):
        shape_of(fn, arguments)
    assert fn.explain_retrace().endswith("trace: JAX's setting `jax_default_matmul_precision`: None -> 'highest'")
    with context("other"):
        shape_of(fn, arguments)
    text = "nothing that Axonym sees changed: a setting of JAX did, or JAX's caches were cleared"
    assert fn.explain_retrace() == f"`step` has been traced 3 times; {text}"
    fn.clear_cache()
    shape_of(fn, arguments)
    assert fn.explain_retrace() == "`step` has been traced 4 times; `clear_cache` made it forget its traces"


def test_a_trace_that_failed_does_not_count():
    @nym.named_jit
    def fn(x):
        if x.shape == (8,):
            raise ValueError("too large")
        return x

    shape_of(fn, given(np.ones(4)))
    with refusal("too large"):
        shape_of(fn, given(np.ones(8)))
    assert fn.trace_count == 1


def scaled(x, step=0, rate=0.1, *, flag=False):
    return x * step


def warned_of(calls, fn=None, **options):
    """Returns the warnings of traces for these arguments, as texts."""
    fn = fn or nym.named_jit(scaled, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for arguments in calls:
            shape_of(fn, arguments)
    assert all(warning.category is RuntimeWarning for warning in caught)
    return [str(warning.message) for warning in caught]


X = np.ones(3, np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float


def test_a_number_that_differs_from_trace_to_trace_is_warned_of_once():
    assert warned_of(given(X, step) for step in range(3)) == []
    assert warned_of(given(X, step) for step in range(9)) == [
        "`scaled` has been traced anew for each value of `step`: 0, 1, 2, 3; a Python number is static, so pass "
        "`jnp.asarray(step)` to trace it once; if that is intended, `named_jit(scaled, retrace_warning=False)` turns "
        "this warning off"
    ]
    fn = nym.named_jit(scaled)
    assert warned_of((given(X, jnp.asarray(step)) for step in range(40)), fn) == []
    assert fn.trace_count == 1


def test_numbers_that_change_are_warned_of_together_and_by_path():
    (text,) = warned_of(given(X, step, rate=step / 4) for step in range(4))
    assert "of `step`: 0, 1, 2, 3, and of `rate`: 0.0, 0.25, 0.5, 0.75;" in text
    assert "pass `jnp.asarray(step)` and `jnp.asarray(rate)` to trace" in text
    (text,) = warned_of((given(model(rate=rate / 8), X) for rate in range(4)), nym.named_jit(step))
    assert "each value of `model.rate`: 0.0, 0.125, 0.25, 0.375;" in text
    (text,) = warned_of((given([at] * 9, X) for at in range(4)), nym.named_jit(step))
    assert "`model[4]`: 0, 1, 2, 3; a Python" in text
    assert "model[5]" not in text


def test_numbers_are_not_blamed_where_something_else_differs():
    for calls in (
        [given(X, 1, flag=flag) for flag in (False, True)] + [given(X, 2, flag=True)],
        [given(np.ones(n, np.float32), n) for n in range(9)],
        [given(X, step, rate=str(step)) for step in range(9)],
        [given(X, {"a": step} if step % 2 else [step]) for step in range(5)],
    ):
        assert warned_of(calls, nym.named_jit(lambda x, step=0, rate=0.1, *, flag=False: x)) == []


def test_ten_traces_are_warned_of_once_with_the_cause_numbers_apart():
    calls = [given(np.ones(n, np.float32)) for n in range(1, 14)]
    assert warned_of(calls[:9]) == []
    assert warned_of(calls) == [
        "`scaled` has been traced 10 times; changed since the nearest earlier trace: x: float32[9] -> float32[10]; "
        "each trace is compiled anew; if that is intended, `named_jit(scaled, retrace_warning=False)` turns this "
        "warning off"
    ]
    first, second = warned_of([given(X, step) for step in range(20)] + calls[3:5])
    assert "each value of `step`: 0, 1, 2, 3;" in first
    assert "has been traced 21 times; changed since the nearest earlier trace: x: float32[3] -> float32[4]" in second


def test_calls_that_find_a_trace_cleared_ones_and_values_traced_again_are_not_warned_of():
    fn, context = nym.named_jit(scaled), jax.make_user_context()
    assert warned_of((given(X, step % 3) for step in range(60)), fn) == []
    for step in range(10):
        fn.clear_cache()
        assert warned_of([given(X, step)], fn) == []
    fn = nym.named_jit(scaled)
    for at in range(8):
        with context(at):
            assert warned_of([given(X, at % 3)], fn) == []
    with context(8):
        (text,) = warned_of([given(X, 3)], fn)
    assert "each value of `step`: 0, 1, 2, 3;" in text


def test_the_warning_of_retraces_can_be_turned_off(monkeypatch):
    calls = [given(X, step) for step in range(4)] + [given(np.ones(n, np.float32)) for n in range(10)]
    assert len(warned_of(calls)) == 2
    assert warned_of(calls, retrace_warning=False) == []
    assert warned_of(calls, nym.named_jit(retrace_warning=False)(scaled)) == []
    assert warned_of(calls, nym.fsdp(scaled, {}, {}, retrace_warning=False)) == []
    monkeypatch.setenv("AXONYM_RETRACE_WARNING", "off")
    assert warned_of(calls) == []
    with refusal("`retrace_warning` must be True or False, not 'off'.", TypeError):
        nym.named_jit(abs, retrace_warning="off")


def test_the_warning_points_at_the_line_of_the_call_and_as_an_error_stops_that_only():
    fn, failing = nym.named_jit(scaled), nym.named_jit(scaled)
    with warnings.catch_warnings(record=True, action="always") as caught:
        for step in range(4):
            line = inspect.currentframe().f_lineno + 1
            fn(X, step)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line)]
    for step in range(3):
        shape_of(failing, given(X, step))
    with refusal("each value of `step`: 0, 1, 2, 3; a Python number is static", RuntimeWarning):
        failing(X, 3)
    np.testing.assert_array_equal(failing(X, 3), 3 * X)
