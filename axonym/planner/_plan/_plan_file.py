"""Plans as files: JSON, which is read back as it was written, and an HTML page with tables and pictures."""

import base64
import dataclasses
import html
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from ..._ground.caches import cached_plan
from ...report._table import format_html_page
from ...report._write_file import write_file
from .._machine._hardware import get_hardware
from .._machine._hardware_file import fits_float
from .._step_time._timeline import TimelineEvent
from ._candidate import Evaluation, PlanRecord
from ._plan_figure import draw_plan, draw_timeline, format_svg
from ._plan_table import make_plan_page


FORMAT = 3  # changes with what is stored; a field with a default may be missing, so that older plans are read
_KIND = "axonym plan"
_STYLE = """:root { color-scheme: light dark }
body { margin: 0 auto; padding: 16px; max-width: 1200px; font: 15px/1.45 system-ui, "Segoe UI", Arial, sans-serif }
h1 { font-size: 1.35rem }
img { max-width: 100%; background: #fff }
.axonym-table { overflow-x: auto }"""
# The page runs no script and loads nothing; its pictures are in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@cached_plan
def _list_hints(kind: type) -> dict[str, Any]:
    """Returns the types of the fields of a class; kept, since a plan has thousands of events."""
    return get_type_hints(kind)


def make_plan_dict(plan: PlanRecord) -> dict[str, Any]:
    """Returns a plan as dictionaries, lists, strings, numbers and None."""
    fields = _encode(plan, PlanRecord)
    candidates = {name: fields.pop(name) for name in ("evaluations", "screened")}
    return {"kind": _KIND, "format": FORMAT, **fields, **candidates}  # the longest part comes last


def _encode(value: Any, kind: Any) -> Any:
    """Returns a value of a type as what JSON has."""
    if value is None or kind in (str, int, float, bool):
        return value
    if kind is Any:  # an option
        return value if isinstance(value, bool | int | float | str) else repr(value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = {name: _encode(getattr(value, name), hint) for name, hint in _list_hints(kind).items()}
        return fields.pop("candidate", {}) | fields  # an evaluation has the fields of its candidate beside its own
    if kind is TimelineEvent:  # of which there are many
        hints = _list_hints(TimelineEvent).values()
        return [_encode(part, hint) for part, hint in zip(value, hints, strict=True)]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return [_encode(part, arguments[0]) for part in value]
    if origin is Mapping and arguments[0] is str:
        return {name: _encode(part, arguments[1]) for name, part in value.items()}
    if origin is Mapping:  # keys of JSON are strings, so mesh axes and numbers are pairs
        return [[[*mesh_axes], _encode(part, arguments[1])] for mesh_axes, part in value.items()]
    return _encode(value, arguments[0]) if origin is UnionType else value


def read_plan_file(path: str | os.PathLike[str]) -> PlanRecord:
    """Returns the plan in a file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a plan, is damaged, is of another version, or is for devices whose name is not known.
    """
    name = repr(os.fspath(path))
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["kind"] != _KIND:
            raise ValueError("of another kind")
        version = _check_type(data["format"], int)
        plan = _decode(data, PlanRecord) if version == FORMAT else None
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no plan {name}; write one with `Plan.to_json`") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # not UTF-8, not JSON, or no plan
        raise ValueError(f"{name} is not a plan, or is damaged; write it again with `Plan.to_json`") from None
    if plan is not None:
        _check_hardware(plan.topology.hardware, name)
        return plan
    reads = f"this version of Axonym reads format {FORMAT}"
    raise ValueError(f"the plan {name} has format {version!r}, and {reads}; make the plan again")


def _check_hardware(hardware: str, name: str) -> None:
    """Raises an error if the devices of a plan are not known, whose memory tables and pictures need."""
    try:
        get_hardware(hardware)
    except ValueError:
        raise ValueError(
            f"the plan {name} is for {hardware!r}, which is not known; register it first with `read_hardware` or "
            "`register_hardware`"
        ) from None


def _decode(value: Any, kind: Any) -> Any:
    """Returns the value of a type that `_encode` has written; raises a TypeError, ValueError or KeyError for others."""
    if kind is Any:
        return value
    if kind in (str, int, float, bool):
        return _check_type(value, kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind is Evaluation:
            value = {**value, "candidate": value}
        optional = {
            field.name
            for field in dataclasses.fields(kind)
            if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        }
        hints = {name: hint for name, hint in _list_hints(kind).items() if name in value or name not in optional}
        return kind(**{name: _decode(value[name], hint) for name, hint in hints.items()})
    if kind is TimelineEvent:
        hints = _list_hints(TimelineEvent).values()
        return TimelineEvent(*(_decode(part, hint) for part, hint in zip(value, hints, strict=True)))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_decode(part, arguments[0]) for part in _check_type(value, list))
    if origin is Mapping and arguments[0] is str:
        return {name: _decode(part, arguments[1]) for name, part in _check_type(value, dict).items()}
    if origin is Mapping:
        pairs = _check_type(value, list)
        return {_decode(mesh_axes, arguments[0]): _decode(part, arguments[1]) for mesh_axes, part in pairs}
    if origin is UnionType:
        return None if value is None else _decode(value, arguments[0])
    if value not in arguments:
        raise ValueError(f"{value!r} is not one of {arguments}")
    return value


def _check_type(value: Any, kind: type) -> Any:
    """Returns a value if it is of a type; whole numbers are floats as well, booleans are no numbers."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    if isinstance(value, int) and not fits_float(value):
        raise ValueError(f"a number of {value.bit_length()} bits is none of a plan")
    return value


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
    """Returns the pictures of a plan as elements; of those that there are not, why."""
    elements: list[str] = []
    try:
        alt = f"Step time and memory of {len(plan.evaluations)} candidates, and what a step is spent on"
        elements.append(_make_image(draw_plan(plan, None, None), f"A plan for {plan.topology}", alt))
        alt = "What a device computes, sends and waits for in a turn of the loops over the layers"
        elements.append(_make_image(draw_timeline(plan, None, 1), f"A timeline of a plan for {plan.topology}", alt))
    except (ImportError, ValueError) as missing:  # no matplotlib, nothing to draw, or no times of instructions
        elements.append(f"<p>{html.escape(str(missing))}</p>")
    return "".join(elements)


def _make_image(figure: Any, title: str, alt: str) -> str:
    data = base64.b64encode(format_svg(figure, title)).decode()
    return f'<p><img alt="{alt}" src="data:image/svg+xml;base64,{data}"></p>'
