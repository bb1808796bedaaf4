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
from ..refusals import refusal


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
        *(f"model.blocks.{index}.{name}" for index in range(2) for name in layer),
        *(f"model.norms.{index}.{name}" for index in range(2) for name in ("weight", "bias")),
        *("model.more.1", "model.more.2"),
    }
    assert (state["model.blocks.1.out.weight"] == model["blocks"].stacked.out.weight["layers", 1].array).all()
    assert state["model.blocks.0.norm.weight"].shape == (4, 2)
    assert eqx.tree_equal(sd.from_state_dict(model, state, "model"), model)
    kept = sd.to_torch_compatible_state_dict(model, "model", flatten=False)
    assert eqx.tree_equal(sd.from_torch_compatible_state_dict(model, kept, "model", unflatten=False), model)


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
        assert eqx.tree_equal(*(jax.device_get(eqx.filter(item, eqx.is_array)) for item in (loaded, model)))


def test_two_methods_of_a_module_customise_its_keys_and_values(getkey):
    stack = nym.nn.Stacked.init(Layers, Renamed)(key=getkey())
    state = sd.to_state_dict([stack])
    assert set(state) == {f"0.{i}.{name}" for i in range(2) for name in ("ln.weight", "weight", "bias", "scale")}
    assert allclose(state["0.1.scale"], 1 / stack.stacked.scale[1])
    assert allclose(sd.from_state_dict([stack], state)[0].stacked.scale, stack.stacked.scale)
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
        sd.from_state_dict({}, {str(index + 10): np.ones(1) for index in range(30)})


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


BIG, SMALL = np.array([2**40 + 7, -1]), np.array([2**31 - 1, -(2**31)])
SHAPE = jax.ShapeDtypeStruct
INTEGERS = [SHAPE((2,), np.int64), nym.NamedArray(SHAPE((2,), np.int64), "a"), jnp.zeros(2, int)]


def read_state_dict(like: Any, array: np.ndarray, folder: Any, dtypes: Any) -> Any:
    return sd.from_torch_compatible_state_dict({"x": like}, {"x": array}, dtypes=dtypes)["x"]


def read_file(like: Any, array: np.ndarray, folder: Any, dtypes: Any) -> Any:
    sd.save_safetensors({"x": array}, folder)
    return sd.load_safetensors({"x": like}, folder, dtypes=dtypes)["x"]


READERS = [read_state_dict, read_file]


@pytest.mark.parametrize("read", READERS)
def test_integers_of_64_bits_keep_their_values_or_are_refused(read, tmp_path):
    message = (
        r"'x' has int64 elements from -1 to 1099511627783, which do not fit int32; convert them first, or set `jax_en"
    )
    for like in INTEGERS:
        for dtypes in ("check", "cast", "keep") if like.dtype == np.int64 else ("cast", "keep"):
            with pytest.raises(ValueError, match=message):
                read(like, BIG, tmp_path, dtypes)
            loaded = read(like, SMALL, tmp_path, dtypes)
            assert loaded.dtype == jnp.int32 and np.asarray(loaded).tolist() == SMALL.tolist()
    for like in (BIG, nym.NamedArray(BIG, "a")):
        loaded = read(like, BIG, tmp_path, "check")
        assert type(loaded) is type(like) and loaded.dtype == np.int64 and loaded.tolist() == BIG.tolist()
    with pytest.raises(ValueError, match="'x' has int64 elements from -1 to 300, which do not fit int8; convert them"):
        read(np.zeros(2, np.int8), np.array([300, -1]), tmp_path, "cast")
    with pytest.raises(ValueError, match="'x' has float32 elements from nan to nan, which do not fit int32"):
        read(jnp.zeros(2, int), np.array([1, np.nan], np.float32), tmp_path, "cast")
    with jax.enable_x64(True):
        assert read(SHAPE((2,), np.int64), BIG, tmp_path, "check").tolist() == BIG.tolist()


@pytest.mark.parametrize("read", READERS)
def test_floats_of_64_bits_are_rounded_only_on_request(read, tmp_path):
    array = np.array([0.1, 1e-9])
    message = (
        "'x' is float64, and JAX has no float64 without `jax_enable_x64`; set that option, or give its field float32"
    )
    for like, dtypes in ((SHAPE((2,), np.float64), "check"), (SHAPE((2,), np.float64), "cast"), (jnp.ones(2), "keep")):
        with pytest.raises(ValueError, match=message):
            read(like, array, tmp_path, dtypes)
    assert read(jnp.ones(2), array, tmp_path, "cast").tolist() == array.astype(np.float32).tolist()
    assert read(np.ones(2), array, tmp_path, "check").tolist() == array.tolist()


@pytest.mark.parametrize("read", READERS)
def test_no_number_becomes_infinite(read, tmp_path):
    lowest = np.finfo(np.float32).min  # as in masks
    for values, saved, dtype in [
        ([1e300, 1], np.float64, np.float32),
        ([lowest, 1], np.float32, jnp.bfloat16),
        ([1e5, 1], jnp.bfloat16, np.float16),
        ([1e5, np.inf], np.float32, np.float16),
        ([100_000, 1], np.int32, np.float16),
        ([449, 470], np.float32, jnp.float8_e4m3fn),
    ]:
        array = np.array(values).astype(saved)
        for like in (np.zeros(2, dtype), jnp.zeros(2, dtype), nym.zeros({"a": 2}, dtype)):
            with pytest.raises(ValueError, match=f"'x' has {array.dtype} elements from .* do not fit {like.dtype};"):
                read(like, array, tmp_path, "cast")
    for values, dtype in (([np.inf, np.nan], np.float16), ([65504, 65519], np.float16), ([3e38, 0.1], jnp.bfloat16)):
        array = np.array(values, np.float32)
        np.testing.assert_array_equal(read(jnp.zeros(2, dtype), array, tmp_path, "cast"), array.astype(dtype))


def nest(tree: Any, depth: int) -> Any:
    for _ in range(depth):
        tree = {"a": tree}
    return tree


def test_deep_trees_work_or_are_refused(tmp_path):
    tree, key = nest({"x": jnp.ones(2)}, 400), "a." * 400 + "x"
    state = sd.to_torch_compatible_state_dict(tree)
    sd.save_safetensors(tree, tmp_path)
    for loaded in (sd.from_torch_compatible_state_dict(tree, state), sd.load_safetensors(tree, tmp_path)):
        assert list(sd.to_state_dict(loaded)) == [key]
    assert list(sd.to_state_dict(sd.unflatten_modules(sd.flatten_modules(tree), tree))) == [key]
    deep = nest({"x": np.ones(2)}, 900)  # JAX itself takes 1000
    for call in (sd.to_state_dict, sd.flatten_modules, lambda tree: sd.from_state_dict(tree, {})):
        with pytest.raises(
            ValueError, match=r"the tree is nested too deeply for \d+ calls of Python; nest it less, or"
        ):
            call(deep)
    for call in (sd.unflatten_modules, lambda *trees: sd.save_safetensors(deep, tmp_path), sd.load_safetensors):
        with pytest.raises(ValueError, match="the tree is nested too deeply for"):
            call(deep, deep if call is sd.unflatten_modules else tmp_path)


SD: Any = sd  # without types, because every call here is wrong
NORM = nym.nn.RmsNorm.init(Embed)
STATE = {"weight": np.ones(8, np.float32)}
NOWHERE = "/dev/null/folder"
NO_STATE = "a state dict is a dict of arrays by key, not "
NO_PREFIX = "a prefix or name in a state dict is a string or None, not 3"
NO_FOLDER = "takes a tree first and then the path of a folder, not "
WRONG_CALLS = {
    f"`save_safetensors` {NO_FOLDER}{{'weight': f32": (TypeError, lambda: SD.save_safetensors("folder", STATE)),
    "writes to a folder, and '": (NotADirectoryError, lambda: SD.save_safetensors(STATE, __file__)),
    "`flatten` must be True or False, not 3": (TypeError, lambda: SD.save_safetensors(STATE, NOWHERE, flatten=3)),
    NO_PREFIX: (TypeError, lambda: SD.save_safetensors(STATE, NOWHERE, prefix=3)),
    f"`load_safetensors` {NO_FOLDER}{{'weight': f32": (TypeError, lambda: SD.load_safetensors("folder", STATE)),
    "`strict` must be True or False": (TypeError, lambda: SD.load_safetensors(STATE, NOWHERE, strict="no")),
    f"{NO_STATE}RmsNorm": (TypeError, lambda: SD.from_state_dict(STATE, NORM)),
    "the tree comes before it": (TypeError, lambda: SD.from_torch_compatible_state_dict(STATE, NORM)),
    "'weight' is a named array": (ValueError, lambda: SD.from_state_dict(NORM, {"weight": NORM.weight})),
    "`unflatten` must be": (TypeError, lambda: SD.from_torch_compatible_state_dict(NORM, STATE, unflatten=1)),
    "the keys of a state dict are strings, not 3": (TypeError, lambda: SD.from_state_dict(NORM, {3: 1})),
    "is no array of numbers, but 'abc'": (ValueError, lambda: SD.from_state_dict(NORM, {"weight": "abc"})),
    "'weight' cannot become an array": (ValueError, lambda: SD.from_state_dict(NORM, {"weight": [[1], [1, 2]]})),
    "'weight' has dtype object, which JAX lacks; convert it": (
        ValueError,
        lambda: SD.from_state_dict(NORM, {"weight": np.array([None] * 8)}, dtypes="cast"),
    ),
    "`names` goes from fields to their": (TypeError, lambda: SD.read_fields(NORM, STATE, names=3)),
    "to their names in the state dict, not 3": (TypeError, lambda: SD.write_fields(NORM, names=3)),
    f"{NO_STATE}'h'": (TypeError, lambda: SD.stack_state_dict("h", STATE)),
    "template does not have the structure of the tree: 3": (ValueError, lambda: SD.unflatten_modules(NORM, 3)),
    "3 is in place of {'b'": (ValueError, lambda: SD.unflatten_modules({"a": {"b": 1}}, {"a": 3})),
}


def test_wrong_arguments_are_errors_that_name_them():
    for message, (error, call) in WRONG_CALLS.items():
        with refusal(message, error):
            call()


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
