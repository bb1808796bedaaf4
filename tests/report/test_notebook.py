"""How tables look in the output area of JupyterLab, whose own rules for tables come first."""

import json

import jax
import pytest

import axonym as nym
from axonym.report import LayerTime

from ..browser import Element, opened


# What JupyterLab's rules for rendered HTML say about tables and preformatted text.
RULES = """
body { margin: 0; width: 700px }
.jp-RenderedHTMLCommon { font: 14px/1.6 sans-serif; padding-right: 20px }
.jp-ThemedContainer .jp-RenderedHTMLCommon > pre { margin: 1.5em 2em }
.jp-ThemedContainer .jp-RenderedHTMLCommon pre { font: 13px/1.3 sans-serif; padding: 0; white-space: pre-wrap }
.jp-RenderedHTMLCommon table { border-collapse: collapse; table-layout: fixed; margin-left: auto; margin-right: auto;
  margin-bottom: 1em; font-size: 13px }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th, .jp-RenderedHTMLCommon tr { vertical-align: middle;
  padding: 0.5em; line-height: normal; white-space: normal; max-width: none; border: none }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th,
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right }
.jp-RenderedHTMLCommon th { font-weight: bold }
"""
LOOK = """
const seen = {};
for (const output of document.querySelectorAll(".jp-RenderedHTMLCommon"))
  seen[output.id] = [...output.querySelectorAll("caption, td, th, pre")].map(element => {
    const range = document.createRange(), style = getComputedStyle(element);
    range.selectNodeContents(element);
    const text = range.getBoundingClientRect();
    return {text: element.textContent, tag: element.tagName,
            align: style.textAlign, space: style.whiteSpace, font: style.fontFamily,
            lines: new Set([...range.getClientRects()].map(box => Math.round(box.top))).size,
            left: text.left, right: text.right, number: element.classList.contains("number")};
  });
document.getElementById("seen").textContent = JSON.stringify(seen);
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """The cells of an array, of reports and of a plain table as Chromium lays them out under these rules."""
    mesh = nym.create_abstract_mesh((4, 2), ("data", "model"))
    shape = jax.eval_shape(lambda: {"w": nym.zeros({"batch": 8192, "embed": 4}), "b": nym.zeros({"batch": 8192})})
    outputs = {
        "array": nym.named(jax.numpy.arange(120.0).reshape(3, 40), ("i", "j")),
        "report": nym.explain(shape, {"batch": "data"}, mesh),
    }
    matrix = nym.NamedArray(jax.ShapeDtypeStruct((512, 64), "float32"), ("batch", "embed"))
    machine = {"devices": "cpu:8", "mesh": {"data": 8}, "mapping": {"batch": "data"}, "cache": False}
    program = nym.planner.compile_for(lambda x: nym.sum(x, "batch"), matrix, **machine)
    outputs["memory"] = nym.planner.memory_report(program)
    outputs["communication"] = nym.planner.communication_report(program)
    layer = LayerTime("blocks/up", computing=0.25, communication=0.5, share=1.0, runs=16)
    outputs["times"] = nym.report.TimeByLayer((layer,), devices=8, programs=("jit_step",))
    texts = {name: output._repr_html_() for name, output in outputs.items()}
    parts = [
        f'<div class="jp-OutputArea-output jp-RenderedHTMLCommon" id="{name}">{html}</div>'
        for name, html in texts.items()
    ]
    page = tmp_path_factory.mktemp("notebook") / "notebook.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{RULES}</style><body class="jp-ThemedContainer">'
        f'{"".join(parts)}<p id="seen"></p><script>{LOOK}</script></body>'
    )
    elements: Element = opened(page)[0]
    return json.loads(elements.by_id("seen").text)


@pytest.mark.parametrize("name", ["report", "memory", "communication", "times"])
def test_reports_are_aligned_in_a_monospace_font_from_the_left(seen, name):
    cells = seen[name]
    assert {cell["font"] for cell in cells} == {"monospace"}
    assert {cell["align"] for cell in cells if cell["number"]} == {"right"}
    assert {cell["align"] for cell in cells if not cell["number"]} == {"left"}
    assert min(cell["left"] for cell in cells) < 60


def test_the_cause_of_communication_has_room_for_some_words_in_a_line(seen):
    cause = seen["communication"][-1]
    assert cause["right"] - cause["left"] > 150 and cause["lines"] < 6


def test_the_card_of_an_array_keeps_its_lines(seen):
    caption, *cells, values = seen["array"]
    assert caption["tag"] == "CAPTION" and caption["text"] == "NamedArray, float32, 480 B"
    assert caption["lines"] == 1 and caption["left"] < 5
    assert [(cell["text"], cell["align"], cell["lines"]) for cell in cells] == [
        ("axis", "left", 1), ("size", "right", 1),
        ("i", "left", 1), ("3", "right", 1),
        ("j", "left", 1), ("40", "right", 1),
    ]  # fmt: skip
    assert values["tag"] == "PRE" and values["space"] == "pre" and values["left"] < 5
    assert values["font"] == "monospace"
    assert values["lines"] == values["text"].count("\n") + 1 > 3
