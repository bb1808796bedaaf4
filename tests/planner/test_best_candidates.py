"""`compile_best`: which candidates are compiled and timed, with a compiler that only looks up times."""

import collections
import dataclasses
import sys
import time
from typing import Any

import pytest

from axonym.planner import Candidate, Evaluation, StepTime, get_hardware
from axonym.planner._search import _best_candidates
from axonym.planner._search._best_candidates import ComputingSpeed, compile_best
from axonym.planner._search._calibration import Calibration
from axonym.planner._search._candidate_compiler import SearchProgress
from axonym.planner._search._published_flags import find_published_flags
from axonym.planner._search._screening import Prospect
from tests.planner.plans import change_time, choose
from tests.refusals import refusal


EVEN = dict.fromkeys("abcdefgh", 1.0)


class Compiler:
    """Returns the seconds that candidates wait, by their names, when compiled and when timed, or raises errors.

    `change` is called with each evaluation, and with whether the compiler was stopped early.
    """

    compiler_options: Any = None

    def __init__(self, compiled=EVEN, timed=EVEN, *, hardware="v5e", change=lambda evaluation, stop_early: evaluation):
        self.compiled, self.timed = compiled, timed
        self.hardware, self.change = get_hardware(hardware), change
        self.calls, self.errors = [], []

    def compile(self, estimate, variant, *, stop_early):
        name = next(iter(estimate.candidate.compute))
        self.calls.append(name + "!" * (not stop_early))
        seconds = (self.compiled if stop_early else self.timed)[name]
        if isinstance(seconds, Exception):
            self.errors.append(seconds)
            return dataclasses.replace(estimate, stage="compiled", fits=False, problem=str(seconds))
        stage, source = ("compiled", "flops") if stop_early else ("timed", "cycles")
        evaluation = change_time(estimate, waiting={("data",): seconds}, source=source)
        return self.change(dataclasses.replace(evaluation, stage=stage), stop_early)


def make_prospect(name, data, seconds, *, fits=True):
    mesh = {"data": data, "model": 16 // data}
    candidate = Candidate(mesh, {name: ("model",)}, {name: ("model",)})
    step_time = StepTime(seconds, 0.0, {}, {}, 0.0, "flops", 0.5)
    return Prospect(Evaluation(candidate, "screened", fits, {"all": 1}, {}, step_time), None, True)  # pyright: ignore


def compile_all(prospects, compiler, *, budget=None, passed=0.0, **options):
    """Returns the evaluations, and the notes."""
    log = SearchProgress(False, time.monotonic() - passed, budget)
    return [evaluation for evaluation, _ in compile_best(prospects, compiler, log, **options)], log.notes


def search(prospects, compiler, **options):
    found, notes = compile_all(prospects, compiler, **options)
    return {name: one.stage for one in found for name in one.candidate.compute}, notes


@pytest.fixture
def limit_counts(monkeypatch):
    def limit(compiled, of_a_mesh=None):
        monkeypatch.setattr(_best_candidates, "_MOST_COMPILED", compiled)
        if of_a_mesh is not None:
            monkeypatch.setattr(_best_candidates, "_MOST_OF_A_MESH", of_a_mesh)

    return limit


PROSPECTS = [make_prospect(name, 2 ** (at // 4), 1 + at / 100) for at, name in enumerate("abcdefgh")]


@pytest.mark.parametrize(
    ("timed", "order"),
    [
        ({"c": 1.5}, ["c!", "e!"]),  # all with the mesh of c look slow, and those with another do not
        ({"c": 0.9}, ["c!"]),  # the others should not be faster than it is
        ({"c": 1.5, "e": 2.5}, ["c!", "e!"]),
    ],
)
def test_timed_candidates_tell_the_speed_of_others_with_their_mesh(timed, order):
    compiler = Compiler({**EVEN, "c": 0.9}, {**EVEN, **timed})
    found, notes = search(PROSPECTS, compiler)
    assert compiler.calls[:5] == [*"abcd", "c!"] and compiler.calls[5:9] == [*"efgh"] and not notes
    assert [call for call in compiler.calls if "!" in call] == order
    assert [name for name, stage in found.items() if stage == "timed"] == sorted(one[0] for one in order)


def test_the_best_candidate_is_timed_with_published_flags_too():
    def speed_up(evaluation, stop_early):
        speedup = 0.25 if compiler.compiler_options == flags.options else 0.0
        return change_time(evaluation, compute=evaluation.time.compute - speedup)

    @dataclasses.dataclass
    class FlagsCompiler:
        compiler_options: Any = None
        hardware = get_hardware("v5e")

        def compile(self, *args, **options):
            compiler.compiler_options = self.compiler_options
            return compiler.compile(*args, **options)

    compiler = Compiler(change=speed_up)
    flags = next(iter(find_published_flags("v5e").values()))
    found, _ = compile_all(PROSPECTS, FlagsCompiler(), published_flags=[flags])
    fastest = min(found, key=lambda one: one.cost)
    assert fastest.candidate.flags == "fused gathers" and compiler.calls.count("a!") == 2
    assert str(fastest.candidate).endswith("; flags fused gathers")
    plain = next(one for one in found if one.candidate == dataclasses.replace(fastest.candidate, flags=""))
    assert plain.time.total - fastest.time.total == pytest.approx(0.25)


def test_another_candidate_is_timed_if_the_first_computes_slowly():
    """As one does whose products wait for collectives within them; the others may compute faster."""

    def slow_down(evaluation, stop_early):
        factor = 1.0 if stop_early else (1.7 if "a" in evaluation.candidate.compute else 1.1)
        return change_time(evaluation, compute=factor * evaluation.time.compute)

    even = dict.fromkeys("abcdefgh", 0.1)
    compiler = Compiler(even, even, change=slow_down)
    search(PROSPECTS, compiler)
    assert [call for call in compiler.calls if "!" in call] == ["a!", "e!", "b!"]  # `b` has the mesh of `a`


@pytest.mark.parametrize("most", [1, 4])
def test_other_meshes_are_compiled_before_more_candidates_of_one(most, limit_counts):
    limit_counts(4, most)
    compiler = Compiler(hardware="h100")
    search([*PROSPECTS, make_prospect("x", 16, 0.5, fits=False)], compiler)
    assert compiler.calls == ([*"aebf"] if most == 1 else [*"abcd"])


def test_steps_that_serve_are_searched_for_each_size():
    """The searches share how many are compiled and timed; with 64 sequences no arguments fit."""
    prospects = []
    for prospect in PROSPECTS:
        for count in (8, 16, 32, 64):
            estimate = choose(prospect.estimate, sizes={"batch": count})
            estimate = dataclasses.replace(estimate, sequences=count, fits=count < 64)
            prospects.append(prospect._replace(estimate=estimate))
    found, _ = compile_all(prospects, Compiler())
    stages = collections.Counter((one.sequences, one.stage) for one in found)
    assert stages == {(count, stage): n for count in (8, 16, 32) for stage, n in (("timed", 1), ("compiled", 3))}
    assert {one.cost for one in found if one.stage == "timed"} == {2 / 8, 2 / 16, 2 / 32}


def test_candidates_that_fail_do_not_count_for_their_mesh(limit_counts):
    limit_counts(4, 1)
    compiler = Compiler({**EVEN, "a": RuntimeError("two axes over one mesh axis")}, hardware="h100")
    search(PROSPECTS, compiler)
    assert compiler.calls == [*"abecf"]


def test_other_ways_to_store_parameters_come_after_other_ways_to_compute(limit_counts):
    limit_counts(4)
    stored = change_candidate(PROSPECTS[0], parameters={"a": ("model",), "embed": ("data",)})
    compiler = Compiler(hardware="h100")
    search([stored, *PROSPECTS], compiler)
    assert compiler.calls == [*"abcd"]


@pytest.mark.parametrize(("fitting", "calls"), [("f", "adf"), ("none", "adfgbh")])
def test_if_nothing_fits_the_smallest_of_the_others_are_compiled(limit_counts, monkeypatch, fitting, calls):
    limit_counts(2)
    monkeypatch.setattr(_best_candidates, "describe_nearest_fits", lambda *_: ["too large"])
    sizes = dict(zip("abcdefgh", (5, 5, 9, 3, 8, 2, 4, 7), strict=True))
    prospects = [
        one._replace(estimate=dataclasses.replace(one.estimate, saved_bytes=sizes[name]), is_likely_to_fit=False)
        for name, one in zip("abcdefgh", PROSPECTS, strict=True)
    ]
    compiler = Compiler(
        hardware="h100", change=lambda one, _: dataclasses.replace(one, fits=fitting in one.candidate.compute)
    )
    _, notes = search(prospects, compiler)
    assert "".join(compiler.calls) == calls and notes == ([] if fitting == "f" else ["too large"])


def test_hopeless_candidates_are_not_compiled():
    slow = make_prospect("z", 1, 2.2)  # than which all others take less when compiled
    compiler = Compiler({**EVEN, "z": 1.0}, {**EVEN, "z": 1.0})
    assert "z" not in search([*PROSPECTS, slow], compiler)[0] and "z" in search([slow], compiler)[0]


def change_candidate(prospect, seconds=None, saved_bytes=0, **changes):
    estimate = choose(prospect.estimate, **changes)
    if seconds is not None:
        estimate = change_time(estimate, compute=seconds)
    return prospect._replace(estimate=dataclasses.replace(estimate, saved_bytes=saved_bytes))


@pytest.mark.parametrize(("fits", "policies"), [(True, ["fast"]), (False, ["fast", "slow"])])
def test_a_slower_policy_is_compiled_where_the_faster_one_does_not_fit(fits, policies):
    fast = change_candidate(PROSPECTS[0], policy="fast")
    slow = change_candidate(PROSPECTS[0], 1.25, policy="slow")
    compiler = Compiler(change=lambda one, _: dataclasses.replace(one, fits=fits or one.candidate.policy == "slow"))
    assert [one.candidate.policy for one in compile_all([fast, slow], compiler)[0]] == policies


def test_what_holds_more_than_a_candidate_that_does_not_fit_is_not_compiled():
    large = [
        change_candidate(prospect, policy="none", saved_bytes=10 + number)._replace(is_likely_to_fit=False)
        for number, prospect in enumerate(PROSPECTS[1:4])
    ]
    compiler = Compiler(change=lambda one, _: dataclasses.replace(one, fits=one.candidate.policy != "none"))
    search([PROSPECTS[0], *large], compiler)
    assert compiler.calls == ["a", "b", "a!"]


def test_other_ways_to_store_parameters_wait_as_much_longer_than_screened():
    stored = change_candidate(PROSPECTS[0], parameters={"embed": ("data",)})
    compiler = Compiler({**EVEN, "a": 1.5}, {**EVEN, "a": 1.5}, hardware="h100")
    search([stored, *PROSPECTS], compiler)
    assert compiler.calls == [*"abcdefgh"]  # not a again


def test_a_candidate_that_cannot_be_timed_is_tried_once():
    compiler = Compiler(timed={**EVEN, "a": RuntimeError("killed")})
    found, notes = search(PROSPECTS, compiler)
    assert found["a"] == "compiled" and compiler.calls.count("a!") == 1 and len(found) == len(PROSPECTS)
    assert [note.partition(" could not be timed: ")[2] for note in notes] == ["killed"]


def test_errors_of_the_first_three_end_the_search():
    late = {name: TimeoutError(f"{name} took longer than 1 second") for name in "abcdefgh"}
    with refusal("a took longer than 1 second", TimeoutError):
        search(PROSPECTS, Compiler(late, late))


@pytest.mark.parametrize(("passed", "compiled"), [(11.0, 0), (7.0, 0), (5.0, 8)])
def test_a_part_of_the_budget_is_for_timing(passed, compiled):
    found, notes = search(PROSPECTS, Compiler(), budget=10.0, passed=passed)
    assert len(found) == compiled
    used_up = "the budget was used up with 0 candidates compiled; others may be better"
    assert notes == ([] if compiled else [used_up])


CUT = "the budget was used up with 4 candidates compiled; others may be better"


@pytest.mark.parametrize(
    ("wait", "compiled", "notes"),
    [
        (1.0, 4, [CUT, "a candidate that was only screened may take 1.04 s: data 2 x model 8; e over model"]),
        (0.04, 4, [CUT]),  # the best of those takes as long as the first that is left
        (0.0, 4, []),
        (1.0, len(PROSPECTS), []),  # all of them
    ],
)
def test_a_short_budget_notes_what_looks_faster_and_was_not_compiled(wait, compiled, notes):
    log = SearchProgress(False, time.monotonic(), 1000.0)

    def use_budget(evaluation, stop_early):
        if len(compiler.calls) == compiled:
            log._started -= 1000.0
        return evaluation

    compiler = Compiler(dict.fromkeys("abcdefgh", wait), hardware="h100", change=use_budget)
    assert len(compile_best(PROSPECTS, compiler, log)) == compiled  # pyright: ignore
    assert log.notes == notes


def test_the_fastest_candidate_is_that_of_calibrated_times():
    waits, computes = make_prospect("a", 1, 1.0), make_prospect("b", 2, 1.3)
    seconds = {"a": 1.0, "b": 0.5}
    timed = []
    for factors in ({"wait": 1.0}, {"wait": 0.5}):
        compiler = Compiler(seconds, seconds)
        calibration = Calibration(dataclasses.replace(waits.estimate, stage="timed"), waits, factors, ())
        compile_all([waits, computes], compiler, calibration=calibration)
        timed.append([call for call in compiler.calls if "!" in call])
    assert timed == [["b!"], ["a!"]]


@pytest.mark.parametrize(("factor", "waiting"), [(1.5, 0.0), (1.1, 0.1), (1.0, 0.2), (0.5, 0.7)])
def test_more_computing_hides_more_of_what_is_sent(factor, waiting):
    """Of a step that computes for a second, and sends for 1.2 seconds beside it."""
    one = change_time(PROSPECTS[0].estimate, compute=1.0, waiting={("data",): 0.2}, hidden={("data",): 1.0})
    found = ComputingSpeed({one.candidate.key.work: factor}).scale(one).time
    assert found.waiting[("data",)] == pytest.approx(waiting)
    assert found.hidden[("data",)] == pytest.approx(1.2 - waiting)
    assert found.total == pytest.approx(factor + waiting)


def test_a_line_of_progress_is_no_wider_than_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    log = SearchProgress(True, time.monotonic(), None)
    log.show("timing " + 10 * "data 64 x model 4; ")
    log.close()
    assert capsys.readouterr().err == "\r\x1b[2K0 s: timing data 64 x model 4; data 64 \r\x1b[2K"


SWAPPED = {"mesh": {"data": 4, "model": 2}, "compute": {"batch": ("model",), "mlp": ("data",)}}


@pytest.mark.parametrize(
    ("changes", "is_same", "computes_the_same"),
    [
        ({"compute": {"batch": ("data",), "embed": (), "mlp": ("model",)}}, True, True),
        ({"compute": {"mlp": ("model",), "batch": ("data",)}}, True, True),
        ({"mesh": {"model": 4, "data": 2}}, False, True),  # the devices lie along other axes
        (SWAPPED, False, True),  # axes have as many parts
        ({"mesh": {"replica": 2, "model": 4}, "compute": {"batch": ("replica",), "mlp": ("model",)}}, False, True),
        ({"mesh": {"data": 4, "model": 2}}, False, False),
        ({"compute": {"batch": ("data",), "mlp": ("data", "model")}}, False, False),
        ({"options": {"scale": "None"}}, False, False),
        ({"policy": "full"}, False, False),
    ],
)
def test_candidates_are_told_apart_by_what_they_choose(changes, is_same, computes_the_same):
    mapping = {"batch": ("data",), "mlp": ("model",)}
    candidate = Candidate({"data": 2, "model": 4}, mapping, mapping, options={"scale": None})
    key, other = candidate.key, dataclasses.replace(candidate, **changes).key
    assert (key == other) is is_same and (hash(key) == hash(other)) is is_same
    assert (key.work == other.work) is computes_the_same
    stored = dataclasses.replace(candidate, parameters={}).key
    assert stored != key and stored.computing == key.computing != key.mesh_and_settings and stored.work == key.work
