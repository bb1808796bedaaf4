"""A plan as an HTML page with its picture and its tables, which needs no other file."""

import base64
import html
import os
from pathlib import Path

from ..report._grid import format_html_page
from ..report._write_file import write_file
from ._plan_figures import make_plan_svg
from ._plan_record import PlanRecord
from ._plan_table import make_plan_page


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
        _make_picture(plan),
        format_html_page(make_plan_page(plan, limit)),
        "</body></html>",
    ]
    return write_file(path, "".join(parts), "page", "plan.html")


def _make_picture(plan: PlanRecord) -> str:
    """Returns the picture of a plan as an element, or why there is none."""
    try:
        picture = base64.b64encode(make_plan_svg(plan).encode()).decode()
    except (ImportError, ValueError) as missing:
        return f"<p>{html.escape(str(missing))}</p>"
    alt = f"Step time and memory of {len(plan.evaluations)} candidates, and what a step is spent on"
    return f'<p><img alt="{alt}" src="data:image/svg+xml;base64,{picture}"></p>'
