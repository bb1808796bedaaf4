"""A state dict while it is read: which keys are used, and everything that does not fit, reported at once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from ..named._ambient import constrain_sharding
from ..named._arguments import check_flag
from ..named._array import is_named_array
from ..named._base import format_shape, get_plain_array, is_traced, with_array
from ..named._format import format_value, suggest_name
from ..named._numpy_input import MASK_PROBLEM, find_array_problem, find_range_problem, is_jax_dtype
from ..named._traceback import strip_library_frames
from ._keys import check_key_part, check_state_dict
from ._merged_axes import MergedDims


DtypeRule: TypeAlias = Literal["check", "cast", "keep"]
"""What happens to an array of another dtype than its field: an error, a conversion, or nothing."""

R = TypeVar("R", bound="StateDictReader")

_SHOWN = 20
_MISSING = "is missing"


class Misfits(KeyError):
    """The keys that do not fit, each with the reason; raised by leaves of a tree and collected by its nodes."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


class StateDictReader(Mapping[str, Any]):
    """A state dict that knows which of its keys were read.

    Attributes:
        flattens: Whether the arrays have the merged axes of `flatten_modules`, although the tree that is read has not.
    """

    def __init__(self, arrays: Mapping[str, Any], dtypes: DtypeRule, flattens: bool = False) -> None:
        check_state_dict(arrays, "; the tree comes before it, as in `from_state_dict(tree, state_dict)`")
        self.arrays, self.dtypes, self.flattens = arrays, dtypes, flattens
        self.used: set[str] = set()
        self._merged: dict[int, tuple[Any, MergedDims]] = {}  # by the `id` of an array, which is kept

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
    def read_unmerged(self, arrays: Sequence[Any] = (), merged: Sequence[MergedDims] = ()) -> Iterator[None]:
        """Reads what is within a flattened module; these of its arrays have merged axes in the state dict alone."""
        for array, dims in zip(map(get_plain_array, arrays), merged, strict=True):
            self._merged[id(array)] = array, dims
        flattens, self.flattens = self.flattens, False
        try:
            yield
        finally:
            self.flattens = flattens

    def check_shape(self, key: str, shape: tuple[int, ...], like: Any) -> None:
        """Raises `Misfits` if an array does not have the shape of its field, with merged axes."""
        own = get_plain_array(like)
        _, dims = self._merged.get(id(own), (None, None))
        expected = own.shape if dims is None else (math.prod(own.shape[at] for at in dim) for dim in dims)
        if shape != (expected := tuple(expected)):
            merged = "" if expected == tuple(own.shape) else f", {expected} with merged axes"
            raise Misfits({key: f"has shape {shape}, its field is {format_field(like)}{merged}"})

    def load(self, like: Any, key: str) -> Any:
        """Returns an array of the state dict in place of another; raises `Misfits` if it does not fit."""
        array = _as_array(key, self[key])
        expected = get_plain_array(like)
        self.check_shape(key, array.shape, like)
        dtype = self.choose_dtype(key, array.dtype, like)
        if isinstance(array, np.ndarray):
            check_values(key, array, dtype, like)
        elif array.dtype != dtype and not is_traced(array) and array.is_fully_addressable:
            check_values(key, np.asarray(array), dtype, like)
        if array.dtype != dtype:
            array = array.astype(dtype)
        array = array.reshape(tuple(expected.shape))
        if isinstance(expected, np.ndarray):
            return with_array(like, np.asarray(array)) if is_named_array(like) else np.asarray(array)
        return constrain_sharding(with_array(like, jnp.asarray(array))) if is_named_array(like) else jnp.asarray(array)

    def choose_dtype(self, key: str, saved: Any, like: Any) -> Any:
        """Returns the dtype that an array gets; raises `Misfits` if it may not be converted to that.

        Without `jax_enable_x64`, JAX has 32 bits for 64. Integers that fit keep their values; floats would be rounded.
        """
        own = get_plain_array(like)
        if saved != own.dtype and self.dtypes == "check":
            raise Misfits({key: f"is {saved}, its field is {own.dtype}; `dtypes='cast'` converts it"})
        dtype = own.dtype if self.dtypes == "cast" else saved
        if isinstance(own, np.ndarray) or jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return dtype
        kept = jax.dtypes.canonicalize_dtype(dtype)
        if kept != dtype and jnp.issubdtype(dtype, jnp.inexact):
            raise Misfits(
                {
                    key: f"is {saved}, and JAX has no {dtype} without `jax_enable_x64`; set that option, or give its "
                    f"field {kept} or a NumPy array and pass `dtypes='cast'`"
                }
            )
        return kept


def _as_array(key: str, value: Any) -> jax.Array | np.ndarray:
    """Returns a value of a state dict as a plain array; raises `Misfits` if it is none."""
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


def check_values(key: str, array: np.ndarray, dtype: Any, like: Any) -> None:
    """Raises `Misfits` if the elements of an array of NumPy cannot become those of a field of some dtype."""
    find_problem = find_range_problem if isinstance(get_plain_array(like), np.ndarray) else find_array_problem
    if (problem := find_problem(array, dtype)) is not None:
        raise Misfits({key: problem})


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
        raise strip_library_frames(ValueError(f"`dtypes` is 'check', 'cast' or 'keep', not {format_value(dtypes)}"))


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
        near = unread or _list_unread(reader, None)  # all others if none begins with the prefix
        shown = [_explain_misfit(key, reason, near) for key, reason in list(reasons.items())[:_SHOWN]]
        more = [f"and {len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
        raise strip_library_frames(ValueError("\n  ".join(["the state dict does not fit:", *shown, *more]))) from None


def _explain_misfit(key: str, reason: str, unread: list[str]) -> str:
    return f"{key!r} {reason}{suggest_name(key, unread) if reason == _MISSING else ''}"


def _list_unread(reader: StateDictReader, prefix: str | None) -> list[str]:
    """Returns the keys that no field has read, of those that begin with a prefix."""
    before = f"{prefix}." if prefix else ""
    return [key for key in reader if key not in reader.used and (key == prefix or key.startswith(before))]
