"""What the comparison of structures ignores, and what it counts."""

import re

import jax
import jax.numpy as jnp

from benchmarks import structure


def compile_text(fn):
    return jax.jit(fn).lower(jnp.ones((4, 4))).compile().as_text()


def test_programs_differ_by_what_they_compute_and_not_by_names():
    def double(x):
        return x @ x + 1

    def twice(x):
        with jax.named_scope("twice"):
            return x @ x + 1

    def other(x):
        return x @ x + 2

    first, second, third = map(structure.normalize, map(compile_text, (double, twice, other)))
    assert first == second != third
    assert "dot" in first and "metadata" not in first


def test_calls_are_followed_through_files(capsys):
    structure.main(["calls", "--list"])
    lines = capsys.readouterr().out.splitlines()
    counts = [re.fullmatch(r"(.*): (\d+) functions in (\d+) files", line) for line in lines if line[0] != " "]
    assert len(counts) == 5 and all(counts)
    assert sum(int(count[2]) for count in counts) == sum(line[0] == " " for line in lines)
    assert "named/_dot.py" in lines[1]
