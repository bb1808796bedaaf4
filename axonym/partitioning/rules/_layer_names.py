"""The part of an array in a model, by the names in its path that libraries and papers give their layers.

A path is read as lower-case words. The last one names the array in its layer, such as `kernel` and `weight`, or the
layer itself; the one before names the layer; numbers count layers of the same name.
"""

import re
from typing import Any, NamedTuple

from jax.tree_util import keystr

from ...named._cache import cached_plan


MATRICES = ("kernel", "weight", "weights", "w")
_BIASES = ("bias", "biases", "b")
_TABLES = ("embedding", "embeddings")
_NORM_LEAVES = ("scale", "gamma", "beta", "running_mean", "running_var", "mean", "var")
_WRAPPERS = ("value", "raw_value", "array")

_ARRAYS = (*MATRICES, *_BIASES, *_TABLES, *_NORM_LEAVES)

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
        (
            "query",
            rf"^{_ATTENTION}(q|k|v|qk|kv|qkv|query|key|value|query_key_value){_PROJECTION}$",
        ),
        ("query", r"^(c_attn|in_proj)$"),
        ("up", r"^(mlp_|ffn_|ff_|feed_forward_)?(gate|up|gate_up|gating)(_proj|_lin|_linear|_einsum)?$"),
        ("up", r"^(fc1|fc_in|c_fc|wi|w1|w3|lin1|linear1|linear_fc1|intermediate|dense_h_to_4h|w_?in|w_?up|w_?gate)$"),
        ("up", r"^weight_(ih|hh)$"),
        ("down", r"^(mlp_|ffn_|ff_|feed_forward_)?down(_proj|_lin|_linear)?$"),
        ("down", r"^(fc2|fc_out|w2|lin2|linear2|linear_fc2|dense_4h_to_h|w_?out|w_?down)$"),
        (
            "out",
            rf"^(mlp_)?{_ATTENTION}(o|out|output){_PROJECTION}$",
        ),
        ("out", r"^(c_)?(proj|projection)$|^attn_vec_einsum$"),
    )
)
_GENERIC = re.compile(r"^(dense|linear|lin|fc|layer|layers|einsum)$")
_ROUTER = re.compile(r"router|^gat(e|ing)$|expert_gate$")
_SCANNED = re.compile(r"(^|_)(layers?|blocks?)$|^h$|^scan|^stack")
_ABOVE_HEADS = (("predictions",), ("cls",), ("lm_head",))
_EXPERTS = re.compile(r"^experts?$|^(sparse_?)?moe|_moe|^block_sparse_moe$")


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


def parse_layer_name(path: tuple[Any, ...]) -> LayerName:
    """Returns the words of a path."""
    words = tuple(re.split(r"[./]", keystr(path, simple=True, separator="/").lower())) if path else ("",)
    while len(words) > 1 and words[-1] in _WRAPPERS and words[-2] in _ARRAYS:
        words = words[:-1]
    leaf = words[len(words) - 1]
    names = [name for word in words[:-1] if (name := _INDEX.sub("", word))]
    usual = leaf in _ARRAYS
    inside = usual or leaf.isdecimal()
    layer = (names[-1] if names else "") if inside else re.sub(r"_(kernel|weight|bias)$", "", leaf)
    above = tuple(names[:-1] if inside else names)
    return LayerName(words, leaf, layer, above, words[:-1], _find_kind(leaf, layer, above, usual))


def get_layer_number(name: LayerName) -> tuple[tuple[str, ...], int] | None:
    """Returns the path that a layer with a number shares with its neighbours, and the number; None if it has none."""
    found = _INDEX.search(name.holder[-1]) if name.holder and not name.is_array else None
    if found is None:
        return None
    return (*name.holder[:-1], _INDEX.sub("", name.holder[-1]), name.leaf), int(found[1])


def is_scanned(name: LayerName) -> bool:
    """Returns whether a path leads through layers without numbers, so that all of them are in one array."""
    pairs = zip(name.path, name.path[1:], strict=False)
    return any(_SCANNED.search(one) and not _INDEX.search(after) for one, after in pairs)


def find_kinds_by_neighbours(found: list[tuple[LayerName, tuple[int, ...]]]) -> list[tuple[LayerName, tuple[int, ...]]]:
    """Returns the arrays of a tree with the kinds that follow from their neighbours: routers, and pairs of LoRA."""
    ranks = {name.path: len(shape) for name, shape in found}
    parents = {
        name.path[:at] for name, _ in found for at, word in enumerate(name.path) if word in ("expert", "experts")
    }

    def find_kind(name: LayerName) -> str:
        if name.layer == "gate" and (name.holder if name.is_array else name.holder[:-1]) in parents:
            return "router"
        pair = [ranks.get((*name.holder, leaf), 0) for leaf in ("a", "b")]
        return "linear" if name.leaf in ("a", "b") and min(pair) > 1 else name.kind

    return [(name._replace(kind=find_kind(name)), shape) for name, shape in found]


def get_bias_paths(name: LayerName) -> tuple[tuple[str, ...], ...]:
    names = list(_BIASES)
    if name.is_array:
        names = [f"{name.leaf}_bias", re.sub(r"_(kernel|weight|w)$|_proj$", "", name.leaf) + "_bias"]
        names += [f"b{name.leaf[1:]}"] if name.leaf.startswith("w") else []
        names += [name.leaf.replace("weight", "bias"), "bias"] if name.leaf.startswith("weight_") else []
    return tuple((*name.holder, leaf) for leaf in names)


@cached_plan
def _find_kind(leaf: str, layer: str, above: tuple[str, ...], usual: bool) -> str:
    if leaf in _BIASES or leaf.endswith("_bias"):
        return "bias"
    if leaf in _NORM_LEAVES or _KINDS[0][1].search(layer):
        return "norm"
    if _ROUTER.search(layer) and (layer != "gate" or any(map(_EXPERTS.search, above))):
        return "router"
    if (layer in ("output", "proj_out") and not above) or (layer == "decoder" and above[-1:] in _ABOVE_HEADS):
        return "head"
    found = _find_kind_of_word(layer) or _find_kind_of_word(_INDEX.sub("", layer))
    if found or not _GENERIC.search(layer):
        return found or ("embedding" if leaf in _TABLES else "conv" if "conv" in layer else "linear" if usual else "")
    parent = above[-1] if above else ""
    inside = _find_kind_of_word(parent) if parent not in ("embedding", "embeddings") else ""
    attention = layer == "dense" and parent in ("attention", "attn", "self_attention", "self_attn")
    return "out" if attention else inside if inside in ("query", "up", "down", "out", "head") else "linear"


def _find_kind_of_word(word: str) -> str:
    """Returns the kind of a layer by one word, empty if it is unknown."""
    return next((kind for kind, pattern in _KINDS if pattern.search(word)), "")
