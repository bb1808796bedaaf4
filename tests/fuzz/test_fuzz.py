"""A few random programs on each kind of mesh, and cases of attention; `make fuzz` runs more, thousands each night."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym

from .attention import Allowed, find_attention_problems, make_case
from .operations import Operation
from .plain import Plain
from .programs import TYPES, Program, Setting, compare_sharding, find_problems, make_program, make_setting


PROGRAMS = 8
ATTENTION_CASES = 6


@pytest.mark.parametrize("first", range(0, PROGRAMS, 4))
def test_programs_agree_with_numpy_and_their_mapping(first):
    failed = []
    for seed in range(first, first + 4):
        program = make_program(seed)
        for kind in TYPES:
            setting = make_setting(seed, kind, program)
            problems = find_problems(program, setting)
            if problems:
                again = f'make fuzz ARGS="--kind {kind} --seed {seed}"'
                failed.append("\n".join([again, str(setting), str(program), *problems]))
    assert not failed, "\n\n".join(failed)


REGRESSIONS = [("mixed", 20084, "top_k"), ("auto", 22850, "sort"), ("auto", 22984, "cumprod")]


@pytest.mark.parametrize(("kind", "seed", "operation"), REGRESSIONS)
def test_programs_that_once_failed(kind, seed, operation):
    program = make_program(seed)
    assert any(operation in step.text for step, _ in program.steps), "a new operation has changed what seeds draw"
    assert find_problems(program, make_setting(seed, kind, program)) == []


WORDS = (
    "sin maximum where sum( softmax cumsum cumprod dot einsum rearrange rename flatten_axes unflatten_axis x[ ds(traced"
    " .at[ scan fold vmap grad stack concatenate split unbind repeat tile roll pad sort top_k fft arange tril lift"
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
    right = step._replace(named=lambda one, x: nym.sin(x))
    assert find_problems(Program((x,), ((right, (0,)),), (1,)), setting) == []


def test_other_shardings_are_found(auto_mesh):
    with jax.set_mesh(auto_mesh):
        x = nym.shard(nym.ones({"a": 4}), {"a": "data"})
    assert compare_sharding("v1", x, {"a": ("data",)}, auto_mesh) == []
    (wrong,) = compare_sharding("v1", x, {"a": ("model",)}, auto_mesh)
    assert wrong == "v1 with axes {'a': 4} has P('data',), not P('model',)"


@pytest.mark.parametrize("first", range(0, ATTENTION_CASES, 6))
def test_attention_with_sharded_positions_agrees_with_numpy(first):
    failed = []
    for seed in range(first, first + 6):
        case = make_case(seed)
        if problems := find_attention_problems(case):
            failed.append("\n".join([f'make fuzz ARGS="--attention --seed {seed}"', str(case), *problems]))
    assert not failed, "\n\n".join(failed)


def test_attention_to_other_keys_is_found():
    case = next(case for case in map(make_case, range(100)) if case.mask is not None and case.mask.text == "causal(0)")
    wrong = Allowed(case.mask.mask, ~case.mask.array, "not causal")
    problems = find_attention_problems(dataclasses.replace(case, mask=wrong))
    assert any(problem.startswith("result differs") for problem in problems), problems
