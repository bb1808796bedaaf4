"""Which candidates are compiled, and which of them are timed, until the budget is used up."""

import collections
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ._candidate import Evaluation, format_mesh_sizes, format_settings, rank_evaluation
from ._candidate_compiler import CandidateCompiler
from ._computing_speed import ComputingSpeed
from ._nearest_fit import describe_nearest_fits
from ._screening import Screened
from ._search_progress import SearchProgress


_MOST_COMPILED = 32
_MOST_OF_A_MESH = 4  # candidates with the same mesh and policy that are compiled before those with others
_MOST_TIMED = 4
_MOST_FAILED = 3  # candidates that may fail at first until the search ends with the error of the first
_COMPILING = 0.6  # the part of the budget for compiling candidates for TPUs; the rest is for timing the best
_HOPELESS = 1.5  # not compiled if the screened time exceeds the time of the best compiled one that fits by this factor

_Compiled: TypeAlias = dict[str, tuple[Evaluation, Screened]]


def compile_best(
    screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress
) -> list[tuple[Evaluation, Screened]]:
    """Returns what the compiler knows of the most promising candidates; what is known so far if interrupted."""
    found: _Compiled = {}
    try:
        if compiler.hardware.platform == "tpu":  # others are compiled whole at once
            _compile_screened(screened, compiler, log, found, _MOST_TIMED)
            _time_best(compiler, log, found, 1)  # the rest is ranked with the speed of that one
        _compile_screened(screened, compiler, log, found, _MOST_COMPILED)
        if compiler.hardware.platform == "tpu":
            _time_best(compiler, log, found, _MOST_TIMED - 1)
        compiled = [(own, one) for own, one in found.values() if not own.problem]
        if compiled and not any(own.fits for own, _ in compiled) and not log.has_used():
            nearest, one = min(compiled, key=lambda pair: (pair[0].bytes, str(pair[0].candidate)))
            log.notes += describe_nearest_fits(nearest, one.variant, compiler)
    except KeyboardInterrupt:
        log.note("interrupted: only the candidates that were compiled until then are here")
    except OSError as error:  # such as a full disk
        if not found:
            raise
        log.note(f"only the candidates that were compiled before this error are here: {error}")
    log.close()
    return [*found.values()]


def _compile_screened(
    screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress, found: _Compiled, most: int
) -> None:
    """Compiles the best candidates until a number of them is known; those that cannot be compiled count half."""
    speed = ComputingSpeed.measure(found.values())
    ranked = sorted(
        ((one._replace(evaluation=speed.scale(one.evaluation)), one) for one in screened), key=lambda pair: pair[0].rank
    )
    best = min((speed.scale(own).time.total for own, _ in found.values() if _is_possible(own)), default=math.inf)
    for expected, one in _alternate_meshes(ranked):
        if len(found) + len(found) - len(compiler.errors) >= 2 * most:
            return
        if log.has_used(1.0 if compiler.hardware.platform != "tpu" else _COMPILING):
            log.note(f"the budget was used up before all candidates were compiled: {len(found)} are")
            return
        name = str(one.evaluation.candidate)
        if name in found or expected.evaluation.time.total > _HOPELESS * best:
            continue
        log.show(f"{len(found) + 1} of {min(len(screened), _MOST_COMPILED)}: {name}")
        own = compiler.evaluate(one.evaluation, one.variant, False)
        found[name] = own, one
        best = min(best, speed.scale(own).time.total) if _is_possible(own) else best
        if len(compiler.errors) == len(found) == min(_MOST_FAILED, len(screened)):
            raise compiler.errors[0]  # such as for a refused option


def _alternate_meshes(ranked: Sequence[tuple[Screened, Screened]]) -> list[tuple[Screened, Screened]]:
    """Returns ranked candidates, of those that may fit a few of each mesh and policy first, then a few more of each."""
    counts: collections.Counter[str] = collections.Counter()
    turns: list[tuple[bool, bool, int]] = []
    for _, one in ranked:
        group = _format_settings_and_mesh(one.evaluation)
        turns.append((not one.evaluation.fits, not one.is_likely_to_fit, counts[group] // _MOST_OF_A_MESH))
        counts[group] += 1
    return [pair for _, pair in sorted(zip(turns, ranked, strict=True), key=lambda each: each[0])]


def _time_best(compiler: CandidateCompiler, log: SearchProgress, found: _Compiled, most: int) -> None:
    """Compiles the best candidates whole, for their times; each of them tells the speed of others."""
    failed: set[str] = set()
    for _ in range(most):
        untimed = _rank_untimed(found, failed)
        if not untimed:
            return
        if log.has_used():
            log.note("the budget was used up before the best candidates were timed")
            return
        own, one = untimed[0]
        log.show(f"timing {own.candidate}")
        timed = compiler.evaluate(one.evaluation, one.variant, True)
        if timed.problem:
            log.note(f"{own.candidate} could not be timed: {timed.problem}")
            failed.add(str(own.candidate))
        else:
            found[str(own.candidate)] = timed, one


def _rank_untimed(found: _Compiled, failed: set[str]) -> list[tuple[Evaluation, Screened]]:
    """Returns the candidates without times, first those whose mesh and policy no timed one has."""
    speed = ComputingSpeed.measure(found.values())
    timed = {_format_settings_and_mesh(own) for own, _ in found.values() if own.stage == "timed"}
    untimed = [(own, one) for name, (own, one) in found.items() if own.stage == "compiled" and name not in failed]

    def rank_untimed(pair: tuple[Evaluation, Screened]) -> Any:
        return _format_settings_and_mesh(pair[0]) in timed, rank_evaluation(speed.scale(pair[0]))

    return sorted((pair for pair in untimed if _is_possible(pair[0])), key=rank_untimed)


def _format_settings_and_mesh(evaluation: Evaluation) -> str:
    return f"{format_mesh_sizes(evaluation.candidate)}; {format_settings(evaluation.candidate)}"


def _is_possible(evaluation: Evaluation) -> bool:
    return evaluation.fits and not evaluation.problem
