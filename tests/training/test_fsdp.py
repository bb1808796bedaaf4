"""State that is sharded one way between steps and computed with another way: `fsdp`, and optimizers with a mapping."""

import contextlib
import functools
import re
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym
from tests.hlo import Program
from tests.partitioning.arrays import assert_close, on_auto, on_explicit
from tests.refusals import refusal


COMPUTE = {"batch": "data", "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
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
def compiled_stack(mesh, layers):
    """Returns `clipped_step` compiled for layers whose parameters are many more than what passes between them."""
    embed, mlp = nym.make_axes(embed=64, mlp=128)
    stacked = nym.nn.Stacked.init(nym.Axis("layers", layers), Block, gradient_checkpointing=True)
    stack = jax.eval_shape(lambda: stacked(embed, mlp, key=jax.random.key(0)))
    x = jax.eval_shape(lambda: nym.zeros((Batch, embed.alias("pixel"))))
    return nym.fsdp(clipped_step, STORED, COMPUTE, donate_args=(True,)).lower(stack, x).compile()


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
    "function": lambda fn: nym.fsdp(fn, STORED, COMPUTE),
    "decorator": lambda fn: nym.fsdp(STORED, COMPUTE)(fn),
    "decorator, half by keyword": lambda fn: nym.fsdp(STORED, compute_mapping=COMPUTE)(fn),
    "named_jit": lambda fn: nym.named_jit(fn, COMPUTE, in_axis_resources=STORED, out_axis_resources=STORED),
}


@on_auto
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
    fn, now, x = nym.fsdp(step, STORED, COMPUTE), state(), drawn(0, Batch, Pixel)
    parameters, moments = jax.tree.leaves(now.model), jax.tree.leaves(now.moment)
    specs = [P("data", None), P("data"), P("model", "data"), P("data")]
    for count in range(3):
        now, value, grads = fn(now, x)
        with jax.set_mesh(None):
            parameters, moments, expected, gradients = reference_step(parameters, moments, x.array)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        assert_close((now.model, now.moment, grads), (parameters, moments, gradients), 1e-4)
        for tree in (now.model, now.moment, grads):
            for leaf, spec in zip(jax.tree.leaves(tree), specs, strict=True):
                assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec), leaf.ndim)
        assert now.act is nym.tanh
        assert now.count == count + 1


@on_explicit
def test_the_gradient_of_a_compiled_function(mesh):
    with jax.set_mesh(None):
        model, x = state().model, drawn(0, Batch, Pixel)
        expected = jax.jit(jax.grad(loss), static_argnums=1)(model, nym.tanh, x)
    sharded = nym.shard(model, STORED)
    grads = jax.grad(nym.fsdp(loss, STORED, COMPUTE))(sharded, nym.tanh, x)
    assert_close(grads, expected, 1e-4)


def test_each_layer_is_gathered_in_turn_and_keeps_a_part_of_its_gradients(mesh):
    program = Program(compiled_stack(mesh, 10).as_text())
    collectives = program.collectives()
    # XLA for CPUs has no reduce-scatter of its own; on Explicit mesh axes the gradient of a gather is one.
    kinds = {"all-gather", "all-reduce", *(["reduce-scatter"] if AxisType.Explicit in mesh.axis_types else [])}
    assert {each.kind for each in collectives} == kinds
    gathers = [each for each in collectives if each.kind == "all-gather"]
    assert all(each.in_loop and each.times == 10 for each in gathers), gathers
    sizes = sorted(array.bytes for each in gathers for array in each.results)
    assert sizes == [64 * 4] * 2 + [64 * 64 * 4] * 4, "One layer's, forwards and backwards."
    scatters = [each for each in collectives if each.kind == "reduce-scatter"]
    assert all(each.in_loop for each in scatters), scatters
    assert {array.shape for each in scatters for array in each.results} <= {(16,), (16, 64), (64, 16)}
    for each in collectives:
        gradients = each.kind == "all-reduce" and {(64,), (64, 64)} & {array.shape for array in each.results}
        if not gradients:
            continue
        assert each.in_loop
        used = {array.shape for user in program.users(each.name) for array in user.results}
        assert used == {(10, 16), (10, 16, 64), (10, 64, 16)}, "What is used of a sum is the part of this device."


def test_the_norm_of_a_gradient_takes_parts_alone(mesh):
    def clipped(layer, x):
        grads = jax.grad(lambda layer: nym.mean(nym.square(layer(x.rename({"pixel": "embed"})))).array)(layer)
        return layer.weight - grads.weight / nym.sum(nym.square(grads.weight))

    layer = nym.nn.Linear(drawn(1, Mlp, Embed), None, (Embed,), (Mlp,))
    x = drawn(0, Batch, Embed.alias("pixel"))
    program = Program(nym.fsdp(clipped, STORED, COMPUTE).lower(layer, x).compile().as_text())
    whole_sums = [one for one in program.collectives() if one.kind == "all-reduce" and one.results[0].shape == (3, 4)]
    if AxisType.Explicit in mesh.axis_types:
        assert not whole_sums
        return
    (whole,) = whole_sums
    for user in program.users(whole.name):
        called = re.findall(r"calls=%([\w.\-]+)", user.attributes)
        inside = {one.opcode for one in program.instructions if one.computation in called}
        assert "dynamic-slice" in {user.opcode, *inside}, f"{user} takes the whole gradient."


def test_temporaries_grow_by_parts_of_layers(mesh):
    few, many = (compiled_stack(mesh, layers).memory_analysis() for layers in (2, 10))
    part, gathered = (64 * 128 * 2 // 8 + 64 // 4) * 4, (64 * 128 * 2 // 2 + 64) * 4
    between = 8 * 64 * 4 // 4
    assert many.alias_size_in_bytes == 10 * part
    growth = (many.temp_size_in_bytes - few.temp_size_in_bytes) / 8
    assert growth <= 1.02 * (part + between), "Of a layer, more is kept than its part of the gradients and its input."
    assert growth < gathered / 3


@on_explicit
def test_a_mapping_entered_inside_takes_parameters_as_they_are(mesh):
    def gathered_first(weight, x):
        with nym.axis_mapping(COMPUTE):
            weight, layer = nym.auto_sharded(weight), nym.nn.Linear(weight, None, (Embed,), (Mlp,))
            for _ in range(3):
                x = layer(x.rename({"pixel": "embed"})).rename({"mlp": "pixel"})[{"pixel": slice(4)}]
        return x

    x = drawn(0, Batch, Embed.alias("pixel"))
    text = nym.fsdp(gathered_first, STORED, COMPUTE).lower(drawn(1, Mlp, Embed), x).compile().as_text()
    gathers = [each for each in Program(text).collectives() if each.kind == "all-gather"]
    assert [each.results[0].shape for each in gathers].count((3, 4)) == 1


@pytest.mark.parametrize("arguments", [(), (STORED,), (STORED, COMPUTE, COMPUTE), (step,), (step, STORED)])
def test_one_mapping_is_not_enough_and_three_are_too_many(arguments):
    with refusal("`fsdp` takes two mappings: one for parameters, and one for computing", TypeError):
        nym.fsdp(*arguments)


@on_explicit
def test_a_gradient_for_each_slice_of_an_axis_that_shards_the_parameter_is_an_error(mesh):
    def compute_gradients(layer, x):
        return nym.vmap(lambda x: jax.grad(lambda layer: layer(x).sum().scalar())(layer), Batch)(x)

    stored, compute = {"embed": "data"}, {"batch": "data"}
    run = nym.fsdp(compute_gradients, stored, compute, in_axis_resources=(stored, None))
    layer = nym.nn.Linear(drawn(1, Mlp, Embed), None, (Embed,), (Mlp,))
    with refusal("`vmap` maps batch: 8 over a mesh axis that also shards an array inside, such as the gradient of a p"):
        run(layer, nym.shard(drawn(0, Batch, Embed), compute))


@pytest.mark.parametrize("axes", [(Embed,), (Pixel, Embed)], ids=["linear", "norm"])
def test_inputs_without_the_batch_in_another_order_than_the_parameter(explicit_mesh, axes):
    """XLA ended the process for inputs that are sharded over other mesh axes than those of the batch alone."""

    def compute_gradient(layer, x):
        return jax.grad(lambda layer: nym.sin(layer(x)).sum().scalar())(layer)

    is_linear = axes == (Embed,)
    layer = nym.nn.Linear(drawn(1, Mlp, Embed), None, axes, (Mlp,)) if is_linear else nym.nn.LayerNorm.init(axes[::-1])
    x, stored, compute = drawn(0, nym.Axis("pos", 8), *axes), {"embed": "data"}, {"batch": "data", "pos": "model"}
    expected = jax.jit(compute_gradient)(layer, x)
    run = nym.fsdp(compute_gradient, stored, compute, in_axis_resources=(stored, compute))
    with jax.set_mesh(explicit_mesh):
        gradient = run(layer, x)
    assert_close(gradient.weight, expected.weight)


# Optimizers of Optax: their state has the shardings of the parameters, by name, or those of a mapping of its own.


class Parameters(eqx.Module):
    weight: nym.NamedArray
    bias: nym.NamedArray
    scale: jax.Array = nym.field(axis_names="embed")


def make_parameters(seed=0):
    embed, mlp = Embed.resize(8), Mlp.resize(4)
    return Parameters(drawn(seed, embed, mlp), drawn(seed + 1, mlp), drawn(2, embed).array)


def of_matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def of_named_matrices(params):
    """The same with one answer for each named array, in place of one inside each."""
    return jax.tree.map(lambda p: p.ndim > 1, params, is_leaf=nym.is_named_array)


def kinds(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)


SCHEDULE = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 10)
OPTIMIZERS = {
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "adamw": optax.adamw(SCHEDULE, mask=of_matrices),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "lion, clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.lion(1e-2)),
    "masked": optax.masked(optax.adam(1e-2), of_named_matrices),
    "partition": optax.partition({"matrix": optax.adam(1e-2), "vector": optax.sgd(1e-2)}, kinds),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "inject_hyperparams": optax.inject_hyperparams(optax.sgd)(SCHEDULE),
    "ema": optax.chain(optax.ema(0.9), optax.scale(-1e-2)),
}


def init(params, optimizers=OPTIMIZERS):
    return {name: optimizers[name].init(params) for name in optimizers}


def update(gradients, states, params, optimizers=OPTIMIZERS):
    pairs = {name: one.update(gradients, states[name], params) for name, one in optimizers.items()}
    return {name: updates for name, (updates, _) in pairs.items()}, {name: state for name, (_, state) in pairs.items()}


def two_steps(gradients, states, params, optimizers=OPTIMIZERS, compiled=nym.named_jit):
    """Updates twice, so that `MultiSteps` emits and schedules move."""
    step = compiled(lambda *args: update(*args, optimizers))
    return step(gradients, step(gradients, states, params)[1], params)


@functools.cache
def update_on_one_device():
    """Returns states, and updates and states after two steps."""
    with jax.set_mesh(None):
        states = jax.jit(init)(make_parameters())
        results = states, *two_steps(make_parameters(3), states, make_parameters(), compiled=jax.jit)
        return jax.tree.map(np.asarray, results)


def misplaced(tree, mapping, mesh):
    """Returns where a tree has arrays that are not sharded as their names say, and scalars that are not replicated."""
    found = []
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=nym.is_named_array):
        declared = getattr(path[-1], "name", "") == "scale"
        names = node.names if nym.is_named_array(node) else ("embed",) if declared else ()
        for array in jax.tree.leaves(node):
            if array.ndim != len(names) or array.shape == (1,):
                continue  # Adafactor's: a sum over one axis of the parameter, or one element in its place
            sharding = NamedSharding(mesh, nym.pspec_for_axis(names, mapping) if names else P())
            if not array.sharding.is_equivalent_to(sharding, array.ndim):
                found.append(jax.tree_util.keystr(path))
    return found


def local_bytes(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@on_auto
def test_states_and_updates_have_the_shardings_of_their_names(mesh):
    """So have the shapes of a state, into which a checkpoint is restored."""
    expected = update_on_one_device()
    with nym.axis_mapping(STORED):
        params, gradients = nym.shard(make_parameters()), nym.shard(make_parameters(3))
        states = nym.named_jit(init)(params)
        shapes = nym.shard(jax.eval_shape(init, make_parameters()))
        assert_close(states, expected[0], 2e-4)
        updates, new = two_steps(gradients, states, params)
    assert_close((updates, new), expected[1:], 2e-4)
    assert misplaced((states, shapes, updates, new), STORED, mesh) == []
    assert jax.tree.structure(shapes) == jax.tree.structure(states)
    assert local_bytes(states["adamw"]) == 2 * local_bytes(params) + 4 + 4
    of_matrix = states["adafactor"][0]  # what Adafactor keeps of a matrix is whole and small
    assert of_matrix.v.weight.array.shape == of_matrix.v_row.bias.array.shape == (1,)
    assert {of_matrix.v_row.weight.array.shape, of_matrix.v_col.weight.array.shape} == {(4,), (8,)}
    assert of_matrix.v.bias.sharding.shard_shape((4,)) == (2,)
    plain = jax.jit(optax.adam(1e-2).init)(params)
    assert plain[0].mu.weight.sharding.is_fully_replicated


@on_explicit
def test_sharded_optimizers_compute_the_same_with_less_memory(mesh):
    """Also optimizers of sharded optimizers."""
    adam = nym.sharded_optimizer(optax.adam(1e-2), STORED)
    around = {
        "MultiSteps": optax.MultiSteps(adam, 2),
        "masked": optax.masked(adam, of_matrices),  # with a boolean inside each named array
        "partition": optax.partition({"matrix": adam, "vector": optax.sgd(1e-2)}, kinds),
    }
    optimizers = {name: nym.sharded_optimizer(each, STORED) for name, each in OPTIMIZERS.items()}
    optimizers |= {f"around: {name}": each for name, each in around.items()}
    with nym.axis_mapping(COMPUTE):
        params, gradients = nym.shard(make_parameters()), nym.shard(make_parameters(3))
        states = nym.named_jit(lambda params: init(params, optimizers))(params)
        updates, new = two_steps(gradients, states, params, optimizers)
    _, expected_updates, expected_states = update_on_one_device()
    for name in OPTIMIZERS:
        assert_close((updates[name], new[name]), (expected_updates[name], expected_states[name]), 2e-4)
    for name in around:
        assert_close(updates[f"around: {name}"], expected_updates[name], 2e-4)
    multi_steps, masked = new["around: MultiSteps"], new["around: masked"]
    of_names = {name: new[name] for name in OPTIMIZERS}
    assert misplaced((of_names, multi_steps.inner_opt_state, masked.inner_state.tree[0]), STORED, mesh) == []
    assert misplaced((updates, multi_steps.acc_grads), COMPUTE, mesh) == []
    assert local_bytes(new["adamw"]) == 2 * local_bytes(nym.shard(make_parameters(), STORED)) + 4 + 4


def test_sharded_optimizers_outside_jit(mesh):
    chosen = {"momentum": nym.sharded_optimizer(OPTIMIZERS["momentum"], STORED)}
    params, gradients = nym.shard((make_parameters(), make_parameters(3)), COMPUTE)
    states = init(params, chosen)
    for context in (nym.axis_mapping(COMPUTE), contextlib.nullcontext()):
        with context:
            updates, new = two_steps(gradients, states, params, chosen, compiled=lambda fn: fn)
        assert misplaced((states, new), STORED, mesh) == []
        assert misplaced(updates, COMPUTE, mesh) == []
        assert_close(
            (updates["momentum"], new["momentum"]), [each["momentum"] for each in update_on_one_device()[1:]], 2e-4
        )


# `sharded_optimizer` in a step of training.


In, Out = nym.make_axes(embed=32, mlp=64)
ADAM = optax.adam(1e-2)


def make_layers():
    up = nym.nn.Linear(drawn(1, Out, In), drawn(2, Out), (In,), (Out,))
    return [up, nym.nn.Linear(drawn(3, In, Out), None, (Out,), (In,))]


def step_with(optimizer):
    def loss_of(model, x):
        up, down = model
        y = down(nym.nn.gelu(up(x)))
        return nym.mean(y * y).scalar()

    def step(model, state, x):
        loss, gradients = jax.value_and_grad(loss_of)(model, x)
        updates, state = optimizer.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, loss

    return step


@functools.cache
def train_layers_on_one_device():
    """Returns layers, state and loss after two steps."""
    with jax.set_mesh(None):
        step, now = jax.jit(step_with(ADAM)), (make_layers(), jax.jit(ADAM.init)(make_layers()))
        for _ in range(2):
            *now, loss = step(*now, drawn(0, Batch, In))
        return jax.tree.map(np.asarray, (*now, loss))


@pytest.mark.parametrize(
    ("mesh", "compiled"), [("explicit", jax.jit), ("auto", nym.named_jit)], indirect=["mesh"], ids=["jit", "named_jit"]
)
def test_a_step_gives_the_same_with_a_quarter_of_the_state(mesh, compiled):
    optimizer = nym.sharded_optimizer(ADAM, STORED)
    with nym.axis_mapping(COMPUTE):
        params = nym.shard(make_layers())
        state, step = compiled(optimizer.init)(params), compiled(step_with(optimizer))
        whole = nym.named_jit(ADAM.init)(params)
        now, x = (params, state), nym.shard(drawn(0, Batch, In))
        for _ in range(2):
            *now, loss = step(*now, x)
            assert misplaced(now[1], STORED, mesh) == misplaced(now[0], COMPUTE, mesh) == []
    assert_close((*now, loss), train_layers_on_one_device(), 1e-4)
    bias = 2 * 4 * Out.size // 2  # it has no axis on the data axis
    assert local_bytes(now[1]) == (local_bytes(whole) - bias - 4) // 4 + bias + 4


@pytest.mark.parametrize(
    ("mesh", "said"), [("auto", None), ("explicit", None), ("auto", STORED)], indirect=["mesh"], ids=str
)
def test_inside_fsdp_the_updates_go_where_the_parameters_are(mesh, said):
    optimizer = nym.sharded_optimizer(ADAM, STORED, said)
    now = (make_layers(), optimizer.init(nym.shard(make_layers(), STORED)))
    inner = step_with(optimizer)
    step = nym.fsdp(lambda model, state, x: inner(model, state, x.tree), STORED, COMPUTE)
    x = nym.ShardedBy(drawn(0, Batch, In), COMPUTE)  # both its axes are mapped to the data axis by `STORED`
    for _ in range(2):
        *now, loss = step(*now, x)
        assert misplaced(now[:2], STORED, mesh) == []
    assert_close((*now, loss), train_layers_on_one_device(), 1e-4)
    text = step.lower(*now, x).compile().as_text()
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 2  # of the weights, where they are used


@on_auto
def test_the_state_stays_where_it_is_under_any_mapping_of_the_call(mesh):
    optimizer, mapping = nym.sharded_optimizer(ADAM, STORED), {"embed": "model"}
    state = optimizer.init(nym.shard(make_layers(), COMPUTE))
    passed = nym.named_jit(lambda state: state, mapping, in_axis_resources=mapping)(state)
    shapes = nym.shard(jax.eval_shape(optimizer.init, make_layers()), COMPUTE)
    assert misplaced((passed, shapes), STORED, mesh) == []
    assert shapes.tree[0].count.sharding == NamedSharding(mesh, P())


def compile_step(optimizer, mapping):
    with nym.axis_mapping(mapping):
        params = nym.shard(make_layers())
        state = nym.named_jit(optimizer.init)(params)
        return nym.named_jit(step_with(optimizer)).lower(params, state, nym.shard(drawn(0, Batch, In))).compile()


def test_the_compiled_step_updates_parts_and_gathers_each_update_once(mesh):
    """On CPU a reduce-scatter stays an all-reduce, of which each device takes its slice."""
    plain, divided = (compile_step(each, COMPUTE) for each in (ADAM, nym.sharded_optimizer(ADAM, STORED)))
    texts = [each.as_text() for each in (plain, divided)]
    gathers = [len(re.findall(r" all-gather(?:-start)?\(", text)) for text in texts]
    assert gathers == [0, 2]  # of two weights; the bias has no axis on the data axis
    roots = [set(re.findall(r"= f32\[([\d,]*)\]\S* sqrt\(", text)) for text in texts]
    assert roots == [{"32,32", "32"}, {"32,8", "8,32", "32"}]
    saved = [each.memory_analysis().argument_size_in_bytes for each in (plain, divided)]
    assert saved[0] - saved[1] == 2 * 2 * 4 * 32 * 32 * 3 // 4


@on_explicit
def test_an_axis_that_does_not_divide(mesh):
    params = nym.shard({"w": nym.ones({"embed": 6, "mlp": 4})}, COMPUTE)
    with refusal("['w']: axis 'embed' has size 6, which is not divisible by mesh axis 'data'"):
        nym.sharded_optimizer(ADAM, STORED).init(params)
    lenient = nym.sharded_optimizer(ADAM, nym.AxisMapping(STORED, uneven="replicate"))
    with nym.axis_mapping(COMPUTE):
        updates, state = nym.named_jit(lenient.update)(params, lenient.init(params), params)
    assert misplaced((updates, state), COMPUTE, mesh) == []


@on_auto
def test_a_fallback_rule_shards_the_state_of_plain_parameters(mesh):
    params = {"w": jax.device_put(np.ones((8, 4), np.float32), P()), "bias": nym.ones(Embed)}
    mapping = nym.AxisMapping({"embed": "data"}, fallback=nym.PathShardingRule({"w": P("data", "model")}))
    optimizer = nym.sharded_optimizer(ADAM, mapping)
    state = optimizer.init(params)
    _, updated = nym.named_jit(optimizer.update)(params, state, params)
    for each in (state, updated):
        assert each.tree[0].mu["w"].sharding.spec == P("data", "model")
        assert each.tree[0].mu["bias"].sharding.spec == P("data")


@on_explicit
def test_more_arguments_of_update_are_passed_on(mesh):
    plateau = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    optimizer = nym.sharded_optimizer(plateau, STORED)
    assert type(optimizer) is type(plateau)
    with nym.axis_mapping(COMPUTE):
        params = {"w": nym.ones(In)}
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = jax.jit(optimizer.update)(params, state, params, value=1.0)
    np.testing.assert_allclose(np.asarray(updates["w"]), -0.25)  # halved for each value that is no better


class Descent:
    """An optimizer of another library: methods, and no tuple."""

    def init(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(self, updates, state, params=None):
        state = jax.tree.map(lambda s, g: 0.9 * s + g, state, updates)
        return jax.tree.map(lambda s: -0.1 * s, state), state


class OwnPair(NamedTuple):
    init: object
    update: object
    name: str = "own"


@pytest.mark.parametrize("kind", [lambda one: one, lambda one: OwnPair(one.init, one.update)], ids=["object", "tuple"])
@on_auto
def test_optimizers_of_other_libraries(mesh, kind):
    """On a mesh, and without one."""
    optimizer = nym.sharded_optimizer(kind(Descent()), STORED)
    assert type(optimizer) in (nym.training.Optimizer, OwnPair)
    weight = drawn(0, In, Out)
    params = nym.shard({"w": weight}, COMPUTE)
    with nym.axis_mapping(COMPUTE):
        updates, state = nym.named_jit(optimizer.update)(params, optimizer.init(params))
    assert misplaced(state, STORED, mesh) == misplaced(updates, COMPUTE, mesh) == []
    with jax.set_mesh(None):
        alone, state = optimizer.update({"w": weight}, optimizer.init({"w": weight}), None)
    assert isinstance(state, nym.ShardedBy)
    assert_close((updates, alone), [-0.1 * weight.array] * 2)


def test_what_is_no_optimizer_no_mapping_or_no_state_is_an_error():
    with refusal("`sharded_optimizer` takes something with `init` and `update`, not 'adam'.", TypeError):
        nym.sharded_optimizer("adam", STORED)
    with refusal("`offloaded_optimizer` takes something with `init` and `update`, not 3.", TypeError):
        nym.offloaded_optimizer(3)
    with refusal("A mapping from names to mesh axes is needed, such as ", TypeError):
        nym.sharded_optimizer(ADAM, None)
    with refusal("updates the state that its own `init` made, a `ShardedBy`, not a tuple", TypeError):
        nym.sharded_optimizer(ADAM, STORED).update({}, ADAM.init({}), {})


# `offloaded_optimizer`: the state is in the memory of the host between updates.


CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
OFFLOADED = nym.offloaded_optimizer(CLIPPED)


def make_weight():
    return drawn(0, Pixel, Embed.resize(8), Mlp.resize(4))


@nym.fsdp(STORED, COMPUTE, donate_args=(True, True, False))
def train_step(weight, state, x):
    def compute_loss(weight):
        return nym.mean(nym.dot(x, weight, axis="pixel") ** 2).scalar()

    loss, gradient = jax.value_and_grad(compute_loss)(weight)
    updates, state = OFFLOADED.update(gradient, state, weight)
    return optax.apply_updates(weight, updates), state, loss


def train_weight(init):
    """Returns the losses of two steps and the moments, with the state that `init` makes."""
    weight = nym.shard(make_weight(), STORED)
    state = nym.named_jit(init, STORED)(weight)
    losses = []
    for _ in range(2):
        weight, state, loss = train_step(weight, state, drawn(1, Batch, Pixel))
        losses.append(float(loss))
    return losses, state[1][0]


def test_steps_are_the_same_with_the_state_on_the_host(mesh):
    expected, on_device = train_weight(CLIPPED.init)
    losses, on_host = train_weight(OFFLOADED.init)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for moments, memory in ((on_device, "device"), (on_host, "pinned_host")):
        assert {array.array.sharding.memory_kind for array in (moments.mu, moments.nu)} == {memory}
        assert moments.mu.sharding.spec == P(None, "data", "model")
        assert moments.count.sharding.memory_kind == "device"
    np.testing.assert_allclose(on_host.nu.array, on_device.nu.array, rtol=1e-6)


@on_explicit
def test_mappings_leave_arrays_in_the_memory_of_the_host(mesh):
    with jax.set_mesh(None):
        state = OFFLOADED.init(jax.device_put(make_weight()))[1][0]
    shapes = jax.eval_shape(lambda x: x, state.mu)
    on_host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    shapes = jax.tree.map(lambda leaf: leaf.update(sharding=on_host), shapes)
    placed = nym.shard(state.mu, STORED)
    described = nym.shard(shapes, STORED)
    assert nym.shard(placed, STORED) is placed
    for array in (placed, described):
        assert array.sharding.memory_kind == "pinned_host"
        assert array.sharding.spec == P(None, "data", "model")


@on_auto
def test_updates_outside_jit_and_of_sharded_optimizers_keep_the_memory(mesh):
    weight = nym.shard(make_weight(), STORED)
    optimizer = nym.offloaded_optimizer(nym.sharded_optimizer(CLIPPED, STORED))
    updates, state = optimizer.update(weight, optimizer.init(weight), weight)
    expected, _ = CLIPPED.update(weight, CLIPPED.init(weight), weight)
    assert state.tree[1][0].mu.array.sharding.memory_kind == "pinned_host"
    np.testing.assert_allclose(updates.array, expected.array, rtol=1e-6)
