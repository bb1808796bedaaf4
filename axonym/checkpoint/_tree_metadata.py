"""The metadata of a checkpoint: its leaves and nodes."""

import base64
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, keystr

from .._ground.caches import cached_plan
from .._ground.formats import format_axes, format_value
from .._ground.jax_compat import is_traced
from ..named._axis import Names
from ..named._base import NamedBase, get_plain_array
from ..state_dict._keys import describe_random_keys, has_key_dtype
from ._errors import report_damage


Kind: TypeAlias = Literal["array", "key", "numpy", "numpy scalar", "value", "none", "object"]
ARRAY_KINDS = ("array", "key", "numpy", "numpy scalar")

METADATA = "axonym.json"
_FORMAT = 1  # to be increased when older versions could no longer read what is written
_MOST_CHARACTERS = 200  # of the description of an object
_MOST_LEVELS = 200  # Python allows 1000 nested calls; a level takes two of them here, and three in the JSON decoder


@dataclass(frozen=True)
class LeafMetadata:
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
        if self.kind not in ARRAY_KINDS:
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
        """Whether it has elements in the files; arrays without elements are in the metadata alone."""
        return self.kind in ARRAY_KINDS and 0 not in self.stored_shape

    def check(self) -> None:
        """Raises a ValueError or a TypeError if this describes no leaf, as after a change in its file."""
        has_sizes = all(type(size) is int and size >= 0 for size in self.shape)
        has_names = self.names is None or (
            len(self.names) == len(self.shape) and all(type(name) is str for name in self.names)
        )
        if self.kind not in get_args(Kind) or not has_names or not has_sizes:
            raise ValueError(f"{self.path!r} is {self.kind!r} of names {self.names} and shape {self.shape}")
        if self.kind in ARRAY_KINDS:
            jnp.dtype(self.stored_dtype)
        self.decode()

    def __str__(self) -> str:
        """Describes the leaf as in error messages."""
        if self.kind not in ARRAY_KINDS:
            return self.describe_value()
        subject = "random keys" if self.kind == "key" else "an array"
        return f"{subject} of {format_leaf_axes(self)} and {self.dtype}"

    def describe_kind(self) -> str:
        """Describes what is stored of the leaf, except for elements of arrays."""
        return "object" if self.kind == "object" else f"{self.kind}: {self}"

    def describe_value(self) -> str:
        if self.kind == "value":
            return f"{self.dtype} {self.decode()!r}"
        return "None" if self.kind == "none" else str(self.value)

    def decode(self) -> Any:
        """Returns the value of a leaf that is no array."""
        if self.kind != "value":
            return None
        match self.dtype:
            case "bytes":
                return base64.b64decode(self.value)
            case "complex":
                return complex(*self.value)
            case "int":
                return int(self.value)
        return self.value


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


def describe_leaf(path: str, x: Any) -> LeafMetadata:
    """Returns the metadata of a leaf, a shape without data included."""
    names, array = x.names if isinstance(x, NamedBase) else None, get_plain_array(x)
    if is_traced(array):
        raise ValueError(f"{path or 'the state'} is traced; checkpoints are saved and restored outside of `jit`")
    if isinstance(array, jax.Array | jax.ShapeDtypeStruct):
        if has_key_dtype(array):
            return LeafMetadata(path, "key", names, tuple(array.shape), describe_random_keys(array)[0])
        return LeafMetadata(path, "array", names, tuple(array.shape), str(array.dtype))
    if isinstance(array, np.ndarray | np.generic):
        if array.dtype.kind not in "biufcV" or array.dtype.fields is not None or array.dtype.type is np.void:
            raise TypeError(f"{path or 'the state'} is a NumPy array of dtype {array.dtype}; only numbers can be saved")
        kind: Kind = "numpy" if isinstance(array, np.ndarray) else "numpy scalar"
        return LeafMetadata(path, kind, names, tuple(array.shape), str(array.dtype))
    if array is None:
        return LeafMetadata(path, "none")
    if isinstance(array, bool | int | float | complex | str | bytes) and type(array).__module__ == "builtins":
        return LeafMetadata(path, "value", dtype=type(array).__name__, value=_encode_value(array))
    return LeafMetadata(path, "object", dtype=type(array).__qualname__, value=describe_object(array))


def _encode_value(value: Any) -> Any:
    """Returns a value in JSON; the inverse of `LeafMetadata.decode`."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, complex):
        return [value.real, value.imag]
    return str(value) if type(value) is int else value  # JSON of other programs has no large integers


def describe_object(x: Any) -> str:
    """Returns a text that is the same in each run: functions and classes by name, others without addresses."""
    if isinstance(x, functools.partial):
        arguments = [*map(describe_object, x.args), *(f"{k}={describe_object(v)}" for k, v in x.keywords.items())]
        return f"partial({', '.join([describe_object(x.func), *arguments])})"
    name = getattr(x, "__qualname__", None)
    text = name if isinstance(name, str) and callable(x) else format_value(x)
    return re.sub(r" at 0x[0-9a-f]+", "", text)[:_MOST_CHARACTERS]


@cached_plan
def get_key_shape(implementation: str) -> tuple[int, ...]:
    """Returns the sizes of the data of one random key."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation))).shape


@cached_plan
def get_key_dtype(implementation: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


@dataclass(frozen=True)
class Node:
    """A node of the tree that was saved.

    Attributes:
        path: Its key path.
        kind: `"dict"`, `"list"`, `"tuple"`, or the name of a class.
        keys: The keys of its children, names of fields and positions included.
        children: Its children.
        static: Descriptions of its static fields, by name.
    """

    path: str
    kind: str
    keys: tuple[str | int | float | bool | None, ...] = ()
    children: "tuple[Node | LeafMetadata, ...]" = ()
    static: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TreeMetadata:
    """The metadata of a checkpoint.

    Attributes:
        step: Its step.
        tree: Its leaves and nodes.
        process_count: The number of processes that saved it.
        has_data_state: Whether the state of the data, such as the position in it, is saved with it.
    """

    step: int
    tree: Node | LeafMetadata
    process_count: int = 1
    has_data_state: bool = False

    def write(self, folder: Path) -> None:
        content = {
            "format": _FORMAT,
            "step": self.step,
            "process_count": self.process_count,
            "has_data": self.has_data_state,
            "tree": _write_node(self.tree),
        }
        (folder / METADATA).write_text(json.dumps(content))

    @classmethod
    def read(cls, folder: Path) -> "TreeMetadata":
        path = folder / METADATA
        with report_damage(path, "does not describe a checkpoint"):
            content = json.loads(path.read_bytes())
            is_newer = content["format"] > _FORMAT
        if is_newer:
            raise ValueError(f"{path} has format {content['format']}; install a newer Axonym to read it")
        with report_damage(path, "does not describe a checkpoint"):
            step, process_count, has_data_state = content["step"], content["process_count"], content["has_data"]
            if [type(step), type(process_count), type(has_data_state)] != [int, int, bool] or process_count < 1:
                raise ValueError(f"step {step!r} of {process_count!r} processes")
            return cls(step, _read_node(content["tree"]), process_count, has_data_state)

    def get_leaves(self) -> dict[str, LeafMetadata]:
        """Returns the leaves by path."""
        return {leaf.path: leaf for leaf in iterate_nodes(self.tree) if isinstance(leaf, LeafMetadata)}

    def get_stored_leaves(self) -> list[LeafMetadata]:
        """Returns the leaves with elements in the files."""
        return [leaf for leaf in self.get_leaves().values() if leaf.is_stored]


def describe_tree(tree: Any, path: tuple[Any, ...] = ()) -> Node | LeafMetadata:
    """Returns the metadata of a tree or of a part of it, whose leaves may be shapes without data.

    Raises:
        ValueError: If it is too deep for the recursion of Python and JSON.
    """
    text = keystr(path)
    if len(path) > _MOST_LEVELS:
        raise ValueError(
            f"the state has more than {_MOST_LEVELS} levels at {text[:60]}...; put its arrays into a flat dict or "
            "list, or stack those of the same shape along an axis"
        )
    if is_checkpoint_leaf(tree):
        return describe_leaf(text, tree)
    # One level, so that each node keeps its class and its static fields.
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if jax.tree_util.treedef_is_leaf(treedef) and pairs:
        return describe_leaf(text, tree)
    keys = tuple([_read_key(entries) for entries, _ in pairs])
    children = tuple([describe_tree(child, (*path, *entries)) for entries, child in pairs])
    return Node(text, type(tree).__qualname__, keys, children, _describe_static_fields(tree))


def _read_key(entries: tuple[Any, ...]) -> str | int | float | bool | None:
    """Returns the key of a child, or its text if JSON cannot have it as a value."""
    match entries:
        case (DictKey(key=key),) | (FlattenedIndexKey(key=key),) | (SequenceKey(idx=key),) | (GetAttrKey(name=key),):
            pass
        case _:
            key = keystr(entries)
    return key if type(key) in (str, int, float, bool) or key is None else repr(key)


def _describe_static_fields(tree: Any) -> dict[str, str]:
    if not isinstance(tree, eqx.Module):
        return {}
    names = [name for name, info in type(tree).__dataclass_fields__.items() if info.metadata.get("static", False)]
    return {name: describe_object(getattr(tree, name)) for name in names if hasattr(tree, name)}


def iterate_nodes(tree: Node | LeafMetadata) -> "Iterator[Node | LeafMetadata]":
    yield tree
    for child in tree.children if isinstance(tree, Node) else ():
        yield from iterate_nodes(child)


def get_static_fields(tree: Node | LeafMetadata) -> dict[str, str]:
    """Returns descriptions of the static fields of modules, and of leaves that are no arrays or values, by path."""
    descriptions: dict[str, str] = {}
    for node in iterate_nodes(tree):
        if isinstance(node, Node):
            descriptions |= {f"{node.path}.{name}": text for name, text in node.static.items()}
        elif node.kind == "object":
            descriptions[node.path] = str(node.value)
    return descriptions


def _write_node(node: Node | LeafMetadata) -> dict[str, Any]:
    if isinstance(node, LeafMetadata):
        content = {"path": node.path, "leaf": node.kind, "names": node.names, "shape": node.shape}
        return {**content, "dtype": node.dtype, "value": node.value}
    children = [[key, _write_node(child)] for key, child in zip(node.keys, node.children, strict=True)]
    return {"path": node.path, "kind": node.kind, "children": children, "static": node.static}


def _read_node(content: dict[str, Any]) -> Node | LeafMetadata:
    if "leaf" in content:
        names = None if content["names"] is None else tuple(content["names"])
        shape = tuple(content["shape"])
        leaf = LeafMetadata(content["path"], content["leaf"], names, shape, content["dtype"], content["value"])
        leaf.check()
        return leaf
    # Lists, because a generator would be one more nested call at each level.
    children = tuple([_read_node(child) for _, child in content["children"]])
    keys = tuple(key for key, _ in content["children"])
    return Node(content["path"], content["kind"], keys, children, content["static"])


def format_leaf_axes(leaf: LeafMetadata) -> str:
    return f"shape {leaf.shape}" if leaf.names is None else f"axes {format_axes(leaf.names, leaf.shape)}"
