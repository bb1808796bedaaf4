"""Parameters that `fsdp` gathers in few bits: what is sent, what layers compute with, and their gradients."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.partitioning import AxisMapping
from axonym.planner import communication_report
from tests.partitioning.blocks import Block


Batch, Embed, Mlp, Layers = nym.make_axes(batch=16, embed=128, mlp=128, layers=2)
COMPUTE = {"batch": ("replica", "data"), "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}


def make_stack(**options: Any) -> nym.nn.Stacked:
    keys = jax.random.split(jax.random.key(0), Layers.size)
    return nym.nn.Stacked.init(Layers, Block, **options)(Embed, Mlp, key=keys)


X = nym.random.normal(jax.random.key(1), (Batch, Embed.alias("inputs")))  # no axis over `data` twice


def compute_loss(stack: nym.nn.Stacked, x: nym.NamedArray) -> Any:
    return nym.mean(stack.fold(x.rename({"inputs": "embed"})) ** 2).scalar()


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


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("dtype", ["float16", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_layers_compute_with_rounded_parameters_and_gradients_are_those_without(dtype: str, axis_types: Any):
    stack = make_stack(gradient_checkpointing=True)
    rounded = round_parameters(stack, dtype)
    assert any((a != b).any() for a, b in zip(get_arrays(stack), get_arrays(rounded), strict=True))
    # The stored parameters are exact: the gradient of the rounded ones is added to them.
    expected_loss, gradients = jax.value_and_grad(compute_loss)(rounded, X)
    expected = jax.tree.map(lambda x, gradient: x - gradient, stack, gradients)

    @nym.fsdp(STORED, COMPUTE, gather_dtype=dtype)
    def step(stack: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(stack, x)
        return loss, jax.tree.map(lambda x, gradient: x - gradient, stack, gradients)

    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        loss, new_stack = step(stack, X)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for array, expected_array in zip(get_arrays(new_stack), get_arrays(expected), strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_a_quarter_is_gathered_of_what_32_bits_have_and_norms_are_gathered_as_they_are(axis_types: Any):
    stack = make_stack()

    def count_gathered(gather_dtype: Any) -> dict[str, int]:
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, gather_dtype=gather_dtype)
        report = communication_report(step, stack, X)
        gathers = report.select("all-gather", "embed")
        return {
            operation: sum(gather.bytes for gather in gathers if gather.operation == operation)
            for operation in ("gather(mlp, embed)", "gather(embed)")
        }

    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        exact, rounded = count_gathered(None), count_gathered("int8")
        only_vocab, without_mlp = count_gathered({"vocab": "int8"}), count_gathered({"mlp": None, "embed": "int8"})
    block_size = Mlp.size // 2  # the elements that share a scale of four bytes
    assert rounded["gather(mlp, embed)"] * 4 == exact["gather(mlp, embed)"] * (1 + 4 / block_size)
    assert rounded["gather(embed)"] == exact["gather(embed)"]
    assert only_vocab == without_mlp == exact


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_a_policy_can_save_what_is_gathered(axis_types: Any):
    policy = nym.ScanCheckpointPolicy(save_block_internals=["gathered"])

    def count_runs(checkpointing: Any) -> int:
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, gather_dtype="int8")
        report = communication_report(step, make_stack(gradient_checkpointing=checkpointing), X)
        return sum(gather.runs for gather in report.select("all-gather") if "mlp" in gather.operation)

    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        assert count_runs(True) == 2 * count_runs(policy)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_every_transformation_takes_rounding_for_the_identity(axis_types: Any):
    axes = {"copy": 2, "mlp": 128, "embed": 128}
    weight, tangent = nym.random.normal(jax.random.key(2), axes), nym.random.normal(jax.random.key(3), axes)

    def push_forward(weight: Any, tangent: Any) -> Any:
        return nym.vmap(lambda weight, tangent: jax.jvp(apply, (weight,), (tangent,)), "copy")(weight, tangent)

    def multiply_hessian(weight: Any, tangent: Any) -> Any:
        gradient = jax.grad(lambda weight: nym.sum(apply(weight) ** 3).scalar())
        return jax.jvp(gradient, (weight,), (tangent,))[1]

    def apply_all(transform: Any) -> list[np.ndarray]:
        matrices = weight["copy", 0], tangent["copy", 0]
        return get_arrays((transform(push_forward)(weight, tangent), transform(multiply_hessian)(*matrices)))

    expected = apply_all(lambda function: function)
    with jax.set_mesh(nym.create_mesh((1, 4, 2), ("replica", "data", "model"), axis_types=axis_types)):
        results = apply_all(nym.fsdp(parameter_mapping=STORED, compute_mapping=COMPUTE, gather_dtype="int8"))
    errors = [
        np.linalg.norm(array - exact) / np.linalg.norm(exact) for array, exact in zip(results, expected, strict=True)
    ]
    value_error, tangent_error, hessian_error = errors
    assert 1e-3 < value_error < 0.02
    assert tangent_error < 1e-5  # the derivative of a linear function takes no weights
    assert 1e-3 < hessian_error < 0.02


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(wrong: float, axis_types: Any):
    weight = nym.zeros({"mlp": 128, "embed": 128}).at["embed", 3, "mlp", 5].set(wrong)
    apply_rounded = nym.fsdp(apply, STORED, COMPUTE, gather_dtype="int8")
    with jax.set_mesh(nym.create_mesh((1, 4, 2), ("replica", "data", "model"), axis_types=axis_types)):
        result = np.asarray(apply_rounded(weight)["mlp", 5].array)
    assert np.isnan(result).all()


def test_microbatches_add_up_gradients_as_they_do_without_rounding():
    stack = make_stack()

    def step(stack: Any, x: Any) -> Any:
        return nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2, reduce_once="replica")(stack, x)

    with jax.set_mesh(nym.create_mesh((2, 4), ("replica", "data"), axis_types="explicit")):
        mapping = {"batch": ("replica", "data")}
        rounded = nym.fsdp(step, {**mapping, "embed": "data"}, mapping, gather_dtype="float16")
        loss, gradients = rounded(stack, X)
        nym.planner.assert_communication(rounded, stack, X, at_most_runs={"replica": 1})
    expected = jax.value_and_grad(compute_loss)(round_parameters(stack, "float16"), X)
    for array, expected_array in zip(get_arrays((loss, gradients)), get_arrays(expected), strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-4, atol=1e-6)


def test_the_option_belongs_to_the_mapping_of_parameters():
    mapping = AxisMapping(STORED, gather_dtype={"vocab": None, "embed": "int8"})
    assert mapping.find_gather_dtype(("mlp", "embed")) == "int8"
    assert mapping.find_gather_dtype(("vocab", "embed")) is None
    assert mapping != AxisMapping(STORED)
    with nym.axis_mapping(COMPUTE), nym.axis_mapping(mapping, merge=True):
        assert nym.current_mapping() == mapping
    assert eval(repr(mapping), {"AxisMapping": AxisMapping, "dtype": np.dtype}) == mapping
    with pytest.warns(RuntimeWarning, match=r"`gather_dtype` has axis 'mpl', and the mapping has 'mlp'"):
        AxisMapping(STORED, gather_dtype={"mpl": "int8"})
    with pytest.raises(ValueError, match=r"and None, not \{'embed': 'int8'\}"):
        AxisMapping(STORED, gather_dtype={"mlp": {"embed": "int8"}})
    with pytest.raises(TypeError, match=r"Axis\(name='mlp', size=128\) is not a name; use 'mlp'"):
        AxisMapping(STORED, gather_dtype={Mlp: "int8"})
    with pytest.raises(ValueError, match=r"`in_axis_resources` replaces the `parameter_mapping` of `fsdp`"):
        nym.fsdp(compute_loss, STORED, COMPUTE, gather_dtype="int8", in_axis_resources=(STORED, COMPUTE))
    with pytest.raises(ValueError, match=r"`gather_dtype` is one of 'bfloat16', .* and None, not 'int4'"):
        nym.fsdp(compute_loss, STORED, COMPUTE, gather_dtype="int4")


def test_complex_parameters_are_gathered_as_they_are():
    weight = nym.random.normal(jax.random.key(4), {"mlp": 128, "embed": 128}).astype(jnp.complex64) * 1j
    with jax.set_mesh(nym.create_mesh((1, 4, 2), ("replica", "data", "model"), axis_types="auto")):
        result = nym.fsdp(apply, STORED, COMPUTE, gather_dtype="int8")(weight)
    np.testing.assert_allclose(
        np.asarray(result.array), np.asarray(apply(weight).rearrange(result.names).array), rtol=1e-4
    )
