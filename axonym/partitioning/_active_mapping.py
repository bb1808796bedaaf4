"""The active mapping: `axis_mapping`, and its answers to named arrays, which ask through `named/_sharding.py`."""

import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding

from .._ground.caches import cached_plan, shared_object
from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.jax_compat import is_traced
from ..named._axis import Names
from ..named._axis_layout import get_axes_of_type, get_entry_axes
from ..named._named_call import format_scope
from ..named._sharding import mapping_context
from ..named._stages import StagePlan
from ._active_mesh import MeshLike, get_abstract_mesh
from ._mapping import AxisMapping, PhysicalAxisSpec, ResourceMapping, Uneven, current_mapping, current_policy
from ._placement import select_axis_type
from ._resolve_spec import resolve_sharding, resolve_spec
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
    policy: Any  # of `axonym.training`: how layers use parameters

    def __new__(cls, mapping: AxisMapping, stored: AxisMapping | None = None, policy: Any = None) -> Self:
        active = super().__new__(cls, (_find_mapping_key(mapping, stored, policy),))
        active.mapping, active.stored, active.policy = mapping, stored, policy
        return active

    def constrain(self, array: Any, names: Names) -> Any:
        if not is_traced(array):  # scopes name operations in compiled programs only
            return shard_array(array, names, self.mapping)
        with jax.named_scope(format_scope("shard", names)):
            return shard_array(array, names, self.mapping)

    def gather(self, array: Any, names: Names, may_be_reduced: bool) -> Any:
        if _training is None:
            return self.constrain(array, names)
        return _training.gather(self, array, names, may_be_reduced)

    def find_stages(self, name: str, size: int) -> StagePlan | None:
        return None if _training is None else _training.find_stages(self, name, size)

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


class TrainingAnswers(NamedTuple):
    """What `axonym.training` answers of the active mapping: how layers take parameters, and which stages they are.

    Attributes:
        gather: Returns a parameter as a layer takes it; its arguments are those of `Ambient.gather`, after the mapping.
        find_stages: Returns the stages into which a layer axis is divided, as `Ambient.find_stages`.
        check_policy: Raises an error of a function that is given no policy.
        check_names: Warns of names in a policy that look mistyped beside those of its mappings.
    """

    gather: Callable[["ActiveMapping", Any, Names, bool], Any]
    find_stages: Callable[["ActiveMapping", str, int], StagePlan | None]
    check_policy: Callable[[Any, str], None]
    check_names: Callable[[Any, Sequence[AxisMapping]], None]


_training: TrainingAnswers | None = None


def register_training(answers: TrainingAnswers) -> None:
    """Lets `axonym.training` answer; without it, parameters are sharded as other arrays, and there are no policies."""
    global _training
    _training = answers


def check_policy(policy: Any, function: str) -> None:
    """Raises an error of a function that is given something else than a policy or None."""
    if policy is None:
        return
    if _training is None:
        raise ImportError(f"`policy` of `{function}` needs `axonym.training`; import it")
    _training.check_policy(policy, function)


class _MappingKey:
    """The object by which JAX knows equal mappings with equal policies."""


@shared_object
def _find_mapping_key(mapping: AxisMapping, stored: AxisMapping | None, policy: Any) -> _MappingKey:
    if policy is not None and _training is not None:
        _training.check_names(policy, [mapping] if stored is None else [mapping, stored])
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
        policy: Any = None,
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
