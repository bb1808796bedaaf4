"""State dicts as programs written for Haliax make and customise them."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym.haliax as hax
from axonym.haliax._src.state_dict import default_eqx_module_from_state_dict, default_eqx_module_to_state_dict
from axonym.haliax.state_dict import (
    ModuleWithStateDictSerialization,
    from_state_dict,
    from_torch_compatible_state_dict,
    load_state_dict,
    save_state_dict,
    to_state_dict,
    to_torch_compatible_state_dict,
    with_prefix,
)


Layers, Embed, Heads, HeadDim = hax.make_axes(layers=2, embed=4, heads=2, head_dim=3)


class Attention(ModuleWithStateDictSerialization):
    query: hax.nn.Linear
    norm: hax.nn.LayerNorm
    name: str = eqx.field(static=True, default="attention")

    @staticmethod
    def init(*, key: Any) -> "Attention":
        return Attention(hax.nn.Linear.init(Embed, (Heads, HeadDim), key=key), hax.nn.LayerNorm.init((Heads, HeadDim)))

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"query": "q_proj", "norm": None}


class Prefixed(Attention):
    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        return default_eqx_module_to_state_dict(self, with_prefix(prefix, "inner"))

    def from_state_dict(self, state_dict: Any, prefix: str | None = None) -> "Prefixed":
        return default_eqx_module_from_state_dict(self, state_dict, with_prefix(prefix, "inner"))


def test_modules_rename_their_fields_also_where_they_are_stacked(getkey):
    stack = hax.nn.Stacked.init(Layers, Attention)(key=jax.random.split(getkey(), 2))
    state = to_torch_compatible_state_dict({"h": stack}, prefix="model")
    assert state["model.h.1.q_proj.weight"].shape == (6, 4) and state["model.h.0.bias"].shape == (6,)
    assert len(state) == 8
    other = hax.nn.Stacked.init(Layers, Attention)(key=jax.random.split(getkey(), 2))
    loaded = from_torch_compatible_state_dict({"h": other}, {**state, "more": 1}, prefix="model")["h"]
    assert eqx.tree_equal(loaded, stack) and isinstance(loaded.stacked.query.weight, hax.NamedArray)
    assert eqx.tree_equal(other.from_state_dict(stack.to_state_dict()), stack)


def test_methods_of_a_module_may_be_overridden(getkey):
    base = Attention.init(key=getkey())
    module = Prefixed(base.query, base.norm)
    state = to_state_dict([module])
    assert "0.inner.q_proj.bias" in state and from_state_dict([module], state)[0].name == "attention"
    with pytest.raises(ValueError, match=r"'0\.inner\.weight' is missing"):
        from_state_dict([module], {key: x for key, x in state.items() if key != "0.inner.weight"})


def test_weights_are_exported_with_the_scale_of_mup(getkey):
    reparam = hax.nn.Linear.output_reparam()
    layer = hax.nn.Linear.init(Embed, Heads, key=getkey(), reparam_cls=reparam)
    assert layer.reparam.active_scale == 0.25
    state = layer.to_state_dict()
    assert np.allclose(state["weight"], 0.25 * layer.weight.array)
    assert np.allclose(layer.from_state_dict(state).weight.array, layer.weight.array)


def test_state_dicts_are_saved_without_what_is_none(tmp_path):
    save_state_dict({"weight": np.ones((2, 3), np.float32).T, "bias": None}, tmp_path / "model.safetensors")
    loaded = load_state_dict(tmp_path / "model.safetensors")
    assert list(loaded) == ["weight"] and loaded["weight"].shape == (3, 2)
    with pytest.raises(FileNotFoundError, match="none"):
        load_state_dict(tmp_path / "none.safetensors")
