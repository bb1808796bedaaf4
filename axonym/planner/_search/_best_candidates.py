"""Which candidates are compiled, which of them are timed, and what these say of the times of others."""

import collections
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..._ground.formats import format_count
from .._plan._candidate import CandidateKey, Evaluation, Work
from .._step_time._step_time import StepTime, format_seconds
from ._calibration import Calibration
from ._candidate_compiler import CandidateCompiler, SearchProgress
from ._nearest_fits import describe_nearest_fits
from ._published_flags import PublishedFlags
from ._screening import Prospect


_MOST_COMPILED = 12  # with 8, the first choice for a small mixture of experts is 9 % slower than the best of all
_FIRST_COMPILED = 4  # candidates that are compiled, however slow they should be, before the best of them is timed
_MOST_TIMED = 3
_MOST_OF_A_MESH = 5  # ways to compute with the same mesh and policy that are compiled before those with others
_MOST_SMALL = 4  # candidates that are compiled besides if nothing fits, the smallest of the others
_MOST_FAILED = 3  # candidates that may fail at first until the search ends with the error of the first
_MOST_FAILED_STAGES = 2  # candidates with stages that may fail until those with others are left out
_COMPILE_BUDGET_SHARE = 0.6  # for TPUs; what remains is for timing the best candidates, which takes minutes each
_BEST_SLOWDOWN = 1.2  # a step is expected to compute as many times as long as screened, at best
_TIMED_GAIN = 0.02  # a candidate that should be faster than the best timed one by less is not timed


def compile_best(
    prospects: Sequence[Prospect],
    compiler: CandidateCompiler,
    log: SearchProgress,
    published_flags: Sequence[PublishedFlags] = (),
    calibration: Calibration | None = None,
) -> list[tuple[Evaluation, Prospect]]:
    """Returns what the compiler knows of the most promising candidates; what is known so far if interrupted.

    The best of them is compiled with each of the published flags, too. Steps that serve have a search for each
    combination of sizes with which their arguments fit.
    """
    groups = _group_prospects(prospects)
    searches = [
        _Search(group, compiler, log, (number, len(groups)), calibration) for number, group in enumerate(groups)
    ]
    try:
        for search in searches:
            search.run()
            for flags in published_flags:
                search.try_flags(flags)
            search.note_untried()
        possible = [result for search in searches for result in search.results.values() if not result[0].problem]
        if possible and not any(evaluation.fits for evaluation, _ in possible):
            nearest, prospect = min(possible, key=lambda result: (result[0].bytes, result[0].candidate.key))
            log.notes += describe_nearest_fits(nearest, prospect.variant, compiler, log)
    except KeyboardInterrupt:
        log.stop("interrupt", "interrupted: candidates that were not compiled until then are only screened")
    except OSError as error:  # such as a full disk
        if not any(search.results for search in searches) or error in compiler.errors:
            raise
        log.stop("error", f"candidates that were not compiled before this error are only screened: {error}")
    finally:
        log.close()
    return [result for search in searches for result in search.results.values()]


def _group_prospects(prospects: Sequence[Prospect]) -> list[list[Prospect]]:
    """Returns the prospects by what is asked: steps that serve by sizes, all others together.

    Sizes with which no arguments fit are left out, but for the smallest if there are no others.
    """
    groups: dict[Any, list[Prospect]] = collections.defaultdict(list)
    for prospect in prospects:
        estimate = prospect.estimate
        groups[estimate.candidate.key.sizes if estimate.sequences else ()].append(prospect)
    fitting = [group for group in groups.values() if any(prospect.estimate.fits for prospect in group)]
    return fitting or [min(groups.values(), key=lambda group: min(prospect.estimate.bytes for prospect in group))]


@dataclass(frozen=True)
class ComputingSpeed:
    """How many times as long timed candidates compute as was screened, and measured ones take as was predicted.

    XLA's estimates exceed the operations at the peak of the device. Without that factor, candidates that are timed
    would look slow beside the others.

    Attributes:
        factors: The factor of each timed candidate, by what its devices compute.
        calibration: What a measured step says of all times, if there is one.
    """

    factors: dict[Work, float]
    calibration: Calibration | None = None

    @staticmethod
    def measure(
        results: Iterable[tuple[Evaluation, Prospect]], calibration: Calibration | None = None
    ) -> "ComputingSpeed":
        """Returns the speed of the candidates that are timed; if none is yet, that of the measured one."""
        timed = [(evaluation, prospect) for evaluation, prospect in results if evaluation.stage == "timed"]
        if not timed and calibration is not None and calibration.predicted.stage == "timed":
            timed = [(calibration.predicted, calibration.prospect)]
        factors: dict[Work, float] = {}
        for evaluation, prospect in timed:
            seconds = evaluation.time.compute + evaluation.time.attention
            factors[evaluation.candidate.key.work] = seconds / prospect.estimate.time.compute
        return ComputingSpeed(factors, calibration)

    def scale(self, evaluation: Evaluation) -> Evaluation:
        """Returns an evaluation whose computing is from operations as slow as a timed one, and which is calibrated.

        The factor is that of a timed candidate whose devices compute the same, or else the median of the factors with
        the same sizes, which differ little in a large step, or of all.
        """
        sizes = evaluation.candidate.key.sizes
        factors = [factor for (_, settings), factor in self.factors.items() if settings.sizes == sizes]
        factors = factors or [*self.factors.values()]
        return self._scale(evaluation, float(np.median(factors)) if factors else 1.0)

    def scale_at_best(self, evaluation: Evaluation) -> Evaluation:
        """Returns the same for the shortest time that is expected of a candidate whose factor is not known.

        Timed candidates may have large factors, such as those whose products wait for collectives within them.
        """
        return self._scale(evaluation, min([_BEST_SLOWDOWN, *self.factors.values()]))

    def _scale(self, evaluation: Evaluation, unknown_factor: float) -> Evaluation:
        if evaluation.stage != "timed" and self.factors:
            factor = self.factors.get(evaluation.candidate.key.work, unknown_factor)
            evaluation = replace(evaluation, time=_scale_computing(evaluation.time, factor))
        return evaluation if self.calibration is None else self.calibration.scale(evaluation)


def _scale_computing(time: StepTime, factor: float) -> StepTime:
    """Returns a step time with longer or shorter computing, which hides more or less of the collectives beside it."""
    compute, waiting, hidden = factor * time.compute, dict(time.waiting), dict(time.hidden)
    for axes, seconds in time.hidden.items():
        # Sending that was hidden for all of the old time (but for rounding, hence 0.999), or for longer than the new
        # one, takes longer than computing: of it, as much is hidden as the new time has room for.
        if seconds >= min(compute, 0.999 * time.compute):
            moved = min(compute - seconds, waiting.get(axes, 0.0))
            waiting[axes] = waiting.get(axes, 0.0) - moved
            hidden[axes] = seconds + moved
    return replace(time, compute=compute, waiting=waiting, hidden=hidden)


class _Expected(NamedTuple):
    """A prospect, and what its cost is expected to be at best."""

    prospect: Prospect
    cost: float


class _Search:
    """Compiles candidates and times the best of them.

    Args:
        prospects: The candidates.
        compiler: The compiler for the machine.
        log: The progress.
        turn: The number of this search, and how many there are, which share the budget and its limits.

    Attributes:
        results: What is known of each candidate that was compiled, by its key, and the prospect that it was.
    """

    def __init__(
        self,
        prospects: Sequence[Prospect],
        compiler: CandidateCompiler,
        log: SearchProgress,
        turn: tuple[int, int],
        calibration: Calibration | None,
    ) -> None:
        self._prospects, self._compiler, self._log = prospects, compiler, log
        self._turn, self._calibration = turn, calibration
        self._most_compiled = min(_MOST_COMPILED, max(_FIRST_COMPILED, _MOST_COMPILED // turn[1]))
        self._has_timing = compiler.hardware.platform == "tpu"  # programs for others are compiled with code at once
        self._is_cut_short = False  # by the budget, before all candidates were compiled that should be
        self._compile_seconds: list[float] = []  # of each candidate that was compiled
        self._untimeable: set[CandidateKey] = set()
        # By mesh and settings, the time of a timed candidate divided by what was expected of it.
        self._slowdowns: dict[CandidateKey, float] = {}
        # By sharding and options, the candidates with any policy, the fastest first.
        self._siblings: dict[CandidateKey, list[Prospect]] = collections.defaultdict(list)
        for prospect in sorted(prospects, key=lambda prospect: prospect.estimate.cost):
            self._siblings[replace(prospect.estimate.candidate.key, policy="")].append(prospect)
        self.results: dict[CandidateKey, tuple[Evaluation, Prospect]] = {}

    def run(self) -> None:
        if self._has_timing:
            self._compile(_FIRST_COMPILED)
            self._time(1)  # the others are ranked with its speed
        self._compile(self._most_compiled)
        if self.results and not any(evaluation.fits for evaluation, _ in self.results.values()):
            self._compile_smallest()
        if self._has_timing:
            self._time(max(1, _MOST_TIMED // self._turn[1]) - 1)

    def _has_used(self, part: float = 1.0) -> bool:
        """Returns whether a part of the budget of this search is used up."""
        number, count = self._turn
        return self._log.has_used((number + part) / count)

    def _compile(self, limit: int) -> None:
        """Compiles the best candidates until there are `limit` results; one that fails counts as half a result."""
        speed = self._measure_speed()
        times = [speed.scale(evaluation).cost for evaluation, _ in self.results.values() if evaluation.is_usable]
        best = min(times, default=math.inf)
        queue = self._rank_prospects(speed)
        while len(self.results) - self._count_failed() / 2 < limit:
            possible = [expected for expected in queue if self._can_be_best(expected, best, speed)]
            if not possible:
                return
            if self._has_used(_COMPILE_BUDGET_SHARE if self._has_timing else 1.0):
                count = format_count(len(self.results), "candidate")
                self._log.stop("budget", f"the budget was used up with {count} compiled; others may be better")
                self._is_cut_short = True
                return
            expected = possible[self._find_next(possible)]
            queue = [candidate for candidate in queue if candidate is not expected]
            prospect = expected.prospect
            number = len(self.results) + 1
            total = max(number, min(len(self._prospects), self._most_compiled))
            of_what = " a sample" if prospect.estimate.candidate.sizes else ""
            of_what = " a sequence" if prospect.estimate.sequences else of_what
            best_so_far = f", best {format_seconds(best)}{of_what}" if math.isfinite(best) else ""
            remaining_time = ""
            if self._compile_seconds:
                remaining_time = (
                    f", about {np.mean(self._compile_seconds) * (total - number + 1):.0f} s left to compile"
                )
            self._log.show(f"{number} of {total}{best_so_far}{remaining_time}: {prospect.estimate.candidate}")
            start = time.monotonic()
            evaluation = self._compiler.compile(prospect.estimate, prospect.variant, stop_early=True)
            self._compile_seconds.append(time.monotonic() - start)
            self.results[evaluation.candidate.key] = evaluation, prospect
            layers = evaluation.candidate.layers
            if evaluation.problem and layers and self._count_failed(layers) == _MOST_FAILED_STAGES:
                names = ", ".join(map(repr, layers))
                self._log.note(f"other stages of {names} were left out, since two failed: {evaluation.problem}")
            if evaluation.is_usable:
                best = min(best, speed.scale(evaluation).cost)
            if self._count_failed() == len(self.results) == min(_MOST_FAILED, len(self._prospects)):
                raise self._compiler.errors[0]  # such as for a refused option

    def _compile_smallest(self) -> None:
        """Compiles the candidates that should hold the least, until one fits."""
        untried = [prospect for prospect in self._prospects if prospect.estimate.candidate.key not in self.results]
        possible = [prospect for prospect in untried if prospect.estimate.fits]
        possible.sort(key=lambda prospect: (prospect.held_bytes, prospect.estimate.candidate.key))
        for prospect in possible[:_MOST_SMALL]:
            if self._log.has_used():
                self._log.stop("budget", "the budget was used up before the smallest candidates were compiled")
                return
            candidate = prospect.estimate.candidate
            self._log.show(f"nothing fits; trying one that should hold less: {candidate}")
            evaluation = self._compiler.compile(prospect.estimate, prospect.variant, stop_early=True)
            self.results[candidate.key] = evaluation, prospect
            if evaluation.is_usable:
                return

    def _measure_speed(self) -> ComputingSpeed:
        return ComputingSpeed.measure(self.results.values(), self._calibration)

    def _rank_prospects(self, speed: ComputingSpeed) -> list[_Expected]:
        """Returns the candidates that are not compiled, with their times at a speed, the most promising first."""
        ranked: list[tuple[Any, _Expected]] = []
        for prospect in self._prospects:
            if prospect.estimate.candidate.key not in self.results:
                scaled = prospect._replace(estimate=speed.scale(prospect.estimate))
                ranked.append((scaled.sort_key, _Expected(prospect, speed.scale_at_best(prospect.estimate).cost)))
        return [expected for _, expected in sorted(ranked, key=lambda pair: pair[0])]

    def _find_next(self, queue: Sequence[_Expected]) -> int:
        """Returns which candidate to compile next: of those that may fit first a few ways to compute on each mesh.

        The model of the machine tells candidates with one mesh apart better than meshes.
        """
        keys = [key for key, (evaluation, _) in self.results.items() if not evaluation.problem]
        compiled_ways = collections.Counter(key.computing for key in keys)
        compiled_meshes = collections.Counter(way.mesh_and_settings for way in compiled_ways)

        def make_sort_key(index: int) -> tuple[bool, bool, int]:
            prospect, _ = queue[index]
            key = prospect.estimate.candidate.key
            turn = compiled_ways[key.computing] or compiled_meshes[key.mesh_and_settings] // _MOST_OF_A_MESH
            return not prospect.estimate.fits, not self._is_likely_to_fit(prospect), turn

        return min(range(len(queue)), key=make_sort_key)

    def _can_be_best(self, expected: _Expected, best: float, speed: ComputingSpeed) -> bool:
        """Returns whether a candidate may fit and cost less than the best that is compiled; the first all may."""
        prospect, is_first = expected.prospect, len(self.results) < _FIRST_COMPILED
        if not is_first and expected.cost > best:
            return False
        if self._has_better_policy(prospect) or self._has_smaller_misfit(prospect) or self._has_failed_stages(prospect):
            return False
        return is_first or expected.cost + self._measure_excess(prospect, speed) <= best

    def _measure_excess(self, prospect: Prospect, speed: ComputingSpeed) -> float:
        """Returns by how much candidates that compute alike and send no more cost more than screened, at least."""
        way, sent_bytes = prospect.estimate.candidate.key.computing, sum(prospect.estimate.sent.values())
        excess = [
            speed.scale(evaluation).cost - speed.scale(compiled.estimate).cost
            for key, (evaluation, compiled) in self.results.items()
            if evaluation.is_usable and key.computing == way and sum(compiled.estimate.sent.values()) <= sent_bytes
        ]
        return min(excess, default=0.0)

    def _has_better_policy(self, prospect: Prospect) -> bool:
        """Returns whether the same sharding fits, or may fit, with a policy that the screening takes to be as fast.

        Which operations are run again and what is sent to the host are known before compiling.
        """
        key = prospect.estimate.candidate.key
        for sibling in self._siblings[replace(key, policy="")]:
            sibling_key = sibling.estimate.candidate.key
            if sibling_key == key:  # slower ones follow
                return False
            result = self.results.get(sibling_key)
            if result[0].is_usable if result else self._is_likely_to_fit(sibling):
                return True
        return False

    def _is_likely_to_fit(self, prospect: Prospect) -> bool:
        """Returns whether a candidate is likely to fit if it holds as much beside `held_bytes` as compiled ones do."""
        possible = [result for result in self.results.values() if not result[0].problem]
        other_bytes = min((evaluation.bytes - compiled.held_bytes for evaluation, compiled in possible), default=0.0)
        fits = prospect.held_bytes + max(other_bytes, 0.0) <= self._compiler.hardware.hbm_available
        return prospect.is_likely_to_fit and fits

    def _has_failed_stages(self, prospect: Prospect) -> bool:
        """Returns whether two candidates with stages of the same layers could not be compiled.

        Where JAX lacks a rule for an operation in stages, as for convolutions, no mesh changes that.
        """
        layers = prospect.estimate.candidate.layers
        return bool(layers) and self._count_failed(layers) >= _MOST_FAILED_STAGES

    def _has_smaller_misfit(self, prospect: Prospect) -> bool:
        """Returns whether a candidate that is unlikely to fit holds more than one with its policy that does not."""
        if self._is_likely_to_fit(prospect):
            return False
        candidate_key = prospect.estimate.candidate.key
        return any(
            not evaluation.fits
            and not evaluation.problem
            and (key.policy, key.options) == (candidate_key.policy, candidate_key.options)
            and compiled.held_bytes <= prospect.held_bytes
            for key, (evaluation, compiled) in self.results.items()
        )

    def _count_failed(self, layers: tuple[str, ...] = ()) -> int:
        """Returns how many candidates could not be compiled, with stages of layers if there are any."""
        failed = [evaluation.candidate for evaluation, _ in self.results.values() if evaluation.problem]
        return sum(not layers or candidate.layers == layers for candidate in failed)

    def _time(self, limit: int) -> None:
        """Compiles the best candidates with code, for their times; each of them tells the speed of others."""
        for _ in range(limit):
            key = self._find_untimed()
            if key is None:
                return
            if self._has_used():
                timed_count = sum(evaluation.stage == "timed" for evaluation, _ in self.results.values())
                count = format_count(timed_count, "candidate")
                self._log.stop("budget", f"the budget was used up with {count} timed; others may be better")
                return
            evaluation, prospect = self.results[key]
            self._log.show(f"timing {evaluation.candidate}")
            timed = self._compiler.compile(prospect.estimate, prospect.variant, stop_early=False)
            if timed.problem:
                self._log.note(f"{evaluation.candidate} could not be timed: {timed.problem}")
                self._untimeable.add(key)
            else:
                self.results[key] = timed, prospect
                speed = self._measure_speed()
                expected = speed.scale(evaluation).time.total
                self._slowdowns[key.mesh_and_settings] = speed.scale(timed).time.total / expected

    def try_flags(self, flags: PublishedFlags) -> None:
        """Compiles the best candidate with flags of XLA, for its times."""
        speed = self._measure_speed()
        timed = [
            (evaluation, prospect)
            for evaluation, prospect in self.results.values()
            if evaluation.is_usable and evaluation.stage == "timed" and not evaluation.candidate.flags
        ]
        if not timed or self._has_used():
            reason = "the budget was used up" if timed else "no candidate was timed"
            self._log.note(f"flags {flags.name!r} were not tried, since {reason}")
            return
        evaluation, prospect = min(timed, key=lambda result: (speed.scale(result[0]).cost, result[0].candidate.key))
        known = replace(prospect.estimate, candidate=replace(evaluation.candidate, flags=flags.name))
        self._log.show(f"timing {known.candidate}")
        compiler = replace(self._compiler, compiler_options=flags.options)
        flagged = compiler.compile(known, prospect.variant, stop_early=False)
        self.results[flagged.candidate.key] = flagged, prospect

    def note_untried(self) -> None:
        """Notes the candidate that looks faster than all that are compiled, if the budget did not last for it."""
        if not self._is_cut_short:
            return
        speed = self._measure_speed()
        times = [speed.scale(evaluation).cost for evaluation, _ in self.results.values() if evaluation.is_usable]
        untried = [
            speed.scale(prospect.estimate)
            for prospect in self._prospects
            if prospect.estimate.candidate.key not in self.results and self._is_likely_to_fit(prospect)
        ]
        best = min(untried, key=lambda evaluation: (evaluation.cost, evaluation.candidate.key), default=None)
        if best is not None and best.cost < min(times, default=0.0):  # without times, the best is that of the table
            seconds = format_seconds(best.time.total)
            self._log.note(f"a candidate that was only screened may take {seconds}: {best.candidate}")

    def _find_untimed(self) -> CandidateKey | None:
        """Returns the candidate to time: the fastest if all are as much slower as timed ones with their mesh.

        That is None if no candidate can be faster than the best timed one by `_TIMED_GAIN`. One cannot if a timed one
        with its mesh and settings is faster and was screened as faster: the model of the machine tells these apart.
        """
        speed = self._measure_speed()

        expected_costs: dict[CandidateKey, float] = {}
        least_costs: dict[CandidateKey, float] = {}
        best_cost = math.inf  # of timed candidates
        for key, (evaluation, _) in self.results.items():
            if evaluation.stage == "timed" and evaluation.is_usable:
                best_cost = min(best_cost, speed.scale(evaluation).cost)
            elif evaluation.is_usable and key not in self._untimeable:
                slowdown = self._slowdowns.get(key.mesh_and_settings, 1.0)
                expected_costs[key] = slowdown * speed.scale(evaluation).cost
                least_costs[key] = slowdown * speed.scale_at_best(evaluation).cost
        possible = [
            key
            for key, cost in least_costs.items()
            if cost < (1 - _TIMED_GAIN) * best_cost and not self._is_slower_on_its_mesh(key, speed)
        ]
        return min(possible, key=lambda key: (expected_costs[key], key), default=None)

    def _is_slower_on_its_mesh(self, key: CandidateKey, speed: ComputingSpeed) -> bool:
        """Returns whether a timed candidate with the same mesh and settings is faster, and was screened as faster."""
        evaluation, prospect = self.results[key]
        return any(
            timed_evaluation.stage == "timed"
            and timed_evaluation.is_usable
            and timed_key.mesh_and_settings == key.mesh_and_settings
            and timed_prospect.estimate.cost < prospect.estimate.cost
            and speed.scale(timed_evaluation).cost < speed.scale(evaluation).cost
            for timed_key, (timed_evaluation, timed_prospect) in self.results.items()
        )
