"""Wrong types of arguments of functions that shard are errors of one sentence, with the value and the next step."""

from re import escape
from typing import Any

import pytest

import axonym as nym


NYM: Any = nym  # without types, because every call here is wrong
MESH = nym.create_abstract_mesh((4, 2), ("data", "model"))
MAPPING = {"batch": "data"}
NO_MESH = "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 3."
WRONG = {
    "sharding_for_axis": (lambda: NYM.sharding_for_axis("batch", MAPPING, 3), NO_MESH),
    "physical_axis_size": (lambda: NYM.physical_axis_size("batch", MAPPING, 3), NO_MESH),
    "round_axis_for_partitioning": (
        lambda: NYM.round_axis_for_partitioning("batch", MAPPING, MESH),
        "`round_axis_for_partitioning` needs a size: give `Axis('batch', size)` instead of 'batch'.",
    ),
    "shard_map": (lambda: NYM.shard_map(MAPPING), "`shard_map` takes a function first, not {'batch': 'data'}."),
    "named_jit": (
        lambda: NYM.named_jit(abs, retrace_warning="off"),
        "`retrace_warning` must be True or False, not 'off'.",
    ),
    "compiler options": (
        lambda: NYM.named_jit(abs, compiler_options="xla_dump_to"),
        "`compiler_options` is a mapping from options of XLA to values, not 'xla_dump_to'.",
    ),
    "strict rule": (lambda: NYM.PathShardingRule({}, strict="yes"), "`strict` must be True or False, not 'yes'."),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_explained(name):
    call, text = WRONG[name]
    with pytest.raises(TypeError, match=escape(text)):
        call()
