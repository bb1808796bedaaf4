"""Which dimension of an array is the input of its layer and which the output, told from names, sizes and neighbours.

Names say what a layer does, not how libraries store it: `kernel` is (in, out), `weight` of Equinox and PyTorch is
(out, in), `weight` of GPT-2 is (in, out), and stacked layers have one dimension more in front. So what can be seen
decides first: the size of the bias is that of the output, and the width of the model is the size of its norms.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from ._role_names import MATRICES, Words, bias_names, in_neighbourhood, is_scanned, numbered, words_of


Shape: TypeAlias = tuple[int, ...]
ROLES = {"query": "column", "up": "column", "out": "row", "down": "row"}
VECTORS = ("norm", "bias", "position", "")
_PER_HEAD = ("q_norm", "k_norm", "query_norm", "key_norm")
_LARGEST_FILTER = 16


class Layout(NamedTuple):
    """What an array is in its layer, and where.

    Args:
        role: The role.
        inputs: The dimension of the input, or the only one that matters. A table of tokens takes the vocabulary; if it
            is the head as well, because there is no other, its width.
        outputs: The dimension of the output.
        front: The dimensions that the role says nothing of, most often in front; better not divided, as they may be
            those of layers.
        stacked: Those of them that are stacked layers, as other arrays or the names prove.
        experts: The dimension of the experts, None if there is none.
        kept: A dimension that is better not divided, None if there is none: the features of an attention head.
        of: The role of the matrix that a bias is added after, empty if there is none.
    """

    role: str
    inputs: int
    outputs: int
    front: tuple[int, ...] = ()
    stacked: tuple[int, ...] = ()
    experts: int | None = None
    kept: int | None = None
    of: str = ""

    def elements(self, shape: Shape) -> int:
        """Returns how many elements an array of this layout has in each layer."""
        return math.prod(size for at, size in enumerate(shape) if at not in self.front)

    def exchanged(self) -> "Layout":
        """Returns the layout of the array with its first two dimensions exchanged."""

        def at(one: int) -> int:
            return 1 - one if one < 2 else one

        return self._replace(
            inputs=at(self.inputs),
            outputs=at(self.outputs),
            front=tuple(map(at, self.front)),
            stacked=tuple(map(at, self.stacked)),
            experts=None if self.experts is None else at(self.experts),
            kept=None if self.kept is None else at(self.kept),
        )


class Arrays:
    """The arrays of a tree, with what their neighbours tell about each.

    Args:
        pairs: The path and the sizes of each.
    """

    def __init__(self, pairs: list[tuple[tuple[Any, ...], Shape]]) -> None:
        """Gathers what is asked for later: paths, the sizes of norms, the layers that follow one another."""
        found = in_neighbourhood([(words_of(path), shape) for path, shape in pairs])
        self._second = _stacked_second(found)
        self.all = [(words, self._in_front(words, shape)) for words, shape in found]
        self._shapes = {words.whole: (words, shape) for words, shape in self.all}
        self._near: dict[tuple[str, ...], dict[str, dict[Shape, None]]] = collections.defaultdict(
            lambda: {"query": {}, "out": {}}
        )
        self._norms: dict[tuple[str, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._sizes: dict[tuple[str, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._stacks: dict[tuple[str, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._votes: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._chains: dict[Any, dict[int, int]] = collections.defaultdict(dict)
        self._biased: dict[tuple[str, ...], tuple[Words, Shape]] = {}
        self._has_head = any(words.kind == "head" and len(shape) > 1 for words, shape in self.all)
        for words, shape in self.all:
            self._gather(words, shape)
        for key, places in self._chains.items():
            self._chains[key] = {place: turn for turn, place in enumerate(sorted(places))}
        for words, shape in self.all:
            self._vote(words, shape)

    def _in_front(self, words: Words, shape: Shape) -> Shape:
        """Returns the sizes with those of the layers first where they are stacked along the second dimension."""
        return (shape[1], shape[0], *shape[2:]) if self._is_second(words, shape) else shape

    def _is_second(self, words: Words, shape: Shape) -> bool:
        sizes = (self._second.get(prefix) for prefix in _prefixes(words)) if self._second else ()
        return len(shape) > 1 and shape[1] in [size for size in sizes if size]

    def _gather(self, words: Words, shape: Shape) -> None:
        if words.kind in ("query", "out") and len(shape) > 1:
            self._near[_around(words)][words.kind][shape] = None
        if _is_norm(words) and shape and shape[-1] > 1:
            for prefix in _prefixes(words):
                self._norms[prefix][shape[-1]] += 1
                if len(shape) == 2 and shape[0] > 1:
                    self._stacks[prefix][shape[0]] += 1
        if words.kind not in VECTORS and len(shape) > 1:
            self._biased |= dict.fromkeys(bias_names(words), (words, shape))
            for prefix in _prefixes(words):
                self._sizes[prefix].update(shape[-2:])
            if words.kind == "linear" and (place := numbered(words)):
                self._chains[place[0]][place[1]] = 0

    def _vote(self, words: Words, shape: Shape) -> None:
        """Counts for the neighbours of a layer how it is stored, where that can be seen."""
        if words.kind in ROLES or words.kind == "linear":
            first = self._seen_input_first(words, shape) if len(shape) > 1 else None
            for prefix in _prefixes(words) if first is not None else ():
                self._votes[*prefix, words.leaf if words.leaf in MATRICES else ""] += 1 if first else -1

    def layouts(self) -> Iterator[Layout | None]:
        """Yields what each array is in its layer, in order; None if nothing tells."""
        for words, shape in self.all:
            found = self._layout(words, shape)
            second = len(shape) > 1 and self._is_second(words, (shape[1], shape[0]))
            yield found.exchanged() if second and found is not None else found

    def _layout(self, words: Words, shape: Shape) -> Layout | None:
        if not shape:
            return Layout("scalar", 0, 0)
        if words.kind in VECTORS or len(shape) == 1:
            found = self._vector(words, shape)
        elif self._is_convolution(words, shape):
            return self._convolution(words, shape)
        elif words.kind == "embedding":
            dims = len(shape) - 2, len(shape) - 1
            inputs, outputs = dims if self._has_head else dims[::-1]
            found = Layout("embedding", inputs, outputs, tuple(range(len(shape) - 2)))
        elif words.layer.endswith("_einsum") and words.kind in ("query", "out") and len(shape) > 2:
            found = _einsum(words, len(shape))
        elif self._by_heads(words, shape):
            found = _heads(words, shape)
        else:
            found = self._matrix(words, shape)
        proved = found is not None and 0 in found.front and self._is_stacked(words, shape)
        return found._replace(stacked=(0,)) if found is not None and proved else found

    def _is_stacked(self, words: Words, shape: Shape) -> bool:
        """Tells whether the first dimension is proved to be that of layers: by norms, by the bias, by names."""
        bias = self._bias(words)
        stack = self._stack(words) == shape[0] or (bias is not None and len(bias) > 1 and bias[0] == shape[0])
        return stack or is_scanned(words) or (words.kind == "norm" and len(shape) == 2)

    def _stack(self, words: Words) -> int | None:
        """Returns the number of stacked layers around an array, as it is seen from norms."""
        counted = (self._stacks[prefix] for prefix in reversed(list(_prefixes(words))) if prefix in self._stacks)
        return next((most.most_common(1)[0][0] for most in counted), None)

    def _vector(self, words: Words, shape: Shape) -> Layout | None:
        """Returns the layout of what is added to or multiplied with the last axis: of one dimension, but for stacks."""
        if not words.kind and len(shape) > 1:
            return None
        last = len(shape) - 1
        at = last if shape[last] > 1 else max(range(len(shape)), key=lambda one: shape[one])
        role = words.kind if words.kind in VECTORS and words.kind else "vector"
        if role == "bias" and len(shape) > 1 and words.of_experts:
            return Layout(role, at, at, tuple(range(last - 1)), experts=last - 1)
        matrix = self._biased.get(words.whole) if role == "bias" else None
        found = self._layout(*matrix) if matrix is not None else None
        of = "" if found is None else found.role
        if matrix is not None and last > 0 and self._by_heads(*matrix):
            return Layout(role, at, last - 1, tuple(range(last - 1)), of=of)
        front = (0,) if role in ("norm", "bias") and last > 0 and at == last else ()
        return Layout(role, at, at, front, of=of)

    def _matrix(self, words: Words, shape: Shape) -> Layout:
        """Returns the layout of a matrix, of experts or not, behind the dimensions that are left over."""
        rank = len(shape)
        experts = rank - 3 if words.of_experts and rank > 2 and words.kind not in ("router", "head") else None
        front = tuple(range(rank - 2 if experts is None else rank - 3))
        inputs, outputs = (rank - 2, rank - 1) if self._input_first(words, shape) else (rank - 1, rank - 2)
        role = ROLES.get(words.kind, words.kind)
        if role == "linear":
            role = self._in_chain(words, shape[inputs], shape[outputs])
        return Layout(role if experts is None else f"expert {role}", inputs, outputs, front, experts=experts)

    def _in_chain(self, words: Words, inputs: int, outputs: int) -> str:
        """Returns the role of a layer that only its place tells.

        Every second layer of a chain takes what the one before it divided; one alone is a row if it narrows its input.
        """
        place = numbered(words)
        chain = self._chains[place[0]] if place else {}
        if place and len(chain) > 1:
            return ("column", "row")[chain[place[1]] % 2]
        return "row" if inputs > outputs else "column"

    def _input_first(self, words: Words, shape: Shape) -> bool:
        """Tells whether a matrix is (in, out): as it can be seen, as its neighbours are, or as is usual."""
        seen = self._seen_input_first(words, shape)
        if seen is not None:
            return seen
        like = words.leaf if words.leaf in MATRICES else ""
        for prefix in reversed(list(_prefixes(words))):
            if votes := self._votes[*prefix, like] if words.kind != "head" else 0:
                return votes > 0
        return not words.leaf.startswith("weight")

    def _seen_input_first(self, words: Words, shape: Shape) -> bool | None:
        """Tells the same from the name of the array, its bias or the width of the model; None if these do not tell."""
        if words.leaf == "kernel":
            return True
        first, second = shape[-2:]
        if first == second:
            return None
        bias = self._bias(words)
        if bias and bias[-1] in (first, second):
            return bias[-1] == second
        width = self._width(words)
        if width not in (first, second) or words.kind == "linear":
            return None
        return (width == first) == (words.kind not in ("out", "down"))

    def _bias(self, words: Words) -> tuple[int, ...] | None:
        """Returns the sizes of the bias of a layer."""
        found = (self._shapes[name] for name in bias_names(words) if name in self._shapes)
        return next((shape for _, shape in found), None)

    def _is_convolution(self, words: Words, shape: Shape) -> bool:
        """Tells whether an array is a filter: by its name, its bias (one number for each output), or its sizes."""
        rank, bias = len(shape), self._bias(words)
        patches = rank >= 4 and any("patch" in word for word in (*words.above, words.layer))
        if words.kind == "conv" or patches or (rank >= 4 and words.kind == "embedding" and words.leaf == "kernel"):
            return rank > 2
        if rank >= 4 and words.leaf == "weight" and words.kind in (*ROLES, "linear") and not words.of_experts:
            if len(set(shape[2:])) == 1 and shape[2] <= _LARGEST_FILTER:
                return True
        if words.kind != "linear" or rank < 3 or bias is None:
            return False
        return len(bias) == 1 or (len(bias) == rank - 1 and set(bias[2 - rank :]) == {1})

    def _width(self, words: Words) -> int | None:
        """Returns the width of the model around an array: the size of near norms, or what most matrices have."""
        for counted in (self._norms, self._sizes):
            for prefix in reversed(list(_prefixes(words))):
                most = counted[prefix].most_common(2) if prefix in counted else []
                if most and (len(most) == 1 or most[0][1] > most[1][1]):
                    return most[0][0]
        return None

    def _by_heads(self, words: Words, shape: Shape) -> bool:
        """Tells whether a matrix of an attention keeps its heads apart, as (in, heads, features) or the other way."""
        if words.kind not in ("query", "out") or len(shape) < 3 or words.of_experts:
            return False
        near = self._near[_around(words)]
        if not near["query"] and not any("att" in word for word in words.above):
            return False
        if len(shape) > 3:
            return len(shape) == 4 or _is_fused(words, shape)
        matrices = [one for kind in ("query", "out") for one in near[kind] if len(one) == 3]
        if all(one[0] == self._stack(words) for one in matrices):
            return False
        outs = {one[:2] for one in near["out"] if len(one) == 3}
        queries = {one[1:] for one in near["query"] if len(one) == 3}
        if outs and queries:
            return not outs.isdisjoint(queries)
        bias = self._bias(words)
        if bias is not None:
            return len(bias) == (2 if words.kind == "query" else 1) and bias == shape[-len(bias) :]
        width = self._width(words)
        return width is not None and width == shape[0 if words.kind == "query" else -1] and width != shape[1]

    def _convolution(self, words: Words, shape: Shape) -> Layout:
        """Returns the layout of a filter: (..., in, out) if it is a `kernel`, otherwise (out, in, ...)."""
        bias, rank = self._bias(words), len(shape)
        if words.leaf == "kernel":
            stacked = (0,) if bias and len(bias) > 1 else ()
            return Layout("conv", rank - 2, rank - 1, tuple(range(rank - 2)), stacked)
        stacked = 1 if bias and len(bias) == rank - 1 and rank > 3 and bias[:2] == shape[:2] and bias[0] == 1 else 0
        front = (*range(stacked), *range(stacked + 2, rank))
        return Layout("conv", stacked + 1, stacked, front, tuple(range(stacked)))


def _heads(words: Words, shape: Shape) -> Layout:
    """Returns the layout of a matrix of an attention that keeps its heads apart."""
    last = len(shape) - 1
    if words.kind == "query" and _is_fused(words, shape):
        return Layout("column", last - 3, last - 1, (*range(last - 3), last - 2), kept=last)
    if words.kind == "query":
        return Layout("column", last - 2, last - 1, tuple(range(last - 2)), kept=last)
    return Layout("row", last - 2, last, tuple(range(last - 2)), kept=last - 1)


def _is_fused(words: Words, shape: Shape) -> bool:
    """Tells whether a matrix has queries, keys and values in one, as (in, 3, heads, features)."""
    return len(shape) > 3 and shape[-3] in (2, 3) and bool(re.search(r"kv|query_key_value|c_attn|in_proj", words.layer))


def _einsum(words: Words, rank: int) -> Layout:
    """Returns the layout of a matrix of Gemma's attention: (heads, in, features), or (heads, features, out)."""
    front = tuple(range(rank - 3))
    if words.kind == "query":
        return Layout("column", rank - 2, rank - 3, front, kept=rank - 1)
    return Layout("row", rank - 3, rank - 1, front, kept=rank - 2)


def _stacked_second(found: list[tuple[Words, Shape]]) -> dict[tuple[str, ...], int]:
    """Returns where layers are stacked along the second dimension, and how many.

    That is seen from norms whose first dimension is the width, as norms that are not stacked have it.
    """
    widths = {shape[0] for words, shape in found if _is_norm(words) and len(shape) == 1}
    return {
        _around(words): shape[1]
        for words, shape in found
        if _is_norm(words) and len(shape) == 2 and shape[0] in widths - {1} and shape[1] not in (*widths, 1)
    }


def _is_norm(words: Words) -> bool:
    """Tells whether an array belongs to a norm of the width of the model."""
    return words.kind == "norm" and words.layer not in _PER_HEAD


def _around(words: Words) -> tuple[str, ...]:
    """Returns the path of what the layer of an array is in."""
    return words.holder if words.bare else words.holder[:-1]


def _prefixes(words: Words) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all that an array is in, from the whole tree on."""
    return (words.holder[:count] for count in range(len(words.holder) + 1))
