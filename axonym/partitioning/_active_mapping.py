"""The active mapping: `axis_mapping`, and its answers to named arrays, which ask through `named/_sharding.py`."""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from .._ground.caches import cached_plan, shared_object
from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value
from .._ground.jax_compat import is_traced
from ..named._axis import Names
from ..named._axis_layout import count_parts, format_mesh_axes, get_axes_of_type, get_entry_axes, round_up
from ..named._named_call import format_scope
from ..named._reduced_types import get_reduced_axes
from ..named._sharding import mapping_context
from ..named._stages import STAGE, StagePlan
from ._active_mesh import MeshLike, get_abstract_mesh
from ._gather import find_batch_axes, find_typed_axes, gather_reduced
from ._mapping import AxisMapping, PhysicalAxisSpec, ResourceMapping, Uneven, current_mapping
from ._placement import select_axis_type
from ._policy import Policy, check_policy, current_policy, warn_of_typos
from ._resolve_spec import resolve_sharding, resolve_spec
from ._rounded_gather import gather_rounded
from ._shard import shard_array


F = TypeVar("F", bound=Callable[..., Any])


class ActiveMapping(tuple[object]):
    """A mapping as the value of the user context, used with the active mesh.

    To JAX it is a tuple of one object, the same for equal mappings, which is hashed and compared in C. A `__eq__` in
    Python would let other threads run while JAX searches its cache of compiled calls, which may crash (seen in jaxlib
    0.12.0). `mapping` itself is not that object: equal mappings may have another order of entries.
    """

    mapping: AxisMapping
    stored: AxisMapping | None  # by which parameters are sharded until they are used
    policy: Policy

    def __new__(cls, mapping: AxisMapping, stored: AxisMapping | None = None, policy: Policy | None = None) -> Self:
        policy = policy or Policy()
        active = super().__new__(cls, (_find_mapping_key(mapping, stored, policy),))
        active.mapping, active.stored, active.policy = mapping, stored, policy
        return active

    def constrain(self, array: Any, names: Names) -> Any:
        if not is_traced(array):  # scopes name operations in compiled programs only
            return shard_array(array, names, self.mapping)
        with jax.named_scope(format_scope("shard", names)):
            return shard_array(array, names, self.mapping)

    def gather(self, array: Any, names: Names, may_be_reduced: bool) -> Any:
        gather_dtype = self.policy.find_gather_dtype(names)
        if self.policy.precision is None:
            return self._gather(array, names, may_be_reduced, gather_dtype)
        dtype, sum_dtype = self.policy.precision.find_gather_dtypes(names, array.dtype)
        gather = functools.partial(self._gather, names=names, may_be_reduced=may_be_reduced)
        # Other parameters have gradients that are complete where they are computed.
        if dtype == sum_dtype or not may_be_reduced or self.stored is None:
            return gather(array.astype(dtype), gather_dtype=gather_dtype)

        @jax.custom_jvp
        def gather_in_dtype(array: Any) -> Any:
            return gather(array.astype(dtype), gather_dtype=gather_dtype)

        @gather_in_dtype.defjvp
        def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
            self._check_reductions(names, sum_dtype)
            # Backward, a gradient is converted to `sum_dtype` before the transpose of the gather adds it up.
            tangent = gather(tangents[0].astype(sum_dtype), gather_dtype=None).astype(dtype)
            return gather_in_dtype(*primals), tangent

        return gather_in_dtype(array)

    def _check_reductions(self, names: Names, dtype: Any) -> None:
        """Raises an error if the compiler adds up gradients where they are computed, in the type that they have."""
        mesh = get_abstract_mesh()
        if mesh is None or self.stored is None or find_typed_axes(self.mapping, self.stored, mesh):
            return
        manual_axes = get_axes_of_type(mesh, AxisType.Manual)
        for axis in find_batch_axes(self.mapping, self.stored, mesh).difference(manual_axes):
            if mesh.shape[axis] > 1:
                raise make_error(
                    ValueError,
                    f"`reductions` of a `Precision` asks for sums in {dtype} of the gradient of {format_axes(names)}, "
                    f"and on the mesh {format_axes(mesh.axis_names, tuple(mesh.shape.values()))} the compiler adds up "
                    "gradients where they are computed; make all mesh axes Explicit with `axis_types='explicit'`, or "
                    "leave `reductions` out.",
                )

    def _gather(self, array: Any, names: Names, may_be_reduced: bool, gather_dtype: Any) -> Any:
        """Returns a parameter gathered in few bits if `gather_dtype` is not None; layers get it in its own type."""
        if self.stored is None or self.stored == self.mapping:
            # `microbatch` types parameters before layers take them, so that these keep the type.
            reduced_axes = get_reduced_axes(array) if may_be_reduced and is_traced(array) else None
            if not reduced_axes:
                return self.constrain(array, names)
            with jax.named_scope(format_scope("gather", names)):
                sharding = resolve_sharding(names, array.shape, self.mapping, jax.typeof(array).sharding.mesh)
                return gather_reduced(array, sharding, reduced_axes)
        mesh = get_abstract_mesh()
        if mesh is None:
            return self.constrain(array, names)
        with jax.named_scope(format_scope("gather", names)):
            if AxisType.Auto in mesh.axis_types:
                # The type of a parameter states how it is stored over Explicit mesh axes. Over Auto ones the compiler
                # learns it here: each layer then gathers only its own slice, and the gradient, which meets both
                # constraints in reverse, is reduced to shards.
                with contextlib.suppress(ValueError):  # a slice need not be divisible where its parameter is
                    array = shard_array(array, names, self.stored)
            if not jnp.issubdtype(array.dtype, jnp.inexact):
                return shard_array(array, names, self.mapping)
            batch_axes = frozenset[str]()
            if may_be_reduced:
                # With those over which `microbatch` has typed it.
                batch_axes = find_typed_axes(self.mapping, self.stored, mesh) | get_reduced_axes(array)
            gather = functools.partial(self._gather_exactly, names=names, mesh=mesh, batch_axes=batch_axes)
            if gather_dtype is None:
                return gather(array)
            stored = jax.typeof(array).sharding
            if AxisType.Auto in mesh.axis_types:
                # As above, a slice need not be divisible; then it is not constrained.
                stored = resolve_sharding(names, array.shape, self.stored.merged({}, uneven="replicate"), mesh)
            computing = resolve_sharding(names, array.shape, self.mapping, mesh)
            return gather_rounded(array, stored, computing, gather_dtype, batch_axes, gather)

    def _gather_exactly(self, array: Any, names: Names, mesh: MeshLike, batch_axes: frozenset[str]) -> Any:
        if batch_axes:
            return gather_reduced(array, resolve_sharding(names, array.shape, self.mapping, mesh), batch_axes)
        return shard_array(array, names, self.mapping)

    def get_out_sharding(self, names: Names, sizes: tuple[int | None, ...]) -> NamedSharding | None:
        mesh = get_abstract_mesh()
        if mesh is None or AxisType.Explicit not in mesh.axis_types:
            return None
        return select_axis_type(resolve_sharding(names, sizes, self.mapping, mesh), AxisType.Explicit)

    def get_sharding(self, names: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
        mesh = get_abstract_mesh()
        return None if mesh is None else resolve_sharding(names, sizes, self.mapping, mesh)

    def get_mesh_axes(self, name: str, size: int) -> tuple[str, ...]:
        mesh = get_abstract_mesh()
        return () if mesh is None else _find_auto_axes(name, size, self.mapping, mesh)

    def find_stages(self, name: str, size: int) -> StagePlan | None:
        mesh = get_abstract_mesh()
        if mesh is None or self.policy.microbatches is None or not self.mapping.mesh_axes(name):
            return None
        axis, microbatches = self.policy.microbatches
        is_manual = {axis: kind == AxisType.Manual for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)}
        mesh_axes = tuple(axis for axis in self.mapping.mesh_axes(name) if not is_manual.get(axis, True))
        stages = count_parts(mesh_axes, mesh)
        if stages == 1:
            return None
        if any(is_manual.values()):
            raise make_error(
                ValueError,
                f"layers along {name!r} cannot be stages of a pipeline within `shard_map`, as `reduce_once=True` of "
                f"`microbatch` uses it; map {name!r} to None, or leave the `shard_map` out",
            )
        if size % stages:
            divisors = [count for count in range(2, size + 1) if size % count == 0]
            raise make_error(
                ValueError,
                f"axis {name!r} of size {size} cannot be divided into {stages} stages over mesh axis "
                f"{format_mesh_axes(mesh_axes, mesh)}; use {', '.join(map(str, divisors))} stages or "
                f"{round_up(size, stages)} layers",
            )
        replicates_uneven = self.mapping.uneven == "replicate"
        stage_mapping = _assign_mesh_axes(self.mapping.merged({name: None}), STAGE, mesh_axes)
        collecting = ActiveMapping(_assign_mesh_axes(self.mapping, name, mesh_axes))
        if self.stored is None:
            computing = ActiveMapping(stage_mapping, policy=self.policy)
            return StagePlan(stages, axis, microbatches, replicates_uneven, computing, computing, computing, collecting)
        stored = _assign_mesh_axes(self.stored, STAGE, mesh_axes)
        storing, computing = ActiveMapping(stored), ActiveMapping(stage_mapping)
        gathering = ActiveMapping(stage_mapping, stored, self.policy)
        return StagePlan(stages, axis, microbatches, replicates_uneven, storing, gathering, computing, collecting)


def _assign_mesh_axes(mapping: AxisMapping, name: str, mesh_axes: tuple[str, ...]) -> AxisMapping:
    """Returns a mapping in which an axis is sharded over these mesh axes, and no other axis over any of them."""
    entries: dict[str, Any] = {}
    for other_name in mapping:
        entries[other_name] = [axis for axis in mapping.mesh_axes(other_name) if axis not in mesh_axes]
    return mapping.merged({**entries, name: mesh_axes})


class _MappingKey:
    """The object by which JAX knows equal mappings with equal policies."""


@shared_object
def _find_mapping_key(mapping: AxisMapping, stored: AxisMapping | None, policy: Policy) -> _MappingKey:
    warn_of_typos(policy, [mapping] if stored is None else [mapping, stored])
    return _MappingKey()


@cached_plan
def _find_auto_axes(name: str, size: int, mapping: AxisMapping, mesh: MeshLike) -> tuple[str, ...]:
    """Returns the Auto mesh axes over which an axis is sharded; JAX infers Explicit ones by itself."""
    (entry,) = resolve_spec((name,), (size,), mapping, mesh)
    auto_axes = get_axes_of_type(mesh, AxisType.Auto)
    return tuple(axis for axis in get_entry_axes(entry) if axis in auto_axes)


class _ActiveManagers(threading.local):
    """The context managers that one thread has entered, innermost last."""

    def __init__(self) -> None:
        self.managers: list[Any] = []


class axis_mapping(contextlib.ContextDecorator):
    """Activates a mapping from axis names to mesh axes, for a `with` block or a decorated function.

    It applies to the current thread and can be entered again and nested; the inner one wins. It is part of every jit
    cache key: a compiled function is traced anew under another mapping and reused under an equal one. A block must not
    hold a `yield` or an `await`: JAX keeps the mapping for the thread, so it would be active elsewhere meanwhile.

    Args:
        mapping: From names to mesh axes, one or several; None for a name replicates its axis.
        merge: Whether entries of the outer active mapping stay valid for names that this one does not have.
        fallback: A sharding rule for plain arrays: a `ShardingRule`, or any hashable object whose `apply(array)`
            returns a `PartitionSpec`; see `AxisMapping`.
        uneven: What happens to an axis whose size is not divisible: `"error"`, or `"replicate"` to replicate it.
        policy: In which types layers use parameters, and whether they are stages; with `merge`, None is the policy of
            the outer mapping.
        **entries: More entries, by keyword.

    Raises:
        TypeError: If a name or a mesh axis is not a string, `merge` is not a boolean, `policy` is not a `Policy`, or
            the decorated function is a generator or asynchronous.
        ValueError: If an entry names a mesh axis twice.

    Example:
        >>> import axonym as nym
        >>> with nym.axis_mapping({"batch": "data"}):
        ...     with nym.axis_mapping(mlp="model", merge=True):
        ...         nym.current_mapping()
        AxisMapping({'batch': 'data', 'mlp': 'model'})
    """

    def __init__(
        self,
        /,
        mapping: ResourceMapping | None = None,
        *,
        merge: bool = False,
        fallback: Any = None,
        uneven: Uneven | None = None,
        policy: Policy | None = None,
        **entries: PhysicalAxisSpec | None,
    ) -> None:
        if not isinstance(merge, bool):
            raise make_error(
                TypeError,
                f"`merge` of `axis_mapping` is True or False, not {format_value(merge)}; to map an axis named "
                "'merge', put it into a mapping: `axis_mapping({'merge': ...})`.",
            )
        check_policy(policy, "axis_mapping")
        # The options of an `AxisMapping` count as given; without them, `merge` keeps those of the outer mapping.
        if isinstance(mapping, AxisMapping):
            fallback = mapping.fallback if fallback is None else fallback
            uneven = uneven or mapping.uneven
        self._merge, self._fallback = merge, fallback
        self._uneven: Uneven | None = uneven
        self._mapping = AxisMapping(mapping).merged(entries, fallback=fallback, uneven=uneven)
        self._policy = policy
        self._active = _ActiveManagers()

    def __call__(self, func: F) -> F:
        """Returns a function that runs with the mapping active."""
        kinds = (
            (inspect.isgeneratorfunction, "generator", "`yield`"),
            (inspect.iscoroutinefunction, "async", "`await`"),
            (inspect.isasyncgenfunction, "async generator", "`await` or `yield`"),
        )
        for is_kind, kind, word in kinds:
            if is_kind(func):
                raise make_error(
                    TypeError,
                    f"`axis_mapping(...)` cannot decorate `{getattr(func, '__name__', func)}`: the body of {kind} "
                    "functions runs after the call, when the mapping is not active; use `with axis_mapping(...):` "
                    f"inside, around code without {word}.",
                )
        return super().__call__(func)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the managers that are entered, so that a copy has entered none."""
        return {**vars(self), "_active": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _active=_ActiveManagers())

    def __enter__(self) -> Self:
        mapping, policy, outer = self._mapping, self._policy, current_mapping()
        if self._merge and outer is not None:
            mapping = outer.merged(mapping, fallback=self._fallback, uneven=self._uneven)
            policy = current_policy() if policy is None else policy
        manager = mapping_context(ActiveMapping(mapping, policy=policy))
        manager.__enter__()
        self._active.managers.append(manager)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._active.managers.pop().__exit__(kind, error, traceback)
