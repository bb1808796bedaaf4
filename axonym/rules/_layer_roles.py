"""The role of an array in its layer, and which of its dimensions are input and output: from names, sizes, neighbours.

Names describe what a layer does, not how libraries store it: `kernel` is (in, out), `weight` of Equinox and PyTorch is
(out, in), `weight` of GPT-2 is (in, out), and stacked layers have another leading dimension. So sizes decide first: the
size of the bias is the size of the output, and the width of the model is the size of its norms.

A path is read as lower-case words. The last one names the array in its layer, such as `kernel` and `weight`, or the
layer itself; the one before names the layer; numbers count layers of the same name.
"""

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from jax.tree_util import keystr

from .._ground.caches import cached_plan
from ._sharding_rule import RuleLeaf


# The usual names of arrays in their layer:
MATRICES = ("kernel", "weight", "weights", "w")
_BIASES = ("bias", "biases", "b")
_TABLES = ("embedding", "embeddings")
_NORM_LEAVES = ("scale", "gamma", "beta", "running_mean", "running_var", "mean", "var")
_ARRAYS = (*MATRICES, *_BIASES, *_TABLES, *_NORM_LEAVES)
_WRAPPERS = ("value", "raw_value", "array")  # attributes of variables, which follow these names

# The names of layers, and of what encloses them:
_INDEX = re.compile(r"(?:^|_)(\d+)$")
_PROJECTION = r"(_?(proj|projection|lin|linear|dense|layer|einsum|a_proj|b_proj|a_proj_with_mqa))?"
_ATTENTION = r"(to_|attn_|attention_|self_|c_|w)?"
_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("norm", r"norm|(^|_)(ln|bn)(_|$)"),
        ("position", r"(^|_)wpe$|(^|_)pos(ition)?(s|al)?_?(emb|enc|table)|embed\w*_pos|^(pos|positions?)$"),
        ("position", r"^cls$|^(cls|class|mask|dist)_token$"),
        (
            "head",
            r"(^|_)heads?$|^(classifier|unembed(ding)?|embed_out|logits(_\w+)?|score|output_layer|output_projection)$",
        ),
        (
            "embedding",
            r"^(wte|shared|tables?)$|^(?!patch)(\w*_)?emb(s|ed|eds|edder|edding|eddings)?(_(tokens|table|in))?$",
        ),
        ("query", rf"^{_ATTENTION}(q|k|v|qk|kv|qkv|query|key|value|query_key_value){_PROJECTION}$"),
        ("query", r"^(c_attn|in_proj)$"),
        ("up", r"^(mlp_|ffn_|ff_|feed_forward_)?(gate|up|gate_up|gating)(_proj|_lin|_linear|_einsum)?$"),
        ("up", r"^(fc1|fc_in|c_fc|wi|w1|w3|lin1|linear1|linear_fc1|intermediate|dense_h_to_4h|w_?in|w_?up|w_?gate)$"),
        ("up", r"^weight_(ih|hh)$"),
        ("down", r"^(mlp_|ffn_|ff_|feed_forward_)?down(_proj|_lin|_linear)?$"),
        ("down", r"^(fc2|fc_out|w2|lin2|linear2|linear_fc2|dense_4h_to_h|w_?out|w_?down)$"),
        ("out", rf"^(mlp_)?{_ATTENTION}(o|out|output){_PROJECTION}$"),
        ("out", r"^(c_)?(proj|projection)$|^attn_vec_einsum$"),
    )
)
_GENERIC = re.compile(r"^(dense|linear|lin|fc|layer|layers|einsum)$")
_ROUTER = re.compile(r"router|^gat(e|ing)$|expert_gate$")
_SCANNED = re.compile(r"(^|_)(layers?|blocks?)$|^h$|^scan|^stack")
_ABOVE_HEADS = (("predictions",), ("cls",), ("lm_head",))
_EXPERTS = re.compile(r"^experts?$|^(sparse_?)?moe|_moe|^block_sparse_moe$")

_ROLES = {"query": "column", "up": "column", "out": "row", "down": "row"}
_VECTOR_KINDS = ("norm", "bias", "position", "")  # whose arrays of any rank are laid out as vectors
_PER_HEAD = ("q_norm", "k_norm", "query_norm", "key_norm")  # norms of the size of a head, not of the width
_LARGEST_FILTER = 16  # the size of a patch; a longer last dimension is that of a matrix

Shape: TypeAlias = tuple[int, ...]

_Counts: TypeAlias = dict[tuple[str, ...], collections.Counter[Any]]
"""For the path of a module how often something occurs inside it."""


class LayerName(NamedTuple):
    """A path as words: the names of an array, its layer, and the enclosing modules.

    Args:
        path: All words, with their numbers.
        leaf: The last one.
        layer: The name of the layer without its number: the leaf itself if that is not a usual name of an array.
        above: The words of the enclosing modules, without numbers.
        holder: The path of the module that holds the arrays of the layer.
        kind: The kind of layer by its names, `"linear"` for one without a special name, empty if it is unknown.
    """

    path: tuple[str, ...]
    leaf: str
    layer: str
    above: tuple[str, ...]
    holder: tuple[str, ...]
    kind: str

    @property
    def is_array(self) -> bool:
        """Returns whether the layer is the array itself, as in `{"q_proj": array}`."""
        return self.leaf not in _ARRAYS

    @property
    def is_expert(self) -> bool:
        """Returns whether it belongs to the experts of a mixture."""
        return any(map(_EXPERTS.search, self.above)) and not any("shared" in word for word in self.above)


def _parse_layer_name(path: tuple[Any, ...]) -> LayerName:
    """Returns the words of a path."""
    words = tuple(re.split(r"[./]", keystr(path, simple=True, separator="/").lower())) if path else ("",)
    while len(words) > 1 and words[-1] in _WRAPPERS and words[-2] in _ARRAYS:
        words = words[:-1]
    leaf = words[len(words) - 1]  # for `words[-1]`, Pyright would take the tuple for an empty one
    names = [name for word in words[:-1] if (name := _INDEX.sub("", word))]
    has_usual_leaf = leaf in _ARRAYS
    if has_usual_leaf or leaf.isdecimal():
        layer = names[-1] if names else ""
        above = tuple(names[:-1])
    else:  # the layer is the array itself
        layer = re.sub(r"_(kernel|weight|bias)$", "", leaf)
        above = tuple(names)
    return LayerName(words, leaf, layer, above, words[:-1], _find_kind(leaf, layer, above, has_usual_leaf))


def _get_layer_number(name: LayerName) -> tuple[tuple[str, ...], int] | None:
    """Returns the path that a layer with a number shares with its neighbours, and the number; None if it has none."""
    number_match = _INDEX.search(name.holder[-1]) if name.holder and not name.is_array else None
    if number_match is None:
        return None
    return (*name.holder[:-1], _INDEX.sub("", name.holder[-1]), name.leaf), int(number_match[1])


def is_scanned(name: LayerName) -> bool:
    """Returns whether a path leads through layers without numbers, so that all of them are in one array."""
    pairs = zip(name.path, name.path[1:], strict=False)
    return any(_SCANNED.search(word) and not _INDEX.search(after) for word, after in pairs)


def _find_kinds_by_neighbours(arrays: list[tuple[LayerName, Shape]]) -> list[tuple[LayerName, Shape]]:
    """Returns the arrays of a tree with the kinds that follow from their neighbours: routers, and pairs of LoRA."""
    ranks = {name.path: len(shape) for name, shape in arrays}
    mixtures = {
        name.path[:depth] for name, _ in arrays for depth, word in enumerate(name.path) if word in ("expert", "experts")
    }

    def find_kind(name: LayerName) -> str:
        if name.layer == "gate" and _get_parent(name) in mixtures:
            return "router"
        pair = [ranks.get((*name.holder, leaf), 0) for leaf in ("a", "b")]
        return "linear" if name.leaf in ("a", "b") and min(pair) > 1 else name.kind

    return [(name._replace(kind=find_kind(name)), shape) for name, shape in arrays]


def _get_bias_paths(name: LayerName) -> tuple[tuple[str, ...], ...]:
    """Returns the paths at which the bias of a layer may be."""
    names = list(_BIASES)
    if name.is_array:
        names = [f"{name.leaf}_bias", re.sub(r"_(kernel|weight|w)$|_proj$", "", name.leaf) + "_bias"]
        if name.leaf.startswith("w"):  # `w1` and `b1`
            names.append(f"b{name.leaf[1:]}")
        if name.leaf.startswith("weight_"):  # `weight_ih` and `bias_ih`
            names += [name.leaf.replace("weight", "bias"), "bias"]
    return tuple((*name.holder, leaf) for leaf in names)


@cached_plan
def _find_kind(leaf: str, layer: str, above: tuple[str, ...], has_usual_leaf: bool) -> str:
    if leaf in _BIASES or leaf.endswith("_bias"):
        return "bias"
    if leaf in _NORM_LEAVES or _KINDS[0][1].search(layer):
        return "norm"
    if _ROUTER.search(layer) and (layer != "gate" or any(map(_EXPERTS.search, above))):
        return "router"
    if (layer in ("output", "proj_out") and not above) or (layer == "decoder" and above[-1:] in _ABOVE_HEADS):
        return "head"
    kind = _find_kind_of_word(layer) or _find_kind_of_word(_INDEX.sub("", layer))
    if kind:
        return kind
    if not _GENERIC.search(layer):
        if leaf in _TABLES:
            return "embedding"
        if "conv" in layer:
            return "conv"
        return "linear" if has_usual_leaf else ""
    # Of a layer with a generic name, such as `dense`, the enclosing module tells the kind.
    parent = above[-1] if above else ""
    if layer == "dense" and parent in ("attention", "attn", "self_attention", "self_attn"):
        return "out"
    kind = "" if parent in ("embedding", "embeddings") else _find_kind_of_word(parent)
    return kind if kind in ("query", "up", "down", "out", "head") else "linear"


def _find_kind_of_word(word: str) -> str:
    """Returns the kind of a layer by one word, empty if it is unknown."""
    return next((kind for kind, pattern in _KINDS if pattern.search(word)), "")


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
        return math.prod(size for dim, size in enumerate(shape) if dim not in self.leading)

    def swap_first_two(self) -> "Layout":
        """Returns the layout of the array with its first two dimensions swapped."""
        swapped: dict[str, Any] = {}
        for field in ("inputs", "outputs", "leading", "stacked", "experts", "head_size"):
            value = getattr(self, field)
            if isinstance(value, tuple):
                swapped[field] = tuple(1 - dim if dim < 2 else dim for dim in value)
            elif value is not None:
                swapped[field] = 1 - value if value < 2 else value
        return self._replace(**swapped)


def find_layouts(leaves: Sequence[RuleLeaf]) -> list[Layout | None]:
    """Returns the layout of each leaf of a tree, None for unknown roles and for leaves that are not arrays."""
    shapes = [leaf.shape for leaf in leaves]
    layers = _Layers([(leaf.path, shape) for leaf, shape in zip(leaves, shapes, strict=True) if shape is not None])
    layouts = layers.make_layouts()
    return [None if shape is None else next(layouts) for shape in shapes]


class _Layers:
    """The layers of a tree, from the paths and shapes of its arrays."""

    def __init__(self, pairs: list[tuple[tuple[Any, ...], Shape]]) -> None:
        """Counts norms, sizes and stacks around each layer, and finds the layers that follow one another."""
        arrays = _find_kinds_by_neighbours([(_parse_layer_name(path), shape) for path, shape in pairs])
        self._second_stacks = _find_second_stacks(arrays)
        # Layers that are stacked along the second dimension are moved to the first, and back in `make_layouts`.
        self._arrays = [
            (name, (shape[1], shape[0], *shape[2:]) if self._is_stacked_second(name, shape) else shape)
            for name, shape in arrays
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
        if len(shape) < 2 or not self._second_stacks:
            return False
        return any(self._second_stacks.get(prefix) == shape[1] for prefix in _get_prefixes(name))

    def _add_array(self, name: LayerName, shape: Shape) -> None:
        if name.kind in ("query", "out") and len(shape) > 1:
            self._attention[_get_parent(name)][name.kind, shape] += 1
        if _is_norm(name) and shape and shape[-1] > 1:
            for prefix in _get_prefixes(name):
                self._norms[prefix][shape[-1]] += 1
                if len(shape) == 2 and shape[0] > 1:
                    self._stacks[prefix][shape[0]] += 1
        if name.kind not in _VECTOR_KINDS and len(shape) > 1:
            self._biased |= dict.fromkeys(_get_bias_paths(name), (name, shape))
            for prefix in _get_prefixes(name):
                self._sizes[prefix].update(shape[-2:])
            numbered = _get_layer_number(name)
            if name.kind == "linear" and numbered is not None:
                chain, number = numbered
                self._chains[chain].add(number)

    def _add_vote(self, name: LayerName, shape: Shape) -> None:
        """Counts for the neighbours of a layer whether it is stored as (in, out), if that is certain."""
        if len(shape) < 2 or not (name.kind in _ROLES or name.kind == "linear"):
            return
        is_input_first = self._infer_input_first(name, shape)
        if is_input_first is not None:
            # Arrays of one name vote together: a tree may have `kernel` and `weight`, stored differently.
            leaf = name.leaf if name.leaf in MATRICES else ""
            for prefix in _get_prefixes(name):
                self._votes[*prefix, leaf] += 1 if is_input_first else -1

    def make_layouts(self) -> Iterator[Layout | None]:
        """Yields the layout of each array, in order; None if its role is unknown."""
        for name, shape in self._arrays:
            layout = self._find_layout(name, shape)
            was_moved = len(shape) > 1 and self._is_stacked_second(name, (shape[1], shape[0]))
            yield layout.swap_first_two() if was_moved and layout is not None else layout

    def _find_layout(self, name: LayerName, shape: Shape) -> Layout | None:
        if not shape:
            return Layout("scalar", 0, 0)
        if name.kind in _VECTOR_KINDS or len(shape) == 1:
            layout = self._make_vector_layout(name, shape)
        elif self._is_filter(name, shape):
            return self._make_filter_layout(name, shape)
        elif name.kind == "embedding":
            dims = len(shape) - 2, len(shape) - 1
            inputs, outputs = dims if self._has_head else dims[::-1]
            layout = Layout("embedding", inputs, outputs, tuple(range(len(shape) - 2)))
        elif name.layer.endswith("_einsum") and name.kind in ("query", "out") and len(shape) > 2:
            layout = _make_einsum_layout(name, len(shape))
        elif self._keeps_heads(name, shape):
            layout = _make_heads_layout(name, shape)
        else:
            layout = self._make_matrix_layout(name, shape)
        if layout is not None and 0 in layout.leading and self._is_stacked(name, shape):
            return layout._replace(stacked=(0,))
        return layout

    def _is_stacked(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether norms, the bias or names prove that layers are stacked along the first dimension."""
        if self._count_stack(name) == shape[0] or is_scanned(name):
            return True
        bias = self._get_bias(name)
        has_stacked_bias = bias is not None and len(bias) > 1 and bias[0] == shape[0]
        return has_stacked_bias or (name.kind == "norm" and len(shape) == 2)

    def _count_stack(self, name: LayerName) -> int | None:
        """Returns the number of stacked layers around an array, which follows from norms."""
        counts = (self._stacks[prefix] for prefix in _get_prefixes(name) if prefix in self._stacks)
        return next((count.most_common(1)[0][0] for count in counts), None)

    def _make_vector_layout(self, name: LayerName, shape: Shape) -> Layout | None:
        """Returns the layout of an array that scales or shifts the last axis, which may be stacked."""
        if not name.kind and len(shape) > 1:
            return None
        last = len(shape) - 1
        vector_dim = last if shape[last] > 1 else max(range(len(shape)), key=shape.__getitem__)
        role = name.kind if name.kind in _VECTOR_KINDS and name.kind else "vector"
        if role == "bias" and len(shape) > 1 and name.is_expert:
            return Layout(role, vector_dim, vector_dim, tuple(range(last - 1)), experts=last - 1)
        matrix = self._biased.get(name.path) if role == "bias" else None
        matrix_layout = self._find_layout(*matrix) if matrix is not None else None
        bias_of = "" if matrix_layout is None else matrix_layout.role
        if matrix is not None and last > 0 and self._keeps_heads(*matrix):
            return Layout(role, vector_dim, last - 1, tuple(range(last - 1)), bias_of=bias_of)
        leading = (0,) if role in ("norm", "bias") and last > 0 and vector_dim == last else ()
        return Layout(role, vector_dim, vector_dim, leading, bias_of=bias_of)

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
        numbered = _get_layer_number(name)
        if numbered is not None:
            chain, number = numbered
            numbers = sorted(self._chains[chain])
            if len(numbers) > 1:
                return "column" if numbers.index(number) % 2 == 0 else "row"
        return "row" if inputs > outputs else "column"

    def _is_input_first(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether a matrix is (in, out), by its name and sizes, its neighbours, or the usual convention."""
        is_input_first = self._infer_input_first(name, shape)
        if is_input_first is not None:
            return is_input_first
        if name.kind != "head":
            leaf = name.leaf if name.leaf in MATRICES else ""
            for prefix in _get_prefixes(name):
                votes = self._votes[*prefix, leaf]
                if votes:
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

    def _get_bias(self, name: LayerName) -> Shape | None:
        """Returns the shape of the bias of a layer, None if it has none."""
        return next((self._shapes[path] for path in _get_bias_paths(name) if path in self._shapes), None)

    def _is_filter(self, name: LayerName, shape: Shape) -> bool:
        """Returns whether an array is a filter, by its name, its bias (one number for each output), or its sizes."""
        rank, bias = len(shape), self._get_bias(name)
        embeds_patches = any("patch" in word for word in (*name.above, name.layer))
        is_patch_kernel = name.kind == "embedding" and name.leaf == "kernel"
        if name.kind == "conv" or (rank >= 4 and (embeds_patches or is_patch_kernel)):
            return rank > 2
        if rank >= 4 and name.leaf == "weight" and name.kind in (*_ROLES, "linear") and not name.is_expert:
            if len(set(shape[2:])) == 1 and shape[2] <= _LARGEST_FILTER:
                return True
        if name.kind != "linear" or rank < 3 or bias is None:
            return False
        return len(bias) == 1 or (len(bias) == rank - 1 and set(bias[2 - rank :]) == {1})

    def _find_width(self, name: LayerName) -> int | None:
        """Returns the width of the model around an array: the size of near norms, or else of most matrices."""
        for counts in (self._norms, self._sizes):
            for prefix in _get_prefixes(name):
                sizes = counts[prefix].most_common(2) if prefix in counts else []
                is_tie = len(sizes) == 2 and sizes[0][1] == sizes[1][1]
                if sizes and not is_tie:
                    return sizes[0][0]
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
        matrices = [(kind, matrix_shape) for kind, matrix_shape in near if len(matrix_shape) == 3]
        if all(matrix_shape[0] == self._count_stack(name) for _, matrix_shape in matrices):
            return False
        outs = {matrix_shape[:2] for kind, matrix_shape in matrices if kind == "out"}
        queries = {matrix_shape[1:] for kind, matrix_shape in matrices if kind == "query"}
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
        has_bias_of_one_layer = bias is not None and len(bias) == rank - 1 and bias[:2] == shape[:2] and bias[0] == 1
        stacked = 1 if has_bias_of_one_layer and rank > 3 else 0
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


def _find_second_stacks(arrays: list[tuple[LayerName, Shape]]) -> dict[tuple[str, ...], int]:
    """Returns where layers are stacked along the second dimension, and how many.

    It follows from norms whose first dimension is the width, the size of norms that are not stacked.
    """
    widths = {shape[0] for name, shape in arrays if _is_norm(name) and len(shape) == 1}
    return {
        _get_parent(name): shape[1]
        for name, shape in arrays
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
