"""The page of a report: what is in the file, and what a browser makes of it."""

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P
from matplotlib.image import imread

import axonym as nym

from ..browser import Element, Opened, opened
from .drawings import IMAGES, MESH, report


ROOT = Path(__file__).parents[2]
HOSTILE = "</script><script>document.title = 'run'</script><img src=x onerror=document.title='run'>&amp;]['"


class Tile(NamedTuple):
    """Where an array is in the picture, in shares of its width and height."""

    array: int
    left: float
    top: float
    width: float
    height: float

    @property
    def area(self) -> float:
        return self.width * self.height


def tiles(page: Element) -> list[Tile]:
    elements = page.by_id("map").all(kind="tile")
    sides = ("left", "top", "width", "height")
    return [
        Tile(int(element.attributes["data-at"]), *(float(element.style[side][:-1]) / 100 for side in sides))
        for element in elements
    ]


def rows(page: Element) -> list[list[str]]:
    """The cells of the rows of the table that are to be seen."""
    elements = page.by_id("rows").all("tr")
    return [[cell.text for cell in row.all("td")] for row in elements if "hidden" not in row.attributes]


def overlap(first: Tile, second: Tile) -> float:
    sides = [
        min(first.left + first.width, second.left + second.width) - max(first.left, second.left),
        min(first.top + first.height, second.top + second.height) - max(first.top, second.top),
    ]
    return max(sides[0], 0) * max(sides[1], 0)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Opened, Path]:
    """The report of GPT-2 in a browser, and a picture of it."""
    folder = tmp_path_factory.mktemp("drawn")
    page = report().to_html(folder / "report.html", "GPT-2 <small>")
    return opened(page, picture=folder / "report.png"), folder / "report.png"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Opened, Path]:
    """The same on a telephone in the dark, in the group of the blocks, with a search in its address."""
    folder = tmp_path_factory.mktemp("searched")
    page = report().to_html(folder / "report.html")
    picture = folder / "report.png"
    return opened(page, "q=MLP%20weight&at=blocks", size=(390, 1600), picture=picture, dark=True), picture


# What a person does, and what the page says then.
STEPS = """{
const said = [], line = () => $("trail").textContent;
const first = () => $("rows").children[0].textContent;
[...document.querySelectorAll(".chip")].find(chip => chip.textContent === "attention").click();
said.push(line(), location.hash);
$("trail").querySelector("button").click();
said.push(line());
const [name, , , , , perDevice] = $("heads").querySelectorAll("button");
perDevice.click();
said.push(first());
perDevice.click();
said.push(first());
name.click();
said.push(first());
const colour = $("legend").querySelectorAll("button")[1];
colour.click();
said.push($("search").value, $("count").textContent, location.hash);
colour.click();
said.push($("search").value + $("count").textContent);
[...$("rows").querySelectorAll("button")].find(button => button.textContent === "['tokens']").click();
said.push($("about").textContent);
document.title = JSON.stringify(said);
}"""


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the page of GPT-2 says, step by step, while it is clicked on and keys are pressed."""
    page = report().to_html(tmp_path_factory.mktemp("driven") / "report.html")
    text = page.read_text(encoding="utf-8")
    text = re.sub("script-src '.*?'", "script-src 'unsafe-inline'", text).replace(
        "</html>", f"<script>{STEPS}</script>"
    )
    page.write_text(text, encoding="utf-8")
    document, console = opened(page)
    assert console == []
    return json.loads(document.all("title")[0].text)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """A report with names that would run if they were read as HTML, arrays of no bytes, and a spec that is refused."""
    mesh = AbstractMesh((2, 2, 2, 2), ("a", "b", "c", "<b>d</b>"))
    over = [P(), *(P(axis) for axis in mesh.axis_names), P(("a", "b")), P(("a", "c")), P(("b", "c")), P("a", "b", "c")]
    tree = {HOSTILE: [jax.ShapeDtypeStruct((16, 16, 16), "float32") for _ in over]}
    tree["empty"] = jax.ShapeDtypeStruct((0, 4), "int8")
    tree["scalar"] = jax.ShapeDtypeStruct((), "int32")
    tree["uneven"] = nym.NamedArray(jax.ShapeDtypeStruct((5, 3), "float32"), ("embed", "mlp"))
    shape = jax.ShapeDtypeStruct((64, 64), "float32")
    tree["params"] = [{"mlp": {"up": shape, "down": shape}, "bias": shape}] * 2
    specs = {HOSTILE: over, "empty": P(), "scalar": P(), "uneven": P("a", "b"), "params": P("a")}
    shardings = nym.ShardingAnalyzer(mesh).sharding_report(tree, specs)
    page = shardings.to_html(tmp_path_factory.mktemp("hostile") / "report.html", HOSTILE)
    return opened(page)


def test_there_are_totals_and_a_rectangle_a_row_and_a_colour_for_each(drawn):
    (page, console), _ = drawn
    assert console == []
    assert sorted(tile.array for tile in tiles(page)) == list(range(148))
    assert len(rows(page)) == 148
    assert [entry.text for entry in page.by_id("legend").all("li")] == [
        "replicated: 75 (3.2 MiB)",
        "fsdp: 1 (36.8 MiB)",
        "tensor: 48 (54.1 MiB)",
        "fsdp + tensor: 12 (13.5 MiB)",
        "tensor + fsdp: 12 (13.5 MiB)",
    ]
    header = " ".join(page.all("header")[0].text.split())
    assert header.startswith(
        "GPT-2 <small> mesh (data: 2, fsdp: 4, tensor: 2), 16 devices; by PathShardingRule Arrays148"
    )
    assert "'data': unused; it could shard 148 of 148 arrays" in header
    facts = [[part.text for part in fact.all("dd")] for fact in page.all("dl")[0].all("div")]
    assert [fact[0] for fact in facts] == ["148", "121.1 MiB", "1.4 GiB", "0.7%", "1.00", "0"]
    label = next(tile.attributes["aria-label"] for tile in page.by_id("map").all(kind="tile") if "tokens" in tile.text)
    assert label == "['tokens'], 36.8 MiB on each device, fsdp"


def test_areas_are_proportional_to_the_bytes_fill_the_picture_and_are_nearly_square(drawn):
    (page, _), _ = drawn
    shardings, elements = report(), tiles(page)
    wide, high = 798, 558  # of the picture in a window of 1200 x 900
    for tile in elements:
        leaf = shardings.leaves[tile.array]
        share = leaf.bytes_per_device / shardings.bytes_per_device
        assert math.isclose(tile.area, share, rel_tol=1e-3, abs_tol=2e-8), leaf.path
        assert min(tile[1:]) >= 0
        assert max(tile.left + tile.width, tile.top + tile.height) < 1 + 1e-6
        if leaf.bytes_per_device > 2**19 and leaf.path != "['positions']":
            assert 1 / 5 < wide * tile.width / (high * tile.height) < 5, leaf.path
    assert math.isclose(sum(tile.area for tile in elements), 1, abs_tol=1e-5)
    assert sum(overlap(first, second) for index, first in enumerate(elements) for second in elements[:index]) < 1e-5


@pytest.mark.parametrize(("which", "size"), [("drawn", (900, 1200)), ("searched", (1600, 390))])
def test_the_picture_of_a_page_is_not_blank(which, size, request):
    picture = imread(request.getfixturevalue(which)[1])
    assert picture.shape[:2] == size
    colours = {tuple(colour) for colour in (picture[::7, ::7, :3] * 255).round().astype(int).reshape(-1, 3)}
    assert (0, 158, 115) in colours, "the green of `fsdp + tensor`"
    background = [(255, 255, 255), (20, 24, 29)][which == "searched"]
    assert tuple((picture[2, 2, :3] * 255).round().astype(int)) == background
    assert len(colours) > 20


def test_the_address_says_what_is_searched_for_and_shown(searched):
    (page, console), _ = searched
    assert console == []
    assert page.by_id("count").text == "24 of 144 arrays, 27 MiB of 81.3 MiB on each device"
    elements = page.by_id("map").all(kind="tile")
    assert len(elements) == 144
    bright = [report().leaves[int(tile.attributes["data-at"])].path for tile in elements if "dim" not in tile.classes]
    assert sorted(bright) == sorted(
        f"['blocks'][{index}]['mlp']['{layer}']['weight']" for index in range(12) for layer in ("up", "down")
    )
    assert len(rows(page)) == 24
    assert math.isclose(sum(tile.area for tile in tiles(page)), 1, abs_tol=1e-5)
    assert page.by_id("trail").text == "all \u203a blocks 81.3 MiB on each device in 144 arrays"


def test_clicks_lead_to_groups_sort_the_table_search_for_colours_and_explain_arrays(driven):
    group, address, back, most, least, first, search, count, searched, ended, array = driven
    assert group == "all \u203a blocks \u203a 0 \u203a attention 4.5 MiB on each device in 4 arrays"
    assert address == "#at=blocks%2F0%2Fattention"
    assert back == "all 121.1 MiB on each device in 148 arrays"
    assert most == "['tokens'](50257, 768)float32P(None, 'fsdp')147.2 MiB36.8 MiB441.7 MiB"
    assert least == first == "['blocks'][0]['attention']['out']['bias'](768)float32P(None,)3 KiB3 KiB45 KiB"
    assert (search, count) == ("over:fsdp", "1 of 148 arrays, 36.8 MiB of 121.1 MiB on each device")
    assert (searched, ended) == ("#q=over%3Afsdp", "")
    assert array.startswith("['tokens']float32 (50257, 768)P(None, 'fsdp') fsdp147.2 MiB, on each device 36.8 MiB")
    assert "dimension 1: 768, sharded over fsdp (4): " in array
    assert "data: unused; it could shard" in array


def test_names_are_text_and_never_run(hostile):
    page, console = hostile
    assert console == []
    assert page.all("title")[0].text == HOSTILE
    assert page.all("img") == []
    assert len(page.all("script")) == 2
    paths = [row[0] for row in rows(page)]
    assert sum("</script><script>" in path for path in paths) == 9
    assert "<b>d</b>: 1 (8 KiB)" in page.by_id("legend").text


def test_problems_empty_arrays_and_many_colours_are_there_and_names_of_groups_share_a_line(hostile):
    page, _ = hostile
    (bad,) = (tile for tile in page.by_id("map").all(kind="tile") if "error" in tile.classes)
    assert "['uneven']" in bad.attributes["aria-label"]
    assert "not divisible" in page.all("details")[0].text
    assert page.by_id("legend").all("li")[-1].text.startswith("problem: 1")
    paths = [row[0] for row in rows(page)]
    areas = {paths[tile.array]: tile.area for tile in tiles(page)}
    assert len(areas) == 18
    assert areas["['empty']"] == 0
    assert areas["['scalar']"] > 0
    swatches = [entry.all("span")[0] for entry in page.by_id("legend").all("li")]
    looks = [(tuple(swatch.classes), swatch.style.get("background-color")) for swatch in swatches]
    assert len({*looks}) == len(looks) == 10
    assert "dots" in swatches[8].classes
    lines = [[chip.text for chip in line.all("button")] for line in page.by_id("map").all("div", "chips")]
    assert ["params", "0", "mlp"] in lines and ["1", "mlp"] in lines, lines


def test_a_page_replaces_a_file_and_needs_nothing_but_itself(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    assert report().to_html(path) == path
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(", text)
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*reports' for the page 'a.html'; make it first"):
        report().to_html(tmp_path / "reports" / "a.html")
    assert list(tmp_path.iterdir()) == [path]
    text = r"needs the name of a file, and '.*' is a folder; name it '.*report.html'"
    with pytest.raises(IsADirectoryError, match=text):
        report().to_html(tmp_path)
    picture = IMAGES / "report.png"
    assert picture.stat().st_size < 200_000
    assert imread(picture).shape[:2] == (900, 1200)


def test_places_and_axes_are_in_the_page(auto_mesh, tmp_path):
    half = jax.make_mesh((2, 2), ("a", "b"), axis_types=auto_mesh.axis_types, devices=jax.devices()[:4])

    def on(mesh, spec):
        return jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, spec))

    lone = jax.device_put(np.ones(4))
    tree = {"half": on(half, P("a")), "host": np.ones(4), "lone": lone, "turned": on(auto_mesh, P(None))}
    analyzer = nym.ShardingAnalyzer(auto_mesh)
    page, console = opened(analyzer.sharding_report(tree).to_html(tmp_path / "a.html"))
    assert console == []
    assert [entry.text.partition(":")[0] for entry in page.by_id("legend").all("li")] == [
        "replicated",
        "on one device",
        "on the host",
        "a on mesh (a",
    ]
    weight = nym.NamedArray(jax.ShapeDtypeStruct((6, 5), "float32"), ("embed", "mlp"))
    text = analyzer.sharding_report(weight, P("data", "model")).to_html(tmp_path / "a.html").read_text()
    assert "(embed: 6, mlp: 5)" in text
    assert '"arrays":[]' in analyzer.sharding_report({}, {}).to_html(tmp_path / "a.html").read_text()


class Layer(eqx.Module):
    weight: Any
    parts: dict[str, Any]


def test_groups_go_by_the_keys_of_the_paths(tmp_path):
    small, large = (jax.ShapeDtypeStruct((size,), "int8") for size in (1, 9))
    tree = {"a.b['c']/d": [Layer(large, {"x]": small, "it's": small}), Layer(large, {})], "alone": {"deep": [small]}}
    text = nym.ShardingAnalyzer(MESH).sharding_report(tree, P()).to_html(tmp_path / "a.html").read_text()
    data = json.loads(re.search('type="application/json">(.*)</script>', text)[1])
    labels = [label for _, label, _ in data["arrays"]]
    assert labels == [
        "a.b['c']/d/0/weight",
        "a.b['c']/d/0/parts/it's",
        "a.b['c']/d/0/parts/x]",
        "a.b['c']/d/1/weight",
        "alone/deep/0",
    ]
    # The largest are first, and a group of one array is that array.
    first = ["0", "a.b['c']/d/0", [0, ["parts", "a.b['c']/d/0/parts", [1, 2]]]]
    assert data["tree"] == ["", "", [["a.b['c']/d", "a.b['c']/d", [first, 3]], 4]]
