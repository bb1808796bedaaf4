"""`named_jit`: `jax.jit` for functions of trees that hold named arrays and anything else, and `fsdp` on top of it.

A call flattens its arguments once. Which leaves are arrays is planned once per tree structure and leaf types; the rest
is static, held by a token that is hashed once. The function is traced once per signature, and its results are
constrained inside that trace.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from ..named._axis import near_miss
from ._call import Mixed, Plan, Token, packed, unpacked
from ._context import in_force
from ._donate import Donation
from ._mapping import AxisMapping, ResourceMapping, current_mapping, normalised
from ._shard import ARRAYS, described_leaves, placed, placed_leaves
from ._spec import ambient_mesh, levels_inside, needed_mesh


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
}
_MOST_PLANS = 1024


class NamedJit(Generic[Args, R]):
    """A function compiled by `named_jit`: call it like the function, or look at it before it runs."""

    def __init__(
        self,
        fn: Callable[Args, R],
        mapping: AxisMapping | None,
        in_mapping: AxisMapping | None,
        out_mapping: AxisMapping | None,
        donation: Donation,
        options: Mapping[str, Any],
    ) -> None:
        """Wraps the function; see `named_jit`."""
        functools.update_wrapper(self, fn, updated=())
        self._fn: Callable[..., Any] = fn
        self._mapping = mapping
        self._in_mapping, self._out_mapping = in_mapping, out_mapping
        self._donation = donation
        self._plans: dict[Any, Plan] = {}

        def traced(donated: tuple[Any, ...], kept: tuple[Any, ...], token: Token) -> Any:
            return self._traced(donated, kept, token)

        self._name = traced.__name__ = traced.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
        self._jitted: Any = jax.jit(traced, static_argnums=2, donate_argnums=0, **options)

    def __call__(self, *args: Args.args, **kwargs: Args.kwargs) -> R:
        """Calls the function, compiled for these arguments; returns before the result is ready."""
        result = self._jitted(*self._passed(args, kwargs))
        return unpacked(result) if type(result) is Mixed else result

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Binds the function to an instance, as functions in classes are."""
        return self if instance is None else _Bound(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> "NamedLowered":
        """Lowers the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        passed = self._passed(args, kwargs)
        return NamedLowered(self._jitted.lower(*passed), self._passed, passed[2])

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function for arguments, which may be `jax.ShapeDtypeStruct`s; see `jax.jit`."""
        return self._jitted.trace(*self._passed(args, kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result with a `jax.ShapeDtypeStruct` for each array; nothing is computed."""
        return unpacked(self._jitted.eval_shape(*self._passed(args, kwargs)))

    def clear_cache(self) -> None:
        """Forgets everything compiled."""
        self._jitted.clear_cache()

    def _passed(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], Token]:
        """Returns what `jax.jit` gets: the donated arrays, the kept ones, and the token for the rest."""
        leaves, treedef = jax.tree.flatten((args, kwargs))
        flags = self._donation.flags(treedef, leaves) if self._donation.depends_on_leaves else None
        key = (treedef, tuple(map(type, leaves)), flags)
        plan = self._plans.get(key) or self._planned(key, leaves, args, kwargs)
        if self._in_mapping is not None:
            mesh = needed_mesh("`named_jit` with `in_axis_resources`") if self._in_mapping else None
            leaves = placed_leaves(leaves, plan.described, self._in_mapping, mesh)
        try:
            return plan.passed(leaves)
        except TypeError as error:
            raise _unhashable({"args": args, "kwargs": kwargs}, error) from None

    def _planned(self, key: Any, leaves: list[Any], args: Any, kwargs: Any) -> Plan:
        treedef, _, flags = key
        flags = self._donation.flags(treedef, leaves) if flags is None else flags
        described = [] if self._in_mapping is None else described_leaves({"args": args, "kwargs": kwargs})
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[key] = plan = Plan(treedef, leaves, flags, described)
        return plan

    def _traced(self, donated: tuple[Any, ...], kept: tuple[Any, ...], token: Token) -> Any:
        own = self._mapping if self._out_mapping is None else self._out_mapping
        if own:
            needed_mesh("`named_jit` with a mapping of its own")
        args, kwargs = token.joined(donated, kept)
        with contextlib.nullcontext() if self._mapping is None else in_force(self._mapping):
            result = self._fn(*args, **kwargs)
        mapping = current_mapping() if own is None else own
        if mapping and ambient_mesh() is None:
            warnings.warn(
                f"a mapping is in force where `{self._name}` is traced, but no mesh, so nothing is sharded; "
                "use `jax.set_mesh`",
                RuntimeWarning,
                stacklevel=levels_inside(),
            )
        return packed(result if mapping is None else placed(result, mapping))


class _Bound:
    """A `NamedJit` as a method of an instance."""

    def __init__(self, jitted: NamedJit[Any, Any], instance: Any) -> None:
        self._jitted, self._instance = jitted, instance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jitted, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(self._instance, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> "NamedLowered":
        return self._jitted.lower(self._instance, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted.trace(self._instance, *args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted.eval_shape(self._instance, *args, **kwargs)


def _unhashable(call: Any, error: TypeError) -> TypeError:
    for path, leaf in jax.tree_util.tree_leaves_with_path(call):
        try:
            hash(leaf)
        except TypeError:
            if not isinstance(leaf, ARRAYS):
                return TypeError(
                    f"{jax.tree_util.keystr(path)} is no array, so it is static, but a {type(leaf).__name__} "
                    "cannot be hashed; pass an array or something that can be hashed"
                )
    return error


class NamedLowered:
    """A lowered function: everything that `jax.stages.Lowered` offers, compiled to a function of the same arguments."""

    def __init__(self, lowered: Any, passed: Callable[[Any, Any], Any], token: Token) -> None:
        """Keeps what JAX lowered, how arguments are passed to it, and what was static about them."""
        self._lowered, self._passed, self._token = lowered, passed, token

    def __getattr__(self, name: str) -> Any:
        """Looks up everything else in `jax.stages.Lowered`."""
        return getattr(self._lowered, name)

    def compile(self, **options: Any) -> "NamedCompiled":
        """Compiles it; options as for `jax.stages.Lowered.compile`."""
        return NamedCompiled(self._lowered.compile(**options), self._passed, self._token)


class NamedCompiled:
    """A compiled function: everything that `jax.stages.Compiled` offers, called with the function's own arguments."""

    def __init__(self, compiled: Any, passed: Callable[[Any, Any], Any], token: Token) -> None:
        """Keeps what JAX compiled, how arguments are passed to it, and what is static about them."""
        self._compiled, self._passed, self._token = compiled, passed, token

    def __getattr__(self, name: str) -> Any:
        """Looks up everything else in `jax.stages.Compiled`."""
        return getattr(self._compiled, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it with arguments of the structure, shapes and static values that it was compiled for.

        Raises:
            TypeError: If the structure, a shape or a static value is another one.
        """
        donated, kept, token = self._passed(args, kwargs)
        if token != self._token:
            raise TypeError(
                "The arguments have another structure, or other values that are no arrays, than those that this was "
                "compiled for; `lower` and `compile` it for them as well."
            )
        return unpacked(self._compiled(donated, kept))


@overload
def named_jit(
    fn: Callable[Args, R],
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_options: Any,
) -> NamedJit[Args, R]: ...
@overload
def named_jit(
    fn: None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
    **jit_options: Any,
) -> Callable[[Callable[Args, R]], NamedJit[Args, R]]: ...
def named_jit(
    fn: Any = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
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
        in_axis_resources: Mapping by which arguments are sharded on entry, wherever they are; as they are if None.
        out_axis_resources: Mapping by which results are sharded; `axis_resources` if None.
        donate_args: For each positional argument, whether its memory may be reused: a boolean, a tree of booleans or a
            function from a leaf to a boolean.
        donate_kwargs: The same by name, for arguments passed by keyword.
        **jit_options: `keep_unused`, `backend`, `inline` and `compiler_options` of `jax.jit`.

    Returns:
        A function of the same arguments, with `lower`, `trace`, `eval_shape` and `clear_cache`.

    Raises:
        TypeError: If another option of `jax.jit` is given, what is donated is not said by booleans or functions, or,
            when called, a static leaf cannot be hashed.
        ValueError: If the function lacks an argument that is to be donated, or, when called, if mappings are given and
            no mesh is set, or an array cannot be sharded as they say.

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
        near = near_miss(option, known) or f"; it takes {', '.join(known)}."
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
        None if axis_resources is None else normalised(axis_resources),
        None if in_axis_resources is None else normalised(in_axis_resources),
        None if out_axis_resources is None else normalised(out_axis_resources),
        Donation(fn, donate_args, donate_kwargs),
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

    Args:
        fn: The function; left out, a decorator is returned.
        parameter_mapping: Mapping of arguments and results. It holds for the batch as well, so map its axis here too;
            no argument can have two axes on one mesh axis, as a batch of embeddings would.
        compute_mapping: Mapping in force while the function is traced.
        **options: `donate_args`, `donate_kwargs` and the other options of `named_jit`.

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
    return named_jit(
        fn, compute_mapping, in_axis_resources=parameter_mapping, out_axis_resources=parameter_mapping, **options
    )
