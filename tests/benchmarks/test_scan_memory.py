"""Stacked layers keep no more than the same loops written by hand, under every checkpoint policy."""

import math
import os
import subprocess
import sys

import jax
import pytest

import axonym as nym
from benchmarks import scan_memory
from benchmarks.scan_memory import POLICIES, Sizes, make_loops, measure_memory


SMALL = Sizes(layers=12, batch=8, pos=32, embed=64)
OFTEN = ("True", '"offload"', 'Policy(save_block_internals=["hidden"])')


@pytest.fixture(autouse=True)
def ranks():
    """Code by hand lines axes up by position."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize(
    "policy", [policy if policy in OFTEN else pytest.param(policy, marks=pytest.mark.thorough) for policy in POLICIES]
)
def test_a_policy_keeps_no_more_than_by_hand(policy):
    own, by_hand = (measure_memory(*make_loops(policy, SMALL)[who]) for who in ("Axonym", "JAX"))
    assert own.saved <= by_hand.saved and own.saved_on_host <= by_hand.saved_on_host
    assert 0 < own.temporary <= by_hand.temporary
    assert (own.saved_on_host > 0) == ("offload" in policy)


def test_nested_loops_save_as_many_carries_as_the_square_root():
    carry = 4 * math.prod((2, 64, 4))

    def count_carries(steps: int, remat: object) -> float:
        """Bytes of the compiled gradient, in carries, of which the parameters take few."""
        fold = nym.fold(lambda x, scale: nym.sin(x) * scale, "layers", remat=remat)
        x, scales = nym.zeros({"batch": 2, "pos": 64, "embed": 4}), nym.zeros({"layers": steps})
        compiled = jax.jit(jax.grad(lambda x, scales: fold(x, scales).sum().scalar())).lower(x, scales).compile()
        return compiled.memory_analysis().temp_size_in_bytes / carry

    for steps in (16, 64, 256):
        assert count_carries(steps, True) > steps
        assert count_carries(steps, "nested") < 2 * math.sqrt(steps) + 8


@pytest.mark.thorough
def test_host_memory_is_used_where_the_platform_has_it():
    """CPUs count what is offloaded as their own memory; TPUs are compiled for from their description."""
    libtpu = os.environ.get("AXONYM_LIBTPU", "")
    if not libtpu:
        pytest.skip("This needs libtpu, which only Linux on x86-64 has: `make tpu` installs it.")
    sizes = "--layers 16 --batch 1 --pos 512 --embed 128".split()
    program = [sys.executable, "-m", "benchmarks.scan_memory", "--tpu", *sizes, "--policy", '"offload"']
    path = os.pathsep.join(filter(None, [libtpu, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        program, env={**os.environ, "PYTHONPATH": path, "XLA_FLAGS": ""}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    figures = [cell.strip() for cell in done.stdout.splitlines()[-1].split("|")[2:6]]
    assert figures[:2] == ["0", "4"] and figures[3] == "4"  # 16 carries of a quarter of a MiB


def test_all_policies_have_a_row_in_the_documentation():
    page = (scan_memory.ROOT / "docs" / "scanning.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    missing = [policy for policy in POLICIES if not any(f"| `{policy}` |" in row for row in rows)]
    assert missing == ["Policy(simple=True)", "Policy(disable=True)"]  # which the page says are True and False
