"""The tree whose report the tests draw, and the picture of it that the documentation shows.

`python -m tests.report.drawings` draws the picture anew, in `docs/images`.
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec as P
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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        page = report().to_html(Path(folder) / "report.html", "GPT-2 on 16 devices")
        opened(page, size=(1200, 900), picture=IMAGES / "report.png")
