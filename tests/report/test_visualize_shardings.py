"""The arrays of a tree in the terminal, and which device holds which part of them."""

import io
import re
import sys
from unittest import mock
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P
from rich.console import Console

import axonym as nym

from ..refusals import refusal
from .drawings import IMAGES, in_the_terminal, report


def shown(*args, width: int = 100, encoding: str = "utf-8", **options) -> str:
    """What is printed where there is no terminal, without the blanks at the ends of lines."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    nym.visualize_shardings(*args, console=Console(file=file, width=width), **options)
    file.flush()
    return "\n".join(line.rstrip() for line in file.buffer.getvalue().decode(encoding).splitlines())


def held(text: str, heading: str) -> list[list[list[int]]]:
    """The devices in each cell of the picture below a heading."""
    _, _, picture = text.partition(f"\n{heading}")
    lines = [re.sub(r"^.*#\d+ ", "", line).strip() for line in picture.partition("\n\n")[0].splitlines()[2:]]
    return [[[int(device) for device in cell.split()] for cell in re.split(r"\s{2,}", line)] for line in lines]


def test_each_array_has_its_axes_spec_and_bytes(auto_mesh):
    placed = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(auto_mesh, P("data", "model")))
    tree = {
        "weight": nym.named(placed, ("embed", "mlp")),
        "bias": jax.device_put(np.zeros(6, "int8"), NamedSharding(auto_mesh, P())),
        "key": jax.random.key(0),
        "rate": 0.1,
        "nothing": None,
    }
    text = shown(tree)
    lines = [line.split() for line in text.splitlines()]
    assert " ".join(lines[0]) == "mesh (data: 4, model: 2), 8 devices"
    assert " ".join(lines[2][:6]) == "bias int8 (6) P(None,) 6 B"
    assert lines[3][0] == "key"
    assert " ".join(lines[4][:10]) == "weight float32 (embed: 8, mlp: 4) P('data', 'model') 16 B"
    assert " ".join(lines[5]).startswith("3 arrays,")
    assert "embed over data (4), mlp over model (2): 1 array" in text
    assert "embed #3" in text


def test_a_bar_is_as_long_as_the_bytes_on_each_device(auto_mesh):
    tree = [jax.ShapeDtypeStruct((size,), "float32") for size in (400, 200, 100, 1, 0)]
    bars = [re.sub("[^\u2580-\u259f]", "", line) for line in shown(tree, auto_mesh, limit=None).splitlines()[2:7]]
    # Arrays that differ in size are not one line, though their paths differ in a number alone.
    assert [len(bar) for bar in bars] == [10, 5, 3, 1, 0]
    assert bars[2] == "\N{FULL BLOCK}\N{FULL BLOCK}\N{LEFT HALF BLOCK}"


def test_the_picture_says_which_devices_hold_which_part(auto_mesh):
    x = jax.device_put(np.arange(32.0).reshape(8, 4), NamedSharding(auto_mesh, P(("model", "data"), None)))
    y = jax.device_put(np.arange(32.0).reshape(2, 16), NamedSharding(auto_mesh, P("model", "data")))
    z = jax.device_put(np.arange(32.0).reshape(2, 2, 8), NamedSharding(auto_mesh, P(None, "model", None)))
    text = shown({"x": x, "y": y, "z": z}, width=200)
    (cells,) = held(text, "dim 0 over model x data (8): 1 array")
    for index, devices in enumerate(cells):
        (part,) = (np.asarray(shard.data) for shard in x.addressable_shards if shard.device.id in devices)
        np.testing.assert_array_equal(part, np.arange(32.0).reshape(8, 4)[index : index + 1])
    for row, line in enumerate(held(text, "dim 0 over model (2), dim 1 over data (4): 1 array")):
        for column, devices in enumerate(line):
            (part,) = (np.asarray(shard.data) for shard in y.addressable_shards if shard.device.id in devices)
            assert part[0, 0] == 16 * row + 4 * column
    (cells,) = held(text, "dim 1 over model (2): 1 array")
    for index, devices in enumerate(cells):
        parts = [np.asarray(shard.data) for shard in z.addressable_shards if shard.device.id in devices]
        assert [part[0, 0, 0] for part in parts] == [8 * index] * 4


def test_a_report_knows_its_devices_and_what_does_not_says_so(auto_mesh):
    turned = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("data", "model"))
    x = jax.device_put(np.zeros((8, 8)), NamedSharding(turned, P("data", "model")))
    text, heading = shown(nym.ShardingAnalyzer(turned).sharding_report(x)), "dim 0 over data (4), dim 1 over model"
    assert held(text, heading) == held(shown(x), heading) == [[[7 - 2 * index], [6 - 2 * index]] for index in range(4)]
    assert "positions in the mesh" not in text
    assert "Devices are numbered by their positions in the mesh." in shown(nym.explain(x))


def test_an_element_type_of_all_arrays_is_in_the_head():
    shape = jax.ShapeDtypeStruct((64, 256), "float32")
    tree = {"opt_state": {"mu": {"blocks": {"attention": {"query": {"kernel": {"value": shape}}}}}}, "b": shape}
    lines = shown(tree, AbstractMesh((4, 2), ("data", "model")), width=80).splitlines()
    assert lines[1].split()[:3] == ["array", "axes,", "float32"]
    assert max(map(len, lines)) <= 80
    assert "".join(line.split("  ")[0] for line in lines[3:5]) == "opt_state/mu/blocks/attention/query/kernel/value"


def test_arrays_of_four_divided_axes_have_a_picture_and_those_on_large_meshes_a_part_of_it():
    mesh = AbstractMesh((2, 2, 2, 2), ("a", "b", "c", "d"))
    x = jax.ShapeDtypeStruct((2, 2, 2, 2), "float32", sharding=NamedSharding(mesh, P("a", "b", "c", "d")))
    cells = held(shown(x), "dim 0 over a (2), dim 1 over b (2), dim 2 over c (2), dim 3 over d (2)")
    assert cells == [[[2 * index], [2 * index + 1]] for index in range(8)]
    mesh = AbstractMesh((64, 32, 16), ("a", "b", "c"))
    x = jax.ShapeDtypeStruct((64, 32), "float32", sharding=NamedSharding(mesh, P("a", "b")))
    lines = shown(x).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) < 30
    assert lines[-1].startswith("dim 0 #63")
    assert lines[-1].endswith("32752-32767")
    assert any(line.strip() == "\N{HORIZONTAL ELLIPSIS}" for line in lines)


def test_layers_that_are_alike_share_a_line(auto_mesh):
    text = shown(report(), width=120)
    assert re.search(r"blocks/\*/mlp/up/weight +x12 +\(768, 3072\) +P\('fsdp', 'tensor'\) +13.5 MiB", text)
    assert text.count("blocks/") == 12
    totals = "148 arrays, 474.7 MiB; 121.1 MiB (25.5%) on the fullest device, 3.2 MiB of it in 75 unsharded arrays"
    assert totals in text
    layer = jax.ShapeDtypeStruct((8,), "float32")
    divided = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(auto_mesh, P("data")))
    lines = shown([layer, divided, layer], auto_mesh).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["*", "x2"], ["1", "(8)"]]


def test_long_trees_are_cut_and_say_so(auto_mesh):
    tree = {f"array_{index}": jax.ShapeDtypeStruct((4,), "float32") for index in range(50)}
    assert "\N{HORIZONTAL ELLIPSIS} 10 more lines; `limit=None` shows all" in shown(tree, auto_mesh)
    assert shown(tree, auto_mesh, limit=3).count("array_") == 3
    assert shown(tree, auto_mesh, limit=None).count("array_") == 50
    assert "50 arrays" in shown(tree, auto_mesh, limit=0)
    with refusal("`limit` is the number of lines to show, or None for all; it was -1."):
        nym.visualize_shardings({}, limit=-1)


def test_explanations_and_reports_are_shown_as_well(auto_mesh):
    x = nym.NamedArray(jax.ShapeDtypeStruct((8,), "float32"), "batch")
    assert "batch over data (4): 1 array" in shown(nym.explain(x, {"batch": "data"}, auto_mesh))
    refused = nym.ShardingAnalyzer(auto_mesh).sharding_report({"x": np.ones(6)}, {"x": P("data")})
    assert "invalid" in shown(refused)
    placed = nym.named(jax.device_put(np.zeros(8), NamedSharding(auto_mesh, P("model"))), "batch")
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data"}):
        assert "P('model',)" in shown(placed)
    second = jax.make_mesh((2, 4), ("data", "model"), axis_types=auto_mesh.axis_types)
    elsewhere = jax.device_put(np.zeros(8), NamedSharding(second, P("model")))
    assert "dim 0 over" not in shown(elsewhere, auto_mesh)
    text = shown({"x": jax.device_put(np.ones(3)), "y": np.ones(3)})
    assert text.startswith("no mesh, 1 device")
    assert "on one device" in text
    assert "over" not in text


def test_inside_jit_it_prints_while_tracing(mesh):
    texts = []
    x = jax.device_put(np.zeros((8, 4), "float32"), NamedSharding(mesh, P("data")))
    jax.jit(lambda x: texts.append(shown({"x": x}))).trace(x)
    (text,) = texts
    assert text.startswith("mesh (data: 4, model: 2), 8 devices")
    assert ("P('data', None)" in text) == (mesh.axis_types[0] == jax.sharding.AxisType.Explicit)


def test_nothing_is_read_as_markup_and_no_line_is_too_long(auto_mesh):
    tree = {"[bold red]name[/]": np.ones((4, 4)), "a" * 90: np.ones(4), ":smile:": np.ones(2)}
    for width in (40, 60, 80):
        lines = shown(tree, auto_mesh, width=width).splitlines()
        assert max(map(len, lines)) <= width
    text = shown(tree, auto_mesh, width=160)
    assert "[bold red]name[/]" in text
    assert ":smile:" in text


def test_colours_go_to_a_terminal_and_not_to_a_file():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=110)
    nym.visualize_shardings(report(), console=console)
    assert "\x1b[" in console.file.getvalue()
    assert "\x1b" not in shown(report())
    text = shown(report(), width=110, encoding="ascii")  # where nothing else can be written
    assert text.isascii()
    assert "#####" in text
    with mock.patch.dict(sys.modules, {"rich.table": None}):
        with pytest.raises(ImportError, match=r"needs rich, .*; install it with `pip install axonym\[report\]`"):
            nym.visualize_shardings({})


def test_the_picture_in_the_documentation_is_this_one():
    """The numbers and names are those of today; where rich puts them is its own affair."""
    saved = (IMAGES / "shardings.svg").read_text(encoding="utf-8")
    texts = [
        ["".join(item.itertext()) for item in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        for svg in (saved, in_the_terminal())
    ]
    assert texts[0] == texts[1], "Draw it anew with `python -m tests.report.drawings`."
    assert "url(http" not in saved and "@font-face" not in saved
