"""`ShardingReport`: its totals, groups, mesh axes and advice, what is printed and saved of them, and what changed."""

import json
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym

from ..refusals import refusal


def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def reported(tree: Any, specs: Any, mesh: Any = None, **options: Any) -> nym.ShardingReport:
    """A report on a (data: 4, model: 2) mesh without devices, or on another."""
    mesh = AbstractMesh((4, 2), ("data", "model")) if mesh is None else mesh
    return nym.ShardingAnalyzer(mesh).sharding_report(tree, specs, **options)


TREE = {"head": {"b": shape(6), "w": shape(8, 6)}, "x": nym.NamedArray(np.ones((8, 4), np.float32), ("batch", "embed"))}
ONE = AbstractMesh((4, 2, 1), ("data", "model", "one"), (AxisType.Auto,) * 3)
SPECS = {"head": {"b": P(), "w": P("data", "model")}, "x": P("data")}


def test_totals_are_those_of_all_arrays(auto_mesh):
    report = reported(TREE, SPECS)
    assert (report.bytes, report.bytes_per_device, report.replicated_bytes) == (344, 24 + 24 + 32, 8 * 80 - 344)
    assert (report.devices, report.mesh, report.source) == (8, {"data": 4, "model": 2}, "specs")
    assert report.share == 80 / 344
    assert report.share_whole == 24 / 344
    assert (report.imbalance, report.problems) == (1.0, ())
    assert pickle.loads(pickle.dumps(report)) == report == reported(TREE, SPECS)
    assert report != reported(TREE, P())
    assert report.device_ids is None
    assert reported(shape(8), P(), auto_mesh).device_ids == tuple(map(int, auto_mesh.device_ids.flat))
    assert str(report) == repr(report) == EXPECTED


def test_groups_go_by_the_first_keys_of_the_paths():
    report = reported(TREE, SPECS)
    assert {key: (group.arrays, group.bytes, group.bytes_per_device) for key, group in report.groups.items()} == {
        "['head']": (2, 216, 48),
        "['x']": (1, 128, 32),
    }
    assert list(reported(TREE, SPECS, depth=2).groups) == ["['head']['b']", "['head']['w']", "['x']"]
    assert list(reported(TREE, SPECS, depth=0).groups) == [""]
    part = {"embed": {"w": shape(8)}, "head": {"w": shape(8), "b": shape(8)}}
    assert len(reported((part, part), P()).groups) == 4
    assert len(reported((part, part), P(), depth=1).groups) == 2
    assert len(reported({"all": {"the": part}}, P()).groups) == 2


def test_axes_that_nothing_divides_have_a_reason():
    mesh = AbstractMesh((4, 2, 1, 16), ("data", "model", "one", "wide"))
    tree = {"a": shape(6, 5), "b": shape(8), "empty": shape(0, 4), "scalar": shape()}
    report = reported(tree, {"a": P("model"), "b": P(), "empty": P(), "scalar": P()}, mesh)
    unused = {leaf.path: dict(leaf.unused) for leaf in report.leaves}
    assert unused["['a']"] == {
        "data": "no dimension of the shard (3, 5) on each device is divisible by its size 4",
        "one": "it has size 1",
        "wide": "its size 16 is larger than any dimension of the shard (3, 5) on each device",
    }
    assert unused["['b']"]["data"] == "unused; it could shard dimension 0"
    assert unused["['b']"]["wide"] == "its size 16 is larger than any dimension of the array (8,)"
    assert unused["['empty']"]["data"] == "the array is empty"
    assert unused["['scalar']"]["data"] == "the array has no dimensions"
    assert report.unused_mesh_axes == {
        "data": "unused; it could shard 1 of 4 arrays",
        "one": "it has size 1",
        "wide": "no free dimension of any array is divisible by 16",
    }


def test_an_axis_could_go_on_the_largest_part_or_beside_another():
    report = reported([shape(6, 5), shape(6, 5)], P("model"))
    why = "no dimension of the shard (3, 5) on each device is divisible by its size 4"
    assert report.unused_mesh_axes == {"data": why}
    (leaf,) = reported(shape(4, 16), P()).leaves
    assert leaf.unused["data"] == "unused; it could shard dimension 1"
    (leaf,) = reported(nym.NamedArray(shape(8, 5), ("batch", "embed")), P("data")).leaves
    assert leaf.unused == {"model": "unused; it could shard axis 'batch' along with 'data'"}
    report = reported(shape(8), P("data"), AbstractMesh((4, 1), ("data", "one")))
    assert "Mesh axes that no array is sharded over: 'one': it has size 1" in str(report)


def test_each_dimension_has_a_reason():
    (leaf,) = reported(shape(8, 6, 7, 3), P(P.UNCONSTRAINED, "model", "one"), ONE).leaves
    assert [axis.why for axis in leaf.axes] == [
        "the spec: left to the compiler",
        "the spec: 'model'",
        "the spec: 'one', which has size 1",
        "the spec: replicated",
    ]
    assert [axis.decision for axis in leaf.axes] == ["spec", "spec", "size 1", "spec"]
    (leaf,) = reported(shape(9, 8), P(None, "model"), ONE).leaves
    assert leaf.axes[0].why == (
        "the spec: replicated; not divisible by 'data' of size 4, the next size that fits is 12"
    )
    assert leaf.unused["data"] == "unused; it could shard dimension 1 along with 'model'"


def test_an_array_whose_spec_is_refused_counts_whole_with_its_error():
    report = reported({"<a>": shape(6), "b": shape(8)}, P("data"))
    first, second = report.leaves
    message = (
        "dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that fits is 8"
    )
    assert (first.spec, first.bytes_per_device, first.error, first.axes[0].decision) == (None, 24, message, "refused")
    assert first.unused == {"data": "its spec is invalid", "model": "its spec is invalid"}
    assert (second.spec, second.bytes_per_device, second.error) == (P("data"), 8, None)
    assert report.problems == (f"['<a>']: {message}",)
    assert report.bytes_per_device == 32
    assert "Problems (1):\n  ['<a>']: dimension 0 has size 6" in str(report)
    page = report._repr_html_()
    assert "&lt;a&gt;" in page and "<a>" not in page
    unused = reported({"a": shape(6)}, P("data")).unused_mesh_axes
    assert unused == {"data": "its spec is invalid", "model": "its spec is invalid"}


EXPECTED = """\
mesh (data: 4, model: 2), 8 devices; by the given specs; 7.0% of the bytes unsharded; imbalance 1.00

array                                  bytes  per device  copies
  axis   size  mesh axes  why
----------------------------------------------------------------
['head']['b']  float32, plain           24 B        24 B   168 B
  -         6  -          the spec: replicated; 'model' could shard it
['head']['w']  float32, plain          192 B        24 B     0 B
  -         8  data (4)   the spec: 'data'
  -         6  model (2)  the spec: 'model'
['x']  float32; now on the host        128 B        32 B   128 B
  batch     8  data (4)   the spec: 'data'
  embed     4  -          the spec: replicated; 'model' could shard it
----------------------------------------------------------------
3 arrays, 23.3% on the fullest device  344 B        80 B   296 B

Bytes on each device by part: ['head'] 48 B, ['x'] 32 B

Most in copies: ['head']['b'] 168 B, ['x'] 128 B"""


def test_as_many_leaves_problems_and_copies_are_shown_as_asked():
    report = reported([shape(8)] * 50, P("data"))
    assert "… 10 more; `.table(limit=None)` shows all" in str(report)
    assert report.table(None).count("float32, plain") == 50
    assert max(map(len, report.table(None).splitlines())) <= 120
    with refusal("`limit` is the number of arrays to show, or None for all; it was -1."):
        report.table(-1)
    report = reported([shape(5)] * 60, P("data"))
    assert len(report.problems) == 60
    assert "and 40 more; `report.problems` has all" in str(report)
    with pytest.raises(ValueError, match=r"with 60 problems(.|\n)*and 40 more; `validate_partition_specs` has all"):
        nym.ShardingAnalyzer(ONE).estimate_memory_usage([shape(5)] * 60, P("data"))
    report = reported(TREE, SPECS)
    assert [leaf.path for leaf in report.largest_replicated()] == ["['head']['b']", "['x']"]
    assert len(report.largest_replicated(1)) == 1
    with refusal("`n` is the number of arrays to return; it was -1."):
        report.largest_replicated(-1)


def test_a_report_becomes_plain_values():
    report = reported(TREE, SPECS)
    plain = json.loads(report.to_json())
    assert plain == report.to_dict()
    assert set(plain) == {
        *("mesh", "devices", "source", "leaves", "bytes", "bytes_per_device", "replicated_bytes", "groups"),
        *("imbalance", "share", "share_whole", "unused_mesh_axes", "problems"),
        *("device_ids", "several_meshes", "rule"),
    }
    leaf = plain["leaves"][1]
    assert (leaf["path"], leaf["spec"]) == ("['head']['w']", [["data"], ["model"]])
    assert leaf["unused"] == {}
    assert report.to_json(None).count("\n") == 0


def test_arrays_beside_the_mesh_say_where_they_are(auto_mesh):
    second = jax.make_mesh((2,), ("stage",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    tree = {
        "host": np.ones(4),
        "here": jax.device_put(np.ones(8, np.float32), NamedSharding(auto_mesh, P("data"))),
        "nowhere": shape(4),
        "one": jax.device_put(np.ones(4, np.float32), jax.devices()[1]),
        "other": jax.device_put(np.ones(4, np.float32), NamedSharding(second, P("stage"))),
    }
    report = nym.ShardingAnalyzer(auto_mesh).sharding_report(tree)
    places = {"here": None, "host": "the host", "nowhere": "no device", "one": "one device", "other": "mesh (stage: 2)"}
    assert [leaf.place for leaf in report.leaves] == [places[key] for key in sorted(places)]
    report = nym.ShardingAnalyzer().sharding_report(tree)
    assert report.several_meshes
    assert str(report).startswith("several meshes, 8 devices; ")
    text, pair = np.array(["a", "b"]), np.zeros(2, [("a", "f4"), ("b", "i4")])
    for specs in (None, P()):  # what JAX holds no arrays of is in no report
        assert [leaf.path for leaf in reported([text, pair, np.ones(4)], specs).leaves] == ["[2]"]


# What changed between two reports


def compared(first: tuple[Any, Any], second: tuple[Any, Any]) -> nym.report.ReportComparison:
    """What changed from a tree with specs to another."""
    return nym.ShardingAnalyzer().compare(reported(*first, ONE), reported(*second, ONE))


def test_arrays_that_moved_came_and_went_are_told():
    tree = {"a": shape(8, 4), "b": shape(8)}
    comparison = compared((tree, {"a": P("data"), "b": P()}), (tree, {"a": P("data", "model"), "b": P()}))
    (change,) = comparison.moved
    assert (change.path, change.before.spec, change.after.spec) == ("['a']", P("data", None), P("data", "model"))
    assert (change.before.bytes_per_device, change.after.bytes_per_device) == (32, 16)
    assert (comparison.added, comparison.removed, comparison.same) == ((), (), False)
    comparison = compared(({"a": shape(8), "b": shape(4)}, P("data")), ({"b": shape(4), "c": shape(8)}, P()))
    assert [leaf.path for leaf in comparison.added] == ["['c']"]
    assert [leaf.path for leaf in comparison.removed] == ["['a']"]
    assert [change.path for change in comparison.moved] == ["['b']"]


@pytest.mark.parametrize(
    ("first", "second"),
    [(P("data"), P("data", None)), (P("data"), P(("data",), "one")), (P(), P("one")), (P(("data", "one")), P("data"))],
    ids=str,
)
def test_the_same_spec_written_in_another_way_is_no_change(first, second):
    comparison = compared((shape(8, 4), first), (shape(8, 4), second))
    assert comparison.same
    assert comparison.moved == ()
    assert hash(comparison) == hash(compared((shape(8, 4), first), (shape(8, 4), second)))


@pytest.mark.parametrize(
    ("tree", "spec", "text"),
    [
        (shape(8, 8), P("data"), "(the array itself)"),
        (shape(8, 4, dtype=jnp.int32), P("data"), "- float32 -> int32"),
        (shape(8, 4), P(None, "data"), "was replicated"),
        (shape(8, 4), P(P.UNCONSTRAINED), "(the array itself)"),
        (shape(8, 4), P("modle"), "(the array itself)"),
        (shape(8, 4), P(), "float32; now replicated"),
        (shape(8, 4), nym.PathShardingRule({"": P()}), "; from the given specs to `PathShardingRule`"),
        ({}, P("data"), "Removed: (the array itself) 32 B on each device"),
    ],
    ids=["shape", "type", "dimension", "compiler", "refused", "whole", "rule", "gone"],
)
def test_what_else_changes_of_an_array_is_shown(tree, spec, text):
    comparison = compared((shape(8, 4), P("data")), (tree, spec))
    assert not comparison.same
    assert [change.path for change in comparison.moved] == ([""] if tree else [])
    assert text in " ".join(str(comparison).split())


def test_the_order_of_mesh_axes_and_another_mesh_are_changes():
    assert len(compared((shape(8), P(("data", "model"))), (shape(8), P(("model", "data")))).moved) == 1
    before, after = (reported({}, P(), mesh) for mesh in (ONE, AbstractMesh((8,), ("data",))))
    comparison = nym.ShardingAnalyzer().compare(before, after)
    assert not comparison.same
    assert str(comparison).startswith("mesh (data: 4, model: 2, one: 1), 8 devices -> mesh (data: 8), 8 devices")


def test_a_comparison_is_printed_as_a_table():
    specs = {"a": P("model", "data"), "new": P("data"), "same": P("data")}
    before = {"a": shape(8, 4), "gone": shape(8), "same": shape(4)}, P("data")
    comparison = compared(before, ({"a": shape(8, 4), "new": shape(6), "same": shape(4)}, specs))
    assert str(comparison) == repr(comparison) == CHANGES
    assert "<table>" in comparison._repr_html_()


CHANGES = """\
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


def test_a_comparison_becomes_plain_values():
    tree = {"a": shape(8, 4), "b": shape()}
    comparison = compared(({"a": shape(8, 4)}, P("data")), (tree, {"a": P(P.UNCONSTRAINED), "b": None}))
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
    assert plain["moved"]["['a']"]["after"]["spec"] == ["unconstrained", []]
    assert plain["bytes_per_device"] == {"before": 32, "after": 132}
    assert list(plain["added"]) == ["['b']"]
    assert comparison.to_json(None).count("\n") == 0
