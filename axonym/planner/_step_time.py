"""`estimate_step_time`: the seconds of a step, from what the compiler knows of it and from published figures."""

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from ._attention_kernels import ATTENTION_SCOPE, count_kernel_flops, count_product_flops, list_kernel_operands
from ._candidate import MeshAxes, StepTime
from ._compiled_program import CompiledProgram
from ._hlo_program import HloInstruction, HloProgram
from ._program_timeline import FROM_HOST, TO_HOST, ProgramTimeline, TimeSpent
from ._timeline import make_timelines


Measure: TypeAlias = Callable[[HloInstruction], tuple[float, float]]
Source: TypeAlias = Literal["cycles", "schedule", "flops"]

KERNEL_EFFICIENCY = 0.5  # the part of the peak that kernels of attention are taken to reach
ERRORS: Mapping[Source, float] = {"cycles": 0.15, "schedule": 0.3, "flops": 0.5}
"""By the source of a step time, the part of it by which it may be wrong: a judgement, not a fit."""

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_SCHEDULED_AS = re.compile(r'scheduling_name="([^"]*)"')
_KERNEL = 'custom_call_target="tpu_custom_call"'


def estimate_step_time(program: CompiledProgram, *, flops: float | None = None) -> StepTime:
    """Returns the seconds that a step takes; nothing is run, and no figure is fitted to measured times.

    The instructions of the program follow one another in the order that the compiler has chosen, and each takes

    - on TPUs, if the program is compiled whole, the cycles that XLA estimates for it, at the clock of the device;
    - on GPUs, the time that it has in XLA's schedule;
    - for a Pallas kernel of attention, of which compilers have no estimate, its operations at half of the peak of the
      device in bfloat16: forward those of two products, backward those of four, each halved if there is a mask. What is
      recomputed counts as often as it runs. On GPUs all of attention counts so, because XLA's own implementation
      stands for the kernel of cuDNN, which needs a GPU to compile; it is taken to be causal;
    - for another Pallas kernel, as long as its operands and results take to be read and written;
    - for a collective, its bytes over the links that it goes along, at their published speed: see the formulas in
      [Step times](../step-times.md);
    - for a transfer to or from the memory of the host, its bytes at the published speed of that.

    Loops count as often as they run. The device waits for a collective, unless the program starts and ends it in two
    places or has it fused into a product: then it goes on beside what is computed between, and the device waits for
    what is left of it, as when collectives along a mesh axis take longer in sum than what is computed. The same holds
    for transfers to the memory of the host.

    If a program has no such times, on CPUs and when the compiler was stopped early, `flops` at the peak in bfloat16 is
    the time of computing, with attention. Then collectives that run beside computing are waited for only as far as they
    take longer than all of it.

    What is left out: the time that a program takes to start, and that data and Python take; that devices slow down when
    hot or wait for the slowest; and the latency of small collectives.

    Args:
        program: What `compile_for` returns; for TPUs best with `stop_early=False`.
        flops: The floating-point operations of a step on one device, what is recomputed included. Needed if the program
            has no times of instructions.

    Returns:
        The seconds with their parts. `error` is 0.15 with XLA's cycles, 0.3 with XLA's schedule and 0.5 with `flops`.

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
    return estimate_with_computing(program, None if flops is None else flops / program.hardware.bf16_flops)


def estimate_with_computing(program: CompiledProgram, compute: float | None) -> StepTime:
    """Returns the seconds that a step takes, with the seconds of computing for a program without times, if given."""
    hlo = program.hlo
    source = _choose_source(program)
    if source == "flops":
        if compute is None:
            raise ValueError(
                "the program has no times of instructions, as on CPUs or when the compiler is stopped early; pass "
                "`flops=`, the floating-point operations of a step on one device, or compile with `stop_early=False`"
            )
        return _estimate_sending(program, hlo, compute)
    measure = _make_tpu_measure(program) if source == "cycles" else _make_gpu_measure(program, hlo)
    scheduled = ProgramTimeline(hlo, program.mesh, program.hardware.host_bandwidth, measure)
    spent = scheduled.run(hlo.entry)
    waiting, hidden, host = _split_sending(spent)
    timelines = make_timelines(hlo, scheduled)
    return StepTime(spent.compute, spent.attention, waiting, hidden, host, source, ERRORS[source], timelines)


def _choose_source(program: CompiledProgram) -> Source:
    if program.schedule:
        return "schedule"
    return "cycles" if not program.is_stopped and _CYCLES.search(program.text) else "flops"


def _estimate_sending(program: CompiledProgram, hlo: HloProgram, compute: float) -> StepTime:
    """Returns the time of a step whose computing is known only as a whole."""
    timeline = ProgramTimeline(hlo, program.mesh, program.hardware.host_bandwidth, lambda one: (0.0, 0.0), False)
    spent = timeline.run(hlo.entry)
    waiting, hidden, host = _split_sending(spent)
    host += sum(max(spent.busy[one] - spent.waiting[one] - compute, 0.0) for one in (TO_HOST, FROM_HOST))
    waiting, hidden = hide_sending(compute, waiting, hidden)
    return StepTime(compute, 0.0, waiting, hidden, host, "flops", ERRORS["flops"])


def hide_sending(
    compute: float, waiting: Mapping[MeshAxes, float], beside: Mapping[MeshAxes, float]
) -> tuple[dict[MeshAxes, float], dict[MeshAxes, float]]:
    """Returns what is waited for and what is hidden, where collectives beside computing may take longer than it."""
    left = {axes: max(seconds - compute, 0.0) for axes, seconds in beside.items()}
    waiting = {axes: waiting.get(axes, 0.0) + left.get(axes, 0.0) for axes in {**waiting, **left}}
    return _drop_zeros(waiting), {axes: seconds - left[axes] for axes, seconds in beside.items()}


def _split_sending(spent: TimeSpent) -> tuple[dict[MeshAxes, float], dict[MeshAxes, float], float]:
    """Returns what is waited for and what is hidden, by mesh axes, and the time that devices wait for the host."""
    host = spent.waiting[TO_HOST] + spent.waiting[FROM_HOST]
    axes = [axes for axes in spent.busy if axes not in (TO_HOST, FROM_HOST)]
    waiting = {one: spent.waiting[one] for one in axes}
    hidden = {one: max(spent.busy[one] - spent.waiting[one], 0.0) for one in axes}
    return _drop_zeros(waiting), _drop_zeros(hidden), host


def _drop_zeros(seconds: Mapping[MeshAxes, float]) -> dict[MeshAxes, float]:
    return {axes: one for axes, one in seconds.items() if one > 0}


def _make_tpu_measure(program: CompiledProgram) -> Measure:
    hardware = program.hardware

    def measure(one: HloInstruction) -> tuple[float, float]:
        if found := _CYCLES.search(one.rest):
            return int(found[1]) / hardware.clock, 0.0
        if _KERNEL not in one.rest:
            return 0.0, 0.0
        if flops := count_kernel_flops(one):
            return 0.0, flops / (KERNEL_EFFICIENCY * hardware.bf16_flops)
        touched = sum(array.bytes for array in (*list_kernel_operands(one), *one.results))
        return touched / hardware.hbm_bandwidth, 0.0

    return measure


def _make_gpu_measure(program: CompiledProgram, hlo: HloProgram) -> Measure:
    def measure(one: HloInstruction) -> tuple[float, float]:
        if ATTENTION_SCOPE in one.op_name:
            causal = count_product_flops(hlo, one) / 2
            return 0.0, causal / (KERNEL_EFFICIENCY * program.hardware.bf16_flops)
        found = _SCHEDULED_AS.search(one.rest)
        return program.schedule.get(found[1] if found else one.name, 0.0), 0.0

    return measure
