"""Splash attention compiled for TPUs that are described and not there: the kernel is used, and on shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from axonym.planner._compiler._compiler_process import make_environment

from ..hlo import Program


LIBTPU = os.environ.get("AXONYM_LIBTPU", "")  # a folder that holds it, which `make tpu` fills


@pytest.mark.parametrize(("axis_types", "sharded"), [("auto", "heads"), ("explicit", "pos")])
def test_auto_uses_the_kernel_for_tpus_on_shards(axis_types: str, sharded: str, tmp_path: Path):
    if not LIBTPU:
        pytest.skip("This needs libtpu, which only Linux on x86-64 has: `make tpu` installs it.")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            Path(__file__).with_name("splash_program.py"),
            axis_types,
            sharded,
            tmp_path / "hlo",
        ],
        env=make_environment("tpu", tmp_path),  # compiled as users compile it
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "hlo").read_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3  # forward, gradient of the query, of key and value
    # The gradients of keys are sums over the devices that hold queries; nothing else is sent.
    kinds = {collective.kind for collective in Program(text).collectives()}
    assert kinds == (set() if sharded == "heads" else {"all-reduce"})
