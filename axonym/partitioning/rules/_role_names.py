"""What the path of an array says about its part in a model: the names that libraries and papers give their layers.

A path is read as lower-case words. The last one names the array in its layer, as `kernel` and `weight` do, or the layer
itself; the one before names the layer; numbers say which of several layers it is.
"""

import functools
import re
from typing import Any, NamedTuple

from jax.tree_util import keystr


MATRICES = ("kernel", "weight", "weights", "w")
BIASES = ("bias", "biases", "b")
TABLES = ("embedding", "embeddings")
NORM_LEAVES = ("scale", "gamma", "beta", "running_mean", "running_var", "mean", "var")
WRAPPERS = ("value", "raw_value", "array")

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


class Words(NamedTuple):
    """A path as words: those of the modules that the array is in, and what names it there.

    Args:
        whole: All words, with their numbers.
        leaf: The last one.
        layer: The name of the layer without its number: the leaf itself if that is no usual name of an array.
        above: The words of what the layer is in, without numbers.
        holder: The path of what holds the arrays of the layer.
        kind: What the names say, `"linear"` for a layer of no special name, empty if they say nothing.
    """

    whole: tuple[str, ...]
    leaf: str
    layer: str
    above: tuple[str, ...]
    holder: tuple[str, ...]
    kind: str

    @property
    def bare(self) -> bool:
        """Whether the layer is the array itself, as in `{"q_proj": array}`."""
        return self.leaf not in (*MATRICES, *BIASES, *TABLES, *NORM_LEAVES)

    @property
    def of_experts(self) -> bool:
        """Whether it belongs to the experts of a mixture."""
        return any(map(_EXPERTS.search, self.above)) and not any("shared" in word for word in self.above)


def words_of(path: tuple[Any, ...]) -> Words:
    """Returns the words of a path."""
    whole = tuple(re.split(r"[./]", keystr(path, simple=True, separator="/").lower())) if path else ("",)
    while len(whole) > 1 and whole[-1] in WRAPPERS and whole[-2] in (*MATRICES, *BIASES, *TABLES, *NORM_LEAVES):
        whole = whole[:-1]
    leaf = whole[len(whole) - 1]
    names = [name for word in whole[:-1] if (name := _INDEX.sub("", word))]
    usual = leaf in (*MATRICES, *BIASES, *TABLES, *NORM_LEAVES)
    inside = usual or leaf.isdecimal()
    layer = (names[-1] if names else "") if inside else re.sub(r"_(kernel|weight|bias)$", "", leaf)
    above = tuple(names[:-1] if inside else names)
    return Words(whole, leaf, layer, above, whole[:-1], _kind(leaf, layer, above, usual))


def numbered(words: Words) -> tuple[tuple[str, ...], int] | None:
    """Returns what a layer with a number shares with its neighbours, and its number; None if it has none."""
    found = _INDEX.search(words.holder[-1]) if words.holder and not words.bare else None
    if found is None:
        return None
    return (*words.holder[:-1], _INDEX.sub("", words.holder[-1]), words.leaf), int(found[1])


def is_scanned(words: Words) -> bool:
    """Tells whether a path leads through layers that have no numbers, so that all of them are in one array."""
    pairs = zip(words.whole, words.whole[1:], strict=False)
    return any(_SCANNED.search(one) and not _INDEX.search(after) for one, after in pairs)


def in_neighbourhood(found: list[tuple[Words, tuple[int, ...]]]) -> list[tuple[Words, tuple[int, ...]]]:
    """Returns the arrays of a tree with the kinds that only those beside them tell: routers, and pairs of LoRA."""
    ranks = {words.whole: len(shape) for words, shape in found}
    beside = {
        words.whole[:at] for words, _ in found for at, word in enumerate(words.whole) if word in ("expert", "experts")
    }

    def kind(words: Words) -> str:
        if words.layer == "gate" and (words.holder if words.bare else words.holder[:-1]) in beside:
            return "router"
        pair = [ranks.get((*words.holder, leaf), 0) for leaf in ("a", "b")]
        return "linear" if words.leaf in ("a", "b") and min(pair) > 1 else words.kind

    return [(words._replace(kind=kind(words)), shape) for words, shape in found]


def bias_names(words: Words) -> tuple[tuple[str, ...], ...]:
    """Returns the paths that the bias of a layer may have."""
    names = list(BIASES)
    if words.bare:
        names = [f"{words.leaf}_bias", re.sub(r"_(kernel|weight|w)$|_proj$", "", words.leaf) + "_bias"]
        names += [f"b{words.leaf[1:]}"] if words.leaf.startswith("w") else []
        names += [words.leaf.replace("weight", "bias"), "bias"] if words.leaf.startswith("weight_") else []
    return tuple((*words.holder, name) for name in names)


@functools.lru_cache(maxsize=4096)
def _kind(leaf: str, layer: str, above: tuple[str, ...], usual: bool) -> str:
    """Returns what the names say."""
    if leaf in BIASES or leaf.endswith("_bias"):
        return "bias"
    if leaf in NORM_LEAVES or _KINDS[0][1].search(layer):
        return "norm"
    if _ROUTER.search(layer) and (layer != "gate" or any(map(_EXPERTS.search, above))):
        return "router"
    if (layer in ("output", "proj_out") and not above) or (layer == "decoder" and above[-1:] in _ABOVE_HEADS):
        return "head"
    found = _by_name(layer) or _by_name(_INDEX.sub("", layer))
    if found or not _GENERIC.search(layer):
        return found or ("embedding" if leaf in TABLES else "conv" if "conv" in layer else "linear" if usual else "")
    parent = above[-1] if above else ""
    inside = _by_name(parent) if parent not in ("embedding", "embeddings") else ""
    attention = layer == "dense" and parent in ("attention", "attn", "self_attention", "self_attn")
    return "out" if attention else inside if inside in ("query", "up", "down", "out", "head") else "linear"


def _by_name(word: str) -> str:
    """Returns what the name of a layer says by itself."""
    return next((kind for kind, pattern in _KINDS if pattern.search(word)), "")
