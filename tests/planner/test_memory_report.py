"""`memory_report` and `assert_fits`: what arguments, saved activations and groups take, and what fits."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym
from axonym.planner import assert_fits, compile_for, described_devices, get_hardware, memory_report
from axonym.planner._program._arguments import count_argument_groups, group_arguments
from axonym.planner._program._hlo_program import HloProgram
from tests.planner.described_programs import MESH, TOPOLOGY
from tests.planner.programs import COMPUTE, STORED, Batch, Block, Embed, Layers, Mlp, compute_loss, make_mesh, update
from tests.planner.test_compile_for import needs_libtpu
from tests.refusals import refusal


X = nym.NamedArray(jax.ShapeDtypeStruct((Batch.size, Embed.size), jnp.float32), ("batch", "inputs"))
WEIGHTS = 2 * Layers.size * Embed.size * Mlp.size * 4 // 8  # both are sharded over all devices
ROWS = Layers.size * Batch.size // 2 * 512 * 4  # of each layer and half of the batch, 512 numbers


def report_update(checkpointing, **options):
    with jax.set_mesh(make_mesh("cpu")):
        return memory_report(nym.fsdp(update, STORED, COMPUTE, **options), make_stack(checkpointing), X)


def test_arguments_of_other_transformations_are_counted():
    def scale(count, weight, x):
        return weight * x * count

    weight, x = jnp.ones(()), jnp.ones(1000)
    assert memory_report(eqx.filter_jit(scale), 3, weight, x).arguments == {"weight": 4, "x": 4000}
    assert memory_report(jax.jit(scale, static_argnums=0), 3, weight, x).arguments == {"0": 4, "1": 4000}


def test_arguments_and_saved_activations_are_counted():
    report = report_update(True)
    assert report.arguments == {"stack": WEIGHTS, "x": Batch.size // 2 * Embed.size * 4}
    assert [(one.layer, one.operation, one.bytes) for one in report.saved] == [("", "", ROWS)]
    assert report.gradients == WEIGHTS
    assert report.results >= WEIGHTS + 4
    assert report.total == sum(report.arguments.values()) + report.results + report.temporaries + report.program
    assert "  saved for the backward pass  256 KiB  f32[4, 32, 512]  input of the layer" in str(report)
    assert report.groups == {
        "parameters": WEIGHTS,
        "optimizer state": 0,
        "inputs": Batch.size // 2 * Embed.size * 4,
        "results": report.results,
        "saved activations": ROWS,
        "gradients": 0,  # these are among the results
        "temporaries": report.temporaries - ROWS,
        "program": 0,
    }


def test_saved_activations_follow_the_policy():
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    saved = {one.operation: one.bytes for one in report_update(policy).saved}
    assert saved == {"": ROWS, "dot(embed -> mlp)": ROWS}
    saved = {(one.layer, one.operation): one.bytes for one in report_update(False).saved}
    # Without checkpointing, gathered weights are saved too, which the report shows first.
    assert [*saved.values()][:2] == [Layers.size * Embed.size * Mlp.size // 4 * 4] * 2
    assert {("Stacked/up", "gather(mlp, embed)"), ("Stacked/down", "gather(embed, mlp)")} == {*[*saved][:2]}


def test_saved_activations_in_microbatches_are_those_of_one():
    make_gradients = nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2)
    with jax.set_mesh(make_mesh("cpu")):
        report = memory_report(nym.fsdp(make_gradients, STORED, COMPUTE), make_stack(), X)
    assert [one.bytes for one in report.saved] == [ROWS // 2] == [report.groups["saved activations"]]


def test_donated_arguments_are_counted_once():
    report = report_update(True, donate_args=(True, False))
    assert report.donated == WEIGHTS
    held = sum(report.arguments.values()) + report.results + report.temporaries + report.program
    assert report.total == held - WEIGHTS
    assert "4 MiB in the memory of donated arguments" in str(report)
    assert json.loads(report.to_json())["donated"] == WEIGHTS


adam = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def update_by_adam(stack, state, batch, key):
    loss, gradients = jax.value_and_grad(compute_loss)(stack, batch["x"] + jax.random.normal(key))
    updates, state = adam.update(gradients, state, stack)
    return optax.apply_updates(stack, updates), state, loss


def make_stack(checkpointing=True):
    return jax.eval_shape(
        lambda: nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=checkpointing)(key=jax.random.key(0))
    )


def test_arguments_are_split_into_groups():
    stack = make_stack()
    args = (stack, jax.eval_shape(adam.init, stack), {"x": X, "unused": X}, jax.random.key(0))
    with jax.set_mesh(make_mesh("cpu")):
        step = nym.fsdp(update_by_adam, STORED, COMPUTE, donate_args=(True, True, False, False))
        report = memory_report(step, *args)
    assert report.arguments["batch"] > 2 * Batch.size // 2 * Embed.size * 4  # what is not used is replicated
    assert report.groups["parameters"] == WEIGHTS
    assert report.groups["optimizer state"] == 2 * WEIGHTS + 4  # and the number of steps
    assert report.groups["inputs"] == Batch.size // 2 * Embed.size * 4 + 8  # and the key
    assert report.results - report.donated == report.groups["results"]
    assert report.groups["gradients"] == WEIGHTS


def count_groups(*args):
    def use(x):
        return jax.random.split(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x + 1

    groups = memory_report(lambda *args: jax.tree.map(use, args), *args).groups
    return groups["parameters"], groups["optimizer state"], groups["inputs"]


def test_parameters_that_xla_names_after_a_loop_keep_their_group():
    text = """
ENTRY %main (a: f32[4,8], b: f32[4,8], c: f32[16]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0), metadata={op_name="jit(step)/jvp(Stacked)/while"}
  %b = f32[4,8]{1,0} parameter(1), metadata={op_name="state[0].mu['weight']"}
  %c = f32[16]{0} parameter(2), metadata={op_name="x"}
  ROOT %d = f32[4,8]{1,0} add(%a, %b)
}
"""
    weight, x = {"weight": jax.ShapeDtypeStruct((4, 8), "float32")}, jax.ShapeDtypeStruct((16,), "float32")
    arrays = group_arguments([weight, jax.eval_shape(optax.adam(1.0).init, weight), x])
    found = count_argument_groups(HloProgram(text), arrays, ())
    assert found == {"parameters": 128, "optimizer state": 128, "inputs": 64}


def test_groups_of_plain_trees_follow_from_paths_and_names():
    params, other = {"a": nym.ones({"in": 4}), "b": {"c": jnp.ones((3, 2))}}, {"d": jnp.ones(9)}
    assert count_groups(params, {"mu": params, "nu": params}, params, jnp.ones(5)) == (40, 120, 20)
    assert count_groups(params, {"a": params["a"].rename({"in": "out"})}, {"e": jnp.ones((3, 2))}) == (40, 0, 40)
    state = optax.sgd(0.1, momentum=0.9).init((params, other))
    assert count_groups(params, other, state, {"e": jnp.ones(9)}) == (76, 76, 36)
    assert count_groups(state, jax.random.key(0), params, other) == (76, 76, 8)
    assert count_groups({"model": params, "opt": {"state": state}, "step": jnp.zeros((), int)}) == (44, 76, 0)
    assert count_groups(jnp.arange(8)) == (0, 0, 32)


@pytest.mark.parametrize("name", ["hidden", "input"])
def test_saved_activations_have_the_names_of_the_function(name):
    class Named(Block):
        @staticmethod
        def init(key):
            return Named(**vars(Block.init(key)))

        def __call__(self, x):
            x = nym.tree_checkpoint_name(x, "input")
            hidden = nym.tree_checkpoint_name(self.up(x), "hidden")
            return x + self.down(nym.nn.gelu(hidden))

    policy = nym.ScanCheckpointPolicy(save_block_internals=[name])
    stack = jax.eval_shape(lambda: nym.nn.Stacked.init(Layers, Named, gradient_checkpointing=policy)(jax.random.key(0)))
    with jax.set_mesh(make_mesh("cpu")):
        step = nym.fsdp(update, STORED, COMPUTE)
        report = memory_report(step, stack, X)
        if name == "hidden":  # which a program does not tell
            assert memory_report(step.lower(stack, X)).count_saved() == {"": 2 * ROWS}
    assert report.count_saved()[name] == ROWS
    assert {one.layer for one in report.saved if one.name == "hidden"} <= {"Stacked/up"}
    assert f"  {name} " in str(report)
    assert report.count_saved("memory") == {"device": sum(one.bytes for one in report.saved)}
    with refusal("bytes are not counted by 'names'; did you mean 'name'"):
        report.count_saved("names")


def test_report_is_compared_with_a_device(tmp_path):
    fn = jax.jit(lambda x: x * 2.0)
    report = memory_report(fn, jnp.ones(2**10), device="v5e")
    assert (report.device, report.available, report.fits) == ("v5e", int(15.75 * 2**30), True)
    assert str(report).startswith("8 KiB of 15.8 GiB (v5e) on each device: it fits\n")
    report = memory_report(fn, jnp.ones(2**10), device=2**12)
    assert (report.fits, report.shortfall) == (False, 2**12)
    assert str(report).startswith("8 KiB of 4 KiB on each device: it does not fit, 4 KiB are missing\n")
    refused = dataclasses.replace(report, available=2**13, is_out_of_memory=True)
    assert "on each device: it does not fit, the compiler says" in str(refused)
    assert json.loads(report.to_json())["groups"]["results"] == 2**12
    page = report.to_html(tmp_path / "memory.html", "Step <1>").read_text()
    assert "<h1>Step &lt;1&gt;</h1>" in page
    assert "parameters" in report._repr_html_()
    half = dataclasses.replace(get_hardware("v5e"), name="half", hbm_available=2**13)
    assert memory_report(fn, jnp.ones(2**10), device=half).fits
    assert memory_report(fn, jnp.ones(2**10)).shortfall == 0
    with refusal("no hardware 'v9'"):
        memory_report(fn, jnp.ones(8), device="v9")
    with pytest.raises(ValueError, match=r"'v5e:2x4' is a machine, .*pass `compile_for\(fn, .*or compare with 'v5e'"):
        memory_report(fn, jnp.ones(8), device="v5e:2x4")


def test_other_functions_have_reports_too():
    fn = jax.jit(lambda x, scale: x * scale)
    expected = {"x": 32, "scale": 4}
    assert memory_report(fn, jnp.ones(8), 2.0).arguments == expected
    assert memory_report(fn.lower(jnp.ones(8), 2.0)).arguments == {"0": 32, "1": 4}
    assert memory_report(fn.lower(jnp.ones(8), 2.0).compile()).results == 32
    assert memory_report(lambda **kwargs: kwargs["y"], y=nym.ones({"a": 4})).arguments == {"y": 16}
    with refusal("it was str", TypeError):
        memory_report("text")


LARGE = nym.NamedArray(jax.ShapeDtypeStruct((64, 2**40), jnp.bfloat16), ("batch", "embed"))


def double(x):
    return x * 2


def test_assertion_explains_what_does_not_fit():
    step, stack = nym.fsdp(update, STORED, COMPUTE), make_stack()
    with jax.set_mesh(make_mesh("cpu")):
        message = r"(?s)takes 1[0-9.]+ MiB on each device, .* MiB more than the 1 MiB: temp.*parameters 4 MiB.*\(`micro"
        with pytest.raises(AssertionError, match=message) as refused:
            assert_fits(step, (stack, X), 2**20)
    assert "input of a layer: 256 KiB saved" in str(refused.value)
    assert_fits(jax.jit(lambda x: x.sum()), (jax.ShapeDtypeStruct((8,), jnp.float32),), device="v5e")
    message = r"more than the 15\.8 GiB of v5e: parameters 32 GiB.*shard the parameters"
    with pytest.raises(AssertionError, match=message):
        assert_fits(jax.jit(lambda x: x.sum()), (jax.ShapeDtypeStruct((2**33,), jnp.float32),), "v5e")
    machine = {"mesh": {"data": 8}, "mapping": {"batch": "data"}, "cache": False}
    with refusal("more than the 4 TiB of cpu: parameters 16 TiB, results 16 TiB; shard the p", AssertionError):
        assert_fits(double, (LARGE,), "cpu:8", **machine)
    with refusal("go with the description of a machine", TypeError):
        assert_fits(double, (LARGE,), "cpu", **machine)
    with refusal("`args` is a tuple of the arguments of the function, not a NamedArray", TypeError):
        assert_fits(double, LARGE, "cpu")
    for device in (2.5, True, [1]):
        with refusal("`device` is a name such as 'v5e', a `Hardware` or a number of bytes, not", TypeError):
            assert_fits(double, (LARGE,), device=device)
    with refusal("`device`, a number of bytes, must be at least 0, not -1"):
        assert_fits(double, (LARGE,), device=-1)
    with refusal("`device` is what the program has to fit into", TypeError):
        assert_fits(double, (LARGE,))


def test_machine_takes_the_axes_of_the_active_mesh(mesh):
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": ("data", "model")}):
        program = nym.planner.compile_for(double, LARGE, devices="cpu:8", cache=False)
        assert program.mesh.shape == mesh.shape and program.mesh.axis_types == mesh.axis_types
        with refusal("more than the 4 TiB of cpu: parameters 16 TiB", AssertionError):
            assert_fits(program, (), program.hardware)
        message = r"the active mesh \(data: \d, model: \d\) has 8 devices, but 'v5e:4x4' has 16; .* `mesh={'data': 16}`"
        with pytest.raises(ValueError, match=message):
            assert_fits(double, (LARGE,), "v5e:4x4")


@needs_libtpu
def test_offloaded_activations_have_their_names_and_are_on_the_host():
    policy = nym.ScanCheckpointPolicy(save_carries="offload")
    stack = make_stack(policy)
    with jax.set_mesh(nym.create_mesh(MESH, devices=described_devices(TOPOLOGY))):
        program = compile_for(nym.fsdp(update, STORED, COMPUTE), stack, X, cache=False)
    report = memory_report(program)
    assert report.count_saved("memory").get("host") == report.host == ROWS
    assert report.groups["parameters"] == WEIGHTS
    assert report.total == program.memory.peak_bytes
    with refusal("parameters", AssertionError):
        assert_fits(program, (), 2**20)
