"""`named_jit`: `jax.jit` for functions of trees that hold named arrays and anything else.

The arguments of a call are split into arrays and one static argument, see `_arguments.py`, for a single `jax.jit`. The
function is traced once per signature, and its results are sharded inside that trace.
"""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax
from jax.tree_util import keystr, tree_flatten

from ..._ground.arguments import check_flag
from ..._ground.caches import cached_plan, shared_object
from ..._ground.errors import find_caller, find_stacklevel, hide_library_frames, make_error
from ..._ground.formats import format_value, suggest_name
from ..._ground.jax_compat import set_argument_names
from ...named._named_call import enter_scope
from ...named._sharding import mapping_context
from ...named._static_result import ResultWithStatic, pack_result, unpack_result
from .._active_mapping import ActiveMapping, check_policy
from .._active_mesh import get_abstract_mesh, require_mesh
from .._mapping import AxisMapping, ResourceMapping, as_mapping, current_mapping
from .._shard import shard_by_mapping
from ._arguments import ArgumentPartition, Signature, StaticArgs, is_array_type
from ._axis_resources import EntrySharding, Mappings, ResourceMappings
from ._device_errors import find_ambiguity_error, find_deleted_error, find_device_error, find_sharding_error
from ._donation import Donation, check_donated_once, warn_unused_donation
from ._retrace import Traces


Args = ParamSpec("Args")
R = TypeVar("R")

_JIT_OPTIONS = frozenset({"keep_unused", "backend", "inline", "compiler_options"})
_NAMED_JIT_OPTIONS = frozenset(
    {
        *("axis_resources", "in_axis_resources", "out_axis_resources", "policy"),
        *("donate_args", "donate_kwargs", "retrace_warning"),
    }
)
_REMEDIES = {
    "static_argnums": "arguments that are not arrays are static already",
    "static_argnames": "arguments that are not arrays are static already",
    "donate_argnums": "use `donate_args`",
    "donate_argnames": "use `donate_args` or `donate_kwargs`",
    "in_shardings": "use `in_axis_resources`",
    "out_shardings": "use `out_axis_resources`",
    "device": "put the arguments on it, as with `jax.device_put`",
}


class BoundMethod:
    """A compiled function bound to an instance, which is its first argument."""

    def __init__(self, jitted: Any, instance: Any) -> None:
        self._jitted, self._instance = jitted, instance

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethod) and self._jitted is other._jitted and self._instance is other._instance

    def __hash__(self) -> int:
        return hash((id(self._jitted), id(self._instance)))

    def __getattr__(self, name: str) -> Any:
        """Looks up other attributes in the function; those that take its arguments are bound too."""
        if name in ("_jitted", "_instance"):  # while a copy is being made
            raise AttributeError(name)
        attribute = getattr(self._jitted, name)
        return functools.partial(attribute, self._instance) if name in ("lower", "trace", "eval_shape") else attribute

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(self._instance, *args, **kwargs)


class _Stage:
    """A stage of JAX, its function, the static argument, and the shardings of the donated and of the kept arrays."""

    def __init__(self, stage: Any, fn: "NamedJit[..., Any]", static: StaticArgs, shardings: tuple[Any, Any]) -> None:
        self._stage, self._fn, self._static, self._shardings = stage, fn, static, shardings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    @property
    def out_info(self) -> Any:
        """The result, with the shape, dtype and, where JAX knows it, sharding of each array."""
        return unpack_result(self._stage.out_info)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keyword arguments with a `jax.ShapeDtypeStruct` in place of each array.

        They have the shardings that the arguments had, and those of a compiled function the ones that it needs.
        """
        return self._static.merge(*jax.tree.map(set_shape_sharding, self._stage.args_info[0][:2], self._shardings))


def _list_shardings(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the sharding of each array of a call, None for those without."""
    return tuple(getattr(array, "sharding", None) for array in arrays)


class NamedTraced(_Stage):
    """A traced function: everything that `jax.stages.Traced` offers.

    Example:
        >>> import axonym as nym
        >>> traced = nym.named_jit(lambda x: x * 2).trace(nym.ones({"batch": 8}))
        >>> traced.out_info.axes
        (Axis(name='batch', size=8),)
        >>> traced.lower().compile()(nym.ones({"batch": 8})).array.sum()
        Array(16., dtype=float32)
    """

    def lower(self, **options: Any) -> "NamedLowered":
        """Lowers it; options as for `jax.stages.Traced.lower`."""
        return NamedLowered(self._stage.lower(**options), self._fn, self._static, self._shardings)


class NamedLowered(_Stage):
    """A lowered function: everything that `jax.stages.Lowered` offers."""

    def compile(self, *args: Any, **options: Any) -> "NamedCompiled":
        """Compiles it; options as for `jax.stages.Lowered.compile`."""
        compiled = self._stage.compile(*args, **options)
        return NamedCompiled(compiled, self._fn, self._static, compiled.input_shardings[0])


class NamedCompiled(_Stage):
    """A compiled function: everything that `jax.stages.Compiled` offers, called with the function's own arguments."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it with arguments of the structure, shapes and static values that it was compiled for.

        Raises:
            TypeError: If the structure, a shape or a static value differs.
            ValueError: If the sharding of an array differs.
        """
        donated, kept, static = self._fn._split(args, kwargs)
        if static is not self._static:  # equal ones are the same object
            raise TypeError(
                "The function was compiled for arguments of another structure or other static values; `lower` and "
                "`compile` it for these as well."
            )
        try:
            return unpack_result(self._stage(donated, kept))
        except ValueError as error:
            shardings = self._stage.input_shardings[0]
            sharding_error = self._fn._find_sharding_error(shardings, donated, kept, static)
            if sharding_error is not None:
                raise sharding_error.with_traceback(find_caller()) from None
            hide_library_frames(error)
            raise


def set_shape_sharding(info: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of an array with a sharding."""
    return jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding)


class NamedJit(Generic[Args, R]):
    """A function compiled by `named_jit`: call it like the function, or trace, lower and compile it ahead of time.

    Attributes:
        options: What of its arguments is donated, and the options of `jax.jit`, as `named_jit` takes them.
    """

    def __init__(
        self,
        fn: Callable[Args, R],
        mapping: AxisMapping | None,
        in_mappings: Mappings | None,
        out_mappings: Mappings | None,
        policy: Any,
        donation: tuple[Any, Any],
        retrace_warning: bool,
        options: Mapping[str, Any],
    ) -> None:
        if not callable(fn):
            raise make_error(
                TypeError,
                f"`named_jit` compiles a function, not {format_value(fn)}; give a mapping as `axis_resources=`.",
            )
        functools.update_wrapper(self, fn, updated=())
        self.options = {"donate_args": donation[0], "donate_kwargs": donation[1], **options}
        self._fn: Callable[..., Any] = fn
        self._signature = Signature(fn)
        self._mapping, self._policy = mapping, policy
        self._in_mappings, self._out_mappings = in_mappings, out_mappings
        self._stored = None if in_mappings is None else in_mappings.find_stored(mapping)
        if in_mappings is not None:
            in_mappings.check_arity(self._signature)
        self._donation = Donation(self._signature, *donation)
        self._find_partition = cached_plan(self._plan_partition)
        self._make_partition = shared_object(ArgumentPartition)  # one for all calls whose static arguments may be equal

        # A function, because `set_argument_names` sets attributes, which a bound method cannot have.
        def traced(donated: Any, kept: Any, static: StaticArgs) -> Any:
            return self._trace(donated, kept, static)

        self._called = threading.local()  # the static argument of the call that JAX may be about to trace
        set_argument_names(traced, self._name_arrays, fn)
        self._name = traced.__name__ = traced.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
        self._traces = Traces(self._name, self._signature, retrace_warning)
        self._jitted: Any = jax.jit(traced, static_argnums=2, donate_argnums=0, **options)

    def __call__(self, /, *args: Args.args, **kwargs: Args.kwargs) -> R:
        """Calls the function, compiled for these arguments; returns before the result is ready."""
        donated, kept, static = self._split(args, kwargs)
        traces = self._traces.count
        try:  # `_run_stage`, written out to save a call in Python
            result = self._jitted(donated, kept, static)
        except Exception as error:
            hide_library_frames(error)
            argument_error = self._find_argument_error(error, donated, kept, static)
            if argument_error is not None:
                raise argument_error from None
            raise
        if donated and self._traces.count != traces:  # once for each trace: later calls donate the same
            warn_unused_donation(donated, static, self._signature, self._name)
        return unpack_result(result) if type(result) is ResultWithStatic else result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundMethod(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> NamedLowered:
        """Lowers the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        donated, kept, static = self._split(args, kwargs)
        lowered = self._run_stage(self._jitted.lower, donated, kept, static)
        return NamedLowered(lowered, self, static, (_list_shardings(donated), _list_shardings(kept)))

    def trace(self, /, *args: Any, **kwargs: Any) -> NamedTraced:
        """Traces the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        donated, kept, static = self._split(args, kwargs)
        traced = self._run_stage(self._jitted.trace, donated, kept, static)
        return NamedTraced(traced, self, static, (_list_shardings(donated), _list_shardings(kept)))

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the result with a `jax.ShapeDtypeStruct` for each array; nothing is computed.

        Where a mapping shards a result, its sharding is on the active mesh.
        """
        result = unpack_result(self._run_stage(self._jitted.eval_shape, *self._split(args, kwargs)))
        return result if get_abstract_mesh() is None else self._shard_result(result)

    def _run_stage(self, stage: Callable[..., Any], donated: Any, kept: Any, static: StaticArgs) -> Any:
        try:
            return stage(donated, kept, static)
        except Exception as error:
            hide_library_frames(error)
            argument_error = self._find_argument_error(error, donated, kept, static)
            if argument_error is not None:
                raise argument_error from None
            raise

    def clear_cache(self) -> None:
        """Forgets everything compiled."""
        self._find_partition.cache_clear()
        self._make_partition.cache_clear()
        self._traces.clear()
        self._jitted.clear_cache()

    def __reduce__(self) -> str:
        """Pickles the function by name, as functions are; a copy is the function itself."""
        return getattr(self, "__qualname__", self._name)

    @property
    def has_mapping(self) -> bool:
        """Whether it has a mapping of its own that shards anything: for arguments, inside, or for results."""
        in_or_out = (self._in_mappings, self._out_mappings)
        return bool(self._mapping) or any(mappings is not None and mappings.is_sharding for mappings in in_or_out)

    @property
    def trace_count(self) -> int:
        """How many times the function was traced; calls that find a compiled function do not count."""
        return self._traces.count

    def explain_retrace(self) -> str:
        """Returns one line that reports why the function was traced the last time.

        It reports what changed since the nearest of the earlier traces: the active mapping, the mesh, a static value, a
        shape or dtype, the structure of the arguments, or what is donated. The values of arrays are not in it. Calls
        cost nothing for it: what a trace depends on is recorded while tracing, for the last 32 traces.

        Example:
            >>> import axonym as nym
            >>> double = nym.named_jit(lambda x: x * 2)
            >>> for size in (8, 16):
            ...     y = double(nym.ones({"batch": size}))
            >>> double.explain_retrace()
            '`<lambda>` has been traced 2 times; changed since the nearest earlier trace: x: float32[8] -> float32[16]'
        """
        return self._traces.explain_last()

    def _split(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], StaticArgs]:
        """Returns what `jax.jit` takes: the donated arrays, the kept arrays, and the static argument."""
        leaves, treedef = tree_flatten((args, kwargs))
        flags = self._donation.flag_leaves(treedef, leaves) if self._donation.depends_on_leaves else None
        partition, entry = self._find_partition(treedef, tuple(map(type, leaves)), flags)
        if partition.is_donating:
            check_donated_once(leaves, partition, self._signature, self._name)
        if entry is not None:
            leaves = entry.place(leaves)
        try:
            donated, kept, static = partition.split(leaves)
        except TypeError:
            self._check_hashable(leaves, partition)
            raise
        self._called.static = static
        return donated, kept, static

    def _plan_partition(
        self, treedef: Any, types: tuple[type, ...], flags: tuple[bool, ...] | None
    ) -> tuple[ArgumentPartition, EntrySharding | None]:
        flags = self._donation.flag_leaves(treedef, types) if flags is None else flags
        static = tuple([not is_array_type(kind) for kind in types])
        donated = tuple([flag and not is_static for flag, is_static in zip(flags, static, strict=True)])
        partition = self._make_partition(treedef, donated, static, tuple(compress(types, static)))
        if self._in_mappings is None:
            return partition, None
        described = self._in_mappings.describe_arguments(self._signature, treedef)
        return partition, EntrySharding(self._in_mappings, described, f"`{self._name}`, which shards its arguments,")

    def _name_arrays(self, donated: tuple[Any, ...], kept: tuple[Any, ...]) -> dict[str, Any]:
        """Returns the arrays of the call that is traced next by their paths, such as `model.layers[0].weight`."""
        partition = self._called.static.partition
        paths = [keystr(leaf.path) for leaf in self._signature.describe_arguments(partition.treedef)]
        donated_paths, kept_paths = compress(paths, partition.donated), compress(paths, partition.kept)
        named = [*zip(donated_paths, donated, strict=True), *zip(kept_paths, kept, strict=True)]
        # The keys of a user's pytree need not differ.
        return dict(named) if len(dict(named)) == len(named) else {"donated": donated, "kept": kept}

    def _check_hashable(self, leaves: Sequence[Any], partition: ArgumentPartition) -> None:
        """Raises a TypeError with the path of a static leaf that is not hashable."""
        described = self._signature.describe_arguments(partition.treedef)
        for leaf_info, leaf, is_static in zip(described, leaves, partition.static, strict=True):
            try:
                hash(leaf if is_static else None)
            except TypeError:
                raise make_error(
                    TypeError,
                    f"{keystr(leaf_info.path)} is not an array, so it is static, but a {type(leaf).__name__} is "
                    "not hashable; pass an array or a hashable value",
                ) from None

    def _find_argument_error(self, error: Exception, donated: Any, kept: Any, static: StaticArgs) -> ValueError | None:
        """Returns the error that names the argument which JAX's error is about, None for others."""
        described = self._signature.describe_arguments(static.partition.treedef)
        leaves = static.merge_leaves(donated, kept)
        argument_error = (
            find_device_error(error, self._name, described, leaves, self._in_mappings is not None)
            or find_ambiguity_error(error, self._name, described, leaves)
            or find_deleted_error(error, self._name, described, leaves)
        )
        # JAX's own frames are hidden already; the error takes the place of JAX's, at the user's line that led to it.
        return None if argument_error is None else argument_error.with_traceback(error.__traceback__ or find_caller())

    def _find_sharding_error(self, shardings: Any, donated: Any, kept: Any, static: StaticArgs) -> ValueError | None:
        """Returns the error for an argument with another sharding than the function was compiled for, or None."""
        described = self._signature.describe_arguments(static.partition.treedef)
        leaves = static.merge_leaves(donated, kept)
        return find_sharding_error(self._name, described, leaves, static.merge_leaves(*shardings))

    def _trace(self, donated: tuple[Any, ...], kept: tuple[Any, ...], static: StaticArgs) -> Any:
        args, kwargs = static.merge(donated, kept)
        is_sharding = bool(self._mapping) if self._out_mappings is None else self._out_mappings.is_sharding
        if is_sharding:
            require_mesh(f"`{self._name}`, which has a mapping of its own,")
        active_mapping = None if self._mapping is None else ActiveMapping(self._mapping, self._stored, self._policy)
        with contextlib.nullcontext() if active_mapping is None else mapping_context(active_mapping):
            with enter_scope("", None, (*args, *kwargs.values())):
                result = self._fn(*args, **kwargs)
        result = pack_result(self._shard_result(result))
        self._traces.record(donated, kept, static)
        return result

    def _shard_result(self, result: Any) -> Any:
        """Returns a result sharded by the mappings for results."""
        default = current_mapping() if self._mapping is None else self._mapping
        uses_default = self._out_mappings is None or None in (self._out_mappings.by_position or ())
        if default and uses_default and get_abstract_mesh() is None:
            warnings.warn(
                f"a mapping is active where `{self._name}` is traced, but no mesh, so nothing is sharded; "
                "use `jax.set_mesh`",
                RuntimeWarning,
                stacklevel=find_stacklevel(),
            )
        if self._out_mappings is None:
            return shard_by_mapping(result, default)
        return self._out_mappings.shard_results(result, default, self._name)


@overload
def named_jit(
    fn: Callable[Args, R],
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    policy: Any = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    retrace_warning: bool = True,
    **jit_options: Any,
) -> NamedJit[Args, R]: ...
@overload
def named_jit(
    fn: None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    policy: Any = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    retrace_warning: bool = True,
    **jit_options: Any,
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def named_jit(
    fn: Any = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMappings | None = None,
    out_axis_resources: ResourceMappings | None = None,
    policy: Any = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    retrace_warning: bool = True,
    **jit_options: Any,
) -> Any:
    """Compiles a function of trees with named arrays, sharding arguments and results by name; also a decorator.

    Leaves that are not arrays, Python numbers among them, are static: a new value causes a new trace. So does a change
    of the active mapping. Static numbers are equal if their types and bits are, also in dataclasses and tuples there;
    other static values, and static fields of modules, are compared by their own `==`.

    Args:
        fn: The function.
        axis_resources: Mapping that is active while the function is traced; the caller's active mapping if None.
        in_axis_resources: Mapping that shards the arguments on entry; if None, they stay where they are. A list or
            tuple has an entry for each argument by position, None for an argument that stays where it is, as
            keyword-only arguments do then.
        out_axis_resources: Mapping that shards the results; `axis_resources` if None. A list or tuple has an entry for
            each of several results, with None for `axis_resources`.
        policy: In which types layers use parameters, and whether they are stages of a pipeline. It needs
            `axis_resources`.
        donate_args: For each positional argument, whether it is donated, so that its memory is reused: a boolean, a
            tree of booleans or a function from a leaf to a boolean. If an argument is moved on entry, the moved copy is
            donated. JAX warns of donated arrays that it cannot reuse, as in `jax.jit`.
        donate_kwargs: The same by name, for arguments passed by keyword.
        retrace_warning: Whether to warn of many traces; False where they are intended, as for a few dozen shapes. The
            environment variable `AXONYM_RETRACE_WARNING=off` turns the warning off for all functions.
        **jit_options: `keep_unused`, `inline`, `compiler_options` and `backend` of `jax.jit`, which warns that the last
            is deprecated.

    Returns:
        A function of the same arguments, with `lower`, `trace`, `eval_shape`, `clear_cache` and `explain_retrace`.

    Raises:
        TypeError: If another option of `jax.jit` is given, donation is not specified by booleans or functions, or, when
            called, a static leaf is not hashable.
        ValueError: If the function lacks an argument that is to be donated, or, when called, if there is a mapping but
            no mesh, an array cannot be sharded by its mapping, an argument is on other devices than the mesh, the
            number of mappings differs from the number of arguments or results, or a donated array is passed twice; and
            if there is a `policy` without `axis_resources`.

    Warns:
        RuntimeWarning: If donated memory could not be reused, once for each trace, with the paths of the arrays; if a
            donated argument is not an array; if there is an active mapping but no mesh; and, once for each function,
            if four traces differ by a Python number only, or if there are ten traces.

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
        options = sorted(_JIT_OPTIONS | _NAMED_JIT_OPTIONS)
        if option in _REMEDIES:
            remedy = f"; {_REMEDIES[option]}."
        else:
            remedy = suggest_name(option, options) or f"; it takes {', '.join(options)}."
        raise make_error(TypeError, f"`named_jit` has no option `{option}`{remedy}")
    check_flag("`retrace_warning`", retrace_warning)
    check_policy(policy, "named_jit")
    if policy is not None and axis_resources is None:
        raise make_error(
            ValueError,
            "`policy` of `named_jit` belongs to a mapping; give `axis_resources`, or give the policy to the "
            "`axis_mapping` that is active.",
        )
    compiler_options = jit_options.get("compiler_options")
    if compiler_options is not None and not isinstance(compiler_options, Mapping):
        raise make_error(
            TypeError,
            f"`compiler_options` is a mapping from options of XLA to values, not {format_value(compiler_options)}.",
        )

    compile_function = functools.partial(
        NamedJit,
        mapping=None if axis_resources is None else as_mapping(axis_resources),
        in_mappings=None if in_axis_resources is None else Mappings(in_axis_resources),
        out_mappings=None if out_axis_resources is None else Mappings(out_axis_resources),
        policy=policy,
        donation=(donate_args, donate_kwargs),
        retrace_warning=retrace_warning,
        options=jit_options,
    )
    return compile_function if fn is None else compile_function(fn)
