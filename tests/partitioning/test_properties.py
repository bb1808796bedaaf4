"""For 2,000 arrays, mappings and meshes by chance: a spec that holds, or one of the errors, and never anything else."""

import json
import subprocess
import sys
from pathlib import Path


# A few of each kind, however the examples are drawn.
LEAST = {
    "specs": 600,
    "sharded": 400,
    "unknown": 100,
    "twice": 30,
    "uneven": 100,
    "repeated": 50,
    "mixed": 50,
}


def test_each_array_has_a_spec_or_one_of_the_errors_and_keeps_its_values():
    program = Path(__file__).with_name("many_meshes.py")
    run = subprocess.run([sys.executable, "-W", "error", program], capture_output=True, text=True)
    assert not run.returncode, run.stderr
    count = json.loads(run.stdout)
    assert count["examples"] == 2000
    assert count["specs"] + sum(count[error] for error in ("unknown", "twice", "uneven", "repeated", "mixed")) == 2000
    assert [kind for kind in LEAST if count[kind] < LEAST[kind]] == []
