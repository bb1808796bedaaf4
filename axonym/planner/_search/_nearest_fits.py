"""What would fit where nothing does: other checkpoint policies, smaller batches, larger machines."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..._ground.formats import format_bytes
from .._machine._described_devices import ONE_CHIP, DescribedDevice, described_devices
from .._machine._hardware import get_hardware
from .._plan._candidate import Candidate, Evaluation
from ._candidate_compiler import CandidateCompiler, SearchProgress
from ._step_variants import StepVariant, resize_axes, vary_policy


_MOST_HALVED = 4  # times that the batch is halved to find out what would fit
_MOST_DOUBLED = 4  # times that the devices are doubled


def describe_nearest_fits(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler, log: SearchProgress
) -> list[str]:
    """Returns a sentence for each change of one thing with which a candidate would fit.

    Args:
        nearest: The candidate that lacks least memory.
        variant: Its step.
        compiler: The compiler for its machine.
        log: The progress of the search, whose budget holds here, too.
    """
    fits: list[str] = []
    failures: dict[str, str] = {}  # the last attempt at each change
    for change, list_attempts in _CHANGES.items():
        log.show(f"nothing fits; trying {change}")
        if log.has_used():
            continue
        for attempt, evaluation in list_attempts(nearest, variant, compiler):
            size = f"{format_bytes(evaluation.bytes)} on each device"
            if not evaluation.problem:  # which is no advice
                failures[change] = f"{attempt} ({size})"
            if evaluation.is_usable:
                fits.append(f"it would fit {attempt}, with {size}")
            if log.has_used():
                break
    if fits:
        return fits
    if log.has_used():
        return ["the budget was used up before it was known what would fit"]
    notes = []
    if failures:
        notes.append(f"it would not fit {'; nor '.join(failures.values())}")
    if len(compiler.devices) == 1:
        larger = choose_larger_devices(compiler.devices)[0].topology
        notes.append(f"one device cannot shard it; plan for more, such as '{larger}'")
    return notes


def _try_policies(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    if variant.sequences:  # without a backward pass
        return
    for name, policy in {"True": True, "'offload'": "offload"}.items():
        if (changed := vary_policy(variant, policy)) is not None:
            yield f"with `gradient_checkpointing={name}`", compiler.compile(nearest, changed, stop_early=True)


def _try_batches(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    """Yields the evaluation for half of the batch, a quarter, and so on, until it fits."""
    name = _find_batch_name(nearest.candidate, variant)
    if name is None:
        return
    size, args = max(variant.named_program.sizes[name]), variant.args
    for _ in range(_MOST_HALVED):
        if size % 2 or not _is_divisible(nearest.candidate, variant, name, size // 2):
            return
        size, args = size // 2, resize_axes(args, {name: size // 2})
        evaluation = compiler.compile(nearest, replace(variant, args=args), stop_early=True)
        yield f"with `{name}` of size {size}", evaluation
        if evaluation.fits or evaluation.problem:
            return


def _find_batch_name(candidate: Candidate, variant: StepVariant) -> str | None:
    """Returns the axis of the data that is sharded, or the first one; None if there is none."""
    names = variant.named_program.data_names
    return next((name for name in names if candidate.compute.get(name)), next(iter(names), None))


def _is_divisible(candidate: Candidate, variant: StepVariant, batch_name: str | None, batch: int) -> bool:
    """Returns whether a candidate's mesh axes divide what they shard, for another size of the batch."""
    for name, mesh_axes in (*candidate.compute.items(), *candidate.parameters.items()):
        sizes = [batch] if name == batch_name else variant.named_program.sizes.get(name, ())
        count = math.prod(candidate.mesh[axis] for axis in mesh_axes)
        if any(size % count for size in sizes):
            return False
    return True


def _try_machines(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    """Yields the evaluation on twice the devices, four times as many, and so on, until it fits.

    A mesh axis is doubled, over which parameters are stored if it can be. If the sizes of axes are not divisible by any
    that is doubled, the batch is doubled as well.
    """
    candidate, larger = nearest.candidate, compiler
    if len(larger.devices) == 1:  # over which nothing is sharded, so that more devices would have as much
        return
    storing_axes = [
        axes[-1] for name, axes in candidate.parameters.items() if axes and candidate.compute.get(name) != axes
    ]
    mesh_axes = [*dict.fromkeys([*storing_axes, *reversed([*candidate.mesh])])]
    name = _find_batch_name(candidate, variant)
    first_batch = max(variant.named_program.sizes[name]) if name is not None else 0
    batch = first_batch
    for _ in range(_MOST_DOUBLED):
        larger = replace(larger, devices=choose_larger_devices(larger.devices))
        for growth, axis in itertools.product((1, 2), mesh_axes):
            grown_candidate = replace(candidate, mesh={**candidate.mesh, axis: 2 * candidate.mesh[axis]})
            if _is_divisible(grown_candidate, variant, name, growth * batch):
                break
        else:
            return
        candidate, batch, grown_variant = grown_candidate, growth * batch, variant
        sizes = f"`{axis}` of size {candidate.mesh[axis]}"
        if name is not None and batch > first_batch:
            grown_variant = replace(variant, args=resize_axes(variant.args, {name: batch}))
            sizes += f" and `{name}` of size {batch}"
        evaluation = larger.compile(replace(nearest, candidate=candidate), grown_variant, stop_early=True)
        yield f"on '{larger.devices[0].topology}' with {sizes}", evaluation
        if evaluation.fits or evaluation.problem:
            return


def choose_larger_devices(devices: Sequence[DescribedDevice]) -> tuple[DescribedDevice, ...]:
    """Returns the devices of the machine with twice the chips that clouds offer, such as `v5e:4x8` after `v5e:4x4`.

    That has the shortest dimension of the torus doubled, and sizes in ascending order; after the largest torus, twice
    the slices. After a single chip it has four. Without a torus it has twice the hosts.
    """
    topology = devices[0].topology
    max_chips = get_hardware(topology.hardware).max_chips or math.inf
    if topology.wrap and topology.sizes == ONE_CHIP:
        return described_devices(f"{topology.hardware}:2x2", slices=topology.slices)
    if 2 * math.prod(topology.sizes) > max_chips:
        return described_devices(str(replace(topology, slices=1)), slices=2 * topology.slices)
    if topology.wrap:
        shortest, *longer = sorted(topology.sizes)
        sizes = sorted((2 * shortest, *longer))
    else:
        hosts, *devices_per_host = topology.sizes
        sizes = (2 * hosts, *devices_per_host)
    return described_devices(str(replace(topology, sizes=tuple(sizes), slices=1)), slices=topology.slices)


_CHANGES = {"another policy": _try_policies, "a smaller batch": _try_batches, "more devices": _try_machines}
