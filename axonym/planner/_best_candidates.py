"""Which candidates are compiled, and which of them are timed, until the budget is used up."""

import collections
import math
from collections.abc import Sequence
from typing import NamedTuple

from ..report._table import format_count
from ._candidate import Evaluation, format_computing, format_mesh_sizes, format_seconds, format_settings
from ._candidate_compiler import CandidateCompiler
from ._computing_speed import ComputingSpeed
from ._nearest_fit import describe_nearest_fits
from ._screening import Screened
from ._search_progress import SearchProgress


_MOST_COMPILED = 32
_MOST_BEFORE_TIMING = 4  # candidates that are compiled before the best of them is timed
_MOST_TIMED = 4
_MOST_OF_A_MESH = 5  # ways to compute with the same mesh and policy that are compiled before those with others
_MOST_FAILED = 3  # candidates that may fail at first until the search ends with the error of the first
_COMPILING = 0.6  # the part of the budget for compiling candidates for TPUs; the rest is for timing the best
_HOPELESS = 1.5  # not compiled if the screened time exceeds the time of the best compiled one that fits by this factor


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
        if not search.found or error in compiler.errors:
            raise
        log.note(f"only the candidates that were compiled before this error are here: {error}")
    finally:
        log.close()
    return [*search.found.values()]


class _Expected(NamedTuple):
    """A screened candidate, texts that those with its mesh and those with its computing share, and expected seconds."""

    mesh_and_settings: str
    computing: str
    seconds: float
    screened: Screened


class _Search:
    """Compiles candidates and times the best of them; `found` has what is known, by candidate."""

    def __init__(self, screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress) -> None:
        self._screened, self._compiler, self._log = screened, compiler, log
        self._is_timed = compiler.hardware.platform == "tpu"  # others are compiled whole at once
        self._untimeable: set[str] = set()
        self._slowdowns: dict[str, float] = {}  # by mesh and policy, the time of a timed candidate, of its estimate
        self.found: dict[str, tuple[Evaluation, Screened]] = {}

    def run(self) -> None:
        if self._is_timed:
            self._compile(_MOST_BEFORE_TIMING)
            self._time(1)  # the rest is ranked with the speed of that one
        self._compile(_MOST_COMPILED)
        if self._is_timed:
            self._time(_MOST_TIMED - 1)
        compiled = [(own, one) for own, one in self.found.values() if not own.problem]
        if compiled and not any(own.fits for own, _ in compiled):
            nearest, one = min(compiled, key=lambda pair: (pair[0].bytes, str(pair[0].candidate)))
            self._log.notes += describe_nearest_fits(nearest, one.variant, self._compiler, self._log)

    def _compile(self, most: int) -> None:
        """Compiles the best candidates until a number of them is known; those that cannot be compiled count half."""
        speed = ComputingSpeed.measure(self.found.values())
        best = min(
            (speed.scale(own).time.total for own, _ in self.found.values() if _is_possible(own)), default=math.inf
        )
        left = self._rank_screened(speed)
        while len(self.found) - self._count_failed() / 2 < most:
            left = [one for one in left if one.seconds <= _HOPELESS * best]
            if not left:
                return
            if self._log.has_used(_COMPILING if self._is_timed else 1.0):
                count = len(self.found)
                self._log.note(
                    f"the budget was used up with {format_count(count, 'candidate')} compiled; others may be better"
                )
                return
            one = left.pop(self._find_next(left)).screened
            until_now = f", best {format_seconds(best)}" if math.isfinite(best) else ""
            number = len(self.found) + 1
            of = max(number, min(len(self._screened), _MOST_COMPILED))
            self._log.show(f"{number} of {of}{until_now}: {one.evaluation.candidate}")
            own = self._compiler.evaluate(one.evaluation, one.variant, is_whole=False)
            self.found[str(one.evaluation.candidate)] = own, one
            best = min(best, speed.scale(own).time.total) if _is_possible(own) else best
            if self._count_failed() == len(self.found) == min(_MOST_FAILED, len(self._screened)):
                raise self._compiler.errors[0]  # such as for a refused option

    def _rank_screened(self, speed: ComputingSpeed) -> list[_Expected]:
        """Returns the candidates that are not compiled, with their times at a speed, the most promising first."""
        scaled = ((one._replace(evaluation=speed.scale(one.evaluation)), one) for one in self._screened)
        return [
            _Expected(
                _format_mesh_and_settings(own), format_computing(own.candidate), expected.evaluation.time.total, one
            )
            for expected, one in sorted(scaled, key=lambda pair: pair[0].rank)
            if str((own := one.evaluation).candidate) not in self.found
        ]

    def _find_next(self, left: Sequence[_Expected]) -> int:
        """Returns which candidate to compile next: of those that may fit first a few ways to compute on each mesh.

        The model of the machine tells candidates with one mesh apart better than meshes.
        """
        compiled = [own for own, _ in self.found.values() if not own.problem]
        stored = collections.Counter(format_computing(own.candidate) for own in compiled)
        ways = {format_computing(own.candidate): own for own in compiled}
        meshes = collections.Counter(map(_format_mesh_and_settings, ways.values()))

        def rank_turn(at: int) -> tuple[bool, bool, int]:
            one = left[at]
            turn = stored[one.computing] or meshes[one.mesh_and_settings] // _MOST_OF_A_MESH
            return not one.screened.evaluation.fits, not one.screened.is_likely_to_fit, turn

        return min(range(len(left)), key=rank_turn)

    def _count_failed(self) -> int:
        return sum(bool(own.problem) for own, _ in self.found.values())

    def _time(self, most: int) -> None:
        """Compiles the best candidates whole, for their times; each of them tells the speed of others."""
        for _ in range(most):
            found = self._find_untimed()
            if found is None:
                return
            if self._log.has_used():
                count = sum(own.stage == "timed" for own, _ in self.found.values())
                self._log.note(
                    f"the budget was used up with {format_count(count, 'candidate')} timed; others may be better"
                )
                return
            own, one = found
            self._log.show(f"timing {own.candidate}")
            timed = self._compiler.evaluate(one.evaluation, one.variant, is_whole=True)
            if timed.problem:
                self._log.note(f"{own.candidate} could not be timed: {timed.problem}")
                self._untimeable.add(str(own.candidate))
            else:
                self.found[str(own.candidate)] = timed, one
                expected = ComputingSpeed.measure(self.found.values()).scale(own).time.total
                self._slowdowns[_format_mesh_and_settings(own)] = timed.time.total / expected

    def _find_untimed(self) -> tuple[Evaluation, Screened] | None:
        """Returns the candidate to time: the fastest if all are as much slower as timed ones with their mesh."""
        speed = ComputingSpeed.measure(self.found.values())

        def rank_untimed(pair: tuple[Evaluation, Screened]) -> tuple[float, str]:
            slower = self._slowdowns.get(_format_mesh_and_settings(pair[0]), 1.0)
            return slower * speed.scale(pair[0]).time.total, str(pair[0].candidate)

        untimed = [(own, one) for own, one in self.found.values() if own.stage == "compiled" and _is_possible(own)]
        left = (pair for pair in untimed if str(pair[0].candidate) not in self._untimeable)
        return min(left, key=rank_untimed, default=None)


def _format_mesh_and_settings(evaluation: Evaluation) -> str:
    return f"{format_mesh_sizes(evaluation.candidate)}; {format_settings(evaluation.candidate)}"


def _is_possible(evaluation: Evaluation) -> bool:
    return evaluation.fits and not evaluation.problem
