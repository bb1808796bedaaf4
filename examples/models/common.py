"""What the models share: attention with a cache, and parameters from and for Hugging Face's state dicts."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import equinox as eqx
import jax

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
    Pos: str = "pos",
    window: int | None = None,
    **options: Any,
) -> tuple[NamedArray, NewKeys]:
    """Attends to a query's own position and those before it, `window` at most; with a cache, also to its keys."""
    if cache is None:
        keys, values = key.rename({Pos: "key_pos"}), value.rename({Pos: "key_pos"})
        mask = (
            AttentionMask.causal() if window is None else AttentionMask.causal() & AttentionMask.sliding_window(window)
        )
    else:
        keys, values, mask = cache.extend(key, value, Pos)
    attended = nym.nn.dot_product_attention("key_pos", "head_dim", query, keys, values, mask, QPos=Pos, **options)
    return attended, None if cache is None else (key, value)


def rotate(
    query: NamedArray,
    key: NamedArray,
    cache: KVCache | None,
    theta: float,
    scaling: nym.nn.RotaryScaling | None,
    *,
    Pos: str = "pos",
) -> tuple[NamedArray, NamedArray]:
    """Applies rotary embeddings to new queries and keys, whose positions follow those in the cache."""
    positions = None if cache is None else cache.positions(query.resolve_axis(Pos))
    query, key = (
        nym.nn.rotary_embedding(x, Pos, "head_dim", positions=positions, theta=theta, scaling=scaling)
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


class Pretrained(eqx.Module):
    """A module whose fields are called in state dicts as `NAMES` in its file says; other fields keep their names."""

    @classmethod
    def from_hf(cls, state: Mapping[str, Any] | Path, config: Mapping[str, Any]) -> Self:
        """Returns a model with the parameters of `transformers`, sharded by the active mapping.

        Args:
            state: The folder, of which each device reads its slices; or arrays by name, of NumPy, JAX or PyTorch.
            config: What the `config.json` of the model says.
        """
        model, module = cast(Any, cls), sys.modules[cls.__module__]
        shapes = eqx.filter_eval_shape(model.init, module.Config.from_hf(config), key=jax.random.key(0))
        return load_parameters(shapes, state)

    def to_saved(self) -> Any:
        """Returns a tree with the arrays of the module in the axes that they have in files."""
        return self

    def from_saved(self, saved: Any) -> Self:
        """Returns the module with the arrays of a tree as `to_saved` returns it."""
        return saved

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        return nym.state_dict.write_fields(self.to_saved(), prefix, find_names(self))

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        names = find_names(self)
        if prefix is None:  # a model without a head is saved without the name of the model
            names = {field: drop_model_name(name, state_dict) for field, name in names.items()}
        shapes = eqx.filter_eval_shape(type(self).to_saved, self)
        return self.from_saved(nym.state_dict.read_fields(shapes, state_dict, prefix, names))


def find_names(module: Any) -> dict[str, str]:
    return sys.modules[type(module).__module__].NAMES


def drop_model_name(name: str, state_dict: Mapping[str, Any]) -> str:
    return name if any(key.startswith(name) for key in state_dict) else name.partition(".")[2]


def number_layers(pair: str | None) -> tuple[str, str]:
    """Returns the keys of the two layers of a pair, whose own key ends in its number."""
    before, _, number = (pair or "").rpartition(".")
    return f"{before}.{2 * int(number)}", f"{before}.{2 * int(number) + 1}"


def load_parameters(model: M, state: Mapping[str, Any] | Path) -> M:
    """Returns a model with the parameters of a folder or a state dict; names in it that have no field are ignored."""
    if isinstance(state, Path):
        return nym.state_dict.load_safetensors(model, state, strict=False, dtypes="keep")
    arrays = {name: to_numpy(array) for name, array in state.items()}
    return nym.state_dict.from_torch_compatible_state_dict(model, arrays, strict=False, dtypes="keep")


def to_numpy(x: Any) -> Any:
    if hasattr(x, "detach"):  # a PyTorch tensor; NumPy has no bfloat16 of its own
        x = x.detach().cpu()
        return x.float().numpy() if "bfloat16" in str(x.dtype) else x.numpy()
    return x


class Settings(dict[str, Any]):
    """A configuration, in which a missing setting is an error that says so."""

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"config.json has no {name!r}, which the model needs")


def read_config(folder: Path) -> Settings:
    """Returns the configuration in a folder as `transformers` saves it."""
    return Settings(json.loads((folder / "config.json").read_text()))
