"""`explain` says for each axis where it goes and why, just as `shard` decides it, and goes on where `shard` refuses."""

import dataclasses
import json
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym

from ..browser import Element, Reader
from ..refusals import refusal


ABSTRACT = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def struct(dtype: Any = jnp.float32, **sizes: int) -> nym.NamedArray:
    """A named array without data."""
    return nym.named(jax.ShapeDtypeStruct(tuple(sizes.values()), dtype), tuple(sizes))


def only(tree: Any, mapping: Any = None, mesh: Any = ABSTRACT) -> Any:
    """What is explained of a tree with one array."""
    (leaf,) = nym.explain(tree, mapping, mesh).leaves
    return leaf


def decisions(leaf: Any) -> list[tuple[str, tuple[str, ...], int]]:
    return [(axis.decision, axis.mesh_axes, axis.parts) for axis in leaf.axes]


@dataclasses.dataclass(frozen=True)
class Last:
    """A rule that divides the last axis of matrices."""

    axis: str = "data"

    def apply(self, array: Any) -> P | None:
        return P(None, self.axis) if len(array.shape) == 2 else None


class Scale(eqx.Module):
    weight: Any = nym.field(axis_names=("embed",))
    table: Any = None
    act: Any = jax.nn.relu


def test_each_axis_has_the_mesh_axes_and_the_entry_that_decided(mesh):
    leaf = only({"w": struct(batch=8, mlp=3, pos=2)}, {"batch": ("data", "model"), "mlp": None}, None)
    assert (leaf.path, leaf.dtype, leaf.shape, leaf.kind) == ("['w']", "float32", (8, 3, 2), "named")
    assert decisions(leaf) == [("mapping", ("data", "model"), 8), ("None", (), 1), ("not in the mapping", (), 1)]
    assert [axis.why for axis in leaf.axes] == ["'batch': ('data', 'model')", "'mlp': None", "not in the mapping"]
    assert leaf.spec == P(("data", "model"), None, None)
    assert (leaf.bytes, leaf.bytes_per_device, leaf.replicated_bytes) == (192, 24, 0)
    with nym.axis_mapping(embed="model"):
        leaf = only(struct(embed=4), None, None)
    assert (leaf.path, leaf.spec) == ("", P("model"))
    with jax.set_mesh(None), refusal("`explain` with a mapping needs a mesh; set one"):
        nym.explain(struct(embed=8), {"embed": "data"})


def test_axes_that_do_not_fit_or_divide_nothing_are_told_apart():
    leaf = only(struct(embed=6), nym.AxisMapping({"embed": "data"}, uneven="replicate"))
    assert decisions(leaf) == [("uneven", (), 1)]
    why = "'embed': 'data', but 6 is not divisible by 'data' of size 4; the next size that fits is 8"
    assert leaf.axes[0].why == why
    assert (leaf.bytes_per_device, leaf.replicated_bytes) == (24, 7 * 24)
    leaf = only(struct(embed=6), {"embed": "data"}, AbstractMesh((1, 8), ("data", "model")))
    assert decisions(leaf) == [("size 1", ("data",), 1)]
    assert (leaf.axes[0].why, leaf.spec) == ("'embed': 'data', which has size 1", P("data"))


def test_declared_axes_go_by_their_names_and_others_by_no_rule():
    explanation = nym.explain(Scale(np.ones(8, np.float32), np.ones((2, 3), np.float32)), {"embed": "data"}, ABSTRACT)
    weight, table = explanation.leaves
    assert (weight.path, weight.kind, weight.spec) == (".weight", "field", P("data"))
    assert (table.path, table.kind, table.spec) == (".table", "plain", P(None, None))
    assert {axis.why for axis in table.axes} == {"no axis names, no fallback rule"}
    assert [axis.name for axis in table.axes] == [None, None]
    assert (table.bytes_per_device, table.replicated_bytes) == (24, 7 * 24)


def test_a_near_miss_is_named_and_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explanation = nym.explain(struct(emebd_of_explain=8), {"embed_of_explain": "data"}, ABSTRACT)
    assert explanation.leaves[0].axes[0].why == "not in the mapping; did you mean 'embed_of_explain'?"
    for tree, name, near_misses in [
        (struct(emebd_of_explain=8), "embed_of_explain", {"emebd_of_explain": "embed_of_explain"}),
        (struct(head=4), "hed", {"head": "hed"}),
        ([struct(head=4), struct(hed=4)], "hed", {}),
        ([struct(mlp=4), struct(mpl=4)], "mpl", {"mlp": "mpl"}),
    ]:
        assert nym.explain(tree, {name: "model"}, ABSTRACT).near_misses == near_misses
    with pytest.warns(RuntimeWarning, match="the mapping has no 'emebd_of_explain', but"):
        nym.shard(struct(emebd_of_explain=8), {"embed_of_explain": "data"}, ABSTRACT)


def test_what_a_rule_decides_leaves_and_raises_is_told():
    explanation = nym.explain([np.ones((2, 8)), np.ones(8)], nym.AxisMapping(fallback=Last()), ABSTRACT)
    matrix, vector = explanation.leaves
    assert decisions(matrix) == [("rule", (), 1), ("rule", ("data",), 4)]
    assert matrix.axes[1].why == "the rule `Last`: 'data'"
    assert decisions(vector) == [("no rule", (), 1)]
    assert vector.axes[0].why == "no axis names, the rule `Last` gives no spec"
    assert explanation.options == {"fallback": "Last(axis='data')"}
    array = np.ones((2, 6))
    leaf = only(array, nym.AxisMapping(fallback=Last(), uneven="replicate"))
    assert decisions(leaf) == [("rule", (), 1), ("uneven", (), 1)]
    assert leaf.axes[1].why.endswith("but 6 is not divisible by 'data' of size 4; the next size that fits is 8")
    error = only(array, nym.AxisMapping(fallback=Last())).error
    assert "gives P(None, 'data') for shape (2, 6): dimension 1 has size 6" in error

    class Broken:
        def apply(self, array: Any) -> P:
            raise KeyError("no such layer")

    leaf = only({"a": np.ones(4)}, nym.AxisMapping(fallback=Broken()))
    assert leaf.error == "'no such layer'"
    assert decisions(leaf) == [("refused", (), 1)]


@pytest.mark.parametrize(
    ("array", "refused"),
    [
        (struct(embed=6), [True]),
        (struct(embed=8, pos=8, mlp=4), [True, True, False]),
        (struct(vocab=8, mlp=4), [True, False]),
        (Scale(np.ones((2, 2))), [True, True]),
    ],
    ids=["uneven", "twice", "unknown", "rank"],
)
def test_what_shard_refuses_is_listed_with_its_error_and_the_rest_goes_on(array, refused):
    mapping = {"embed": "data", "pos": "data", "vocab": "columns", "mlp": "model"}
    tree = {"a": struct(mlp=4), "b": array, "c": struct(embed=4)}
    with pytest.raises(ValueError, match="'b'") as raised:
        nym.shard(tree, nym.AxisMapping(mapping), ABSTRACT)
    explanation = nym.explain(tree, mapping, ABSTRACT)
    (problem,) = explanation.problems
    assert problem.error == str(raised.value)
    assert problem.spec is None
    assert problem.bytes_per_device == problem.bytes
    assert [axis.decision == "refused" for axis in problem.axes] == refused
    assert [leaf.spec for leaf in explanation.leaves if leaf.error is None] == [P("model"), P("data")]


def test_entries_and_mesh_axes_that_nothing_uses_are_listed():
    mapping = {"embed": "data", "vocab": "model", "expert": ("data", "exprt")}
    explanation = nym.explain(struct(embed=8), mapping, ABSTRACT)
    assert explanation.unused_entries == {"vocab": ("model",), "expert": ("data", "exprt")}
    assert explanation.unknown_entries == {"expert": ("exprt",)}
    assert explanation.unused_mesh_axes == ("model",)
    assert explanation.problems == ()


def test_a_part_of_the_tree_with_a_mapping_of_its_own_goes_by_that():
    tree = {"a": struct(embed=8, mlp=4), "b": nym.ShardedBy(struct(embed=8, mlp=4), {"mlp": "model"})}
    explanation = nym.explain(tree, {"embed": "data"}, ABSTRACT)
    first, second = explanation.leaves
    assert (first.spec, second.spec) == (P("data", None), P(None, "model"))
    assert [axis.why for axis in second.axes] == [
        "not in the mapping of this part",
        "'mlp': 'model' in the mapping of this part",
    ]
    assert (explanation.unused_entries, explanation.unused_mesh_axes) == ({}, ())


def test_bytes_are_those_of_the_elements_of_arrays_alone():
    arrays = [
        (struct(jnp.int4, embed=8, pos=3), (12, 3)),
        (struct(jnp.int4, embed=4, pos=1), (2, 1)),
        (struct(jnp.uint2, embed=8), (2, 1)),
        (struct(jnp.bool, embed=8), (8, 2)),
        (struct(jnp.bfloat16, embed=8), (16, 4)),
        (struct(embed=0, pos=3), (0, 0)),
        (Scale(np.ones(8, np.float64)), (64, 16)),
        (nym.named(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8)), "embed"), (64, 16)),
        (np.float32(1), (4, 4)),
    ]
    tree = [[array, None, 1.5, "text", jax.nn.relu] for array, _ in arrays]
    explanation = nym.explain(tree, {"embed": "data"}, ABSTRACT)
    assert [(leaf.bytes, leaf.bytes_per_device) for leaf in explanation.leaves] == [sizes for _, sizes in arrays]
    assert (explanation.bytes, explanation.bytes_per_device) == (172, 47)
    assert explanation.replicated_bytes == sum(leaf.replicated_bytes for leaf in explanation.leaves)
    assert (explanation.share, explanation.devices, explanation.mesh) == (47 / 172, 8, {"data": 4, "model": 2})
    empty = nym.explain({"a": None}, {"embed": "data"}, ABSTRACT)
    assert (empty.leaves, empty.bytes, empty.share) == ((), 0, 0.0)


def test_where_an_array_lies_now_is_told_if_it_is_elsewhere(mesh):
    mapping, values = {"embed": "data"}, np.ones(8, np.float32)
    with jax.set_mesh(None):
        whole = nym.named(jax.device_put(values), "embed")
        second = jax.device_put(values, NamedSharding(jax.make_mesh((8,), ("x",), (AxisType.Auto,)), P("x")))
    pinned = jax.device_put(values, NamedSharding(mesh, P("data"), memory_kind="pinned_host"))
    arrays = {
        "on one device": whole,
        "None": nym.shard(whole, mapping),
        "P('model',)": nym.shard(whole, {"embed": "model"}),
        "replicated": nym.shard(whole, {}),
        "on the host": Scale(values),
        "P('x',) on another mesh (x: 8)": nym.named(second, "embed"),
        "P('data',), in pinned_host memory": nym.named(pinned, "embed"),
    }
    assert [str(leaf.now) for leaf in nym.explain([*arrays.values()], mapping).leaves] == [*arrays]
    tree = [whole.array, struct(embed=8)]
    assert [leaf.now for leaf in nym.explain(tree, mapping).leaves] == ["on one device", None]
    placed = arrays["None"]
    assert only(placed, mapping, mesh.abstract_mesh).now is None
    assert only(placed, {"embed": "model"}, mesh.abstract_mesh).now == "P('data',)"
    leaf = only(jax.device_put(np.ones((8, 3), np.float32), NamedSharding(mesh, P("data"))), {"embed": "model"}, None)
    assert decisions(leaf) == [("sharding", ("data",), 4), ("sharding", (), 1)]
    assert leaf.axes[0].why == "its own sharding: 'data'"
    assert (leaf.spec, leaf.bytes_per_device, leaf.now) == (P("data", None), 24, None)


def test_inside_jit_and_shard_map_traced_arrays_are_explained(mesh):
    calls = []

    def explained(x):
        calls.append(nym.explain([x, x.array], {"embed": "data", "mlp": "model"}))
        return x

    x, spec = nym.NamedArray(np.ones((8, 4), np.float32), ("embed", "mlp")), P("data", None)
    jax.jit(explained).trace(x)
    leaf, plain = calls[0].leaves
    x = nym.shard(x, {"embed": "data"})
    assert (leaf.spec, leaf.bytes_per_device, leaf.now) == (P("data", "model"), 16, None)
    assert (plain.kind, plain.bytes) == ("plain", 128)
    jax.jit(jax.shard_map(explained, in_specs=(spec,), out_specs=spec, axis_names={"data"})).trace(x)
    leaf = calls[1].leaves[0]
    assert decisions(leaf) == [("manual", (), 1), ("mapping", ("model",), 2)]
    assert leaf.axes[0].why == "'embed': 'data', which is Manual here"
    assert (calls[1].devices, leaf.bytes, leaf.bytes_per_device, leaf.replicated_bytes) == (2, 32, 16, 0)
    assert calls[1].unused_mesh_axes == ()
    assert str(calls[1]).startswith("mesh (data: 4, model: 2), 2 devices outside the Manual mesh axes; mapping")


def test_without_a_mapping_the_arrays_own_shardings_are_explained(mesh):
    devices = jax.devices()
    sizes = {0: 2, 1: 5, 2: 4}
    tree = [jax.device_put(np.ones(size, np.float32), devices[index % 2]) for index, size in sizes.items()]
    placed = nym.shard(nym.NamedArray(np.ones(8, np.float32), "embed"), {"embed": "data"})
    with jax.set_mesh(None):
        explanation, without_mesh = nym.explain([placed, tree[0]]), nym.explain(tree)
    assert (explanation.mapping, explanation.mesh, explanation.devices) == (None, {"data": 4, "model": 2}, 8)
    first, second = explanation.leaves
    assert decisions(first) == [("sharding", ("data",), 4)]
    assert (first.spec, first.replicated_bytes) == (P("data"), 32)
    assert decisions(second) == [("no mapping", (), 1)]
    assert second.axes[0].why == "on one device; 'model' could shard it"
    assert (second.bytes_per_device, second.replicated_bytes) == (8, 0)
    assert explanation.unused_mesh_axes == ("model",)
    assert (without_mesh.bytes, without_mesh.bytes_per_device) == (44, 24), "the fullest device counts"
    assert (without_mesh.devices, without_mesh.mesh) == (2, {})


@pytest.mark.parametrize(
    ("axis_types", "expected"),
    [
        ("auto", "added up over replica x data; each device keeps its part over data"),
        ("explicit", "scattered over data, then added up over replica"),
    ],
)
def test_the_gradient_of_a_stored_parameter_is_added_up_where_the_program_does_so(axis_types, expected):
    parameters = {"weight": struct(mlp=16, embed=8), "bias": struct(mlp=16), "count": struct(jnp.int32, embed=8)}
    compute = {"batch": ("replica", "data"), "heads": "model"}
    stored = {**compute, "embed": "data"}
    mesh = nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)
    explained = nym.explain(parameters, stored, mesh, compute_mapping=compute)
    gradients = {leaf.path: leaf.gradient for leaf in explained.leaves}
    assert gradients == {"['weight']": expected, "['bias']": "added up over replica x data", "['count']": None}
    assert f"gradient {expected}" in " ".join(str(explained).split())

    def step(weight: Any) -> Any:
        layer = nym.nn.Linear.init(nym.Axis("embed", 8), nym.Axis("mlp", 16), key=jax.random.key(0), use_bias=False)
        x = nym.shard(nym.ones({"batch": 8, "embed": 8}))
        return jax.grad(lambda weight: nym.mean(dataclasses.replace(layer, weight=weight)(x) ** 2).scalar())(weight)

    with jax.set_mesh(mesh):
        report = nym.planner.communication_report(nym.fsdp(step, stored, compute), parameters["weight"])
    sums = {(sent.kind, sent.mesh_axes) for sent in report.collectives if sent.run_in == "backward"}
    if axis_types == "auto":
        assert sums == {("all-reduce", ("replica", "data"))}
    else:
        assert sums == {("reduce-scatter", ("data",)), ("all-reduce", ("replica",))}


def test_a_mapping_for_computing_that_does_not_fit_is_told_and_one_alone_is_refused(mesh):
    parameter = struct(mlp=3, embed=8)
    (leaf,) = nym.explain(parameter, {"embed": "data"}, mesh, compute_mapping={"batch": "data", "mlp": "model"}).leaves
    assert leaf.gradient.startswith("`compute_mapping` does not fit: axis 'mlp' has size 3, which is not divisible")
    typo = "dta" if mesh.axis_types[0] == AxisType.Auto else "dat"  # each is warned of once
    with pytest.warns(RuntimeWarning, match="did you mean 'data'"):
        (leaf,) = nym.explain(parameter, {"embed": "data"}, mesh, compute_mapping={"batch": typo}).leaves
    assert leaf.gradient.startswith("nothing is known: `compute_mapping` shards no batch")
    with refusal("`explain` takes a `compute_mapping` beside the mapping"):
        nym.explain(parameter, compute_mapping={"batch": "data"})
    slice_of_tpus = nym.planner.described_devices("v5e:8x8")
    tpus = nym.create_mesh({"data": 64}, axis_types="explicit", devices=slice_of_tpus)
    (leaf,) = nym.explain(struct(embed=64), {"embed": "data"}, tpus, compute_mapping={"batch": "data"}).leaves
    assert leaf.gradient == "scattered over data in 2 rounds"


@pytest.mark.parametrize("mapping", [{"embed": ("model", "data")}, {"mlp": "model"}], ids=str)
def test_the_bytes_per_device_are_those_that_the_fullest_device_holds(mesh, mapping):
    tree = {
        "a": nym.NamedArray(np.ones((8, 4), np.float32), ("embed", "mlp")),
        "b": nym.NamedArray(np.ones(8, jnp.bfloat16), "embed"),
        "c": jax.device_put(np.ones(3, np.float32), P()),
        "keys": nym.named(jax.random.split(jax.random.key(0), 8), "embed"),
    }
    placed = nym.shard(tree, mapping)
    sizes: dict[Any, int] = {}
    for array in jax.tree.leaves(placed):
        for part in array.addressable_shards:
            sizes[part.device] = sizes.get(part.device, 0) + part.data.nbytes
    for explanation in (nym.explain(placed, mapping), nym.explain(placed)):
        assert explanation.bytes_per_device == max(sizes.values())
        assert explanation.bytes + explanation.replicated_bytes == sum(sizes.values())


def test_pipelines_are_drawn_where_they_can_run():
    Layers, Embed = nym.make_axes(layers=8, embed=4)
    stack = nym.nn.Stacked.init(Layers, nym.nn.RmsNorm)(Embed)
    mesh = nym.create_mesh((4, 2), ("stage", "data"))
    policy = nym.Policy(microbatches={"batch": 4})
    explanation = nym.explain(stack.interleave(4, 2), {"layers": "stage"}, mesh, policy=policy)
    assert explanation.pipelines == {"layers": nym.nn.PipelineSchedule(4, 4, 2)}
    assert explanation.to_dict()["pipelines"] == {"layers": {"stages": 4, "microbatches": 4, "repeats": 2}}
    heading, *rows = str(explanation).split("\n\n")[-1].split("\n")
    assert heading == (
        "Layers along 'layers' are a pipeline of 4 stages, 4 microbatches, 2 groups of layers each, 11 turns, bubble "
        "27.3 %:"
    )
    assert rows == str(explanation.pipelines["layers"]).split("\n")[1:]
    assert "<pre>stage 0" in explanation._repr_html_()
    for microbatches, layers in ((2, stack), (4, stack.interleave(2, 2))):
        other = nym.Policy(microbatches={"batch": microbatches})
        assert nym.explain(layers, {"layers": "stage"}, mesh, policy=other).pipelines == {}
    assert nym.explain(stack, {"layers": "stage"}, mesh).pipelines == {}


# What it looks like: as text, as HTML, and as plain values


MAPPING = {"embed": "data", "mlp": "model", "pos": "data", "vocab": "dta"}


def everything() -> nym.Explanation:
    tree = {
        "a": struct(embed=8, mlp=4),
        "b": jax.ShapeDtypeStruct((3,), jnp.int8),
        "c": struct(embed=8, pos=8),
        "d": struct(Mlp=2),
    }
    return nym.explain(tree, MAPPING, ABSTRACT)


TABLE = """\
mesh (data: 4, model: 2), 8 devices; mapping {'embed': 'data', 'mlp': 'model', 'pos': 'data', 'vocab': 'dta'}

array                                 bytes  per device   copies
  axis   size  mesh axes  why
----------------------------------------------------------------
['a']  float32                        128 B        16 B      0 B
  embed     8  data (4)   'embed': 'data'
  mlp       4  model (2)  'mlp': 'model'
['b']  int8, plain                      3 B         3 B     21 B
  -         3  -          no axis names, no fallback rule
['c']  float32                        256 B       256 B  1.8 KiB
  embed     8  -          error, see below
  pos       8  -          error, see below
['d']  float32                          8 B         8 B     56 B
  Mlp       2  -          not in the mapping; did you mean 'mlp'?
----------------------------------------------------------------
4 arrays, 71.6% on each device        395 B       283 B  1.8 KiB

`shard` raises an error for 1 of 4 arrays:
  ['c']: axes 'embed' and 'pos' of (embed: 8, pos: 8) are both mapped to mesh axis 'data'; map one of them to another
  mesh axis or to None

Mapping entries with a mesh axis that the mesh does not have:
  'vocab': 'dta'

Axis names that are close to one in the mapping:
  'Mlp': did you mean 'mlp'?

Mapping entries for axes that no array has: 'vocab': 'dta'"""


def test_the_table_says_everything():
    explanation = everything()
    assert str(explanation) == repr(explanation) == explanation.table() == TABLE
    lines = str(nym.explain({}, nym.AxisMapping({"embed": "data"}, uneven="replicate"), ABSTRACT)).splitlines()
    assert lines[0] == "mesh (data: 4, model: 2), 8 devices; mapping {'embed': 'data'}, uneven='replicate'"
    assert lines[-3:] == [
        "Mapping entries for axes that no array has: 'embed': 'data'",
        "",
        "Mesh axes that no array is sharded over: 'data', 'model'",
    ]


def test_lines_have_at_most_120_columns_whatever_the_names():
    long = "a_very_long_name_of_an_axis_" * 5
    tree: Any = struct(**{long: 6, "embed": 8})
    for index in range(12):
        tree = {f"a_long_key_{index}": tree}
    mapping = nym.AxisMapping({long: "data", "other" * 40: "model"}, uneven="replicate")
    text = nym.explain([tree, struct(embed=10**12)], mapping, ABSTRACT).table()
    assert max(map(len, text.splitlines())) <= 120
    assert "…" in text
    assert "['a_long_key_0']  float32" in text  # the innermost keys are kept


def test_long_trees_are_cut_short_but_not_their_totals():
    explanation = nym.explain([struct(embed=8)] * 45 + [struct(embed=6)], MAPPING, ABSTRACT)
    assert "[39]" in str(explanation)
    assert "[40]" not in str(explanation)
    assert "… 6 more; `.table(limit=None)` shows all\n" in str(explanation)
    assert "46 arrays" in str(explanation)
    assert "[45]: axis 'embed' has size 6" in str(explanation)
    assert "[44]" in explanation.table(limit=None)
    assert "more;" not in explanation.table(None)
    assert "[1]" not in explanation.table(limit=1)
    with pytest.raises(ValueError, match="`limit` is the number of arrays to show"):
        explanation.table(-1)


def read(explanation: nym.Explanation) -> tuple[list[list[Element]], str]:
    """The cells in the rows of a table, and all its text."""
    reader = Reader(explanation._repr_html_())
    (page,) = reader.open
    return [[cell for cell in row.all() if cell.tag in ("td", "th")] for row in page.all("tr")], page.text


def test_html_has_the_same_rows_in_a_table_without_gaps_and_loads_nothing():
    rows, text = read(everything())
    assert [[cell.text for cell in row] for row in rows[:3]] == [
        ["array / axis", "size", "mesh axes", "why", "bytes", "per device", "copies"],
        ["['a']\u2002float32", "128 B", "16 B", "0 B"],
        ["embed", "8", "data (4)", "'embed': 'data'"],
    ]
    assert {sum(int(cell.attributes.get("colspan", 1)) for cell in row) for row in rows} == {7}
    assert "both mapped to mesh axis 'data'" in text
    assert "'Mlp': did you mean 'mlp'?" in text
    rows, text = read(nym.explain([struct(**{"<b>": 8})] * 41, {"<i>": "data"}, ABSTRACT))
    assert rows[2][0].text == "<b>"
    assert "'<i>': 'data'" in text
    assert "… 1 more; .table(limit=None) shows all" in text
    html = everything()._repr_html_()
    assert "http" not in html and "<script" not in html
    assert "color:inherit" in html  # dark themes have light text


def test_plain_values_survive_json():
    explanation = everything()
    values = explanation.to_dict()
    assert json.loads(explanation.to_json()) == values
    assert explanation.to_json(indent=None) == json.dumps(values, sort_keys=True)
    first = values["leaves"][0]
    axis = {"name": "embed", "size": 8, "mesh_axes": ["data"], "parts": 4, "decision": "mapping", "near_miss": None}
    assert first.pop("axes")[0] == axis | {"why": "'embed': 'data'"}
    assert first == {
        "path": "['a']",
        "dtype": "float32",
        "shape": [8, 4],
        "kind": "named",
        "spec": [["data"], ["model"]],
        "bytes": 128,
        "bytes_per_device": 16,
        "replicated_bytes": 0,
        "now": None,
        "error": None,
        "gradient": None,
    }
    assert values["leaves"][2]["spec"] is None
    assert list(values["problems"]) == ["['c']"]
    assert values["mapping"] == {"embed": ["data"], "mlp": ["model"], "pos": ["data"], "vocab": ["dta"]}
    assert (values["mesh"], values["devices"]) == ({"data": 4, "model": 2}, 8)
    assert (values["unused_entries"], values["unknown_entries"]) == ({"vocab": ["dta"]}, {"vocab": ["dta"]})
    assert (values["near_misses"], values["unused_mesh_axes"]) == ({"Mlp": "mlp"}, [])
