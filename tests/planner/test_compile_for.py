"""Programs for devices that are not there: on CPUs with JAX alone, on TPUs with a compiler that is played, and live."""

import errno
import gzip
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.planner import CompiledProgram, communication_report, compile_for, described_devices, memory_report
from axonym.planner._compiler import _compile_cache, _compiler_process
from axonym.planner._compiler._compile_cache import fingerprint_module
from axonym.planner._search._published_flags import PUBLISHED_FLAGS

from ..refusals import refusal
from . import described_programs as programs


COMPUTE = {"batch": "data", "mlp": "model"}
STORED = {"embed": "data", "mlp": "model"}
needs_libtpu = pytest.mark.skipif(
    not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it."
)
needs_gpu_plugins = pytest.mark.skipif(
    not os.environ.get("AXONYM_GPU_PLUGINS"), reason="This needs XLA for GPUs: `make gpu-plugins` installs it."
)


def shape(dtype: Any = jnp.float32, **sizes: int) -> nym.NamedArray:
    return nym.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), dtype), tuple(sizes))


def step(weights: dict[str, nym.NamedArray], x: nym.NamedArray) -> dict[str, nym.NamedArray]:
    def loss(weights: dict[str, nym.NamedArray]) -> jax.Array:
        with jax.named_scope("up"):
            hidden = nym.nn.silu(nym.dot(x, weights["up"], axis="embed"))
        with jax.named_scope("down"):
            return nym.mean(nym.dot(hidden, weights["down"], axis="mlp") ** 2).array

    return jax.tree.map(lambda weight, gradient: weight - gradient, weights, jax.grad(loss)(weights))


SHAPES = {"up": shape(embed=64, mlp=128), "down": shape(mlp=128, embed=64)}, shape(batch=32, embed=64)
fsdp_step = nym.fsdp(step, STORED, COMPUTE, in_axis_resources=(STORED, COMPUTE), donate_args=(True, False))


def count_collectives(program: Any) -> list[tuple[Any, ...]]:
    found = communication_report(program).collectives
    return sorted((one.kind, one.mesh_axes, one.axes, one.bytes, one.layer) for one in found)


PlayCompiler = Callable[..., None]


@pytest.fixture
def play_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayCompiler:
    """Plays a child that compiles: it runs these lines, in which `dump(name, text)` writes what libtpu would."""
    folder = tmp_path / "libtpu"
    (folder / "libtpu-0.0.1.dist-info").mkdir(parents=True)
    (folder / "libtpu-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 0.0.1\n")
    monkeypatch.setenv("AXONYM_LIBTPU", str(folder))

    def play(lines: str, **texts: str) -> None:
        child = tmp_path / "child.py"
        child.write_text(
            "import json, os, pathlib, signal, sys, time\n"
            "folder = pathlib.Path(sys.argv[1])\n"
            f"texts = {json.dumps(texts)}\n"
            "def dump(name, text):\n"
            "    (folder / 'dump').mkdir(exist_ok=True)\n"
            "    (folder / 'dump' / f'module_0000.jit_step.{name}.txt').write_text(text)\n" + textwrap.dedent(lines)
        )
        monkeypatch.setattr(_compiler_process, "_CHILD", child)

    return play


def compile_played(fn: Any = fsdp_step, cache: Any = False, **options: Any) -> CompiledProgram:
    return compile_for(fn, *SHAPES, devices="v5e:2x4", mesh=programs.MESH, cache=cache, **options)


def compile_double(devices: str = "cpu:2", **options: Any) -> CompiledProgram:
    options = {"mesh": {"data": 2}, "cache": False, **options}
    return compile_for(lambda x: x * 2, shape(batch=8), devices=devices, **options)


DUMPED = """
dump("after_optimizations-buffer-assignment", texts["memory"])
dump("after_optimizations_after_buffer_assignment", texts["text"])
time.sleep(100)
"""


DUMPS = {
    "memory": programs.read_recorded("step")["dumps"]["after_optimizations-buffer-assignment"],
    "text": programs.read_recorded("step")["dumps"]["after_optimizations_after_buffer_assignment"],
}


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_program_for_cpus_is_that_of_this_process(axis_types: str):
    if jax.device_count() < 8:
        pytest.skip("This needs 8 devices.")
    with jax.set_mesh(nym.create_mesh({"data": 2, "model": 4}, axis_types=axis_types)):
        compiled = fsdp_step.lower(*SHAPES).compile()
    mesh = nym.create_mesh({"data": 2, "model": 4}, devices=described_devices("cpu:8"), axis_types=axis_types)
    before = dict(os.environ)
    program = compile_for(fsdp_step, *SHAPES, mesh=mesh, cache=False)
    assert dict(os.environ) == before
    assert count_collectives(program) == count_collectives(compiled)
    stats: Any = compiled.memory_analysis()
    assert program.memory.argument_bytes == stats.argument_size_in_bytes
    assert program.memory.output_bytes == stats.output_size_in_bytes
    assert program.memory.alias_bytes == stats.alias_size_in_bytes > 0
    assert program.memory.temp_bytes == stats.temp_size_in_bytes and program.is_stopped
    sources, expected = (
        [one.source for one in communication_report(each).select(axis="model")] for each in (program, compiled)
    )
    assert sources == expected
    assert all("test_compile_for.py:" in source for source in sources)
    assert program.fits and program.as_text() == program.text and hash(program) == hash(program)
    assert str(program).startswith("compiled for cpu:8, mesh (data: 2, model: 4), in ")


@pytest.mark.parametrize(
    ("devices", "dtype", "axis_types"),
    [
        ("cpu:8", jnp.float16, "auto"),
        ("cpu:8", jnp.float16, "explicit"),
        pytest.param("v5e:2x4", jnp.bfloat16, "explicit", marks=needs_libtpu),
    ],
)
def test_gradients_of_lookups_are_added_up_in_32_bits_and_sent_in_16(axis_types: str, devices: str, dtype: Any):
    def loss(table: nym.NamedArray, ids: nym.NamedArray) -> jax.Array:
        vectors = nym.nn.Embedding(table, nym.Axis("vocab", 32768), (nym.Axis("embed", 1024),))(ids)
        return (vectors.astype(jnp.float32) ** 2).sum().scalar()

    program = compile_for(
        nym.fsdp(jax.grad(loss), {"embed": "data"}, {"batch": "data"}),
        shape(dtype, vocab=32768, embed=1024),
        shape(jnp.int32, batch=64, pos=16),
        mesh=nym.create_mesh({"data": 4, "model": 2}, devices=described_devices(devices), axis_types=axis_types),
        cache=False,
    )
    counts, size = communication_report(program).count_bytes(), 32768 * 1024 * 2
    if devices == "cpu:8" and axis_types == "auto":  # XLA for CPUs makes no reduce-scatter
        assert counts == {"all-gather": size, "all-reduce": size}
    else:
        assert counts == {"all-gather": size, "reduce-scatter": size // 4}
    scattered_types = re.findall(r"= (\w+)\[[\d,]*32768[\d,]*\]\S* scatter\(", program.text)
    assert scattered_types == ["f32"]


def test_arguments_are_sharded_by_the_active_mapping():
    def total(x: nym.NamedArray, y: jax.Array) -> nym.NamedArray:
        return nym.sum(x * 2, "batch") + jnp.sum(y)

    x, y = nym.ones({"batch": 32, "embed": 4}), jnp.ones(8)
    with jax.set_mesh(nym.create_mesh({"data": 8}, devices=described_devices("cpu:8"))):
        placed = nym.shard(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), x), COMPUTE)
        program = compile_for(total, placed, y, cache=False)
    assert program.memory.argument_bytes == 32 * 4 * 4 // 8 + 8 * 4
    (first, second), _ = program.arguments
    assert first.array.sharding.spec == jax.sharding.PartitionSpec("data", None)
    assert second.sharding is None
    assert memory_report(program).arguments == {"x": 32 * 4 * 4 // 8, "y": 8 * 4}
    assert memory_report(program, device="cpu:8").device == "cpu"
    with refusal("'cpu:4' is a machine, and the program is compiled for cpu:8; pass"):
        memory_report(program, device="cpu:4")
    again = compile_for(total, x, y, devices="cpu:8", mesh={"data": 8}, mapping=COMPUTE, cache=False)
    assert again.memory == program.memory
    assert count_collectives(again) == count_collectives(program) == [("all-reduce", ("data",), ("batch",), 16, "")]


def test_program_is_compiled_again_only_if_something_has_changed(play_compiler: PlayCompiler, tmp_path: Path):
    play_compiler(DUMPED, **DUMPS)
    folder = tmp_path / "programs"
    first = compile_played(cache=folder)
    second = compile_played(cache=folder)  # from another line
    assert (first.is_cached, second.is_cached) == (False, True)
    assert second.text == first.text
    assert second.memory == first.memory
    assert second.versions == first.versions
    assert not compile_played(cache=folder, compiler_options={"xla_tpu_rwb_fusion": False}).is_cached
    assert not compile_played(nym.named_jit(step, COMPUTE), cache=folder).is_cached
    assert len(list(folder.iterdir())) == 3
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-40])
    assert not compile_played(cache=folder).is_cached
    assert compile_played(cache=folder).is_cached


def test_a_cached_program_that_is_none_is_compiled_again(play_compiler: PlayCompiler, tmp_path: Path):
    play_compiler(DUMPED, **DUMPS)
    folder = tmp_path / "programs"
    assert not compile_played(cache=folder).is_cached
    [path] = folder.iterdir()
    fields = json.loads(gzip.decompress(path.read_bytes()))
    wrong = [{name: value} for name in fields for value in (None, [{}], {"x": 1})]
    wrong += [{"memory": {**fields["memory"], name: value}} for name in fields["memory"] for value in (None, "3", [{}])]
    contents = [json.dumps({**fields, **changes}) for changes in [{"text": ""}, {"text": "HloModule"}, *wrong]]
    for content in [*contents, "null", "[]", "[" * 100_000, '{"text":' * 100_000]:
        path.write_bytes(gzip.compress(content.encode()))
        assert _compile_cache._read_file(path) is None, content[-300:]
    path.write_bytes(gzip.compress(contents[0].encode()))
    assert not compile_played(cache=folder).is_cached and compile_played(cache=folder).is_cached


def test_folder_that_cannot_be_written_is_noted(play_compiler: PlayCompiler, tmp_path: Path):
    play_compiler(DUMPED, **DUMPS)
    (tmp_path / "file").touch()
    program = compile_played(cache=tmp_path / "file" / "programs")
    assert program.notes[0].startswith("not kept for the next time: ")
    assert program.notes[0] in str(program)


def test_arguments_that_nothing_shards_are_noted(play_compiler: PlayCompiler):
    play_compiler(DUMPED, **DUMPS)
    machine: Any = {"devices": "v5e:2x4", "mesh": {"data": 8}}
    unsharded = "no argument is sharded, so each device may compute all of it; pass `mapping`, or shapes with shardings"
    assert compile_double(**machine).notes == compile_double(**machine, mapping={}).notes == (unsharded,)
    assert compile_double(**machine, mapping={"batch": "data"}).notes == ()
    assert compile_double("v5e:1x1", mesh={"data": 1}).notes == ()


@pytest.mark.parametrize("cache", [3, None, ["folder"], ""])
def test_a_cache_that_is_no_folder_is_refused(cache: Any):
    message = "is a folder, True for one of the user's or False for none; it was"
    error, message = (
        (ValueError, "is an empty path; give the name of a folder") if cache == "" else (TypeError, message)
    )
    for compile_step in (nym.planner.compile_for, nym.planner.plan):
        with refusal(f"`cache` {message}", error):
            compile_step(lambda x: x * 2, shape(batch=8), devices="cpu:2", cache=cache)


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("AXONYM_LIBTPU", str(tmp_path))
    monkeypatch.delenv("AXONYM_GPU_PLUGINS", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"compiling for 'v5e:2x4' needs libtpu, .*`axonym\[plan-tpu\]`"):
        compile_double("v5e:2x4", mesh={"data": 8})
    with refusal("'h100:1x8' needs jax-cuda12-pjrt, which is not installed; install", ModuleNotFoundError):
        compile_double("h100:1x8", mesh={"data": 8})


def test_mesh_has_to_be_of_described_devices():
    x, virtual = shape(batch=8), jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    machines = r"is a description such as 'v5e:16x16', .*, not "
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({}, TypeError, "needs a mesh of described devices"),
        ({"mesh": virtual}, TypeError, "needs a mesh of described devices"),
        ({"mesh": {"data": 8}}, ValueError, "`mesh` has only sizes; give `devices` as well"),
        ({"devices": "cpu:8"}, ValueError, "need a mesh, and none is active; give the sizes of its axes, as in"),
        ({"devices": jax.devices(), "mesh": {"data": 8}}, TypeError, machines + "a sequence of Device"),
        ({"devices": []}, TypeError, machines + r"\[\]"),
        (
            {"devices": "cpu:8", "mesh": (8,)},
            TypeError,
            "a mesh or the sizes of its axes by name, not a tuple; give",
        ),
        ({"devices": "cpu:8", "mesh": {"data": 7}}, ValueError, r"mesh \(data: 7\) needs 7 devices, but there are 8"),
    ]
    for machine, error, message in wrong:
        with pytest.raises(error, match=message):
            compile_for(lambda x: x, x, **machine)
    with refusal("`fn` is a function, not a str", TypeError):
        compile_for("step", x, devices="cpu:8", mesh={"data": 8})


def test_refused_option_and_short_time_are_errors():
    with pytest.raises(ValueError, match=r"refuses an option \(given are 'xla_nonsense'\): .*xla_nonsense"):
        compile_double(compiler_options={"xla_nonsense": True})
    with refusal("compiling for 'cpu:2' took longer than 0.01 seconds; raise `timeout`", TimeoutError):
        compile_double(timeout=0.01)


def test_callback_of_the_host_is_explained(play_compiler: PlayCompiler):
    def show(x: nym.NamedArray) -> nym.NamedArray:
        jax.debug.print("{}", x.array.sum())
        return x

    with pytest.raises(ValueError, match=r"callbacks such as `jax\.debug\.print`.*leave them out"):
        compile_for(show, shape(batch=8), devices="v5e:2x4", mesh={"data": 8}, cache=False)


def test_compiler_is_stopped_before_it_generates_code(play_compiler: PlayCompiler):
    half = "dump('after_optimizations_after_buffer_assignment', texts['text'][:5000]); time.sleep(0.2)\n"
    play_compiler(half + DUMPED, **DUMPS)
    program = compile_played()
    assert program.is_stopped
    assert program.text == DUMPS["text"]
    assert program.memory.peak_bytes == programs.read_recorded("step")["memory"]["peak"]
    assert program.versions["libtpu"] == "0.0.1"
    assert {one.mesh_axes for one in communication_report(program).collectives} >= {("data",), ("model",)}


NO_SPACE = "raise OSError(28, 'No space left on device')"


def test_changed_dump_format_is_noted(play_compiler: PlayCompiler):
    memory = {"argument_bytes": 1, "output_bytes": 2, "alias_bytes": 0, "temp_bytes": 4, "peak_bytes": 9}
    play_compiler(
        """
        dump("after_optimizations-buffer-assignment", "BufferAssignment v2")
        (folder / "optimized.txt").write_text("ENTRY %main () -> () {\\n}")
        (folder / "result.json").write_text(json.dumps({"memory": json.loads(texts["memory"])}))
        """,
        memory=json.dumps(memory),
    )
    program = compile_played()
    assert not program.is_stopped
    assert (program.memory.temp_bytes, program.memory.peak_bytes) == (4, 9)
    assert "the compiler did not write its memory where it was looked for" in program.notes[0]


def test_too_little_memory_is_a_figure(play_compiler: PlayCompiler):
    play_compiler(
        """
        dump("after_optimizations", "ENTRY %main () -> () {\\n}")
        dump("after_optimizations-buffer-assignment", "allocation 0: size 99, parameter 0, shape |u8[99]| at {}:\\n")
        error = "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM"
        (folder / "result.json").write_text(json.dumps({"error": error}))
        """
    )
    program = compile_played()
    assert program.is_out_of_memory
    assert not program.fits
    assert program.memory.argument_bytes == 99
    assert "it does not fit" in str(program)


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", RuntimeError, r"was killed by SIGKILL .* memory ran short on this"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", RuntimeError, r"was killed by SIGSEGV before it had a result$"),
        ("sys.exit('gone')", RuntimeError, r"(?s)'v5e:2x4' ended with code 1 and without a result:.*gone"),
        (NO_SPACE, OSError, r"(?s)the disk is full: .* writes to .*TMPDIR"),
        ("(folder / 'result.json').write_text('{\"error\": \"INTERNAL: x\"}')", RuntimeError, "cannot compile.*: INTE"),
    ],
    ids=["killed", "crashed", "ended", "disk", "internal"],
)
def test_failed_compiler_is_explained(play_compiler: PlayCompiler, lines: str, kind: type[Exception], message: str):
    play_compiler(lines)
    with pytest.raises(kind, match=message):
        compile_played()


@pytest.fixture
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files, none of which stays."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not any(folder.iterdir())


@pytest.mark.parametrize("writer", ["parent", "child"])
def test_a_full_disk_is_named(
    writer: str, play_compiler: PlayCompiler, monkeypatch: pytest.MonkeyPatch, empty_folder: Path
):
    """A disk that is full has no room for the log of the compiler either."""
    play_compiler(f"sys.stderr = open(os.devnull, 'w'); {NO_SPACE}")
    if writer == "parent":

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(_compiler_process, "write_job", refuse)
    else:
        usage = shutil.disk_usage(empty_folder)._replace(free=0)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = r"^the disk is full: the compiler for 'v5e:2x4' writes to '.*/empty'; free some"
    with pytest.raises(OSError, match=message):
        compile_played()


def test_an_interrupted_compilation_leaves_no_folder(play_compiler: PlayCompiler, interrupts: None, empty_folder: Path):
    # Again after a while, since Python drops one that arrives in JAX's callback of the garbage collector.
    play_compiler("while True: os.kill(os.getppid(), signal.SIGINT); time.sleep(5)")
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        compile_played()


def test_a_compiler_ends_with_the_process_that_started_it(tmp_path: Path):
    """It removes the folder, which that process can no longer do."""
    folder = tmp_path / "axonym-compile-1"
    folder.mkdir()
    os.mkfifo(folder / "job.json")
    script = """if True:
        import pathlib, sys, types
        from axonym.planner._compiler import _compiler_process
        job = types.SimpleNamespace(platform="cpu", stop_early=False)
        _compiler_process._run_child(job, pathlib.Path(sys.argv[1]), 60.0)
    """
    parent = subprocess.Popen([sys.executable, "-c", script, folder])
    with (folder / "job.json").open("wb", buffering=0) as job:  # opens when the compiler reads it
        parent.kill()
        parent.wait()
        ended = select.poll()
        ended.register(job, select.POLLERR)
        assert ended.poll(30_000)
    assert not folder.exists()


@needs_libtpu
def test_stopped_and_whole_programs_have_the_memory_that_jax_reports():
    names = ["step", "fetch"]
    direct = programs.run_apart("tests.planner.described_programs", "--compile", json.dumps(names))
    mesh = nym.create_mesh(programs.MESH, devices=described_devices(programs.TOPOLOGY))
    for name in names:
        fn, args = programs.make_program(name, mesh.abstract_mesh)
        stopped = compile_for(fn, *args, mesh=mesh, cache=False)
        figures = stopped.memory.to_dict()
        expected = {kind: size for kind, size in direct[name].items() if size is not None}
        assert {kind: figures[f"{kind}_bytes"] for kind in expected} == expected
        assert stopped.is_stopped
        assert not stopped.notes
    whole = compile_for(fn, *args, mesh=mesh, cache=False, stop_early=False)
    assert not whole.is_stopped
    assert whole.memory == stopped.memory


@needs_libtpu
def test_program_for_tpus_scatters_gradients_and_fits_or_not():
    program = compile_for(fsdp_step, *SHAPES, devices="v5e:2x4", mesh=programs.MESH, cache=False)
    report = communication_report(program)
    assert {one.axes for one in report.select("reduce-scatter", "data")} == {("batch",)}
    assert {one.layer for one in report.collectives} >= {"up", "down"}
    mesh = nym.create_mesh(programs.MESH, devices=described_devices("v5e:2x4"))
    fn, args = programs.make_program("too large", mesh.abstract_mesh)
    large = compile_for(fn, *args, mesh=mesh, cache=False)
    assert large.is_out_of_memory
    assert large.memory.peak_bytes > 2 * large.memory.argument_bytes == 2**35


@needs_libtpu
@pytest.mark.parametrize("flags", PUBLISHED_FLAGS, ids=lambda flags: flags.name)
def test_libtpu_takes_the_flags_that_are_published_for_a_chip(flags):
    (chip,) = flags.hardware
    devices = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4"}[chip]
    options = {"mesh": programs.MESH, "compiler_options": flags.options, "cache": False}
    assert compile_for(fsdp_step, *SHAPES, devices=devices, **options).fits


@needs_libtpu
@pytest.mark.parametrize("vocab", [1280, 257 * 128])  # libtpu makes no tiles of the last one
def test_gradients_of_a_whole_torus_are_scattered(vocab):
    axes = nym.make_axes(embed=1024, vocab=vocab)
    layer = jax.eval_shape(lambda key: nym.nn.Linear.init(*axes, key=key, use_bias=False), jax.random.key(0))
    computing = {"batch": "data"}
    stored = {"embed": "data", **computing}
    step = nym.fsdp(
        lambda layer, x: jax.grad(lambda layer: nym.mean(layer(x) ** 2).scalar())(layer),
        stored,
        computing,
        in_axis_resources=(stored, computing),
    )
    mesh = nym.create_mesh({"data": 64}, axis_types="explicit", devices=described_devices("v5e:8x8"))
    report = communication_report(compile_for(step, layer, shape(batch=64, embed=1024), mesh=mesh, cache=False))
    backward = [one for one in report.collectives if one.run_in == "backward"]
    assert [one.kind for one in backward if one.kind != "collective-permute"] == ["reduce-scatter", "reduce-scatter"]
    assert sum(one.sent_bytes for one in backward) < 1.05 * 1024 * vocab * 4


@needs_gpu_plugins
def test_program_for_gpus_scatters_gradients():
    program = compile_for(fsdp_step, *SHAPES, devices="h100:2x4", mesh=programs.MESH, cache=False)
    assert {one.axes for one in communication_report(program).select("reduce-scatter", "data")} == {("batch",)}
    assert program.memory.argument_bytes == (64 * 128 * 2 // 8 + 32 * 64 // 2) * 4


def test_who_calls_the_function_and_the_numbers_of_locations_do_not_count():
    def write(first: int, line: int) -> str:
        """An operation of `f` in a.py, which `g` in b.py calls at a line."""
        at = [f"#loc{first + number}" for number in range(7)]
        return (
            f'%0 = add loc({at[6]})\n{at[0]} = loc("a.py":1:2 to :3)\n{at[1]} = loc("f"({at[0]}))\n'
            f'{at[2]} = loc("b.py":{line}:1 to :2)\n{at[3]} = loc("g"({at[2]}))\n'
            f'{at[4]} = loc(callsite({at[1]} at {at[3]}))\n{at[6]} = loc("jit(f)/add"({at[4]}))\n'
        )

    assert fingerprint_module(write(1, 5), "b.py") == fingerprint_module(write(9, 6), "b.py")
    assert fingerprint_module(write(1, 5), "c.py") == fingerprint_module(write(9, 5), "c.py")
    assert fingerprint_module(write(1, 5), "c.py") != fingerprint_module(write(1, 6), "c.py")
    for text in ("a.py", "jit(f)/add", "= add"):  # the place of the function, its names and its operations do count
        other = write(1, 5).replace(text, text.replace("a", "d"))
        assert fingerprint_module(write(1, 5), "b.py") != fingerprint_module(other, "b.py")
