"""What an explanation looks like: as text, as HTML, and as plain values."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

import axonym as nym
from axonym.report._format import format_bytes

from ..browser import Element, Reader


MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MAPPING = {"embed": "data", "mlp": "model", "pos": "data", "vocab": "dta"}


def struct(**sizes: int) -> nym.NamedArray:
    """A named array without data."""
    return nym.named(jax.ShapeDtypeStruct(tuple(sizes.values()), jnp.float32), tuple(sizes))


def everything() -> nym.Explanation:
    tree = {
        "a": struct(embed=8, mlp=4),
        "b": jax.ShapeDtypeStruct((3,), jnp.int8),
        "c": struct(embed=8, pos=8),
        "d": struct(Mlp=2),
    }
    return nym.explain(tree, MAPPING, MESH)


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
    lines = str(nym.explain({}, nym.AxisMapping({"embed": "data"}, uneven="replicate"), MESH)).splitlines()
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
    text = nym.explain([tree, struct(embed=10**12)], mapping, MESH).table()
    assert max(map(len, text.splitlines())) <= 120
    assert "…" in text
    assert "['a_long_key_0']  float32" in text  # the innermost keys are kept


def test_long_trees_are_cut_short_but_not_their_totals():
    explanation = nym.explain([struct(embed=8)] * 45 + [struct(embed=6)], MAPPING, MESH)
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


def test_sizes_are_for_people():
    texts = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "1.5 GiB", "1048576 PiB"]
    assert [format_bytes(number) for number in (0, 1023, 1024, 1536, 2**20 - 1, 3 * 2**29, 2**70)] == texts


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
    rows, text = read(nym.explain([struct(**{"<b>": 8})] * 41, {"<i>": "data"}, MESH))
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
