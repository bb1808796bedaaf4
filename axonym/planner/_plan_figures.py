"""Pictures of a plan: step time and memory of its candidates, and the parts of a step."""

import importlib
import io
import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report._table import format_bytes
from ..report._treemap import COLOURS
from ..report._write_file import replace_file
from ._candidate import Evaluation, format_mesh_sizes, format_over, format_seconds, format_settings, format_sharding
from ._plan_record import PlanRecord


COMPUTE_COLOUR, ATTENTION_COLOUR, HOST_COLOUR, WRONG_COLOUR = "#4d4d4d", "#999999", "#d0d0d0", "#c4161c"
_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_BYTE_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_MOST_LINEAR = 8  # times the least value that the greatest may be for a linear scale
_MOST_TICKS = 6  # of an axis, so that they have room for their units
_MARKERS = {"timed": "o", "compiled": "s", "screened": "^"}
_LABELS = {"timed": "timed", "compiled": "compiled", "screened": "screened (arguments)"}
_LEGEND = {"frameon": False, "fontsize": 8, "loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "axonym", "font.size": 9, "font.family": "sans-serif"}


def draw_plan(plan: PlanRecord, path: str | os.PathLike[str] | None, ranks: int | None) -> Any:
    """Returns the figure that `Plan.draw` does, and writes it to a file if there is a path."""
    matplotlib = import_matplotlib()
    if ranks is not None and ranks < 1:
        raise ValueError(f"`ranks` is how many steps to draw, 1 or more, or None for `top`; it was {ranks}")
    shown = [one for one in plan.evaluations if not one.problem]
    if not shown:
        raise ValueError("there is nothing to draw: the plan has no candidate that can be compiled")
    steps = shown[: plan.top if ranks is None else ranks]
    with matplotlib.rc_context(STYLE):
        height = max(3.6, 1.6 + 0.5 * len(steps))
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, height), layout="constrained")
        candidates, parts = figure.subplots(1, 2, width_ratios=(4, 5))
        _draw_candidates(candidates, plan, shown)
        _draw_steps(parts, plan, steps)
        if path is not None:
            save_figure(figure, path)
    return figure


def import_matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as missing:
        raise ImportError(
            "pictures of a plan need matplotlib, which is not installed; install it with `pip install axonym[plan]`"
        ) from missing


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format that the name of the file ends in, completely or not at all."""
    target = Path(path)
    kind = target.suffix[1:].lower()
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ValueError(f"a picture ends in .svg, .png or .pdf, which says its format; the path is {str(path)!r}")
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(target.parent)!r} for the picture {target.name!r}; make it first"
        )
    replace_file(Path(os.path.realpath(target)), content.getvalue())


def make_plan_svg(plan: PlanRecord) -> str:
    """Returns the figure of a plan as SVG."""
    return format_figure_svg(draw_plan(plan, None, None), f"A plan for {plan.topology}")


def format_figure_svg(figure: Any, title: str) -> str:
    """Returns a figure as SVG."""
    content = io.BytesIO()
    with import_matplotlib().rc_context(STYLE):
        figure.savefig(content, format="svg", metadata={"Date": None, "Title": title})
    return content.getvalue().decode()


def choose_time_unit(seconds: float) -> tuple[str, float]:
    """Returns the unit that fits for a time, and the seconds that it has."""
    return _choose_unit(seconds, _TIME_UNITS)


def _choose_unit(value: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    return next(((name, size) for name, size in units if value >= size), units[-1])


def _draw_candidates(axes: Any, plan: PlanRecord, shown: list[Evaluation]) -> None:
    """Draws a mark for each candidate: its bytes on a device and its step time, by how much is known of it."""
    limit = plan.hardware.hbm_available
    _, size = bytes_unit = _choose_unit(max(limit, *(one.bytes for one in shown)), _BYTE_UNITS)
    _, second = time_unit = choose_time_unit(max(one.time.total for one in shown))
    for order, (stage, marker) in enumerate(_MARKERS.items()):
        for fits in (True, False):
            found = [one for one in shown if one.stage == stage and one.fits is fits]
            colour, is_hollow = "#0072b2" if fits else WRONG_COLOUR, stage == "screened"
            if found:
                axes.scatter(
                    [one.bytes / size for one in found],
                    [one.time.total / second for one in found],
                    marker=marker,
                    s=28,
                    zorder=4 - order / 2,
                    facecolors="none" if is_hollow else colour,
                    edgecolors=colour if is_hollow else "white",
                    linewidths=1.0 if is_hollow else 0.5,
                    label=f"{_LABELS[stage]}, {'fits' if fits else 'does not fit'}",
                )
    line = {"color": WRONG_COLOUR, "linestyle": "--", "linewidth": 1}
    axes.axvline(limit / size, label=f"memory, {format_bytes(limit)}", **line)
    ranked = [(rank, one) for rank, one in enumerate(plan.evaluations[: plan.top], 1) if not one.problem]
    places = [(rank, one.bytes / size, one.time.total / second) for rank, one in ranked]
    if places and places[0][0] == 1:
        axes.scatter(*places[0][1:], marker="o", s=150, facecolors="none", edgecolors="black", label="best", zorder=5)
    _scale_axis(axes, "x", [limit / size, *(one.bytes / size for one in shown)], bytes_unit, _BYTE_UNITS)
    _scale_axis(axes, "y", [one.time.total / second for one in shown], time_unit, _TIME_UNITS)
    _label_places(axes, places)
    axes.set(xlabel="bytes on a device", ylabel="step time", title=f"Candidates for {plan.topology}")
    axes.legend(**_LEGEND)


def _scale_axis(
    axes: Any, name: str, values: Sequence[float], unit: tuple[str, float], units: Sequence[tuple[str, float]]
) -> None:
    """Starts an axis at 0, or makes it logarithmic if its values differ much; each tick has the unit that fits."""
    least, most = min(values), max(values)
    axis, ticker = getattr(axes, f"{name}axis"), importlib.import_module("matplotlib.ticker")
    if not 0 < _MOST_LINEAR * least < most:
        axes.set(**{f"{name}lim": (0, 1.15 * most or 1)})
        axis.set_major_locator(ticker.MaxNLocator(_MOST_TICKS))
        axis.set_major_formatter(f"{{x:g}} {unit[0]}")
        return

    def format_tick(value: float, _: Any) -> str:
        text, size = _choose_unit(1.0001 * value * unit[1], units)
        return f"{value * unit[1] / size:.3g} {text}"

    axes.set(**{f"{name}scale": "log"})
    base, parts = (2, (1,)) if units is _BYTE_UNITS else (10, (1, 2, 5))
    axis.set_major_locator(ticker.LogLocator(base, subs=parts, numticks=_MOST_TICKS))
    axis.set_major_formatter(format_tick)
    axis.set_minor_locator(ticker.NullLocator())


def _label_places(axes: Any, places: Sequence[tuple[int, float, float]]) -> None:
    """Writes ranks around their marks, each with a line to its own."""
    for at, (rank, x, y) in enumerate(places):
        angle = math.radians(150 - 90 * at)
        around = 24 * math.cos(angle), 24 * math.sin(angle)
        line = {"arrowstyle": "-", "color": "black", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4}
        look = {"ha": "center", "va": "center", "arrowprops": line, "zorder": 6}
        axes.annotate(str(rank), (x, y), xytext=around, textcoords="offset points", **look)


def _draw_steps(axes: Any, plan: PlanRecord, steps: list[Evaluation]) -> None:
    """Draws a bar for each step, of its parts; below it, hatched, what goes on beside computing."""
    labelled: set[str] = set()

    def draw_bar(row: int, start: float, seconds: float, colour: str, label: str, hidden: bool = False) -> None:
        shown = None if label in labelled else label
        labelled.add(label)
        place, height = (row + 0.3, 0.14) if hidden else (row, 0.42)
        start, seconds = start / second, seconds / second
        look = {"fill": False, "hatch": "/////", "edgecolor": colour} if hidden else {"color": colour}
        axes.barh(place, seconds, left=start, height=height, label=shown, linewidth=0, **look)

    order = [*dict.fromkeys(axis for one in steps for axis in one.candidate.mesh)]
    longest = max(one.time.total for one in steps)
    unit, second = choose_time_unit(longest)
    for row, one in enumerate(steps):
        time, start = one.time, 0.0
        colours = {over: choose_colour(over, order) for over in (*time.waiting, *time.hidden)}
        bars = [("compute", time.compute, COMPUTE_COLOUR), ("attention", time.attention, ATTENTION_COLOUR)]
        bars += [(f"wait over {format_over(over)}", seconds, colours[over]) for over, seconds in time.waiting.items()]
        for label, seconds, colour in [*bars, ("wait for the host", time.host, HOST_COLOUR)]:
            if seconds:
                draw_bar(row, start, seconds, colour, label)
                start += seconds
        place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(format_seconds(start), (start / second, row), **place)
        beside = 0.0
        for over, seconds in time.hidden.items():
            if seconds:
                draw_bar(row, beside, seconds, colours[over], f"beside, over {format_over(over)}", hidden=True)
                beside += seconds
    axes.set_yticks(range(len(steps)), _label_steps(plan, steps))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * longest / second or 1)
    axes.xaxis.set_major_formatter(f"{{x:g}} {unit}")
    axes.set(title="What a step is spent on")
    axes.legend(**_LEGEND)


def _label_steps(plan: PlanRecord, steps: Sequence[Evaluation]) -> list[str]:
    """Returns rank, mesh and policy of each step, and what else tells steps apart that have these in common."""
    candidates = [one.candidate for one in steps]
    texts = ["\n".join(filter(None, (format_mesh_sizes(one), format_settings(one)))) for one in candidates]
    parts = [format_sharding(one).split("; ") for one in candidates]
    labels: list[str] = []
    for one, text, own in zip(steps, texts, parts, strict=True):
        alike = [other for other, same in zip(parts, texts, strict=True) if same == text and other is not own]
        differing = [part for part in own if alike and not all(part in other for other in alike)]
        wrapped = textwrap.wrap("; ".join(differing), 32)
        labels.append("\n".join([f"{plan.evaluations.index(one) + 1}: {text}", *wrapped]))
    return labels


def choose_colour(over: tuple[str, ...], order: list[str]) -> str:
    """Returns the colour of the first of some mesh axes, as reports have it; that of several mixes in the second."""
    at = next((order.index(axis) for axis in over if axis in order), len(COLOURS) - 1)
    return COLOURS[(at + (3 if len(over) > 1 else 0)) % len(COLOURS)]
