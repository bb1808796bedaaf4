"""The benchmarks of what names cost run, compare within rounds, and write what they find."""

import dataclasses
import gc
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.performance import __main__ as driver, contenders, measure, page, results
from benchmarks.performance.measure import Effort, Row, Spread


ROOT = Path(__file__).parents[2]


def a_row(what: str = "`exp`", own: float = 1.1, bar: float | None = 1.25, **others: float) -> Row:
    samples = {"JAX": [2.0, 4.0], "Axonym": [2.0 * own, 4.0 * own]}
    samples |= {who: [2.0 * ratio, 4.0 * ratio] for who, ratio in others.items()}
    return measure.row(what, "us", "`jnp`", bar, samples)


def some_results(device: str = "cpu", python: str = "3.11.7", **groups: list[Row]) -> results.Results:
    return results.Results(
        device=device,
        python=python,
        smoke=False,
        machine={"processor": "Some CPU", "cores": 2, "memory_gib": 7.5, "system": "Linux 6.1"},
        versions={"axonym": "0.1.0", "jax": "0.12.0"},
        missing=[],
        groups={name: results.Group(rows, ["cpu", "cpu"], "2026-01-02", "abc123") for name, rows in groups.items()},
    )


def test_a_spread_is_the_median_and_the_tenths():
    assert Spread.of([float(one) for one in range(11)]) == Spread(5.0, 1.0, 9.0)
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)


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


def test_contenders_take_turns_and_a_slow_row_ends_early():
    calls = {"JAX": 0, "Axonym": 0}

    def call(who: str) -> Any:
        calls[who] += 1

    contend = {who: lambda who=who: call(who) for who in calls}
    taken = measure.seconds(contend, Effort(rounds=9, turn=0.0))
    assert [len(one) for one in taken.values()] == [9, 9]
    assert calls == {"JAX": 7 + 9 * 2, "Axonym": 7 + 9 * 2}
    taken = measure.seconds(contend, Effort(rounds=9, turn=0.0, limit=0.0))
    assert [len(one) for one in taken.values()] == [measure.LEAST, measure.LEAST]


def test_results_are_read_as_they_were_written(tmp_path: Path):
    found = some_results(dispatch=[a_row(Haliax=7.0), a_row(bar=None)])
    path = found.write(tmp_path, driver.GROUPS, keep=False)
    assert path.name == "cpu-py3.11-jax0.12.0.json"
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
    others = [dataclasses.replace(rows[0], what=what, against=what) for what in ("one", "two")]
    for device, python in (("gpu", "3.13.1"), ("cpu", "3.13.1"), ("cpu", "3.9.2")):
        some_results(device, python, dispatch=rows, imports=others).write(tmp_path, driver.GROUPS, keep=False)
    text = page.page(results.read_all(tmp_path))
    assert text == page.page(results.read_all(tmp_path))
    titles = [line for line in text.splitlines() if line.startswith("## ") and "JAX" in line]
    assert titles == [f"## {one}, JAX 0.12.0" for one in ("CPU, Python 3.9", "CPU, Python 3.13", "GPU, Python 3.13")]
    assert text.count("### Calls of compiled functions\n") == text.count("### Imports\n") == 3
    section = text[text.index(titles[0]) :]
    assert "Some CPU, 2 cores, 7.5 GiB, Linux 6.1; Python 3.9.2, axonym 0.1.0, jax 0.12.0." in section
    assert "4 of 5 rows have a bar; 3 of these are within it." in section
    dispatch = '`make bench ARGS="--only dispatch"` at abc123, 2026-01-02, on 2 x cpu, against `jnp`.\n'
    assert section.count(dispatch) == text.count(dispatch) == 3
    assert [text.count(page.NOTES[name]) for name in ("dispatch", "imports", "files")] == [1, 1, 0]
    head, rule = section.split("| `exp` |")[0].splitlines()[-2:]
    assert head == "| what | bar | Axonym | Haliax | Equinox | the reference takes, us |"
    assert rule == "|---|---:|---:|---:|---:|---:|"
    assert "| `exp` | 1.25 | 1.10 | 7.00 | 2.00 | 3.00 |\n" in section
    assert "| a `\\|` b | 1.25 | 1.50 **over** | 12.0 |  | 3.00 |\n" in section
    assert "| counted |  | 1.10 |  |  | 3.00 |\n" in section
    assert "| what | against | bar | Axonym | Haliax | Equinox | the reference takes, us |\n|---|---|---:|" in section
    assert "| two | two | 1.25 | 1.10 | 7.00 | 2.00 | 3.00 |\n" in section


def test_counts_of_models_are_a_table_with_a_line_for_each_model():
    def count(unit: str, model: str, ratio: float) -> Row:
        samples = {"JAX": [1000.0], "Axonym": [1000.0 * ratio]}
        return measure.row(f"{unit}, forward, {model}", unit, f"{model} by hand", 1.02, samples)

    rows = [a_row(), measure.row("steps, forward", "steps", "`jnp`", None, {"JAX": [5.0], "Axonym": [5.0]})]
    rows += [count("bytes", "GPT-2", 1.0), count("flops", "GPT-2", 1.5), count("bytes", "ViT", 0.5)]
    text = page.page([some_results(programs=rows)])
    assert "| `exp` | 1.25 | 1.10 | 3.00 us |\n| steps, forward |  | 1.00 | 5.00 |\n\n" in text
    assert text.endswith(
        "| of the model by hand, bar 1.02 | bytes, forward | flops, forward |\n|---|---:|---:|\n"
        "| GPT-2 | 1.00 of 1,000 | 1.50 **over** of 1,000 |\n| ViT | 0.50 of 1,000 |  |\n"
    )


def test_the_page_begins_with_the_rows_closest_to_their_bars():
    rows = [a_row("far", own=0.1, bar=1.0), a_row("close", own=1.2, bar=1.25, Haliax=7.0, Other=3.0), a_row(bar=None)]
    over = [a_row("within"), a_row("above", own=2.0, bar=1.9)]
    found = [some_results(dispatch=over), some_results(python="3.13.1", dispatch=rows, imports=over, memory=rows[2:])]
    text = page.page(found)
    short = text[text.index("## In short") : text.index("## How to read the tables")]
    assert short.splitlines()[4:] == [
        "| what | against | bar | Axonym | Haliax |",
        "|---|---|---:|---:|---:|",
        "| close | `jnp` | 1.25 | 1.20 | 7.00 |",
        "| above | `jnp` | 1.9 | 2.00 **over** |  |",
        "",
    ]
    assert "No GPU was measured so far" in text
    with_gpu = page.page([*found, some_results("gpu", dispatch=rows)])
    assert short in with_gpu
    assert "No GPU" not in with_gpu
    assert "A smoke run" in page.page([dataclasses.replace(found[0], smoke=True)])
    assert "A smoke run" not in text


def test_figures_of_time_have_a_spread_even_if_it_rounds_away():
    row = measure.row("what", "us", "jnp", None, {"JAX": [1.0, 1.0], "Axonym": [0.061, 0.062]})
    assert "| what |  | 0.06 (0.06-0.06) |" in page.page([some_results(dispatch=[row])])


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


def test_a_group_that_fails_is_said_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    real = subprocess.run

    def fake(command: list[str], **kwargs: Any) -> "subprocess.CompletedProcess[str]":
        if command[0] == "git":
            return real(command, **kwargs)
        options = dict(zip(command[3::2], command[4::2], strict=False))
        if options["--group"] == "dispatch":
            return subprocess.CompletedProcess(command, 3)
        own = 1.5 if options["--group"] == "imports" else 1.1
        rows = [a_row(options["--group"], own=own, Haliax=7.0).as_json()]
        Path(options["--into"]).write_text(json.dumps({"rows": rows, "devices": ["cpu"]}))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", fake)
    only = ["--only", "dispatch", "elementwise", "imports", "--results", str(tmp_path)]
    assert driver.main(only) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^dispatch: FAILED with exit status 3 after \d+ s$", printed, re.MULTILINE)
    assert re.search(r"^elementwise \.\.\.\nelementwise: 1 rows in \d+ s$", printed, re.MULTILINE)
    assert "  elementwise: 1.1 x (bar 1.25), Haliax 7; reference 3 us\n" in printed
    assert "1 of 2 rows with a bar miss it\n  imports: 1.5 x (bar 1.25, MISSED), Haliax 7; reference 3 us\n" in printed
    assert printed.endswith("failed: dispatch\n")
    (path,) = tmp_path.iterdir()
    assert list(results.read(path).groups) == ["elementwise", "imports"]
    assert driver.main([*only[:1], "elementwise"]) == 0
    assert capsys.readouterr().out.endswith(
        "wrote nothing; `--results FOLDER` and `--page FILE` say where to\nall 1 groups ran\n"
    )


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


def test_nothing_is_written_if_nothing_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver, "run", lambda *args: None)
    written = tmp_path / "page.md"
    assert driver.main(["--device", "gpu", "--results", str(tmp_path), "--page", str(written)]) == 1
    assert capsys.readouterr().out.endswith("accelerator ...\nwrote nothing\nfailed: accelerator\n")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("options", "group", "device"),
    [(["accelerator"], "accelerator", "cpu"), (["dispatch", "--device", "gpu"], "dispatch", "gpu")],
)
def test_a_group_of_another_device_is_refused(
    options: list[str], group: str, device: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        driver.main(["--only", *options])
    assert f"on a {device} there is no group {group}, only " in capsys.readouterr().err


def test_a_turn_awaits_results_now_and_then_without_garbage_collection(
    monkeypatch: pytest.MonkeyPatch,
):
    events: list[Any] = []
    monkeypatch.setattr(measure.jax, "block_until_ready", lambda result: events.append("awaited"))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(len(events)))
    taken = measure._turn(lambda: events.append(gc.isenabled()), 2 * measure.ROW)
    in_a_row = [False] * measure.ROW + ["awaited"]
    assert events == [True, "awaited", *in_a_row, *in_a_row]
    assert taken == 1.0  # each call takes one tick of this clock, and waiting is not timed
    assert gc.isenabled()


def test_contenders_take_their_turns_in_changing_order():
    order: list[str] = []
    measure.seconds({who: lambda who=who: order.append(who) for who in "abc"}, Effort(rounds=12, turn=0.0, smoke=True))
    rounds = [tuple(order[at : at + 6 : 2]) for at in range(0, len(order), 6)]
    assert len(rounds) == 12
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 3
