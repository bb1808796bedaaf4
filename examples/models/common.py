"""What the models share: attention with a cache, and parameters from and for Hugging Face's state dicts."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import AttentionMask, Embedding, KVCache


M = TypeVar("M")
NewKeys = tuple[NamedArray, NamedArray] | None  # keys and values of new positions, where there is a cache to update


def attend(
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    cache: KVCache | None,
    *,
    window: int | None = None,
    **options: Any,
) -> tuple[NamedArray, NewKeys]:
    """Attends to a query's own position and those before it, `window` at most; with a cache, also to its keys."""
    if cache is None:
        keys, values = key.rename({"pos": "key_pos"}), value.rename({"pos": "key_pos"})
        mask = (
            AttentionMask.causal() if window is None else AttentionMask.causal() & AttentionMask.sliding_window(window)
        )
    else:
        keys, values, mask = cache.extend(key, value, "pos")
    attended = nym.nn.dot_product_attention("key_pos", "head_dim", query, keys, values, mask, QPos="pos", **options)
    return attended, None if cache is None else (key, value)


def rotate(
    query: NamedArray, key: NamedArray, cache: KVCache | None, theta: float, scaling: nym.nn.RotaryScaling | None
) -> tuple[NamedArray, NamedArray]:
    """Applies rotary embeddings to new queries and keys, whose positions follow those in the cache."""
    positions = None if cache is None else cache.positions(query.resolve_axis("pos"))
    query, key = (
        nym.nn.rotary_embedding(x, "pos", "head_dim", positions=positions, theta=theta, scaling=scaling)
        for x in (query, key)
    )
    return query, key


def embed_positions(embedding: Embedding, Pos: Axis, cache: KVCache | None = None) -> NamedArray:
    """Returns the embeddings of new positions, which follow those in the cache; they are the first ones without it."""
    if cache is not None:
        return embedding(nym.maximum(cache.positions(Pos), 0))
    table = nym.auto_sharded(embedding.weight)  # a slice, because the gradient of a lookup adds to rows in turn
    return table[embedding.Vocab, : Pos.size].rename({embedding.Vocab.name: Pos})


def read_rotary(config: Mapping[str, Any]) -> tuple[float, nym.nn.RotaryScaling | None]:
    """Returns `theta` and `scaling` of the rotary embeddings that a `config.json` describes, in its old or new form."""
    options = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = options.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = options.get("rope_type", options.get("type", "default"))  # the second name is that of old files
    factor: Any = options.get("factor")
    original = options.get("original_max_position_embeddings", config["max_position_embeddings"])
    match kind:
        case "default":
            return theta, None
        case "linear":
            return theta, nym.nn.LinearRotaryScaling(factor)
        case "dynamic":
            return theta, nym.nn.DynamicRotaryScaling(factor, config["max_position_embeddings"])
        case "llama3":
            low, high = options["low_freq_factor"], options["high_freq_factor"]
            return theta, nym.nn.Llama3RotaryScaling(factor, original, low, high)
        case "yarn":
            names = {"beta_fast", "beta_slow", "attention_factor", "truncate"}
            given = {name: options[name] for name in names if options.get(name) is not None}
            return theta, nym.nn.YarnRotaryScaling(factor, original, **given)
    raise ValueError(f"rotary embeddings of type {kind!r} are not supported")


def load_parameters(model: M, names: Mapping[str, str], state: Mapping[str, Any]) -> M:
    """Returns a model with the parameters of a state dict in place of its own, sharded by the active mapping.

    Args:
        model: The model, or its shapes as `equinox.filter_eval_shape` returns them.
        names: What fields are called in the state dict; other fields keep their names. In the name of stacked layers,
            "{}" is replaced by the number of a layer, a second one by that of an expert, and "{even}" and "{odd}" by
            the numbers of the layers of a pair. A name that ends in ".T" stands for the transposed array.
        state: Arrays by name, of NumPy, JAX or PyTorch. The first part of a name may be missing. Each has the axes of
            its field in the same order, several of which may be merged.
    """

    def load_field(path: Any, field: NamedArray) -> NamedArray:
        found = {name: to_numpy(find_parameter(state, name)) for name in make_hf_names(path, field, names)}
        sizes = find_layer_sizes(field.array.shape, len(found))
        for name, part in found.items():
            if part.size != math.prod(sizes) or not has_merged_sizes(part.shape, sizes):
                axes = ", ".join(f"{axis.name}: {axis.size}" for axis in field.axes[field.ndim - len(sizes) :])
                raise ValueError(f"{name!r} has shape {part.shape}, which does not fit axes ({axes})")
        loaded = NamedArray(np.stack(list(found.values())).reshape(tuple(field.shape)), field.names)
        return nym.shard(loaded) if nym.current_mapping() else jax.tree.map(jnp.asarray, loaded)

    return jax.tree_util.tree_map_with_path(load_field, model, is_leaf=is_named_array)


def find_layer_sizes(sizes: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Returns the sizes of one layer of stacked ones."""
    leading = next(count for count in range(len(sizes) + 1) if math.prod(sizes[:count]) == layers)
    return sizes[leading:]


def has_merged_sizes(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Returns whether one of two shapes merges neighbouring axes of the other, and so is in the same order."""
    few, many = ({1, *np.cumprod(each).tolist()} for each in sorted((shape, sizes), key=len))
    return few <= many


def save_parameters(model: Any, names: Mapping[str, str], like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state dict of a model, the inverse of `load_parameters`; `like` has arrays of the same shapes."""
    state: dict[str, np.ndarray] = {}
    for path, field in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_named_array):
        saved = make_hf_names(path, field, names)
        for name, part in zip(saved, np.asarray(field.array).reshape(len(saved), -1), strict=True):
            array = part.reshape(find_parameter(like, name).shape)
            state[name.removesuffix(".T")] = array.T if name.endswith(".T") else array
    return state


def make_hf_names(path: Any, field: NamedArray, names: Mapping[str, str]) -> list[str]:
    """Returns what a field is called in a state dict: `.blocks.stacked.norm.weight` may be "h.0.ln_1.weight" and on."""
    parts = [part for part in re.findall(r"\w+", jax.tree_util.keystr(path)) if part != "stacked"]
    name = ".".join(names.get(part, part) for part in parts)
    stacked = field.array.shape[: max(name.count("{}"), "{" in name)]
    return [name.format(*at, even=2 * sum(at), odd=2 * sum(at) + 1) for at in np.ndindex(stacked)]


def find_parameter(state: Mapping[str, Any], name: str) -> Any:
    if name.endswith(".T"):
        return find_parameter(state, name.removesuffix(".T")).T
    shorter = name.partition(".")[2]  # a model without a head is saved without the name of the model
    found = state.get(name, state.get(shorter))
    if found is None:
        raise ValueError(f"the state dict has neither {name!r} nor {shorter!r}; its first names are {list(state)[:3]}")
    return found


def is_named_array(x: Any) -> bool:
    return isinstance(x, NamedArray)


def to_numpy(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):  # a PyTorch tensor; NumPy has no bfloat16 of its own
        x = x.detach().cpu()
        return x.float().numpy() if "bfloat16" in str(x.dtype) else x.numpy()
    return np.asarray(x)


class Settings(dict[str, Any]):
    """A configuration, in which a missing setting is an error that says so."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"config.json has no {name!r}, which the model needs")


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the configuration and the state dict of a folder as `transformers` saves it."""
    from safetensors.numpy import load_file

    state: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    if not state:
        raise ValueError(f"there are no safetensors files in {folder}")
    return Settings(json.loads((folder / "config.json").read_text())), state
