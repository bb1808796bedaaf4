"""A few random programs on each kind of mesh, and cases of attention; `make fuzz` runs more, thousands each night."""

import ast
import dataclasses
import random

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym

from .attention import Allowed, find_attention_problems, make_case
from .operations import Operation
from .plain import Plain
from .programs import (
    TYPES,
    Program,
    Setting,
    compare_sharding,
    find_problems,
    make_program,
    make_setting,
    print_source,
    restore,
)


PROGRAMS = 12
ATTENTION_CASES = 4


@pytest.mark.parametrize("kind", TYPES)
def test_programs_agree_with_numpy_and_their_mapping(kind):
    failed = []
    for seed in range([*TYPES].index(kind), PROGRAMS, len(TYPES)):
        program = make_program(seed)
        setting = make_setting(seed, kind, program)
        if problems := find_problems(program, setting):
            failed.append("\n".join([print_source(program, setting), *problems]))
    assert not failed, "\n\n".join(failed)


REGRESSIONS = {
    "top_k outside of jit on a mixed mesh": {
        "seed": 20084,
        "inputs": ({"c": 2, "b": 8, "a": 4},),
        "steps": (((0,), "apply_sort", "c", "top_k", 2), ((1, 0), "reduce_masked", ("c", "b", "a"))),
        "outputs": (2,),
        "types": ("Auto", "Explicit", "Auto"),
        "mapping": {"a": ("y",)},
        "uneven": "error",
        "is_compiled": False,
    },
    "sort of parts of a sharded axis": {
        "seed": 22850,
        "inputs": ({"e": 1},),
        "steps": (
            ((0,), "apply_sort", "e", "sort", 1),
            ((1, 1), "apply_binary", "hypot"),
            ((1, 2), "join", "concatenate", "e"),
            ((3,), "apply_rename", "e", "c"),
            ((4,), "apply_scalar", 3, -0.75),
        ),
        "outputs": (5,),
        "types": ("Auto", "Auto", "Auto"),
        "mapping": {"c": ("z",)},
        "uneven": "error",
        "is_compiled": True,
    },
    "cumprod outside of jit along a sharded axis": {
        "seed": 22984,
        "inputs": ({"c": 2, "a": 4},),
        "steps": (((0,), "accumulate", "a", "cumprod"),),
        "outputs": (1,),
        "types": ("Auto", "Auto", "Auto"),
        "mapping": {"c": ("z",), "a": ("y",)},
        "uneven": "error",
        "is_compiled": False,
    },
}
"""Programs that once failed, as `make fuzz` prints them; steps and mappings that they did not need are left out."""


@pytest.mark.parametrize("name", REGRESSIONS)
def test_programs_that_once_failed(name):
    assert find_problems(*restore(REGRESSIONS[name])) == []


def test_what_is_printed_of_a_program_restores_it():
    for seed in range(100):
        program = make_program(seed)
        setting = make_setting(seed, random.Random(seed).choice([*TYPES]), program)
        restored, restored_setting = restore(ast.literal_eval(print_source(program, setting)))
        assert print_source(restored, restored_setting) == print_source(program, setting)
        for x, y in zip(restored.values, program.values, strict=True):
            np.testing.assert_array_equal(x.array, y.array)


WORDS = (
    "sin maximum where sum( softmax cumsum cumprod dot einsum rearrange rename flatten_axes unflatten_axis x[ ds(traced"
    " .at[ scan fold vmap stack concatenate repeat roll pad sort top_k"
).split()


def test_each_operation_is_drawn_often():
    texts = [step.text for seed in range(400) for step, _ in make_program(seed).steps]
    assert [word for word in WORDS if sum(word in text for text in texts) < 4] == []


FAULTS = {
    "v1 differs": lambda one, x: nym.cos(x),
    "the gradient of v0 differs": lambda one, x: nym.sin(jax.lax.stop_gradient(x)),
    "cannot broadcast": lambda one, x: nym.sin(x).rename({"a": "b"}),
    "ValueError: axis 'c'": lambda one, x: x.sum("c"),
}


@pytest.mark.parametrize("problem", FAULTS)
def test_faults_are_found(problem):
    x = Plain(np.linspace(-1, 1, 4), ("a",))
    step = Operation("sin", FAULTS[problem], lambda xp, x: Plain(xp.sin(x.array), x.names))
    setting = Setting((AxisType.Auto,) * 3, {"a": ("x",)}, "error", True)
    assert problem in "".join(find_problems(Program((x,), ((step, (0,)),), (1,)), setting))


def test_other_shardings_are_found(auto_mesh):
    with jax.set_mesh(auto_mesh):
        x = nym.shard(nym.ones({"a": 4}), {"a": "data"})
    assert compare_sharding("v1", x, {"a": ("data",)}, auto_mesh) == []
    (wrong,) = compare_sharding("v1", x, {"a": ("model",)}, auto_mesh)
    assert wrong == "v1 with axes {'a': 4} has P('data',), not P('model',)"


def test_attention_with_sharded_positions_agrees_with_numpy():
    failed = []
    for seed in range(ATTENTION_CASES):
        case = make_case(seed)
        if problems := find_attention_problems(case):
            failed.append("\n".join([f'make fuzz ARGS="--attention --seed {seed}"', str(case), *problems]))
    assert not failed, "\n\n".join(failed)


def test_attention_to_other_keys_is_found():
    case = next(case for case in map(make_case, range(100)) if case.mask is not None and case.mask.text == "causal(0)")
    wrong = Allowed(case.mask.mask, ~case.mask.array, "not causal")
    problems = find_attention_problems(dataclasses.replace(case, mask=wrong))
    assert any(problem.startswith("result differs") for problem in problems), problems
