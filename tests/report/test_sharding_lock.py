"""The sharding lock: what the file says, what counts as a change, how changes are shown, and how they are accepted."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym

from ..refusals import refusal


MESH = AbstractMesh((4, 2), ("data", "model"))
TREE = {
    "weight": nym.NamedArray(jax.ShapeDtypeStruct((8, 16), jnp.float32), ("embed", "mlp")),
    "bias": jax.ShapeDtypeStruct((16,), jnp.float32),
    "scale": jax.ShapeDtypeStruct((), jnp.bfloat16),
}
SPECS = {"weight": P("data", "model"), "bias": P(("data", "model")), "scale": P()}
TEXT = """\
{
  "format": 1,
  "mesh": {"data": 4, "model": 2},
  "arrays": {
    "['bias']": {"shape": [16], "spec": [["data", "model"]]},
    "['scale']": {"shape": [], "spec": []},
    "['weight']": {"shape": [8, 16], "axes": ["embed", "mlp"], "spec": ["data", "model"]}
  }
}
"""


def reported(tree, specs, mesh=MESH) -> nym.ShardingReport:
    """The report of a tree on a mesh."""
    return nym.ShardingAnalyzer(mesh).sharding_report(tree, specs)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    """The environment says nothing of locks and of CI."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("AXONYM_UPDATE_LOCK", raising=False)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "sharding.lock"


@pytest.fixture
def locked(path) -> Path:
    """The lock of the tree."""
    reported(TREE, SPECS).save_lock(path)
    return path


def test_the_file_has_one_line_for_each_array(locked):
    assert locked.read_text() == TEXT
    nym.assert_sharding_lock(TREE, locked, SPECS, mesh=MESH)


class WeightFirst(eqx.Module):
    weight: Any = nym.field(axis_names=("embed", "mlp"))
    bias: Any = None


class BiasFirst(eqx.Module):
    bias: Any = None
    weight: Any = nym.field(axis_names=("embed", "mlp"), default=None)


def test_the_file_is_the_same_whatever_the_order_of_the_tree(path):
    texts = []
    for kind in (WeightFirst, BiasFirst):
        tree = kind(weight=jax.ShapeDtypeStruct((8, 16), jnp.float32), bias=TREE["bias"])
        reported(tree, P("data")).save_lock(str(path))
        texts.append(path.read_text())
        nym.assert_sharding_lock(tree, str(path), P("data"), mesh=MESH)
    assert texts[0] == texts[1]
    assert '".weight": {"shape": [8, 16], "axes": ["embed", "mlp"], "spec": ["data", null]}' in texts[0]


def test_specs_that_are_only_written_in_another_way_are_equal(path):
    mesh, tree = AbstractMesh((4, 1, 2), ("data", "one", "model")), shapes(8, 16)
    for before, after in [
        (P("data"), P("data", None)),
        (P("data"), P(("data",), None)),
        (P(), P(None, None)),
        (P("data"), P(("one", "data"))),
    ]:
        reported(tree, before, mesh).save_lock(path)
        nym.assert_sharding_lock(tree, path, after, mesh=mesh)
        if "one" not in str(after):
            nym.assert_sharding_lock(tree, path, after, mesh=MESH)


def shapes(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


WEIGHT = "['weight'] (embed: 8, mlp: 16)"
CHANGES = {
    "moved": (
        ({}, {"weight": P(None, ("data", "model"))}, MESH),
        f"moved    {WEIGHT}: P('data', 'model') -> P(None, ('data', 'model'))",
    ),
    "the order of mesh axes": (
        ({}, {"bias": P(("model", "data"))}, MESH),
        "moved    ['bias'] (16,): P(('data', 'model')) -> P(('model', 'data'))",
    ),
    "added": (({"new": shapes(4)}, {"new": P("data")}, MESH), "added    ['new'] (4,): P('data')"),
    "removed": (({"bias": None}, {"bias": None}, MESH), "removed  ['bias'] (16,): P(('data', 'model'))"),
    "resized": (
        ({"weight": nym.NamedArray(shapes(8, 8), ("embed", "mlp"))}, {}, MESH),
        f"resized  {WEIGHT} -> (embed: 8, mlp: 8): P('data', 'model')",
    ),
    "renamed": (
        ({"weight": nym.NamedArray(shapes(8, 16), ("mlp", "embed"))}, {}, MESH),
        f"renamed  {WEIGHT} -> (mlp: 8, embed: 16): P('data', 'model')",
    ),
    "the order of the mesh": (
        ({}, {}, AbstractMesh((2, 4), ("model", "data"))),
        "the mesh: (data: 4, model: 2) -> (model: 2, data: 4)",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_shown_with_what_was_and_what_is(case, locked):
    (arrays, specs, mesh), line = CHANGES[case]
    with pytest.raises(AssertionError, match="the shardings differ from the sharding lock") as error:
        nym.assert_sharding_lock(TREE | arrays, locked, SPECS | specs, mesh=mesh)
    assert str(error.value).splitlines() == [
        f"the shardings differ from the sharding lock {str(locked)!r}:",
        f"  {line}",
        "If this is intended, run once with AXONYM_UPDATE_LOCK=1 outside CI, and commit the file.",
    ]
    assert [entry.ishidden(error) for entry in error.traceback] == [False, True], "pytest shows the line of the test"
    assert locked.read_text() == TEXT


def test_reports_rules_and_arrays_are_held_against_the_lock(path, mesh):
    tree = {"w": np.ones((8, 16), np.float32), "b": np.ones(16, np.float32)}
    rule = nym.AutoShardingRule()
    report = reported(tree, rule, mesh)
    report.save_lock(path)
    nym.assert_sharding_lock(report, path)
    nym.assert_sharding_lock(tree, path, rule)
    nym.assert_sharding_lock(tree, path, rule.apply(tree))
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))
    nym.assert_sharding_lock(shapes, path, rule)
    placed = jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), tree, rule.apply(tree))
    nym.assert_sharding_lock(placed, path)
    with refusal("moved    ['b'] (16,): P(('data', 'model')) -> P(None)", AssertionError):
        nym.assert_sharding_lock(placed | {"b": jax.device_put(tree["b"], NamedSharding(mesh, P()))}, path)


def test_arrays_that_are_not_on_the_mesh_are_told_from_those_that_are(path, auto_mesh):
    turned = jax.make_mesh((2, 4), auto_mesh.axis_names, axis_types=auto_mesh.axis_types)
    values = np.ones((8, 8), np.float32)

    def on(mesh, spec) -> jax.Array:
        return jax.device_put(values, NamedSharding(mesh, spec))

    arrays = {
        "on the host": values,
        "on one device": jax.device_put(values),
        "on no device": shapes(8, 8),
        "P(None, None) on mesh (data: 2, model: 4)": on(turned, P()),
        "P('model', None) on mesh (data: 2, model: 4)": on(turned, P("model")),
    }
    analyzer = nym.ShardingAnalyzer(auto_mesh)
    for message, array in arrays.items():
        analyzer.sharding_report({"w": on(auto_mesh, P())}).save_lock(path)
        with refusal(f"moved    ['w'] (8, 8): P(None, None) -> {message}", AssertionError):
            nym.assert_sharding_lock({"w": array}, path, mesh=auto_mesh)
        analyzer.sharding_report({"w": array}).save_lock(path)
        nym.assert_sharding_lock({"w": array}, path, mesh=auto_mesh)
    half = jax.make_mesh((2, 2), ("a", "b"), axis_types=auto_mesh.axis_types, devices=jax.devices()[:4])
    tree = {"v": on(half, P("a", "b")), "w": on(auto_mesh, P("data"))}
    nym.ShardingAnalyzer().sharding_report(tree).save_lock(path)
    nym.assert_sharding_lock(tree, path)
    line = "P('data', None) on mesh (data: 4, model: 2) -> P('model', 'data') on mesh (data: 4, model: 2)"
    with refusal(line, AssertionError):
        nym.assert_sharding_lock(tree | {"w": on(auto_mesh, P("model", "data"))}, path)


def test_what_is_still_to_be_summed_or_left_to_the_compiler_is_locked_as_such(path, auto_mesh, explicit_mesh):
    tree = jax.ShapeDtypeStruct((8, 8), "float32")
    free, partial = P(P.UNCONSTRAINED, "model"), P("data", unreduced={"model"})
    for mesh, spec, after, text in [
        (explicit_mesh, partial, P("data"), "P('data', None, unreduced={'model'}) -> P('data', None)"),
        (auto_mesh, free, P(None, "model"), "moved    (8, 8): P(UNCONSTRAINED, 'model') -> P(None, 'model')"),
    ]:
        reported(tree, spec, mesh).save_lock(path)
        nym.assert_sharding_lock(tree, path, spec, mesh=mesh)
        with refusal(text, AssertionError):
            nym.assert_sharding_lock(tree, path, after, mesh=mesh)


def test_specs_with_problems_cannot_be_locked(path):
    tree = {"w": shapes(8)}
    for specs, text in [
        ({"w": P("data"), "old": P("model")}, "['old']: a spec is given for it, and the tree has no such part"),
        ({"w": P("data", "data")}, "['w']: "),
    ]:
        text = f"because the specs have problems:\n  {text}"
        with refusal(text):
            reported(tree, specs).save_lock(path)
        with refusal(text):
            nym.assert_sharding_lock(tree, path, specs, mesh=MESH)
    with pytest.raises(ValueError, match=r"and 50 more; `problems` of the report has all$"):
        reported([tree["w"]] * 60, P("modle")).save_lock(path)
    assert not path.exists()
    with refusal("leave out `partition_specs` and `mesh`", TypeError):
        nym.assert_sharding_lock(reported(TREE, SPECS), path, SPECS)
    with pytest.raises(FileNotFoundError, match=r"there is no sharding lock .*; make one with") as error:
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)
    assert repr(str(path)) in str(error.value)
    reported([tree["w"]] * 60, P("data")).save_lock(path)
    with pytest.raises(AssertionError, match="and 10 more") as error:
        nym.assert_sharding_lock([tree["w"]] * 60, path, P(), mesh=MESH)
    assert str(error.value).count("moved") == 50


DAMAGED = {
    "empty": "",
    "text": "not JSON",
    "spec": TEXT.replace('"spec": []', '"spec": 3'),
    "rank": TEXT.replace("[16]", "[16, 2]"),
    "size": TEXT.replace('"model": 2', '"model": "2"'),
    "merge conflict": TEXT.replace('"mesh"', '<<<<<<< HEAD\n  "mesh"'),
    "binary": "\udcff",
    "nested": "[" * 100_000,
    "number": TEXT.replace("[16]", f"[{'1' * 5000}]"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_lock_says_so(kind, path):
    path.write_bytes(DAMAGED[kind].encode(errors="surrogateescape"))
    cause = "ValueError: an array of 2 axes has a spec of length 1" if kind == "rank" else ".*"
    text = rf"is not a sharding lock, or is damaged \({cause}\); make one with `report.save_lock\(path\)`"
    with pytest.raises(ValueError, match=text):
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)


def test_escape_sequences_in_a_lock_do_not_reach_the_terminal(path):
    path.write_text(TEXT.replace("['bias']", "\\u001b[31mred\x9b"))
    with pytest.raises(AssertionError, match=r"removed  \\x1b\[31mred\\x9b \(16,\)"):
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)
    path.write_text(TEXT.replace('"format": 1', '"format": "\\u001b[31m"'))
    with pytest.raises(ValueError, match=r"has format '\\x1b\[31m', this version"):
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)
    path.write_text(TEXT.replace('"format": 1', '"format": 2'))
    with refusal("has format 2, this version of Axonym reads format 1"):
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """A key of a dict that is shown like each other one."""

    order: int

    def __repr__(self) -> str:
        return "Key()"


def test_arrays_under_keys_with_one_repr_have_a_line_each(path):
    tree = {Key(0): TREE["bias"], Key(1): TREE["bias"]}
    first, second = ({Key(0): P(axes[0]), Key(1): P(axes[1])} for axes in (("data", "model"), ("model", "data")))
    reported(tree, first).save_lock(path)
    assert '"[Key()]": {"shape": [16], "spec": ["data"]}' in path.read_text()
    assert '"[Key()] (2)": {"shape": [16], "spec": ["model"]}' in path.read_text()
    nym.assert_sharding_lock(reported(tree, first), path)
    with pytest.raises(AssertionError, match=r"moved    \[Key\(\)\] \(16,\): P\('data'\) -> P\('model'\)\n.*\(2\)"):
        nym.assert_sharding_lock(reported(tree, second), path)


def test_changes_are_accepted_by_an_environment_variable_and_what_holds_is_not_written_again(path, monkeypatch):
    monkeypatch.setenv("AXONYM_UPDATE_LOCK", "1")
    for old in (None, "damaged", TEXT.replace('["data", "model"]]', '["data"]]')):
        if old is not None:
            path.write_text(old)
        nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)
        assert path.read_text() == TEXT
    path.write_text(TEXT.replace("  ", " "))
    nym.assert_sharding_lock(TREE, path, SPECS, mesh=MESH)
    assert path.read_text() == TEXT.replace("  ", " ")


def test_changes_are_never_accepted_in_ci_or_where_the_variable_says_no(locked, tmp_path, monkeypatch):
    for update, ci in [("1", "true"), ("", ""), ("0", ""), ("false", "")]:
        monkeypatch.setenv("AXONYM_UPDATE_LOCK", update)
        monkeypatch.setenv("CI", ci)
        with pytest.raises(AssertionError, match="moved"):
            nym.assert_sharding_lock(TREE, locked, SPECS | {"bias": P()}, mesh=MESH)
        with pytest.raises(FileNotFoundError, match="there is no sharding lock"):
            nym.assert_sharding_lock(TREE, tmp_path / "other", SPECS, mesh=MESH)
    assert locked.read_text() == TEXT
    assert os.listdir(tmp_path) == ["sharding.lock"]


def test_a_lock_is_written_into_a_folder_that_is_there(path):
    path.mkdir()
    with refusal("the lock needs the name of a file", IsADirectoryError):
        reported(TREE, SPECS).save_lock(path)
    assert os.listdir(path.parent) == ["sharding.lock"]
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*locks' for the lock 'a.lock'; make it first"):
        reported(TREE, SPECS).save_lock(path.parent / "locks" / "a.lock")
