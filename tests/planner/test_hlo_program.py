import numpy as np
import pytest

from axonym.planner._program._collectives import find_group_axes, read_replica_groups
from axonym.planner._program._hlo_program import HloProgram, parse_arrays, split_tuple
from axonym.report._time_by_layer import split_op_name


@pytest.mark.parametrize(
    ("attributes", "groups", "axes"),
    [
        ("replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add", [[0, 4], [1, 5], [2, 6], [3, 7]], ("x",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", [[0, 4], [1, 5], [2, 6], [3, 7]], ("x",)),
        ("replica_groups=[2,4]<=[8], dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]], ("y",)),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", [[0, 4], [1, 5], [2, 6], [3, 7]], ("x",)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", [[0, 2], [1, 3], [4, 6], [5, 7]], ("y",)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", [[0, 1], [2, 3], [4, 5], [6, 7]], ("y",)),
        (
            "replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'c'}",
            [[0, 4], [1, 5], [2, 6], [3, 7]],
            ("x",),
        ),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", [[0, 1, 2, 3, 4, 5, 6, 7]], ("x", "y")),
        ("replica_groups={}", [[0, 1, 2, 3, 4, 5, 6, 7]], ("x", "y")),
        ("channel_id=1", [[0, 1, 2, 3, 4, 5, 6, 7]], ("x", "y")),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]], ("y",)),
    ],
)
def test_each_form_of_groups_is_read(attributes, groups, axes):
    found = read_replica_groups(attributes, 8)
    np.testing.assert_array_equal(found, groups)
    assert find_group_axes(found, {"x": 2, "y": 4}) == axes


def test_unknown_groups_are_unknown():
    assert read_replica_groups("replica_groups={{0,1},{2}}", 3) is None
    assert read_replica_groups("replica_groups=mesh['a'=2] {'b'}", 2) is None
    assert read_replica_groups("replica_groups=@somewhere", 2) is None
    assert find_group_axes(np.array([[0, 9]]), {"x": 2}) == ()


LOOP = """HloModule jit_f

%cond (p: (s32[], f32[4])) -> pred[] {
  %p = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(9)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (q: (s32[], f32[4])) -> (s32[], f32[4]) {
  %q = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %old = s32[] copy(%j)
  %one = s32[] constant(1)
  %next = s32[] add(%old, %one)
  %same = f32[4] get-tuple-element(%q), index=1
  ROOT %both = (s32[], f32[4]) tuple(%next, %same)
}

ENTRY %main (x: f32[4]) -> (s32[], f32[4]) {
  %x = f32[4]{0} parameter(0)
  %first = s32[] constant(2)
  %copied = s32[] copy(%first)
  %start = (s32[], f32[4]{0}) tuple(%copied, %x)
  ROOT %loop = (s32[], f32[4]) while(%start), condition=%cond, body=%body
}
"""


def test_a_loop_runs_as_often_as_its_condition_says():
    assert HloProgram(LOOP).count_runs("body") == 7
    assert HloProgram(LOOP).count_runs("main") == 1
    assert HloProgram(LOOP.replace("direction=LT", "direction=LE")).count_runs("body") == 8
    known = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert HloProgram(known).count_runs("body") == 5
    assert HloProgram(LOOP.replace("constant(1)", "constant(3)")).count_runs("body") == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%i, %n", "%i, %i"),
        ("direction=LT", "direction=GT"),
        ("add(%old", "multiply(%old"),
        ("constant(1)", "constant(-1)"),
        ("add(%old, %one)", "add(%one, %one)"),
        ("ROOT %both = (s32[], f32[4]) tuple(%next, %same)", "ROOT %both = (s32[], f32[4]) fusion(%q), calls=%turn"),
    ],
)
def test_a_loop_of_unknown_length_counts_as_one_turn(old, new):
    assert old in LOOP
    assert HloProgram(LOOP.replace(old, new)).count_runs("body") == 1


def test_arrays_are_read_with_layouts_and_tuples():
    text = "((bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, s4[5]{0}), /*index=2*/f32[], token[])"
    assert [one.bytes for one in parse_arrays(text)] == [12, 3, 4, 0]
    assert split_tuple("((f32[2], f32[]), (f32[4], f32[]), u32[])") == ["(f32[2], f32[])", "(f32[4], f32[])", "u32[]"]
    assert split_tuple("f32[2]{0}") == ["f32[2]{0}"]


@pytest.mark.parametrize(
    ("op_name", "layer", "operation"),
    [
        ("jit(f)/jvp(Stacked)/while/body/closed_call/Stacked/up/dot(a -> b)/dot_general", "Stacked/up", "dot(a -> b)"),
        ("jit(f)/jvp(loss)/net/blocks/while/body/net/blocks/mlp/mlp/add", "loss/net/blocks/mlp/mlp", "add"),
        ("jit(f)/loss/outer/while/body/outer/inner/while/body/inner/up/add", "loss/outer/inner/up", "add"),
        ("jit(f)/transpose(jvp(Block))/Block/up/dot(a -> b)/dot_general", "Block/up", "dot(a -> b)"),
        ("jit(f)/jvp()/reduce_sum", "", "reduce_sum"),
        ("jit(f)/Net/cond/branch_1_fun/up/dot(a -> b)/dot_general", "Net/up", "dot(a -> b)"),
        ("jit(f)/transpose(jvp(dot(a -> b)))/dot_general", "", "dot(a -> b)"),
        ("jit(f)/(jvp(Net)/dot(a -> b)/dot_general:jvp(sum(b))/reduce_sum)", "Net", "dot(a -> b) + sum(b)"),
        ("jit(f)/Net/(up/dot(a -> b)/dot_general:down/add)", "Net/up + Net/down", "dot(a -> b) + add"),
        ("jit(f)/Net/up/dot(a -> b)/dot_general;jit(f)/Net/down/add", "Net/up + Net/down", "dot(a -> b) + add"),
        ("jit(f)/jvp(Net)/moe/shard_map/rows(8 of 32)/ragged_dot_general", "Net/moe", "ragged_dot_general"),
        ("", "", ""),
    ],
)
def test_layer_and_operation_are_read_from_scopes(op_name, layer, operation):
    assert split_op_name(op_name) == (layer, operation)


def test_elements_of_tuples_are_read_in_both_spellings():
    text = LOOP.replace("(%q), index=1", "(%q), index=1\n  %twice = f32[4] add(%q#1, %same)")
    for old, new in (("%i, %n", "%p#0, %n"), ("copy(%j)", "copy(%q#0)")):
        assert old in text
        text = text.replace(old, new)
    program = HloProgram(text)
    assert program.count_runs("body") == 7
    [twice] = (one for one in program.instructions if one.name == "twice")
    assert [one.results[0].shape for one in program.find_operands(twice)] == [(4,), (4,)]
    assert [one.opcode for one in program.find_operands(twice)] == ["get-tuple-element"] * 2
