"""Timelines: events counted by hand and of recorded programs, their file, their picture and their page."""

import dataclasses
import itertools
import json
import re

import pytest

from axonym.planner import Timeline, TimelineEvent, estimate_step_time, read_plan

from ..refusals import refusal
from .plans import BEST, PLAN
from .step_programs import make_mesh, make_program, read_recorded


CLOCK, LINK = 1.5e9, 45e9  # of v5e
BLOCK = """
%product (a: f32[256,256]) -> f32[256,256] {
  %a = f32[256,256]{1,0} parameter(0)
  ROOT %c = f32[256,256]{1,0} convolution(%a, %a)
}

%cond (p: (s32[])) -> pred[] {
  %p = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(6)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (q: (s32[])) -> (s32[]) {
  %g = (f32[256,1024], f32[1024,1024]) all-gather-start(%x), replica_groups={{0,2,4,6},{1,3,5,7}}, IN(up/gather(mlp))
  %f = f32[256,256] fusion(%y), kind=kOutput, calls=%product, CYCLES(15000), IN(up/dot(embed -> mlp)/dot_general)
  %s = f32[256,256] add(%f, %f), CYCLES(20), IN(mul)
  %t = f32[256,256] add(%s, %f), CYCLES(30), IN(norm/rms_norm(embed)/mul)
  %d = f32[1024,1024] all-gather-done(%g)
  %j = s32[] get-tuple-element(%q), index=0
  %one = s32[] constant(1)
  %turn = s32[] add(%j, %one)
  ROOT %next = (s32[]) tuple(%turn)
}
"""
LOOP = "%loop = (s32[]) while(%start), condition=%cond, body=%body"
LAST = "%last = f32[256,256] add(%y, %y), CYCLES(600)"


def estimate(*lines):
    """Returns the step time of a program of a loop and these lines."""
    text = f"{BLOCK}\nENTRY %main (x: f32[]) -> f32[] {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    text = re.sub(r"CYCLES\((\d+)\)", r'backend_config={"window_config":{"estimated_cycles":"\1"}}', text)
    text = re.sub(r"IN\((.*)\)$", r'metadata={op_name="jit(f)/transpose(jvp(Stacked))/Stacked/\1"}', text, flags=re.M)
    return estimate_step_time(make_program(text, make_mesh("tpu")))


TIME = estimate(LOOP, LAST)
TIMED = dataclasses.replace(BEST, time=TIME)
TIMELINES = dataclasses.replace(PLAN, evaluations=(TIMED, *PLAN.evaluations[1:]))


def test_turn_of_a_loop_has_what_is_computed_sent_and_waited_for():
    (turn,) = TIME.timelines
    gather = 3 / 4 * 2**22 / LINK
    product, others, sent = 15_000 / CLOCK, 50 / CLOCK, pytest.approx(gather, abs=1e-9)
    events = {event.name: event for event in turn.events}
    assert (turn.name, turn.turns, turn.seconds) == ("Stacked, backward", 6, sent)
    assert turn.waited == pytest.approx(gather - product - others, abs=1e-9)
    assert [*events] == ["f", "g", "t"]
    where = "Stacked/up", "dot(embed -> mlp)", "backward"
    assert events["f"] == ("f", "product", (), 0.0, pytest.approx(product, abs=1e-9), 0.0, *where)
    assert events["g"][1:4] == ("all-gather", ("data",), 0.0) and events["g"].end == sent
    assert events["g"].waited == turn.waited and events["g"].operation == "gather(mlp)"
    assert events["t"][1:3] == ("other", ()) and events["t"].layer == "Stacked/norm"  # the longer one of two
    assert events["t"].start == events["f"].end and events["t"].seconds == pytest.approx(others, abs=1e-9)


def test_program_without_loops_is_drawn_whole():
    alone = "%alone = f32[256,256] all-reduce(%y), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}"
    (whole,) = estimate(LAST, alone, LAST.replace("600", "300").replace("%last", "%more")).timelines
    assert (whole.name, whole.turns, whole.seconds) == ("whole step", 1, pytest.approx(900 / CLOCK))
    assert [event.name for event in whole.events] == ["last", "more"]


def test_loops_within_a_turn_are_one_event_and_small_loops_are_left_out():
    (outer,) = estimate(LOOP, LAST.replace("600", "9000000")).timelines
    assert outer.name == "whole step" and [event.kind for event in outer.events] == ["loop", "other"]
    assert outer.events[0].seconds == pytest.approx(6 * TIME.timelines[0].seconds, abs=1e-9)


@pytest.mark.parametrize("name", ["tpu", "gpu"])
def test_recorded_steps_have_a_turn_forward_and_backward(name):
    time = estimate_step_time(read_recorded(name))
    forward, backward = time.timelines
    assert (forward.name, backward.name) == ("Stacked, forward", "Stacked, backward")
    assert forward.turns == backward.turns == {"tpu": 2, "gpu": 3}[name]  # that of the last layer is apart on TPUs
    for turn in time.timelines:
        computed = [event for event in turn.events if not event.links]
        assert sum(event.seconds for event in computed) + turn.waited == pytest.approx(turn.seconds, abs=1e-7)
        assert all(one.end <= other.start + 1e-9 for one, other in itertools.pairwise(computed))
        assert {"product", "attention", "other"} == {event.kind for event in computed}
    assert sum(turn.turns * turn.seconds for turn in time.timelines) < time.total
    assert {event.run_in for event in backward.events} >= {"backward", "recomputed"}
    down = [event for event in forward.events if event.layer == "Stacked/down" and event.kind == "product"]
    assert [event.operation for event in down] == ["dot(mlp -> embed)"]
    hosts = {event.links for turn in time.timelines for event in turn.events if event.kind == "copy"}
    assert hosts == ({("to the memory of the host",), ("from the memory of the host",)} if name == "tpu" else set())


def test_programs_without_times_of_instructions_have_no_timeline():
    assert estimate_step_time(read_recorded("slices"), flops=1e9).timelines == ()
    assert estimate(LAST.replace("600", "0")).timelines == ()


def test_file_keeps_timelines(tmp_path):
    path = TIMELINES.to_json(tmp_path / "plan.json")
    read = read_plan(path)
    assert read == TIMELINES and read.best.time.timelines == TIME.timelines
    (turn,) = read.best.time.timelines
    assert isinstance(turn, Timeline) and all(isinstance(event, TimelineEvent) for event in turn.events)
    data = json.loads(path.read_text())
    for damaged in ([{"name": "x"}], [{**vars(turn), "events": [["f", "product", [], 0, 1, 0, "", "", "sideways"]]}]):
        data["evaluations"][0]["time"]["timelines"] = damaged
        path.write_text(json.dumps(data))
        with refusal("plan.json' is not a plan, or is damaged"):
            read_plan(path)


def test_picture_has_a_row_for_each_way_to_send_and_shades_waits(tmp_path):
    figure = read_plan(TIMELINES.to_json(tmp_path / "plan.json")).draw_timeline(tmp_path / "turn.svg")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["computing", "over data"]
    assert axes.get_title("left") == "Stacked, backward: one of 6 turns, 69.9 µs, of which it waits 59.9 µs (86%)"
    assert axes.get_xlim() == (0, pytest.approx(1e6 * TIME.timelines[0].seconds))
    assert axes.xaxis.get_major_formatter().format_data(20) == "20 µs"
    assert len(axes.patches) == 3 + 1  # events, and a wait
    assert [text.get_text() for text in axes.texts] == ["up dot(embed -> mlp)", "all-gather for up"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["products", "other computing", "the device waits"]
    assert b"of which it waits" in (tmp_path / "turn.svg").read_bytes()


def test_candidates_that_are_not_timed_have_no_picture(tmp_path):
    with pytest.raises(ValueError, match=r"there is no timeline of rank 3, which is compiled: .*; choose rank 1"):
        TIMELINES.draw_timeline(which=3)
    with pytest.raises(ValueError, match=r"no timeline of rank 1, .*this plan has none that is: on CPUs there are no"):
        dataclasses.replace(PLAN, evaluations=PLAN.evaluations[2:]).draw_timeline()
    with refusal("there is no rank 9; the plan has ranks 1 to 7"):
        TIMELINES.draw_timeline(which=9)


def test_page_has_the_timeline_or_says_why_not(tmp_path):
    text = TIMELINES.to_html(tmp_path / "plan.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == 2 and "there is no timeline" not in text
    text = dataclasses.replace(PLAN, evaluations=PLAN.evaluations[2:]).to_html(tmp_path / "plan.html").read_text()
    assert text.count("data:image/svg+xml;base64,") == 1 and "there is no timeline of rank 1" in text
