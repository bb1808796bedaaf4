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

from .._ground.errors import find_stacklevel
from .._ground.formats import shorten_list
from .._ground.jax_compat import COMPILE_EVENTS, is_traced
from ..partitioning._leaves import get_array_shape
from ..partitioning.jit._arguments import Signature
from ._sharding_analyzer import ShardingAnalyzer


Args = ParamSpec("Args")
R = TypeVar("R")

_Spans: TypeAlias = list[tuple[float, float]]
# One for each monitored function that is running, since they may call one another.
_recordings: ContextVar[tuple[_Spans, ...]] = ContextVar("_recordings", default=())
# Once for the process, because listeners stay registered.
_register_listener = functools.cache(jax.monitoring.register_event_duration_secs_listener)


class Metrics(TypedDict):
    """The metrics of a call of a function from `create_monitored_function`.

    Attributes:
        execution_time: Seconds from the call until its result was ready, without `compile_time`.
        compile_time: Seconds in which JAX traced, lowered and compiled in this thread, including functions that the
            function calls; 0 if all were compiled already.
        memory_usage: The result of `ShardingAnalyzer.estimate_memory_usage` for the first argument, in bytes; None if
            it is unknown, for a reason in `validation_issues`.
        validation_issues: The problems of the specs, and why something is unknown.

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

    The first argument, such as the parameters of a training step, is checked against the specs before the function
    runs, so it may be donated. Problems are warnings, and the function runs all the same. Its errors are not changed.

    The clock starts when all arrays among the arguments are ready and stops when all arrays of the result are, except
    for arrays inside an object that JAX does not flatten. The first call takes slightly longer than later ones even
    without `compile_time`. The analysis is not timed. Under `jax.jit` the times are those of tracing.

    Wrap the bound method of an object, `create_monitored_function(trainer.step, ...)`: the first argument of a function
    in a class is `self`.

    Args:
        fn: The function, compiled or not.
        partition_specs: The specs of its first argument: a tree of `PartitionSpec`s like it.
        analyzer: Checks the specs and counts the memory.

    Returns:
        A function with the same arguments that returns the result and a dictionary, `axonym.report.Metrics`.

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
    names = Signature(fn).named

    # An object that is called, such as a layer, has its fields in `__dict__`, which the result does not get.
    @functools.wraps(fn, updated=("__dict__",) if inspect.isfunction(fn) else ())
    def run_monitored(*args: Args.args, **kwargs: Args.kwargs) -> tuple[R, Metrics]:
        # The one to analyze is first: that passed first by position, or else the first parameter passed by keyword.
        arguments = [*args, *(kwargs[name] for name in names if name in kwargs), *kwargs.values()]
        memory, issues = _analyze_argument(arguments, partition_specs, analyzer)
        if issues:
            problems = "\n  ".join(shorten_list(issues, 10, "`validation_issues`"))
            name = getattr(fn, "__name__", type(fn).__name__)
            text = f"{name!r} runs, but its first argument does not match the specs:\n  {problems}"
            warnings.warn(text, RuntimeWarning, stacklevel=find_stacklevel())
        with contextlib.suppress(Exception):  # errors of what computes an argument are for the function to raise
            jax.block_until_ready(_list_ready_arrays((args, kwargs)))
        with _record_compile_spans() as spans:
            start = time.perf_counter()
            result = fn(*args, **kwargs)
            jax.block_until_ready(_list_ready_arrays(result))
            end = time.perf_counter()
        compile_time = _measure_union(spans, start, end)
        times = {"execution_time": end - start - compile_time, "compile_time": compile_time}
        return result, Metrics(**times, memory_usage=memory, validation_issues=issues)

    return run_monitored


def _analyze_argument(
    arguments: list[Any], specs: Any, analyzer: ShardingAnalyzer
) -> tuple[dict[str, int] | None, list[str]]:
    """Returns the memory usage of the first argument, if it is known, and all problems."""
    if not arguments:
        return None, ["there is no argument to check against the specs"]
    memory = None
    try:
        issues = analyzer.validate_partition_specs(arguments[0], specs)
        memory = None if issues else analyzer.estimate_memory_usage(arguments[0], specs)
        if not issues and all(get_array_shape(leaf) is None for leaf in jax.tree.leaves(arguments[0])):
            issues = ["the first argument has no arrays to check against the specs"]
    except Exception as error:  # whatever it is, the function runs
        issues = [f"it cannot be checked: {type(error).__name__}: {error}"]
    return memory, issues


def _list_ready_arrays(tree: Any) -> list[jax.Array]:
    """Returns the arrays of a tree that can be waited for, which donated ones cannot."""
    try:
        arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    except Exception:  # a node that JAX cannot flatten
        return []
    return [array for array in arrays if is_traced(array) or not array.is_deleted()]


@contextlib.contextmanager
def _record_compile_spans() -> Iterator[_Spans]:
    """Records when JAX traces, lowers and compiles in this thread, as pairs of start and end, which may overlap."""
    _register_listener(_record_event)
    spans: _Spans = []
    token = _recordings.set((*_recordings.get(), spans))
    try:
        yield spans
    finally:
        _recordings.reset(token)


def _record_event(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.startswith(COMPILE_EVENTS):
        end = time.perf_counter()
        for spans in _recordings.get():
            spans.append((end - duration_secs, end))


def _measure_union(spans: _Spans, start: float, end: float) -> float:
    """Returns the total length of spans between a start and an end, with overlaps counted once."""
    total, covered_end = 0.0, start
    for begin, finish in sorted(spans):
        begin, finish = max(begin, covered_end), min(finish, end)
        if finish > begin:
            total, covered_end = total + finish - begin, finish
    return total
