"""The train step of the example, compiled for TPUs that are described and not there: what it sends between them.

CPUs run an all-reduce and cut its result where TPUs have a reduce-scatter, so only a program for TPUs shows these.
"""

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest

from axonym.planner._compiler._compiler_process import make_environment

from ..hlo import Collective, Program


LIBTPU = os.environ.get("AXONYM_LIBTPU", "")  # a folder that holds it, which `make tpu` fills
# The matrices of one layer as each of the 4 x 2 devices keeps them (embed 512, 16 heads of 32, mlp 1536), then both
# tables. Vectors are not among them: XLA sums such small arrays whole.
LAYER = [(8, 32, 128)] * 3 + [(128, 8, 32)] + [(768, 128)] * 2 + [(128, 768)]
TABLES = [(128, 128)] * 2
GATHERED = [(1, 8, 32, 512)] * 3 + [(1, 512, 8, 32)] + [(1, 768, 512)] * 2 + [(1, 512, 768)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of programs for TPUs, which a process of its own has compiled."""
    if not LIBTPU:
        pytest.skip("This needs libtpu, which only Linux on x86-64 has: `make tpu` installs it.")
    path = tmp_path_factory.mktemp("programs")
    done = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).with_name("tpu_program.py"), path],
        env=make_environment("tpu", path),  # compiled as users compile it
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return path


def list_collectives(folder: Path, what: str, axis_types: str) -> list[Collective]:
    """Returns what a step sends between TPUs."""
    return Program((folder / f"{what}-{axis_types}").read_text()).collectives()


def shapes(collectives: list[Collective], kind: str, in_loop: bool) -> collections.Counter[tuple[int, ...]]:
    """Returns how often a kind gives an array of each shape."""
    chosen = [one for one in collectives if (one.kind, one.in_loop) == (kind, in_loop)]
    return collections.Counter(array.shape for one in chosen for array in one.results)


def check_gradients(found: list[Collective]) -> None:
    """Checks that each device gets the sum of its own part of each matrix's gradient, and none is summed whole."""
    assert shapes(found, "reduce-scatter", in_loop=True) == collections.Counter(LAYER)
    assert shapes(found, "reduce-scatter", in_loop=False) == collections.Counter(TABLES)
    for in_loop in (True, False):
        assert set(shapes(found, "all-reduce", in_loop)) <= {(2, 16, 512), (2, 16), (512,), ()}


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_fsdp_gathers_each_layer_and_scatters_its_gradients(axis_types: str, folder: Path):
    found = list_collectives(folder, "fsdp", axis_types)
    check_gradients(found)
    gathered = shapes(found, "all-gather", in_loop=True)
    assert gathered - collections.Counter({(1, 512): 4}) == collections.Counter(GATHERED * 2)  # forwards, backwards


def test_divided_optimizer_state_scatters_gradients_and_gathers_updates(folder: Path):
    found = list_collectives(folder, "zero", "auto")
    check_gradients(found)
    assert not shapes(found, "all-gather", in_loop=True), "Parameters that are whole are gathered."
    whole = {(3, *shape[1:]) for shape in GATHERED} | {(128, 512)}
    assert whole <= set(shapes(found, "all-gather", in_loop=False))
