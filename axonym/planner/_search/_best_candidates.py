"""Which candidates are compiled, which of them are timed, and what would fit where nothing does."""

import collections
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from ...named._array import NamedArray, is_named_array
from ...report._format import format_bytes, format_count
from .._machine._described_devices import ONE_CHIP, DescribedDevice, described_devices
from .._machine._hardware import get_hardware
from .._plan._candidate import CandidateKey, Evaluation, make_candidate_key
from .._step_time._step_time import format_seconds
from ._candidate_compiler import CandidateCompiler
from ._screening import ComputingSpeed, Screened
from ._step_variants import StepVariant, vary_policy


_MOST_COMPILED = 32
_MOST_BEFORE_TIMING = 4  # candidates that are compiled before the best of them is timed
_MOST_TIMED = 4
_MOST_OF_A_MESH = 5  # ways to compute with the same mesh and policy that are compiled before those with others
_MOST_FAILED = 3  # candidates that may fail at first until the search ends with the error of the first
_COMPILE_BUDGET_SHARE = 0.6  # for TPUs; what remains is for timing the best candidates, which takes minutes each
_PRUNE_RATIO = 1.5  # a candidate that should take this many times as long as the best compiled one is not compiled
_MOST_HALVED = 4  # times that the batch is halved to find out what would fit
_MOST_DOUBLED = 4  # times that the devices are doubled


class SearchProgress:
    """Writes a line for each candidate, which the next replaces on a terminal; knows when the time is over."""

    def __init__(self, is_shown: bool, started: float, budget: float | None) -> None:
        self._is_shown, self._started, self._budget = is_shown, started, budget
        self._is_terminal = is_shown and sys.stderr.isatty()
        self.notes: list[str] = []

    def has_used(self, part: float = 1.0) -> bool:
        """Returns whether a part of the budget is used up."""
        return self._budget is not None and time.monotonic() - self._started >= part * self._budget

    def note(self, text: str) -> None:
        """Keeps a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def show(self, text: str) -> None:
        """Writes a line, with the seconds so far."""
        line = f"{time.monotonic() - self._started:.0f} s: {text}"
        if self._is_terminal:
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one takes two lines, and one of them stays
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
        elif self._is_shown:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def compile_best(
    screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress
) -> list[tuple[Evaluation, Screened]]:
    """Returns what the compiler knows of the most promising candidates; what is known so far if interrupted."""
    search = _Search(screened, compiler, log)
    try:
        search.run()
    except KeyboardInterrupt:
        log.note("interrupted: only the candidates that were compiled until then are here")
    except OSError as error:  # such as a full disk
        if not search.compiled or error in compiler.errors:
            raise
        log.note(f"only the candidates that were compiled before this error are here: {error}")
    finally:
        log.close()
    return [*search.compiled.values()]


class _Expected(NamedTuple):
    """A screened candidate, its key, and the seconds that its step is expected to take."""

    screened: Screened
    key: CandidateKey
    seconds: float


class _Search:
    """Compiles candidates and times the best of them.

    Attributes:
        compiled: What is known of each candidate that was compiled, and how it was screened.
    """

    def __init__(self, screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress) -> None:
        self._screened, self._compiler, self._log = screened, compiler, log
        self._has_timing = compiler.hardware.platform == "tpu"  # programs for others are compiled with code at once
        self._untimeable: set[CandidateKey] = set()
        # By mesh and settings, the time of a timed candidate divided by what was expected of it.
        self._slowdowns: dict[CandidateKey, float] = {}
        self.compiled: dict[CandidateKey, tuple[Evaluation, Screened]] = {}

    def run(self) -> None:
        if self._has_timing:
            self._compile(_MOST_BEFORE_TIMING)
            self._time(1)  # the others are ranked with its speed
        self._compile(_MOST_COMPILED)
        if self._has_timing:
            self._time(_MOST_TIMED - 1)
        possible = [pair for pair in self.compiled.values() if not pair[0].problem]
        if possible and not any(evaluation.fits for evaluation, _ in possible):
            nearest, screened = min(possible, key=lambda pair: (pair[0].bytes, make_candidate_key(pair[0].candidate)))
            self._log.notes += describe_nearest_fits(nearest, screened.variant, self._compiler, self._log)

    def _compile(self, limit: int) -> None:
        """Compiles the best candidates until a number of them is known; those that cannot be compiled count half."""
        speed = ComputingSpeed.measure(self.compiled.values())
        times = [
            speed.scale(evaluation).time.total for evaluation, _ in self.compiled.values() if _is_usable(evaluation)
        ]
        best = min(times, default=math.inf)
        queue = self._rank_screened(speed)
        while len(self.compiled) - self._count_failed() / 2 < limit:
            queue = [expected for expected in queue if expected.seconds <= _PRUNE_RATIO * best]
            if not queue:
                return
            if self._log.has_used(_COMPILE_BUDGET_SHARE if self._has_timing else 1.0):
                count = format_count(len(self.compiled), "candidate")
                self._log.note(f"the budget was used up with {count} compiled; others may be better")
                return
            screened, key, _ = queue.pop(self._find_next(queue))
            number = len(self.compiled) + 1
            total = max(number, min(len(self._screened), _MOST_COMPILED))
            best_so_far = f", best {format_seconds(best)}" if math.isfinite(best) else ""
            self._log.show(f"{number} of {total}{best_so_far}: {screened.evaluation.candidate}")
            evaluation = self._compiler.evaluate(screened.evaluation, screened.variant, with_codegen=False)
            self.compiled[key] = evaluation, screened
            if _is_usable(evaluation):
                best = min(best, speed.scale(evaluation).time.total)
            if self._count_failed() == len(self.compiled) == min(_MOST_FAILED, len(self._screened)):
                raise self._compiler.errors[0]  # such as for a refused option

    def _rank_screened(self, speed: ComputingSpeed) -> list[_Expected]:
        """Returns the candidates that are not compiled, with their times at a speed, the most promising first."""
        ranked: list[tuple[Any, _Expected]] = []
        for screened in self._screened:
            key = make_candidate_key(screened.evaluation.candidate)
            if key not in self.compiled:
                scaled = screened._replace(evaluation=speed.scale(screened.evaluation))
                ranked.append((scaled.rank, _Expected(screened, key, scaled.evaluation.time.total)))
        return [expected for _, expected in sorted(ranked, key=lambda pair: pair[0])]

    def _find_next(self, queue: Sequence[_Expected]) -> int:
        """Returns which candidate to compile next: of those that may fit first a few ways to compute on each mesh.

        The model of the machine tells candidates with one mesh apart better than meshes.
        """
        keys = [key for key, (evaluation, _) in self.compiled.items() if not evaluation.problem]
        compiled_ways = collections.Counter(key.computing for key in keys)
        compiled_meshes = collections.Counter(way.mesh_and_settings for way in compiled_ways)

        def rank_turn(index: int) -> tuple[bool, bool, int]:
            screened, key, _ = queue[index]
            turn = compiled_ways[key.computing] or compiled_meshes[key.mesh_and_settings] // _MOST_OF_A_MESH
            return not screened.evaluation.fits, not screened.is_likely_to_fit, turn

        return min(range(len(queue)), key=rank_turn)

    def _count_failed(self) -> int:
        return sum(bool(evaluation.problem) for evaluation, _ in self.compiled.values())

    def _time(self, limit: int) -> None:
        """Compiles the best candidates with code, for their times; each of them tells the speed of others."""
        for _ in range(limit):
            key = self._find_untimed()
            if key is None:
                return
            if self._log.has_used():
                timed_count = sum(evaluation.stage == "timed" for evaluation, _ in self.compiled.values())
                count = format_count(timed_count, "candidate")
                self._log.note(f"the budget was used up with {count} timed; others may be better")
                return
            evaluation, screened = self.compiled[key]
            self._log.show(f"timing {evaluation.candidate}")
            timed = self._compiler.evaluate(screened.evaluation, screened.variant, with_codegen=True)
            if timed.problem:
                self._log.note(f"{evaluation.candidate} could not be timed: {timed.problem}")
                self._untimeable.add(key)
            else:
                self.compiled[key] = timed, screened
                expected = ComputingSpeed.measure(self.compiled.values()).scale(evaluation).time.total
                self._slowdowns[key.mesh_and_settings] = timed.time.total / expected

    def _find_untimed(self) -> CandidateKey | None:
        """Returns the candidate to time: the fastest if all are as much slower as timed ones with their mesh."""
        speed = ComputingSpeed.measure(self.compiled.values())

        def rank_untimed(key: CandidateKey) -> tuple[float, CandidateKey]:
            slowdown = self._slowdowns.get(key.mesh_and_settings, 1.0)
            return slowdown * speed.scale(self.compiled[key][0]).time.total, key

        untimed = [
            key
            for key, (evaluation, _) in self.compiled.items()
            if evaluation.stage == "compiled" and _is_usable(evaluation) and key not in self._untimeable
        ]
        return min(untimed, key=rank_untimed, default=None)


def _is_usable(evaluation: Evaluation) -> bool:
    return evaluation.fits and not evaluation.problem


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
            failures[change] = f"{attempt} ({evaluation.problem or size})"
            if _is_usable(evaluation):
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
    for name, policy in {"True": True, "'offload'": "offload"}.items():
        if (changed := vary_policy(variant, policy)) is not None:
            yield f"with `gradient_checkpointing={name}`", compiler.evaluate(nearest, changed, with_codegen=False)


def _try_batches(
    nearest: Evaluation, variant: StepVariant, compiler: CandidateCompiler
) -> Iterator[tuple[str, Evaluation]]:
    """Yields the evaluation for half of the batch, a quarter, and so on, until it fits."""
    name = next((name for name in variant.program.data_names if nearest.candidate.compute.get(name)), None)
    if name is None:
        return
    size, args = max(variant.program.sizes[name]), variant.args
    for _ in range(_MOST_HALVED):
        if size % 2:
            return
        size, args = size // 2, _halve_axis(args, name)
        evaluation = compiler.evaluate(nearest, replace(variant, args=args), with_codegen=False)
        yield f"with `{name}` of size {size}", evaluation
        if evaluation.fits or evaluation.problem:
            return


def _halve_axis(args: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Returns the arguments after the first with half of an axis, as shapes."""

    def halve_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, NamedArray) or name not in leaf.names:
            return leaf
        sizes = zip(leaf.names, leaf.array.shape, strict=True)
        shape = tuple(size // 2 if axis == name else size for axis, size in sizes)
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
        evaluation = larger.evaluate(replace(nearest, candidate=candidate), variant, with_codegen=False)
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
