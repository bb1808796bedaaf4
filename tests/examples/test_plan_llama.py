"""The example that plans the training of Llama and Mixtral, with models of their form and small sizes."""

import functools
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import axonym as nym
from axonym.planner import read_plan


SMALL = {"vocab": 64, "layers": 2, "embed": 32, "heads": 2, "group": 2, "head_dim": 8, "mlp": 64}


@pytest.fixture
def plan_llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("plan_llama")
    for name, sizes in module.MODELS.items():
        monkeypatch.setitem(module.MODELS, name, {axis: SMALL.get(axis, 4) for axis in sizes})
    return module


def test_sizes_are_those_of_the_published_models():
    module = importlib.import_module("plan_llama")
    counts = {}
    for name, sizes in module.MODELS.items():
        model, state, tokens, targets = module.describe_arguments(sizes, 4, 128)
        counts[name] = sum(leaf.size for leaf in jax.tree.leaves(model)) / 1e9
        assert sum(leaf.size for leaf in jax.tree.leaves(state)) / 1e9 == pytest.approx(2 * counts[name])
        assert tokens.shape == targets.shape == {"batch": 4, "pos": 128}
    published = {"llama3-8b": 8.03, "llama3-70b": 70.55, "llama3-405b": 405.9, "mixtral-8x7b": 46.7}
    assert counts == pytest.approx(published, rel=2e-3)


def test_plan_of_llama_is_printed_and_written(plan_llama: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--devices", "cpu:8", "--batch", "8", "--length", "16", "--policy", "layers", "--budget", "1e-9"]
    options += ["--microbatches", "1", "2"]
    assert plan_llama.main([*options, "--out", str(tmp_path / "found")]) == 1  # nothing is compiled
    plan = read_plan(tmp_path / "found" / "plan.json")
    assert capsys.readouterr().out.startswith(f"llama3-8b, 128 tokens a step\n\n{plan}")
    assert plan.tokens == 128 and plan.policy == "layers" and plan.options["microbatches"] in (1, 2)
    assert "llama3-8b on cpu:8" in (tmp_path / "found" / "plan.html").read_text()
    arguments = plan_llama.describe_arguments(plan_llama.MODELS["llama3-8b"], 8, 16)
    weights = sum(leaf.size for leaf in jax.tree.leaves(arguments[0])) - 64 * 32  # looked up without a product
    assert plan.model_flops > 6 * 128 * weights * 0.99  # norms have no products


@pytest.mark.thorough
def test_serving_is_planned_for_tokens_and_for_a_prompt(
    plan_llama: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("axonym.planner._search._best_candidates._MOST_COMPILED", 1)
    assert plan_llama.main(["--devices", "cpu:4", "--batch", "8", "--serve", "16", "--length", "4"]) == 0
    decode, _, prefill = capsys.readouterr().out.partition("llama3-8b, reading a prompt of 4 tokens")
    assert decode.startswith("llama3-8b, decoding") and "batch of 8, key_pos of 16 is best" in decode
    assert "a token, " in decode and "a step, " in prefill


def test_step_of_mixtral_trains_with_the_losses_of_its_routers(plan_llama: Any):
    model, state, tokens, targets = plan_llama.describe_arguments(plan_llama.MODELS["mixtral-8x7b"], 2, 8)
    step = functools.partial(plan_llama.train_step, microbatches=2)
    new_model, new_state, loss = jax.eval_shape(step, model, state, tokens, targets)
    assert jax.tree.structure((new_model, new_state)) == jax.tree.structure((model, state))
    assert loss.shape == ()


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_vocabulary_and_positions_are_sharded_over_one_mesh_axis(plan_llama: Any, axis_types: Any):
    axes = {name: nym.Axis(name, size) for name, size in plan_llama.MODELS["llama3-8b"].items()}
    model = jax.eval_shape(lambda: plan_llama.llama.Llama.init(plan_llama.llama.Config(**axes), key=jax.random.key(0)))
    random = np.random.default_rng(0)
    model = jax.tree.map(lambda x: random.normal(scale=0.3, size=x.shape).astype(x.dtype), model)
    tokens = nym.NamedArray(random.integers(0, axes["vocab"].size, (4, 8)).astype(np.int32), ("batch", "pos"))
    expected = jax.jit(plan_llama.compute_loss)(model, tokens, tokens)
    mapping = {"batch": "data", "heads": "model", "mlp": "model", "pos": "model", "vocab": "model"}
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2}, axis_types=axis_types)), nym.axis_mapping(mapping):
        compute_loss = nym.named_jit(plan_llama.compute_loss)
        loss = compute_loss(nym.shard(model).use_sequence_parallelism(), nym.shard(tokens), nym.shard(tokens))
    assert float(loss) == pytest.approx(float(expected), rel=2e-2)  # in bfloat16


def test_errors_are_a_line(plan_llama: Any, capsys: pytest.CaptureFixture[str]):
    assert plan_llama.main(["--devices", "v5e"]) == 2
    assert capsys.readouterr().err.startswith("plan_llama: 'v5e' does not describe a machine")
