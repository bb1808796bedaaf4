"""Splash attention compiled for TPUs that are described and not there: the kernel is used, and on shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from axonym.planner._compiler._compiler_process import make_environment

from ..hlo import Program


LIBTPU = os.environ.get("AXONYM_LIBTPU", "")  # a folder that holds it, which `make tpu` fills


PROGRAMS = {"auto-heads": set(), "explicit-pos": {"all-reduce"}}
"""What is sent, by the type of the mesh axes and the axis that is sharded: gradients of keys are sums over queries."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of programs for TPUs, which a process of its own has compiled."""
    if not LIBTPU:
        pytest.skip("This needs libtpu, which only Linux on x86-64 has: `make tpu` installs it.")
    path = tmp_path_factory.mktemp("programs")
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("splash_program.py"), path, *PROGRAMS],
        env=make_environment("tpu", path),  # compiled as users compile it
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("program", PROGRAMS)
def test_auto_uses_the_kernel_for_tpus_on_shards(program: str, folder: Path):
    text = (folder / program).read_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3  # forward, gradient of the query, of key and value
    assert {collective.kind for collective in Program(text).collectives()} == PROGRAMS[program]
