"""The benchmarks of what names cost run, compare within rounds, and write what they find."""

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks.performance import __main__ as driver, contenders, measure, page, results
from benchmarks.performance.measure import Row, Spread


ROOT = Path(__file__).parents[2]


def a_row(what: str = "`exp`", own: float = 1.1, bar: float | None = 1.25, **others: float) -> Row:
    samples = {"JAX": [2.0, 4.0], "Axonym": [2.0 * own, 4.0 * own]}
    samples |= {who: [2.0 * ratio, 4.0 * ratio] for who, ratio in others.items()}
    return measure.row(what, "us", "`jnp`", bar, samples)


def some_results(device: str = "cpu", python: str = "3.13.0", **groups: list[Row]) -> results.Results:
    return results.Results(
        device=device,
        python=python,
        smoke=False,
        machine={"processor": "Some CPU", "cores": 2, "memory_gib": 7.5, "system": "Linux 6.1"},
        versions={"axonym": "0.1.0", "jax": "0.12.0"},
        missing=[],
        groups={name: results.Group(rows, ["cpu", "cpu"], "2026-01-02", "abc123") for name, rows in groups.items()},
    )


def test_ratios_are_of_figures_of_the_same_round():
    row = measure.row("what", "us", "jnp", 1.5, {"JAX": [1.0, 10.0, 100.0], "Axonym": [2.0, 30.0, 100.0]})
    assert row.taken == 10.0
    assert row.ratios == {"Axonym": Spread.of([2.0, 3.0, 1.0])}
    assert row.missed
    assert not measure.row("what", "bytes", "jnp", 1.0, {"JAX": [0.0], "Axonym": [0.0]}).missed
    assert not measure.row("what", "bytes", "jnp", 1.0, {"JAX": [1000.0], "Axonym": [1004.0]}).missed
    assert measure.row("what", "bytes", "jnp", 1.0, {"JAX": [1000.0], "Axonym": [1006.0]}).missed
    with pytest.raises(ValueError, match="longer"):
        measure.row("what", "us", "jnp", None, {"JAX": [1.0, 2.0], "Axonym": [2.0]})


def test_results_are_read_as_they_were_written(tmp_path: Path):
    found = some_results(dispatch=[a_row(Haliax=7.0), a_row(bar=None)])
    path = found.write(tmp_path, driver.GROUPS, keep=False)
    assert path.name == "cpu-py3.13-jax0.12.0.json"
    assert results.read(path) == found
    assert path.read_text().count('\n{"what"') == 2  # a row in each line, for diffs
    imports = some_results(imports=[a_row()])
    imports.write(tmp_path, driver.GROUPS, keep=True)
    assert list(results.read(path).groups) == ["dispatch", "imports"]
    imports.write(tmp_path, driver.GROUPS, keep=False)
    assert list(results.read(path).groups) == ["imports"]
    other = dataclasses.replace(found, versions={**found.versions, "numpy": "1"})
    other.write(tmp_path, driver.GROUPS, keep=True)
    assert list(results.read(path).groups) == ["dispatch"]


def test_the_page_has_a_table_for_each_group_of_each_file(tmp_path: Path):
    rows = [a_row(Haliax=7.0, Equinox=2.0), a_row("a `|` b", own=1.5, Haliax=12.0), a_row("counted", bar=None)]
    for device, python in (("gpu", "3.13.1"), ("cpu", "3.9.2")):
        some_results(device, python, dispatch=rows, imports=rows[:1]).write(tmp_path, driver.GROUPS, keep=False)
    text = page.page(results.read_all(tmp_path))
    assert text.count("### Calls of compiled functions\n") == text.count("### Imports\n") == 2
    section = text[text.index("## CPU, Python 3.9, JAX 0.12.0") : text.index("## GPU, Python 3.13, JAX 0.12.0")]
    assert "Some CPU, 2 cores, 7.5 GiB, Linux 6.1; Python 3.9.2, axonym 0.1.0, jax 0.12.0." in section
    assert "3 of 4 rows have a bar; 2 of these are within it." in section
    assert '`make bench ARGS="--only dispatch"` at abc123, 2026-01-02, on 2 x cpu, against `jnp`.\n' in section
    assert "| what | bar | Axonym | Haliax | Equinox | the reference takes, us |\n" in section
    assert "| a `\\|` b | 1.25 | 1.50 **over** | 12.0 |  | 3.00 |\n| counted |  | 1.10 |  |  | 3.00 |\n" in section


def test_every_group_has_a_module_and_a_title():
    folder = ROOT / "benchmarks" / "performance"
    groups = [*driver.GROUPS, *driver.ACCELERATOR]
    assert groups == list(page.TITLES)
    assert all((folder / f"{name}.py").exists() for name in groups)


def test_the_documentation_shows_the_results_in_this_checkout():
    found = results.read_all(ROOT / "benchmarks" / "results")
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page.page(found)
    targets = re.findall(r"`make ([a-z-]+)", (ROOT / "docs" / "benchmarks.md").read_text())
    makefile = (ROOT / "Makefile").read_text()
    assert targets and all(f"\n{target}:" in makefile for target in targets)


def test_a_contender_that_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(contenders, "haliax", None)
    monkeypatch.setattr(contenders, "_reason", "AttributeError: no such thing")
    monkeypatch.setattr(driver, "run", lambda *args: results.Group([a_row()], ["cpu"], "2026-01-02", ""))
    written = tmp_path / "page.md"
    assert driver.main(["--only", "dispatch", "--results", str(tmp_path), "--page", str(written)]) == 0
    reason = "`import haliax` fails (AttributeError: no such thing)"
    sentence = f"Haliax is left out: {reason}; the extra `bench` brings it."
    assert sentence in capsys.readouterr().out
    assert sentence in written.read_text()
    assert not {"haliax", "marin-haliax"} & contenders.versions().keys()


@pytest.mark.thorough
def test_a_smoke_run_of_a_group_measures_it_in_a_process_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert driver.main(["--smoke", "--only", "dispatch", "--results", str(tmp_path)]) == 0
    assert re.search(r"^dispatch: \d rows in \d+ s$", capfd.readouterr().out, re.MULTILINE)
    (path,) = tmp_path.iterdir()
    found = results.read(path)
    assert found.groups["dispatch"].devices == ["cpu"]
    assert all(row.ratios["Axonym"].median > 0 for row in found.groups["dispatch"].rows)
    assert found.machine["cores"] > 0 < found.machine["memory_gib"]
    assert found.smoke
    assert re.fullmatch(r"[0-9a-f]{7,}\+?|", found.groups["dispatch"].commit)


def test_a_group_of_another_device_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        driver.main(["--only", "accelerator"])
    assert "on a cpu there is no group accelerator, only " in capsys.readouterr().err
