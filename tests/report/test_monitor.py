"""`create_monitored_function`: the result is always there, times are those of the call, and problems are warnings."""

import functools
import inspect
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import axonym as nym

from ..refusals import refusal


ANALYZER = nym.ShardingAnalyzer(AbstractMesh((4, 2), ("data", "model")))
SPEC = P("data", "model")
METRICS = {"execution_time", "compile_time", "memory_usage", "validation_issues"}
USAGE, NOTHING = ({"total_size": 8 * part, "size_per_device": part} for part in (64, 0))


def monitored(fn, specs=SPEC, analyzer=ANALYZER):
    return nym.create_monitored_function(fn, specs, analyzer)


def array() -> jax.Array:
    return jax.device_put(np.ones((8, 16), np.float32))


def sleeping(seconds: float):
    """Returns a function of an array, to be compiled, that takes this long to run."""

    def sleep(x):
        time.sleep(seconds)
        return x

    return lambda x: jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_the_first_call_takes_as_long_as_the_second_but_for_compiling():
    run = sleeping(0.02)

    @jax.jit
    def inner(x):
        time.sleep(0.15)  # while it is traced
        return run(x)

    @jax.jit
    def outer(x):
        time.sleep(0.15)
        return inner(x)

    step = monitored(lambda x: outer(x))
    x, start = array(), time.perf_counter()
    _, first = step(x)
    wall = time.perf_counter() - start
    _, second = step(x)
    assert first["compile_time"] > 0.3
    assert 0.02 < first["execution_time"] < 0.3
    assert first["compile_time"] + first["execution_time"] <= wall
    assert second["compile_time"] == 0.0
    assert 0.02 < second["execution_time"] < 0.3


def test_compiling_within_tracing_is_counted_once_and_that_of_other_threads_not():
    @jax.jit
    def slow_to_trace(x):
        time.sleep(0.1)
        return x + 1

    @jax.jit
    def step(x):
        with jax.ensure_compile_time_eval():
            value = slow_to_trace(np.float32(0))
        return x + value

    def elsewhere(x):
        thread = threading.Thread(target=slow_to_trace, args=(x,))
        thread.start()
        thread.join()
        return x

    x, start = array(), time.perf_counter()
    _, metrics = monitored(step)(x)
    assert 0.1 < metrics["compile_time"] < time.perf_counter() - start
    assert metrics["execution_time"] > 0
    _, metrics = monitored(elsewhere)(x)
    assert metrics["compile_time"] == 0.0
    assert metrics["execution_time"] > 0.1
    inner = monitored(jax.jit(lambda x: slow_to_trace.__wrapped__(x)))
    outer = monitored(lambda x: (*inner(x), jax.jit(lambda x: slow_to_trace.__wrapped__(x))(x)))
    (_, of_inner, _), of_outer = outer(x)  # monitored functions may call one another
    assert 0.1 < of_inner["compile_time"] < of_outer["compile_time"] - 0.1


def test_results_and_arguments_are_waited_for(monkeypatch):
    """As if each took some time to be computed, which they do where JAX does not wait for the devices."""
    waited, wait = [], jax.block_until_ready

    def wait_longer(tree):
        waited.append(len(jax.tree.leaves(tree)))
        time.sleep(0.5 if len(waited) == 1 else 0.1)
        return wait(tree)

    monkeypatch.setattr(jax, "block_until_ready", wait_longer)
    _, metrics = monitored(lambda x, y: [x] * 3)(array(), y=np.ones(2))
    assert waited == [1, 3]
    assert 0.1 < metrics["execution_time"] < 0.5


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
        "by keyword": lambda x: monitored(lambda x, y: x)(y=1, x=x),
        "an object": lambda x: monitored(Model())(x),
        "the first of keywords": lambda x: monitored(lambda *args, z, y: z)(y=1, z=x),
        "positional ones before keywords": lambda x: monitored(lambda *args, z: args)(x, z=1),
        "a partial function": lambda x: monitored(functools.partial(lambda y, x: x, 1))(x=x),
        "no signature": lambda x: monitored(max)([x], key=id),
        "named_jit": lambda x: monitored(nym.named_jit(lambda x, y: x + y))(nym.named(x, ("batch", "embed")), 1.0),
        "donated": lambda x: monitored(jax.jit(lambda x: x + 1, donate_argnums=0))(x),
        "donated and returned": lambda x: monitored(lambda x: (x, jax.jit(jnp.negative, donate_argnums=0)(x)))(x),
    }.values(),
)
def test_the_first_argument_is_what_is_analyzed(call):
    specs = {"memory_usage": USAGE, "validation_issues": []}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, metrics = call(array())
    assert {name: metrics[name] for name in specs} == specs


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


def test_an_argument_without_arrays_and_none_at_all_are_told():
    class Trainer:
        step = monitored(lambda self, x: x, P("bogus"))

    for call, text, memory in [
        (lambda: monitored(lambda: 3)(), "there is no argument to check against the specs", None),
        (lambda: Trainer().step(3), "the first argument has no arrays to check against the specs", NOTHING),
    ]:
        with pytest.warns(RuntimeWarning, match=text):
            result, metrics = call()
        assert (result, metrics["memory_usage"], metrics["validation_issues"]) == (3, memory, [text])


def test_the_result_is_returned_as_it_is_beside_metrics():
    for value in (None, "text", {"a": (1, None)}, {1: "a", "b": np.ones(2)}, print, range(3)):
        result, metrics = monitored(lambda x, value=value: value)(array())
        assert result is value
        assert set(metrics) == METRICS
        assert (metrics["memory_usage"], metrics["validation_issues"]) == (USAGE, [])


def test_errors_of_the_function_are_its_own_and_those_of_the_analysis_lose_nothing():
    class Broken(nym.ShardingAnalyzer):
        def validate_partition_specs(self, pytree, partition_specs):
            raise RuntimeError("no idea")

    error, x, model = KeyError("mine"), array(), Model()

    def fails(x):
        raise error

    with pytest.raises(KeyError, match="mine") as caught:
        monitored(fails)(x)
    assert caught.value is error
    with pytest.warns(RuntimeWarning, match="it cannot be checked: RuntimeError: no idea"):
        result, metrics = monitored(lambda x: "result", analyzer=Broken())(x)
    assert (result, metrics["memory_usage"]) == ("result", None)
    assert metrics["validation_issues"] == ["it cannot be checked: RuntimeError: no idea"]
    text = "'step' runs, but its first argument does not match the specs"
    with warnings.catch_warnings(action="error"), refusal(text, RuntimeWarning):
        monitored(model.step, P("data", "data"))(x)
    assert model.calls == 0, "where warnings are errors nothing has run"
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        monitored(jax.jit(lambda x: x + 1))(x)


def test_all_that_is_wrong_is_one_warning_where_the_function_is_called():
    step = monitored(lambda tree: "result", P("modle"))
    with pytest.warns(RuntimeWarning, match="'<lambda>' runs, but its first argument does not match") as caught:
        result, metrics = step([array()] * 40)
    assert result == "result"
    (warning,) = caught
    assert warning.filename == __file__
    assert len(metrics["validation_issues"]) == 40
    assert all(issue in str(warning.message) for issue in metrics["validation_issues"][:10])
    assert str(warning.message).count("no mesh axis 'modle'") == 10
    assert "and 30 more; `validation_issues` has all" in str(warning.message)
    assert metrics["execution_time"] > 0


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


def test_what_cannot_be_monitored_is_refused_at_once():
    with refusal("`fn` is a function to call, not an object of type int", TypeError):
        monitored(3)
    with refusal("`analyzer` is a `ShardingAnalyzer`, not an object of type str", TypeError):
        monitored(print, analyzer="mesh")


def test_a_monitored_function_can_be_traced():
    def step(x):
        result, metrics = monitored(lambda x: (x * x).sum())(x)
        assert set(metrics) == METRICS
        return result

    assert float(jax.jit(step)(array())) == 128.0
    np.testing.assert_array_equal(jax.grad(step)(array()), np.full((8, 16), 2.0))
