"""The program for several hosts, as two processes of this machine that are stopped, and the files that launch it."""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.processes import free_port

from .conftest import EXAMPLES


FOLDER = EXAMPLES / "multi_host"


@pytest.fixture
def train() -> Any:
    return importlib.import_module("multi_host.train")


def test_two_processes_stop_at_a_signal_and_one_goes_on(train: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    paths = os.pathsep.join([str(EXAMPLES.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PORT": str(free_port()), "PYTHON": sys.executable, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    options = ["--out", str(tmp_path), "--save-every", "5", "--width", "16"]
    command = ["bash", str(FOLDER / "local.sh"), "2", "--steps", "100000", *options]
    output, is_stopped = "", False
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        for line in launcher.stdout or ():
            output += line
            if line.startswith("step 5:") and not is_stopped:
                launcher.send_signal(signal.SIGTERM)
                is_stopped = True
    assert launcher.returncode == 75, output
    assert output.count("mesh (data: 8, model: 1) of 2 processes") == 1
    stopped = re.search(r"stopped at step (\d+) of 100000", output)
    assert stopped, output

    step = int(stopped[1])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with jax.set_mesh(None):
            more = ["--single", "--devices", "8", "--mesh", "data:2,model:4", "--steps", str(step + 1)]
            assert train.main([*options, *more]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)
    output = capsys.readouterr().out
    assert f"goes on from step {step}\n" in output and re.search(rf"step {step + 1}: loss \d", output)


def test_launchers_give_options_that_the_program_has(train: Any):
    for name in ("local.sh", "slurm.sbatch", "tpu.sh"):
        assert subprocess.run(["bash", "-n", FOLDER / name]).returncode == 0, name
    for name in ("slurm.sbatch", "tpu.sh", "jobset.yaml"):
        commands = re.findall(r"python3?[^\w\n]+train\.py(.*)", (FOLDER / name).read_text())
        options = [option for command in commands for option in re.findall(r"--[\w-]+", command)]
        assert options, f"{name} does not say where results are."
        for option in options:
            train.parse_args([option, "1"])


def test_jobset_starts_as_many_pods_as_processes():
    yaml = pytest.importorskip("yaml", reason="it comes with mkdocs")
    jobset = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    (workers,) = jobset["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert int(values["JAX_NUM_PROCESSES"]) == job["completions"] == job["parallelism"]
    port = container["ports"][0]["containerPort"]
    name = jobset["metadata"]["name"]
    assert values["JAX_COORDINATOR_ADDRESS"] == f"{name}-{workers['name']}-0-0.{name}:{port}"
    assert job["backoffLimit"] == 0, "A pod that restarts alone cannot join the others."
