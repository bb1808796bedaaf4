"""Which candidates are compiled, and which of them are timed, until the budget is used up."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ._candidate import Evaluation, format_computing, rank_evaluation
from ._candidate_compiler import CandidateCompiler
from ._nearest_fit import describe_nearest_fits
from ._screening import Screened
from ._search_progress import SearchProgress


_MOST_COMPILED = 32
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
        _compile_screened(screened, compiler, log, found)
        if compiler.hardware.platform == "tpu":  # others are compiled whole at once
            _time_best(compiler, log, found)
        compiled = [(own, one) for own, one in found.values() if not own.problem]
        if compiled and not any(own.fits for own, _ in compiled) and not log.has_used():
            nearest, one = min(compiled, key=lambda pair: (pair[0].bytes, str(pair[0].candidate)))
            log.notes += describe_nearest_fits(nearest, one.variant, compiler)
    except KeyboardInterrupt:
        log.notes.append("interrupted: only the candidates that were compiled until then are here")
    except OSError as error:  # such as a full disk
        if not found:
            raise
        log.notes.append(f"only the candidates that were compiled before this error are here: {error}")
    log.close()
    return [*found.values()]


def _compile_screened(
    screened: Sequence[Screened], compiler: CandidateCompiler, log: SearchProgress, found: _Compiled
) -> None:
    """Compiles candidates until as many are known as should be; those that cannot be compiled count half."""
    for one in screened:
        if len(found) + len(found) - len(compiler.errors) >= 2 * _MOST_COMPILED:
            return
        best = min((other.time.total for other, _ in found.values() if _is_possible(other)), default=math.inf)
        if log.has_used(1.0 if compiler.hardware.platform != "tpu" else _COMPILING):
            log.notes.append(f"the budget was used up before all candidates were compiled: {len(found)} are")
            return
        if one.evaluation.time.total > _HOPELESS * best:
            continue
        log.show(f"{len(found) + 1} of {min(len(screened), _MOST_COMPILED)}: {one.evaluation.candidate}")
        found[str(one.evaluation.candidate)] = compiler.evaluate(one.evaluation, one.variant, False), one
        if len(compiler.errors) == len(found) == min(_MOST_FAILED, len(screened)):
            raise compiler.errors[0]  # such as for a refused option


def _time_best(compiler: CandidateCompiler, log: SearchProgress, found: _Compiled) -> None:
    """Compiles the best candidates whole, for their times."""
    chosen = _choose_timed([*found.values()])
    for at, (own, one) in enumerate(chosen):
        if log.has_used():
            log.notes.append(f"the budget was used up before the best candidates were timed: {at} are")
            return
        log.show(f"timing {at + 1} of {len(chosen)}: {own.candidate}")
        timed = compiler.evaluate(one.evaluation, one.variant, True)
        if timed.problem:
            log.notes.append(f"{own.candidate} could not be timed: {timed.problem}")
        else:
            found[str(own.candidate)] = timed, one


def _choose_timed(compiled: Sequence[tuple[Evaluation, Screened]]) -> list[tuple[Evaluation, Screened]]:
    """Returns the best candidates that have no times yet, first of all those that compute in different ways."""
    ranked = sorted(compiled, key=lambda pair: rank_evaluation(pair[0]))
    possible = [pair for pair in ranked if pair[0].stage == "compiled" and _is_possible(pair[0])]
    seen: set[str] = set()
    found: tuple[list[Any], list[Any]] = [], []
    for pair in possible:
        key = format_computing(pair[0].candidate)
        found[key in seen].append(pair)
        seen.add(key)
    return [*found[0], *found[1]][:_MOST_TIMED]


def _is_possible(evaluation: Evaluation) -> bool:
    return evaluation.fits and not evaluation.problem
