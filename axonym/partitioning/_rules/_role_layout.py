"""Which dimension of an array is the input of its layer and which the output, told from names, sizes and neighbours.

Names say what a layer does, not how libraries store it: `kernel` is (in, out), `weight` of Equinox and PyTorch is
(out, in), `weight` of GPT-2 is (in, out), and stacked layers have one dimension more in front. So what can be seen
decides first: the size of the bias is that of the output, and the width of the model is the size of its norms.
"""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._role_names import MATRICES, Words, bias_names, numbered, words_of


ROLES = {"query": "column", "up": "column", "out": "row", "down": "row"}
VECTORS = ("norm", "bias", "position", "")


class Layout(NamedTuple):
    """What an array is in its layer, and where.

    Args:
        role: The role.
        stacked: How many dimensions in front are those of stacked layers.
        inputs: The dimension of the input, or the only one that matters. A table of tokens takes the vocabulary; if it
            is the head as well, because there is no other, its width.
        outputs: The dimension of the output.
        experts: The dimension of the experts, None if there is none.
        kept: A dimension that is better not divided, None if there is none: the features of an attention head.
    """

    role: str
    stacked: int
    inputs: int
    outputs: int
    experts: int | None = None
    kept: int | None = None


class Arrays:
    """The arrays of a tree, with what their neighbours tell about each.

    Args:
        pairs: The path and the sizes of each.
    """

    def __init__(self, pairs: list[tuple[tuple[Any, ...], tuple[int, ...]]]) -> None:
        """Gathers what is asked for later: paths, the sizes of norms, the layers that follow one another."""
        self.all = [(words_of(path), shape) for path, shape in pairs]
        self._shapes = {words.whole: (words, shape) for words, shape in self.all}
        self._near: dict[tuple[str, ...], list[tuple[Words, tuple[int, ...]]]] = collections.defaultdict(list)
        self._norms: dict[tuple[str, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._sizes: dict[tuple[str, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self._votes: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._chains: dict[Any, list[int]] = collections.defaultdict(list)
        self._has_head = any(words.kind == "head" and len(shape) > 1 for words, shape in self.all)
        for words, shape in self.all:
            self._gather(words, shape)
        for words, shape in self.all:
            self._vote(words, shape)

    def _gather(self, words: Words, shape: tuple[int, ...]) -> None:
        if words.kind in ("query", "out") and len(shape) == 3:
            self._near[_attention(words)].append((words, shape))
        if words.kind == "norm" and shape and words.layer not in ("q_norm", "k_norm", "query_norm", "key_norm"):
            for prefix in _prefixes(words):
                self._norms[prefix][shape[-1]] += 1
        if words.kind not in VECTORS and len(shape) > 1:
            for prefix in _prefixes(words):
                self._sizes[prefix].update(shape[-2:])
            if words.kind == "linear" and (place := numbered(words)):
                self._chains[place[0]].append(place[1])

    def _vote(self, words: Words, shape: tuple[int, ...]) -> None:
        """Counts for the neighbours of a layer how it is stored, where that can be seen."""
        if words.kind in ROLES or words.kind == "linear":
            first = self._seen_input_first(words, shape) if len(shape) > 1 else None
            for prefix in _prefixes(words) if first is not None else ():
                self._votes[*prefix, words.leaf if words.leaf in MATRICES else ""] += 1 if first else -1

    def layout(self, words: Words, shape: tuple[int, ...]) -> Layout | None:
        """Returns what an array is in its layer; None if nothing tells."""
        if not shape:
            return Layout("scalar", 0, 0, 0)
        if words.kind in VECTORS or len(shape) == 1:
            return self._vector(words, shape)
        if self._is_convolution(words, shape):
            return self._convolution(words, shape)
        if words.kind == "embedding":
            dims = len(shape) - 2, len(shape) - 1
            return Layout("embedding", len(shape) - 2, *(dims if self._has_head else reversed(dims)))
        if self._by_heads(words, shape):
            return _heads(words, len(shape) - 3)
        return self._matrix(words, shape)

    def _vector(self, words: Words, shape: tuple[int, ...]) -> Layout | None:
        """Returns the layout of what is added to or multiplied with the last axis: of one dimension, but for stacks."""
        if not words.kind and len(shape) > 1:
            return None
        last = len(shape) - 1
        at = last if shape[last] > 1 else max(range(len(shape)), key=lambda one: shape[one])
        role = words.kind if words.kind in VECTORS and words.kind else "vector"
        if role == "bias" and len(shape) > 1 and words.of_experts:
            return Layout(role, len(shape) - 2, at, at, experts=len(shape) - 2)
        if role == "bias" and len(shape) > 1 and self._is_of_heads(words):
            return Layout(role, len(shape) - 2, at, len(shape) - 2)
        stacked = 1 if role in ("norm", "bias") and last > 0 and at == last else 0
        return Layout(role, stacked, at, at)

    def _matrix(self, words: Words, shape: tuple[int, ...]) -> Layout:
        """Returns the layout of a matrix, of experts or not, behind the dimensions of stacked layers."""
        rank = len(shape)
        experts = rank - 3 if words.of_experts and rank > 2 and words.kind not in ("router", "head") else None
        stacked = rank - 2 if experts is None else rank - 3
        inputs, outputs = (rank - 2, rank - 1) if self._input_first(words, shape) else (rank - 1, rank - 2)
        role = ROLES.get(words.kind, words.kind)
        if role == "linear":
            role = self._in_chain(words, shape[inputs], shape[outputs])
        return Layout(role if experts is None else f"expert {role}", stacked, inputs, outputs, experts)

    def _in_chain(self, words: Words, inputs: int, outputs: int) -> str:
        """Returns the role of a layer that only its place tells.

        Every second layer of a chain takes what the one before it divided; one alone is a row if it narrows its input.
        """
        place = numbered(words)
        chain = sorted(set(self._chains[place[0]])) if place else []
        if place and len(chain) > 1:
            return ("column", "row")[chain.index(place[1]) % 2]
        return "row" if inputs > outputs else "column"

    def _input_first(self, words: Words, shape: tuple[int, ...]) -> bool:
        """Tells whether a matrix is (in, out): as it can be seen, as its neighbours are, or as is usual."""
        seen = self._seen_input_first(words, shape)
        if seen is not None:
            return seen
        like = words.leaf if words.leaf in MATRICES else ""
        for prefix in reversed(list(_prefixes(words))):
            if votes := self._votes[*prefix, like] if words.kind != "head" else 0:
                return votes > 0
        return not words.leaf.startswith("weight")

    def _seen_input_first(self, words: Words, shape: tuple[int, ...]) -> bool | None:
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

    def _is_of_heads(self, words: Words) -> bool:
        """Tells whether a bias belongs to a matrix that keeps attention heads apart."""
        found = (self._shapes.get((*words.holder, name)) for name in MATRICES)
        return any(self._by_heads(*matrix) for matrix in found if matrix is not None)

    def _is_convolution(self, words: Words, shape: tuple[int, ...]) -> bool:
        """Tells whether an array is a filter, by its name or its bias: one number for each output, in one dimension."""
        rank, bias = len(shape), self._bias(words)
        if words.kind == "conv" or (rank >= 4 and any("patch" in word for word in (*words.above, words.layer))):
            return rank > 2
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

    def _by_heads(self, words: Words, shape: tuple[int, ...]) -> bool:
        """Tells whether a matrix of an attention keeps its heads apart, as (in, heads, features) or the other way."""
        if words.kind not in ("query", "out") or len(shape) not in (3, 4) or words.of_experts:
            return False
        if len(shape) == 4:
            return True
        near = self._near[_attention(words)]
        outs = [one for its, one in near if its.kind == "out"]
        if outs and len(outs) < len(near):
            return any(one[1:] == out[:2] for its, one in near if its.kind == "query" for out in outs)
        bias = self._bias(words)
        if bias is not None:
            return len(bias) == (2 if words.kind == "query" else 1) and bias == shape[-len(bias) :]
        width = self._width(words)
        return width is not None and width == shape[0 if words.kind == "query" else -1] and width != shape[1]

    def _convolution(self, words: Words, shape: tuple[int, ...]) -> Layout:
        """Returns the layout of a filter: (..., in, out) if it is a `kernel`, otherwise (out, in, ...)."""
        bias, rank = self._bias(words), len(shape)
        if words.leaf == "kernel":
            return Layout("conv", len(bias) - 1 if bias else 0, rank - 2, rank - 1)
        stacked = 1 if bias and len(bias) == rank - 1 and rank > 3 and bias[:2] == shape[:2] and bias[0] == 1 else 0
        return Layout("conv", stacked, stacked + 1, stacked)


def _heads(words: Words, stacked: int) -> Layout:
    """Returns the layout of a matrix of an attention that keeps its heads apart."""
    if words.kind == "query":
        return Layout("column", stacked, stacked, stacked + 1, kept=stacked + 2)
    return Layout("row", stacked, stacked, stacked + 2, kept=stacked + 1)


def _attention(words: Words) -> tuple[str, ...]:
    """Returns the path of the attention that a matrix is in."""
    return words.holder if words.bare else words.holder[:-1]


def _prefixes(words: Words) -> Iterator[tuple[str, ...]]:
    """Yields the paths of all that an array is in, from the whole tree on."""
    return (words.holder[:count] for count in range(len(words.holder) + 1))
