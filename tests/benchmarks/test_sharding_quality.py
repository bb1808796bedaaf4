"""The quality that the sharding rules must have on seven models and five meshes, and the benchmark that measures it."""

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


@pytest.mark.parametrize("strategy", quality.AXONYM)
def test_jax_accepts_every_spec_and_none_is_better_than_the_optimum(cells: list[quality.Cell], strategy: str):
    assert [cell for cell in cells if cell.planned[strategy].invalid] == []
    assert all(cell.planned[strategy].bytes_per_device >= cell.best >= cell.ideal for cell in cells)


@pytest.mark.parametrize("strategy", ["helper", "helper(1024)", "auto", "roles"])
def test_the_geometric_mean_is_at_most_five_percent_above_the_ideal(cells: list[quality.Cell], strategy: str):
    assert quality.summary(cells, strategy).geometric_mean <= 1.05


def test_the_automatic_rule_is_the_optimum_except_for_tiny_arrays(cells: list[quality.Cell]):
    for cell in cells:
        assert cell.planned["auto"].bytes_per_device <= cell.best + bytes_below(math.prod(cell.mesh), cell)
    assert quality.summary(cells, "auto").equal_to_best >= 33
    assert quality.summary(cells, "auto").within_one_percent == 35


def test_the_helper_is_the_optimum_except_for_small_arrays_that_it_is_told_to_leave(cells: list[quality.Cell]):
    assert quality.summary(cells, "helper").equal_to_best == 35
    for cell in cells:
        assert cell.planned["helper(1024)"].bytes_per_device <= cell.best + bytes_below(1024, cell)


def test_a_limit_of_memory_is_held(cells: list[quality.Cell]):
    for cell in cells:
        limit = quality.memory_limit(MODELS[cell.model](), cell.mesh)
        assert cell.planned["memory"].bytes_per_device <= limit
        assert limit in (cell.best, int(cell.ideal * 1.05))


def test_an_array_whose_spec_jax_refuses_is_counted_as_whole():
    mesh = quality.abstract_mesh((2, 4, 1, 1, 1))
    tree = [jax.ShapeDtypeStruct((8, 6), jnp.float32)] * 5
    refused = {"indivisible": P(None, "fsdp"), "twice": P("dp", "dp"), "unknown": P("x"), "long": P("dp", None, None)}
    specs = [P(("dp", "fsdp")), *refused.values()]
    assert quality.judged(tree, specs, mesh) == quality.Planned(bytes_per_device=24 + 4 * 192, invalid=4)


def test_the_benchmark_runs_without_eformer_and_writes_what_it_prints(
    cells: list[quality.Cell],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    measured = {(cell.model, cell.mesh): cell for cell in cells}
    monkeypatch.setattr(quality, "measured", lambda *key, theirs: measured[key])
    monkeypatch.setitem(sys.modules, "eformer.escale", None)
    quality.main(["--no-collectives", "--json", str(tmp_path / "figures.json")])
    printed = capsys.readouterr().out
    assert quality.shown_cells(cells) in printed
    assert "ef helper" not in printed
    assert quality.shown_summary(cells, {}).splitlines()[1].split() == ["best", "1.016", "1.77", "35/35", "35/35", "0"]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures["cells"]) == 35
    assert figures["summary"]["auto"]["equal_to_best"] == 34
    assert math.isclose(figures["cells"][20]["ratios"]["auto"], cells[20].ratio("auto"))
    assert figures["milliseconds_for_723_arrays"].keys() == quality.AXONYM.keys()
    assert all(one["cold"] > 0 < one["warm"] for one in figures["milliseconds_for_723_arrays"].values())
