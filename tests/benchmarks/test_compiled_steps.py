"""What is read from programs compiled for TPUs and GPUs, and the table; compiling takes a plugin and minutes."""

from pathlib import Path

import pytest

from axonym.planner._program._hlo_program import HloProgram
from benchmarks import compiled_steps
from benchmarks.compiled_steps import count_collectives, format_table, read_program, replace_table


# As libtpu writes a loop over three layers: without its trip count, with cycles for each fusion, and with a
# reduce-scatter as the fusion of an all-reduce. Each layer gathers 8 floats and scatters into 2.
PROGRAM = """
HloModule jit_train_step, is_scheduled=true

%all-reduce-scatter.1 (param.1: f32[8]) -> f32[2] {
  %param.1 = f32[8]{0} parameter(0)
  %all-reduce.1 = f32[8]{0} all-reduce(%param.1), channel_id=1, to_apply=%add
  ROOT %dynamic-slice.1 = f32[2]{0} dynamic-slice(%all-reduce.1), dynamic_slice_sizes={2}
}

%body.1 (param.2: (s32[], f32[2])) -> (s32[], f32[2]) {
  %param.2 = (s32[], f32[2]{0}) parameter(0)
  %get-tuple-element.2 = f32[2]{0} get-tuple-element(%param.2), index=1
  %all-gather.1 = f32[8]{0} all-gather(%get-tuple-element.2), channel_id=2, dimensions={0}
  %fusion.1 = f32[8]{0} fusion(%all-gather.1), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"100"}
  %fusion.2 = f32[2]{0} fusion(%fusion.1), kind=kCustom, calls=%all-reduce-scatter.1
  %get-tuple-element.5 = s32[] get-tuple-element(%param.2), index=0
  %constant.2 = s32[]{:T(128)} constant(1)
  %add.1 = s32[] add(%get-tuple-element.5, %constant.2)
  ROOT %tuple.1 = (s32[], f32[2]{0}) tuple(%add.1, %fusion.2)
}

%condition.1 (param.3: (s32[], f32[2])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  %param.3 = (s32[], f32[2]{0}) parameter(0)
  %get-tuple-element.3 = s32[] get-tuple-element(%param.3), index=0
  ROOT %lt.1 = pred[] compare(%get-tuple-element.3, %constant.1), direction=LT
}

ENTRY %main.1 (param.4: (s32[], f32[2])) -> f32[2] {
  %param.4 = (s32[], f32[2]{0}) parameter(0)
  %while.1 = (s32[], f32[2]{0}) while(%param.4), condition=%condition.1, body=%body.1
  %get-tuple-element.4 = f32[2]{0} get-tuple-element(%while.1), index=1
  ROOT %fusion.3 = f32[2]{0} fusion(%get-tuple-element.4), calls=%fused, backend_config={"estimated_cycles":"7"}
}
"""


def test_bytes_and_cycles_of_loops_count_as_often_as_they_run():
    assert read_program(PROGRAM, devices=4) == {
        "all-gather": 3 * 6 * 4,  # a device sends its part three times
        "reduce-scatter": 3 * 6 * 4,
        "sent bytes": 3 * 12 * 4,
        "cycles": 3 * 100 + 7,
    }
    counts = count_collectives(HloProgram(PROGRAM), devices=4)
    assert counts == {"all-gather": (3, 3 * 6 * 4), "reduce-scatter": (3, 3 * 6 * 4)}


def test_table_has_all_contenders_and_their_ratios():
    figures = {
        "by hand": {"all-gather": 2**30, "cycles": 2e6},
        "Axonym, Auto": {"all-gather": 2**30, "cycles": 2e6},
        "Axonym, Explicit": {"all-gather": 2**29, "cycles": 3e6},
    }
    rows = format_table({"8b-fsdp": figures}).splitlines()[-2:]
    title = "8B, FSDP 256, v5e:16x16"
    assert rows[0] == f"| {title} | all-gather | 1.000 GiB | 1.000 GiB | 1.000 | 0.500 GiB | 0.500 |"
    assert rows[1] == "|  | cycles | 2.0 M | 2.0 M | 1.000 | 3.0 M | 1.500 |"


@pytest.mark.parametrize("name", ["table", "collectives"])
def test_documentation_has_the_place_of_the_table(name: str):
    page = (Path(__file__).parents[2] / "docs" / "compiled-steps.md").read_text()
    before, after = page.split(f"<!-- {name} -->")[0], page.split(f"<!-- end of {name} -->")[1]
    expected = f"{before}<!-- {name} -->\n\nnew\n\n<!-- end of {name} -->{after}"
    assert replace_table(page, "new", name) == expected


@pytest.mark.parametrize(("case", "command"), [("8b-fsdp", "make tpu"), ("8b-h100-fsdp", "make gpu-plugins")])
def test_missing_compiler_is_reported(case: str, command: str, monkeypatch: pytest.MonkeyPatch):
    for variable in ("AXONYM_LIBTPU", "AXONYM_GPU_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SystemExit, match=f"`{command}`"):
        compiled_steps.main(["--only", case])
