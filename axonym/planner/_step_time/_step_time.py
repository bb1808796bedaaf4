"""`estimate_step_time`: the seconds of a step, from what the compiler knows of it and from published figures."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from .._compiler._compiled_program import CompiledProgram
from .._program import _xla_text as xla
from .._program._collectives import MeshAxes
from .._program._gpu_instructions import ProductShape, count_moved_bytes, find_products
from .._program._hlo_program import HloInstruction, HloProgram
from ._gpu_kernels import estimate_attention_seconds, estimate_kernel_seconds
from ._program_timeline import FROM_HOST, TO_HOST, Measure, ProgramTimeline
from ._timeline import Timeline, make_timelines
from ._tpu_kernels import estimate_tpu_kernel


Source: TypeAlias = Literal["cycles", "kernels", "flops"]

_LEAST_SECONDS = 5e-9  # less is printed as no time, since the last digit of `format_seconds` is 0.01 µs
ERRORS: Mapping[Source, float] = {"cycles": 0.15, "kernels": 0.5, "flops": 0.5}
"""By the source of a step time, the part of it by which it may be wrong: a judgement, not a fit."""
_ATTENTION_SCOPE = "dot_product_attention("  # in the path of scopes of what `nn.dot_product_attention` computes
_FEWEST_QUERIES = 32  # for a key, those of all heads of a group, with which a kernel of GPUs computes attention


class TimePart(NamedTuple):
    """What a part of a step is spent on: computing, attention, or waiting for the host or what goes along mesh axes."""

    kind: Literal["compute", "attention", "wait", "host"]
    mesh_axes: MeshAxes = ()

    def __str__(self) -> str:
        if self.kind == "host":
            return "wait for the host"
        return f"wait {'+'.join(self.mesh_axes)}" if self.kind == "wait" else self.kind


@dataclass(frozen=True)
class StepTime:
    """The seconds that a step takes, and what they are spent on.

    Attributes:
        compute: Seconds of computing, without kernels of attention.
        attention: Seconds of kernels of attention, for which compilers have no estimate.
        waiting: By the mesh axes that a collective goes along, the seconds in which devices wait for it.
        hidden: The same for collectives that run beside computing; not part of the step.
        host: The seconds in which devices wait for the memory of the host.
        source: Where `compute` comes from: XLA's estimates of cycles (`"cycles"`), published speeds of kernels on GPUs
            (`"kernels"`), or the floating-point operations of the program at the peak of the device (`"flops"`); in a
            plan, products take at least as long as the memory needs for their operands and results.
        error: The part of the total by which it may be wrong, such as 0.15.
        timelines: One turn of each of the one or two loops that take most of the step, such as those forward and
            backward over the layers; empty if the times of instructions are not known.

    Example:
        >>> import axonym as nym
        >>> time = nym.planner.StepTime(1.5, 0.25, {("data",): 0.25}, {("data",): 0.5}, 0.0, "cycles", 0.15)
        >>> time.total
        2.0
        >>> print(time)
        2.00 s ±15%: compute 1.50 s, attention 250.0 ms, wait data 250.0 ms; hidden data 500.0 ms
    """

    compute: float
    attention: float
    waiting: Mapping[MeshAxes, float] = field(hash=False)
    hidden: Mapping[MeshAxes, float] = field(hash=False)
    host: float
    source: Source
    error: float
    timelines: tuple[Timeline, ...] = field(default=(), repr=False)

    @property
    def total(self) -> float:
        """The seconds of the step."""
        return self.compute + self.attention + sum(self.waiting.values()) + self.host

    def __str__(self) -> str:
        """Formats the step time and its parts in a line."""
        parts = ", ".join(f"{part} {format_seconds(seconds)}" for part, seconds in list_time_parts(self).items())
        hidden = ", ".join(
            f"{'+'.join(mesh_axes)} {format_seconds(seconds)}"
            for mesh_axes, seconds in self.hidden.items()
            if seconds >= _LEAST_SECONDS
        )
        return format_step_time(self) + (f": {parts}" if parts else "") + (f"; hidden {hidden}" if hidden else "")


def format_seconds(seconds: float) -> str:
    """Returns a time in the unit that fits: `1.25 s`, `31.5 ms`."""
    if abs(seconds) < _LEAST_SECONDS:
        return "0 s"
    # The bounds are those from which the digits that are shown round up to the next unit, or to one digit more.
    if abs(seconds) >= 0.9995:
        return f"{seconds:.2f} s" if abs(seconds) < 99.995 else f"{seconds:,.0f} s"
    value, unit = 1e3 * seconds, "ms"
    if abs(seconds) < 0.9995e-3:
        value, unit = 1e6 * seconds, "µs"
    return f"{value:.2f} {unit}" if abs(value) < 9.995 else f"{value:.1f} {unit}"


def format_step_time(time: StepTime) -> str:
    """Returns the seconds of a step with what they may be wrong by: `1.25 s ±15%`."""
    return f"{format_seconds(time.total)} ±{time.error:.0%}"


def list_time_parts(time: StepTime) -> dict[TimePart, float]:
    """Returns the seconds that make up a step, by what they are spent on."""
    parts = {
        TimePart("compute"): time.compute,
        TimePart("attention"): time.attention,
        **{TimePart("wait", mesh_axes): seconds for mesh_axes, seconds in time.waiting.items()},
        TimePart("host"): time.host,
    }
    return {part: seconds for part, seconds in parts.items() if seconds >= _LEAST_SECONDS}


def estimate_step_time(program: CompiledProgram, *, flops: float | None = None) -> StepTime:
    """Returns the seconds that a step takes; nothing is run, and no figure is fitted to measured times.

    The instructions of the program follow one another in the order that the compiler has chosen, and each takes

    - on TPUs, if the program is compiled whole, the cycles that XLA estimates for it, at the clock of the device;
    - on GPUs, what kernels of its shape take by published measurements: products by their sizes, and others by the
      bytes that they read and write. Attention takes as long as the kernel of cuDNN for its head size and length,
      which needs a GPU to compile, so that XLA's own implementation stands for it; a mask is taken to be causal. A
      decode step has too few queries for that kernel, so that its attention is counted as the program has it;
    - for a Pallas kernel of attention, of which compilers have no estimate, its operations at half of the peak of the
      device in bfloat16: forward those of two products, backward those of four, each halved if there is a mask. What is
      recomputed counts as often as it runs;
    - for a kernel of `ragged_dot`, the tiles that it multiplies and moves, with as many rows on each device as experts
      with equally many rows have;
    - for another Pallas kernel, its operations at the peak or as long as the memory needs for its bytes, by its
      `cost_estimate`; without that, as long as its operands and results take to be read and written;
    - for a collective, its bytes over the links that it goes along, at their published speed, and on GPUs NCCL's
      latencies: see the formulas in [Step times](../step-times.md);
    - for a transfer to or from the memory of the host, its bytes at the published speed of that.

    Loops count as often as they run. The device waits for a collective, unless the program starts and ends it in two
    places or has it fused into a product: then it runs beside what is computed in between, and the device waits only
    for the time that it takes longer. The same holds for transfers to the memory of the host. GPUs run one collective
    at a time, and compute more slowly beside it.

    If a program has no such times, on CPUs and when the compiler was stopped early, `flops` at the peak in bfloat16 is
    the time of computing, with attention. Then collectives that run beside computing are waited for only as
    far as they take longer than all of it.

    What is left out: the time that a program takes to start, and that data and Python take; that devices slow down when
    hot or wait for the slowest; and on TPUs the latency of small collectives.

    Args:
        program: What `compile_for` returns; for TPUs best with `stop_early=False`.
        flops: The floating-point operations of a step on one device, what is recomputed included. Needed if the program
            has no times of instructions.

    Returns:
        The seconds with their parts. `error` is 0.15 with XLA's cycles, and 0.5 on GPUs and with `flops`.

    Raises:
        TypeError: If the program is not one of `compile_for`.
        ValueError: If `flops` is missing, or no number of operations.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.NamedArray(jax.ShapeDtypeStruct((512, 1024), "float32"), ("batch", "embed"))
        >>> machine = {"devices": "cpu:8", "mesh": {"data": 8}, "mapping": {"batch": "data"}}
        >>> program = nym.planner.compile_for(lambda x: nym.sum(x, "batch"), x, **machine, cache=False)
        >>> time = nym.planner.estimate_step_time(program, flops=64 * 1024)
        >>> time.source, {axes: f"{1e9 * seconds:.0f} ns" for axes, seconds in time.waiting.items()}
        ('flops', {('data',): '116 ns'})
    """
    if not isinstance(program, CompiledProgram):
        raise TypeError(f"`program` is what `compile_for` returns, not a {type(program).__name__}")
    if flops is not None and (not isinstance(flops, int | float) or not flops >= 0):
        raise ValueError(f"`flops` is a number of operations, 0 or more; it was {flops!r}")
    if flops is None and _choose_source(program) == "flops":
        reason, remedy = "as on CPUs", ""
        if program.is_stopped and program.hardware.platform != "cpu":
            reason, remedy = "since the compiler was stopped early", ", or compile with `stop_early=False`"
        raise ValueError(
            f"the program has no times of instructions, {reason}; pass `flops=`, the floating-point operations of a "
            f"step on one device{remedy}"
        )
    return estimate_with_computing(program, (flops or 0.0) / program.hardware.bf16_flops)


def estimate_with_computing(program: CompiledProgram, compute: float) -> StepTime:
    """Returns what `estimate_step_time` does.

    Args:
        program: The program.
        compute: The seconds of computing if the program has no times of its instructions.
    """
    source = _choose_source(program)
    is_timed = source != "flops"
    timeline = ProgramTimeline(program, _choose_measure(program, source), is_timed)
    spent = timeline.run(program.hlo.entry).spent
    host = spent.waiting[TO_HOST] + spent.waiting[FROM_HOST]
    mesh_axes = [links for links in spent.busy if links not in (TO_HOST, FROM_HOST)]
    waiting = _drop_zeros({axes: spent.waiting[axes] for axes in mesh_axes})
    hidden = _drop_zeros({axes: spent.busy[axes] - spent.waiting[axes] for axes in mesh_axes})
    if is_timed:
        timelines = make_timelines(timeline)
        return StepTime(spent.compute, spent.attention, waiting, hidden, host, source, ERRORS[source], timelines)
    # What is sent beside computing is waited for as far as it takes longer than all of that.
    host += sum(max(spent.busy[links] - spent.waiting[links] - compute, 0.0) for links in (TO_HOST, FROM_HOST))
    waiting, hidden = hide_sending(compute, waiting, hidden)
    return StepTime(compute, 0.0, waiting, hidden, host, source, ERRORS[source])


def _choose_source(program: CompiledProgram) -> Source:
    if program.hardware.platform == "gpu":
        return "kernels"
    if not program.is_stopped and xla.ESTIMATED_CYCLES.search(program.text):
        return "cycles"
    return "flops"


def hide_sending(
    compute: float, waiting: Mapping[MeshAxes, float], beside: Mapping[MeshAxes, float]
) -> tuple[dict[MeshAxes, float], dict[MeshAxes, float]]:
    """Returns what is waited for and what is hidden, if collectives beside computing are waited for once that ends.

    Args:
        compute: The seconds of computing.
        waiting: By mesh axes, the seconds of collectives that the device waits for anyway.
        beside: By mesh axes, the seconds of those that run beside computing.
    """
    excess = {axes: max(seconds - compute, 0.0) for axes, seconds in beside.items()}
    waiting = {axes: waiting.get(axes, 0.0) + excess.get(axes, 0.0) for axes in {**waiting, **excess}}
    return _drop_zeros(waiting), {axes: seconds - excess[axes] for axes, seconds in beside.items()}


def _drop_zeros(seconds_by_axes: Mapping[MeshAxes, float]) -> dict[MeshAxes, float]:
    return {axes: seconds for axes, seconds in seconds_by_axes.items() if seconds > 0}


def _measure_by_cycles(program: CompiledProgram, instruction: HloInstruction) -> tuple[float, float]:
    """Returns how many seconds an instruction computes on TPUs outside of attention kernels, and within them."""
    if cycles := xla.ESTIMATED_CYCLES.search(instruction.attributes):
        return int(cycles[1]) / program.hardware.clock, 0.0
    if xla.TPU_KERNEL in instruction.attributes:
        return estimate_tpu_kernel(program, instruction)
    return 0.0, 0.0


def _measure_by_kernels(
    kernel_masks: set[int] | None, program: CompiledProgram, instruction: HloInstruction
) -> tuple[float, float]:
    """Returns how many seconds an instruction computes on GPUs outside of attention, and within it.

    `kernel_masks` has the numbers of queries and keys of masks of attention; it is None if no kernel computes that.
    """
    products = find_products(program.hlo, instruction)
    is_attention = _ATTENTION_SCOPE in instruction.op_name
    if is_attention and kernel_masks is not None:
        return 0.0, sum(_estimate_attention(program, instruction, product, kernel_masks) for product in products)
    moved_bytes = count_moved_bytes(program.hlo, instruction)
    seconds = estimate_kernel_seconds(program.hardware, products, moved_bytes)
    return (0.0, seconds) if is_attention else (seconds, 0.0)


def _find_kernel_masks(hlo: HloProgram) -> set[int] | None:
    """Returns the numbers of queries and keys that masks of attention have, whole or in blocks.

    It is None if no kernel computes attention. In a decode step each key has one query for each head of a group, and
    XLA's own instructions compute attention.
    """
    instructions = [instruction for instruction in hlo.instructions if _ATTENTION_SCOPE in instruction.op_name]
    products = [product for instruction in instructions for product in find_products(hlo, instruction)]
    if all(min(product.rows, product.columns, product.contracted) < _FEWEST_QUERIES for product in products):
        return None
    masks = [array for instruction in instructions for array in instruction.results if array.dtype == "pred"]
    return {size for mask in masks if min(mask.shape[-2:], default=0) > 1 for size in mask.shape[-2:]}


def _estimate_attention(
    program: CompiledProgram, instruction: HloInstruction, product: ProductShape, mask_sizes: set[int]
) -> float:
    """Returns the seconds that a product of XLA's own attention takes in a kernel; a mask is taken to be causal."""
    path = instruction.op_name
    is_backward = "transpose(" in path and "rematted_computation" not in path
    # Queries count once for each head of a group, so the size of a head and the number of keys are the smaller ones.
    head_dim, keys, _ = sorted((product.rows, product.columns, product.contracted))
    is_masked = keys in mask_sizes
    if "/while/" in path.partition(_ATTENTION_SCOPE)[2]:
        # A loop over n^2 blocks, or those n (n + 1) / 2 that a causal mask does not hide. Masked scores are n^2 / 2.
        turns = program.hlo.count_turns(instruction.computation)
        blocks = (math.sqrt(8 * turns + 1) - 1) / 2 if is_masked else math.sqrt(turns)
        keys, part = round(blocks * keys), blocks / (blocks + 1) if is_masked else 1.0
    else:
        # All scores, of which a mask hides half. Backward, the kernel computes them again, as a fifth product.
        part = (0.5 if is_masked else 1.0) * (5 / 4 if is_backward else 1.0)
    return estimate_attention_seconds(
        program.hardware, part * product.flops, head_dim, keys, is_backward=is_backward, is_masked=is_masked
    )


def _measure_nothing(program: CompiledProgram, instruction: HloInstruction) -> tuple[float, float]:
    return 0.0, 0.0


def _choose_measure(program: CompiledProgram, source: Source) -> Measure:
    if source == "kernels":
        return functools.partial(_measure_by_kernels, _find_kernel_masks(program.hlo))
    return _measure_by_cycles if source == "cycles" else _measure_nothing
