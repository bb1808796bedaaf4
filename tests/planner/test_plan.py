import dataclasses
import json
import re
import sys

import jax
import matplotlib.image
import numpy as np
import pytest
from matplotlib.text import Text

import axonym as nym
from axonym.planner import Plan, described_devices, get_hardware, read_plan
from tests.planner.plans import (
    BEST,
    BROKEN,
    EMPTY,
    GIB,
    KEPT,
    MIB,
    PLAN,
    REPLICATED,
    SCREENED,
    SPLIT,
    TOO_LARGE,
    WHOLE,
    WIDE,
    change_time,
    choose,
    make_plan,
)
from tests.refusals import refusal


def cut_table(plan, title):
    """Returns the cells of one of the tables of a plan."""
    lines = str(plan).split(f"{title}\n")[1].split("\n\n")[0].splitlines()
    return [re.split(r"  +", line.strip()) for line in lines[1:]]


def join_lines(plan):
    return " ".join(str(plan).split())


def test_plan_is_that_of_its_best_evaluation():
    assert PLAN.best is BEST and PLAN.fits and PLAN.shortfall == 0 and PLAN.nearest is BEST
    assert (PLAN.policy, PLAN.options) == ("recompute", {"microbatches": 1})
    assert (PLAN.compute, PLAN.parameters) == (BEST.candidate.compute, BEST.candidate.parameters)
    assert dict(PLAN.mesh(described_devices("v5e:16x16")).shape) == {"data": 64, "model": 4}
    assert PLAN.get_evaluation(4) is WIDE and PLAN.get_evaluation(WIDE) is WIDE
    assert hash(PLAN) == hash(dataclasses.replace(PLAN)) and PLAN != TOO_LARGE


def test_speed_and_utilization_are_those_of_the_whole_machine():
    seconds = 1.5 + 0.2 + 0.125 + 0.25
    assert PLAN.devices == 256
    assert PLAN.tokens_per_second() == 2**20 / seconds
    assert PLAN.mfu() == pytest.approx(8.03e9 * 6 * 2**20 / (seconds * 256 * 197e12))
    assert PLAN.mfu(2) == pytest.approx(PLAN.mfu() * seconds / 2.45)
    topology = described_devices("tpu7x:2x2x4", slices=2)[0].topology  # with two devices on a chip
    assert dataclasses.replace(PLAN, topology=topology).devices == 64 == len(described_devices("tpu7x:2x2x4", slices=2))


def test_plan_runs_a_step_as_it_is(mesh):
    parameters = {"batch": ("data",), "embed": ("model",)}
    plan = make_plan(choose(BEST, mesh=dict(mesh.shape), compute={"batch": ("data",)}, parameters=parameters))
    chosen = plan.mesh(axis_types=mesh.axis_types)
    assert chosen == mesh
    weight, x = nym.ones({"embed": 8, "mlp": 4}), nym.ones({"batch": 8, "embed": 8})
    with jax.set_mesh(chosen), nym.axis_mapping(plan.compute):
        step = nym.fsdp(lambda w, x: (w * 2, nym.dot(x, w, axis="embed")), plan.parameters, plan.compute)
        stored, y = step(weight, x)
        assert nym.shard(x).sharding.spec[0] == "data"
    assert stored.sharding.spec[0] == "model" and y.sharding.spec[0] == "data"
    np.testing.assert_array_equal(y.array, np.full((8, 4), 8))


def test_table_has_ranks_with_speed_memory_and_verdict():
    text = str(PLAN)
    assert text == repr(PLAN) == PLAN.table(10) and max(map(len, text.splitlines())) <= 120
    title, _, heads, _, *rows = text.splitlines()
    assert title == "v5e:16x16, 256 devices with 15.8 GiB each: data 64 x model 4 is best, 2.08 s ±15% a step"
    assert re.split(r"  +", heads) == [
        "rank",
        *"mesh,step time,tokens/s,a device,MFU,bytes a device,fits,figures".split(","),
    ]
    cells = ["1", "data 64 x model 4", "2.08 s ±15%", "505,338", "1,974", "48.3%", "9.1 GiB", "yes", "timed"]
    assert re.split(r"  +", rows[0].strip()) == cells
    sharding = "batch over data; heads, mlp, vocab over model; stored with embed over data"
    assert rows[1].strip() == f"{sharding}; policy recompute, microbatches=1"
    for verdict in ("no, 14.9 GiB over   compiled", "no, 74 GiB over     screened", "cannot be compiled  compiled"):
        assert verdict in text
    assert "the compiler crashed" in text


def test_tables_of_parts_add_up_to_the_step_and_its_bytes():
    assert cut_table(PLAN, "Bytes on a device")[:2] == [
        ["rank", "temporaries", "optimizer state", "parameters", "all", "of the memory"],
        ["1", "8.8 GiB", "240 MiB", "120 MiB", "9.1 GiB", "58.0%"],
    ]
    assert cut_table(PLAN, "Seconds of a step")[:3] == [
        ["rank", "compute", "attention", "wait data", "wait model", "step", "between"],
        ["1", "1.50 s", "200.0 ms", "125.0 ms", "250.0 ms", "2.08 s", "1.76 s to 2.39 s"],
        ["2", "1.50 s", "200.0 ms", "750.0 ms", "-", "2.45 s", "2.08 s to 2.82 s"],
    ]
    assert cut_table(PLAN, "Sent by a device in a step")[:3] == [
        ["rank", "over", "bytes", "waited for", "hidden"],
        ["1", "data", "5.2 GiB", "125.0 ms", "250.0 ms"],
        ["model", "10.5 GiB", "250.0 ms", "0 s"],
    ]


def test_table_says_where_figures_are_from_and_what_was_left_out():
    text = join_lines(PLAN)
    assert "timed: memory and bytes sent are the compiler's, computing is from XLA's estimates of cycles" in text
    assert "compiled: memory and bytes sent are the compiler's; times are ours, from operations at the speed of" in text
    screened = "all figures are ours; memory is that of the arguments alone, computing is from operations at the"
    assert f"{screened} speed of those that are timed" in text
    assert f"{screened} peak of the device" in join_lines(make_plan(SCREENED))
    assert "Looked at 134 candidates: 2 timed, 3 compiled, 1 screened, 1 could not be compiled, 127 left out" in text
    assert "127 left out (96: axis 'heads' of size 8" in text
    assert "Compiled with jax 0.12.0, libtpu 0.0.50.1; xla_tpu_enable_latency_hiding_scheduler=True" in text
    assert text.endswith("Attention is priced at half of the peak.")


def test_table_shows_as_many_candidates_as_the_limit():
    text = PLAN.table(2)
    assert "… 5 more; `.table(limit=None)` shows all" in text and "data 16 x model 16" not in text
    assert "screened:" not in text
    with refusal("`limit` is the number of candidates to show, or None for all; it was -1"):
        PLAN.table(-1)


def test_wide_tables_stay_within_a_line():
    memory = {f"group of activations {at}": (20 - at) * MIB for at in range(12)}
    mesh = {f"a long mesh axis {at}": 4 for at in range(8)}
    wide = change_time(choose(BEST, mesh=mesh), waiting={(axis,): 0.0625 for axis in mesh})
    plan = make_plan(dataclasses.replace(wide, memory=memory), BEST)
    for text in (str(plan), str(plan.diff(1, 2)), str(plan.why("policy"))):
        assert max(map(len, text.splitlines())) <= 120
    heads, cells = cut_table(plan, "Bytes on a device")[:2]
    assert heads[-3:] == ["others", "all", "of the memory"] and cells[-2] == "174 MiB"


def test_plan_that_does_not_fit_says_what_is_nearest():
    assert not TOO_LARGE.fits and TOO_LARGE.nearest is KEPT
    assert TOO_LARGE.shortfall == (120 + 240 + 31000) * MIB - get_hardware("v5e").hbm_available
    nearest = "nothing fits; nearest is rank 1, data 64 x model 4, policy nothing, microbatches=1: it lacks 14.9 GiB"
    assert nearest in join_lines(TOO_LARGE)
    assert "its arguments alone lack 74 GiB on a device" in str(make_plan(REPLICATED))


@pytest.mark.parametrize(
    ("evaluations", "stopped_by", "has_verdict", "text"),
    [
        ((KEPT, REPLICATED), "", True, "nothing fits; nearest is rank 1, data 64 x model 4, policy nothing"),
        ((REPLICATED,), "budget", True, "nothing fits; nearest is rank 1, data 256"),  # no arguments are smaller
        ((BEST, KEPT), "budget", True, "data 64 x model 4 is best"),
        (
            *((KEPT, SCREENED), "budget", False),
            "not known, since the 1 candidate compiled before the budget was used up does not fit; nearest is rank 1",
        ),
        ((SCREENED,), "budget", False, "none was compiled before the budget was used up; give a longer `budget`"),
        ((SCREENED,), "interrupt", False, "not known, since none was compiled before the search was interrupted"),
        ((SCREENED, BROKEN), "error", False, "not known, since none could be compiled: the compiler crashed"),
    ],
)
def test_nothing_fits_is_said_only_if_it_is_known(evaluations, stopped_by, has_verdict, text):
    plan = make_plan(*evaluations, stopped_by=stopped_by)
    assert plan.has_verdict is has_verdict and text in join_lines(plan)
    assert has_verdict or "nothing fits" not in str(plan)


def test_step_times_within_the_error_between_candidates_are_ties():
    assert PLAN.ties == (1,) and "ties" not in str(PLAN)
    near, far = change_time(WHOLE, compute=0.96), change_time(WHOLE, compute=1.0)  # 1.91 s and 1.95 s
    best, compiled = change_time(BEST, compute=1.25), change_time(WIDE, compute=0.45)  # 1.825 s ±15%, 1.9625 s ±30%
    plan = make_plan(best, near, far, compiled, change_time(KEPT, compute=1.2), SCREENED)
    assert plan.ties == (1, 2, 4)
    assert "Ranks 1, 2 and 4 are ties: their step times differ by less than the error between candidates" in str(plan)
    assert "Ranks 1 to 3 and 5 are ties" in str(make_plan(best, near, near, far, near))
    assert make_plan(KEPT, KEPT).ties == ()


def test_plans_that_are_only_screened_have_ties_and_the_first_is_nearest():
    small = dataclasses.replace(SCREENED, memory={"parameters": MIB})
    plan = make_plan(SCREENED, small, UNLIKELY, change_time(SCREENED, compute=2.0), REPLICATED)
    assert plan.ties == (1, 2) and plan.nearest is SCREENED and plan.shortfall == 0 and not plan.has_verdict
    assert "Ranks 1 and 2 are ties" in str(plan)
    plan = make_plan(UNLIKELY, small)
    assert plan.ties == () and plan.nearest is small
    assert make_plan(SCREENED, small, BROKEN).ties == ()


UNLIKELY = dataclasses.replace(SCREENED, saved_bytes=20 * GIB)


def test_what_is_saved_for_the_backward_pass_counts_for_what_is_screened():
    plan = make_plan(BEST, SCREENED, UNLIKELY, KEPT)
    assert [plan.is_likely_to_fit(rank) for rank in (1, 2, 3, 4)] == [True, True, False, False]
    rows = [re.split("  +", line) for line in str(plan).splitlines()]
    assert [row[-2] for row in rows if row[-1] == "screened"] == ["arguments", "unlikely"]
    assert "unlikely: the arguments fit, but not beside what is estimated to be saved for the backward" in str(plan)
    legend = plan.draw().axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend][1:4] == [
        "compiled, does not fit",
        "screened (arguments), fits",
        "screened (arguments), unlikely to fit",
    ]


def test_plan_without_a_candidate_tells_the_reasons():
    assert not EMPTY.fits and "no candidate is left" in str(EMPTY) and "31: the same" in str(EMPTY)
    for use in (lambda: EMPTY.best, lambda: EMPTY.compute, EMPTY.mesh, lambda: EMPTY.why("data")):
        with refusal("the plan has no candidate; all were left out: 96: axis 'heads' of size 8"):
            use()
    plan = make_plan(BROKEN)
    assert not plan.fits and "no candidate can be compiled: the compiler crashed" in join_lines(plan)
    with refusal("there is nothing to draw: the plan has no candidate that can be compiled"):
        plan.draw()


def test_a_rank_is_a_number_of_the_plan():
    for which, kind in (("0", "str"), (1.0, "float"), (True, "bool")):
        with refusal(f"a candidate is chosen by its rank or as an `Evaluation`, not by a {kind}", TypeError):
            PLAN.diff(1, which)
    for rank in (0, 8):
        with refusal(f"there is no rank {rank}; the plan has ranks 1 to 7"):
            PLAN.mfu(rank)


def test_file_has_the_plan_as_it_was(tmp_path):
    path = PLAN.to_json(tmp_path / "plan.json")
    read = read_plan(path)
    assert read == PLAN and str(read) == str(PLAN) and isinstance(read, Plan)
    assert read.evaluations[0].time.waiting == {("data",): 0.125, ("model",): 0.25}
    assert [*read.evaluations[0].memory] == [*BEST.memory]
    assert json.loads(path.read_text()) == PLAN.to_dict()
    assert read_plan(EMPTY.to_json(path)) == EMPTY
    policy = jax.checkpoint_policies.dots_saveable  # which JSON does not have
    plan = make_plan(choose(BEST, options={"policy": policy, "n": None}))
    assert read_plan(plan.to_json(path)).options == {"policy": repr(policy), "n": None}


def test_file_of_an_earlier_version_is_read(tmp_path):
    path, fields = tmp_path / "plan.json", PLAN.to_dict()
    for name in ("samples", "stopped_by"):
        del fields[name]
    for evaluation in fields["evaluations"]:
        del evaluation["saved_bytes"]
    path.write_text(json.dumps(fields))
    assert read_plan(path) == PLAN


def damage(**changes):
    return json.dumps({**PLAN.to_dict(), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format": 2, "mesh": {}, "arrays": {}}',
        damage(seconds="12"),
        damage(stopped_by="weather"),
        damage(top=10**400),
        damage(seconds=10**400),
        damage(format={"x": 3}),
        "[" * 100_000,
        damage(evaluations=[{**PLAN.to_dict()["evaluations"][0], "stage": "guessed"}]),
        damage(evaluations=[{**PLAN.to_dict()["evaluations"][0], "sent": [[["data"], "much"]]}]),
    ],
)
def test_other_and_damaged_files_are_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with refusal("plan.json' is not a plan, or is damaged; write it again with `Plan.to_json`"):
        read_plan(path)


def test_files_of_another_version_and_missing_ones_are_errors(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(FileNotFoundError, match=r"there is no plan '.*plan\.json'; write one with `Plan.to_json`"):
        read_plan(path)
    path.write_text(damage(format=9))
    with refusal("has format 9, and this version of Axonym reads format 3; make the plan again"):
        read_plan(path)
    with refusal("the plan needs the name of a file", IsADirectoryError):
        PLAN.to_json(tmp_path)


def test_plan_for_devices_that_are_not_registered_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text(damage(topology={**PLAN.to_dict()["topology"], "hardware": "my_v5e"}))
    monkeypatch.setattr("axonym.planner._machine._hardware._registered", {})
    message = r"plan\.json' is for 'my_v5e', which is not known; register it first with `read_hardware` or `register_h"
    with pytest.raises(ValueError, match=message):
        read_plan(path)
    nym.planner.register_hardware(dataclasses.replace(get_hardware("v5e"), name="my_v5e"))
    assert "my_v5e:" in str(read_plan(path))


def test_picture_has_marks_bars_and_the_limit(tmp_path):
    figure = PLAN.draw(tmp_path / "plan.png")
    candidates, steps = figure.axes
    labels = [text.get_text() for text in candidates.get_legend().get_texts()]
    assert labels == [
        *("timed, fits", "compiled, fits", "compiled, does not fit", "screened (arguments), does not fit"),
        *("memory, 15.8 GiB", "best"),
    ]
    assert sum(len(marks.get_offsets()) for marks in candidates.collections) == 6 + 1
    assert candidates.lines[0].get_xdata()[0] == get_hardware("v5e").hbm_available / GIB
    widths = [bar.get_width() for bar in steps.patches]
    assert widths == pytest.approx([1.5, 0.2, 0.125, 0.25, 0.25, 1.5, 0.2, 0.75, 0.25, 1.6, 0.2, 0.5, 0.25, 0.25])
    assert [text.get_text() for text in steps.texts] == ["2.08 s", "2.45 s", "2.55 s"]
    assert matplotlib.image.imread(tmp_path / "plan.png").shape[1] > 1000
    assert len(PLAN.draw(ranks=1).axes[1].texts) == 1


def list_ticks(axis, values):
    formatter = axis.get_major_formatter()
    return [formatter(value, at) for at, value in enumerate(values)]


def test_ticks_of_pictures_have_the_unit_that_fits():
    candidates, steps = PLAN.draw().axes
    assert (candidates.get_xscale(), candidates.get_yscale()) == ("log", "linear")
    assert list_ticks(candidates.xaxis, [0.5, 1, 16, 2048]) == ["512 MiB", "1 GiB", "16 GiB", "2 TiB"]
    assert list_ticks(candidates.yaxis, [2.5]) == ["2.5 s"] and list_ticks(steps.xaxis, [0.5]) == ["0.5 s"]
    short, long, still = (
        change_time(evaluation, compute=seconds, attention=0.0, waiting={})
        for evaluation, seconds in ((BEST, 4e-4), (WHOLE, 2e-2), (BEST, 0.0))
    )
    candidates, steps = make_plan(short, long).draw().axes
    assert (candidates.get_xscale(), candidates.get_yscale()) == ("linear", "log")
    assert list_ticks(candidates.yaxis, [0.5, 1, 20]) == ["500 µs", "1 ms", "20 ms"]
    assert list_ticks(candidates.xaxis, [8]) == ["8 GiB"] and list_ticks(steps.xaxis, [5]) == ["5 ms"]
    assert make_plan(still).draw().axes[1].get_xlim() == (0, 1)


def test_ranks_are_around_their_marks_and_bars_say_what_differs():
    close = dataclasses.replace(WHOLE, memory=BEST.memory, time=BEST.time)
    candidates, _ = make_plan(BEST, close, SPLIT).draw().axes
    assert [text.get_text() for text in candidates.texts] == ["1", "2", "3"]
    assert candidates.texts[0].get_position() != candidates.texts[1].get_position()  # of marks at one place
    _, steps = make_plan(BEST, choose(BEST, parameters=BEST.candidate.compute)).draw().axes
    labels = [label.get_text().split("\n") for label in steps.get_yticklabels()]
    assert labels[0][-1] == "stored with embed over data" and labels[1] == ["2" + labels[0][0][1:], *labels[0][1:-1]]


@pytest.mark.parametrize("top", [3, 10])
def test_ranks_of_near_candidates_do_not_overlap(top):
    near = [
        dataclasses.replace(change_time(BEST, compute=1.5 + at % 3 / 50), memory={"all": 9 * GIB + at * 64 * MIB})
        for at in range(12)
    ]
    figure = make_plan(*near, KEPT, top=top).draw()
    figure.draw_without_rendering()
    candidates = figure.axes[0]
    boxes = [Text.get_window_extent(text) for text in candidates.texts]  # without the lines to the marks
    assert [text.get_text() for text in candidates.texts] == [str(rank + 1) for rank in range(top)]
    places = [place for marks in candidates.collections for place in marks.get_offsets()]
    marks = candidates.transData.transform(places)
    for at, box in enumerate(boxes):
        assert candidates.bbox.contains(box.x0, box.y0) and candidates.bbox.containsx(box.x1)
        assert not box.count_overlaps(boxes[:at])
        assert not any(box.contains(*mark) for mark in marks)


def test_pictures_are_the_same_each_time_and_need_a_format(tmp_path):
    first, second = (PLAN.draw(tmp_path / name) and (tmp_path / name).read_bytes() for name in ("1.svg", "2.svg"))
    assert first == second and b"What a step is spent on" in first
    with refusal("a picture ends in .svg, .png or .pdf, which says its format; the path is"):
        PLAN.draw(tmp_path / "plan")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*missing' for the picture 'plan.svg'; make it"):
        PLAN.draw(tmp_path / "missing" / "plan.svg")


def test_page_has_tables_and_the_picture_and_loads_nothing(tmp_path):
    text = PLAN.to_html(tmp_path / "plan.html", title="8B <on> v5e").read_text()
    assert "<h1>8B &lt;on&gt; v5e</h1>" in text and "data:image/svg+xml;base64," in text
    assert "48.3%" in text and "the compiler crashed" in text and not re.search(r"(src|href)=.http", text)
    assert PLAN._repr_html_() in text


def test_without_matplotlib_pictures_are_an_error_and_pages_have_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pictures of a plan need matplotlib.*`pip install axonym\[plan\]`"):
        PLAN.draw()
    text = PLAN.to_html(tmp_path / "plan.html").read_text()
    assert "need matplotlib" in text and "<img" not in text and "A plan for v5e:16x16" in text
