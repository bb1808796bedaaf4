"""Parameters that `fsdp` gathers: in which element types, and how gradients are added up on shards."""

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym.planner import communication_report
from axonym.training import _gather
from tests.hlo import Program
from tests.partitioning.arrays import Block, assert_close
from tests.refusals import refusal


Batch, Pos, Embed, Mlp, Vocab, Layers = nym.make_axes(batch=16, pos=2, embed=128, mlp=128, vocab=16, layers=2)
COMPUTE = {"batch": ("replica", "data"), "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
TOKENS = nym.named(np.random.default_rng(0).integers(0, Vocab.size, (Batch.size, Pos.size)), (Batch, Pos))
INPUTS = np.random.default_rng(1).normal(size=(Batch.size, Embed.size)).astype(np.float32)
X = nym.NamedArray(INPUTS, ("batch", "inputs"))  # no axis over `data` twice


def use_mesh(axis_types: Any, replica: int = 2, data: int = 2, model: int = 2) -> Any:
    return jax.set_mesh(nym.create_mesh({"replica": replica, "data": data, "model": model}, axis_types=axis_types))


def use_replicas() -> Any:
    return use_mesh("explicit", data=4, model=1)


# Gradients, which are those of one device.


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked
    norm: nym.nn.RmsNorm
    head: nym.nn.Linear | None

    def compute_loss(self, tokens, *, fused):
        x = self.norm(self.blocks.fold(self.embedding(tokens)))
        weight = self.embedding.weight if self.head is None else self.head.weight
        if fused:
            return nym.nn.fused_cross_entropy(x, weight, tokens, Embed, Vocab, block_size=8).scalar()
        logits = self.embedding.unembed(x) if self.head is None else self.head(x)
        return nym.nn.cross_entropy_loss(logits, Vocab, tokens).scalar()


def make_stack(**options: Any) -> nym.nn.Stacked:
    keys = jax.random.split(jax.random.key(0), Layers.size)
    return nym.nn.Stacked.init(Layers, Block, **options)(Embed, Mlp, key=keys)


def make_model(policy: Any, tied: bool) -> Model:
    embedding = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(1))
    head = None if tied else nym.nn.Linear.init(Embed, Vocab, key=jax.random.key(2), use_bias=False)
    return Model(embedding, make_stack(gradient_checkpointing=policy), nym.nn.RmsNorm.init(Embed), head)


def make_step(fused: bool, microbatches: int, reduce_once: Any = False) -> Any:
    def step(model: Model, tokens: nym.NamedArray) -> Any:
        compute = jax.value_and_grad(lambda model, tokens: model.compute_loss(tokens, fused=fused))
        return nym.microbatch(compute, "batch", microbatches, reduce_once=reduce_once)(model, tokens)

    return step


CHOSEN_SEEDS = (4, 15)  # nested and no checkpoints; tied or not, fused or not, over replicas or not


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in CHOSEN_SEEDS else pytest.mark.thorough) for seed in range(16)]
)
def test_gradients_are_those_of_one_device(seed):
    """And they are added up over replicas once for each microbatch and layer, or once a step."""
    rng = np.random.default_rng(seed)
    mesh = nym.create_mesh((2, 2, 2), tuple(rng.permutation(["data", "replica", "model"])), axis_types="explicit")
    batch_axes = [("data",), ("replica", "data"), ("data", "replica")][rng.integers(3)]
    computing = {"batch": batch_axes, "pos": None, "layers": None}
    for name in ("mlp", "vocab"):
        computing[name] = [None, "model"][rng.integers(2)]
    embed_axes = [("data",), batch_axes]
    if not computing["mlp"] and not computing["vocab"]:  # gathered over another mesh axis than those of the batch
        embed_axes += [("model",), ("data", "model"), ("model", "data")]
    stored = {**computing, "embed": embed_axes[rng.integers(len(embed_axes))]}
    policy = [False, True, "offload", "nested"][rng.integers(4)]
    model = make_model(policy, tied=bool(rng.integers(2)))
    microbatches = int(rng.integers(1, 3))
    has_replicas = "replica" in batch_axes
    reduce_once = "replica" if has_replicas and rng.integers(2) else False
    step = make_step(bool(rng.integers(2)), microbatches, reduce_once)
    expected = jax.jit(step)(model, TOKENS)
    with jax.set_mesh(mesh):
        compiled = nym.fsdp(step, stored, computing).lower(model, TOKENS).compile()
        assert_close(compiled(model, TOKENS), expected, 1e-4)
        # A table whose vocabulary is sharded is not typed.
        if has_replicas and "replica" not in stored["embed"] and not computing["vocab"]:
            report = communication_report(compiled)
            sums = [one for one in report.collectives if "replica" in one.mesh_axes and one.result_bytes > 8]
            most_runs = 1 if microbatches > 1 or reduce_once else Layers.size
            assert {one.runs for one in sums} <= {1, most_runs}


def test_other_derivatives_are_those_of_one_device():
    def compute_loss(model, tokens=TOKENS):
        return nym.mean(model.head(model.norm(model.embedding(tokens))) ** 2).scalar()

    def scale_layers(model):
        losses = jax.vmap(lambda scale: compute_loss(jax.tree.map(lambda x: x * scale, model)))(jnp.arange(3.0))
        return losses.sum()

    def split_examples(model):
        return nym.vmap(lambda tokens: nym.named(compute_loss(model, tokens), ()), "batch")(TOKENS).sum().scalar()

    def round_parameters(model):
        return compute_loss(jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)).astype(jnp.float32)

    def compute_all(model):
        derivatives = [jax.jvp(function, (model,), (model,)) for function in (compute_loss, jax.grad(compute_loss))]
        derivatives += [jax.grad(function)(model) for function in (scale_layers, split_examples)]
        return derivatives, jax.grad(round_parameters)(model)

    model = make_model(False, tied=False)
    expected = jax.jit(compute_all)(model)
    with use_replicas():
        results = nym.fsdp(compute_all, STORED, COMPUTE)(model)
    assert_close(results[0], expected[0], 1e-4)
    assert_close(results[1], expected[1], 2e-2, 2e-4)


@functools.cache
def compute_gradient_of_tied_model() -> Any:
    """Returns the loss and the gradient on one device, which are the same for a fused loss."""
    with jax.set_mesh(None):
        step = make_step(fused=False, microbatches=1)
        return jax.tree.map(np.asarray, jax.jit(step)(make_model(False, tied=True), TOKENS))


@pytest.mark.parametrize(
    ("batch_axes", "fused"), [pytest.param((), True, marks=pytest.mark.thorough), (("data",), False)]
)
def test_inputs_that_are_sharded_over_fewer_mesh_axes(batch_axes, fused):
    """A batch of another name: then gradients are added up where the parameter is used."""
    tokens = TOKENS.rename({"batch": "examples"})
    examples = {"examples": batch_axes or None}
    step = jax.value_and_grad(lambda model, tokens: model.compute_loss(tokens, fused=fused))
    with use_replicas():
        results = nym.fsdp(step, {**STORED, **examples}, {**COMPUTE, **examples})(make_model(False, tied=True), tokens)
    assert_close(results, compute_gradient_of_tied_model(), 1e-4)


def test_only_explicit_mesh_axes_have_types():
    step = make_step(fused=False, microbatches=1)
    with use_mesh((AxisType.Explicit, AxisType.Explicit, AxisType.Auto)):
        results = nym.fsdp(step, STORED, COMPUTE)(make_model(False, tied=True), TOKENS)
    assert_close(results, compute_gradient_of_tied_model(), 1e-4)


def test_arrays_that_a_function_takes_from_around_it():
    """An array that was made without a mesh has no mesh in its type."""
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    step = jax.value_and_grad(lambda layer: nym.mean(layer(X.rename({"inputs": "embed"})) ** 2).scalar())
    expected = jax.jit(step)(layer)
    with use_replicas():
        assert_close(nym.fsdp(step, STORED, COMPUTE)(layer), expected, 1e-4)


class Table(eqx.Module):
    """A table and a scale."""

    embedding: nym.nn.Embedding
    scale: nym.NamedArray

    def compute_loss(self, tokens):
        return nym.mean((self.embedding(tokens) * self.scale) ** 2).scalar()


@pytest.mark.parametrize(
    ("mesh_axes", "batch_axes", "rounds", "vocab", "embed", "microbatches"),
    [  # 896 x 64 has no tiles; 512 elements are 128 for each of 4 devices
        ({"data": 8}, "data", 2, 896, 64, 2),
        pytest.param({"data": 8}, "data", 2, 1024, 512, 1, marks=pytest.mark.thorough),
        ({"x": 2, "y": 4}, ("x", "y"), 2, 896, 64, 1),
        ({"replica": 2, "data": 4}, ("replica", "data"), 1, 1024, 512, 2),
    ],
    ids=str,
)
def test_rounds_on_tpus(monkeypatch, mesh_axes, batch_axes, rounds, vocab, embed, microbatches):
    """The rounds in which gradients are scattered, here on CPUs: over a whole slice, in rows, in another order."""
    monkeypatch.setattr(_gather, "find_platform", lambda: "tpu")
    monkeypatch.setattr(_gather, "_SMALLEST_TORUS", 8)
    monkeypatch.setattr(_gather, "_SMALLEST_SCATTER", 1)
    monkeypatch.setattr(_gather, "_plan_gather", _gather._plan_gather.__wrapped__)  # without the cache
    stored_axes = "data" if "data" in mesh_axes else batch_axes
    embedding = nym.nn.Embedding.init(Vocab.resize(vocab), Embed.resize(embed), key=jax.random.key(0))
    model = Table(embedding, nym.random.normal(jax.random.key(1), Embed.resize(embed)))
    tokens = nym.random.randint(jax.random.key(2), {"batch": 16, "pos": 2}, 0, vocab)

    def step(model, tokens):
        return nym.microbatch(jax.value_and_grad(Table.compute_loss), "batch", microbatches)(model, tokens)

    expected = jax.jit(step)(model, tokens)
    computing = {"batch": batch_axes}
    with jax.set_mesh(nym.create_mesh(mesh_axes, axis_types="explicit")):
        compiled = nym.fsdp(step, {**computing, "embed": stored_axes}, computing).lower(model, tokens).compile()
        assert_close(compiled(model, tokens), expected, 1e-4)
    report = communication_report(compiled)
    assert [one.layer for one in report.select("reduce-scatter")] == ["Embedding"] * rounds


@pytest.mark.parametrize(
    ("stored", "microbatches"),
    [({"embed": "data", "mlp": "model"}, 2), ({"mlp": ("model", "data")}, 1), ({"embed": "model"}, 2)],
    ids=str,
)
def test_parameters_that_are_gathered_over_other_mesh_axes_than_the_batch(stored, microbatches):
    """Devices along these have the same gradient, which must not be added up."""
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))

    def step(layer, x):
        compute = jax.value_and_grad(lambda layer, x: nym.mean(layer(x.rename({"inputs": "embed"})) ** 2).scalar())
        return nym.microbatch(compute, "batch", microbatches)(layer, x)

    expected = jax.jit(step)(layer, X)
    computing = {"batch": "data"}
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2}, axis_types="explicit")):
        assert_close(nym.fsdp(step, {**computing, **stored}, computing)(layer, X), expected, 1e-4)
        with nym.axis_mapping(computing):
            assert_close(jax.jit(step)(nym.shard(layer, stored), nym.shard(X)), expected, 1e-4)


# Gathers in few bits: layers compute with rounded parameters, and gradients are those without rounding.


def compute_loss(stack: nym.nn.Stacked, x: nym.NamedArray) -> Any:
    return nym.mean(stack.fold(x.rename({"inputs": "embed"})).astype(jnp.float32) ** 2).scalar()


def round_parameters(stack: nym.nn.Stacked, dtype: Any) -> nym.nn.Stacked:
    """Returns parameters as layers see them: matrices rounded, with a scale for each element along `embed`."""

    def round_parameter(x: nym.NamedArray) -> nym.NamedArray:
        if "mlp" not in x.names or "embed" not in x.names:
            return x
        # Each layer, and each half of `mlp`, has scales of its own.
        array = np.asarray(x.rearrange(("layers", "mlp", "embed")).array)
        blocks = array.reshape(Layers.size, 2, Mlp.size // 2, Embed.size)
        if dtype == "float16":
            rounded = blocks.astype(np.float16)
        else:
            bound = 127 if dtype == "int8" else float(jnp.finfo(dtype).max)
            scales = np.abs(blocks).max(2, keepdims=True) / bound
            quotients = jnp.round(blocks / scales) if dtype == "int8" else blocks / scales
            rounded = np.asarray(jnp.asarray(quotients, dtype), np.float32) * scales
        named = nym.named(jnp.asarray(rounded.reshape(array.shape), jnp.float32), ("layers", "mlp", "embed"))
        return named.rearrange(x.names)

    return jax.tree.map(round_parameter, stack, is_leaf=nym.is_named_array)


def apply(weight: nym.NamedArray) -> nym.NamedArray:
    """Returns what a linear layer with this weight returns."""
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
    return dataclasses.replace(layer, weight=weight)(X.rename({"inputs": "embed"}))


def get_arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize(
    ("dtype", "axis_types"),
    [
        ("float16", "auto"),
        ("int8", "explicit"),
        ("float8_e4m3fn", "auto"),
        pytest.param("float8_e5m2", "explicit", marks=pytest.mark.thorough),
    ],
)
def test_layers_compute_with_rounded_parameters_and_gradients_are_those_without(dtype: str, axis_types: Any):
    stack = make_stack(gradient_checkpointing=True)
    rounded = round_parameters(stack, dtype)
    assert any((a != b).any() for a, b in zip(get_arrays(stack), get_arrays(rounded), strict=True))
    # The stored parameters are exact: the gradient of the rounded ones is added to them.
    expected_loss, gradients = jax.jit(jax.value_and_grad(compute_loss))(rounded, X)
    expected = jax.tree.map(lambda x, gradient: x - gradient, stack, gradients)

    @nym.fsdp(STORED, COMPUTE, policy=nym.Policy(gather_dtype=dtype))
    def step(stack: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(stack, x)
        return loss, jax.tree.map(lambda x, gradient: x - gradient, stack, gradients)

    with use_mesh(axis_types):
        loss, new_stack = step(stack, X)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for array, expected_array in zip(get_arrays(new_stack), get_arrays(expected), strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-5, atol=1e-6)


def test_a_quarter_is_gathered_of_what_32_bits_have_and_a_policy_can_save_it():
    """Norms are gathered as they are."""

    def report_gathers(gather_dtype: Any, checkpointing: Any) -> Any:
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, policy=nym.Policy(gather_dtype=gather_dtype))
        return communication_report(step, make_stack(gradient_checkpointing=checkpointing), X)

    def sum_over(operation: str, report: Any, number: str) -> int:
        gathers = report.select("all-gather", "embed")
        return sum(getattr(gather, number) for gather in gathers if gather.operation == operation)

    with use_mesh("explicit"):
        rounded = report_gathers("int8", True)
        saved = report_gathers("int8", nym.ScanCheckpointPolicy(save_block_internals=["gathered"]))
    block_size = Mlp.size // 2  # the elements that share a scale of four bytes
    weights, norms = "gather(mlp, embed)", "gather(embed)"
    # A device lacks half of its part of a matrix. Each layer has two, which are gathered forwards and backwards.
    elements = 2 * 2 * Layers.size * (Embed.size * Mlp.size // 2) // 2
    assert sum_over(weights, rounded, "bytes") == elements * (1 + 4 / block_size)
    gathers = rounded.select("all-gather", "embed")
    assert {gather.result_bytes for gather in gathers if gather.operation == norms} == {4 * Embed.size}
    assert sum_over(weights, rounded, "runs") == 2 * sum_over(weights, saved, "runs") > 0


def test_other_transformations_take_rounding_for_the_identity_and_conversions_for_linear():
    axes = {"copy": 2, "mlp": 128, "embed": 128}
    weights = nym.random.normal(jax.random.key(2), axes), nym.random.normal(jax.random.key(3), axes)
    arguments = *weights, *(weight["copy", 0] for weight in weights)

    def differentiate(weight: Any, tangent: Any, matrix: Any, direction: Any) -> Any:
        def push_forward(weight: Any, tangent: Any) -> Any:
            return jax.jvp(apply, (weight,), (tangent,))

        gradient = jax.grad(lambda weight: nym.sum(apply(weight).astype(jnp.float32) ** 3).scalar())
        hessian = jax.jvp(gradient, (matrix,), (direction,))[1]
        return *nym.vmap(push_forward, "copy")(weight, tangent), hessian

    def compute_errors(**options: Any) -> list[float]:
        results = nym.fsdp(differentiate, STORED, COMPUTE, policy=nym.Policy(**options))(*arguments)
        pairs = zip(get_arrays(results), get_arrays(expected), strict=True)
        return [np.linalg.norm(array - exact) / np.linalg.norm(exact) for array, exact in pairs]

    expected = jax.jit(differentiate)(*arguments)
    with use_mesh("explicit", replica=1, data=4):
        value_error, tangent_error, hessian_error = compute_errors(gather_dtype="int8")
        converted_errors = compute_errors(precision=nym.Precision(computing="bfloat16", reductions="float32"))
    assert 1e-3 < value_error < 0.02
    assert tangent_error < 1e-5  # the derivative of a linear function takes no weights
    assert 1e-3 < hessian_error < 0.02
    assert max(converted_errors) < 0.02


@pytest.mark.parametrize(("wrong", "axis_types"), [(np.nan, "auto"), (np.inf, "explicit")])
def test_what_is_not_finite_stays_so(wrong: float, axis_types: Any):
    weight = nym.zeros({"mlp": 128, "embed": 128}).at["embed", 3, "mlp", 5].set(wrong)
    apply_rounded = nym.fsdp(apply, STORED, COMPUTE, policy=nym.Policy(gather_dtype="int8"))
    with use_mesh(axis_types, replica=1, data=4):
        result = np.asarray(apply_rounded(weight)["mlp", 5].array)
    assert np.isnan(result).all()


def test_microbatches_add_up_gradients_as_they_do_without_rounding():
    stack = make_stack()

    def step(stack: Any, x: Any) -> Any:
        return nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2, reduce_once="replica")(stack, x)

    with use_replicas():
        rounded = nym.fsdp(step, STORED, COMPUTE, policy=nym.Policy(gather_dtype="float16")).lower(stack, X).compile()
        results = rounded(stack, X)
    nym.planner.assert_communication(rounded, at_most_runs={"replica": 1})
    expected = jax.jit(jax.value_and_grad(compute_loss))(round_parameters(stack, "float16"), X)
    assert_close(results, expected, 1e-4)


def test_complex_parameters_are_gathered_as_they_are():
    weight = nym.random.normal(jax.random.key(4), {"mlp": 128, "embed": 128}).astype(jnp.complex64) * 1j
    with use_mesh("auto", replica=1, data=4):
        result = nym.fsdp(apply, STORED, COMPUTE, policy=nym.Policy(gather_dtype="int8"))(weight)
    np.testing.assert_allclose(
        np.asarray(result.array), np.asarray(apply(weight).rearrange(result.names).array), rtol=1e-4
    )


def test_policies_are_values():
    policy = nym.Policy(gather_dtype={"vocab": None, "embed": "int8"}, precision=HALF, microbatches={"batch": 4})
    assert policy.find_gather_dtype(("mlp", "embed")) == "int8"
    assert policy.find_gather_dtype(("vocab", "embed")) is None
    assert policy != nym.Policy() and policy == dataclasses.replace(policy)
    other = pickle.loads(pickle.dumps(policy))
    assert (other, hash(other)) == (policy, hash(policy))
    assert eval(repr(policy), {"Policy": nym.Policy, "Precision": nym.Precision, "dtype": np.dtype}) == policy
    for wrong, error, message in (
        ({"mlp": {"embed": "int8"}}, ValueError, r"and None, not \{'embed': 'int8'\}"),
        ({Mlp: "int8"}, TypeError, r"Axis\(name='mlp', size=128\) is not a name; use 'mlp'"),
        ("int4", ValueError, r"`gather_dtype` is one of 'bfloat16', .* and None, not 'int4'"),
    ):
        with pytest.raises(error, match=message):
            nym.Policy(gather_dtype=wrong)


def test_a_policy_is_used_with_a_mapping():
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    apply = jax.jit(lambda layer: layer(nym.ones(Embed, dtype=jnp.bfloat16)))
    with nym.axis_mapping(COMPUTE, policy=nym.Policy(precision=HALF)), nym.axis_mapping({"pos": None}, merge=True):
        assert apply(layer).dtype == np.float32  # of bfloat16 and float16
    for call in (
        lambda policy: nym.fsdp(apply, STORED, COMPUTE, policy=policy),
        lambda policy: nym.axis_mapping(COMPUTE, policy=policy),
        lambda policy: nym.explain(layer, policy=policy),
    ):
        with pytest.raises(TypeError, match=r"`policy` of `\w+` is a `Policy`, such as .*, not 'int8'"):
            call("int8")
    with pytest.raises(ValueError, match="`policy` of `named_jit` belongs to a mapping; give `axis_resources`"):
        nym.named_jit(apply, policy=nym.Policy())
    with pytest.warns(RuntimeWarning, match=r"`gather_dtype` has axis 'mpl', and the mapping has 'mlp'"):
        with nym.axis_mapping({"mlp": "model"}, policy=nym.Policy(gather_dtype={"mpl": "int8"})):
            pass


# Element types by name: what layers compute and devices send with a `Precision`.


HALF = nym.Precision(computing="float16")  # which XLA for CPUs sends in 16 bits, as it does not bfloat16
HALF_X = nym.NamedArray(INPUTS.astype(np.float16), X.names)


def compute_loss_by_hand(stack: nym.nn.Stacked, x: nym.NamedArray) -> Any:
    return compute_loss(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), stack), x)


@functools.cache
def compute_expected() -> Any:
    """Returns the loss and the gradients of parameters that are converted by hand, on one device."""
    with jax.set_mesh(None):
        return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(compute_loss_by_hand))(make_stack(), HALF_X))


def check_results(results: Any, expected: Any, tolerance: float = 2e-2) -> None:
    """Compares with regard to the largest element of each array, and wants gradients in the stored type."""
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), atol=tolerance * np.abs(value).max())
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


def list_sent(compiled: Any) -> set[tuple[str, str]]:
    """Returns kinds and element types of what is sent, for arrays with more than one dimension."""
    collectives = Program(compiled.as_text()).collectives()
    return {(each.kind, result.dtype) for each in collectives for result in each.results if result.shape[1:]}


@pytest.mark.parametrize("axis_types", ["auto", pytest.param("explicit", marks=pytest.mark.thorough)])
def test_layers_send_and_compute_in_half_of_the_bits(axis_types: Any):
    stack = make_stack(gradient_checkpointing=True)
    with use_mesh(axis_types):
        step = nym.fsdp(jax.value_and_grad(compute_loss), STORED, COMPUTE, policy=nym.Policy(precision=HALF))
        by_hand = nym.fsdp(jax.value_and_grad(compute_loss_by_hand), STORED, COMPUTE)(stack, HALF_X)
        compiled = step.lower(stack, HALF_X).compile()
        check_results(compiled(stack, HALF_X), by_hand, 1e-3)
    check_results(by_hand, compute_expected())
    assert {dtype for _, dtype in list_sent(compiled)} == {"f16"}


@pytest.mark.parametrize(
    ("types", "gathered", "scattered"),
    [({"computing": "float16", "reductions": "float32"}, "f16", "f32"), ({"reductions": "float16"}, "f32", "f16")],
    ids=str,
)
def test_gradients_are_added_up_in_the_type_for_reductions(types: Any, gathered: str, scattered: str):
    with use_mesh("explicit"):
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, policy=nym.Policy(precision=nym.Precision(**types)))
        compiled = step.lower(make_stack(), X.astype(types.get("computing", "float32"))).compile()
    sent = {pair for pair in list_sent(compiled) if pair[0] != "all-reduce"}
    assert sent == {("all-gather", gathered), ("reduce-scatter", scattered)}


def test_sums_in_32_bits_keep_what_16_bits_lose():
    layer = nym.nn.Linear.init(Embed, nym.Axis("mlp", 2), key=jax.random.key(0), use_bias=False)
    x = nym.ones((nym.Axis("batch", 8), Embed.alias("inputs")), dtype=jnp.float16).at["batch", 0].set(2048)

    def compute_sum(layer: nym.nn.Linear, x: nym.NamedArray) -> Any:
        return nym.sum(layer(x.rename({"inputs": "embed"})).astype(jnp.float32)).scalar()

    mappings = {"batch": "data", "embed": "data"}, {"batch": "data"}
    with jax.set_mesh(nym.create_mesh((8,), ("data",), axis_types="explicit")):
        for reductions, is_exact in ((None, False), ({"embed": "float32"}, True), ({"vocab": "float32"}, False)):
            precision = dataclasses.replace(HALF, reductions=reductions)
            gradient = nym.fsdp(jax.grad(compute_sum), *mappings, policy=nym.Policy(precision=precision))(
                layer, x
            ).weight
            assert bool((np.asarray(gradient.array) == 2055).all()) == is_exact
            assert gradient.dtype == np.float32


def test_reductions_need_explicit_axes_where_gradients_are_added_up():
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
    x = nym.ones({"batch": 8, "embed": 128}, dtype=jnp.float16)
    precision = dataclasses.replace(HALF, reductions="float32")

    def compute_sum(layer: nym.nn.Linear) -> Any:
        return nym.sum(layer(x)).scalar()

    value, gradient = (
        nym.fsdp(function, {"embed": "data"}, {"batch": "data"}, policy=nym.Policy(precision=precision))
        for function in (compute_sum, jax.grad(compute_sum))
    )
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"), axis_types="auto")):
        assert value.eval_shape(layer).dtype == np.float16  # without a gradient nothing is added up
        with refusal(
            "`reductions` of a `Precision` asks for sums in float32 of the gradient of (mlp, embed), and on the mesh "
            "(data: 4, model: 2) the compiler adds up gradients where they are computed; make all mesh axes Explicit"
        ):
            gradient.eval_shape(layer)
    with jax.set_mesh(nym.create_mesh((1, 8), ("data", "model"), axis_types="auto")):
        assert gradient.eval_shape(layer).weight.dtype == np.float32


def test_what_layers_convert_may_be_gathered_in_fewer_bits():
    stack = make_stack()
    precision = dataclasses.replace(HALF, reductions="float32")
    step = nym.fsdp(
        jax.value_and_grad(compute_loss), STORED, COMPUTE, policy=nym.Policy(precision=precision, gather_dtype="int8")
    )
    with use_mesh("explicit"):
        compiled = step.lower(stack, HALF_X).compile()
        check_results(compiled(stack, HALF_X), compute_expected(), 0.1)
    assert ("all-gather", "s8") in list_sent(compiled)


@pytest.mark.parametrize(("axis_types", "reduce_once"), [("auto", True), ("explicit", "replica")])
def test_microbatches_add_up_gradients_in_the_stored_type(axis_types: Any, reduce_once: Any):
    precision = dataclasses.replace(HALF, reductions="float32" if axis_types == "explicit" else None)

    @nym.fsdp(STORED, COMPUTE, policy=nym.Policy(precision=precision))
    def step(stack: Any, x: Any) -> Any:
        return nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2, reduce_once=reduce_once)(stack, x)

    with use_mesh(axis_types):
        check_results(step(make_stack(), HALF_X), compute_expected())


@pytest.mark.parametrize("has_mesh", [False, True])
def test_a_mapping_alone_has_a_precision_too(has_mesh: bool):
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    x = nym.ones({"batch": 8, "embed": 128}, dtype=jnp.float16)

    def apply(layer: nym.nn.Linear) -> Any:
        return nym.sum(layer(x)).scalar().astype(jnp.float32), layer(x)

    expected = jax.jit(lambda: HALF.cast_computing(layer)(x))()
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types="explicit") if has_mesh else None
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "mlp": "model"}, policy=nym.Policy(precision=HALF)):
        (_, result), gradient = jax.jit(jax.value_and_grad(apply, has_aux=True))(layer)
    assert result.dtype == np.float16
    assert_close(result, expected, 1e-2, 1e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype(np.float32)}


def test_stages_of_a_pipeline_compute_in_the_type_for_computing():
    stack = make_stack()
    compute = {"batch": "data", "layers": "stage"}
    precision = dataclasses.replace(HALF, reductions="float32")
    policy = nym.Policy(precision=precision, microbatches={"batch": 4})
    step = nym.fsdp(jax.value_and_grad(compute_loss), compute | {"embed": "data"}, compute, policy=policy)
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "stage"), axis_types="explicit")):
        compiled = step.lower(stack, HALF_X).compile()
        check_results(compiled(stack, HALF_X), compute_expected())
    assert ("all-gather", "f16") in list_sent(compiled)


def test_the_first_name_of_a_parameter_says_how_layers_compute():
    precision = nym.Precision(computing={"mlp": None, ...: "float16"})
    with use_mesh("explicit"):
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, policy=nym.Policy(precision=precision))
        compiled = step.lower(make_stack(), X).compile()
    gathers = [each for each in Program(compiled.as_text()).collectives() if each.kind == "all-gather"]
    types = {(len(result.shape), result.dtype) for each in gathers for result in each.results}
    assert types == {(2, "f32"), (1, "f16")}


def make_float8() -> Any:
    linear = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    float8 = nym.quantization.quantize_linear_layers(linear, nym.quantization.Float8DotGeneral.init(4))
    x = HALF_X.rename({"inputs": "embed"})
    return float8, lambda layer: layer(x)


def make_table() -> Any:
    ids = nym.arange(Batch)
    return nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(1)), lambda layer: layer.unembed(layer(ids))


def make_fused_loss() -> Any:
    x, ids = HALF_X.rename({"inputs": "embed"}), nym.arange(Batch)
    table = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(1))
    return table, lambda layer: nym.nn.fused_cross_entropy(x, layer.weight, ids, "embed", "vocab")


def make_conv() -> Any:
    Height = nym.Axis("height", 8)
    x = nym.random.normal(jax.random.key(4), (Batch, Height, Embed.alias("inputs")), dtype=jnp.float16)
    conv = nym.nn.Conv.init((Height,), Embed, Mlp, kernel_size=3, padding="SAME", key=jax.random.key(2))
    return conv, lambda layer: layer(x.rename({"inputs": "embed"}))


def make_mixture() -> Any:
    x = nym.random.normal(jax.random.key(5), (Batch, nym.Axis("height", 8), Embed), dtype=jnp.float16)
    mixture = nym.nn.MixtureOfExperts.init(Embed, Mlp, nym.Axis("expert", 8), 2, key=jax.random.key(3))
    return mixture, lambda layer: layer(x)[0]


@pytest.mark.parametrize(
    ("make", "axis_types"),
    [
        (make_float8, "explicit"),
        (make_table, "auto"),
        (make_fused_loss, "explicit"),
        (make_conv, "auto"),
        pytest.param(make_mixture, "explicit", marks=pytest.mark.thorough),
    ],
)
def test_layers_do_with_a_precision_what_they_do_with_converted_parameters(make: Callable[[], Any], axis_types: Any):
    """Layers that gather parameters in other ways than `Linear`."""
    layer, apply = make()
    precision = dataclasses.replace(HALF, reductions="float32" if axis_types == "explicit" else None)

    def compute_loss(layer: Any) -> Any:
        return nym.mean(apply(layer).astype(jnp.float32) ** 2).scalar()

    def compute_loss_by_hand(layer: Any) -> Any:
        return compute_loss(precision.cast_computing(layer))

    computing = {"batch": ("replica", "data"), "vocab": "model"}
    stored = {**computing, "embed": "data"}
    with use_mesh(axis_types):
        results = nym.fsdp(jax.value_and_grad(compute_loss), stored, computing, policy=nym.Policy(precision=precision))(
            layer
        )
        check_results(results, nym.fsdp(jax.value_and_grad(compute_loss_by_hand), stored, computing)(layer), 2e-3)


def test_another_precision_is_another_program():
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    apply = jax.jit(lambda layer: layer(nym.ones(Embed, dtype=jnp.bfloat16)))
    dtypes = []
    for computing in ("bfloat16", "float32", "bfloat16"):
        with nym.axis_mapping(policy=nym.Policy(precision=nym.Precision(computing=computing))):
            dtypes.append(apply(layer).dtype)
    assert dtypes == [jnp.bfloat16, np.float32, jnp.bfloat16]


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("embed", "mlp"))
    offset: Any


def test_trees_are_converted_by_names_and_paths():
    float8 = nym.quantization.Float8DotGeneral.init(4)
    layers = [nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(i)) for i in range(2)]
    tree = {
        "layers": nym.quantization.quantize_linear_layers(layers, float8, targets="1"),
        "scale": Scale(jnp.ones((2, 3)), np.ones(2)),
        "key": jax.random.key(0),
        "small": jnp.ones(2, jnp.float8_e4m3fn),
        "step": jnp.zeros((), jnp.int32),
        "rate": 0.5,
        "label": "text",
    }

    def list_converted(types: Any) -> set[str]:
        converted = nym.Precision(parameters=types).cast_parameters(tree)
        assert jax.tree.structure(converted) == jax.tree.structure(tree)
        leaves = jax.tree_util.tree_leaves_with_path(converted, is_leaf=nym.is_named_array)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, leaf in leaves
            if getattr(leaf, "dtype", None) == jnp.bfloat16
        }

    weights, biases = {"layers/0/weight", "layers/1/weight"}, {"layers/0/bias", "layers/1/bias"}
    assert list_converted("bfloat16") == {*weights, *biases, "scale/weight", "scale/offset"}
    assert list_converted({"embed": jnp.bfloat16}) == {*weights, "scale/weight"}
    assert list_converted({re.compile("layers/1"): None, "mlp": "bfloat16"}) == {
        *("layers/0/weight", "layers/0/bias", "scale/weight")
    }
    assert list_converted({re.compile(r"offset$"): "bfloat16"}) == {"scale/offset"}
    assert list_converted({"embed": None, ...: "bfloat16"}) == {*biases, "scale/offset"}
    assert list_converted(None) == list_converted({}) == set()
    same = nym.Precision(parameters="float32").cast_parameters(tree)
    assert same["layers"][0].weight.array is tree["layers"][0].weight.array
    assert isinstance(same["scale"].offset, np.ndarray)


def test_shapes_keep_their_shardings_and_optimizer_state_its_structure():
    precision = nym.Precision(parameters="bfloat16", optimizer={re.compile(r"\bmu\b"): "bfloat16"})
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    with use_mesh("auto"):
        shapes = nym.shard(eqx.filter_eval_shape(lambda: layer), STORED)
    converted = precision.cast_parameters(shapes)
    assert converted.weight.dtype == jnp.bfloat16
    assert converted.weight.array.sharding == shapes.weight.array.sharding
    optimizer = optax.adam(1e-3)
    state = precision.cast_optimizer(optimizer.init(layer))

    @jax.jit
    def update(state: Any) -> Any:
        return precision.cast_optimizer(optimizer.update(layer, state)[1])

    assert jax.tree.map(lambda x: x.dtype, update(state)) == jax.tree.map(lambda x: x.dtype, state)
    assert state[0].mu.weight.dtype == jnp.bfloat16
    assert (state[0].nu.weight.dtype, state[0].count.dtype) == (np.float32, np.int32)


def test_precisions_are_values():
    types = {"vocab": None, re.compile("norm"): jnp.float32, ...: "bfloat16"}
    precision = nym.Precision(computing=types, parameters="float32")
    text = "Precision(parameters='float32', computing={'vocab': None, re.compile('norm'): 'float32', ...: 'bfloat16'})"
    assert repr(precision) == text
    assert eval(repr(precision), {"Precision": nym.Precision, "re": re}) == precision
    other = pickle.loads(pickle.dumps(precision))
    assert (other, hash(other)) == (precision, hash(precision))
    assert dataclasses.replace(precision, parameters=None) == nym.Precision(computing=types) != precision


def test_what_is_no_precision_is_an_error():
    tree = {"head": nym.ones({"embed": 2}), "step": 0}
    with pytest.raises(ValueError, match=r"^`computing` of a `Precision` is a floating-point type of 16 bits .*'int8'"):
        nym.Precision(computing="int8")
    with pytest.raises(ValueError, match=r"`optimizer` of a `Precision` .* to these and None, not 'float8_e4m3fn'"):
        nym.Precision(optimizer={"embed": "float8_e4m3fn"})
    with pytest.raises(TypeError, match=r"Axis\(name='mlp', size=128\) is not a name; use 'mlp'"):
        nym.Precision(parameters={Mlp: "bfloat16"})
    message = "pattern 'tail' in `parameters` of a `Precision` matches no floating-point array; their paths are head"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        nym.Precision(parameters={re.compile("tail"): "bfloat16"}).cast_parameters(tree)
    with pytest.warns(RuntimeWarning, match="`parameters` has axis 'embd', and the arrays have 'embed'"):
        nym.Precision(parameters={"embd": "bfloat16"}).cast_parameters(tree)
    with pytest.warns(RuntimeWarning, match="`reductions` has axis 'replcia', and the mapping has 'replica'"):
        policy = nym.Policy(precision=nym.Precision(reductions={"replcia": "float32"}))
        with nym.axis_mapping({"replica": "data"}, policy=policy):
            pass
    with pytest.raises(TypeError, match=r"is a `Precision`, such as `nym.Precision\(.*\)`, not 'bfloat16'"):
        nym.Policy(precision="bfloat16")  # pyright: ignore[reportArgumentType]
    by_path = nym.Precision(computing={re.compile("head"): "bfloat16"})
    with pytest.raises(ValueError, match=r"pattern 'head' in `computing` of a `Precision` needs paths, .* or convert"):
        nym.Policy(precision=by_path)
