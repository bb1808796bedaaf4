"""State dicts: keys, layouts, what a module customises, and errors that list everything that does not fit."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import state_dict as sd

from ..comparing import allclose


Layers, Embed, Heads, HeadDim = nym.make_axes(layers=2, embed=8, heads=4, head_dim=2)
NAMES = {"norm": "ln", "out": None}


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    out: nym.nn.Linear
    rate: float
    scale: jax.Array

    @classmethod
    def init(cls, *, key: Any) -> Any:
        out = nym.nn.Linear.init((Heads, HeadDim), Embed, key=key)
        return cls(nym.nn.RmsNorm.init((Heads, HeadDim)), out, 0.1, jax.random.normal(key, (3,)))


class Renamed(Block):
    """A block with other names for its fields, whose scale is written as its inverse."""

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        inverse = eqx.tree_at(lambda block: block.scale, self, 1 / self.scale)
        return sd.write_fields(inverse, prefix, NAMES)

    def from_state_dict(self, state_dict: Any, prefix: str | None = None) -> "Renamed":
        loaded = sd.read_fields(self, state_dict, prefix, NAMES)
        return eqx.tree_at(lambda block: block.scale, loaded, 1 / loaded.scale)


def make_model(key: Any) -> Any:
    stack = nym.nn.Stacked.init(Layers, Block)(key=key)
    norms = nym.nn.BlockSeq.init(Layers, nym.nn.LayerNorm)(Embed)
    return {"blocks": stack, "norms": norms, "more": [None, jnp.arange(3), np.ones(2)], "act": jax.nn.relu}


def test_keys_are_the_names_of_fields_and_the_numbers_of_layers(getkey):
    model = make_model(getkey())
    state = sd.to_state_dict(model, "model")
    layer = ["norm.weight", "out.weight", "out.bias", "scale"]
    assert set(state) == {
        *(f"model.blocks.{at}.{name}" for at in range(2) for name in layer),
        *(f"model.norms.{at}.{name}" for at in range(2) for name in ("weight", "bias")),
        *("model.more.1", "model.more.2"),
    }
    assert (state["model.blocks.1.out.weight"] == model["blocks"].stacked.out.weight["layers", 1].array).all()
    assert state["model.blocks.0.norm.weight"].shape == (4, 2)
    assert eqx.tree_equal(sd.from_state_dict(model, state, "model"), model)


def test_layout_of_torch_merges_axes_and_is_read_onto_a_mesh(mesh, getkey):
    mapping = {"heads": "model", "embed": "data"}
    with jax.set_mesh(mesh), nym.axis_mapping(mapping):
        model = nym.named_jit(make_model)(getkey())
        state = sd.to_torch_compatible_state_dict(model)
        assert state["blocks.0.out.weight"].shape == (8, 8) and state["blocks.1.norm.weight"].shape == (8,)
        assert all(type(array) is np.ndarray for array in state.values())
        loaded = sd.from_torch_compatible_state_dict(eqx.filter_eval_shape(make_model, jax.random.key(1)), state)
        weight, before = loaded["blocks"].stacked.out.weight, model["blocks"].stacked.out.weight
        assert weight.names == before.names and weight.array.sharding.is_equivalent_to(before.array.sharding, 4)
        assert eqx.tree_equal(*(jax.device_get(eqx.filter(one, eqx.is_array)) for one in (loaded, model)))


def test_layers_may_be_kept_as_they_are(getkey):
    layer = Block.init(key=getkey())
    state = sd.to_torch_compatible_state_dict(layer, flatten=False)
    assert state["out.weight"].shape == (8, 4, 2)
    assert eqx.tree_equal(sd.from_torch_compatible_state_dict(layer, state, unflatten=False), layer)


def test_two_methods_of_a_module_customise_its_keys_and_values(getkey):
    stack = nym.nn.Stacked.init(Layers, Renamed)(key=getkey())
    state = sd.to_state_dict([stack])
    assert set(state) == {f"0.{at}.{name}" for at in range(2) for name in ("ln.weight", "weight", "bias", "scale")}
    assert allclose(state["0.1.scale"], 1 / stack.stacked.scale[1])
    loaded = sd.from_state_dict([stack], state)[0]
    assert allclose(loaded.stacked.scale, stack.stacked.scale)
    assert eqx.tree_equal(loaded.stacked.out, stack.stacked.out)
    with pytest.raises(ValueError, match=r"^the state dict does not fit:\n  '0.1.ln.weight' is missing$"):
        sd.from_state_dict([stack], {key: x for key, x in state.items() if key != "0.1.ln.weight"})


def test_everything_that_does_not_fit_is_listed_at_once(getkey):
    model = make_model(getkey())
    state = sd.to_numpy_state_dict(model)
    state["blocks.1.out.wieght"] = state.pop("blocks.1.out.weight")
    state["blocks.0.norm.weight"] = state["blocks.0.norm.weight"].T
    state["norms.1.bias"] = state["norms.1.bias"].astype(np.float16)
    state["more.1"] = state["more.1"][:2]
    with pytest.raises(ValueError, match="does not fit") as caught:
        sd.from_state_dict(model, state)
    assert str(caught.value).splitlines() == [
        "the state dict does not fit:",
        "  'blocks.0.norm.weight' has shape (2, 4), its field is (heads: 4, head_dim: 2)",
        "  'blocks.1.out.weight' is missing; did you mean 'blocks.1.out.wieght'?",
        "  'more.1' has shape (2,), its field is an array of shape (3,)",
        "  'norms.1.bias' is float16, its field is float32; `dtypes='cast'` converts it",
        "  'blocks.1.out.wieght' has no field",
    ]
    with pytest.raises(ValueError, match="'29' has no field\n  and 10 more"):
        sd.from_state_dict({}, {str(at + 10): np.ones(1) for at in range(30)})


def test_options_allow_other_keys_and_dtypes():
    norm, half = nym.nn.RmsNorm.init(Embed), np.full(8, 0.5, np.float16)
    state = {"norm.weight": half, "norm.bias": half, "other": half}
    with pytest.raises(ValueError, match=r"'norm\.bias' has no field$"):
        sd.from_state_dict(norm, state, "norm", dtypes="keep")
    for dtypes, dtype in (("cast", jnp.float32), ("keep", jnp.float16)):
        loaded = sd.from_state_dict(norm, state, "norm", strict=False, dtypes=dtypes)
        assert loaded.weight.dtype == dtype and (loaded.weight.array == 0.5).all()
    with pytest.raises(ValueError, match="`dtypes` is 'check', 'cast' or 'keep', not 'other'"):
        sd.from_state_dict(norm, state, dtypes="other")  # pyright: ignore[reportArgumentType]


def test_arrays_without_a_key_of_their_own_are_refused():
    x = nym.ones(Embed)
    assert list(sd.to_state_dict(x, "x")) == ["x"] and sd.from_state_dict(x, {"x": x.array}, "x").names == x.names
    for call in (lambda: sd.to_state_dict(x), lambda: sd.from_state_dict(x, {})):
        with pytest.raises(ValueError, match="has no key of its own in a state dict; give a `prefix`"):
            call()
    with pytest.raises(ValueError, match=r"two arrays would have the key 'a\.b'"):
        sd.to_state_dict({"a": {"b": x}, "a.b": x})


def test_numbered_layers_are_stacked_and_split():
    state = {"h.0.w": np.ones(2), "h.1.w": np.zeros(2), "h.w": np.ones(1), "other.0.w": np.ones(3)}
    with pytest.raises(ValueError, match=r"have the key 'h\.w'; rename the one that is not of a layer"):
        sd.stack_state_dict(state, "h")
    stacked = sd.stack_state_dict({key: x for key, x in state.items() if key != "h.w"}, "h")
    assert {key: x.shape for key, x in stacked.items()} == {"h.w": (2, 2), "other.0.w": (3,)}
    split = sd.unstack_state_dict(stacked, "h")
    assert list(split) == ["h.0.w", "h.1.w", "other.0.w"] and (split["h.1.w"] == 0).all()
    assert isinstance(sd.stack_state_dict({"0.w": jnp.ones(2)})["w"], jax.Array)
    assert list(sd.stack_state_dict({"0.0.w": np.ones(2), "0.w": np.ones(2)})) == ["0.w", "w"]
    with pytest.raises(ValueError, match=r"'h\.\*\.w' cannot be stacked: there is none of layer 0, but one of 1"):
        sd.stack_state_dict({"h.1.w": np.ones(2)}, "h")
    with pytest.raises(ValueError, match=r"'\*\.w' cannot be stacked: it has the shapes \(2,\), \(3,\)"):
        sd.stack_state_dict({"0.w": np.ones(2), "1.w": np.ones(3)})
    with pytest.raises(ValueError, match=r"'h\.w' has no axes, so that it cannot be split into layers"):
        sd.unstack_state_dict({"h.w": np.ones(())}, "h")
