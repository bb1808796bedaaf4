"""`named_jit`: `jax.jit` for functions of trees that hold named arrays and anything else, and `fsdp` on top of it.

Arguments go to `jax.jit` whole as long as they hold arrays only, which costs no look at their leaves. Once something
static was seen among arguments of some types, a call with such flattens them; which leaves are arrays is planned once
per tree structure and leaf types, and the rest is static, held by a token that is hashed once. The function is traced
once per signature, and its results are constrained inside that trace.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from ..._jax_compat import is_tracing
from ...named._axis import suggest_name
from ...named._static_result import ResultWithStatic, pack_result, unpack_result
from .._axis_mapping import activate_mapping
from ..mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping, current_mapping
from ..mapping._stacklevel import user_stacklevel
from ..sharding._shard import shard_by_mapping
from ..specs._active_mesh import get_abstract_mesh, require_mesh
from ._argument_mappings import Mappings, ResourceMappings, misplaced
from ._bound_method import Method
from ._donation import Donation, check_memory, only_staged, say_unused, trace_donates, was_traced, watch
from ._parameters import Parameters
from ._retrace import Traces
from ._stages import NamedLowered, NamedTraced
from ._static_args import (
    WHOLE,
    PerhapsStatic,
    Plan,
    StaticArgs,
    all_arrays,
    token_of_whole,
    unhashable,
)


Args = ParamSpec("Args")
R = TypeVar("R")

_JIT_OPTIONS = frozenset({"keep_unused", "backend", "inline", "compiler_options"})
_OWN_OPTIONS = frozenset({"axis_resources", "in_axis_resources", "out_axis_resources", "donate_args", "donate_kwargs"})
_REMEDIES = {
    "static_argnums": "arguments that are no arrays are static already",
    "static_argnames": "arguments that are no arrays are static already",
    "donate_argnums": "use `donate_args`",
    "donate_argnames": "use `donate_args` or `donate_kwargs`",
    "in_shardings": "use `in_axis_resources`",
    "out_shardings": "use `out_axis_resources`",
    "device": "put the arguments on it, as with `jax.device_put`",
}
_MOST_PLANS = 1024


class NamedJit(Generic[Args, R]):
    """A function compiled by `named_jit`: call it like the function, or look at it before it runs."""

    def __init__(
        self,
        fn: Callable[Args, R],
        mapping: AxisMapping | None,
        in_mappings: Mappings | None,
        out_mappings: Mappings | None,
        donation: tuple[Any, Any],
        options: Mapping[str, Any],
    ) -> None:
        """Wraps the function; see `named_jit`."""
        functools.update_wrapper(self, fn, updated=())
        self._fn: Callable[..., Any] = fn
        self._parameters = Parameters(fn)
        self._mapping = mapping
        self._in_mappings, self._out_mappings = in_mappings, out_mappings
        if in_mappings is not None:
            in_mappings.check_number(self._parameters)
        self._donation = Donation(self._parameters, *donation)
        self._whole = in_mappings is None and self._donation.none
        self._mixed: set[tuple[Any, ...]] = set()  # the kinds of arguments in which something static was seen
        self._plans: dict[Any, Plan] = {}

        def traced(donated: tuple[Any, ...], kept: Any, token: Any) -> Any:
            return self._traced(donated, kept, token)

        self._name = traced.__name__ = traced.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
        self._traces = Traces(self._name, self._parameters)
        self._jitted: Any = jax.jit(traced, static_argnums=2, donate_argnums=0, **options)

    def __call__(self, *args: Args.args, **kwargs: Args.kwargs) -> R:
        """Calls the function, compiled for these arguments; returns before the result is ready."""
        if not self._whole or (self._mixed and _kinds(args, kwargs) in self._mixed):
            return self._sorted(args, kwargs)
        try:
            result = self._jitted((), (args, kwargs), WHOLE)
        except Exception as error:
            if not isinstance(error, PerhapsStatic) and all_arrays((args, kwargs)):
                self._say_clearer(error, (args, kwargs), args, kwargs)
                raise
            if len(self._mixed) >= _MOST_PLANS:
                self._mixed.clear()
            self._mixed.add(_kinds(args, kwargs))  # something is static, or looks like a number; `_fn` was not reached
        else:
            return unpack_result(result) if type(result) is ResultWithStatic else result
        return self._sorted(args, kwargs)

    def _sorted(self, args: Any, kwargs: Any) -> Any:
        """Calls the function with its arguments sorted into arrays and what is static."""
        passed, token = self._passed(args, kwargs)
        try:
            result = self._donating(passed, args, kwargs) if passed[0] else self._jitted(*passed)
        except ValueError as error:
            call = passed[1] if passed[2] is WHOLE else token.joined(passed[0], passed[1])
            self._say_clearer(error, call, args, kwargs)
            raise
        return unpack_result(result) if type(result) is ResultWithStatic else result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds the function to an instance, as functions in classes are."""
        return self if instance is None else Method(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> NamedLowered:
        """Lowers the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        return NamedLowered(*self._staged(self._jitted.lower, args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> NamedTraced:
        """Traces the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        return NamedTraced(*self._staged(self._jitted.trace, args, kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result with a `jax.ShapeDtypeStruct` for each array; nothing is computed.

        Where a mapping says how a result is sharded, it has that sharding, on the mesh in force.
        """
        result = unpack_result(self._staged(self._jitted.eval_shape, args, kwargs)[0])
        return result if get_abstract_mesh() is None else self._placed(result)

    def clear_cache(self) -> None:
        """Forgets everything compiled."""
        self._plans.clear()
        self._mixed.clear()
        self._traces.forget()
        self._jitted.clear_cache()

    @property
    def trace_count(self) -> int:
        """How many times the function was traced; one that is found again in the cache is not."""
        return self._traces.count

    def explain_retrace(self) -> str:
        """Returns one line that says why the function was traced the last time.

        It says what changed since the nearest of the earlier traces: the mapping in force, the mesh, a static value, a
        shape or dtype, the structure of the arguments, or what is donated. The values of arrays are not in it. Calls
        cost nothing for it: what a trace depends on is kept when it happens, for the last 32 of them.

        Example:
            >>> import axonym as nym
            >>> double = nym.named_jit(lambda x: x * 2)
            >>> for size in (8, 16):
            ...     y = double(nym.ones({"batch": size}))
            >>> double.explain_retrace()
            '`<lambda>` has been traced 2 times; changed since the nearest earlier trace: x: float32[8] -> float32[16]'
        """
        return self._traces.explanation()

    def _passed(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any, Any], StaticArgs]:
        """Returns what `jax.jit` gets, the donated arrays, the kept ones and what is static, and the token for that."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        flags = self._donation.flags(treedef, leaves) if self._donation.depends_on_leaves else None
        key = (treedef, tuple(map(type, leaves)), flags)
        plan = self._plans.get(key) or self._planned(key, leaves, args, kwargs)
        if self._in_mappings is not None:
            leaves = self._in_mappings.placed(leaves, plan, f"`{self._name}`, whose arguments go by a mapping,")
        try:
            return plan.passed(leaves, (args, kwargs))
        except TypeError as error:
            raise unhashable(self._parameters.leaves(args, kwargs), leaves, error) from None

    def _planned(self, key: Any, leaves: list[Any], args: Any, kwargs: Any) -> Plan:
        treedef, _, flags = key
        flags = self._donation.flags(treedef, leaves) if flags is None else flags
        described = None if self._in_mappings is None else self._in_mappings.arguments(self._parameters, args, kwargs)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        if any(flags) and not is_tracing():
            check_memory(leaves, flags, self._parameters.leaves(args, kwargs), self._name)
        self._plans[key] = plan = Plan(treedef, leaves, flags, described)
        return plan

    def _donating(self, passed: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """Calls the function with arguments that it may use the memory of, and says once what it did not use."""
        try:
            result = self._jitted(*passed)
        finally:
            traced = watch.traced and was_traced()
        if traced:
            described, where = self._parameters.leaves(args, kwargs), passed[2].plan.where[0]
            say_unused(passed[0], [described[at] for at in where], self._name)
        return result

    def _say_clearer(self, error: Exception, call: Any, args: Any, kwargs: Any) -> None:
        """Raises an error that says by path what the error of a call says, unless it is about something else."""
        if isinstance(error, ValueError):
            described = self._parameters.leaves(args, kwargs)
            clearer = misplaced(error, self._name, described, call, self._in_mappings)
            if clearer is not None:
                raise clearer from error

    def _staged(self, stage: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any, StaticArgs, bool]:
        """Returns a stage, how arguments are passed to it, the token for these, and whether they went in whole."""
        passed, token = self._passed(args, kwargs)
        with only_staged():
            return stage(*passed), self._passed, token, passed[2] is WHOLE

    def _traced(self, donated: tuple[Any, ...], kept: Any, token: Any) -> Any:
        if token is WHOLE:
            (args, kwargs), (kept, token) = kept, token_of_whole(kept, self)
        else:
            args, kwargs = token.joined(donated, kept)
        if self._mapping if self._out_mappings is None else self._out_mappings.shards:
            require_mesh(f"`{self._name}`, which has a mapping of its own,")
        stored = None if self._in_mappings is None else self._in_mappings.only
        with contextlib.nullcontext() if self._mapping is None else activate_mapping(self._mapping, stored):
            result = self._fn(*args, **kwargs)
        result = pack_result(self._placed(result))
        self._traces.record(donated, kept, token)
        if donated:
            trace_donates()
        return result

    def _placed(self, result: Any) -> Any:
        """Returns a result where the mappings for results say."""
        other = current_mapping() if self._mapping is None else self._mapping
        if other and (self._out_mappings is None or self._out_mappings.leaves_some) and get_abstract_mesh() is None:
            warnings.warn(
                f"a mapping is in force where `{self._name}` is traced, but no mesh, so nothing is sharded; "
                "use `jax.set_mesh`",
                RuntimeWarning,
                stacklevel=user_stacklevel(),
            )
        if self._out_mappings is None:
            return shard_by_mapping(result, other)
        return self._out_mappings.results(result, other, self._name)


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the names and types of arguments, which tell without a walk what a call is like."""
    return *map(type, args), *kwargs, *map(type, kwargs.values())


@overload
def named_jit(
    fn: Callable[Args, R],
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_options: Any,
) -> NamedJit[Args, R]: ...
@overload
def named_jit(
    fn: None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_options: Any,
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def named_jit(
    fn: Any = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_options: Any,
) -> Any:
    """Compiles a function of trees with named arrays, sharding arguments and results by name; also a decorator.

    Leaves that are no arrays, Python numbers among them, are static: another value means another trace. A changed
    mapping in force means another trace as well, and the same one is found again.

    Args:
        fn: The function.
        axis_resources: Mapping in force while the function is traced; the one in force at the call if None.
        in_axis_resources: Mapping by which arguments are sharded on entry, wherever they are; as they are if None. A
            list or tuple has an entry for each argument by position, None for one that stays as it is; arguments that
            only go by keyword stay as they are then.
        out_axis_resources: Mapping by which results are sharded; `axis_resources` if None. A list or tuple has an entry
            for each of several results, with None for `axis_resources`.
        donate_args: For each positional argument, whether its memory may be reused: a boolean, a tree of booleans or a
            function from a leaf to a boolean. Of an argument that is moved on entry, the moved copy is donated.
        donate_kwargs: The same by name, for arguments passed by keyword.
        **jit_options: `keep_unused`, `inline`, `compiler_options` and `backend` of `jax.jit`, which warns that the last
            is deprecated.

    Returns:
        A function of the same arguments, with `lower`, `trace`, `eval_shape`, `clear_cache` and `explain_retrace`.

    Raises:
        TypeError: If another option of `jax.jit` is given, what is donated is not said by booleans or functions, or,
            when called, a static leaf cannot be hashed.
        ValueError: If the function lacks an argument that is to be donated, or, when called, if mappings are given and
            no mesh is set, an array cannot be sharded as they say, an argument is on other devices than the mesh, or
            the number of mappings is not that of the arguments or results.

    Warns:
        RuntimeWarning: If donated memory could not be used again, once for each trace, with the paths of the arrays; if
            an argument that is donated is no array; or if there is a mapping in force and no mesh.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> @nym.named_jit(axis_resources={"batch": "data"})
        ... def double(x):
        ...     return x * 2
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     double(nym.ones({"batch": 8})).sharding.spec
        P('data',)
    """
    for option in jit_options.keys() - _JIT_OPTIONS:
        known = sorted(_JIT_OPTIONS | _OWN_OPTIONS)
        near = suggest_name(option, known) or f"; it takes {', '.join(known)}."
        remedy = f"; {_REMEDIES[option]}." if option in _REMEDIES else near
        raise TypeError(f"`named_jit` has no option `{option}`{remedy}")
    if fn is not None and not callable(fn):
        raise TypeError(f"`named_jit` compiles a function, not {fn!r}; give a mapping as `axis_resources=`.")
    if fn is None:
        return functools.partial(
            named_jit,
            axis_resources=axis_resources,
            in_axis_resources=in_axis_resources,
            out_axis_resources=out_axis_resources,
            donate_args=donate_args,
            donate_kwargs=donate_kwargs,
            **jit_options,
        )
    return NamedJit(
        fn,
        None if axis_resources is None else as_mapping(axis_resources),
        None if in_axis_resources is None else Mappings(in_axis_resources),
        None if out_axis_resources is None else Mappings(out_axis_resources),
        (donate_args, donate_kwargs),
        jit_options,
    )


@overload
def fsdp(
    fn: Callable[Args, R], parameter_mapping: ResourceMapping, compute_mapping: ResourceMapping, **options: Any
) -> NamedJit[Args, R]: ...
@overload
def fsdp(
    parameter_mapping: ResourceMapping, compute_mapping: ResourceMapping, **options: Any
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def fsdp(fn: Any = None, parameter_mapping: Any = None, compute_mapping: Any = None, **options: Any) -> Any:  # pyright: ignore[reportInconsistentOverload]
    """Compiles a function whose arguments and results are sharded one way and whose computation is sharded another.

    That is fully sharded data parallelism: parameters and optimizer state are divided over the data axis between
    steps, and each layer gathers its own parameters when it uses them. It is `named_jit` with `parameter_mapping` for
    arguments and results and `compute_mapping` in force inside.

    A layer takes each parameter from where `parameter_mapping` has it, and its gradient goes back to there: a
    reduce-scatter where the compiler has one. To gather all parameters once instead, do so and call the layers inside
    `with axis_mapping(compute_mapping)`, which takes parameters as they are.

    Args:
        fn: The function; left out, a decorator is returned.
        parameter_mapping: Mapping of arguments and results. It holds for the batch as well, so map its axis here too;
            no argument can have two axes on one mesh axis. For a batch of embeddings, which would, give
            `in_axis_resources=(parameter_mapping, compute_mapping)` as well, an entry for each argument.
        compute_mapping: Mapping in force while the function is traced.
        **options: The other options of `named_jit`; `in_axis_resources` and `out_axis_resources` in place of
            `parameter_mapping` where arguments or results differ.

    Returns:
        What `named_jit` returns.

    Raises:
        TypeError: If one of the two mappings is missing.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> compute = {"batch": "data", "mlp": "model"}
        >>> @nym.fsdp({**compute, "embed": "data"}, compute)
        ... def step(weight, batch):
        ...     return weight - nym.dot(batch, weight, axis="pixel").mean()
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     step(nym.ones({"pixel": 3, "embed": 8}), nym.ones({"batch": 8, "pixel": 3})).sharding.spec
        P(None, 'data')
    """
    if fn is not None and not callable(fn):  # the mappings alone, the first of them by position
        given = [one for one in (fn, parameter_mapping, compute_mapping) if one is not None]
        fn, parameter_mapping, compute_mapping = None, *(given if len(given) == 2 else (None, None))
    if parameter_mapping is None or compute_mapping is None:
        raise TypeError("`fsdp` takes two mappings: one for parameters, and one for computing.")
    mappings = {"in_axis_resources": parameter_mapping, "out_axis_resources": parameter_mapping}
    return named_jit(fn, compute_mapping, **{**mappings, **options})
