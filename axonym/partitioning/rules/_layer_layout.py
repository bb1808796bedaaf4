"""Which dimension of an array is the input of its layer and which the output, from names, sizes and neighbours.

Names describe what a layer does, not how libraries store it: `kernel` is (in, out), `weight` of Equinox and PyTorch is
(out, in), `weight` of GPT-2 is (in, out), and stacked layers have another leading dimension. So sizes decide first: the
size of the bias is the size of the output, and the width of the model is the size of its norms.
"""

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from ._layer_names import (
    MATRICES,
    LayerName,
    find_kinds_by_neighbours,
    get_bias_paths,
    get_layer_number,
    is_scanned,
    parse_layer_name,
)
from ._rule_tree import RuleLeaf


Shape: TypeAlias = tuple[int, ...]
_ROLES = {"query": "column", "up": "column", "out": "row", "down": "row"}
_VECTORS = ("norm", "bias", "position", "")
_PER_HEAD = ("q_norm", "k_norm", "query_norm", "key_norm")
_LARGEST_FILTER = 16


class Layout(NamedTuple):
    """The role of an array in its layer, and what its dimensions are.

    Args:
        role: The role.
        inputs: The dimension of the input, or the only relevant one. For a table of tokens the vocabulary; if it is the
            head as well, because there is no other, its width.
        outputs: The dimension of the output.
        leading: The other dimensions, mostly leading ones; better replicated, as layers may be stacked along them.
        stacked: The leading dimensions along which layers are stacked, as other arrays or the names prove.
        experts: The dimension of the experts, None if there is none.
        head_size: The dimension of the features of an attention head, better replicated; None if there is none.
        bias_of: The role of the matrix after which a bias is added, empty if there is none.
    """

    role: str
    inputs: int
    outputs: int
    leading: tuple[int, ...] = ()
    stacked: tuple[int, ...] = ()
    experts: int | None = None
    head_size: int | None = None
    bias_of: str = ""

    def count_elements(self, shape: Shape) -> int:
        """Returns the number of elements of an array of this layout in each layer."""
        return math.prod(size for at, size in enumerate(shape) if at not in self.leading)

    def swap_first_two(self) -> "Layout":
        """Returns the layout of the array with its first two dimensions swapped."""
        swapped: dict[str, Any] = {}
        for field in ("inputs", "outputs", "leading", "stacked", "experts", "head_size"):
            value = getattr(self, field)
            if isinstance(value, tuple):
                swapped[field] = tuple(1 - at if at < 2 else at for at in value)
            elif value is not None:
                swapped[field] = 1 - value if value < 2 else value
        return self._replace(**swapped)


def find_layouts(leaves: Sequence[RuleLeaf]) -> list[Layout | None]:
    """Returns the layout of each leaf of a tree, None for unknown roles and for leaves that are not arrays."""
    shapes = [leaf.shape for leaf in leaves]
    layers = _Layers([(leaf.path, shape) for leaf, shape in zip(leaves, shapes, strict=True) if shape is not None])
    found = layers.make_layouts()
    return [None if shape is None else next(found) for shape in shapes]


_Counts: TypeAlias = dict[tuple[str, ...], collections.Counter[Any]]


class _Layers:
    """The layers of a tree, from the paths and shapes of its arrays."""

    def __init__(self, pairs: list[tuple[tuple[Any, ...], Shape]]) -> None:
        """Counts norms, sizes and stacks around each layer, and finds the layers that follow one another."""
        found = find_kinds_by_neighbours([(parse_layer_name(path), shape) for path, shape in pairs])
        self._second = _find_second_stacks(found)
        # Layers that are stacked along the second dimension are moved to the first, and back in `make_layouts`.
        self._arrays = [
            (name, (shape[1], shape[0], *shape[2:]) if self._is_stacked_second(name, shape) else shape)
            for name, shape in found
        ]
        self._shapes = {name.path: shape for name, shape in self._arrays}
        counts: list[_Counts] = [collections.defaultdict(collections.Counter) for _ in range(4)]
        self._attention, self._norms, self._sizes, self._stacks = counts
        self._votes: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._chains: dict[Any, set[int]] = collections.defaultdict(set)
        self._biased: dict[tuple[str, ...], tuple[LayerName, Shape]] = {}
        self._has_head = any(name.kind == "head" and len(shape) > 1 for name, shape in self._arrays)
        for name, shape in self._arrays:
            self._add_array(name, shape)
        for name, shape in self._arrays:
            self._add_vote(name, shape)

    def _is_stacked_second(self, name: LayerName, shape: Shape) -> bool:
        sizes = (self._second.get(prefix) for prefix in _get_prefixes(name)) if self._second else ()
        return len(shape) > 1 and shape[1] in [size for size in sizes if size]

    def _add_array(self, name: LayerName, shape: Shape) -> None:
        if name.kind in ("query", "out") and len(shape) > 1:
            self._attention[_get_parent(name)][name.kind, shape] += 1
        if _is_norm(name) and shape and shape[-1] > 1:
            for prefix in _get_prefixes(name):
                self._norms[prefix][shape[-1]] += 1
                if len(shape) == 2 and shape[0] > 1:
                    self._stacks[prefix][shape[0]] += 1
        if name.kind not in _VECTORS and len(shape) > 1:
            self._biased |= dict.fromkeys(get_bias_paths(name), (name, shape))
            for prefix in _get_prefixes(name):
                self._sizes[prefix].update(shape[-2:])
            if name.kind == "linear" and (place := get_layer_number(name)):
                self._chains[place[0]].add(place[1])

    def _add_vote(self, name: LayerName, shape: Shape) -> None:
        """Counts for the neighbours of a layer whether it is stored as (in, out), if that is certain."""
        if name.kind in _ROLES or name.kind == "linear":
            first = self._infer_input_first(name, shape) if len(shape) > 1 else None
            for prefix in _get_prefixes(name) if first is not None else ():
                self._votes[*prefix, name.leaf if name.leaf in MATRICES else ""] += 1 if first else -1

    def make_layouts(self) -> Iterator[Layout | None]:
        """Yields the layout of each array, in order; None if its role is unknown."""
        for name, shape in self._arrays:
            found = self._find_layout(name, shape)
            second = len(shape) > 1 and self._is_stacked_second(name, (shape[1], shape[0]))
            yield found.swap_first_two() if second and found is not None else found

    def _find_layout(self, name: LayerName, shape: Shape) -> Layout | None:
        if not shape:
            return Layout("scalar", 0, 0)
        if name.kind in _VECTORS or len(shape) == 1:
            found = self._make_vector_layout(name, shape)
        elif self._is_filter(name, shape):
            return self._make_filter_layout(name, shape)
        elif name.kind == "embedding":
            dims = len(shape) - 2, len(shape) - 1
            inputs, outputs = dims if self._has_head else dims[::-1]
            found = Layout("embedding", inputs, outputs, tuple(range(len(shape) - 2)))
        elif name.layer.endswith("_einsum") and name.kind in ("query", "out") and len(shape) > 2:
            found = _make_einsum_layout(name, len(shape))
        elif self._keeps_heads(name, shape):
            found = _make_heads_layout(name, shape)
        else:
            found = self._make_matrix_layout(name, shape)
        proved = found is not None and 0 in found.leading and self._is_stacked(name, shape)
        return found._replace(stacked=(0,)) if found is not None and proved else found

    def _is_stacked(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether norms, the bias or names prove that layers are stacked along the first dimension."""
        bias = self._get_bias(name)
        stack = self._count_stack(name) == shape[0] or (bias is not None and len(bias) > 1 and bias[0] == shape[0])
        return stack or is_scanned(name) or (name.kind == "norm" and len(shape) == 2)

    def _count_stack(self, name: LayerName) -> int | None:
        """Returns the number of stacked layers around an array, which follows from norms."""
        counts = (self._stacks[prefix] for prefix in _get_prefixes(name) if prefix in self._stacks)
        return next((count.most_common(1)[0][0] for count in counts), None)

    def _make_vector_layout(self, name: LayerName, shape: Shape) -> Layout | None:
        """Returns the layout of an array that scales or shifts the last axis, which may be stacked."""
        if not name.kind and len(shape) > 1:
            return None
        last = len(shape) - 1
        at = last if shape[last] > 1 else max(range(len(shape)), key=lambda one: shape[one])
        role = name.kind if name.kind in _VECTORS and name.kind else "vector"
        if role == "bias" and len(shape) > 1 and name.is_expert:
            return Layout(role, at, at, tuple(range(last - 1)), experts=last - 1)
        matrix = self._biased.get(name.path) if role == "bias" else None
        found = self._find_layout(*matrix) if matrix is not None else None
        bias_of = "" if found is None else found.role
        if matrix is not None and last > 0 and self._keeps_heads(*matrix):
            return Layout(role, at, last - 1, tuple(range(last - 1)), bias_of=bias_of)
        leading = (0,) if role in ("norm", "bias") and last > 0 and at == last else ()
        return Layout(role, at, at, leading, bias_of=bias_of)

    def _make_matrix_layout(self, name: LayerName, shape: Shape) -> Layout:
        """Returns the layout of a matrix, or of stacked experts, after other leading dimensions."""
        rank = len(shape)
        experts = rank - 3 if name.is_expert and rank > 2 and name.kind not in ("router", "head") else None
        leading = tuple(range(rank - 2 if experts is None else rank - 3))
        inputs, outputs = (rank - 2, rank - 1) if self._is_input_first(name, shape) else (rank - 1, rank - 2)
        role = _ROLES.get(name.kind, name.kind)
        if role == "linear":
            role = self._find_role_in_chain(name, shape[inputs], shape[outputs])
        return Layout(role if experts is None else f"expert {role}", inputs, outputs, leading, experts=experts)

    def _find_role_in_chain(self, name: LayerName, inputs: int, outputs: int) -> str:
        """Returns the role of a layer without a special name.

        In a chain every second layer takes the sharded output of the one before; a single one is a row if its output is
        smaller than its input.
        """
        place = get_layer_number(name)
        if place and len(chain := sorted(self._chains[place[0]])) > 1:
            return ("column", "row")[chain.index(place[1]) % 2]
        return "row" if inputs > outputs else "column"

    def _is_input_first(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether a matrix is (in, out), by its name and sizes, its neighbours, or the usual convention."""
        seen = self._infer_input_first(name, shape)
        if seen is not None:
            return seen
        like = name.leaf if name.leaf in MATRICES else ""
        for prefix in _get_prefixes(name):
            if votes := self._votes[*prefix, like] if name.kind != "head" else 0:
                return votes > 0
        return not name.leaf.startswith("weight")

    def _infer_input_first(self, name: LayerName, shape: Shape) -> bool | None:
        """Returns the same from the array's name, its bias or the width of the model; None if it does not follow."""
        if name.leaf == "kernel":
            return True
        first, second = shape[-2:]
        if first == second:
            return None
        bias = self._get_bias(name)
        if bias and bias[-1] in (first, second):
            return bias[-1] == second
        width = self._find_width(name)
        if width not in (first, second) or name.kind == "linear":
            return None
        return (width == first) == (name.kind not in ("out", "down"))

    def _get_bias(self, name: LayerName) -> tuple[int, ...] | None:
        return next((self._shapes[path] for path in get_bias_paths(name) if path in self._shapes), None)

    def _is_filter(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether an array is a filter, by its name, its bias (one number for each output), or its sizes."""
        rank, bias = len(shape), self._get_bias(name)
        patches = rank >= 4 and any("patch" in word for word in (*name.above, name.layer))
        if name.kind == "conv" or patches or (rank >= 4 and name.kind == "embedding" and name.leaf == "kernel"):
            return rank > 2
        if rank >= 4 and name.leaf == "weight" and name.kind in (*_ROLES, "linear") and not name.is_expert:
            if len(set(shape[2:])) == 1 and shape[2] <= _LARGEST_FILTER:
                return True
        if name.kind != "linear" or rank < 3 or bias is None:
            return False
        return len(bias) == 1 or (len(bias) == rank - 1 and set(bias[2 - rank :]) == {1})

    def _find_width(self, name: LayerName) -> int | None:
        """Returns the width of the model around an array: the size of near norms, or else of most matrices."""
        for counted in (self._norms, self._sizes):
            for prefix in _get_prefixes(name):
                most = counted[prefix].most_common(2) if prefix in counted else []
                if most and (len(most) == 1 or most[0][1] > most[1][1]):
                    return most[0][0]
        return None

    def _keeps_heads(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether a matrix of an attention keeps its heads apart, as (in, heads, features) or reversed."""
        if name.kind not in ("query", "out") or len(shape) < 3 or name.is_expert:
            return False
        near = self._attention[_get_parent(name)]
        if not any(kind == "query" for kind, _ in near) and not any("att" in word for word in name.above):
            return False
        if len(shape) > 3:
            return len(shape) == 4 or _is_fused(name, shape)
        matrices = [(kind, other) for kind, other in near if len(other) == 3]
        if all(other[0] == self._count_stack(name) for _, other in matrices):
            return False
        outs = {other[:2] for kind, other in matrices if kind == "out"}
        queries = {other[1:] for kind, other in matrices if kind == "query"}
        if outs and queries:
            return not outs.isdisjoint(queries)
        bias = self._get_bias(name)
        if bias is not None:
            return len(bias) == (2 if name.kind == "query" else 1) and bias == shape[-len(bias) :]
        width = self._find_width(name)
        return width is not None and width == shape[0 if name.kind == "query" else -1] and width != shape[1]

    def _make_filter_layout(self, name: LayerName, shape: Shape) -> Layout:
        """Returns the layout of a filter: (..., in, out) if it is a `kernel`, otherwise (out, in, ...)."""
        bias, rank = self._get_bias(name), len(shape)
        if name.leaf == "kernel":
            stacked = (0,) if bias and len(bias) > 1 else ()
            return Layout("conv", rank - 2, rank - 1, tuple(range(rank - 2)), stacked)
        stacked = 1 if bias and len(bias) == rank - 1 and rank > 3 and bias[:2] == shape[:2] and bias[0] == 1 else 0
        leading = (*range(stacked), *range(stacked + 2, rank))
        return Layout("conv", stacked + 1, stacked, leading, tuple(range(stacked)))


def _make_heads_layout(name: LayerName, shape: Shape) -> Layout:
    """Returns the layout of a matrix of an attention that keeps its heads apart."""
    last = len(shape) - 1
    if name.kind == "query" and _is_fused(name, shape):
        return Layout("column", last - 3, last - 1, (*range(last - 3), last - 2), head_size=last)
    if name.kind == "query":
        return Layout("column", last - 2, last - 1, tuple(range(last - 2)), head_size=last)
    return Layout("row", last - 2, last, tuple(range(last - 2)), head_size=last - 1)


def _is_fused(name: LayerName, shape: Shape) -> bool:
    """Returns whether a matrix has queries, keys and values in one, as (in, 3, heads, features)."""
    return len(shape) > 3 and shape[-3] in (2, 3) and bool(re.search(r"kv|query_key_value|c_attn|in_proj", name.layer))


def _make_einsum_layout(name: LayerName, rank: int) -> Layout:
    """Returns the layout of a matrix of Gemma's attention: (heads, in, features), or (heads, features, out)."""
    leading = tuple(range(rank - 3))
    if name.kind == "query":
        return Layout("column", rank - 2, rank - 3, leading, head_size=rank - 1)
    return Layout("row", rank - 3, rank - 1, leading, head_size=rank - 2)


def _find_second_stacks(found: list[tuple[LayerName, Shape]]) -> dict[tuple[str, ...], int]:
    """Returns where layers are stacked along the second dimension, and how many.

    It follows from norms whose first dimension is the width, the size of norms that are not stacked.
    """
    widths = {shape[0] for name, shape in found if _is_norm(name) and len(shape) == 1}
    return {
        _get_parent(name): shape[1]
        for name, shape in found
        if _is_norm(name) and len(shape) == 2 and shape[0] in widths - {1} and shape[1] not in (*widths, 1)
    }


def _is_norm(name: LayerName) -> bool:
    """Returns whether an array belongs to a norm of the width of the model."""
    return name.kind == "norm" and name.layer not in _PER_HEAD


def _get_parent(name: LayerName) -> tuple[str, ...]:
    """Returns the path of the module that encloses the layer of an array."""
    return name.holder if name.is_array else name.holder[:-1]


def _get_prefixes(name: LayerName) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all modules that enclose an array, from its layer outwards."""
    return (name.holder[:count] for count in range(len(name.holder), -1, -1))
