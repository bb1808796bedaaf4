"""`haliax.state_dict`: trees as dicts of plain arrays, in Haliax's layout or in that of PyTorch."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import equinox as eqx
import jax
import numpy as np

from ..state_dict import (
    add_prefix,
    flatten_modules,
    from_state_dict as read_tree,
    from_torch_compatible_state_dict as read_torch_tree,
    read_fields,
    to_numpy_state_dict as write_numpy,
    to_state_dict as to_state_dict,
    unflatten_modules,
    write_fields,
)
from ..state_dict._from_state_dict import read_state_dict
from ..state_dict._to_state_dict import map_children
from ._adapt import rename_parameters
from .jax_utils import is_jax_array_like


T = TypeVar("T")

StateDict: TypeAlias = dict[str, Any]

flatten_modules_for_export = rename_parameters(flatten_modules, "t=tree")
to_numpy_state_dict = rename_parameters(write_numpy, "model=tree")
unflatten_modules_from_export = rename_parameters(unflatten_modules, "t=tree")


def default_eqx_module_to_state_dict(mod: eqx.Module, prefix: str | None = None) -> StateDict:
    """Returns the arrays of the fields of a module by name, whatever its own method `to_state_dict` does.

    Its `_state_dict_key_map`, if it has one, gives other names for fields.

    Example:
        >>> import axonym.haliax as hax
        >>> norm = hax.nn.RmsNorm.init(hax.Axis("embed", 2), use_bias=False)
        >>> list(hax.state_dict.default_eqx_module_to_state_dict(norm, "norm"))
        ['norm.weight']
    """
    return write_fields(mod, prefix, _get_key_map(mod))


def default_eqx_module_from_state_dict(mod: T, state_dict: Mapping[str, Any], prefix: str | None = None) -> T:
    """Returns a module with the arrays of a state dict, whatever its own method `from_state_dict` does.

    Example:
        >>> import axonym.haliax as hax
        >>> import numpy as np
        >>> norm = hax.nn.RmsNorm.init(hax.Axis("embed", 2), use_bias=False)
        >>> state = {"norm.weight": np.zeros(2, np.float32)}
        >>> hax.state_dict.default_eqx_module_from_state_dict(norm, state, "norm").weight.array
        Array([0., 0.], dtype=float32)
    """
    with read_state_dict(state_dict, prefix, strict=False, dtypes="keep") as reader:
        return read_fields(mod, reader, prefix, _get_key_map(mod))


def _get_key_map(mod: Any) -> dict[str, str | None]:
    return mod._state_dict_key_map() if hasattr(mod, "_state_dict_key_map") else {}


class ModuleWithStateDictSerialization(eqx.Module):
    """A module that may override what its fields are called in a state dict, and how it is written and read.

    Example:
        >>> import axonym.haliax as hax
        >>> class Attention(hax.state_dict.ModuleWithStateDictSerialization):
        ...     query: hax.NamedArray
        ...
        ...     def _state_dict_key_map(self):
        ...         return {"query": "q_proj.weight"}
        >>> list(hax.state_dict.to_state_dict(Attention(hax.ones({"embed": 2})), "attn"))
        ['attn.q_proj.weight']
    """

    def _state_dict_key_map(self) -> dict[str, str | None]:
        """Returns other names for fields; None leaves out the name of a field."""
        return {}

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Returns the arrays of the module by name."""
        return default_eqx_module_to_state_dict(self, prefix)

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> Self:
        """Returns the module with the arrays of a state dict."""
        return default_eqx_module_from_state_dict(self, state_dict, prefix)

    def flatten_for_export(self) -> Self:
        """Returns the module with merged axes, as PyTorch has them; by default its fields are flattened."""
        return map_children(flatten_modules, self)

    def unflatten_from_export(self, template: Any) -> Self:
        """Returns the module with the axes of a template."""
        return map_children(unflatten_modules, self, template)


def with_prefix(prefix: str | None, leaf: str | None) -> str | None:
    """Joins two parts of a key by a dot; None if both are None.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.state_dict.with_prefix("blocks.0", "weight")
        'blocks.0.weight'
    """
    return None if prefix is None and leaf is None else add_prefix(prefix, leaf)


def from_state_dict(tree: T, state_dict: Mapping[str, Any], prefix: str | None = None) -> T:
    """Returns a tree with the arrays of a state dict, in their dtype; keys without a field are ignored.

    Example:
        >>> import axonym.haliax as hax
        >>> import numpy as np
        >>> tree = {"bias": hax.ones({"embed": 2})}
        >>> hax.state_dict.from_state_dict(tree, {"bias": np.zeros(2, np.float32), "other": None})["bias"].array
        Array([0., 0.], dtype=float32)
    """
    return read_tree(tree, state_dict, prefix, strict=False, dtypes="keep")


def to_torch_compatible_state_dict(
    t: Any,
    *,
    flatten: bool = True,
    prefix: str | None = None,
    filter: bool | Callable[[Any], bool] = is_jax_array_like,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree by name, with the axes of each layer merged as PyTorch has them.

    Args:
        t: The tree.
        flatten: Whether to merge axes.
        prefix: First part of all keys.
        filter: Which leaves to write.

    Returns:
        NumPy arrays by key.

    Example:
        >>> import axonym.haliax as hax
        >>> layer = hax.nn.LayerNorm.init(hax.make_axes(heads=2, head_dim=4))
        >>> hax.state_dict.to_torch_compatible_state_dict(layer, prefix="norm")["norm.weight"].shape
        (8,)
    """
    tree = flatten_modules(t) if flatten else t
    return write_numpy(eqx.filter(tree, filter), prefix)


def from_torch_compatible_state_dict(
    t: T, state_dict: Mapping[str, Any], *, unflatten: bool = True, prefix: str | None = None
) -> T:
    """Returns a tree with the arrays of a state dict of PyTorch; keys without a field are ignored.

    Example:
        >>> import axonym.haliax as hax
        >>> layer = hax.nn.LayerNorm.init(hax.make_axes(heads=2, head_dim=4))
        >>> state = hax.state_dict.to_torch_compatible_state_dict(layer)
        >>> hax.state_dict.from_torch_compatible_state_dict(layer, state).weight.shape
        {'heads': 2, 'head_dim': 4}
    """
    return read_torch_tree(t, state_dict, prefix, unflatten=unflatten, strict=False, dtypes="keep")


def save_state_dict(state_dict: Mapping[str, Any], path: Any) -> None:
    """Writes the arrays of a state dict to a file of safetensors, which needs the extra `axonym[io]`.

    In a program of several processes, the first one writes.

    Example:
        >>> import axonym.haliax as hax
        >>> import numpy as np
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hax.state_dict.save_state_dict({"bias": np.zeros(2)}, f"{folder}/model.safetensors")
        ...     hax.state_dict.load_state_dict(f"{folder}/model.safetensors")
        {'bias': array([0., 0.])}
    """
    from safetensors.numpy import save_file

    arrays = {key: np.ascontiguousarray(array) for key, array in state_dict.items() if array is not None}
    if jax.process_index() == 0:
        save_file(arrays, Path(path), metadata={"format": "pt"})


def load_state_dict(path: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of safetensors, which needs the extra `axonym[io]`.

    Example:
        >>> import axonym.haliax as hax
        >>> import numpy as np
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hax.state_dict.save_state_dict({"bias": np.ones(2)}, f"{folder}/model.safetensors")
        ...     list(hax.state_dict.load_state_dict(f"{folder}/model.safetensors"))
        ['bias']
    """
    from safetensors.numpy import load_file

    return load_file(Path(path))
