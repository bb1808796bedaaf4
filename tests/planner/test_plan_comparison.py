import dataclasses

import pytest

import axonym as nym
from axonym.planner import described_devices
from tests.planner.plans import (
    BEST,
    BROKEN,
    GIB,
    KEPT,
    MIB,
    PLAN,
    REPLICATED,
    SCREENED,
    TOO_LARGE,
    WHOLE,
    WIDE,
    change_time,
    choose,
    make_plan,
)
from tests.refusals import refusal


def list_choices(found):
    return [(one.choice, one.rank) for one in found.alternatives]


def test_each_other_choice_for_an_axis_has_its_best_candidate():
    found = PLAN.why("heads")
    assert (found.subject, found.choice) == ("heads", "over model")
    assert list_choices(found) == [("not sharded", 2)]
    assert found.alternatives[0].evaluation is WHOLE
    assert PLAN.why("embed").choice == "stored over data"
    assert list_choices(PLAN.why("embed")) == [("not sharded", 6)]
    assert list_choices(PLAN.why("batch")) == []


def test_alternatives_of_a_mesh_axis_are_its_sizes():
    assert list_choices(PLAN.why("data")) == [("256", 2), ("16", 4), ("128", 7)]
    assert list_choices(PLAN.why("model")) == [("1", 2), ("16", 4), ("2", 7)]
    assert list_choices(PLAN.why("data=16")) == [("16", 4)]
    assert list_choices(PLAN.why("data = 64")) == list_choices(PLAN.why("data"))


def test_a_request_for_the_choice_of_the_best_says_so():
    note = "is the choice of the best candidate itself"
    assert f"\ndata=64 {note}; here are the others.\n" in str(PLAN.why("data = 64"))
    assert f"batch=data {note}.\nNo candidate" in str(PLAN.why("batch=data"))
    assert note not in f"{PLAN.why('data')}{PLAN.why('data=16')}"


def test_other_policies_and_options_are_compared_with_the_sharding_of_the_best():
    screened = choose(SCREENED, policy="all")
    large, whole = dataclasses.replace(screened, fits=False), choose(WHOLE, policy="all")
    for evaluations, rank in (((whole, screened), 3), ((whole, large), 2), ((screened, whole), 2)):
        assert list_choices(make_plan(BEST, *evaluations).why("policy")) == [("all", rank)]


def test_alternatives_have_what_they_cost_and_why():
    wide = PLAN.why("data").alternatives[1]
    assert (wide.seconds, wide.bytes) == (WIDE.time.total - BEST.time.total, -1600 * MIB)
    assert wide.causes == (
        "waits 1.00 s longer over model",
        "computes 250.0 ms longer",
        "waits 62.5 ms less over data",
        "-1.6 GiB temporaries",
    )
    assert PLAN.why("data").alternatives[2].causes == ()
    text = str(PLAN.why("data"))
    assert text.startswith("data: 64 in the best candidate (data 64 x model 4, 2.08 s ±15%, 9.1 GiB a device, it fits)")
    assert "+1.19 s (+57%)" in text and "the compiler crashed" in text
    other = (
        "with batch over data; stored with embed over data; waits 625.0 ms longer over data; waits 250.0 ms less over"
    )
    assert f"{other} model; +3.3 GiB temporaries" in " ".join(text.split())


def test_what_was_only_screened_is_compared_with_the_screened_best():
    found = PLAN.why("embed")
    (whole,) = found.alternatives
    assert whole.evaluation is REPLICATED
    assert whole.seconds == REPLICATED.time.total - SCREENED.time.total
    assert whole.causes[:2] == ("waits 500.0 ms longer over data", "attention takes 200.0 ms longer")
    text = " ".join(str(found).split())
    assert "+800.0 ms (+57%)" in text
    known = "compared with what the screening says of the best: 1.40 s ±30% and 360 MiB of arguments."
    assert text.endswith(f"What was only screened is {known}")
    assert "screening" not in str(PLAN.why("data"))
    alone = dataclasses.replace(PLAN, screened=None)
    assert alone.why("embed").alternatives[0].seconds == REPLICATED.time.total - BEST.time.total


def test_what_is_not_known_to_fit_is_not_shown_as_better():
    text = " ".join(str(PLAN.why("policy")).split())  # KEPT is faster, and does not fit
    assert "1.72 s ±30% 30.6 GiB no, 14.9 GiB over compiled with policy nothing" in text and "computes" not in text
    fast = change_time(choose(SCREENED, policy="none"), compute=1.0)
    unlikely = dataclasses.replace(fast, saved_bytes=40 * GIB)
    row = "screened with policy none, microbatches=1"
    for screened, shown in (
        (fast, f"1.00 s ±30% not known 360 MiB arguments {row} Times of"),
        (unlikely, f"1.00 s ±30% 360 MiB unlikely {row}; saves about 40 GiB for the "),
    ):
        found = make_plan(BEST, screened).why("policy")
        text = " ".join(str(found).split())
        assert shown in text and found.to_dict()["alternatives"][0]["fits"] is None
        note = "not known: as screened it looks faster than the best, which only compiling it can tell"
        assert (note in text) is (screened is fast)
    assert "+600.0 ms (+43%)" in str(make_plan(BEST, change_time(unlikely, compute=2.0)).why("policy"))


STORED = choose(BEST, parameters={"mlp": ("data", "model"), "heads": ()})


def test_choices_stored_otherwise_than_computed_have_both():
    plan, stored = make_plan(BEST, STORED, WHOLE), ("over model, stored over data and model", 2)
    assert list_choices(plan.why("mlp")) == [stored, ("not sharded", 3)]
    assert list_choices(plan.why("heads")) == [("over model, stored whole", 2), ("not sharded", 3)]
    assert "stored with mlp over data and model; stored without batch, heads, vocab" in " ".join(str(plan).split())
    assert list_choices(plan.why("mlp=data and model")) == [stored]  # what is printed, or a mesh axis
    assert list_choices(plan.why("mlp=model")) == [stored, ("not sharded", 3)]  # as the best candidate has it
    assert list_choices(plan.why("mlp=not sharded")) == [("not sharded", 3)]
    assert list_choices(PLAN.why("embed=data")) == [("not sharded", 6)]


def test_why_says_if_there_is_nothing_else():
    assert "No candidate with another choice was evaluated." in str(PLAN.why("batch"))
    assert "a device, it cannot be compiled)" in str(make_plan(BROKEN).why("batch"))
    assert "it does not fit, 14.9 GiB over" in " ".join(str(TOO_LARGE.why("policy")).split())


def test_what_no_candidate_chooses_is_an_error():
    listing = r"; there are 'policy' and axes: 'batch', .*; mesh axes: 'data', 'model'; options: 'microbatches'"
    for axis, near in (("embd", r"; did you mean 'embed'\?"), ("modle", r"; did you mean 'model'\?"), ("q", "")):
        with pytest.raises(ValueError, match=f"no candidate shards or chooses '{axis}'{near}{listing}"):
            PLAN.why(axis)
    with refusal("no candidate with 'data=32' was evaluated; ask for 'data=64' or 'data=256' or 'data=16' or"):
        PLAN.why("data=32")
    for axis in ("embed=model", "embed="):
        with refusal("ask for 'embed=stored over data' or 'embed=not sharded'"):
            PLAN.why(axis)
    for axis in (3, nym.Axis("embed", 64)):
        message = r"`why` takes the name of an axis, .* not a (int|Axis); `diff\(1, 3\)` compares"
        with pytest.raises(TypeError, match=message):
            PLAN.why(axis)


def test_alternatives_are_data_as_well():
    found = PLAN.why("policy").to_dict()
    assert (found["subject"], found["choice"], len(found["alternatives"])) == ("policy", "recompute", 1)
    assert found["alternatives"][0]["rank"] == 5 and found["alternatives"][0]["fits"] is False
    assert "not sharded" in PLAN.why("heads").to_json() and "<table>" in PLAN.why("heads")._repr_html_()


def test_difference_has_every_part():
    found = PLAN.diff(1, 2)
    lines = {line[:17].strip(): line[20:] for line in str(found).splitlines()[4:]}
    assert lines["mesh"].split("  ")[0] == "data 64 x model 4" and lines["mesh"].endswith("differs")
    assert lines["heads"].split() == ["over", "model", "not", "sharded", "differs"]
    assert lines["embed"].split() == ["stored", "over", "data"] * 2
    assert lines["step time"].split() == ["2.08", "s", "2.45", "s", "+375.0", "ms", "(+18%)"]
    assert lines["wait model"].split() == ["250.0", "ms", "-", "-250.0", "ms", "(-100%)"]
    assert lines["bytes on a device"].split() == ["9.1", "GiB", "12.5", "GiB", "+3.3", "GiB", "(+36%)"]
    assert lines["over data"].split()[:2] == ["5.2", "GiB"]
    assert lines["compute"].split() == ["1.50", "s", "1.50", "s"]


def test_plans_are_compared_by_their_best():
    topology = described_devices("v5p:4x8x8")[0].topology
    other = dataclasses.replace(TOO_LARGE, topology=topology)
    found = PLAN.diff(other)
    assert found.labels == ("rank 1", "best of v5p:4x8x8") and found.second is KEPT
    assert found.to_dict()["machine"] == ["v5e:16x16", "v5p:4x8x8"]
    assert "machine" not in PLAN.diff(1, 2).to_dict()
    assert PLAN.diff(PLAN, PLAN).labels == ("best of v5e:16x16 (a)", "best of v5e:16x16 (b)")


def test_evaluations_of_elsewhere_are_called_by_their_candidate():
    found = TOO_LARGE.diff(1, dataclasses.replace(BROKEN, memory={"parameters": GIB}))
    assert found.labels[1] == str(BROKEN.candidate) and found.to_dict()["fits"][1] == "cannot be compiled"
    assert max(map(len, str(found).splitlines())) <= 120
