"""The trees whose reports the tests draw, and the pictures of them that the documentation shows.

`python -m tests.report.drawings` draws the pictures anew, in `docs/images`.
"""

import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec as P
from rich.console import Console
from rich.terminal_theme import TerminalTheme

import axonym as nym

from ..browser import opened


IMAGES = Path(__file__).parents[2] / "docs" / "images"
MESH = AbstractMesh((2, 4, 2), ("data", "fsdp", "tensor"))
GREY = TerminalTheme((24, 29, 35), (228, 231, 235), [(110, 118, 128)] * 8)


def gpt2(blocks: int = 12, width: int = 768) -> Any:
    """The shapes of GPT-2."""

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, "float32")

    def affine(rows: int, columns: int) -> dict[str, Any]:
        return {"weight": shape(rows, columns), "bias": shape(columns)}

    def norm() -> dict[str, Any]:
        return {"weight": shape(width), "bias": shape(width)}

    block = {
        "norm_1": norm(),
        "attention": {"qkv": affine(width, 3 * width), "out": affine(width, width)},
        "norm_2": norm(),
        "mlp": {"up": affine(width, 4 * width), "down": affine(4 * width, width)},
    }
    return {
        "tokens": shape(50257, width),
        "positions": shape(1024, width),
        "blocks": [jax.tree.map(lambda leaf: leaf, block) for _ in range(blocks)],
        "norm": norm(),
    }


RULE = nym.PathShardingRule(
    (
        (r"tokens", P(None, "fsdp")),
        (r"up/weight", P("fsdp", "tensor")),
        (r"down/weight", P("tensor", "fsdp")),
        (r"qkv/weight", P(None, "tensor")),
        (r"out/weight", P("tensor", None)),
        (r"(qkv|up)/bias", P("tensor")),
        (r"", P()),
    )
)


@functools.cache
def report(blocks: int = 12) -> nym.ShardingReport:
    """What the arrays of GPT-2 cost by hand-written rules."""
    return nym.ShardingAnalyzer(MESH).sharding_report(gpt2(blocks), RULE)


def in_the_terminal() -> str:
    """What the terminal shows of it, as SVG without fonts from anywhere."""
    console = Console(record=True, width=112, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    nym.visualize_shardings(report(), console=console)
    return console.export_svg(title="visualize_shardings", theme=GREY, code_format=SVG, unique_id="axonym")


SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>The arrays of GPT-2 in a terminal: axes, specs and bytes per device in the colours of the mesh axes</title>
<style>
.{unique_id}-title {{ font: bold 18px system-ui, Helvetica, Arial, sans-serif; }}
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        page = report().to_html(Path(folder) / "report.html", "GPT-2 on 16 devices")
        opened(page, size=(1200, 900), picture=IMAGES / "report.png")
    (IMAGES / "shardings.svg").write_text(in_the_terminal(), encoding="utf-8")
