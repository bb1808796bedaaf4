"""The leaves of a checkpoint: what each is, and what its metadata say of it."""

import base64
import functools
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from ..named._axis import Names
from ..named._base import NamedBase, get_plain_array, is_traced
from ..named._cache import cached_plan
from ..named._format import format_axes, format_value
from ..state_dict._keys import describe_random_keys, is_random_key


Kind: TypeAlias = Literal["array", "key", "numpy", "numpy scalar", "value", "none", "object"]
ARRAYS = ("array", "key", "numpy", "numpy scalar")
_LONGEST = 200  # characters of the description of an object


@dataclass(frozen=True)
class Leaf:
    """A leaf of a checkpoint, as its metadata describe it.

    Attributes:
        path: Its key path, as `jax.tree_util.keystr` writes it.
        kind: `"array"`; `"key"` for random keys; `"numpy"` and `"numpy scalar"`; `"value"` for Python numbers, strings
            and bytes; `"none"`; `"object"` for anything else, of which only a description is stored.
        names: The names of its axes, None if it has none.
        shape: Its sizes.
        dtype: The element type, the implementation of random keys, or the type of a value.
        value: A value in JSON, or the description of an object.
    """

    path: str
    kind: Kind
    names: Names | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None

    @property
    def nbytes(self) -> int:
        """The bytes of its elements; 0 if it is not an array."""
        if self.kind not in ARRAYS:
            return 0
        return int(np.prod(self.stored_shape, dtype=np.int64)) * jnp.dtype(self.stored_dtype).itemsize

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The sizes of the array in the files, where random keys have an additional axis."""
        return (*self.shape, *get_key_shape(self.dtype)) if self.kind == "key" else self.shape

    @property
    def stored_dtype(self) -> str:
        return "uint32" if self.kind == "key" else self.dtype

    @property
    def is_stored(self) -> bool:
        """Whether it has elements in the files; those of no elements are in the metadata alone."""
        return self.kind in ARRAYS and 0 not in self.stored_shape

    def check(self) -> None:
        """Raises a ValueError or a TypeError if this describes no leaf, as after a change in its file."""
        names = self.shape if self.names is None else self.names
        has_names = len(names) == len(self.shape) and (self.names is None or {*map(type, names)} <= {str})
        has_sizes = all(type(size) is int and size >= 0 for size in self.shape)
        if self.kind not in get_args(Kind) or not has_names or not has_sizes:
            raise ValueError(f"{self.path!r} is {self.kind!r} of names {self.names} and shape {self.shape}")
        if self.kind in ARRAYS:
            jnp.dtype(self.stored_dtype)
        self.decode()

    def __str__(self) -> str:
        """Describes the leaf as in error messages."""
        if self.kind not in ARRAYS:
            return self.describe_value()
        axes = f"shape {self.shape}" if self.names is None else f"axes {format_axes(self.names, self.shape)}"
        return f"{'random keys' if self.kind == 'key' else 'an array'} of {axes} and {self.dtype}"

    def describe_value(self) -> str:
        if self.kind == "value":
            return f"{self.dtype} {_decode_value(self.dtype, self.value)!r}"
        return "None" if self.kind == "none" else str(self.value)

    def decode(self) -> Any:
        """Returns the value of a leaf that is no array."""
        return _decode_value(self.dtype, self.value) if self.kind == "value" else None


def is_checkpoint_leaf(x: Any) -> bool:
    """Returns whether a node of a tree is one leaf of a checkpoint: None, or a named array with an array in it."""
    return x is None or (isinstance(x, NamedBase) and hasattr(x.array, "shape"))


def flatten_leaves(tree: Any) -> tuple[dict[str, Any], Any]:
    """Returns the leaves of a tree by path, and the structure to make it again."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_checkpoint_leaf)
    leaves = {keystr(path): leaf for path, leaf in pairs}
    if len(leaves) < len(pairs):
        raise ValueError("two leaves of the state have the same path; give the keys of its dicts different reprs")
    return leaves, treedef


def describe_leaf(path: str, x: Any) -> Leaf:
    """Returns the metadata of a leaf, a shape without data included."""
    names, array = x.names if isinstance(x, NamedBase) else None, get_plain_array(x)
    if is_traced(array):
        raise ValueError(f"{path or 'the state'} is traced; checkpoints are saved and restored outside of `jit`")
    if isinstance(array, jax.Array | jax.ShapeDtypeStruct):
        if is_random_key(array):
            return Leaf(path, "key", names, tuple(array.shape), describe_random_keys(array)[0])
        return Leaf(path, "array", names, tuple(array.shape), str(array.dtype))
    if isinstance(array, np.ndarray | np.generic):
        _check_numbers(path, array)
        kind: Kind = "numpy" if isinstance(array, np.ndarray) else "numpy scalar"
        return Leaf(path, kind, names, tuple(array.shape), str(array.dtype))
    if array is None:
        return Leaf(path, "none")
    if isinstance(array, bool | int | float | complex | str | bytes) and type(array).__module__ == "builtins":
        return Leaf(path, "value", dtype=type(array).__name__, value=_encode_value(array))
    return Leaf(path, "object", dtype=type(array).__qualname__, value=describe_object(array))


def _check_numbers(path: str, array: Any) -> None:
    if array.dtype.kind not in "biufcV" or array.dtype.fields is not None or array.dtype.type is np.void:
        raise TypeError(f"{path or 'the state'} is a NumPy array of dtype {array.dtype}; only numbers can be saved")


def _encode_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, complex):
        return [value.real, value.imag]
    return str(value) if type(value) is int else value  # JSON of other programs has no large integers


def _decode_value(kind: str, value: Any) -> Any:
    match kind:
        case "bytes":
            return base64.b64decode(value)
        case "complex":
            return complex(*value)
        case "int":
            return int(value)
    return value


def describe_object(x: Any) -> str:
    """Returns a text that is the same in each run: functions and classes by name, others without addresses."""
    if isinstance(x, functools.partial):
        arguments = [*map(describe_object, x.args), *(f"{k}={describe_object(v)}" for k, v in x.keywords.items())]
        return f"partial({', '.join([describe_object(x.func), *arguments])})"
    name = getattr(x, "__qualname__", None)
    text = name if isinstance(name, str) and callable(x) else format_value(x)
    return re.sub(r" at 0x[0-9a-f]+", "", text)[:_LONGEST]


@cached_plan
def get_key_shape(implementation: str) -> tuple[int, ...]:
    """Returns the sizes of the data of one random key."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation))).shape


@cached_plan
def get_key_dtype(implementation: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
