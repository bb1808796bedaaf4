"""The quality that the sharding rules must have on seven models and five meshes, and the benchmark that measures it."""

import itertools
import json
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import sharding_quality as quality
from benchmarks.models import MODELS


@pytest.fixture(scope="module")
def cells() -> list[quality.Cell]:
    """All cells of the table, planned once."""
    return [quality.measured(model, sizes) for sizes in quality.MESHES for model in MODELS]


def bytes_below(elements: int, cell: quality.Cell) -> int:
    """The bytes of a model's arrays of fewer elements."""
    return sum(quality.nbytes(leaf) for leaf in jax.tree.leaves(MODELS[cell.model]()) if leaf.size < elements)


def test_there_is_a_cell_for_each_model_on_each_mesh(cells: list[quality.Cell]):
    assert [(cell.mesh, cell.model) for cell in cells] == list(itertools.product(quality.MESHES, MODELS))
    assert len(cells) == 35


@pytest.mark.parametrize("strategy", quality.AXONYM)
def test_jax_accepts_every_spec(cells: list[quality.Cell], strategy: str):
    assert [cell for cell in cells if cell.planned[strategy].invalid] == []


@pytest.mark.parametrize("strategy", quality.AXONYM)
def test_no_strategy_is_better_than_the_optimum(cells: list[quality.Cell], strategy: str):
    assert all(cell.planned[strategy].bytes_per_device >= cell.best >= cell.ideal for cell in cells)


@pytest.mark.parametrize("strategy", ["helper", "helper(1024)", "auto", "roles"])
def test_the_geometric_mean_is_at_most_five_percent_above_the_ideal(cells: list[quality.Cell], strategy: str):
    assert quality.summary(cells, strategy).geometric_mean <= 1.05


def test_the_automatic_rule_is_the_optimum_except_for_tiny_arrays(cells: list[quality.Cell]):
    for cell in cells:
        assert cell.planned["auto"].bytes_per_device <= cell.best + bytes_below(math.prod(cell.mesh), cell)
    assert quality.summary(cells, "auto").equal_to_best >= 33
    assert quality.summary(cells, "auto").within_one_percent == 35


def test_the_helper_is_the_optimum_in_every_cell(cells: list[quality.Cell]):
    assert quality.summary(cells, "helper").equal_to_best == 35


def test_the_helper_that_leaves_small_arrays_is_the_optimum_elsewhere(cells: list[quality.Cell]):
    for cell in cells:
        assert cell.planned["helper(1024)"].bytes_per_device <= cell.best + bytes_below(1024, cell)


def test_a_limit_of_memory_is_held(cells: list[quality.Cell]):
    for cell in cells:
        limit = quality.memory_limit(MODELS[cell.model](), cell.mesh)
        assert cell.planned["memory"].bytes_per_device <= limit
        assert limit in (cell.best, int(cell.ideal * 1.05))


def test_the_optimum_tries_all_ways():
    assert quality.most_parts((50257, 768), (2, 16, 8)) == 256
    assert quality.most_parts((6, 10), (4, 2, 5)) == 10  # 4 divides neither
    assert quality.most_parts((), (2, 2)) == 1
    assert quality.most_parts((7, 9), (2, 4)) == 1


def test_an_array_whose_spec_jax_refuses_is_counted_as_whole():
    mesh = quality.abstract_mesh((2, 4, 1, 1, 1))
    tree = [jax.ShapeDtypeStruct((8, 6), jnp.float32)] * 5
    refused = {"indivisible": P(None, "fsdp"), "twice": P("dp", "dp"), "unknown": P("x"), "long": P("dp", None, None)}
    specs = [P(("dp", "fsdp")), *refused.values()]
    assert quality.judged(tree, specs, mesh) == quality.Planned(bytes_per_device=24 + 4 * 192, invalid=4)


def test_tables_have_a_row_for_each_cell_and_each_strategy(cells: list[quality.Cell]):
    table = quality.shown_cells(cells).splitlines()
    assert len(table) == 36
    assert table[0].split() == ["mesh", "model", "ideal", "best", *quality.AXONYM]
    assert table[21].split()[:4] == ["2,16,1,8,1", "dlrm-criteo", "64.43M", "1.77"]
    summary = quality.shown_summary(cells, {"auto": (12.5, 3.25)}).splitlines()
    assert [line.split()[0] for line in summary] == ["strategy", "best", *quality.AXONYM]
    assert summary[1].split() == ["best", "1.016", "1.77", "35/35", "35/35", "0"]
    assert summary[4].split() == ["auto", "1.016", "1.77", "34/35", "35/35", "0", "12.5", "3.2"]


def test_the_benchmark_runs_without_eformer_and_writes_what_it_prints(
    cells: list[quality.Cell],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "eformer.escale", None)
    quality.main(["--no-collectives", "--json", str(tmp_path / "figures.json")])
    printed = capsys.readouterr().out
    assert quality.shown_cells(cells) in printed
    assert "ef helper" not in printed
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["cells"]) == 35
    assert figures["summary"]["auto"]["equal_to_best"] == 34
    assert math.isclose(figures["cells"][20]["ratios"]["auto"], cells[20].ratio("auto"))
    assert figures["milliseconds_for_723_arrays"].keys() == quality.AXONYM.keys()
    assert all(one["cold"] > 0 < one["warm"] for one in figures["milliseconds_for_723_arrays"].values())
