"""Splash attention compiled for TPUs that are described and not there: the kernel is used, and on shards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from axonym.planner._compiler._compiler_process import make_environment

from ..hlo import Program


LIBTPU = os.environ.get("AXONYM_LIBTPU", "")  # a folder that holds it, which `make tpu` fills


PROGRAMS = {
    "auto-heads-all_gather": (3, set()),
    "explicit-pos-all_gather": (3, {"all-reduce"}),
    "explicit-pos-ring": (6, {"collective-permute", "all-gather"}),
}
"""The kernels and what is sent, by the type of the mesh axes, the axis that is sharded and the context.

There are kernels for the result, for the gradient of the query, and for those of key and value. In a ring of two
devices there are these for the first step and for the second. The arguments have whole keys, whose gradients are sums
over the queries of devices, or gathered after a ring.
"""


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
    kernels, collectives = PROGRAMS[program]
    assert text.count('custom_call_target="tpu_custom_call"') == kernels
    assert {collective.kind for collective in Program(text).collectives()} == collectives
