"""`create_monitored_function`: how long each call of a function takes, and what its first argument costs."""

import contextlib
import functools
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar

import jax

from .._jax_compat import COMPILE_EVENTS
from ..named._base import is_traced
from ..partitioning.mapping._stacklevel import user_stacklevel
from ..partitioning.specs._leaves import get_array_shape
from ._sharding_analyzer import ShardingAnalyzer
from ._table import shorten_list


Args = ParamSpec("Args")
R = TypeVar("R")

_MOST_ISSUES = 10

_Spans: TypeAlias = list[tuple[float, float]]


class Metrics(TypedDict):
    """What `create_monitored_function` returns about a call.

    Attributes:
        execution_time: Seconds from the call until its result was ready, without those in `compile_time`.
        compile_time: Seconds of it in which JAX traced and compiled, 0 if the function was compiled already.
        memory_usage: The result of `ShardingAnalyzer.estimate_memory_usage` for the first argument, in bytes; None if
            it is not known, and `validation_issues` then has the reason.
        validation_issues: The problems of the specs, and why something is not known.

    Example:
        >>> from axonym.report import Metrics
        >>> sorted(Metrics.__annotations__)
        ['compile_time', 'execution_time', 'memory_usage', 'validation_issues']
    """

    execution_time: float
    compile_time: float
    memory_usage: dict[str, int] | None
    validation_issues: list[str]


def create_monitored_function(
    fn: Callable[Args, R], partition_specs: Any, analyzer: ShardingAnalyzer
) -> Callable[Args, tuple[R, Metrics]]:
    """Makes a function return its result together with metrics of the call.

    The first argument, say the parameters of a training step, is checked against the specs before the function runs, so
    it may be donated. Problems are a warning, and the function runs all the same. Errors of the function are its own.

    The clock starts when all arrays among the arguments are ready and stops when all arrays of the result are; arrays
    inside an object that JAX does not flatten are not waited for. `compile_time` is what JAX reports for tracing,
    lowering and compiling in this thread, also of functions that the function calls; `execution_time` is the rest. The
    first call takes a little longer than later ones even so, on CPUs by a few per cent of the time that compiling took.
    The analysis is in neither time. Under `jax.jit` the times are those of tracing.

    Wrap the bound method of an object, `create_monitored_function(trainer.step, ...)`: the first argument of a function
    in a class is `self`, and if it has no arrays, `validation_issues` says so.

    Args:
        fn: The function, compiled or not.
        partition_specs: The specs of its first argument: a tree of `PartitionSpec`s like it.
        analyzer: Checks the specs and counts the memory.

    Returns:
        A function with the same arguments that returns the result and the `Metrics`, a dictionary: `execution_time`
        and `compile_time` in seconds, `memory_usage` in bytes, and `validation_issues`, a list of sentences.

    Raises:
        TypeError: If `fn` is not a function, or `analyzer` is not an analyzer.

    Warns:
        RuntimeWarning: With each call whose first argument does not match the specs, before the function runs. Where
            warnings are errors, it does not run.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> analyzer = nym.ShardingAnalyzer(nym.create_mesh((4, 2), ("data", "model")))
        >>> double = nym.create_monitored_function(jax.jit(lambda x: 2 * x), P("data", "model"), analyzer)
        >>> result, metrics = double(jax.numpy.ones((8, 16)))
        >>> metrics["memory_usage"]["size_per_device"], metrics["validation_issues"]
        (64, [])
        >>> metrics["execution_time"] < metrics["compile_time"]
        True
    """
    if not callable(fn):
        raise TypeError(f"`fn` is a function to call, not an object of type {type(fn).__name__}.")
    if not isinstance(analyzer, ShardingAnalyzer):
        raise TypeError(f"`analyzer` is a `ShardingAnalyzer`, not an object of type {type(analyzer).__name__}.")
    names = _get_parameter_names(fn)

    @functools.wraps(fn, updated=("__dict__",) if inspect.isfunction(fn) else ())
    def run_monitored(*args: Args.args, **kwargs: Args.kwargs) -> tuple[R, Metrics]:
        given = [*args, *(kwargs[name] for name in names if name in kwargs), *kwargs.values()]
        memory, issues = _analyze_argument(given, partition_specs, analyzer)
        if issues:
            problems = "\n  ".join(shorten_list(issues, _MOST_ISSUES, "`validation_issues`"))
            name = getattr(fn, "__name__", type(fn).__name__)
            text = f"{name!r} runs, but its first argument does not match the specs:\n  {problems}"
            warnings.warn(text, RuntimeWarning, stacklevel=user_stacklevel())
        with contextlib.suppress(Exception):  # errors of what computes an argument are for the function to raise
            jax.block_until_ready(_list_ready_arrays((args, kwargs)))
        with record_compile_spans() as spans:
            start = time.perf_counter()
            result = fn(*args, **kwargs)
            jax.block_until_ready(_list_ready_arrays(result))
            end = time.perf_counter()
        compile_time = _measure_union(spans, start, end)
        return result, Metrics(
            execution_time=end - start - compile_time,
            compile_time=compile_time,
            memory_usage=memory,
            validation_issues=issues,
        )

    return run_monitored


def _get_parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Returns the names of the parameters of a function, none if they are not known."""
    try:
        return [*inspect.signature(fn).parameters]
    except (TypeError, ValueError):
        return []


def _analyze_argument(
    given: list[Any], specs: Any, analyzer: ShardingAnalyzer
) -> tuple[dict[str, int] | None, list[str]]:
    """Returns the memory that the first of some arguments takes, if that is known, and all problems of it."""
    if not given:
        return None, ["there is no argument to check against the specs"]
    memory = None
    try:
        issues = analyzer.validate_partition_specs(given[0], specs)
        memory = None if issues else analyzer.estimate_memory_usage(given[0], specs)
    except Exception as error:  # whatever it is, the function runs
        issues = [f"it cannot be checked: {type(error).__name__}: {error}"]
    if not issues and all(get_array_shape(leaf) is None for leaf in _list_leaves(given[0])):
        issues.append("the first argument has no arrays to check against the specs")
    return memory, issues


def _list_leaves(tree: Any) -> list[Any]:
    try:
        return jax.tree.leaves(tree)
    except Exception:  # a node that JAX cannot flatten
        return []


def _list_ready_arrays(tree: Any) -> list[jax.Array]:
    """Returns the arrays of a tree that can be waited for, which donated ones cannot."""
    arrays = [leaf for leaf in _list_leaves(tree) if isinstance(leaf, jax.Array)]
    return [array for array in arrays if is_traced(array) or not array.is_deleted()]


_recordings: ContextVar[tuple[_Spans, ...]] = ContextVar("_recordings", default=())


@contextlib.contextmanager
def record_compile_spans() -> Iterator[_Spans]:
    """Records the times in which JAX traces, lowers and compiles in this thread, as pairs of start and end.

    They come from events that JAX does not document. They may overlap, as where a function is traced within another.
    """
    _register_compile_listener()
    spans: _Spans = []
    token = _recordings.set((*_recordings.get(), spans))
    try:
        yield spans
    finally:
        _recordings.reset(token)


@functools.cache
def _register_compile_listener() -> None:
    def record_event(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith(COMPILE_EVENTS):
            end = time.perf_counter()
            for spans in _recordings.get():
                spans.append((end - duration_secs, end))

    jax.monitoring.register_event_duration_secs_listener(record_event)


def _measure_union(spans: _Spans, start: float, end: float) -> float:
    """Returns how long some spans of time last together between a start and an end, each moment counted once."""
    total, until = 0.0, start
    for begin, finish in sorted(spans):
        begin, finish = max(begin, until), min(finish, end)
        if finish > begin:
            total, until = total + finish - begin, finish
    return total
