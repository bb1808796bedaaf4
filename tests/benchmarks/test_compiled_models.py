"""What is counted in programs compiled for TPUs, and the table; compiling them takes libtpu and minutes."""

from pathlib import Path

import pytest

from axonym.planner._program._hlo_program import HloProgram
from benchmarks import compiled_models
from benchmarks.compiled_models import choose_mesh, format_table
from benchmarks.compiled_steps import count_collectives, replace_table
from benchmarks.performance.models import MODELS
from tests.benchmarks.test_compiled_steps import PROGRAM


def test_collectives_of_loops_count_as_often_as_they_run():
    counts = count_collectives(HloProgram(PROGRAM), devices=4)
    assert counts == {"all-gather": (3, 3 * 6 * 4), "reduce-scatter": (3, 3 * 6 * 4)}


def test_each_axis_of_a_model_is_divisible_by_its_mesh_axis():
    for name, model in MODELS.items():
        sizes = compiled_models.choose_sizes(model.sizes)
        mesh, compute = choose_mesh(sizes)
        for axis, mesh_axis in {**compute, "embed": "data"}.items():
            assert sizes.get(axis, 0) % mesh[mesh_axis] == 0, f"{name}: {axis}"
        assert len(mesh) == 2 + ("experts" in sizes)


def test_table_has_a_line_for_each_kind_of_collective():
    gather = {"all-gather": (4, 2**20)}
    explicit = {"all-gather": (5, 2**19), "all-to-all": (1, 2**10)}
    counts = {"by hand": gather, "Axonym, Auto": gather, "Axonym, Explicit": explicit}
    rows = format_table({"Some": counts}).splitlines()[-2:]
    assert rows[0] == "| Some | all-gather | 4 | 1.000 MiB | 4 | 1.000 MiB | 1.000 | 5 | 0.500 MiB | 0.500 |"
    assert rows[1] == "|  | all-to-all | 0 | 0.000 MiB | 0 | 0.000 MiB | - | 1 | 0.001 MiB | - |"


def test_documentation_has_the_place_of_the_table_of_models():
    page = (Path(__file__).parents[2] / "docs" / "compiled-steps.md").read_text()
    before, after = page.split("<!-- collectives -->")[0], page.split("<!-- end of collectives -->")[1]
    expected = f"{before}<!-- collectives -->\n\nnew\n\n<!-- end of collectives -->{after}"
    assert replace_table(page, "new", "collectives") == expected


def test_missing_libtpu_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AXONYM_LIBTPU", raising=False)
    with pytest.raises(SystemExit, match="`make tpu`"):
        compiled_models.main(["--only", "GPT-2"])
