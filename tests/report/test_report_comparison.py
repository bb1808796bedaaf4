"""`ShardingAnalyzer.compare`: what moved, came and went between two reports."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import axonym as nym


MESH = AbstractMesh((4, 2, 1), ("data", "model", "one"), (AxisType.Auto,) * 3)


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def reported(tree: Any, specs: Any, mesh: Any = MESH) -> nym.ShardingReport:
    return nym.ShardingAnalyzer(mesh).sharding_report(tree, specs)


def compare(first: nym.ShardingReport, second: nym.ShardingReport) -> nym.report.ReportComparison:
    return nym.ShardingAnalyzer().compare(first, second)


def test_an_array_with_another_spec_has_moved():
    tree = {"a": shape(8, 4), "b": shape(8)}
    comparison = compare(
        reported(tree, {"a": P("data"), "b": P()}), reported(tree, {"a": P("data", "model"), "b": P()})
    )
    (change,) = comparison.moved
    assert (change.path, change.before.spec, change.after.spec) == ("['a']", P("data", None), P("data", "model"))
    assert (change.before.bytes_per_device, change.after.bytes_per_device) == (32, 16)
    assert (comparison.added, comparison.removed, comparison.same) == ((), (), False)


@pytest.mark.parametrize(
    ("first", "second"),
    [(P("data"), P("data", None)), (P("data"), P(("data",), "one")), (P(), P("one")), (P(("data", "one")), P("data"))],
    ids=str,
)
def test_the_same_spec_written_in_another_way_is_no_change(first, second):
    comparison = compare(reported(shape(8, 4), first), reported(shape(8, 4), second))
    assert comparison.same
    assert comparison.moved == ()


@pytest.mark.parametrize(
    ("tree", "spec"),
    [
        (shape(8, 8), P("data")),
        (shape(8, 4, dtype=jnp.int32), P("data")),
        (shape(8, 4), P(None, "data")),
        (shape(8, 4), P(P.UNCONSTRAINED)),
        (shape(8, 4), P("modle")),
    ],
    ids=["shape", "type", "dimension", "compiler", "refused"],
)
def test_what_else_changes_of_an_array_moves_it(tree, spec):
    comparison = compare(reported(shape(8, 4), P("data")), reported(tree, spec))
    assert [change.path for change in comparison.moved] == [""]
    assert "(the array itself)" in str(comparison)


def test_the_order_of_mesh_axes_on_a_dimension_is_a_change():
    comparison = compare(reported(shape(8), P(("data", "model"))), reported(shape(8), P(("model", "data"))))
    assert len(comparison.moved) == 1


def test_arrays_that_came_and_went_are_told():
    comparison = compare(
        reported({"a": shape(8), "b": shape(4)}, P("data")), reported({"b": shape(4), "c": shape(8)}, P())
    )
    assert [leaf.path for leaf in comparison.added] == ["['c']"]
    assert [leaf.path for leaf in comparison.removed] == ["['a']"]
    assert [change.path for change in comparison.moved] == ["['b']"]


def test_another_mesh_is_a_change():
    comparison = compare(reported({}, P()), reported({}, P(), AbstractMesh((8,), ("data",))))
    assert not comparison.same
    assert str(comparison).startswith("mesh (data: 4, model: 2, one: 1), 8 devices -> mesh (data: 8), 8 devices")


def test_a_comparison_is_printed_as_a_table():
    before = reported({"a": shape(8, 4), "gone": shape(8), "same": shape(4)}, P("data"))
    specs = {"a": P("model", "data"), "new": P("data"), "same": P("data")}
    after = reported({"a": shape(8, 4), "new": shape(6), "same": shape(4)}, specs)
    assert str(compare(before, after)) == repr(compare(before, after)) == EXPECTED
    assert "<table>" in compare(before, after)._repr_html_()


EXPECTED = """\
mesh (data: 4, model: 2, one: 1), 8 devices; both by the given specs

array                                         bytes    per device          copies
  axis  size  mesh axes  why
---------------------------------------------------------------------------------
['a']  float32                                128 B  32 B -> 16 B    128 B -> 0 B
  0        8  model      was data
  1        4  data       was replicated
---------------------------------------------------------------------------------
1 of 3 arrays moved                  176 B -> 168 B          44 B  176 B -> 184 B

Added: ['new'] 24 B on each device

Removed: ['gone'] 8 B on each device

New problems:
  ['new']: dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that fits is 8"""


def test_a_table_shows_as_many_changes_as_asked():
    comparison = compare(reported([shape(8)] * 50, P("data")), reported([shape(8)] * 50, P("model")))
    assert "… 10 more; `.table(limit=None)` shows all" in str(comparison)
    assert comparison.table(None).count("was data") == 50
    with pytest.raises(ValueError, match=r"`limit` is the number of arrays to show, or None for all; it was -1\."):
        comparison.table(-1)


def test_a_comparison_becomes_plain_values():
    tree = {"a": shape(8, 4), "b": shape()}
    comparison = compare(reported({"a": shape(8, 4)}, P("data")), reported(tree, {"a": P(), "b": None}))
    plain = json.loads(comparison.to_json())
    assert plain == comparison.to_dict()
    assert plain["moved"]["['a']"]["before"] == {
        "shape": [8, 4],
        "dtype": "float32",
        "spec": [["data"], []],
        "bytes": 128,
        "bytes_per_device": 32,
        "replicated_bytes": 128,
        "place": None,
    }
    assert plain["bytes_per_device"] == {"before": 32, "after": 132}
    assert list(plain["added"]) == ["['b']"]
    assert comparison.to_json(None).count("\n") == 0


def test_only_reports_are_compared():
    report = reported({}, P())
    with pytest.raises(TypeError, match=r"`compare` takes two `ShardingReport`s, not \{\}\."):
        nym.ShardingAnalyzer.compare(report, {})


def test_the_head_says_what_the_reports_go_by_and_rows_what_became_whole():
    tree = shape(8, 4)
    comparison = compare(reported(tree, P("data")), reported(tree, nym.PathShardingRule({"": P()})))
    assert "; from the given specs to `PathShardingRule`\n" in str(comparison)
    assert "float32; now replicated" in str(comparison)


def test_axes_that_are_left_to_the_compiler_are_told_in_plain_values():
    comparison = compare(reported(shape(8, 4), P("data")), reported(shape(8, 4), P(P.UNCONSTRAINED)))
    assert comparison.to_dict()["moved"][""]["after"]["spec"] == ["unconstrained", []]


def test_an_array_that_is_the_whole_tree_has_a_name_where_it_goes():
    assert "Removed: (the array itself) 8 B on each device" in str(
        compare(reported(shape(8), P("data")), reported({}, P()))
    )


def test_an_array_of_which_no_axis_changed_says_what_did():
    tree = {"a": shape(8, 4)}
    comparison = compare(reported(tree, P("data")), reported({"a": shape(8, 4, dtype="int32")}, P("data")))
    assert re.search(r"- +float32 -> int32\n", str(comparison))


def test_reports_and_comparisons_can_be_hashed():
    first, second = reported(shape(8), P()), reported(shape(8), P())
    assert hash(first) == hash(second)
    assert hash(compare(first, second)) == hash(compare(first, second))
