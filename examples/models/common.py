"""What the models share: attention with a cache, and parameters from and for Hugging Face's state dicts."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import NamedArray
from axonym.nn import AttentionMask, KVCache


M = TypeVar("M")
NewKeys = tuple[NamedArray, NamedArray] | None  # keys and values of new positions, where there is a cache to update


def attend(
    query: NamedArray, key: NamedArray, value: NamedArray, cache: KVCache | None, window: int | None = None
) -> tuple[NamedArray, NewKeys]:
    """Attends to a query's own position and those before it, `window` at most; with a cache, also to its keys."""
    Pos = query.resolve_axis("pos")
    KeyPos = Pos.alias("key_pos")
    if cache is not None:
        keys, values, mask = cache.extend(key, value, Pos)
        return nym.nn.dot_product_attention(KeyPos.name, "head_dim", query, keys, values, mask), (key, value)
    mask = AttentionMask.causal()
    if window is not None:
        mask = mask & AttentionMask.sliding_window(window)
    keys, values = key.rename({Pos: KeyPos}), value.rename({Pos: KeyPos})
    return nym.nn.dot_product_attention(KeyPos, "head_dim", query, keys, values, mask), None


def update_cache(cache: KVCache | None, new: NewKeys) -> KVCache | None:
    """Returns the cache with the keys and values of new positions, of all layers at once."""
    return cache if cache is None or new is None else cache.update(*new, "pos")


def load_parameters(model: M, names: Mapping[str, str], state: Mapping[str, Any]) -> M:
    """Returns a model with the parameters of a state dict in place of its own, sharded by the active mapping.

    Args:
        model: The model, or its shapes as `equinox.filter_eval_shape` returns them.
        names: What fields are called in the state dict; other fields keep their names. In the name of stacked layers,
            "{}" is replaced by the number of a layer, and "{even}" and "{odd}" by those of the layers of a pair.
        state: Arrays by name, of NumPy, JAX or PyTorch. The first part of a name may be missing. Each has the axes of
            its field in the same order, several of which may be merged.
    """

    def load_field(path: Any, field: NamedArray) -> NamedArray:
        found = {name: to_numpy(find_parameter(state, name)) for name in make_hf_names(path, field, names)}
        for name, part in found.items():
            if part.size * len(found) != field.size:
                raise ValueError(f"{name!r} has shape {part.shape}, which does not fit axes {field.shape}")
        loaded = NamedArray(np.stack(list(found.values())).reshape(tuple(field.shape)), field.names)
        return nym.shard(loaded) if nym.current_mapping() else jax.tree.map(jnp.asarray, loaded)

    return jax.tree_util.tree_map_with_path(load_field, model, is_leaf=is_named_array)


def save_parameters(model: Any, names: Mapping[str, str], like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state dict of a model, the inverse of `load_parameters`; `like` has arrays of the same shapes."""
    state: dict[str, np.ndarray] = {}
    for path, field in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_named_array):
        saved = make_hf_names(path, field, names)
        parts = np.asarray(field.array).reshape(len(saved), -1)
        state |= {name: part.reshape(find_parameter(like, name).shape) for name, part in zip(saved, parts, strict=True)}
    return state


def make_hf_names(path: Any, field: NamedArray, names: Mapping[str, str]) -> list[str]:
    """Returns what a field is called in a state dict: `.blocks.stacked.norm.weight` may be "h.0.ln_1.weight" and on."""
    parts = [part for part in re.findall(r"\w+", jax.tree_util.keystr(path)) if part != "stacked"]
    name = ".".join(names.get(part, part) for part in parts)
    layers = field.shape[0] if "{" in name else 1
    return [name.format(i, even=2 * i, odd=2 * i + 1) for i in range(layers)]


def find_parameter(state: Mapping[str, Any], name: str) -> Any:
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


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the configuration and the state dict of a folder as `transformers` saves it."""
    from safetensors.numpy import load_file

    state: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    if not state:
        raise ValueError(f"there are no safetensors files in {folder}")
    return json.loads((folder / "config.json").read_text()), state
