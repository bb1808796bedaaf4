"""`plan(..., measured=...)`: what the time of a step that was run says of the times of a plan."""

import dataclasses

import pytest

import axonym as nym
from axonym.planner import Candidate, Evaluation, Measurement, StepTime, read_plan
from axonym.planner._search._calibration import Calibration, find_factors
from tests.planner.test_plan_search import BATCH, DATA, LAYERS, PIXEL, STORED, X, make_model, make_shape, train_step


SMALLER = {**STORED, "mesh": {"data": 2}}


@pytest.fixture
def make_plan(cache):
    def make_plan(fn=train_step, model=None, x=X, devices="cpu:4", fixed=DATA, **options):
        args = make_model() if model is None else model, x
        return nym.planner.plan(fn, *args, devices=devices, fixed=fixed, cache=cache, **options)

    return make_plan


def list_times(plan):
    return {str(evaluation.candidate): evaluation.time for evaluation in plan.evaluations}


def find_stored(plan):
    return list_times(plan)["data 4; batch over data; stored with embed over data"]


def test_the_time_of_a_step_scales_all_times(make_plan, tmp_path):
    plain = make_plan()
    seconds = 1.25 * find_stored(plain).total
    calibrated = make_plan(measured=Measurement(seconds, **STORED))
    assert find_stored(calibrated).total == pytest.approx(seconds)
    before, after = list_times(plain), list_times(calibrated)
    assert [*before] == [*after] and len(before) == 3  # the ranks are the same
    for candidate, time in before.items():
        scaled = after[candidate]
        assert (scaled.compute, scaled.total) == pytest.approx((1.25 * time.compute, 1.25 * time.total))
        assert scaled.error == pytest.approx(0.5 * (2 / 3 if "stored with embed" in candidate else 1))
    assert calibrated.screened.time.total == pytest.approx(1.25 * plain.screened.time.total)
    note, errors = calibrated.notes
    assert "calibrated by data 4; batch over data; stored with embed over data on cpu:4: a step took 6.83 µs" in note
    assert note.endswith("within the predicted 5.47 µs ±50%; all is scaled by 1.25")
    assert "a third smaller for candidates that differ from the measured one in the size of one mesh axis" in errors
    assert errors in " ".join(str(calibrated).split()) and read_plan(calibrated.to_json(tmp_path / "p")) == calibrated
    assert make_plan().evaluations == plain.evaluations


def test_a_smaller_step_may_be_measured_on_fewer_devices(make_plan, monkeypatch):
    def step(model, x, *, times):
        for _ in range(times):
            model, _ = train_step.__wrapped__(model, x)
        return model

    settings = {"policies": {"full": True}, "options": {"times": (1,)}}
    plain = make_plan(step, fixed=STORED, **settings)
    monkeypatch.setattr("tests.planner.test_plan_search.LAYERS", LAYERS - 2)
    smaller, x = make_model(), make_shape(batch=BATCH // 2, pixel=PIXEL)
    monkeypatch.undo()
    predicted = make_plan(step, smaller, x, "cpu:2", SMALLER, **settings).best.time.total
    measured = Measurement(
        1.5 * predicted,
        **SMALLER,
        policy="full",
        options={"times": 1},
        sizes={"batch": BATCH // 2},
        args=(smaller, X),
        devices="cpu:2",
    )
    calibrated = make_plan(step, fixed=STORED, measured=measured, **settings)
    assert calibrated.best.time.total == pytest.approx(1.5 * plain.best.time.total)
    assert plain.best.time.total > 1.5 * predicted and calibrated.best.time.error == pytest.approx(0.5 * 2 / 3)
    assert any("batch of 32, policy full, times=1 on cpu:2: a step took" in note for note in calibrated.notes)


def test_parts_of_a_step_are_scaled_apart(make_plan):
    plain = make_plan()
    assert "stored" not in str(plain.best.candidate)  # which computes longer and waits less
    time = find_stored(plain)
    parts = {"wait data": 0.6 * time.waiting[("data",)], "compute": 2 * time.compute, "wait for the host": 0.0}
    calibrated = make_plan(measured=Measurement(parts, **STORED))
    for candidate, scaled in list_times(calibrated).items():
        time = list_times(plain)[candidate]
        assert scaled.compute == pytest.approx(2 * time.compute)
        assert scaled.waiting == pytest.approx({("data",): 0.6 * time.waiting[("data",)]})
    assert "stored" in str(calibrated.best.candidate)
    note = calibrated.notes[0]
    assert "compute took 3.54 µs instead of the predicted 1.77 µs, and is scaled by 2; wait data took 2.22 µs" in note
    assert (
        "; wait for the host is too short to tell a factor; what is sent over other mesh axes is scaled by 0.6" in note
    )


MESH = {"data": 4, "model": 2}
CANDIDATE = Candidate(MESH, {"mlp": ("model",)}, {"mlp": ("model",)})
TIME = StepTime(
    1.0, 0.2, {("data",): 0.1, ("model",): 0.2, ("data", "model"): 0.1}, {("data",): 0.4}, 0.05, "cycles", 0.15
)


def scale(parts, time=TIME, candidate=CANDIDATE, predicted=TIME):
    """Returns a time as it is scaled by measured parts, and the note on these."""
    predicted = Evaluation(CANDIDATE, "timed", True, {}, {}, predicted)
    factors, texts = find_factors(predicted, parts)
    calibration = Calibration(predicted, None, factors, ())  # pyright: ignore[reportArgumentType]
    return calibration.scale(Evaluation(candidate, "timed", True, {}, {}, time)).time, "; ".join(texts)


@pytest.mark.parametrize(
    ("computing", "waits", "sending"),
    [(1.0, 0.05, 0.5), (1.0, 0.1, 1.0), (1.0, 0.3, 1.4), (1.5, 0.12, 1.2), (1.5, 0.3, 1.8), (0.8, 0.1, 0.84)],
)
def test_the_measured_step_takes_what_was_measured(computing, waits, sending):
    """Also where what is sent has more or less room beside computing than predicted."""
    parts = {"wait data": waits, "wait model": 0.3, "wait for the host": 0.1, "attention": 0.15, "compute": computing}
    time, _ = scale(parts)
    assert (time.compute, time.attention, time.host) == pytest.approx((computing, 0.15, 0.1))
    assert time.waiting[("data",)] == pytest.approx(waits) and time.waiting[("model",)] == pytest.approx(0.3)
    assert time.hidden[("data",)] == pytest.approx(0.5 * sending - waits)
    # Of mesh axes that nothing was measured of, the mean.
    assert time.waiting[("data", "model")] == pytest.approx(0.1 * (0.5 * sending + 0.2 * 1.5) / 0.7)


def test_a_part_that_was_not_measured_is_as_predicted():
    time, note = scale({"wait": 0.9})
    assert (time.compute, time.attention) == (TIME.compute, TIME.attention)
    assert sum(time.waiting.values()) + time.host == pytest.approx(0.9) and note.endswith("the rest is as predicted")
    time, note = scale({"compute": 1.8})  # with attention, and with as much room for what is sent
    assert (time.compute, time.attention) == pytest.approx((1.5, 0.3)) and time.waiting == TIME.waiting


def test_attention_that_is_not_predicted_apart_is_computing():
    whole = StepTime(1.2, 0.0, {}, {}, 0.0, "cycles", 0.15)
    time, note = scale({"compute": 1.5, "attention": 0.3}, predicted=whole)
    assert (time.compute, time.attention) == pytest.approx((1.5, 0.3))
    assert note == "compute took 1.80 s instead of the predicted 1.20 s, and is scaled by 1.5"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, 0.1),
        ({"mesh": {"data": 64, "model": 2}, "sizes": {"batch": 4}}, 0.1),
        ({"mesh": {"data": 64, "model": 4}}, 0.15),
        ({"compute": {"mlp": ("data",)}}, 0.15),
        ({"policy": "layers"}, 0.15),
        ({"options": {"microbatches": 2}}, 0.15),
    ],
)
def test_errors_are_smaller_for_candidates_like_the_measured_one(changes, error):
    candidate = dataclasses.replace(CANDIDATE, **changes)
    time, _ = scale({"step": 2.0}, candidate=candidate)
    assert time.error == pytest.approx(error) and time.total == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seconds": 60.0}, ValueError,
         r"`measured` has 60.00 s for 'step' where 5\.47 µs are predicted for data 4; batch .*; one from 0\.5 to 3 is "
         "plausible, so see whether these are the seconds of one step, without compiling it, .* policy and sizes$"),
        ({"seconds": {"compute": 1e-7}}, ValueError, "a factor of 0.057; .* policy and sizes, or leave out 'compute'$"),
        ({"seconds": {"attention": 1e-6}}, ValueError, "for 'attention' where 0 s are predicted .* a factor of inf"),
        ({"seconds": {"wait dat": 1e-6}}, ValueError, r"'wait dat', which is no part of a step; .*'wait data'\?$"),
        ({"seconds": {"computing": 1e-6}}, ValueError, "there are compute, attention, wait, wait data, wait for the"),
        ({"seconds": {}}, ValueError, "`measured` has no seconds; give those of a step, or of its parts"),
        ({"seconds": -1.0}, ValueError, "`measured` has -1.0 seconds of 'step'; they are above 0"),
        ({"seconds": "2 s"}, TypeError, "`measured` has '2 s' as the seconds of 'step'; give a number, or one for"),
        ({"devices": "v5e:2x4"}, ValueError, "`measured` is of 'v5e', but the plan is for 'cpu', of which it says"),
        ({"devices": "cpu:2"}, ValueError, "the measured mesh {'data': 4} has 4 devices, but there are 2"),
        ({"compute": {"bach": "data"}}, ValueError, "`measured` has the axis 'bach', which no argument has.*'batch'"),
        ({"compute": {"batch": "date"}}, ValueError, "`measured` has 'batch' over 'date', which is no mesh axis"),
        ({"mesh": {4: 4}}, TypeError, "`measured` has the mesh {4: 4}; names of mesh axes are strings"),
        ({"compute": ["batch"]}, TypeError, r"`measured` has \['batch'\] as its compute; give a mapping from names"),
        ({"policy": "full"}, ValueError, "`measured` has the policy 'full'; `policies` has none"),
        ({"parameters": {"pixel": "data", "embed": "data"}}, RuntimeError,
         r"the measured candidate \(data 4; batch over data; .* on 'cpu:4'\) cannot be compiled: "),
    ],
)  # fmt: skip
def test_wrong_measurements_are_said(make_plan, changes, error, message):
    with pytest.raises(error, match=message):
        make_plan(measured=Measurement(**{"seconds": 6e-6, **STORED, **changes}))
    with pytest.raises(TypeError, match=r"`measured` is a `Measurement`, which has .*, not a float"):
        make_plan(measured=6e-6)
