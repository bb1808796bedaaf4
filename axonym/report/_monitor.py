"""Functions that say what they cost: how long each call runs, what its first argument takes, and what is wrong there.

What JAX spends on tracing and compiling is told by its own events. They may lie within one another, as where tracing
runs something, so what is added up is the time that they cover together.
"""

import functools
import inspect
import threading
import time
import types
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypedDict, TypeVar

import jax

from ..partitioning.mapping._stacklevel import user_stacklevel
from ..partitioning.specs._leaves import get_array_shape
from ._analyzer import ShardingAnalyzer
from ._table import some_problems


Args = ParamSpec("Args")
R = TypeVar("R")

# The durations that JAX announces when tracing, lowering or compiling is over. Others, of its caches, lie within them
# or are no time that was spent.
_COMPILING = "/jax/core/compile/"
_MOST_ISSUES = 10
_MOST_FIELDS = 1000


class Metrics(TypedDict):
    """What `create_monitored_function` tells of a call.

    Attributes:
        execution_time: Seconds from the call until its result was there, without those in `compile_time`.
        compile_time: Seconds of it in which JAX traced and compiled, 0 where nothing was new.
        memory_usage: What `ShardingAnalyzer.estimate_memory_usage` says of the first argument, in bytes; None if it
            cannot say anything, and `validation_issues` then has the reason.
        validation_issues: What is wrong with the specs, and why something is not known.

    Example:
        >>> from axonym.partitioning import Metrics
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
    """Makes a function return its result together with what the call took.

    The first argument, say the parameters of a training step, is held against the specs before the function runs, so
    it may be donated. What is wrong with it is a warning, and the function runs all the same; nothing that happens in
    the analysis can lose its result. Errors of the function itself are raised as they are.

    The clock starts when all arrays among the arguments are there and stops when all arrays of the result are. In
    `execution_time` is everything in between but what JAX spends on tracing, lowering and compiling, also of functions
    that the function calls, so the first call takes little longer than later ones: by some milliseconds around each
    compiling, and by what a device does as it first runs a program, which JAX does not tell apart. On CPUs this is a
    few per cent of the time that compiling took; where that matters, go by a later call. Compiling in threads that the
    function starts counts as its execution, and so does waiting for arrays that it holds itself. The analysis comes
    before and is in neither time; for hundreds of arrays it takes tens of milliseconds. Under `jax.jit` there is
    nothing to wait for: the times are those of tracing. Arrays in the fields of objects that JAX does not know are
    waited for as well, and `validation_issues` has a word about it; what a generator or a coroutine will do is in no
    time. After `jax.monitoring.clear_event_listeners()` nobody tells of compiling any more, and `compile_time` is 0.

    Wrap the bound method of an object, `create_monitored_function(trainer.step, ...)`: of a function in a class the
    first argument is `self`, and one without arrays is told in `validation_issues`.

    Args:
        fn: The function, compiled or not.
        partition_specs: The specs of its first argument: a tree of `PartitionSpec`s like it.
        analyzer: Says what is wrong with them and what they cost in memory.

    Returns:
        A function with the same arguments that returns the result and a dictionary: `execution_time` and
        `compile_time` in seconds, `memory_usage` in bytes as `ShardingAnalyzer.estimate_memory_usage` returns it, or
        None if it is not known, and `validation_issues`, a list of sentences.

    Raises:
        TypeError: If `fn` is no function, or the analyzer cannot analyze.

    Warns:
        RuntimeWarning: With each call whose first argument does not go with the specs, before the function runs. Where
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
    for method in ("validate_partition_specs", "estimate_memory_usage"):
        if not callable(getattr(analyzer, method, None)):
            raise TypeError(f"`analyzer` is a `ShardingAnalyzer`, not an object of type {type(analyzer).__name__}.")
    signature = _signature(fn)

    @functools.wraps(fn, updated=("__dict__",) if inspect.isfunction(fn) else ())
    def monitored(*args: Args.args, **kwargs: Args.kwargs) -> tuple[R, Metrics]:
        first = _first_argument(signature, args, kwargs)
        memory, issues = _analysed(first, partition_specs, analyzer)
        if not issues and not any(map(_has_arrays, first)):
            issues.append(f"the first argument{_named(signature)} holds no arrays to hold against the specs")
        if issues:
            name = getattr(fn, "__name__", type(fn).__name__)
            problems = "\n  ".join(some_problems(issues, "`validation_issues`", _MOST_ISSUES))
            warnings.warn(
                f"{name!r} runs, but its first argument does not go with the specs:\n  {problems}",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )
        _wait_for((args, kwargs), tolerant=True)
        with _compiling() as spans:
            start = time.perf_counter()
            result = fn(*args, **kwargs)
            issues += _wait_for(result)
            end = time.perf_counter()
        compiling = _covered(spans, start, end)
        return result, Metrics(
            execution_time=end - start - compiling,
            compile_time=compiling,
            memory_usage=memory,
            validation_issues=issues,
        )

    return monitored


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the parameters of a function, None if it does not tell them."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _first_argument(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Returns what was given for the first parameter, its default if it has one; an empty list if that is nothing."""
    if args:
        return [args[0]]
    for parameter in () if signature is None else signature.parameters.values():
        if parameter.name in kwargs:
            return [kwargs[parameter.name]]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        return [] if parameter.default is parameter.empty else [parameter.default]
    return list(kwargs.values())[:1]


def _named(signature: inspect.Signature | None) -> str:
    """Returns the name of the first parameter as it stands in a sentence, nothing if it is not known."""
    names = [] if signature is None else list(signature.parameters)
    return f", `{names[0]}`," if names else ""


def _has_arrays(tree: Any) -> bool:
    """Tells whether there are arrays in a tree, or things that look like arrays; what is no tree has none."""
    try:
        return any(get_array_shape(leaf) is not None for leaf in jax.tree.leaves(tree))
    except Exception:  # a node that JAX does not know how to flatten
        return False


def _analysed(first: list[Any], specs: Any, analyzer: ShardingAnalyzer) -> tuple[dict[str, int] | None, list[str]]:
    """Returns the memory that the first argument takes, if that can be told, and all that is wrong with it."""
    if not first:
        return None, ["there is no argument to hold against the specs"]
    issues: list[str] = []
    memory = None
    try:
        issues += [str(issue) for issue in analyzer.validate_partition_specs(first[0], specs)]
    except Exception as error:  # whatever it is, the function runs
        issues.append(f"it cannot be checked: {type(error).__name__}: {error}")
    try:
        memory = analyzer.estimate_memory_usage(first[0], specs)
    except Exception as error:
        known = issues and issues[0] in str(error)  # which lists the first problems of many
        issues += [] if known else [f"the memory is not known: {type(error).__name__}: {error}"]
    return memory, issues


def _wait_for(tree: Any, tolerant: bool = False) -> list[str]:
    """Waits for the arrays of a tree, but for those that were donated; returns what keeps it from knowing all.

    Args:
        tree: Anything.
        tolerant: Whether errors of what computes the arrays are left to whoever uses them.
    """
    arrays: list[jax.Array] = []
    issues: list[str] = []
    inside, seen = [tree], {id(tree)}
    while inside:
        try:
            leaves = [inside.pop()] if _is_lazy(inside[-1]) else jax.tree.leaves(inside.pop(), is_leaf=_is_lazy)
        except Exception:  # of a node that JAX does not know how to flatten
            issues.append("the result is no tree that JAX can take apart, so its arrays were not waited for")
            continue
        for leaf in leaves:
            if isinstance(leaf, jax.Array):
                arrays += [] if _is_deleted(leaf) else [leaf]
            elif _is_lazy(leaf):
                issues.append(f"the result holds a `{type(leaf).__name__}`, which has not run and was not waited for")
            elif (fields := _fields(leaf)) and len(seen) < _MOST_FIELDS:
                new = [value for value in fields if id(value) not in seen]
                seen.update(map(id, new))
                inside += new
                issues += [_opaque(leaf)] if any(map(_has_arrays, fields)) else []
    try:
        jax.block_until_ready(arrays)
    except Exception:
        if not tolerant:
            raise
    return list(dict.fromkeys(issues))


def _opaque(leaf: Any) -> str:
    return f"the result holds a `{type(leaf).__name__}`, which JAX cannot take apart; the arrays in it were waited for"


def _is_lazy(leaf: Any) -> bool:
    """Tells whether something computes its values only when it is asked for them: a generator, or what is awaited."""
    return isinstance(leaf, Generator | AsyncGenerator | Awaitable)


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _fields(leaf: Any) -> list[Any]:
    """Returns the values of the fields of an object that JAX takes for a leaf; none of functions, classes, modules."""
    if isinstance(leaf, type | types.ModuleType) or inspect.isroutine(leaf):
        return []
    names = (name for kind in type(leaf).__mro__ for name in _slots(kind))
    values = [getattr(leaf, name) for name in dict.fromkeys(names) if hasattr(leaf, name)]
    return [*getattr(leaf, "__dict__", {}).values(), *values]


def _is_deleted(array: jax.Array) -> bool:
    """Tells whether the memory of an array is gone; that of a traced one never is."""
    try:
        return array.is_deleted()
    except jax.errors.ConcretizationTypeError:
        return False


class _Listening(threading.local):
    """The calls in this thread that want to know when JAX compiles."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[float, float]]] = []


_listening = _Listening()


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
    """Notes a duration that JAX announces as it ends, in the thread that compiled."""
    if event.startswith(_COMPILING):
        end = time.perf_counter()
        for spans in _listening.calls:
            spans.append((end - duration_secs, end))


_registering = threading.Lock()


@functools.cache
def _registered() -> None:
    """Lets JAX tell when it compiles, once in a process."""
    jax.monitoring.register_event_duration_secs_listener(_listen)


@contextmanager
def _compiling() -> Iterator[list[tuple[float, float]]]:
    """Gives a list into which the times go in which JAX compiles in this thread."""
    with _registering:
        _registered()
    spans: list[tuple[float, float]] = []
    _listening.calls.append(spans)
    try:
        yield spans
    finally:
        _listening.calls.pop()


def _covered(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """Returns how long some spans of time last together, each moment counted once, between a start and an end."""
    total, until = 0.0, start
    for begin, finish in sorted(spans):
        begin, finish = max(begin, until), min(finish, end)
        if finish > begin:
            total, until = total + finish - begin, finish
    return total
