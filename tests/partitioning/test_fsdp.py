"""`fsdp`: the state is sharded one way between steps, and computed with another way."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


COMPUTE = {"batch": "data", "mlp": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}
Batch, Pixel, Embed, Mlp = nym.make_axes(batch=8, pixel=3, embed=4, mlp=6)


class Model(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear
    scale: jax.Array = nym.field(axis_names="embed")


class State(eqx.Module):
    model: Model
    moment: Model
    count: jax.Array
    act: object


def drawn(seed, *axes):
    """Returns a NumPy array, which lies nowhere yet."""
    values = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    return nym.NamedArray(values, [axis.name for axis in axes])


def state():
    up = nym.nn.Linear(drawn(1, Embed, Pixel), drawn(2, Embed), (Pixel,), (Embed,))
    down = nym.nn.Linear(drawn(3, Mlp, Embed), None, (Embed,), (Mlp,))
    model = Model(up, down, drawn(4, Embed).array)
    return State(model, jax.tree.map(np.zeros_like, model), np.float32(0), nym.tanh)


def loss(model, act, x):
    scale = nym.auto_sharded(nym.named(model.scale, "embed"))  # gathered, as layers do with their own
    y = model.down(act(model.up(x)) * scale)
    return nym.mean(y * y).array


def step(state, x):
    value, grads = jax.value_and_grad(loss)(state.model, state.act, x)
    moment = jax.tree.map(lambda m, g: 0.9 * m + g, state.moment, grads)
    model = jax.tree.map(lambda p, m: p - 0.1 * m, state.model, moment)
    return State(model, moment, state.count + 1, state.act), value, grads


@jax.jit
def reference_step(parameters, moments, x):
    """The same in arrays without names."""

    def loss(up, bias, down, scale):
        return (((jnp.tanh(x @ up.T + bias[None]) * scale[None]) @ down.T) ** 2).mean()

    value, grads = jax.value_and_grad(loss, (0, 1, 2, 3))(*parameters)
    moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
    return [p - 0.1 * m for p, m in zip(parameters, moments, strict=True)], moments, value, grads


FORMS = {
    "function": lambda fn: nym.fsdp(fn, PARAMETERS, COMPUTE),
    "function, by keyword": lambda fn: nym.fsdp(fn, parameter_mapping=PARAMETERS, compute_mapping=COMPUTE),
    "decorator": lambda fn: nym.fsdp(PARAMETERS, COMPUTE)(fn),
    "decorator, by keyword": lambda fn: nym.fsdp(parameter_mapping=PARAMETERS, compute_mapping=COMPUTE)(fn),
    "decorator, half by keyword": lambda fn: nym.fsdp(PARAMETERS, compute_mapping=COMPUTE)(fn),
    "named_jit": lambda fn: nym.named_jit(fn, COMPUTE, in_axis_resources=PARAMETERS, out_axis_resources=PARAMETERS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shards_by_one_mapping_and_computes_under_the_other(mesh, form):
    seen = []

    def fn(x, *, y):
        seen.append(nym.current_mapping())
        return x + y

    x, fn = drawn(0, Mlp, Embed), FORMS[form](fn)
    assert fn.__name__ == "fn"
    result = fn(x, y=x)
    assert seen == [nym.AxisMapping(COMPUTE)]
    assert result.sharding.is_equivalent_to(NamedSharding(mesh, P("model", "data")), 2)


def test_the_state_stays_sharded_and_the_results_are_those_of_one_device(mesh):
    fn, now, x = nym.fsdp(step, PARAMETERS, COMPUTE), state(), drawn(0, Batch, Pixel)
    parameters, moments = jax.tree.leaves(now.model), jax.tree.leaves(now.moment)
    specs = [P("data", None), P("data"), P("model", "data"), P("data")]
    for count in range(3):
        now, value, grads = fn(now, x)
        with jax.set_mesh(None):
            parameters, moments, expected, gradients = reference_step(parameters, moments, x.array)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        for tree, arrays in ((now.model, parameters), (now.moment, moments), (grads, gradients)):
            for leaf, array, spec in zip(jax.tree.leaves(tree), arrays, specs, strict=True):
                assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim)
                np.testing.assert_allclose(np.asarray(leaf), array, rtol=1e-4, atol=1e-6)
        assert now.act is nym.tanh
        assert now.count == count + 1


def test_the_gradient_of_a_compiled_function(mesh):
    with jax.set_mesh(None):
        model, x = state().model, drawn(0, Batch, Pixel)
        expected = jax.grad(loss)(jax.tree.map(jnp.asarray, model), nym.tanh, x)
    sharded = nym.shard(model, PARAMETERS)
    grads = jax.grad(nym.fsdp(loss, PARAMETERS, COMPUTE))(sharded, nym.tanh, x)
    for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-6)


def test_parameters_are_divided_between_steps_and_gathered_where_they_are_used(mesh):
    def lowered(parameters):
        return nym.fsdp(loss, parameters, COMPUTE).lower(state().model, nym.tanh, drawn(0, Batch, Pixel)).compile()

    divided, whole = lowered(PARAMETERS), lowered(COMPUTE)
    assert "all-gather" in divided.as_text()
    assert "all-gather" not in whole.as_text()
    sizes = [compiled.memory_analysis().argument_size_in_bytes for compiled in (divided, whole)]
    assert sizes[1] - sizes[0] == 4 * (12 + 4 + 12 + 4) * 3 // 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: nym.fsdp(),
        lambda: nym.fsdp(PARAMETERS),
        lambda: nym.fsdp(PARAMETERS, COMPUTE, COMPUTE),
        lambda: nym.fsdp(step),
        lambda: nym.fsdp(step, PARAMETERS),
        lambda: nym.fsdp(step, compute_mapping=COMPUTE),
        lambda: nym.fsdp(parameter_mapping=PARAMETERS),
    ],
)
def test_one_mapping_is_not_enough_and_three_are_too_many(wrong):
    with pytest.raises(TypeError, match="`fsdp` takes two mappings: one for parameters, and one for computing"):
        wrong()
