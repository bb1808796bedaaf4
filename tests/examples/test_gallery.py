"""The programs of the gallery, each through its `main`: what it prints, and its picture."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from safetensors.numpy import load_file, save_file

import axonym as nym

from .test_models import read_family


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the `main` of an example, which must end well, and returns what it prints."""

    def run_main(name: str, *options: object) -> str:
        code = importlib.import_module(name).main([str(option) for option in options])
        output = capsys.readouterr()
        assert code == 0, output.err
        return output.out

    return run_main


def find_numbers(pattern: str, text: str) -> list[float]:
    """Returns the numbers in the groups of a pattern, which must be in the text."""
    match = re.search(pattern, text)
    assert match, text
    return [float(group.replace(",", "")) for group in match.groups()]


def assert_is_picture(path: Path) -> None:
    picture = importlib.import_module("matplotlib.image").imread(path)
    assert picture.shape[0] > 300
    assert picture.std() > 0.01, "The picture is blank."


@pytest.mark.thorough
def test_vit_reads_digits(run: Run, tmp_path: Path):
    output = run("train_vit", "--epochs", 5, "--layers", 1, "--embed", 32, "--batch", 128, "--out", tmp_path)
    (accuracy,) = find_numbers(r"held-out accuracy: ([\d.]+)%", output)
    assert accuracy > 15
    assert_is_picture(tmp_path / "vit.png")


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "mixtral"])
def test_adapters_keep_the_dtype_of_the_model(name: str):
    finetune_lora, family = importlib.import_module("finetune_lora"), read_family(name)

    def apply(parameters: Any) -> Any:
        model = nym.Precision(parameters="bfloat16").cast_parameters(family.load(parameters))
        adapters = finetune_lora.init_adapters(model, 2, 1.0, key=jax.random.key(0))
        adapted, merged = finetune_lora.adapt(model, adapters), finetune_lora.merge(model, adapters)
        assert [leaf.dtype for leaf in jax.tree.leaves(merged)] == [leaf.dtype for leaf in jax.tree.leaves(model)]
        return [tree(*family.inputs) for tree in (model, adapted, merged)]

    results = jax.eval_shape(apply, family.parameters)
    assert {(result.names, result.dtype.name) for result in results} == {(results[0].names, "bfloat16")}


def test_adapters_learn_and_merge(run: Run, tmp_path: Path):
    llama = read_family("llama")
    parameters = {name: array.astype("bfloat16") for name, array in llama.parameters.items()}
    save_file(parameters, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(llama.load.keywords["config"]))
    (tmp_path / "text").write_text("7 11 13 " * 40)
    options = ["--text", tmp_path / "text", "--seq", 4, "--batch", 4, "--steps", 12, "--rank", 2, "--lr", 0.05]
    output = run(
        "finetune_lora", "--model", tmp_path, *options, "--axis-types", "explicit", "--out", tmp_path / "adapters"
    )
    before, after = find_numbers(r"held-out loss: ([\d.]+) bits per token before, ([\d.]+) after", output)
    (merged,) = find_numbers(r"merged into the weights: ([\d.]+)", output)
    assert after < before - 0.5 and abs(merged - after) < 0.02
    (trained, whole) = find_numbers(r"([\d,]+) elements are trained beside ([\d,]+)", output)
    assert whole == sum(array.size for array in llama.parameters.values())
    adapters = load_file(tmp_path / "adapters" / "model.safetensors")
    assert trained == sum(array.size for array in adapters.values())
    assert {str(array.dtype) for array in adapters.values()} == {"float32"}
    assert_is_picture(tmp_path / "adapters" / "loss.png")


def test_tokens_spread_over_experts(run: Run, tmp_path: Path):
    sizes = ["--steps", 6, "--batch", 8, "--seq", 8, "--layers", 1, "--embed", 16, "--out", tmp_path]
    output = run("mixture_of_experts", *sizes, "--dispatch", "all_to_all", "--capacity", 1.25)
    assert "f32[layers: 1, experts: 8@expert, embed: 16@data, mlp: 16]" in output
    shares = [float(share) for share in re.findall(r"([\d.]+)%", output.split(" 0 ")[-1].splitlines()[0])]
    assert len(shares) == 8 and abs(sum(shares) - 100) < 1
    loss, busiest, dropped = find_numbers(r"loss ([\d.]+) .* has ([\d.]+) times an equal share; ([\d.]+)%", output)
    assert loss < 8 and abs(busiest - max(shares) * 8 / 100) < 0.01 and dropped > 0
    assert_is_picture(tmp_path / "load.png")


def test_positions_are_sharded(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ways = importlib.import_module("long_context").WAYS
    for way in ("all_gather", "all_to_all"):
        monkeypatch.delitem(ways, way)
    output = run("long_context", "--lengths", 64, "--layers", 1, "--embed", 16, "--out", tmp_path)
    rows = re.findall(r"64 +(one device|\w+) +([\d.]+) MiB +([\d.]+) MiB +([\d.]+)", output)
    assert [row[0] for row in rows] == ["one device", "ring"]
    assert len({loss for *_, loss in rows}) == 1 and 5 < float(rows[0][3]) < 8
    assert float(rows[1][1]) < float(rows[0][1]) / 2 and float(rows[1][2]) > 0
    assert_is_picture(tmp_path / "memory.png")


@pytest.mark.thorough
def test_pipeline_has_the_losses_of_one_device(run: Run, tmp_path: Path):
    sizes = ["--layers", 4, "--batch", 8, "--seq", 8, "--embed", 32, "--steps", 3, "--out", tmp_path]
    output = run("pipeline", "--mesh", "stage:2,data:4", "--microbatches", 2, "--repeats", 2, *sizes)
    assert "2 stages, 2 microbatches, 2 groups of layers each, 5 turns" in output
    assert "layers: 4@stage" in output
    first, last, difference = find_numbers(r"from ([\d.]+) to ([\d.]+), within ([\de.-]+) of one device", output)
    assert last < first - 0.1 and difference < 1e-4
    assert_is_picture(tmp_path / "schedule.png")


def test_rules_shard_a_flax_model(run: Run, tmp_path: Path):
    sizes = ["--layers", 1, "--embed", 32, "--steps", 40, "--batch", 32, "--out", tmp_path]
    output = run("flax_by_rules", "--rule", "paths", *sizes)
    assert re.search(r"blocks/0/mlp/up_proj/kernel +\(32, 128\) +P\('data', 'model'\) +\(8, 64\)", output)
    assert re.search(r"head/kernel +\(32, 10\) +P\(\) ", output)
    held, whole = find_numbers(r"holds ([\d,]+) of ([\d,]+) elements", output)
    kernels = 2 * (32 * 128 + 16 * 64)
    assert held == whole - kernels * 7 / 8
    (accuracy,) = find_numbers(r"held-out accuracy: ([\d.]+)%", output)
    assert accuracy > 20
    assert_is_picture(tmp_path / "loss.png")


@pytest.mark.thorough
def test_a_killed_run_goes_on_with_fewer_devices(run: Run, tmp_path: Path):
    steps = ["--steps", 60, "--kill-after", 5, "--save-every", 5, "--width", 16]
    output = run("elastic_restore", *steps, "--then", "data:1,model:2", "--out", tmp_path / "run")
    assert "(2, 64) on each of 8 devices" in output and "(8, 64) on each of 2 devices" in output
    (killed,) = find_numbers(r"killed after step (\d+)", output)
    start, end, difference = find_numbers(r"from step (\d+) to (\d+); all losses are within ([\de.-]+) of", output)
    assert 5 <= start <= killed < end == 60 and difference < 1e-4
    assert_is_picture(tmp_path / "run" / "loss.png")
