"""What would fit where nothing does: another policy, a smaller batch, or more devices, each compiled."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from ..named._array import NamedArray, is_named_array
from ..report._table import format_bytes
from ._candidate import Evaluation
from ._candidate_compiler import CandidateCompiler
from ._described_devices import ONE_CHIP, DescribedDevice, described_devices
from ._search_progress import SearchProgress
from ._step_variants import StepVariant, vary_policy


_MOST_HALVED, _MOST_DOUBLED = 4, 4
# The most chips of a slice, by the pages of https://cloud.google.com/tpu/docs on each version.
_LARGEST_TORUS = {"v4": 4096, "v5e": 256, "v5p": 6144, "v6e": 256, "tpu7x": 9216}


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
    found: list[str] = []
    tried: dict[str, str] = {}
    for change, tries in _CHANGES.items():
        log.show(f"nothing fits; trying {change}")
        for what, evaluation in () if log.has_used() else tries(nearest, variant, compiler):
            tried[change] = f"{what} ({evaluation.problem or f'{format_bytes(evaluation.bytes)} on each device'})"
            if evaluation.fits and not evaluation.problem:
                found.append(f"it would fit {what}, with {format_bytes(evaluation.bytes)} on each device")
            if log.has_used():
                break
    if found:
        return found
    if log.has_used():
        return ["the budget was used up before it was known what would fit"]
    if tried:
        found.append(f"it would not fit {'; nor '.join(tried.values())}")
    if len(compiler.devices) == 1:
        larger = choose_larger_devices(compiler.devices)[0].topology
        found.append(f"one device cannot shard it; plan for more, such as '{larger}'")
    return found


def _try_policies(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    for name, policy in {"True": True, "'offload'": "offload"}.items():
        other = vary_policy(variant, policy)
        if other is not None:
            yield f"with `gradient_checkpointing={name}`", compiler.evaluate(nearest, other, is_whole=False)


def _try_batches(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    """Yields the evaluation for half of the batch, a quarter, and so on, until it fits."""
    name = next((name for name in variant.program.data_names if nearest.candidate.compute.get(name)), "")
    args = variant.args
    for halved in range(1, _MOST_HALVED + 1) if name else ():
        size = max(variant.program.sizes[name])
        if size % 2**halved:
            return
        args = _halve_axis(args, name)
        evaluation = compiler.evaluate(nearest, replace(variant, args=args), is_whole=False)
        yield f"with `{name}` of size {size // 2**halved}", evaluation
        if evaluation.fits or evaluation.problem:
            return


def _halve_axis(args: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Returns the arguments after the first with half of an axis, as shapes."""

    def halve_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, NamedArray) or name not in leaf.names:
            return leaf
        shape = tuple(
            size // 2 if own == name else size for own, size in zip(leaf.names, leaf.array.shape, strict=True)
        )
        return NamedArray(jax.ShapeDtypeStruct(shape, leaf.dtype), leaf.names)

    return args[0], *jax.tree.map(halve_leaf, args[1:], is_leaf=is_named_array)


def _try_machines(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    """Yields the evaluation on twice the devices, four times as many, and so on, until it fits."""
    candidate, larger = nearest.candidate, compiler
    if len(larger.devices) == 1:  # over which nothing is sharded, so that more devices would have as much
        return
    stored = (over for name, over in candidate.parameters.items() if candidate.compute.get(name) != over)
    axis = next(stored, tuple(candidate.mesh))[-1]
    for _ in range(_MOST_DOUBLED):
        larger = larger.replace_devices(choose_larger_devices(larger.devices))
        candidate = replace(candidate, mesh={**candidate.mesh, axis: 2 * candidate.mesh[axis]})
        evaluation = larger.evaluate(replace(nearest, candidate=candidate), variant, is_whole=False)
        yield f"on '{larger.devices[0].topology}' with `{axis}` of size {candidate.mesh[axis]}", evaluation
        if evaluation.fits or evaluation.problem:
            return


_CHANGES = {"another policy": _try_policies, "a smaller batch": _try_batches, "more devices": _try_machines}


def choose_larger_devices(devices: Sequence[DescribedDevice]) -> tuple[DescribedDevice, ...]:
    """Returns the devices of the machine with twice the chips that clouds offer, such as `v5e:4x8` after `v5e:4x4`.

    That has the shortest dimension of the torus doubled, and sizes in ascending order; after the largest torus, twice
    the slices. After a single chip it has four. Without a torus it has twice the hosts.
    """
    topology = devices[0].topology
    if topology.wrap and topology.sizes == ONE_CHIP:
        return described_devices(f"{topology.hardware}:2x2", slices=topology.slices)
    if 2 * math.prod(topology.sizes) > _LARGEST_TORUS.get(topology.hardware, math.inf):
        return described_devices(str(replace(topology, slices=1)), slices=2 * topology.slices)
    shortest, *rest = sorted(topology.sizes) if topology.wrap else topology.sizes
    sizes = sorted((2 * shortest, *rest)) if topology.wrap else (2 * shortest, *rest)
    return described_devices(str(replace(topology, sizes=tuple(sizes), slices=1)), slices=topology.slices)
