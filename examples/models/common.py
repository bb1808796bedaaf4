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
from axonym.nn import KVCache


M = TypeVar("M")
NewKeys = tuple[NamedArray, NamedArray] | None  # keys and values of new positions, where there is a cache to update


def attend(
    query: NamedArray, key: NamedArray, value: NamedArray, cache: KVCache | None, window: int | None = None
) -> tuple[NamedArray, NewKeys]:
    """Attends to a query's own position and those before it, at most `window` in all; with a cache, also to its keys."""
    Pos = query.resolve_axis("pos")
    KeyPos = Pos.alias("key_pos")
    if cache is not None:
        keys, values, mask = cache.extend(key, value, Pos)
        return nym.nn.dot_product_attention(KeyPos.name, "head_dim", query, keys, values, mask), (key, value)
    mask = nym.nn.causal_mask(Pos, KeyPos)
    if window is not None:
        mask = mask & ~nym.nn.causal_mask(Pos, KeyPos, q_start=-window)
    keys, values = key.rename({Pos: KeyPos}), value.rename({Pos: KeyPos})
    return nym.nn.dot_product_attention(KeyPos, "head_dim", query, keys, values, mask), None


def update_cache(cache: KVCache | None, new: NewKeys) -> KVCache | None:
    """Returns the cache with the keys and values of new positions, of all layers at once."""
    return cache if cache is None or new is None else cache.update(*new, "pos")


def load_parameters(model: M, names: Mapping[str, str], state: Mapping[str, Any]) -> M:
    """Returns a model with the parameters of a state dict in place of its own, sharded by the active mapping.

    Args:
        model: The model, or its shapes as `equinox.filter_eval_shape` returns them.
        names: What fields are called in the state dict; "{}" stands for the number of a layer, and other fields keep
            their names. A parameter of the state dict has the same axes as the field, but several may be merged.
        state: Arrays by name, of NumPy, JAX or PyTorch. The first part of a name may be missing.
    """

    def load(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, NamedArray):
            return leaf
        name = make_hf_name(path, names)
        stacked = [to_numpy(find_parameter(state, name.format(i))) for i in range(leaf.shape[0] if "{}" in name else 1)]
        array = np.stack(stacked) if "{}" in name else stacked[0]
        if array.size != leaf.size:
            raise ValueError(f"{name!r} has shape {array.shape}, which does not fit {leaf.axes}")
        loaded = NamedArray(array.reshape(tuple(leaf.shape)), leaf.names)
        return nym.shard(loaded) if nym.current_mapping() else jax.tree.map(jnp.asarray, loaded)

    return jax.tree_util.tree_map_with_path(load, model, is_leaf=lambda leaf: isinstance(leaf, NamedArray))


def save_parameters(model: Any, names: Mapping[str, str], like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state dict from which `load_parameters` makes the model, with the shapes that `like` has."""
    state: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda leaf: isinstance(leaf, NamedArray)):
        name, array = make_hf_name(path, names), np.asarray(leaf.array)
        layers = {name.format(i): part for i, part in enumerate(array)} if "{}" in name else {name: array}
        state |= {key: part.reshape(find_parameter(like, key).shape) for key, part in layers.items()}
    return state


def make_hf_name(path: Any, names: Mapping[str, str]) -> str:
    """Returns the name of a field in a state dict: `.blocks.stacked.norm.weight` may be "h.{}.ln_1.weight"."""
    fields = re.findall(r"\w+", jax.tree_util.keystr(path))
    return ".".join(filter(None, (names.get(field, field) for field in fields if field != "stacked")))


def find_parameter(state: Mapping[str, Any], name: str) -> Any:
    shorter = name.partition(".")[2]  # a model without a head is saved without the name of the model
    found = state.get(name, state.get(shorter))
    if found is None:
        raise ValueError(f"the state dict has neither {name!r} nor {shorter!r}; its first names are {list(state)[:3]}")
    return found


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
