"""`create_monitored_function`: the result is always there, times are those of the call, and problems are warnings."""

import functools
import inspect
import os
import subprocess
import sys
import threading
import time
import warnings
from re import escape

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import axonym as nym


ANALYZER = nym.ShardingAnalyzer(AbstractMesh((4, 2), ("data", "model")))
SPEC = P("data", "model")
METRICS = {"execution_time", "compile_time", "memory_usage", "validation_issues"}
USAGE = {"total_size": 512, "size_per_device": 64}


def monitored(fn, specs=SPEC, analyzer=ANALYZER):
    return nym.create_monitored_function(fn, specs, analyzer)


def array() -> jax.Array:
    return jnp.ones((8, 16))


def sleeping(seconds: float):
    """Returns a function of an array, to be compiled, that takes this long to run."""

    def sleep(x):
        time.sleep(seconds)
        return x

    return lambda x: jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_metrics_are_told_beside_the_result():
    result, metrics = monitored(lambda x: x + 1)(array())
    assert set(metrics) == METRICS
    assert metrics["memory_usage"] == USAGE
    assert metrics["validation_issues"] == []
    np.testing.assert_array_equal(result, np.full((8, 16), 2.0))


def test_the_first_call_takes_as_long_as_the_second_but_for_compiling():
    run = sleeping(0.05)

    @jax.jit
    def inner(x):
        time.sleep(0.3)  # while it is traced
        return run(x)

    @jax.jit
    def outer(x):
        time.sleep(0.3)
        return inner(x)

    step = monitored(lambda x: outer(x))
    x, start = array(), time.perf_counter()
    _, first = step(x)
    wall = time.perf_counter() - start
    _, second = step(x)
    assert first["compile_time"] > 0.6
    assert 0.05 < first["execution_time"] < 0.3
    assert first["compile_time"] + first["execution_time"] <= wall
    assert second["compile_time"] == 0.0
    assert 0.05 < second["execution_time"] < 0.3


def test_compiling_within_tracing_is_counted_once():
    @jax.jit
    def slow_to_trace(x):
        time.sleep(0.2)
        return x + 1

    @jax.jit
    def step(x):
        with jax.ensure_compile_time_eval():
            value = slow_to_trace(jnp.zeros(()))
        return x + value

    x, start = array(), time.perf_counter()
    _, metrics = monitored(step)(x)
    assert 0.2 < metrics["compile_time"] < time.perf_counter() - start
    assert metrics["execution_time"] > 0


AT_ONCE = """
import time, axonym as nym, jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P

analyzer = nym.ShardingAnalyzer(jax.sharding.AbstractMesh((2,), ("data",)))
work = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), x))
x = jnp.ones((400, 400))
work(x).block_until_ready()
start = time.perf_counter()
late = work(x)
dispatched = time.perf_counter() - start
_, received = nym.create_monitored_function(lambda x: x, P("data"), analyzer)(late)
whole = time.perf_counter() - start
_, worked = nym.create_monitored_function(work, P("data"), analyzer)(x)
assert dispatched < whole / 4, (dispatched, whole)  # or this would show nothing
assert received["execution_time"] < whole / 4 and worked["execution_time"] > whole / 4, (received, worked, whole)
"""


def test_results_and_arguments_are_waited_for_under_async_dispatch():
    environment = os.environ | {"JAX_CPU_ENABLE_ASYNC_DISPATCH": "true", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", AT_ONCE], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.jit, nym.named_jit, eqx.filter_jit])
def test_functions_of_all_kinds_are_monitored(wrap):
    x = nym.ones({"batch": 8, "embed": 16})
    result, metrics = monitored(wrap(lambda x, y: {"sum": x + y}))(x, 1.0)
    assert result["sum"].names == ("batch", "embed")
    assert metrics["memory_usage"] == USAGE


class Model:
    def __init__(self):
        self.calls = 0

    def step(self, x, scale=1.0):
        self.calls += 1
        return x * scale

    def __call__(self, x):
        return self.step(x)


@pytest.mark.parametrize(
    "call",
    {
        "by position": lambda x: monitored(lambda x, y: x)(x, 1),
        "by keyword": lambda x: monitored(lambda x, y: x)(y=1, x=x),
        "a method": lambda x: monitored(Model().step)(scale=2.0, x=x),
        "an object": lambda x: monitored(Model())(x),
        "the first of keywords": lambda x: monitored(lambda *args, z, y: z)(y=1, z=x),
        "any arguments": lambda x: monitored(lambda *args, **kwargs: kwargs)(y=x, z=1),
        "positional ones before keywords": lambda x: monitored(lambda *args, z: args)(x, z=1),
        "a partial function": lambda x: monitored(functools.partial(lambda y, x: x, 1))(x=x),
        "no signature": lambda x: monitored(max)([x], key=id),
    }.values(),
)
def test_the_first_argument_is_what_is_analyzed(call):
    specs = {"memory_usage": USAGE, "validation_issues": []}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, metrics = call(array())
    assert {name: metrics[name] for name in specs} == specs


def test_a_function_without_arguments_runs():
    with pytest.warns(RuntimeWarning, match="there is no argument to check against the specs"):
        result, metrics = monitored(lambda: 3)()
    assert result == 3
    assert metrics["memory_usage"] is None
    assert metrics["validation_issues"] == ["there is no argument to check against the specs"]


def test_the_function_keeps_its_name_and_its_signature():
    def step(params: int, batch: str = "x") -> None:
        """Makes a step."""

    step.tag = "mine"
    wrapped = monitored(step)
    assert wrapped.tag == "mine"
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("step", "Makes a step.", step)
    assert inspect.signature(wrapped) == inspect.signature(step)
    compiled = monitored(nym.named_jit(step))
    assert compiled.__name__ == "step"
    assert set(vars(compiled)) == {"__wrapped__"}


def test_a_donated_argument_is_analyzed_before_it_is_gone():
    x = array()
    result, metrics = monitored(jax.jit(lambda x: x + 1, donate_argnums=0))(x)
    assert x.is_deleted()
    assert metrics["memory_usage"] == USAGE
    assert float(result[0, 0]) == 2.0


def test_a_donated_argument_in_the_result_is_not_waited_for():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    (removed_array, result), _ = monitored(lambda x: (x, step(x)))(array())
    assert removed_array.is_deleted()
    assert float(result[0, 0]) == 2.0


@pytest.mark.parametrize(
    "result", [None, "text", {"a": (1, None)}, {1: "a", "b": jnp.ones(2)}, print, range(3)], ids=str
)
def test_results_that_are_no_arrays_are_returned(result):
    returned, metrics = monitored(lambda x: result)(array())
    assert returned is result
    assert metrics["memory_usage"] == USAGE


def test_errors_of_the_function_are_its_own():
    error = KeyError("mine")

    def fails(x):
        raise error

    with pytest.raises(KeyError, match="mine") as caught:
        monitored(fails)(array())
    assert caught.value is error
    x = array()
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        monitored(jax.jit(lambda x: x + 1))(x)


def test_all_that_is_wrong_is_one_warning_where_the_function_is_called():
    tree = {"a": array(), "b": jnp.ones(6)}
    step = monitored(lambda tree: "result", {"a": P("modle"), "b": P("data")})
    with pytest.warns(RuntimeWarning, match="'<lambda>' runs, but its first argument does not match") as caught:
        result, metrics = step(tree)
    assert result == "result"
    (warning,) = caught
    assert warning.filename == __file__
    assert len(metrics["validation_issues"]) == 2
    assert all(issue in str(warning.message) for issue in metrics["validation_issues"])
    assert metrics["execution_time"] > 0


class Broken(nym.ShardingAnalyzer):
    """An analyzer in which something goes wrong."""

    def validate_partition_specs(self, pytree, partition_specs):
        raise RuntimeError("no idea")


def test_a_failing_analysis_loses_nothing():
    with pytest.warns(RuntimeWarning, match=escape("it cannot be checked: RuntimeError: no idea")):
        result, metrics = monitored(lambda x: "result", analyzer=Broken())(array())
    assert result == "result"
    assert metrics["memory_usage"] is None
    assert metrics["validation_issues"] == ["it cannot be checked: RuntimeError: no idea"]


def test_where_warnings_are_errors_nothing_has_run():
    model = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="'step' runs, but its first argument does not match the specs"):
            monitored(model.step, P("data", "data"))(array())
    assert model.calls == 0


def test_monitored_functions_may_call_one_another():
    @jax.jit
    def compiled(x):
        time.sleep(0.1)
        return x + 1

    also_compiled = jax.jit(lambda x: compiled.__wrapped__(x))
    inner = monitored(compiled)
    outer = monitored(lambda x: (*inner(x), also_compiled(x)))
    (result, of_inner, _), of_outer = outer(array())
    assert float(result[0, 0]) == 2.0
    assert 0.1 < of_inner["compile_time"] < of_outer["compile_time"] - 0.1
    (_, of_inner, _), of_outer = outer(array())
    assert of_outer["compile_time"] == of_inner["compile_time"] == 0.0


def test_what_other_threads_compile_counts_as_running():
    @jax.jit
    def theirs(x):
        time.sleep(0.1)
        return x + 1

    def mine(x):
        thread = threading.Thread(target=theirs, args=(x,))
        thread.start()
        thread.join()
        return x

    _, metrics = monitored(mine)(array())
    assert metrics["compile_time"] == 0.0
    assert metrics["execution_time"] > 0.1


def test_the_listeners_of_others_hear_nothing_of_monitored_calls():
    heard = []

    def strict(event, seconds, **kwargs):
        heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(strict)
    try:
        monitored(lambda x: x)(array())
        _, metrics = monitored(jax.jit(lambda x: x + 3))(array())
    finally:
        jax.monitoring.unregister_event_duration_listener(strict)
    assert metrics["compile_time"] > 0.0
    assert heard
    assert all(event.startswith("/jax/") for event in heard)


def test_a_first_argument_without_arrays_is_told():
    class Trainer:
        step = monitored(lambda self, x: x, P("bogus"))

    with pytest.warns(RuntimeWarning, match="the first argument has no arrays to check against the specs"):
        _, metrics = Trainer().step(array())
    assert len(metrics["validation_issues"]) == 1


def test_a_warning_shows_the_first_of_many_problems():
    step = monitored(lambda tree: tree, P("modle"))
    with pytest.warns(RuntimeWarning, match="and 30 more; `validation_issues` has all") as caught:
        _, metrics = step([array()] * 40)
    assert len(metrics["validation_issues"]) == 40
    assert str(caught[0].message).count("no mesh axis 'modle'") == 10


def test_a_monitored_function_can_be_traced():
    def step(x):
        result, metrics = monitored(lambda x: (x * x).sum())(x)
        assert set(metrics) == METRICS
        return result

    assert float(jax.jit(step)(array())) == 128.0
    np.testing.assert_array_equal(jax.grad(step)(array()), np.full((8, 16), 2.0))


def test_what_cannot_be_monitored_is_refused_at_once():
    with pytest.raises(TypeError, match="`fn` is a function to call, not an object of type int"):
        monitored(3)
    with pytest.raises(TypeError, match="`analyzer` is a `ShardingAnalyzer`, not an object of type str"):
        monitored(print, analyzer="mesh")
