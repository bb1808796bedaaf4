"""`from_state_dict`: a tree with the arrays of a state dict in place of its own, or an error that lists all misfits."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from .._ground.arguments import check_flag
from .._ground.errors import make_error
from .._ground.formats import format_value, suggest_name
from .._ground.jax_compat import is_traced
from ..named._array import is_named_array
from ..named._base import format_shape, get_plain_array, with_array
from ..named._numpy_input import MASK_PROBLEM, find_array_problem, find_range_problem, is_jax_dtype
from ..named._shape._rearrange import rearrange
from ..named._sharding import constrain_sharding
from ._keys import (
    NO_NAMES,
    FieldNames,
    MergedDims,
    add_prefix,
    check_field_names,
    check_key_part,
    check_state_dict,
    eval_shapes,
    find_merged_dims,
    find_method,
    is_array_leaf,
    list_array_leaves,
    list_children,
    make_depth_error,
    make_unnamed_array_error,
    replace_children,
)


DtypeRule: TypeAlias = Literal["check", "cast", "keep"]
"""What happens to an array of another dtype than its field: an error, a conversion, or nothing."""

R = TypeVar("R", bound="StateDictReader")
T = TypeVar("T")

_SHOWN = 20  # misfits in an error
_MISSING = "is missing"


class Misfits(KeyError):
    """The keys that do not fit, each with the reason; raised by leaves of a tree and collected by its nodes."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class StateDictReader(Mapping[str, Any]):
    """A state dict that knows which of its keys were read.

    Attributes:
        flattens: Whether the axes of the tree's layers are merged in the state dict, as by `flatten_modules`.
    """

    def __init__(self, arrays: Mapping[str, Any], dtypes: DtypeRule, flattens: bool = False) -> None:
        check_state_dict(arrays, "; the tree comes before it, as in `from_state_dict(tree, state_dict)`")
        self.arrays, self.dtypes, self.flattens = arrays, dtypes, flattens
        self.used: set[str] = set()
        self._merged: dict[int, tuple[Any, MergedDims]] = {}  # by `id`; the tuple keeps the array alive

    def __getitem__(self, key: str) -> Any:
        if key not in self.arrays:
            raise Misfits({key: _MISSING})
        self.used.add(key)
        return self.arrays[key]

    def __contains__(self, key: object) -> bool:
        return key in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    @contextmanager
    def without_flattening(self, arrays: Sequence[Any] = (), merged: Sequence[MergedDims] = ()) -> Iterator[None]:
        """Turns `flattens` off; only the axes of `arrays` are then merged in the state dict."""
        for array, dims in zip(map(get_plain_array, arrays), merged, strict=True):
            self._merged[id(array)] = array, dims
        flattens, self.flattens = self.flattens, False
        try:
            yield
        finally:
            self.flattens = flattens

    def check_shape(self, key: str, shape: tuple[int, ...], like: Any) -> None:
        """Raises `Misfits` if an array does not have the shape of its field, with merged axes."""
        array = get_plain_array(like)
        _, dims = self._merged.get(id(array), (None, None))
        expected = tuple(array.shape)
        if dims is not None:
            expected = tuple(math.prod(array.shape[dim] for dim in merged_dims) for merged_dims in dims)
        if shape != expected:
            merged = "" if expected == tuple(array.shape) else f", {expected} with merged axes"
            raise Misfits({key: f"has shape {shape}, its field is {format_field(like)}{merged}"})

    def load(self, like: Any, key: str) -> Any:
        """Returns an array of the state dict in place of another; raises `Misfits` if it does not fit."""
        array = _as_array(key, self[key])
        expected = get_plain_array(like)
        self.check_shape(key, array.shape, like)
        dtype = self.choose_dtype(key, array.dtype, like)
        is_converted = array.dtype != dtype
        # Values are checked on the host. A JAX array is copied there only if the conversion may change its values, and
        # if this process has all of them.
        if isinstance(array, np.ndarray) or (is_converted and not is_traced(array) and array.is_fully_addressable):
            find_problem = find_range_problem if isinstance(expected, np.ndarray) else find_array_problem
            if (problem := find_problem(np.asarray(array), dtype)) is not None:
                raise Misfits({key: problem})
        if is_converted:
            array = array.astype(dtype)
        array = array.reshape(tuple(expected.shape))
        if isinstance(expected, np.ndarray):
            return with_plain_array(like, np.asarray(array))
        loaded = with_plain_array(like, jnp.asarray(array))
        return constrain_sharding(loaded) if is_named_array(like) else loaded

    def choose_dtype(self, key: str, saved_dtype: Any, like: Any) -> Any:
        """Returns the dtype that an array gets; raises `Misfits` if it may not be converted to that.

        Without `jax_enable_x64`, JAX has 32-bit dtypes in place of 64-bit ones. Integers get them, since callers check
        that the values fit; floats do not, since they would be rounded.
        """
        array = get_plain_array(like)
        if saved_dtype != array.dtype and self.dtypes == "check":
            raise Misfits({key: f"is {saved_dtype}, its field is {array.dtype}; `dtypes='cast'` converts it"})
        dtype = array.dtype if self.dtypes == "cast" else saved_dtype
        if isinstance(array, np.ndarray) or jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return dtype  # NumPy has 64 bits, and random keys are not numbers
        jax_dtype = jax.dtypes.canonicalize_dtype(dtype)
        if jax_dtype != dtype and jnp.issubdtype(dtype, jnp.inexact):
            problem = f"is {saved_dtype}, and JAX has no {dtype} without `jax_enable_x64`"
            remedy = f"set that option, or give its field {jax_dtype} or a NumPy array and pass `dtypes='cast'`"
            raise Misfits({key: f"{problem}; {remedy}"})
        return jax_dtype


def _as_array(key: str, value: Any) -> jax.Array | np.ndarray:
    """Returns a value of a state dict as a plain array; raises `Misfits` if it cannot be one."""
    if is_named_array(value):
        raise Misfits({key: f"is a named array, {format_shape(value)}; a state dict has plain ones, as `x.array` is"})
    if isinstance(value, MaskedArray):
        raise Misfits({key: MASK_PROBLEM})
    if isinstance(value, jax.Array | np.ndarray):
        return value
    try:
        array = np.asarray(value)
    except Exception as error:  # raised by methods of other libraries
        raise Misfits({key: f"cannot become an array of NumPy: {error}"}) from None
    if not is_jax_dtype(array.dtype):
        raise Misfits({key: f"is no array of numbers, but {format_value(value)}"})
    return array


def with_plain_array(like: Any, array: Any) -> Any:
    """Returns an array with the names of `like`, if that has names."""
    return with_array(like, array) if is_named_array(like) else array


def format_field(x: Any) -> str:
    return format_shape(x) if is_named_array(x) else f"an array of shape {tuple(x.shape)}"


@contextmanager
def read_state_dict(
    state_dict: Mapping[str, Any], prefix: str | None, strict: bool = True, dtypes: DtypeRule = "check"
) -> Iterator[StateDictReader]:
    """Yields a reader of a state dict, and raises one ValueError for everything in it that does not fit.

    A reader is yielded as it is, because the outermost call reports the errors, with its own options.
    """
    if isinstance(state_dict, StateDictReader):
        yield state_dict
        return
    check_dtype_rule(dtypes)
    with report_misfits(StateDictReader(state_dict, dtypes), prefix, strict) as reader:
        yield reader


def check_dtype_rule(dtypes: Any) -> None:
    if dtypes not in ("check", "cast", "keep"):
        raise make_error(ValueError, f"`dtypes` is 'check', 'cast' or 'keep', not {format_value(dtypes)}")


@contextmanager
def report_misfits(reader: R, prefix: str | None, strict: bool) -> Iterator[R]:
    """Yields a reader, and raises one ValueError for everything that does not fit."""
    check_key_part(prefix)
    check_flag("`strict`", strict)
    reasons: dict[str, str] = {}
    try:
        yield reader
    except Misfits as misfits:
        reasons = misfits.reasons
    unread = _list_unread(reader, prefix)
    if strict:
        reasons |= dict.fromkeys(unread, "has no field")
    if reasons:
        candidates = unread or _list_unread(reader, None)  # all others if none begins with the prefix
        lines = ["the state dict does not fit:"]
        for key, reason in list(reasons.items())[:_SHOWN]:
            suggestion = suggest_name(key, candidates) if reason == _MISSING else ""
            lines.append(f"{key!r} {reason}{suggestion}")
        if len(reasons) > _SHOWN:
            lines.append(f"and {len(reasons) - _SHOWN} more")
        raise make_error(ValueError, "\n  ".join(lines)) from None


def _list_unread(reader: StateDictReader, prefix: str | None) -> list[str]:
    """Returns the keys that no field has read, of those that begin with a prefix."""
    start = f"{prefix}." if prefix else ""
    return [key for key in reader if key not in reader.used and (key == prefix or key.startswith(start))]


def from_state_dict(
    tree: T,
    state_dict: Mapping[str, Any],
    prefix: str | None = None,
    *,
    strict: bool = True,
    dtypes: DtypeRule = "check",
) -> T:
    """Returns a tree with the arrays of a state dict in place of its own; the inverse of `to_state_dict`.

    Without `jax_enable_x64`, JAX has no 64-bit arrays. 64-bit integers are converted to 32 bits if their values fit,
    and are an error otherwise; 64-bit floats are an error unless `dtypes="cast"` converts them to the dtype of their
    field. A field that is a NumPy array gets a NumPy array, which may have 64 bits.

    Args:
        tree: A module or any other tree of arrays, or its shapes as `equinox.filter_eval_shape` returns them.
        state_dict: Plain arrays by key, of JAX, NumPy or anything else that NumPy can convert.
        prefix: First part of the keys to read; all others are ignored.
        strict: Whether a key that no field has is an error.
        dtypes: What happens to an array of another dtype than its field: `"check"` is an error, `"cast"` converts it,
            and `"keep"` leaves it.

    Returns:
        A tree of the same structure. Named arrays are sharded by the active mapping.

    Raises:
        TypeError: If the state dict is not a mapping, or a key or the prefix is not a string.
        ValueError: If keys are missing or have no field, arrays have another shape or dtype than their fields, values
            do not fit, or an array is a masked one of NumPy. The error lists all of them, with the nearest key for each
            that is missing. If the tree is nested too deeply.

    Example:
        >>> import axonym as nym
        >>> norm = nym.nn.RmsNorm.init(nym.Axis("embed", 3))
        >>> nym.state_dict.from_state_dict(norm, {"weight": [1.0, 2.0, 3.0]}, dtypes="cast").weight.array
        Array([1., 2., 3.], dtype=float32)
        >>> nym.state_dict.from_state_dict(norm, {"wieght": [1.0, 2.0]})
        Traceback (most recent call last):
        ValueError: the state dict does not fit:
          'weight' is missing; did you mean 'wieght'?
          'wieght' has no field
    """
    with read_state_dict(state_dict, prefix, strict, dtypes) as reader:
        try:
            if reader.flattens and find_method(tree, "flatten_for_export"):
                return _read_flattened(tree, reader, prefix)
            method = find_method(tree, "from_state_dict")
            return read_fields(tree, reader, prefix) if method is None else method(reader, prefix)
        except RecursionError:
            raise make_depth_error() from None


def read_fields(
    tree: T,
    state_dict: Mapping[str, Any],
    prefix: str | None = None,
    names: FieldNames = NO_NAMES,
) -> T:
    """Returns a tree with the arrays of a state dict as `from_state_dict` does, with other names for its own fields.

    Args:
        tree: A module or any other tree of arrays, whose own method `from_state_dict` is not called.
        state_dict: Plain arrays by key. Within the method `from_state_dict` of a module it keeps the options of the
            call of `from_state_dict` that reads the entire tree.
        prefix: First part of the keys.
        names: What its fields are called in the state dict; None leaves out the name of a field.

    Returns:
        A tree of the same structure.

    Raises:
        TypeError: If the state dict or the names are not a mapping, or the prefix is not a string.
        ValueError: As `from_state_dict`.

    Example:
        >>> import axonym as nym
        >>> norm = nym.nn.RmsNorm.init(nym.Axis("embed", 2))
        >>> state = {"ln.scale": nym.ones({"embed": 2}).array}
        >>> nym.state_dict.read_fields(norm, state, "ln", {"weight": "scale"}).weight.array
        Array([1., 1.], dtype=float32)
    """
    with read_state_dict(state_dict, prefix) as reader:
        if is_array_leaf(tree):
            if not prefix:
                raise make_unnamed_array_error()
            return reader.load(tree, prefix)
        check_field_names(names)
        children: list[Any] = []
        reasons: dict[str, str] = {}
        for name, child in list_children(tree):
            try:
                children.append(from_state_dict(child, reader, add_prefix(prefix, names.get(name, name))))
            except Misfits as misfits:
                reasons |= misfits.reasons
        if reasons:
            raise Misfits(reasons)
        return replace_children(tree, children) if children else tree


def read_layers(layers: Any, state_dict: Mapping[str, Any], prefix: str | None) -> Iterator[Any]:
    """Yields layers with the arrays of a state dict, one at a time, so that not all of them are in memory at once.

    Args:
        layers: The layers, or their shapes.
        state_dict: Plain arrays by key.
        prefix: First part of the keys, before the number of a layer.

    Raises:
        ValueError: As `from_state_dict`, at the end.
    """
    reasons: dict[str, str] = {}
    with read_state_dict(state_dict, prefix) as reader:
        for index, layer in enumerate(layers):
            try:
                yield from_state_dict(layer, reader, add_prefix(prefix, str(index)))
            except Misfits as misfits:
                reasons |= misfits.reasons
        if reasons:
            raise Misfits(reasons)


def _read_flattened(module: Any, reader: StateDictReader, prefix: str | None) -> Any:
    """Returns a module with arrays whose axes are merged in the state dict."""
    # A module that only merges axes is read as it is, without a flattened copy.
    merged = None if _has_customised_parts(module) else find_merged_dims(module)
    if merged is not None:
        with reader.without_flattening(list_array_leaves(module), merged):
            return from_state_dict(module, reader, prefix)
    with reader.without_flattening():
        flat = from_state_dict(eval_shapes(lambda module: module.flatten_for_export(), module), reader, prefix)
    arrays = iter(list_array_leaves(flat.unflatten_from_export(module)))

    def replace_leaf(leaf: Any) -> Any:
        if not is_array_leaf(leaf):
            return leaf
        array = next(arrays)
        # `unflatten_from_export` may have left the axes in another order.
        return constrain_sharding(rearrange(array, leaf.names)) if is_named_array(array) else array

    return jax.tree.map(replace_leaf, module, is_leaf=is_named_array)


def _has_customised_parts(tree: Any) -> bool:
    """Returns whether a part of a module reads or merges its arrays in its own way, as stacked layers do."""
    return any(
        find_method(part, "flatten_for_export") or find_method(part, "from_state_dict") or _has_customised_parts(part)
        for _, part in list_children(tree)
    )
