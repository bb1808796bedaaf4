"""A plan as an HTML page with its pictures and its tables, which needs no other file."""

import base64
import html
import os
from pathlib import Path

from ..report._grid import format_html_page
from ..report._write_file import write_file
from ._plan_figures import make_plan_svg
from ._plan_record import PlanRecord
from ._plan_table import make_plan_page
from ._timeline_figure import make_timeline_svg


_STYLE = """:root { color-scheme: light dark }
body { margin: 0 auto; padding: 16px; max-width: 1200px; font: 15px/1.45 system-ui, "Segoe UI", Arial, sans-serif }
h1 { font-size: 1.35rem }
img { max-width: 100%; background: #fff }
.axonym-table { overflow-x: auto }"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_plan_page(plan: PlanRecord, path: str | os.PathLike[str], title: str, limit: int) -> Path:
    """Writes the page of a plan, completely or not at all, and returns its path."""
    heading = html.escape(title or f"A plan for {plan.topology}")
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<meta http-equiv='Content-Security-Policy' content=\"{_POLICY}\">",
        f"<title>{heading}</title><style>{_STYLE}</style></head><body><h1>{heading}</h1>",
        _make_pictures(plan),
        format_html_page(make_plan_page(plan, limit)),
        "</body></html>",
    ]
    return write_file(path, "".join(parts), "page", "plan.html")


def _make_pictures(plan: PlanRecord) -> str:
    """Returns the pictures of a plan as elements, or why there is none."""
    alt = f"Step time and memory of {len(plan.evaluations)} candidates, and what a step is spent on"
    turn = "What a device computes, sends and waits for in a turn of the loops over the layers"
    try:
        first = _make_image(make_plan_svg(plan), alt)
    except (ImportError, ValueError) as missing:
        return f"<p>{html.escape(str(missing))}</p>"
    try:
        return first + _make_image(make_timeline_svg(plan), turn)
    except ValueError as missing:
        return f"{first}<p>{html.escape(str(missing))}</p>"


def _make_image(svg: str, alt: str) -> str:
    return f'<p><img alt="{alt}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"></p>'
