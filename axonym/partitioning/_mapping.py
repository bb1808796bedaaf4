"""Mappings from axis names to mesh axes, `AxisMapping`, and warnings of mistyped names in them.

Mappings compare equal whatever the order or spelling of their entries, because the active mapping is part of every jit
cache key. Names and mesh axes that look mistyped cause a warning.
"""

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from .._ground.caches import cached_plan
from .._ground.errors import find_stacklevel, make_error
from .._ground.formats import format_axes, format_value, suggest_name
from .._ground.similar_names import is_typo
from ..named._axis import Axis
from ..named._sharding import mapping_context


PhysicalAxisSpec: TypeAlias = str | Sequence[str]
"""One mesh axis, or several over which one array axis is sharded, the first varying slowest."""

ResourceMapping: TypeAlias = Mapping[str, PhysicalAxisSpec | None]
"""From names of array axes to mesh axes; None replicates an axis."""

Uneven: TypeAlias = Literal["error", "replicate"]


GatherDtype: TypeAlias = Any
"""An element type in which parameters are gathered, or a mapping from names of axes to element types."""

_GATHER_DTYPES = ("bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")


def check_uneven(uneven: Any) -> Uneven:
    if uneven not in ("error", "replicate"):
        raise make_error(ValueError, f"`uneven` is 'error' or 'replicate', not {uneven!r}.")
    return uneven


class AxisMapping(Mapping[str, Any]):
    """Which mesh axes each named axis is sharded over, and what happens to axes that are missing or do not fit.

    Args:
        entries: From names of array axes to mesh axes; None replicates an axis, as does leaving it out, but states that
            this is intended.
        fallback: A sharding rule for plain arrays: a `ShardingRule`, which gets all plain arrays of a tree at once, or
            any other hashable object whose `apply(array)` returns a `PartitionSpec` for one array. Where the rule
            returns None an array stays where it is; where it returns `P()` the array is replicated on all devices.
        uneven: What happens to an axis whose size is not divisible by its mesh axes: `"error"`, or `"replicate"` to
            replicate it.
        gather_dtype: In which element type parameters that are stored by this mapping are gathered; see `fsdp`.
        precision: A `Precision`, whose `computing` and `reductions` layers use: those of the mapping that parameters
            are stored by under `fsdp`, of the active mapping elsewhere.
        microbatches: Into how many microbatches a pipeline divides an axis, as in `{"batch": 8}`. With it, layers of
            `Stacked` whose axis is mapped are the stages of a pipeline.

    Raises:
        TypeError: If a name or a mesh axis is not a string, the fallback is not a rule or not hashable, or `precision`
            is not a `Precision`.
        ValueError: If an entry names a mesh axis twice, `uneven` or `gather_dtype` is something else, or `precision`
            computes or adds up gradients by patterns of paths.

    Example:
        >>> from axonym.partitioning import AxisMapping
        >>> AxisMapping({"batch": "data", "mlp": ["model"]}) == AxisMapping({"mlp": "model", "batch": ("data",)})
        True
    """

    __slots__ = ("_axes", "_gather_dtype", "_hash", "_microbatches", "_replicated", "fallback", "precision", "uneven")

    fallback: Any
    precision: Any
    uneven: Uneven

    def __init__(
        self,
        entries: ResourceMapping | None = None,
        *,
        fallback: Any = None,
        uneven: Uneven = "error",
        gather_dtype: GatherDtype | None = None,
        precision: Any = None,
        microbatches: Mapping[str, int] | None = None,
    ) -> None:
        check_uneven(uneven)
        mesh_axes = {name: _parse_mesh_axes(name, value) for name, value in _get_mapping_entries(entries).items()}
        axes = {name: value for name, value in mesh_axes.items() if value}
        gather_dtypes = _parse_gather_dtype(gather_dtype, tuple(mesh_axes))
        _check_fallback(fallback)
        _check_precision(precision, tuple(mesh_axes))
        part_counts = _parse_microbatches(microbatches)
        set_slot = functools.partial(object.__setattr__, self)  # `__setattr__` raises
        set_slot("_axes", axes)
        set_slot("_replicated", frozenset(mesh_axes) - frozenset(axes))
        set_slot("fallback", fallback)
        set_slot("uneven", uneven)
        set_slot("_gather_dtype", gather_dtypes)
        set_slot("precision", precision)
        set_slot("_microbatches", part_counts)
        set_slot("_hash", hash((frozenset(axes.items()), fallback, uneven, gather_dtypes, precision, part_counts)))

    def mesh_axes(self, name: str) -> tuple[str, ...]:
        """Returns the mesh axes of a named axis, none if it is not mapped."""
        return self._axes.get(name, ())

    def knows(self, name: str) -> bool:
        """Returns whether a named axis has an entry, which may be None."""
        return name in self._axes or name in self._replicated

    def find_gather_dtype(self, names: Sequence[str]) -> Any:
        """Returns the element type in which a parameter with these axes is gathered; None for its own."""
        if not isinstance(self._gather_dtype, tuple):
            return self._gather_dtype
        return next((dtype for name, dtype in self._gather_dtype if name in names), None)

    def merged(
        self,
        entries: ResourceMapping,
        *,
        fallback: Any = None,
        uneven: Uneven | None = None,
        gather_dtype: GatherDtype | None = None,
        precision: Any = None,
        microbatches: Mapping[str, int] | None = None,
    ) -> "AxisMapping":
        """Returns this mapping with some entries replaced, or removed where they are None.

        Args:
            entries: The new entries.
            fallback: Another fallback rule; this mapping's rule if None.
            uneven: What happens to uneven axes; as in this mapping if None.
            gather_dtype: In which element type parameters are gathered; as in this mapping if None.
            precision: In which element types layers compute; as in this mapping if None.
            microbatches: Into how many microbatches a pipeline divides an axis; as in this mapping if None.
        """
        return AxisMapping(
            {**_get_mapping_entries(self), **_get_mapping_entries(entries)},
            fallback=self.fallback if fallback is None else fallback,
            uneven=uneven or self.uneven,
            gather_dtype=self.gather_dtype if gather_dtype is None else gather_dtype,
            precision=self.precision if precision is None else precision,
            microbatches=self.microbatches if microbatches is None else microbatches,
        )

    @property
    def gather_dtype(self) -> Any:
        """The element type in which parameters are gathered, or a dict from names of axes to types."""
        return dict(self._gather_dtype) if isinstance(self._gather_dtype, tuple) else self._gather_dtype

    @property
    def microbatches(self) -> dict[str, int] | None:
        """The axis that a pipeline divides into microbatches, and their number; None if layers are no stages."""
        return dict([self._microbatches]) if self._microbatches else None

    def __getitem__(self, name: str) -> PhysicalAxisSpec:
        """Returns the mesh axis of a named axis, a tuple if there are several."""
        axes = self._axes[name]
        return axes[0] if len(axes) == 1 else axes

    def __iter__(self) -> Iterator[str]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __bool__(self) -> bool:
        """Returns whether the mapping shards anything."""
        return bool(self._axes) or self.fallback is not None

    def __eq__(self, other: object) -> bool:
        """Compares entries and options; a plain mapping is compared by its entries."""
        if isinstance(other, AxisMapping):
            options = self.uneven, self.fallback, self._gather_dtype, self.precision, self._microbatches
            other_options = other.uneven, other.fallback, other._gather_dtype, other.precision, other._microbatches
            return self._axes == other._axes and options == other_options
        return super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"An `AxisMapping` never changes, so {name!r} cannot be set; use `merged`.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles entries and options, without the hash, which differs between processes."""
        options = {
            "fallback": self.fallback,
            "uneven": self.uneven,
            "gather_dtype": self.gather_dtype,
            "precision": self.precision,
            "microbatches": self.microbatches,
        }
        return functools.partial(AxisMapping, **options), (_get_mapping_entries(self),)

    def __repr__(self) -> str:
        options = "" if self.fallback is None else f", fallback={self.fallback!r}"
        options += "" if self.uneven == "error" else f", uneven={self.uneven!r}"
        options += "" if self.gather_dtype is None else f", gather_dtype={self.gather_dtype!r}"
        options += "" if self.precision is None else f", precision={self.precision!r}"
        options += "" if self.microbatches is None else f", microbatches={self.microbatches!r}"
        return f"AxisMapping({dict(self)}{options})"


def _check_fallback(rule: Any) -> None:
    if rule is not None and (isinstance(rule, type) or not callable(getattr(rule, "apply", None))):
        raise make_error(
            TypeError,
            "A `fallback` is a `ShardingRule`, or an object whose `apply(array)` returns a `PartitionSpec`, "
            f"not {format_value(rule)}.",
        )
    try:
        hash(rule)
    except TypeError:
        raise make_error(
            TypeError,
            f"A `fallback` is part of the key of compiled functions, and a {type(rule).__name__} is not hashable; "
            "make it a frozen dataclass.",
        ) from None


def _parse_gather_dtype(gather_dtype: Any, entries: tuple[str, ...]) -> Any:
    """Returns an element type, or pairs of names and element types, which may be None; warns of mistyped names.

    Args:
        gather_dtype: The option of a mapping.
        entries: The names of its entries.
    """
    if not isinstance(gather_dtype, Mapping):
        return _check_gather_dtype(gather_dtype)
    for name in gather_dtype:
        check_name(name)
        _warn_of_typo("gather_dtype", name, entries)
    return tuple([(name, _check_gather_dtype(dtype)) for name, dtype in gather_dtype.items()]) or None


def _warn_of_typo(option: str, name: str, entries: tuple[str, ...]) -> None:
    if name not in entries and (similar := [entry for entry in entries if is_typo(name, entry)]):
        warn_once(f"`{option}` has axis {name!r}, and the mapping has {similar[0]!r}; correct the name")


def parse_dtype(dtype: Any) -> Any:
    """Returns an element type, None if it is none."""
    try:
        return jnp.dtype(dtype)
    except (TypeError, ValueError):
        return None


def _check_gather_dtype(gather_dtype: Any) -> Any:
    if gather_dtype is None:
        return None
    dtype = parse_dtype(gather_dtype)
    if dtype is None or dtype.name not in _GATHER_DTYPES:
        raise make_error(
            ValueError,
            f"`gather_dtype` is one of {', '.join(map(repr, _GATHER_DTYPES))}, or a mapping from names of axes to "
            f"these and None, not {format_value(gather_dtype)}.",
        )
    return dtype


def _check_precision(precision: Any, entries: tuple[str, ...]) -> None:
    """Raises an error of what is no `Precision` for layers, and warns of mistyped names."""
    if precision is None:
        return
    if not callable(getattr(type(precision), "find_gather_dtypes", None)):
        raise make_error(
            TypeError,
            f"`precision` is a `Precision`, such as `nym.Precision(computing='bfloat16')`, not "
            f"{format_value(precision)}.",
        )
    for option in ("computing", "reductions"):
        types = getattr(precision, option)
        for key, _ in types if isinstance(types, tuple) else ():
            if isinstance(key, str):
                _warn_of_typo(option, key, entries)
            elif key is not ...:
                raise ValueError(
                    f"pattern {key.pattern!r} in `{option}` of a `Precision` needs paths, and layers know only the "
                    "names of their parameters; name axes, or convert parameters with `cast_computing` where the model "
                    "is called"
                )


def _parse_microbatches(microbatches: Any) -> tuple[str, int] | None:
    """Returns the axis that a pipeline divides, and the number of its microbatches; None if none is given."""
    if microbatches is None:
        return None
    pairs = list(microbatches.items()) if isinstance(microbatches, Mapping) else []
    if len(pairs) != 1 or not isinstance(pairs[0][0], str) or type(pairs[0][1]) is not int or pairs[0][1] < 1:
        raise make_error(
            ValueError,
            "`microbatches` is the name of an axis and into how many parts a pipeline divides it, as in "
            f"{{'batch': 8}}, not {format_value(microbatches)}.",
        )
    return pairs[0]


def _get_mapping_entries(entries: ResourceMapping | None) -> dict[str, PhysicalAxisSpec | None]:
    """Returns entries as a dict, including those that are None."""
    if entries is not None and not isinstance(entries, Mapping):
        remedy = ""
        if isinstance(entries, Mesh | AbstractMesh):
            remedy = (
                "; set a mesh with `with jax.set_mesh(mesh):`, or pass it after the mapping, as in "
                "`shard(x, mapping, mesh)`"
            )
        raise make_error(
            TypeError,
            f"A mapping goes from names to mesh axes, such as {{'batch': 'data'}}, not "
            f"{format_value(entries)}{remedy}.",
        )
    replicated = entries._replicated if isinstance(entries, AxisMapping) else ()
    return {**dict.fromkeys(replicated), **(entries or {})}


def check_name(name: Any) -> None:
    if not isinstance(name, str):
        remedy = f"; use {name.name!r}" if isinstance(name, Axis) else ""
        raise make_error(
            TypeError, f"A mapping goes from names of axes to mesh axes, but {name!r} is not a name{remedy}."
        )


def _parse_mesh_axes(name: Any, value: Any) -> tuple[str, ...]:
    check_name(name)
    if value is None:
        return ()
    axes = (value,) if isinstance(value, str) else value
    if not isinstance(axes, Sequence) or not all(isinstance(axis, str) for axis in axes):
        remedy = "; set a mesh with `with jax.set_mesh(mesh):`" if isinstance(value, Mesh | AbstractMesh) else ""
        raise make_error(
            TypeError,
            f"Axis {name!r} is mapped to {format_value(value)}; give a mesh axis, several of them, or None{remedy}.",
        )
    if len(set(axes)) != len(axes):
        raise make_error(ValueError, f"axis {name!r} is mapped to {tuple(axes)}, which names a mesh axis twice")
    return tuple(axes)


def as_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Returns the given mapping, or the active mapping if it is None."""
    if mapping is None:
        return current_mapping()
    return mapping if isinstance(mapping, AxisMapping) else AxisMapping(mapping)


def current_mapping() -> AxisMapping | None:
    """Returns the active mapping of this thread, or None.

    Example:
        >>> import axonym as nym
        >>> nym.current_mapping() is None
        True
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_mapping()
        AxisMapping({'batch': 'data'})
    """
    ambient = mapping_context.value
    return None if ambient is None else ambient.mapping


def current_thread_local_mapping() -> AxisMapping | None:
    """Returns the active mapping of this thread, or None: `current_mapping` under its older name.

    Example:
        >>> import axonym as nym
        >>> with nym.axis_mapping(batch="data"):
        ...     nym.current_thread_local_mapping() == nym.current_mapping()
        True
    """
    return current_mapping()


def warn_unknown_name(name: str, mapping: AxisMapping) -> None:
    """Warns if a name without an entry in a mapping looks like the name of an entry."""
    for entry in mapping:
        if is_typo(name, entry):
            warn_once(
                f"axis {name!r} is replicated: the mapping has no {name!r}, but has {entry!r}; correct the name, or "
                f"map {name!r} to None"
            )


def warn_unknown_mesh_axes(mapping: AxisMapping, mesh: Mesh | AbstractMesh) -> None:
    """Warns of entries whose mesh axes the mesh lacks, if they look mistyped: one mapping may serve several meshes."""
    for name in mapping:
        for axis in mapping.mesh_axes(name):
            if axis in mesh.axis_names:
                continue
            if name in mesh.axis_names:
                warn_once(
                    f"{describe_unknown_mesh_axis(name, axis, mesh)}, but it has {name!r}; a mapping goes from names "
                    f"to mesh axes: should {axis!r} be sharded over {name!r}?"
                )
            elif any(is_typo(axis, mesh_axis, 3) for mesh_axis in mesh.axis_names):
                warn_once(f"{describe_unknown_mesh_axis(name, axis, mesh)}{suggest_name(axis, mesh.axis_names)}")


def describe_unknown_mesh_axis(name: str, axis: str, mesh: Mesh | AbstractMesh) -> str:
    """Returns the message about an axis that is mapped to an unknown mesh axis."""
    sizes = format_axes(mesh.axis_names, tuple(mesh.shape.values()))
    return f"axis {name!r} is mapped to mesh axis {axis!r}, which the mesh {sizes} does not have"


@cached_plan
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=find_stacklevel())
