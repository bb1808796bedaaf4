"""`inspect`: what is in a checkpoint, from its metadata alone."""

import os
from dataclasses import dataclass
from pathlib import Path

from .._ground.formats import format_axes, format_bytes
from ._checksums import read_checksums
from ._restore import read_metadata
from ._steps import check_is_path, find_steps, get_step_folder
from ._tree_metadata import ARRAY_KINDS, LeafMetadata, Node


@dataclass(frozen=True)
class CheckpointSummary:
    """What is in a checkpoint; printed, it is a table of its tree.

    Attributes:
        folder: The folder of the checkpoints.
        step: The step.
        leaves: The leaves by key path, each with `kind`, `names`, `shape`, `dtype` and `nbytes`.
        tree: The tree of nodes and leaves.
        process_count: The number of processes that saved it.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"mlp": 2, "embed": 3})}, step=10)
        >>> [(path, leaf.names, leaf.dtype) for path, leaf in nym.checkpoint.inspect(folder).leaves.items()]
        [("['weight']", ('mlp', 'embed'), 'float32')]
    """

    folder: Path
    step: int
    leaves: dict[str, LeafMetadata]
    tree: Node | LeafMetadata
    process_count: int

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(leaf.nbytes for leaf in self.leaves.values())

    def __str__(self) -> str:
        """Returns a line for each node and leaf."""
        rows = [*_list_rows(self.tree, "", 0)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{label:<{widths[0]}}  {kind:<{widths[1]}}  {size:>{widths[2]}}".rstrip() for label, kind, size in rows
        ]
        count = sum(leaf.kind in ARRAY_KINDS for leaf in self.leaves.values())
        total = f"{count} {'array' if count == 1 else 'arrays'}, {format_bytes(self.nbytes)}"
        return "\n".join([f"step {self.step} in {self.folder}: {total}", *lines])

    __repr__ = __str__


def inspect(folder: str | os.PathLike[str], step: int | None = None) -> CheckpointSummary:
    """Returns what is in a checkpoint: its tree with axes, element types and bytes. No array is read.

    `python -m axonym.checkpoint FOLDER` prints it.

    Args:
        folder: The folder of the checkpoints.
        step: The step; the newest if None.

    Returns:
        The summary: print it, or use its attributes.

    Raises:
        TypeError: If `folder` is no path.
        ValueError: If the step is no integer from 0 on.
        FileNotFoundError: If there is no checkpoint, or none of this step.
        DamagedCheckpointError: If the file of the metadata was changed, or a file is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"mlp": 2, "embed": 3}), "epoch": 4}, step=10)
        >>> summary = nym.checkpoint.inspect(folder)
        >>> for line in str(summary).splitlines()[1:]:
        ...     print(line)
        epoch   int 4
        weight  float32 (mlp: 2, embed: 3)  24 B
        >>> summary.step, summary.leaves["['weight']"].names
        (10, ('mlp', 'embed'))
    """
    check_is_path(folder, "`inspect(folder, step)`")
    [newest, *_] = find_steps(Path(folder), step)
    step_folder = get_step_folder(Path(folder), newest)
    metadata = read_metadata(step_folder, read_checksums(step_folder.parent))
    return CheckpointSummary(Path(folder), newest, metadata.get_leaves(), metadata.tree, metadata.process_count)


def _list_rows(node: Node | LeafMetadata, label: str, depth: int) -> list[tuple[str, str, str]]:
    """Returns the label, the description and the bytes of a node and of all below it."""
    label = f"{'  ' * depth}{label}"
    if isinstance(node, LeafMetadata):
        return [(label, _format_leaf(node), format_bytes(node.nbytes) if node.kind in ARRAY_KINDS else "")]
    # The root has no label, so that its children are not indented, and no line if it has children.
    pairs = zip(node.keys, node.children, strict=True)
    child_rows = [row for key, child in pairs for row in _list_rows(child, str(key), depth + 1 if label else depth)]
    return [(label, node.kind, ""), *child_rows] if label or not child_rows else child_rows


def _format_leaf(leaf: LeafMetadata) -> str:
    if leaf.kind not in ARRAY_KINDS:
        return leaf.describe_value()
    kind = {"array": "", "key": "random keys ", "numpy": "NumPy ", "numpy scalar": "NumPy scalar "}[leaf.kind]
    axes = str(leaf.shape) if leaf.names is None else format_axes(leaf.names, leaf.shape)
    return f"{kind}{leaf.dtype} {axes}"
