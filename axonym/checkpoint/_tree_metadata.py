"""The metadata of a checkpoint: the tree that was saved, with the axes of its arrays, as JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, keystr

from ._checksums import DamagedCheckpointError
from ._leaf import Leaf, describe_leaf, describe_object, is_checkpoint_leaf


METADATA = "axonym.json"
_FORMAT = 1
_DEEPEST = 200  # levels; each takes two calls of Python, or three of the JSON decoder, of the 1000 that it has


class _NewerFormatError(ValueError):
    """The metadata are not damaged, but of a later version."""


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
    children: "tuple[Node | Leaf, ...]" = ()
    static: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TreeMetadata:
    """What a checkpoint says of itself: the tree, the step and the number of processes that saved it."""

    step: int
    tree: Node | Leaf
    process_count: int = 1
    has_data: bool = False

    def write(self, folder: Path) -> None:
        about = {"format": _FORMAT, "step": self.step, "process_count": self.process_count, "has_data": self.has_data}
        (folder / METADATA).write_text(json.dumps({**about, "tree": _write_node(self.tree)}))

    @classmethod
    def read(cls, folder: Path) -> "TreeMetadata":
        path = folder / METADATA
        try:
            content = json.loads(path.read_bytes())
            if content["format"] > _FORMAT:
                raise _NewerFormatError(f"{path} has format {content['format']}; install a newer Axonym to read it")
            step, process_count, has_data = content["step"], content["process_count"], content["has_data"]
            if [type(step), type(process_count), type(has_data)] != [int, int, bool] or process_count < 1:
                raise ValueError(f"step {step!r} of {process_count!r} processes")
            return cls(step, _read_node(content["tree"]), process_count, has_data)
        except _NewerFormatError:
            raise
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path} is missing") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            message = f"{path} does not describe a checkpoint: {type(error).__name__}: {error}"
            raise DamagedCheckpointError(message) from None

    def get_leaves(self) -> dict[str, Leaf]:
        """Returns the leaves by path."""
        return {leaf.path: leaf for leaf in iterate_nodes(self.tree) if isinstance(leaf, Leaf)}

    def get_static_fields(self) -> dict[str, str]:
        """Returns descriptions of the static fields of modules, and of leaves that are no arrays or values, by path."""
        return get_static_fields(self.tree)


def describe_tree(tree: Any, path: tuple[Any, ...] = ()) -> Node | Leaf:
    """Returns the metadata of a tree or of a part of it, whose leaves may be shapes without data.

    Raises:
        ValueError: If it is too deep for the recursion of Python and JSON.
    """
    text = keystr(path)
    if len(path) > _DEEPEST:
        raise ValueError(
            f"the state has more than {_DEEPEST} levels at {text[:60]}...; put its arrays into a flat dict or list, or "
            "stack those of the same shape along an axis"
        )
    if is_checkpoint_leaf(tree):
        return describe_leaf(text, tree)
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    if jax.tree_util.treedef_is_leaf(treedef) and pairs:
        return describe_leaf(text, tree)
    keys = tuple([_read_key(entries) for entries, _ in pairs])
    children = tuple([describe_tree(child, (*path, *entries)) for entries, child in pairs])
    return Node(text, _name_kind(tree), keys, children, _describe_static_fields(tree))


def _name_kind(tree: Any) -> str:
    return type(tree).__name__ if type(tree) in (dict, list, tuple) else type(tree).__qualname__


def _read_key(entries: tuple[Any, ...]) -> str | int | float | bool | None:
    """Returns the key of a child as JSON has it, the text of other keys."""
    key: Any = keystr(entries)
    match entries:
        case (DictKey(key=found),) | (FlattenedIndexKey(key=found),):
            key = found
        case (SequenceKey(idx=found),):
            key = found
        case (GetAttrKey(name=found),):
            key = found
    return key if type(key) in (str, int, float, bool) or key is None else repr(key)


def _describe_static_fields(tree: Any) -> dict[str, str]:
    if not isinstance(tree, eqx.Module):
        return {}
    names = [name for name, one in type(tree).__dataclass_fields__.items() if one.metadata.get("static", False)]
    return {name: describe_object(getattr(tree, name)) for name in names if hasattr(tree, name)}


def iterate_nodes(tree: Node | Leaf) -> "Iterator[Node | Leaf]":
    yield tree
    for child in tree.children if isinstance(tree, Node) else ():
        yield from iterate_nodes(child)


def get_static_fields(tree: Node | Leaf) -> dict[str, str]:
    """Returns descriptions of the static fields of modules, and of leaves that are no arrays or values, by path."""
    found: dict[str, str] = {}
    for node in iterate_nodes(tree):
        if isinstance(node, Node):
            found |= {f"{node.path}.{name}": text for name, text in node.static.items()}
        elif node.kind == "object":
            found[node.path] = str(node.value)
    return found


def _write_node(node: Node | Leaf) -> dict[str, Any]:
    if isinstance(node, Leaf):
        written = {"path": node.path, "leaf": node.kind, "names": node.names, "shape": node.shape}
        return {**written, "dtype": node.dtype, "value": node.value}
    children = [[key, _write_node(child)] for key, child in zip(node.keys, node.children, strict=True)]
    return {"path": node.path, "kind": node.kind, "children": children, "static": node.static}


def _read_node(content: dict[str, Any]) -> Node | Leaf:
    if "leaf" in content:
        names = None if content["names"] is None else tuple(content["names"])
        shape = tuple(content["shape"])
        leaf = Leaf(content["path"], content["leaf"], names, shape, content["dtype"], content["value"])
        leaf.check()
        return leaf
    children = tuple([_read_node(child) for _, child in content["children"]])
    keys = tuple(key for key, _ in content["children"])
    return Node(content["path"], content["kind"], keys, children, content["static"])
