import dataclasses
import functools
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym
from axonym.planner import (
    CommunicationReport,
    assert_communication,
    assert_no_collectives,
    communication_report,
)
from axonym.planner._program._collectives import ArgumentAxes, SliceGroups, list_collectives
from axonym.planner._program._hlo_program import HloProgram
from tests.planner import programs
from tests.refusals import refusal


KB = 1024
ROWS = 256 * KB  # a float32 shard of (256, 256)
WEIGHT = 512 * 2048 * 4  # a weight of a layer of the named programs, in bytes
# Counted by hand: kind, mesh axes, runs, and the bytes that a device has after one run.
HAND_COUNTS = {
    "all-reduce": [("all-reduce", "model", 1, ROWS)],
    "all-reduce over both axes": [("all-reduce", "data model", 1, ROWS)],
    "all-gather": [("all-gather", "data", 1, 2 * ROWS)],
    "reduce-scatter": [("reduce-scatter", "model", 1, 256 * 1024 * 4 // 4)],
    "all-to-all": [("all-to-all", "model", 1, 512 * 1024 * 4 // 4)],
    "collective-permute": [("collective-permute", "model", 1, ROWS)],
    "all-reduce in a loop": [("all-reduce", "model", 5, ROWS)],
    "all-gather in two loops": [("all-gather", "model", 12, 512 * 512 * 4)],
    "collective-permute in a loop": [("collective-permute", "model", 7, ROWS)],
    "tensor parallel layers": [("all-reduce", "model", 4, 32 * 512 * 4)],
}
# The loss is a float32. XLA for TPUs multiplies in bfloat16 and gathers weights in it; XLA for GPUs gathers both
# weights at once.
LOSS = ("all-reduce", "data", 1, 4)
ACTIVATIONS = [("all-reduce", "model", 4, 32 * 512 * 4)] * 2
TRAIN_STEP = {
    "cpu": [("all-gather", "data", 4, WEIGHT // 4)] * 4 + [*ACTIVATIONS, ("all-reduce", "data", 4, WEIGHT // 2), LOSS],
    "tpu": [("all-gather", "data", 4, WEIGHT // 8)] * 4
    + [*ACTIVATIONS, ("reduce-scatter", "data", 4, WEIGHT // 4), LOSS],
    "gpu": [("all-gather", "data", 4, WEIGHT // 2)] * 2
    + [*ACTIVATIONS, ("reduce-scatter", "data", 4, WEIGHT // 4), LOSS],
}


def list_hand_counts(platform):
    return {**HAND_COUNTS, "train step": TRAIN_STEP[platform]}


def show(collectives):
    return sorted((one.kind, " ".join(one.mesh_axes), one.runs, one.result_bytes) for one in collectives)


def list_read(text, sizes=programs.SIZES, axes=None):
    return list_collectives(HloProgram(text), sizes, math.prod(sizes.values()), axes or ArgumentAxes(), SliceGroups())


@pytest.fixture(scope="module")
def compiled(request):
    return functools.cache(programs.compile_programs)("cpu")


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_recorded_programs_agree_with_hand_counts(platform):
    texts = programs.read_recorded(platform)
    for name, counts in list_hand_counts(platform).items():
        assert show(list_read(texts[name])) == sorted(counts), name


def test_a_collective_of_several_arrays_has_the_layers_of_all():
    text = """
ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %up = f32[8]{0} add(%x, %x), metadata={op_name="jit(f)/transpose(jvp(Net))/Net/up/dot(embed -> mlp)/dot_general"}
  %gate = f32[8]{0} add(%x, %x), metadata={op_name="jit(f)/transpose(jvp(Net))/Net/gate/dot(embed -> mlp)/dot_general"}
  %norm = f32[8]{0} multiply(%x, %x), metadata={op_name="jit(f)/transpose(jvp(Net))/Net/norm/mul"}
  ROOT %sums = (f32[8], f32[8], f32[8]) all-reduce(%norm, %up, %gate), replica_groups={}, METADATA
}
""".replace("METADATA", 'metadata={op_name="jit(f)/transpose(jvp(Net))/Net/norm/mul"}')
    [one] = list_read(text)
    assert one.layer == "Net/norm + Net/up + Net/gate"
    assert one.operation == "mul + dot(embed -> mlp)"
    table = str(CommunicationReport((dataclasses.replace(one, layer=f"{one.layer} + Net/down"),), {}, ""))
    assert "  Net/norm + Net/up + 2 more  " in table


@pytest.mark.parametrize(
    ("results", "size"),
    [
        ("f32[8]{0}", 32),
        ("(f32[8]{0}, f32[4]{0})", 48),
        ("((f32[8]{0}), f32[8]{0})", 32),  # XLA of JAX 0.12 for GPUs writes the operands, too
        ("((f32[8]{0}, f32[4]{0}), (f32[8]{0}, f32[4]{0}))", 48),
    ],
)
def test_a_sum_that_is_started_has_the_bytes_of_its_results(results, size):
    text = f"""
ENTRY %main (x: f32[8], y: f32[4]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %y = f32[4]{{0}} parameter(1)
  %sum = {results} all-reduce-start(%x, %y), replica_groups={{}}
  ROOT %done = f32[8]{{0}} all-reduce-done(%sum)
}}
"""
    [one] = list_read(text)
    assert (one.kind, one.bytes) == ("all-reduce", size)


def test_collectives_written_in_shard_map_are_told_apart_though_all_have_one_channel():
    gather = """
%async_collective_fusion.NUMBER (x.NUMBER: s8[4]) -> s8[16] {
  %x.NUMBER = s8[4]{0} parameter(0)
  ROOT %all-gather.NUMBER = s8[16]{0} all-gather(%x.NUMBER), channel_id=1, dimensions={0}, \
frontend_attributes={chain_id="CHAIN"}, metadata={op_name="jit(f)/LAYER/gather(mlp)/shard_map/all_gather"}
}
"""
    places = [("1", "5", "up"), ("2", "5", "up"), ("3", "6", "gate")]  # the first gather is written at two places
    text = "".join(
        gather.replace("NUMBER", number).replace("CHAIN", chain).replace("LAYER", layer)
        for number, chain, layer in places
    )
    calls = "".join(
        f"  %y.{number} = s8[16] fusion(%x), kind=kLoop, calls=%async_collective_fusion.{number}\n"
        for number, _, _ in places
    )
    text += f"\nENTRY %main (x: s8[4]) -> s8[16] {{\n  %x = s8[4]{{0}} parameter(0)\n{calls}}}\n"
    collectives = list_read(text, {"data": 4})
    assert [collective.layer for collective in collectives] == ["up", "gate"]


def test_collectives_that_are_started_whole_are_told_apart_though_all_have_one_channel():
    exchange = """
%async_computation.NUMBER (x.NUMBER: s8[4], i: s32[2]) -> s8[16] {
  %x.NUMBER = s8[4]{0} parameter(0)
  %i = s32[2]{0} parameter(1)
  ROOT %exchange.NUMBER = s8[16]{0} ragged-all-to-all(%x.NUMBER, %x.NUMBER, %i, %i, %i, %i), channel_id=1
}
"""
    calls = """  %start.NUMBER = ((s8[4], s32[2]), s8[16], u32[]) async-start(%x, %i), calls=%async_computation.NUMBER
  %done.NUMBER = s8[16] async-done(%start.NUMBER)
"""
    text = "".join(exchange.replace("NUMBER", number) for number in "12")
    text += "ENTRY %main (x: s8[4], i: s32[2]) -> s8[16] {\n"
    text += "  %x = s8[4]{0} parameter(0)\n  %i = s32[2]{0} parameter(1)\n"
    text += "".join(calls.replace("NUMBER", number) for number in "12") + "}\n"
    assert [one.bytes for one in list_read(text, {"data": 4})] == [16, 16]


def test_a_gather_of_several_arrays_has_the_axes_of_all():
    text = """
ENTRY %main (x: f32[16,4], y: f32[16,8]) -> (f32[16,32], f32[16,64]) {
  %x = f32[16,4]{1,0} parameter(0)
  %y = f32[16,8]{1,0} parameter(1)
  %up = f32[16,4]{1,0} tanh(%x), metadata={op_name="jit(f)/tanh"}
  ROOT %whole = (f32[16,32], f32[16,64]) all-gather(%up, %y), replica_groups={}, dimensions={1}, METADATA
}
""".replace("METADATA", 'metadata={op_name="jit(f)/dot(embed -> mlp)/dot_general"}')
    sizes = {"embed": 16, "heads": 32, "kv": 32, "mlp": 64, "vocab": 128}
    [one] = list_read(text, {"data": 8}, ArgumentAxes({"data": tuple(sizes)}, sizes))
    assert one.axes == ("heads", "kv", "mlp")
    assert one.operation == "dot(embed -> mlp)"  # what it is for, and not what makes its operands


def test_compiled_programs_agree_with_hand_counts_and_send_as_in_a_ring(compiled):
    reports = {name: communication_report(program) for name, program in compiled.items()}
    found = {name: show(report.collectives) for name, report in reports.items()}
    assert found == {name: sorted(counts) for name, counts in list_hand_counts("cpu").items()}
    for name, sent in {
        "all-reduce": 2 * 3 * ROWS // 4,
        "all-gather": ROWS,
        "reduce-scatter": 3 * ROWS,
        "all-to-all": 3 * 2 * ROWS // 4,
        "collective-permute": ROWS,
        "all-reduce in a loop": 5 * 2 * 3 * ROWS // 4,
    }.items():
        assert reports[name].sent_bytes == sent


def test_collectives_name_axes_layers_passes_and_source_lines(compiled):
    lines = Path(programs.__file__).read_text().splitlines()
    line = next(at for at, text in enumerate(lines, 1) if "# the line that the reports name" in text)
    report = communication_report(compiled["train step"])
    found = {(one.kind, one.axes, one.layer, one.operation, one.run_in) for one in report.collectives}
    both = ("Stacked/up + Stacked/down", "dot(embed -> mlp) + dot(mlp -> embed)")
    assert found == {
        ("all-gather", ("embed",), "Stacked/up", "gather(mlp, embed)", "forward"),
        ("all-gather", ("embed",), "Stacked/down", "gather(embed, mlp)", "forward"),
        ("all-gather", ("embed",), "Stacked/up", "gather(mlp, embed)", "recomputed"),
        ("all-gather", ("embed",), "Stacked/down", "gather(embed, mlp)", "recomputed"),
        ("all-reduce", ("mlp",), "Stacked/down", "dot(mlp -> embed)", "forward"),
        ("all-reduce", ("mlp",), "Stacked/up", "dot(embed -> mlp)", "backward"),
        ("all-reduce", ("batch",), *both, "backward"),
        ("all-reduce", ("embed", "batch"), "", "mean", "forward"),
    }
    assert {one.source for one in report.collectives if one.layer} == {f"{programs.__file__}:{line}"}
    causes = {one.cause for one in report.collectives}
    assert "gathers a parameter, stored with embed sharded over data, for its use" in causes
    assert "adds up over batch, sharded over data; each device keeps all of it" in causes


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_axes_of_sums_and_gathers_are_those_of_their_own_arrays(axis_types):
    """Where several axes are sharded over one mesh axis, as in tensor and sequence parallelism."""

    def compute_loss(weights, x):
        x = x.rename({"inputs": "embed"})
        for name in ("mlp", "heads", "mlp"):
            y = nym.shard(x.rename({"pos": "token"}))
            y = nym.nn.relu(nym.dot(y, weights[name]["up"], axis="embed"))
            x = x + nym.shard(nym.dot(y, weights[name]["down"], axis=name).rename({"token": "pos"}))
        return nym.mean(x * x).scalar()

    def make_weights(name):
        up, down = {"embed": 48, name: 128}, {name: 128, "embed": 48}
        return {"up": nym.zeros(up, "float32"), "down": nym.zeros(down, "float32")}

    weights = jax.eval_shape(lambda: {name: make_weights(name) for name in ("heads", "mlp")})
    x = jax.eval_shape(lambda: nym.zeros({"batch": 8, "pos": 16, "inputs": 48}))
    compute = {"batch": "data", "heads": "model", "mlp": "model", "pos": "model"}
    step = nym.fsdp(jax.grad(compute_loss), {**compute, "embed": "data"}, compute)
    with jax.set_mesh(nym.create_mesh({"data": 2, "model": 4}, axis_types=axis_types)):
        found = communication_report(step, weights, x).collectives
    added = [one for one in found if one.kind == "all-reduce" and one.run_in == "backward"]
    sums = {(one.mesh_axes, one.operation, one.axes) for one in added if one.operation.startswith("dot(")}
    over_model = {(operation, axes) for mesh_axes, operation, axes in sums if mesh_axes == ("model",)}
    assert over_model >= {("dot(embed -> heads)", ("heads",)), ("dot(embed -> mlp)", ("mlp",))}
    assert {axes for mesh_axes, _, axes in sums if mesh_axes == ("data",)} == {("batch",)}
    gathered = [one for one in found if one.kind == "all-gather" and one.mesh_axes == ("model",)]
    of_batch = {(one.run_in, one.axes) for one in gathered if one.result_bytes == 4 * 8 // 2 * 16 * 48}
    assert of_batch == {("forward", ("pos",)), ("backward", ("pos",))}


def test_a_report_is_a_table_a_page_and_json(compiled, tmp_path):
    report = communication_report(compiled["train step"])
    assert report.bytes == 4 * 4 * WEIGHT // 4 + 2 * 4 * 64 * KB + 4 * WEIGHT // 2 + 4
    table = str(report)
    assert table.startswith("mesh (data: 2, model: 4) of cpu devices; 24.5 MiB on each device from collectives")
    assert "Bytes over mesh axes: data 24 MiB; model 512 KiB" in table
    assert "… 7 more; `.table(limit=None)` shows all" in report.table(limit=1)
    assert json.loads(report.to_json())["collectives"][0]["operation"] == "dot(embed -> mlp) + dot(mlp -> embed)"
    page = report.to_html(tmp_path / "page.html").read_text()
    assert page.count("<tr") == 9
    assert "dot(embed -&gt; mlp)" in page
    assert "the program sends nothing" in str(communication_report(jax.jit(jnp.sin), jnp.ones(8)))


def test_equal_rows_are_one_with_a_count(mesh, tmp_path):
    @jax.jit
    def smooth(x):
        return sum(nym.roll(x**power, 1, "y") for power in (1, 2, 3))

    def solve(x):
        return nym.fft.fft(smooth(x), "y").real.mean("x")

    with jax.set_mesh(mesh), nym.axis_mapping({"y": "data", "x": "model"}):
        x = nym.shard(nym.ones({"y": 64, "x": 64}))
        report = communication_report(solve, x)
        gradient = communication_report(nym.grad(lambda x: (nym.roll(x, 1, "y") ** 2 * x).sum()), x)
    # Neither the functions that JAX compiles by itself nor those with which axes are resharded.
    scopes = {(one.layer, one.operation) for one in report.collectives}
    assert scopes == {("smooth", "roll"), ("", "fft"), ("", "mean")}
    moved = [one for one in gradient.collectives if one.kind != "all-reduce"]
    assert {(one.operation, one.run_in) for one in moved} == {("roll", "forward"), ("roll", "backward")}
    rolls = [one for one in report.collectives if one.operation == "roll"]
    [row] = [line.split() for line in report.table().splitlines() if "roll" in line]
    assert len(rolls) == 3 and row[3:5] == ["3", "1"]
    assert f"… {len(report.collectives) - 3} more" in report.table(limit=1)
    assert ">3<" in report.to_html(tmp_path / "page.html").read_text()


def test_assertions_show_what_is_sent(mesh):
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        x = nym.shard(nym.ones({"batch": 8, "embed": 8}))

        def add_up(x):
            return nym.sum(x, "batch")

        lowered = nym.named_jit(add_up).lower(x)
        assert_no_collectives(lowered, "embed")
        assert_communication(lowered, at_most={"all-reduce": 4 * 8, "model": 0}, at_most_runs={"data": 1})
        message = r"(?s)the program sends 16 B along 'batch':\n.*all-reduce  data  batch"
        with pytest.raises(AssertionError, match=message):
            assert_no_collectives(add_up, "batch", x)
        with refusal("a device has 16 B from collectives in 'all-reduce', more than the 0 B", AssertionError):
            assert_communication(add_up, x, at_most={"all-reduce": 0})
        with refusal("a device has 16 B from collectives, more than the 1 B that are allowed", AssertionError):
            assert_communication(lowered, at_most=1)
        wide = nym.shard(nym.ones({"batch": 8, "embed": 128}))

        def add_up_thrice(x):
            return jax.lax.fori_loop(0, 3, lambda i, sums: sums + add_up(x * sums), add_up(x))

        assert_communication(add_up_thrice, x, at_most_runs={"data": 1})  # 16 bytes, as of a loss
        message = "a collective in 'data' runs 3 times, more often than the 1 that are allowed:\n"
        with pytest.raises(AssertionError, match=f"(?s){message}.*all-reduce  data"):
            assert_communication(add_up_thrice, wide, at_most_runs={"data": 1, "model": 0})
        message = r"no axis 'bacth'; the mesh has '.*', the arguments have 'batch', 'embed'; .*'batch'"
        with pytest.raises(ValueError, match=message):
            assert_no_collectives(add_up, "bacth", x)
        with pytest.raises(ValueError, match=r"no axis 'all-gathr'; .*; did you mean 'all-gather'\?"):
            assert_communication(lowered, at_most={"all-gathr": 0})


def test_arrays_that_the_compiler_replicates_are_named(capfd):
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Auto,) * 3)

    @jax.jit
    def reshard(x):
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x")))
        y = x.reshape(24, 2, 16).reshape(8, 6, 16)
        return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P(None, "z", "x")))

    report = communication_report(reshard, jnp.zeros((8, 6, 16)))
    assert [one.bytes for one in report.rematerializations] == [4 * 6 * 16 * 4]
    assert "Replicated and sliced again: 1.5 KiB of sharding_constraint, from {" in str(report)
    assert "Involuntary full rematerialization" in capfd.readouterr().err  # the log still has it


def test_the_error_stream_is_left_to_other_threads():
    before = os.fstat(2)
    with ThreadPoolExecutor(4) as pool:
        programs = [pool.submit(communication_report, nym.named_jit(lambda x: x + 1), jnp.ones(n)) for n in range(1, 9)]
    assert [one.result().bytes for one in programs] == [0] * 8
    assert os.path.samestat(before, os.fstat(2))


def test_arguments_moved_before_the_program_are_reported(mesh):
    fn = nym.named_jit(lambda x: x * 2, in_axis_resources={"batch": "data"}, out_axis_resources={"batch": "data"})
    x = nym.shard(nym.ones({"batch": 8, "embed": 4}), {"embed": "model"}, nym.create_mesh((4, 2), ("rows", "model")))
    report = communication_report(fn, x)
    assert report.moved_bytes == report.to_dict()["moved_bytes"] == 2 * 4 * 4 and not report.collectives
    assert "cpu devices; the program sends nothing between devices\n" in str(report)
    assert "Arguments moved before the program, not counted: 32 B on each device" in str(report)
    moved = communication_report(fn, nym.shard(x, {"batch": "data"}))
    assert moved.moved_bytes == 0 and "Arguments moved" not in str(moved)


def test_wrong_arguments_are_refused():
    lowered = jax.jit(jnp.sin).lower(jax.ShapeDtypeStruct((8,), "float32"))
    report = communication_report(lowered)
    with refusal("a function that is lowered has its arguments; pass it alone", TypeError):
        communication_report(lowered, jnp.ones(8))
    with refusal("`fn` is a function, or what `lower` or `compile` returns; it was int", TypeError):
        communication_report(3)
    with refusal("`nnx.jit` does not show its program; compile a function of `nnx.split", TypeError):
        nym.planner.communication_report(nnx.jit(lambda x: x + 1), jnp.ones(8))
    with refusal("there is no collective 'gather'; the kinds are 'all-gather'"):
        report.select(kind="gather")
    with refusal("no axis 'data'; the mesh has no axes, the arguments have no names"):
        report.select(axis="data")
    for assertion in (lambda: assert_no_collectives(lowered, "data"), lambda: assert_communication(lowered, at_most=0)):
        with refusal("the program is for one device, which sends nothing; set a mesh of several"):
            assertion()
    with pytest.raises(TypeError, match=r"takes a mesh axis or a named axis in front of .* not a NamedArray"):
        assert_no_collectives(nym.sum, nym.ones({"batch": 8}))
    with refusal("bytes are not counted by 'layers'; did you mean 'layer'"):
        report.count_bytes("layers")
    for limit, noun in (("at_most", "bytes"), ("at_most_runs", "runs")):
        with refusal(f"`{limit}` is a number of {noun}, 0 or more; it was -1 for 'all-gather'"):
            assert_communication(lowered, **{limit: {"all-gather": -1}})
    with refusal("`assert_communication` takes a limit: bytes as `at_most`, or numbers of runs as", TypeError):
        assert_communication(lowered)
