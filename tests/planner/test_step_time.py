"""Seconds of small programs, counted by hand from cycles, published figures and the order of instructions."""

import collections
import re
from typing import Any

import jax
import pytest

import axonym as nym
from axonym.planner import (
    CompiledProgram,
    communication_report,
    described_devices,
    estimate_step_time,
    get_hardware,
)
from axonym.planner._program import _xla_text as xla
from axonym.planner._program._hlo_program import HloProgram

from ..refusals import refusal
from .programs import read_recorded as read_program
from .step_programs import BATCH, SIZES, make_program, read_recorded


CLOCK, LINK, HOST = 1.5e9, 45e9, 16e9  # of v5e
ARRAY = 256 * 256 * 4  # bytes that a device has of an array in these programs
MESH = nym.create_mesh({"data": 2, "model": 4}, devices=described_devices("v5e:2x4"))
MODEL, DATA = ("model",), ("data",)
GATHER = 3 / 4 * 2**22 / (2 * LINK)  # seconds of an all-gather of f32[1024,1024] in a square of four chips


def make_hlo(*lines: str, before: str = "", **options: Any) -> CompiledProgram:
    """Returns a program for v5e:2x4 with these instructions; `@` is a shape, and `cycles(n)` is what XLA estimates."""
    text = f"{before}\nENTRY %main (x: f32[256,1024]) -> f32[1024,1024] {{\n" + "\n".join(f"  {one}" for one in lines)
    text = re.sub(r"cycles\((\d+)\)", r'backend_config={"window_config":{"estimated_cycles":"\1"}}', text)
    return make_program(text.replace("@", "f32[1024,1024]{1,0}") + "\n}\n", MESH, **options)


def test_kernels_without_figures_take_as_long_as_their_memory_or_what_their_authors_estimate():
    line = '%scale = bf16[1024,1024] custom-call(%x), custom_call_target="tpu_custom_call", '
    line += "operand_layout_constraints={bf16[1024,1024]{1,0}}"
    costs = '"cost_estimate":{"flops":"FLOPS","transcendentals":"0","bytes_accessed":"819000000"}'
    estimated = f"{line}, backend_config={{{costs}}}"
    for kernel, seconds in (
        (line, 2 * 2**21 / 819e9),
        (estimated.replace("FLOPS", str(197 * 10**8)), 1e-3),
        (estimated.replace("FLOPS", str(197 * 10**10)), 1e-2),
    ):
        time = estimate_step_time(make_hlo(kernel, "%a = @ add(%y, %y), cycles(15000)"))
        assert time.compute == pytest.approx(seconds + 1e-5)


def test_instructions_of_which_the_compiler_knows_no_cycles_take_none():
    time = estimate_step_time(make_hlo(f"%a = @ copy(%x), cycles({2**63 - 1})", "%b = @ add(%a, %a), cycles(15000)"))
    assert time.compute == pytest.approx(1e-5)


def in_seconds(cycles: float) -> float:
    return pytest.approx(cycles / CLOCK, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "cycles", "axes", "sent"),
    [
        ("all-reduce", 2914, MODEL, 2 * 3 / 4 * ARRAY / 2),  # half of it along each side of a square
        ("all-gather", 4012, DATA, 1 / 2 * 2 * ARRAY),
        ("all-reduce in a loop", 5 * 2381, MODEL, 5 * 2 * 3 / 4 * ARRAY / 2),
        ("collective-permute in a loop", 7 * 2381, MODEL, 7 * ARRAY),
    ],
)
def test_compiled_programs_take_their_cycles_and_wait_for_links(name, cycles, axes, sent):
    time = estimate_step_time(make_program(read_program("tpu")[name], MESH))
    assert time.compute == in_seconds(cycles)
    assert time.waiting == {axes: pytest.approx(sent / LINK, rel=1e-6)}
    assert (time.attention, time.hidden, time.host, time.source, time.error) == (0.0, {}, 0.0, "cycles", 0.15)
    assert time.total == pytest.approx(time.compute + sum(time.waiting.values()))


START = "%g = (f32[256,1024], @) all-gather-start(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}"
DONE = "%d = @ all-gather-done(%g)"


@pytest.mark.parametrize("cycles", [15_000, 300_000])
def test_collective_is_hidden_as_far_as_computing_lasts(cycles):
    program = make_hlo(START, f"%a = @ add(%y, %y), cycles({cycles})", DONE, "%b = @ add(%d, %d), cycles(15000)")
    time = estimate_step_time(program)
    hidden = min(cycles / CLOCK, GATHER)
    assert time.compute == in_seconds(cycles + 15_000)
    assert time.hidden == {MODEL: pytest.approx(hidden)}
    assert sum(time.waiting.values()) == pytest.approx(GATHER - hidden)


def test_collectives_along_an_axis_are_sent_in_turn():
    other = START.replace("%g", "%h").replace("channel_id=1", "channel_id=2")
    across = "%k = (f32[512,1024], @) all-gather-start(%x), channel_id=3, replica_groups={{0,4},{1,5},{2,6},{3,7}}"
    done = [DONE, DONE.replace("%d", "%e").replace("%g", "%h"), DONE.replace("%d", "%f").replace("%g", "%k")]
    time = estimate_step_time(make_hlo(START, other, across, "%a = @ add(%y, %y), cycles(60000)", *done))
    assert time.waiting == {MODEL: pytest.approx(2 * GATHER - 4e-5)}  # until then, the other axis is done, too
    assert time.hidden == {MODEL: pytest.approx(4e-5), DATA: pytest.approx(2**21 / LINK)}


FUSED = """
%async_collective_fusion (p: f32[256,1024]) -> f32[1024,1024] {
  %p = f32[256,1024] parameter(0)
  %g = f32[1024,1024] all-gather(%p), channel_id=7, replica_groups={{0,1,2,3},{4,5,6,7}}
  ROOT %c = f32[1024,1024] convolution(%p, %p)
}
"""


@pytest.mark.parametrize("cycles", [15_000, 300_000])
def test_collective_in_a_product_takes_the_longer_of_both(cycles):
    line = f"%f = @ fusion(%x), kind=kOutput, calls=%async_collective_fusion, cycles({cycles})"
    time = estimate_step_time(make_hlo(line, before=FUSED))
    assert time.total == pytest.approx(max(cycles / CLOCK, GATHER))
    assert time.compute == in_seconds(cycles)


def test_steps_of_a_fused_collective_are_one():
    marked = '  ROOT %c = f32[1024,1024] custom-call(%g), custom_call_target="AsyncCollective'
    start, done = (
        re.sub(r"  ROOT.*", f'{marked}{what}"', FUSED).replace("%async_collective_fusion", f"%{what}")
        for what in ("Start", "Done")
    )
    lines = [
        *("%s = @ fusion(%x), kind=kCustom, calls=%Start", "%e = @ exponential(%y), cycles(15000)"),
        *("%f = @ fusion(%x), kind=kOutput, calls=%async_collective_fusion, cycles(30000)",),
        "%d = @ fusion(%f), kind=kCustom, calls=%Done",
    ]
    time = estimate_step_time(make_hlo(*lines, before=start + FUSED + done))
    assert time.compute == in_seconds(45_000)
    assert time.waiting == {MODEL: pytest.approx(GATHER - 45_000 / CLOCK)}
    assert time.hidden == {MODEL: in_seconds(45_000)}


def test_collective_on_a_sparse_core_runs_beside_computing():
    called = FUSED.replace("%async_collective_fusion", "%on_sparse_core").replace("convolution(%p, %p)", "copy(%g)")
    start = '%s = ((), (), u32[]) call-start(), async_execution_thread="sparsecore", to_apply=%on_sparse_core'
    lines = [start, "%a = @ add(%y, %y), cycles(15000)", "%d = @ call-done(%s)"]
    program = make_hlo(*lines, before=called)
    time = estimate_step_time(program)
    assert time.hidden == {MODEL: in_seconds(15_000)}
    assert time.waiting == {MODEL: pytest.approx(GATHER - 1e-5)}
    (collective,) = communication_report(program).collectives
    assert (collective.is_async, collective.mesh_axes, collective.result_bytes) == (True, MODEL, 2**22)


@pytest.mark.parametrize(
    ("start", "done"),
    [
        ("%s = (@, @, u32[]) copy-start(%y)".replace("@, @", "@, f32[1024,1024]{1,0:S(5)}"), "%d = @ copy-done(%s)"),
        (
            "%s = ((f32[4,1024,1024]{2,1,0:S(5)}, @, s32[]), f32[4,1024,1024]{2,1,0:S(5)}, u32[]) "
            "dynamic-update-slice-start(%h, %y, %i)",
            "%d = f32[4,1024,1024]{2,1,0:S(5)} dynamic-update-slice-done(%s)",
        ),
    ],
)
def test_transfers_to_the_host_run_beside_computing(start, done):
    time = estimate_step_time(make_hlo(start, "%a = @ add(%y, %y), cycles(150000)", done))
    assert time.host == pytest.approx(2**22 / HOST - 1e-4)
    assert (time.waiting, time.hidden) == ({}, {})


HEADS, QUERIES, KEYS = "bf16[2,4,1024,128]{3,2,1,0}", 2 * 4 * 1024 * 128, 1024


@pytest.mark.parametrize(
    ("name", "results", "mask", "products"),
    [
        ("splash_mha_fwd_residuals.3", f"({HEADS}, f32[2,4,1024])", "s8[1,2,2]{2,1,0}, ", 2 / 2),
        ("splash_mha_fwd_residuals.3", HEADS, "", 2),
        ("splash_mha_dq_no_residuals.1", HEADS, "s8[1,2,2]{2,1,0}, ", 1 / 2),
        ("splash_mha_dkv_no_residuals", f"({HEADS}, {HEADS})", "s8[1,2,2]{2,1,0}, ", 3 / 2),
        ("splash_mha_dkv_no_residuals", f"({HEADS}, {HEADS}, {HEADS})", "s8[1,2,2]{2,1,0}, ", 4 / 2),
    ],
)
def test_kernels_of_attention_are_counted_by_products(name, results, mask, products):
    shapes = f"{mask}{HEADS}, {HEADS}, {HEADS}"
    line = f'%{name} = {results} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call", '
    program = make_hlo(f"{line}operand_layout_constraints={{{shapes}}}", "%a = @ add(%y, %y), cycles(15000)")
    flops = products * 2 * QUERIES * KEYS
    assert estimate_step_time(program).attention == pytest.approx(flops / (0.5 * 197e12))


def multiply_groups(tiles: str, x: str, other: str, result: str, scope: str = "") -> str:
    """Returns the kernel of a `ragged_dot` with tiles of these sizes."""
    return (
        f'%ragged-dot = {result} custom-call(%sizes, %x, %w), custom_call_target="tpu_custom_call", '
        f"operand_layout_constraints={{s32[8]{{0}}, {x}{{1,0}}, {other}}}, "
        f'frontend_attributes={{ragged_dot_tiling="{tiles}"}}, metadata={{op_name="jit(f)/{scope}ragged_dot_general"}}'
    )


X, W, XW = "bf16[8192,4096]", "bf16[8,4096,1024]", "bf16[8192,1024]"
MATRIX = 2 * 4096 * 1024  # bytes of an expert


@pytest.mark.parametrize(
    ("kernel", "flops", "moved"),
    [
        # 64 tiles of rows, of which 7 are taken to be of two experts. All is read once: the sum has one tile.
        (multiply_groups("128,4096,1024", X, W, XW), 71 * 128 * MATRIX, 2**26 + 2**24 + 8 * MATRIX),
        # With two tiles of what is summed, each tile of rows is read for each of its experts, with a whole matrix.
        (multiply_groups("128,2048,1024", X, W, XW), 71 * 128 * MATRIX, 71 / 64 * 2**26 + 2**24 + 71 * MATRIX),
        # Two rows are of two experts at most.
        (
            multiply_groups("128,4096,1024", "bf16[2,4096]", W, "bf16[2,1024]"),
            2 * 128 * MATRIX,
            2 * 2 * (4096 + 1024) + 2 * MATRIX,
        ),
        # A quarter of the rows is of experts on this device.
        (
            multiply_groups("128,4096,512", X, W, XW, "rows(2048 of 8192)/"),
            23 * 128 * MATRIX,
            2 * 2**24 + 2**22 + 8 * MATRIX,
        ),
        # The gradient of the matrices reads rows for each tile of columns, and their gradients for each tile of rows.
        (multiply_groups("128,2048,512", X, XW, W), 71 * 128 * MATRIX, 2 * 2**26 + 2 * 2**24 + 8 * MATRIX),
    ],
)
def test_products_of_experts_take_as_long_as_their_tiles(kernel, flops, moved):
    time = estimate_step_time(make_hlo(kernel, "%a = @ add(%y, %y), cycles(15000)"))
    assert time.compute == pytest.approx(max(flops / 197e12, moved / 819e9) + 1e-5)


@pytest.mark.parametrize(
    ("dispatch", "mapping", "expected"),
    [
        ("gather", {"batch": "data", "experts": "model"}, ("256", "1024")),
        ("ragged_all_to_all", {"batch": MODEL, "experts": MODEL}, ("512", "2048")),
        ("gather", {"batch": "data"}, ("1024", "1024")),
    ],
)
def test_products_of_experts_say_how_many_rows_they_have(dispatch, mapping, expected):
    """Of 1024 tokens, each of which chooses two experts."""
    axes = nym.make_axes(embed=8, mlp=16, experts=8)

    def apply_mixture(x):
        return nym.nn.MixtureOfExperts.init(*axes, 2, key=jax.random.key(0), dispatch=dispatch)(x)[0]

    x = nym.NamedArray(jax.ShapeDtypeStruct((1024, 8), "float32"), ("batch", "embed"))
    mesh = nym.create_mesh({"data": 2, "model": 4})
    with jax.set_mesh(mesh):
        text = nym.named_jit(apply_mixture, mapping).lower(x).as_text(debug_info=True)
    assert set(re.findall(xla.EXPECTED_ROWS.format(rows=r"(\d+)"), text)) == {expected}


def test_step_for_tpus_has_each_part():
    program = read_recorded("tpu")
    time = estimate_step_time(program)
    kernels = re.findall(r"%splash_mha_([a-z]+)[\w.]* = [^\n]*custom-call\(", program.text)
    assert collections.Counter(kernels) == {"fwd": 4, "dq": 2, "dkv": 2}  # XLA has taken a turn out of each loop
    batch, heads = BATCH["batch"] // 4, SIZES["heads"] // 2
    product = 2 * batch * heads * BATCH["pos"] ** 2 * SIZES["head_dim"] / 2
    assert time.attention == pytest.approx(SIZES["layers"] * (2 + 2 + 4) * product / (0.5 * 197e12))
    assert set(time.waiting) == {DATA, MODEL, (*DATA, *MODEL)}
    assert time.host > 0  # a layer is too short to bring what it saves to the host
    offloaded = SIZES["layers"] * batch * BATCH["pos"] * SIZES["embed"] * 2
    assert time.host <= 2 * offloaded / HOST
    assert time.source == "cycles"


def make_gpu_program(
    *lines: str, before: str = "", devices: str = "h100:1x8", mesh: Any = (("data", 8),), options: Any = None
) -> CompiledProgram:
    """Returns a program for eight GPUs of a host with these instructions."""
    body = "\n".join(f"  {line}" for line in lines)
    text = f"{before}\nENTRY %main (x: bf16[8192,4096]) -> bf16[8192,4096] {{\n{body}\n}}\n"
    return make_program(text, nym.create_mesh(dict(mesh), devices=described_devices(devices)), options=options)


def multiply(rows: int, columns: int, contracted: int, batch: int = 1, dtype: str = "bf16") -> tuple[str, ...]:
    """Returns the instructions of a product of cuBLAS."""
    left, right, result = ([batch, *sizes] for sizes in ((rows, contracted), (contracted, columns), (rows, columns)))
    config = '"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"]'
    return (
        f"%a = {dtype}{left} parameter(0)".replace(", ", ","),
        f"%b = {dtype}{right} parameter(1)".replace(", ", ","),
        f"%c = ({dtype}{result}, s8[4194304]) custom-call(%a, %b), ".replace(", ", ",", 2)
        + f'custom_call_target="__cublas$lt$matmul", backend_config={{{config}}}',
    )


# Speeds of cuBLAS on an H100, in XLA's own table of them and by `jax.jit` of jax 0.11.2, in 10^12 operations a second.
@pytest.mark.parametrize(
    ("rows", "columns", "contracted", "batch", "speed"),
    [
        (4096, 2048, 4096, 1, 764),
        (1024, 1024, 1024, 1, 247),
        (256, 2048, 4096, 1, 288),
        (1024, 256, 512, 1, 42),
        (512, 512, 2048, 2, 232),
    ],
)
def test_products_on_gpus_are_as_fast_as_measured(rows, columns, contracted, batch, speed):
    time = estimate_step_time(make_gpu_program(*multiply(rows, columns, contracted, batch)))
    assert time.compute == pytest.approx(2e-12 * batch * rows * columns * contracted / speed, rel=0.2)
    assert (time.attention, time.waiting, time.source) == (0.0, {}, "kernels")


def test_products_of_gpus_differ_by_dtype_and_device():
    def estimate(devices: str, dtype: str) -> float:
        return estimate_step_time(make_gpu_program(*multiply(8192, 8192, 8192, 1, dtype), devices=devices)).compute

    assert estimate("h100:1x8", "f32") == pytest.approx(2 * estimate("h100:1x8", "bf16"), rel=0.01)
    assert estimate("h100:1x8", "f8e4m3fn") == pytest.approx(0.803 / 0.709 / 2 * estimate("h100:1x8", "bf16"), rel=0.01)
    assert estimate("a100:1x8", "bf16") == pytest.approx(2 * 8192**3 / 271.2e12, rel=0.03)
    assert estimate("b200:1x8", "bf16") == pytest.approx(2 * 8192**3 / 1745e12, rel=0.03)


@pytest.mark.parametrize(
    ("direction", "operands", "result", "kernel_dims"),
    [
        ("Forward", ("64,56,56,256", "3,3,256,512"), "64,56,56,512", "01io"),
        ("BackwardInput", ("64,56,56,512", "512,3,3,256"), "64,56,56,256", "o01i"),
        ("BackwardFilter", ("64,56,56,256", "64,56,56,512"), "512,3,3,256", "o01i"),
    ],
)
def test_convolutions_of_gpus_are_products_of_windows(direction, operands, result, kernel_dims):
    call = f'dim_labels=b01f_{kernel_dims}->b01f, custom_call_target="__cudnn$conv{direction}"'
    lines = [f"%{name} = bf16[{shape}] parameter(0)" for name, shape in zip("ab", operands, strict=True)]
    time = estimate_step_time(make_gpu_program(*lines, f"%c = (bf16[{result}], u8[0]) custom-call(%a, %b), {call}"))
    product = estimate_step_time(make_gpu_program(*multiply(64 * 56 * 56, 512, 9 * 256)))
    assert time.compute == pytest.approx(product.compute)


UPDATE = """
%fused (p: f32[4,1024,1024], q: bf16[4,1024,1024], i: s32[]) -> f32[4,1024,1024] {
  %p = f32[4,1024,1024] parameter(0)
  %q = bf16[4,1024,1024] parameter(1)
  %i = s32[] parameter(2)
  %part = bf16[1,1024,1024] dynamic-slice(%q, %i, %i, %i), dynamic_slice_sizes={1,1024,1024}
  %wide = f32[1,1024,1024] convert(%part)
  ROOT %u = f32[4,1024,1024] dynamic-update-slice(%p, %wide, %i, %i, %i)
}
"""


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        (("%a = bf16[1024,1024] parameter(0)", "%b = f32[1024,1024] convert(%a)"), 2**20 * (2 + 4)),
        (("%a = f32[1024,1024] parameter(0)", "%b = f32[1024,1024] add(%a, %a)"), 2**20 * (4 + 4)),
        (
            (
                "%p = f32[4,1024,1024] parameter(0)",
                "%q = bf16[4,1024,1024] parameter(1)",
                "%i = s32[] parameter(2)",
                "%u = f32[4,1024,1024] fusion(%p, %q, %i), kind=kLoop, calls=%fused",
            ),
            2**20 * (2 + 4) + 4,  # a slice is read, and an update written
        ),
        (
            (
                "%p = f32[4,1024,1024] parameter(0)",
                "%q = bf16[4,1024,1024] parameter(1)",
                "%i = s32[] parameter(2)",
                "%s = ((f32[4,1024,1024], bf16[4,1024,1024], s32[]), f32[4,1024,1024], u32[]) "
                "fusion-start(%p, %q, %i), kind=kLoop, calls=%fused",
                "%u = f32[4,1024,1024] fusion-done(%s)",
            ),
            2**20 * (2 + 4) + 4,  # the same, at its start
        ),
        (("%a = f32[1024,1024] parameter(0)", "%b = f32[1048576] bitcast(%a)"), None),
    ],
)
def test_other_kernels_of_gpus_take_as_long_as_their_memory(lines, moved):
    time = estimate_step_time(make_gpu_program(*lines, before=UPDATE))
    assert time.compute == pytest.approx(moved / (0.8 * 3352e9) + 1e-6 if moved else 0.0)


GPU_GATHER = [
    "%x = bf16[1024,65536] parameter(2)",
    "%g = (bf16[1024,65536], bf16[8192,65536]) all-gather-start(%x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}",
]
GPU_DONE = "%d = bf16[8192,65536] all-gather-done(%g)"


def test_kernels_compute_more_slowly_beside_a_collective():
    product = multiply(8192, 8192, 8192)
    alone = estimate_step_time(make_gpu_program(*product)).compute
    beside = estimate_step_time(make_gpu_program(*GPU_GATHER, *product, GPU_DONE))
    gather = beside.hidden[DATA] + beside.waiting.get(DATA, 0.0)
    assert gather == pytest.approx(2**30 * 7 / 8 / 370.8e9, rel=0.03)
    # NCCL takes 24 of the 132 multiprocessors as long as it sends.
    assert beside.compute == pytest.approx(alone + min(gather, alone * 132 / 108) * 24 / 132)
    after = estimate_step_time(make_gpu_program(*GPU_GATHER, GPU_DONE, *product))
    assert (after.compute, after.waiting) == (pytest.approx(alone), {DATA: pytest.approx(gather)})


def test_gpus_send_one_collective_at_a_time():
    across, along = "{{0,2,4,6},{1,3,5,7}}", "{{0,1},{2,3},{4,5},{6,7}}"
    lines = [
        "%x = bf16[1024,65536] parameter(0)",
        f"%g = (bf16[1024,65536], bf16[4096,65536]) all-gather-start(%x), channel_id=1, replica_groups={across}",
        f"%h = (bf16[1024,65536], bf16[2048,65536]) all-gather-start(%x), channel_id=2, replica_groups={along}",
        "%d = bf16[4096,65536] all-gather-done(%g)",
        "%e = bf16[2048,65536] all-gather-done(%h)",
    ]
    mesh = {"data": 4, "model": 2}
    in_turn = estimate_step_time(make_gpu_program(*lines, mesh=mesh))
    option = {"xla_gpu_experimental_parallel_collective_overlap_limit": 4}
    at_once = estimate_step_time(make_gpu_program(*lines, mesh=mesh, options=option))
    assert set(in_turn.waiting) == {DATA, MODEL}
    assert at_once.total == pytest.approx(in_turn.waiting[DATA])


def test_step_for_gpus_is_counted_by_kernels():
    program = read_recorded("gpu")
    time = estimate_step_time(program)
    assert (time.source, time.error) == ("kernels", 0.5)
    assert set(time.waiting) == {DATA, MODEL, (*DATA, *MODEL)}
    batch, heads = BATCH["batch"] // 4, SIZES["heads"] // 2
    product = 2 * batch * heads * BATCH["pos"] ** 2 * SIZES["head_dim"] / 2
    # Forward, forward again, and five products backward, of cuDNN at 512 positions, the fewest with a figure.
    seconds = SIZES["layers"] * ((2 + 2) * product / 315e12 + 5 * product / (315e12 * 305 / 497))
    assert time.attention == pytest.approx(seconds, rel=1e-3)


ATTENTION = "jit(step)/jvp(Stacked)/while/body/Stacked/dot_product_attention(head_dim, key_pos)"


def attend(path: str, rows: int, columns: int, contracted: int, mask: str) -> CompiledProgram:
    *operands, product = multiply(rows, columns, contracted, batch=32)
    place = f'metadata={{op_name="{path}/dot_general"}}'
    return make_gpu_program(*operands, f"{product}, {place}", f"%m = pred[{mask}] compare(%i, %j), {place}")


BACKWARD = ATTENTION.replace("jvp(Stacked)", "transpose(jvp(Stacked))")
RECOMPUTED = BACKWARD.replace("body", "body/rematted_computation")


@pytest.mark.parametrize(
    ("path", "length", "head_dim", "is_masked", "products", "speed"),
    [
        (ATTENTION, 4096, 128, True, 1, 518),
        (ATTENTION, 4096, 64, True, 1, 363),
        (ATTENTION, 4096, 128, False, 1, 609),
        (BACKWARD, 4096, 128, False, 5 / 4, 499),
        (BACKWARD, 4096, 128, True, 5 / 4, 518 * 499 / 609),
        (RECOMPUTED, 4096, 128, True, 1, 518),
    ],
)
def test_attention_on_gpus_takes_as_long_as_kernels_of_its_shape(path, length, head_dim, is_masked, products, speed):
    flops = products * 2 * 32 * length**2 * head_dim / (2 if is_masked else 1)
    mask = f"{length},{length}" if is_masked else "32"
    for rows, columns, contracted in ((length, length, head_dim), (length, head_dim, length)):
        time = estimate_step_time(attend(path, rows, columns, contracted, mask))
        assert time.attention == pytest.approx(flops / (speed * 1e12), rel=1e-3)


# What XLA makes of a product with a single query, here of 32 heads with 4096 keys.
REDUCTION = """
%fused (k: bf16[32,4096,128], q: bf16[32,128]) -> f32[32,4096] {
  %k = bf16[32,4096,128] parameter(0)
  %q = bf16[32,128] parameter(1)
  %w = bf16[32,4096,128] broadcast(%q), dimensions={0,2}
  %m = bf16[32,4096,128] multiply(%k, %w)
  ROOT %r = f32[32,4096] reduce(%m, %zero), dimensions={2}, to_apply=%add
}
"""


def test_decoding_on_gpus_takes_as_long_as_reading_keys_and_values():
    place = f'metadata={{op_name="{ATTENTION}/dot_general"}}'
    operands = "%k = bf16[32,4096,128] parameter(0)", "%q = bf16[32,128] parameter(1)"
    reduction = f"%r = f32[32,4096] fusion(%k, %q), kind=kInput, calls=%fused, {place}"
    programs = (
        attend(ATTENTION, 4096, 8, 128, "4096"),  # a group of 8 queries, and their averages
        attend(ATTENTION, 128, 8, 4096, "4096"),
        make_gpu_program(*operands, reduction, before=REDUCTION),
    )
    least = 2 * 32 * 4096 * 128 / (0.8 * 3352e9)
    for time in map(estimate_step_time, programs):
        assert time.compute == 0.0
        assert least < time.attention < 1.07 * least + 6.1e-6  # with queries, scores and the start of kernels


@pytest.mark.parametrize(("turns", "mask"), [(36, "4,512,512"), (64, "4,8,4096")])
def test_blocks_of_attention_count_as_the_whole(turns, mask):
    # Of 8 x 8 blocks, a causal mask leaves 36.
    body = "\n".join(f"  {line}" for line in multiply(4 * 512, 512, 128, batch=8))
    place = f'metadata={{op_name="{ATTENTION}/while/body/dot_general"}}'
    loop = f'condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"{turns}"}}}}'
    before = f"%body (q: (s32[])) -> (s32[]) {{\n{body}, {place}\n  %m = pred[{mask}] compare(%i, %j), {place}\n}}\n"
    time = estimate_step_time(make_gpu_program(f"%loop = (s32[]) while(%start), {loop}", before=before))
    whole = estimate_step_time(attend(ATTENTION, 4096, 4096, 128, "4096,4096" if turns == 36 else "8"))
    assert time.attention == pytest.approx(whole.attention)  # of 32 heads, as many as 4 x 8


def test_slices_wait_for_the_data_center_network():
    program = read_recorded("slices")
    time = estimate_step_time(program, flops=0.0)
    hlo = HloProgram(program.text)
    sends = [one for one in hlo.instructions if one.opcode == "send"]
    assert len(sends) > 8
    sent = sum(hlo.count_runs(one.computation) * one.results[0].bytes for one in sends)  # all of it, in a sum of two
    assert time.waiting[("replica",)] == pytest.approx(sent / 3.125e9, rel=1e-6)
    assert set(time.waiting) == {("replica",), ("data",)}
    sums = communication_report(program).select(axis="replica")
    assert {(one.kind, one.group_size, one.is_async) for one in sums} == {("all-reduce", 2, True)}
    assert sum(one.runs * one.sent_bytes for one in sums) == sent


def test_stopped_program_takes_the_operations_that_are_given():
    lines = START, "%a = @ add(%y, %y)", DONE, "%r = @ all-reduce(%d), replica_groups={{0,1,2,3},{4,5,6,7}}"
    program = make_hlo(*lines, is_stopped=True)
    reduce = 2 * GATHER
    short = estimate_step_time(program, flops=197e12 * GATHER / 2)
    assert short.compute == pytest.approx(GATHER / 2)
    assert short.waiting == {MODEL: pytest.approx(reduce + GATHER / 2)}
    assert short.hidden == {MODEL: pytest.approx(GATHER / 2)}
    long = estimate_step_time(program, flops=197e12)
    assert (long.waiting, long.hidden) == ({MODEL: pytest.approx(reduce)}, {MODEL: pytest.approx(GATHER)})
    assert (long.total, long.source, long.error) == (pytest.approx(1 + reduce), "flops", 0.5)


def test_missing_operations_and_other_programs_are_errors():
    mesh = nym.create_mesh({"data": 8}, devices=described_devices("cpu:8"))
    program = make_program("ENTRY %main (x: f32[8]) -> f32[8] {\n  %a = f32[8] add(%x, %x)\n}\n", mesh)
    for flops in ("1e12", -1, float("nan")):
        with refusal(f"`flops` is a number of operations, 0 or more; it was {flops!r}"):
            estimate_step_time(program, flops=flops)
    with pytest.raises(ValueError, match=r"no times of instructions, as on CPUs.*; pass `flops=`, .* on one device$"):
        estimate_step_time(program)
    with refusal("`program` is what `compile_for` returns, not a str", TypeError):
        estimate_step_time("program")
    assert estimate_step_time(program, flops=get_hardware("cpu").bf16_flops).total == 1.0
    stopped = "no times of instructions, since the compiler was stopped early; pass `flops=`, .*`stop_early=False`$"
    with pytest.raises(ValueError, match=stopped):
        estimate_step_time(read_recorded("slices"))
