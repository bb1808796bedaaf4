"""`fsdp`: the state is sharded one way between steps, and computed with another way."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym

from ..hlo import Program


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


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(Embed, Mlp, *, key):
        keys = jax.random.split(key)
        up = nym.nn.Linear.init(Embed, Mlp, key=keys[0], use_bias=False)
        return Block(nym.nn.RmsNorm.init(Embed), up, nym.nn.Linear.init(Mlp, Embed, key=keys[1], use_bias=False))

    def __call__(self, x):
        return x + self.down(nym.tanh(self.up(self.norm(x))))


def clipped_step(stack, x):
    """Makes a step whose length depends on the norm of the gradients, which takes all of them."""

    def loss(stack):
        y = stack.fold(x.rename({"pixel": "embed"}))
        return nym.mean(y * y).array

    value, grads = jax.value_and_grad(loss)(stack)
    norm = sum(jnp.sum(grad * grad) for grad in jax.tree.leaves(grads))
    return jax.tree.map(lambda p, g: p - 0.1 * g / norm, stack, grads), value


@functools.cache
def compiled_stack(mesh, layers, has_two_mappings=False):
    """Returns `clipped_step` compiled for layers whose parameters are many more than what passes between them."""
    embed, mlp = nym.make_axes(embed=64, mlp=128)
    stacked = nym.nn.Stacked.init(nym.Axis("layers", layers), Block, gradient_checkpointing=True)
    stack = jax.eval_shape(lambda: stacked(embed, mlp, key=jax.random.key(0)))
    x = jax.eval_shape(lambda: nym.zeros((Batch, embed.alias("pixel"))))
    options = {"in_axis_resources": (PARAMETERS, COMPUTE)} if has_two_mappings else {}
    return nym.fsdp(clipped_step, PARAMETERS, COMPUTE, donate_args=(True,), **options).lower(stack, x).compile()


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


def test_parameters_are_sharded_between_steps_and_gathered_for_use(mesh):
    def lowered(parameters):
        return nym.fsdp(loss, parameters, COMPUTE).lower(state().model, nym.tanh, drawn(0, Batch, Pixel)).compile()

    divided, whole = lowered(PARAMETERS), lowered(COMPUTE)
    assert "all-gather" in divided.as_text()
    assert "all-gather" not in whole.as_text()
    sizes = [compiled.memory_analysis().argument_size_in_bytes for compiled in (divided, whole)]
    assert sizes[1] - sizes[0] == 4 * (12 + 4 + 12 + 4) * 3 // 4


def is_explicit(mesh):
    return AxisType.Explicit in mesh.axis_types


def test_each_layer_is_gathered_in_turn_and_keeps_a_part_of_its_gradients(mesh):
    program = Program(compiled_stack(mesh, 10).as_text())
    found = program.collectives()
    # XLA for CPUs has no reduce-scatter of its own; on Explicit mesh axes the gradient of a gather is one.
    assert {one.kind for one in found} == {
        "all-gather",
        "all-reduce",
        *(["reduce-scatter"] if is_explicit(mesh) else []),
    }
    gathers = [one for one in found if one.kind == "all-gather"]
    assert all(one.in_loop and one.times == 10 for one in gathers), gathers
    sizes = sorted(array.bytes for one in gathers for array in one.results)
    assert sizes == [64 * 4] * 2 + [64 * 64 * 4] * 4, "One layer's, forwards and backwards."
    scatters = [one for one in found if one.kind == "reduce-scatter"]
    assert all(one.in_loop for one in scatters), scatters
    assert {array.shape for one in scatters for array in one.results} <= {(16,), (16, 64), (64, 16)}
    for one in found:
        gradients = one.kind == "all-reduce" and {(64,), (64, 64)} & {array.shape for array in one.results}
        if not gradients:
            continue
        assert one.in_loop
        used = {array.shape for user in program.users(one.name) for array in user.results}
        assert used == {(10, 16), (10, 16, 64), (10, 64, 16)}, "What is used of a sum is the part of this device."


def test_the_norm_of_a_gradient_takes_parts_alone(mesh):
    def clipped(layer, x):
        grads = jax.grad(lambda layer: nym.mean(nym.square(layer(x.rename({"pixel": "embed"})))).array)(layer)
        return layer.weight - grads.weight / nym.sum(nym.square(grads.weight))

    layer = nym.nn.Linear(drawn(1, Mlp, Embed), None, (Embed,), (Mlp,))
    x = drawn(0, Batch, Embed.alias("pixel"))
    program = Program(nym.fsdp(clipped, PARAMETERS, COMPUTE).lower(layer, x).compile().as_text())
    whole_sums = [one for one in program.collectives() if one.kind == "all-reduce" and one.results[0].shape == (3, 4)]
    if is_explicit(mesh):
        assert not whole_sums
        return
    (whole,) = whole_sums
    for user in program.users(whole.name):
        called = re.findall(r"calls=%([\w.\-]+)", user.attributes)
        inside = {one.opcode for one in program.instructions if one.computation in called}
        assert "dynamic-slice" in {user.opcode, *inside}, f"{user} takes the whole gradient."


def test_data_by_the_mapping_for_computing_leaves_the_program_as_it_is(mesh):
    def list_instructions(compiled):
        return [line.split(", metadata=")[0] for line in compiled.as_text().splitlines() if " = " in line]

    of_two_mappings = compiled_stack(mesh, 10, has_two_mappings=True)
    assert list_instructions(of_two_mappings) == list_instructions(compiled_stack(mesh, 10))


def test_temporaries_grow_by_parts_of_layers(mesh):
    few, many = (compiled_stack(mesh, layers).memory_analysis() for layers in (2, 10))
    part, gathered = (64 * 128 * 2 // 8 + 64 // 4) * 4, (64 * 128 * 2 // 2 + 64) * 4
    between = 8 * 64 * 4 // 4
    assert many.alias_size_in_bytes == 10 * part
    growth = (many.temp_size_in_bytes - few.temp_size_in_bytes) / 8
    assert growth <= 1.02 * (part + between), (
        "More than its part of the gradients and what passes on is kept of a layer."
    )
    assert growth < gathered / 3


def test_a_mapping_entered_inside_takes_parameters_as_they_are(mesh):
    def gathered_first(weight, x):
        with nym.axis_mapping(COMPUTE):
            weight, layer = nym.auto_sharded(weight), nym.nn.Linear(weight, None, (Embed,), (Mlp,))
            for _ in range(3):
                x = layer(x.rename({"pixel": "embed"})).rename({"mlp": "pixel"})[{"pixel": slice(4)}]
        return x

    x = drawn(0, Batch, Embed.alias("pixel"))
    text = nym.fsdp(gathered_first, PARAMETERS, COMPUTE).lower(drawn(1, Mlp, Embed), x).compile().as_text()
    weights = [
        one for one in Program(text).collectives() if one.kind == "all-gather" and one.results[0].shape == (3, 4)
    ]
    assert len(weights) == 1


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


def test_a_gradient_for_each_slice_of_an_axis_that_shards_the_parameter_is_an_error(mesh):
    def compute_gradients(layer, x):
        return nym.vmap(lambda x: jax.grad(lambda layer: layer(x).sum().scalar())(layer), Batch)(x)

    run = nym.fsdp(compute_gradients, {"embed": "data"}, {"batch": "data"}, in_axis_resources=({"embed": "data"}, None))
    layer, x = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)), nym.ones((Batch, Embed))
    text = "`vmap` maps batch: 8 over a mesh axis that also shards an array inside, such as the gradient of a parameter"
    with pytest.raises(ValueError, match=text):
        run(layer, nym.shard(x, {"batch": "data"}))


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [
        (nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)), {"pos": 8, "embed": 4}),
        (nym.nn.LayerNorm.init((Embed, Pixel)), {"pos": 8, "pixel": 3, "embed": 4}),
    ],
)
def test_inputs_without_the_batch_in_another_order_than_the_parameter(explicit_mesh, layer, sizes):
    """XLA ended the process for inputs that are sharded over other mesh axes than those of the batch alone."""

    def compute_gradient(layer, x):
        return jax.grad(lambda layer: nym.sin(layer(x)).sum().scalar())(layer)

    x = nym.random.normal(jax.random.key(1), sizes)
    compute = {"batch": "data", "pos": "model"}
    expected = compute_gradient(layer, x)
    stored = {"embed": "data"}
    run = nym.fsdp(compute_gradient, stored, compute, in_axis_resources=(stored, compute))
    with jax.set_mesh(explicit_mesh):
        gradient = run(layer, x)
    np.testing.assert_allclose(np.asarray(gradient.weight), np.asarray(expected.weight), rtol=1e-5)
