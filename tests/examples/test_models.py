"""The models in `examples/models`: equal to `transformers` in value, gradient and greedy text, sharded and not."""

import functools
import importlib
import itertools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import axonym as nym


RECORDED = Path(os.environ.get("AXONYM_RECORDED_MODELS", Path(__file__).parent / "models"))
COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}
DECODERS = {
    "gpt2": "GPT2",
    "llama": "Llama",
    "qwen3": "Qwen3",
    "gemma2": "Gemma2",
    "mixtral": "Mixtral",
    "whisper": "Whisper",
}
FAMILIES = {**DECODERS, "bert": "BERT", "vit": "ViT"}


IS_PARITY = "AXONYM_RECORDED_MODELS" in os.environ  # in `make parity`, which has more time
GENERATED = 64 if IS_PARITY else 24  # tokens
THOROUGH = [] if IS_PARITY else [pytest.mark.thorough]


def list_sharded(families: Iterable[str], *kept: tuple[str, str]) -> list[Any]:
    """Returns pairs of a family and a kind of mesh, of which only these are run each time."""
    pairs = itertools.product(families, ("auto", "explicit"))
    return [pair if pair in kept else pytest.param(*pair, marks=THOROUGH) for pair in pairs]


class Family(NamedTuple):
    """A model with parameters of `transformers`, its inputs, and what `transformers` computes from them."""

    name: str
    module: Any
    load: Callable[[dict[str, np.ndarray]], Any]
    parameters: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    inputs: list[nym.NamedArray]
    arrays: dict[str, np.ndarray]
    output: np.ndarray
    generated: np.ndarray | None


AXES = {
    "pixel_values": ("batch", "channels", "height", "width"),
    "input_features": ("batch", "mel", "frames"),
    "input_ids": ("batch", "pos"),
    "decoder_input_ids": ("batch", "pos"),
    "attention_mask": ("batch", "pos"),
    "token_type_ids": ("batch", "pos"),
}


@functools.cache
def read_family(name: str) -> Family:
    with safe_open(RECORDED / f"{name}.safetensors", framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}
        config = json.loads(file.metadata()["config"])
    groups: dict[str, dict[str, np.ndarray]] = {"input": {}, "parameter": {}, "gradient": {}}
    for key in [key for key in tensors if "/" in key]:
        group, _, rest = key.partition("/")
        groups[group][rest] = tensors.pop(key)
    module = importlib.import_module(f"models.{name}")
    load = functools.partial(getattr(module, FAMILIES[name]).from_hf, config=config)
    given = groups["input"]
    if "attention_mask" in given:
        given["attention_mask"] = given["attention_mask"] == 1
    inputs = [nym.NamedArray(given[key], axes) for key, axes in AXES.items() if key in given]
    return Family(
        name,
        module,
        load,
        groups["parameter"],
        groups["gradient"],
        inputs,
        given,
        tensors["output"],
        tensors.get("generated"),
    )


@functools.cache
def load_whole(name: str, what: str = "parameters") -> Any:
    """Returns the parameters or gradients of a family on one device, loaded once, because that compiles programs."""
    family = read_family(name)
    with jax.set_mesh(None):
        return family.load(getattr(family, what))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return read_family(request.param)


def compute_loss(model: Any, *inputs: nym.NamedArray) -> Any:
    """Returns the weighted mean whose gradients are recorded, and the output."""
    output = model(*inputs)
    weights = nym.cos(nym.arange(nym.Axis("all", output.size)).astype(jnp.float32)).array.reshape(tuple(output.shape))
    return (output * nym.NamedArray(weights, output.names)).mean().scalar(), output


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Compares trees, each leaf by the norm of its difference relative to its own norm."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        difference = np.linalg.norm(np.asarray(one) - np.asarray(other))
        bound = tolerance * np.linalg.norm(other) + 1e-6  # a bias of keys changes nothing: its gradient is rounding
        assert difference < bound, f"{jax.tree_util.keystr(path)} differs by {difference:.1e}, more than {bound:.1e}"


@pytest.mark.parametrize("family", FAMILIES if IS_PARITY else ["bert"], indirect=True)
def test_output_without_a_mesh_is_that_of_transformers(family: Family):
    output = jax.jit(lambda model, inputs: model(*inputs))(load_whole(family.name), family.inputs)
    np.testing.assert_allclose(output.array, family.output, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "mesh"), list_sharded(FAMILIES, ("mixtral", "explicit"), ("vit", "auto")), indirect=True
)
def test_sharded_output_and_gradients_are_those_of_transformers(family: Family, mesh: Any):
    with nym.axis_mapping(PARAMETERS):
        model = family.load(family.parameters)
    step = nym.fsdp(jax.grad(compute_loss, has_aux=True), PARAMETERS, COMPUTE)
    gradients, output = step(model, *nym.shard(family.inputs, COMPUTE))
    assert_close(output.array, family.output, 1e-4)
    assert_close(gradients, load_whole(family.name, "gradients"), 1e-4)


def test_values_between_layers_are_sharded_over_positions(mesh: Any):
    compute = {"batch": "data", "heads": "model", "mlp": "model", "pos": "model"}
    step = nym.fsdp(jax.grad(compute_loss, has_aux=True), {**compute, "embed": "data"}, compute)
    model, expected = (load_whole("llama", what).use_sequence_parallelism() for what in ("parameters", "gradients"))
    gradients, output = step(model, *nym.shard(read_family("llama").inputs, compute))
    assert_close(output.array, read_family("llama").output, 1e-4)
    assert_close(gradients, expected, 1e-4)


def decode(family: Family, model: Any) -> tuple[nym.NamedArray, Any, list[Any]]:
    """Returns greedy tokens of each sequence, the cache after them, and the shapes that the step was traced for."""
    traced = []

    @nym.named_jit(donate_kwargs={"cache": True})
    def step(model: Any, tokens: nym.NamedArray, *given: Any, cache: Any) -> tuple[nym.NamedArray, Any]:
        traced.append(tokens.shape)
        logits, cache = model.decode(tokens, cache, *given, last_only=True)
        following = logits["pos", -1].argmax("vocab")
        return following.broadcast_axis(nym.Axis("pos", 1)).rearrange(("batch", "pos")), cache

    *speech, tokens = family.inputs
    given = [nym.named_jit(type(model).encode)(model, *speech)] if speech else []
    batch, pos = tokens.axes
    cache = model.init_cache(batch, nym.Axis("key_pos", pos.size + GENERATED))
    text = []
    for _ in range(GENERATED):
        # One step at a time: collectives of many steps in flight may starve each other on a machine of few cores.
        tokens, cache = jax.block_until_ready(step(model, tokens, *given, cache=cache))
        text.append(tokens)
    return nym.concatenate("pos", text), cache, traced


GREEDY = [("llama", "auto"), ("gemma2", "explicit"), ("whisper", "explicit")]


@pytest.mark.parametrize(("family", "mesh"), list_sharded(DECODERS, *GREEDY), indirect=True)
def test_sharded_greedy_text_is_that_of_transformers(family: Family, mesh: Any):
    with nym.axis_mapping(COMPUTE):
        text, cache, traced = decode(family, nym.shard(load_whole(family.name)))
    np.testing.assert_array_equal(text.array, family.generated[:, :GENERATED])
    assert len(traced) == 2, "The step is traced for the prompt and for the first token, and not again."
    for leaf in jax.tree.leaves(cache, is_leaf=lambda leaf: isinstance(leaf, nym.NamedArray)):
        assert leaf.sharding.is_equivalent_to(nym.sharding_for_axis(leaf.axes, COMPUTE), leaf.ndim)


def test_a_state_dict_of_torch_comes_back_bit_for_bit(family: Family, tmp_path: Path):
    save_file(family.parameters, tmp_path / "model.safetensors")
    nym.state_dict.save_safetensors(family.load(tmp_path), tmp_path, max_shard_size="50KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    assert_same_bits({name: array for file in files for name, array in load_file(file).items()}, family)


def test_sharded_files_and_state_dicts_come_back_bit_for_bit(explicit_mesh: Any, tmp_path: Path):
    family = read_family("mixtral")
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(PARAMETERS):
        model = family.load(family.parameters)
        assert_same_bits(nym.state_dict.to_torch_compatible_state_dict(model), family)
        nym.state_dict.save_safetensors(model, tmp_path)
        loaded = family.load(tmp_path)
        for one, other in zip(nym.tree.leaves(loaded), nym.tree.leaves(model), strict=True):
            if nym.is_named_array(one):
                expected = nym.sharding_for_axis(one.axes, PARAMETERS)
                assert one.sharding.is_equivalent_to(expected, one.ndim) and (one == other).all()


def assert_same_bits(state: dict[str, np.ndarray], family: Family) -> None:
    assert state.keys() == family.parameters.keys()
    for name, array in state.items():
        assert array.shape == family.parameters[name].shape and array.dtype == family.parameters[name].dtype
        np.testing.assert_array_equal(array, family.parameters[name], err_msg=name)


def test_transformers_loads_what_axonym_wrote(family: Family, tmp_path: Path):
    """The same logits as before, bit for bit, because the parameters are; `make parity` runs it."""
    if not IS_PARITY:
        pytest.skip("`make parity` has `transformers`.")
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = family.load.keywords["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    nym.state_dict.save_safetensors(family.load(family.parameters), tmp_path, max_shard_size="50KB")
    kind = getattr(transformers, config["architectures"][0])
    model, about = kind.from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    unknown = {key: about[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if about[key]}
    assert not unknown, unknown
    inputs = {name: torch.from_numpy(np.asarray(array)) for name, array in family.arrays.items()}
    inputs = {name: x.long() if x.dtype == torch.int32 else x for name, x in inputs.items()}
    with torch.no_grad():
        output = model.eval()(**inputs).logits.numpy()
    difference = np.abs(output - family.output).max()
    print(f"{config['architectures'][0]}: {len(family.parameters)} parameters, logits differ by {difference:.1e}")
    np.testing.assert_allclose(output, family.output, rtol=1e-6, atol=1e-6)


def test_a_folder_that_does_not_fit_is_an_error():
    llama, common = read_family("llama"), importlib.import_module("models.common")
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(ValueError, match=rf"'{name}' has shape \(\d+, \d+\), its field is \(mlp: "):
        llama.load({**llama.parameters, name: llama.parameters[name].T})
    settings = common.Settings({**llama.load.keywords["config"], "rope_scaling": {"type": "linear", "factor": 4.0}})
    settings.pop("rope_parameters", None)
    assert common.read_rotary(settings)[1] == nym.nn.LinearRotaryScaling(4.0)
    del settings["rms_norm_eps"]
    with pytest.raises(ValueError, match=r"config.json has no 'rms_norm_eps'"):
        llama.module.Llama.from_hf(llama.parameters, settings)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("gpt2", {"activation_function": "relu"}, "the activation is 'relu'; GPT-2 has 'gelu_new'"),
        ("bert", {"hidden_act": "relu"}, "the activation is 'relu'; BERT has 'gelu'"),
        ("vit", {"hidden_act": "relu"}, "the activation is 'relu'; ViT has 'gelu'"),
        ("mixtral", {"tie_word_embeddings": True}, "a head of its own"),
        ("whisper", {"scale_embedding": True}, "embeddings are not scaled"),
        ("whisper", {"activation_function": "relu"}, "has the activation 'gelu'"),
    ],
)
def test_configurations_of_another_kind_are_refused(name: str, option: dict, message: str):
    family = read_family(name)
    with pytest.raises(ValueError, match=message):
        family.module.Config.from_hf({**family.load.keywords["config"], **option})
