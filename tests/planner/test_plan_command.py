"""`python -m axonym.planner`: what it prints and writes, its exit codes, and what it tells of errors."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import axonym as nym
from axonym.planner import read_plan
from axonym.planner.__main__ import run_command


ROOT = Path(__file__).parents[2]
STEP = "planned_steps:make_step"
FIXED = "mesh.AXIS=SIZE, compute.NAME=MESH_AXES, parameters.NAME=MESH_AXES and microbatches.NAME=NUMBER"
POLICIES = "full, nested, offload, recompute, save_all, none, layers"
STEPS = """
import gc
import time

import jax

import axonym as nym

number = 1


def make_shape(**sizes):
    return nym.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), "float32"), tuple(sizes))


def loss(weight, x, *, scale=1.0):
    return nym.mean(scale * nym.dot(x, weight, axis="embed")).array


def make_step():
    return loss, (make_shape(embed=64, mlp=32), make_shape(batch=64, embed=64)), {"options": {"scale": (1.0, 2.0)}}


def make_large():
    return loss, (make_shape(embed=2**23, mlp=2**21), make_shape(batch=64, embed=2**23))


def make_nothing():
    return loss


def make_list():
    return loss, (1, 2), [3]


def make_misspelt():
    return *make_step()[:2], {"polices": {}}


def make_plain():
    return make_step()[:2]


def make_wrong():
    return loss, (make_shape(vocab=64, mlp=32), make_shape(batch=64, embed=64))


def fail():
    raise KeyError("no data")


def lose_interrupt():
    def interrupt(phase, info):
        gc.callbacks.remove(interrupt)
        raise KeyboardInterrupt

    gc.callbacks.append(interrupt)
    gc.collect()
    time.sleep(60)
"""


@pytest.fixture
def steps(tmp_path, monkeypatch):
    (tmp_path / "planned_steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "planned_steps"
    sys.modules.pop("planned_steps", None)


def test_command_prints_the_plan_and_writes_it(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    command = [sys.executable, "-W", "error", "-m", "axonym.planner", "steps:make_step", "--devices", "cpu:8"]
    command += ["--fixed", "mesh.data=8", "compute.batch=data", "parameters.embed=", "--top", "1", "--out", "found"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = read_plan(tmp_path / "found" / "plan.json")
    assert done.stdout.startswith(f"{plan}\nwrote ") and plan.top == 1
    assert plan.best.candidate.mesh == {"data": 8} and plan.compute == {"batch": ("data",)}
    assert plan.options["scale"] in (1.0, 2.0)
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["plan.html", "plan.json", "plan.svg"]


def test_exit_code_says_that_nothing_fits(steps, tmp_path, capsys):
    file = tmp_path / "plan.json"
    arguments = [f"{steps}:make_large", "--devices", "cpu:8", "--budget", "1e-9", "--json", str(file)]
    whole = [f"{part}.{name}=" for part in ("compute", "parameters") for name in ("embed", "mlp")]
    assert run_command([*arguments, "--fixed", "mesh.data=8", *whole]) == 1
    found = capsys.readouterr().out
    assert "nothing fits; nearest is rank 1, data 8: its arguments alone lack 60 TiB on a device" in found
    assert json.loads(file.read_text())["evaluations"][0]["fits"] is False


@pytest.mark.parametrize("number", [1, 2])
def test_ctrl_c_has_an_exit_code_and_what_is_known(steps, number, cache, tmp_path, monkeypatch, capsys):
    compile_for, numbers = nym.planner.compile_for, itertools.count(1)

    def compile_or_stop(*args, **kwargs):
        if next(numbers) == number:
            raise KeyboardInterrupt
        return compile_for(*args, **kwargs)

    monkeypatch.setattr("axonym.planner._search._candidate_compiler.compile_for", compile_or_stop)
    command = [f"{steps}:make_plain", "--devices", "cpu:8", "--fixed", "mesh.data=8", "compute.batch=data"]
    assert run_command([*command, "--cache", str(cache), "--json", str(tmp_path / "plan.json")]) == 130
    plan = read_plan(tmp_path / "plan.json")
    text = " ".join(capsys.readouterr().out.split())
    assert plan.stopped_by == "interrupt" and plan.fits is (number == 2) and "interrupted: candidates that" in text
    assert ("none was compiled before the search was interrupted" in text) is (number == 1)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        ("steps", [], "the step is given as MODULE:FUNCTION, such as train:make_step, not as 'steps'"),
        ("planned_steps.py:make_step", [], "such as train:make_step, not as 'planned_steps.py:"),
        ("missing_module:make", [], "No module named 'missing_module'"),
        ("planned_steps:number", [], "there is no function 'number' in module 'planned_steps'"),
        ("planned_steps:make_nothing", [], "returns the step and a tuple of its arguments, or these"),
        ("planned_steps:make_list", [], "is a dictionary of arguments of `plan`, not [3]"),
        ("planned_steps:make_misspelt", [], "'polices', which `plan` does not take; did you mean"),
        (STEP, ["--json", "no/x.json"], "no folder 'no' for the plan 'x.json'; make it"),
        (STEP, ["--json", "."], "'.' is a folder; name it 'plan.json'"),
        (STEP, ["--out", __file__], "File exists"),
        (STEP, ["--out", ""], "--out is an empty path; give the name of a folder"),
        (STEP, ["--cache", ""], "`cache` is an empty path; give the name of a"),
        (STEP, ["--devices", "cpu:99999999999999"], "has 99,999,999,999,999 devices; a machine has"),
        (STEP, ["--fixed", "mesh.data=x"], f"--fixed takes {FIXED}, not 'mesh.data=x'"),
        (STEP, ["--policy", "layers"], "no argument has a `Stacked`"),
        (STEP, ["--policy", "layrs"], "not 'layrs'; did you mean 'layers'?"),
        (STEP, ["--policy", "auto", "layers"], f"any of {POLICIES}, not 'auto' beside others\n"),
        (STEP, ["--policy", "outo"], "not 'outo'; did you mean 'auto'?"),
        (STEP, ["--sizes", "batch:64"], "not 'batch:64'"),
    ],
)
def test_errors_are_a_line_and_no_traceback(steps, step, options, message, capsys):
    assert run_command([step, "--devices", "cpu:8", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("axonym.planner: ") and message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("fail", """    raise KeyError("no data")\nKeyError: 'no data'\n"""),
        ("make_wrong", """, in loss\n    return nym.mean(scale * nym.dot(x, weight, axis="embed")).array\n"""),
    ],
)
def test_errors_of_the_step_have_the_frames_of_its_author(steps, maker, message, capsys):
    assert run_command([f"{steps}:{maker}", "--devices", "cpu:8"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"axonym.planner: {steps}:{maker}, or the step that it returns, has an error\nTraceback (")
    assert message in error and error.count("planned_steps.py") == error.count('  File "') == 1


def test_progress_is_a_line_for_each_candidate_if_asked(steps, tmp_path, capsys):
    command = [f"{steps}:make_plain", "--devices", "cpu:8", "--fixed", "mesh.data=8", "compute.batch=data"]
    command += ["--cache", str(tmp_path / "programs")]
    assert run_command([*command, "--progress"]) == 0
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d+ s: 1 of \d+: .*; batch over data.*", first)
    assert re.fullmatch(r"\d+ s: 2 of \d+, best .*, about \d+ s left to compile: .*; batch over data.*", second)
    assert any((tmp_path / "programs").iterdir())
    assert run_command(command) == 0
    assert capsys.readouterr().err == ""


def test_a_file_of_hardware_names_devices(steps, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("axonym.planner._machine._hardware._registered", {})
    path = tmp_path / "mine.toml"
    path.write_text("[tiny_cpu]\nbase = 'cpu'\nhbm_available = 1_000_000\n")
    fixed = ["--fixed", "mesh.data=8", "compute.batch=data", "parameters.embed=", "parameters.mlp="]
    command = [f"{steps}:make_plain", "--devices", "tiny_cpu:8", *fixed, "--no-cache"]
    assert run_command([*command, "--hardware", str(path)]) == 0
    assert capsys.readouterr().out.startswith("tiny_cpu:8, 8 devices with 976.6 KiB each: data 8 is best")
    assert run_command([*command, "--hardware", str(tmp_path / "no.toml")]) == 2
    assert "axonym.planner: there is no file of hardware" in capsys.readouterr().err


def test_ctrl_c_is_not_lost_in_the_garbage_collector(steps, interrupts, capsys):
    assert run_command([f"{steps}:lose_interrupt", "--devices", "cpu:8"]) == 130
    assert capsys.readouterr().err == "axonym.planner: stopped\n"


def test_sizes_of_the_data_are_tried(steps, capsys):
    command = [f"{steps}:make_plain", "--devices", "cpu:8", "--fixed", "mesh.data=8", "--budget", "0.000001"]
    assert run_command([*command, "--sizes", "batch=64,128"]) == 3  # since nothing is compiled
    printed = capsys.readouterr().out
    assert "batch of 64" in printed and "batch of 128" in printed and "Best of each size" not in printed
    run_command([*command, "--sizes", "batch=64,128", "--serve", "batch"])
    assert "Best of each size" in capsys.readouterr().out


def test_help_says_what_the_function_returns(capsys):
    with pytest.raises(SystemExit, match="0"):
        run_command(["--help"])
    text = capsys.readouterr().out
    assert "FUNCTION takes no arguments. It returns the step and a tuple of its arguments" in text
    assert "mesh.model=4, compute.mlp=model" in " ".join(text.split())
