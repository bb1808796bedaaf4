"""Pictures of a plan: step time and memory of its candidates, the parts of a step, and the timeline of a turn."""

import contextlib
import importlib
import io
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..._ground.atomic_file import check_file_path
from ..._ground.formats import format_bytes
from ...report._html_page import COLOURS
from ...report._write_file import replace_file
from .._step_time._program_timeline import FROM_HOST, TO_HOST
from .._step_time._step_time import format_seconds
from .._step_time._timeline import Timeline, TimelineEvent
from ._candidate import (
    Evaluation,
    PlanRecord,
    format_mesh_axes,
    format_mesh_sizes,
    format_settings,
    list_sharding_parts,
)


_COMPUTE_COLOUR, _ATTENTION_COLOUR, _HOST_COLOUR, _WRONG_COLOUR = "#4d4d4d", "#999999", "#d0d0d0", "#c4161c"
_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_BYTE_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
_MOST_LINEAR = 8  # times the least value that the greatest may be for a linear scale
_MOST_TICKS = 6  # of an axis, so that they have room for their units
_VERDICTS = {"fits": "#0072b2", "unlikely to fit": "#e69f00", "does not fit": _WRONG_COLOUR}
_MARKERS = {"timed": ("timed", "o"), "compiled": ("compiled", "s"), "screened": ("screened (arguments)", "^")}
_LEGEND = {"frameon": False, "fontsize": 8, "loc": "upper center", "ncols": 2}
_LEGEND_DISTANCE = 0.7  # inches between the axes and its legend, with room for ticks and their label
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "axonym", "font.size": 9, "font.family": "sans-serif"}
_WIDTH = 11.0  # inches
_LABEL_SIZE = 11.0  # points from a rank to a mark or to the line of another rank
_LETTER_WIDTH = 0.0064  # of a letter in a bar, as a share of the width of the picture
_THIN_SHARE = 1 / 300  # of a turn: thinner bars have an edge of their own colour, so that they are seen
_OTHER_COLOUR = "#c9c9c9"
_RECOMPUTED_COLOUR = "#0072b2"
_COMPUTING = {
    "product": ("products", _COMPUTE_COLOUR, "white"),
    "attention": ("attention", _ATTENTION_COLOUR, "black"),
    "other": ("other computing", _OTHER_COLOUR, "black"),
    "loop": ("inner loops", "#ececec", "black"),
}
_ROWS = {(): "computing", TO_HOST: "to the host", FROM_HOST: "from the host"}


def draw_plan(plan: PlanRecord, path: str | os.PathLike[str] | None, ranks: int | None) -> Any:
    """Returns the figure that `Plan.draw` does, and writes it to a file if there is a path."""
    if ranks is not None and ranks < 1:
        raise ValueError(f"`ranks` is how many steps to draw, 1 or more, or None for `top`; it was {ranks}")
    evaluations = [evaluation for evaluation in plan.evaluations if not evaluation.problem]
    if not evaluations:
        raise ValueError("there is nothing to draw: the plan has no candidate that can be compiled")
    steps = evaluations[: plan.top if ranks is None else ranks]
    with _open_figure(max(3.6, 1.6 + 0.5 * len(steps)), path) as figure:
        candidates, parts = figure.subplots(1, 2, width_ratios=(4, 5))
        _draw_candidates(candidates, plan, evaluations)
        _draw_steps(parts, plan, steps)
        figure.draw_without_rendering()  # lays out the axes, by which labels are placed
        _draw_ranks(candidates, plan, evaluations)
    return figure


@contextlib.contextmanager
def _open_figure(height: float, path: str | os.PathLike[str] | None) -> Iterator[Any]:
    """Yields an empty figure; if there is a path, writes what is drawn there, completely or not at all.

    The name of the file says the format by its ending.
    """
    with _import_matplotlib().rc_context(_STYLE):
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure
        if path is None:
            return
        target = Path(path)
        kind = target.suffix[1:].lower()
        if kind not in figure.canvas.get_supported_filetypes():
            raise ValueError(f"a picture ends in .svg, .png or .pdf, which says its format; the path is {str(path)!r}")
        content = io.BytesIO()
        # Without a date, which only SVG has here, the file is the same each time.
        figure.savefig(content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        replace_file(check_file_path(target, "picture", "plan.svg"), content.getvalue())


def _import_matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as missing:
        raise ImportError(
            "pictures of a plan need matplotlib, which is not installed; install it with `pip install axonym[plan]`"
        ) from missing


def format_svg(figure: Any, title: str) -> bytes:
    """Returns a figure as SVG."""
    content = io.BytesIO()
    with _import_matplotlib().rc_context(_STYLE):
        figure.savefig(content, format="svg", metadata={"Date": None, "Title": title})
    return content.getvalue()


def _choose_unit(value: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """Returns the unit that fits for a value, and its size."""
    return next(((name, size) for name, size in units if value >= size), units[-1])


def _draw_candidates(axes: Any, plan: PlanRecord, evaluations: list[Evaluation]) -> None:
    """Draws a mark for each candidate: its bytes on a device and its step time, by how much is known of it."""
    limit = plan.hardware.hbm_available
    bytes_unit = _choose_unit(max(limit, *(evaluation.bytes for evaluation in evaluations)), _BYTE_UNITS)
    time_unit = _choose_unit(max(evaluation.time.total for evaluation in evaluations), _TIME_UNITS)
    size, second = bytes_unit[1], time_unit[1]

    def find_verdict(evaluation: Evaluation) -> str:
        if not evaluation.fits:
            return "does not fit"
        return "fits" if plan.is_likely_to_fit(evaluation) else "unlikely to fit"

    for order, (stage, (name, marker)) in enumerate(_MARKERS.items()):
        for verdict, colour in _VERDICTS.items():
            group = [
                evaluation
                for evaluation in evaluations
                if evaluation.stage == stage and find_verdict(evaluation) == verdict
            ]
            if not group:
                continue
            style = {"facecolors": colour, "edgecolors": "white", "linewidths": 0.5}
            if stage == "screened":  # hollow, since little is known of it
                style = {"facecolors": "none", "edgecolors": colour, "linewidths": 1.0}
            sizes = [evaluation.bytes / size for evaluation in group]
            times = [evaluation.time.total / second for evaluation in group]
            axes.scatter(sizes, times, marker=marker, s=28, zorder=4 - order / 2, label=f"{name}, {verdict}", **style)
    memory = f"memory, {format_bytes(limit)}"
    axes.axvline(limit / size, label=memory, color=_WRONG_COLOUR, linestyle="--", linewidth=1)
    if not plan.best.problem:
        best = plan.best.bytes / size, plan.best.time.total / second
        axes.scatter(*best, marker="o", s=150, facecolors="none", edgecolors="black", label="best", zorder=5)
    sizes = [limit / size, *(evaluation.bytes / size for evaluation in evaluations)]
    _scale_axis(axes, "x", sizes, bytes_unit, _BYTE_UNITS)
    _scale_axis(axes, "y", [evaluation.time.total / second for evaluation in evaluations], time_unit, _TIME_UNITS)
    axes.set(xlabel="bytes on a device", ylabel="step time", title=f"Candidates for {plan.topology}")
    _draw_legend(axes)


def _draw_legend(axes: Any, *labels: Any) -> None:
    """Draws a legend below the axes, which are nearly as high as the picture."""
    axes.legend(*labels, bbox_to_anchor=(0.5, -_LEGEND_DISTANCE / axes.figure.get_figheight()), **_LEGEND)


def _draw_ranks(axes: Any, plan: PlanRecord, evaluations: Sequence[Evaluation]) -> None:
    """Draws the ranks of the top candidates beside their marks, with a line to each."""
    most_bytes = max(plan.hardware.hbm_available, *(evaluation.bytes for evaluation in evaluations))
    size = _choose_unit(most_bytes, _BYTE_UNITS)[1]
    second = _choose_unit(max(evaluation.time.total for evaluation in evaluations), _TIME_UNITS)[1]
    to_points = axes.transData + axes.figure.dpi_scale_trans.inverted()

    def find_place(size_in_bytes: float, seconds: float) -> complex:
        """Returns where a mark is in the picture, in points."""
        return complex(*to_points.transform((size_in_bytes / size, seconds / second))) * 72

    marks = [find_place(evaluation.bytes, evaluation.time.total) for evaluation in evaluations]
    corners = axes.bbox.transformed(axes.figure.dpi_scale_trans.inverted()).extents * 72
    limit = find_place(plan.hardware.hbm_available, evaluations[0].time.total).real
    marks += [complex(limit, y) for y in range(int(corners[1]), int(corners[3]), int(_LABEL_SIZE / 2))]
    labels: list[complex] = []
    for rank, evaluation in enumerate(plan.evaluations[: plan.top], 1):
        if evaluation.problem:
            continue
        mark = find_place(evaluation.bytes, evaluation.time.total)
        offset = _choose_offset(mark, marks, labels, corners)
        labels.append(mark + offset)
        axes.annotate(
            str(rank),
            (evaluation.bytes / size, evaluation.time.total / second),
            xytext=(offset.real, offset.imag),
            textcoords="offset points",
            ha="center",
            va="center",
            arrowprops={"arrowstyle": "-", "color": "black", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4},
            zorder=6,
            in_layout=False,
        )


def _choose_offset(mark: complex, marks: Sequence[complex], labels: Sequence[complex], corners: Any) -> complex:
    """Returns how far a label is from its mark: the nearest place that is free, or else that with most room.

    All are in points, as complex numbers; `corners` are the least and the greatest x and y of the axes.
    """
    least_x, least_y, greatest_x, greatest_y = corners

    def measure_room(offset: complex) -> float:
        """Returns how far a label and its line are from others, at most 1: enough."""
        label = mark + offset
        if not (least_x + 6 < label.real < greatest_x - 6 and least_y + 6 < label.imag < greatest_y - 6):
            return -1.0
        to_marks = min(abs(label - neighbor) for neighbor in marks) / _LABEL_SIZE
        to_labels = min((abs(label - neighbor) for neighbor in labels), default=math.inf) / (1.25 * _LABEL_SIZE)
        line = [mark + offset * part / 8 for part in range(1, 9)]
        to_line = min((abs(point - neighbor) for neighbor in labels for point in line), default=math.inf) / _LABEL_SIZE
        return min(to_marks, to_labels, to_line, 1.0)

    offsets = [
        distance * complex(math.cos(angle), math.sin(angle))
        for distance in range(20, 130, 10)
        for angle in (math.radians(150 - 15 * step) for step in range(24))
    ]
    return max(offsets, key=measure_room)  # the first of those with enough room


def _scale_axis(
    axes: Any, name: str, values: Sequence[float], unit: tuple[str, float], units: Sequence[tuple[str, float]]
) -> None:
    """Starts an axis at 0, or makes it logarithmic if its values differ much; each tick has the unit that fits."""
    lower, upper = min(values), max(values)
    axis, ticker = getattr(axes, f"{name}axis"), importlib.import_module("matplotlib.ticker")
    if not 0 < _MOST_LINEAR * lower < upper:
        getattr(axes, f"set_{name}lim")(0, 1.15 * upper or 1)  # 1 if all values are 0
        axis.set_major_locator(ticker.MaxNLocator(_MOST_TICKS))
        axis.set_major_formatter(f"{{x:g}} {unit[0]}")
        return

    def format_tick(value: float, _: Any) -> str:
        # By rounding, a tick at 1 GiB may be a little less.
        text, size = _choose_unit(1.0001 * value * unit[1], units)
        return f"{value * unit[1] / size:.3g} {text}"

    getattr(axes, f"set_{name}scale")("log")
    locator = ticker.LogLocator(10, subs=(1, 2, 5), numticks=_MOST_TICKS)
    if units is _BYTE_UNITS:
        locator = ticker.LogLocator(2, subs=(1,), numticks=_MOST_TICKS)
    axis.set_major_locator(locator)
    axis.set_major_formatter(format_tick)
    axis.set_minor_locator(ticker.NullLocator())


def _draw_steps(axes: Any, plan: PlanRecord, steps: list[Evaluation]) -> None:
    """Draws a bar for each step, of its parts; below it, hatched, what goes on beside computing."""
    legend: dict[str, Any] = {}  # one bar for each label
    mesh_axes = [*dict.fromkeys(axis for step in steps for axis in step.candidate.mesh)]
    longest = max(step.time.total for step in steps)
    unit, second = _choose_unit(longest, _TIME_UNITS)

    def draw_bars(y: float, bars: Sequence[tuple[str, float, str]], is_hidden: bool) -> float:
        """Draws bars one after another, each with its label, seconds and colour; returns their end."""
        start = 0.0
        for label, seconds, colour in bars:
            if not seconds:
                continue
            shape: dict[str, Any] = {"height": 0.42, "color": colour}
            if is_hidden:
                shape = {"height": 0.14, "fill": False, "hatch": "/////", "edgecolor": colour}
            bar = axes.barh(y, seconds / second, left=start / second, linewidth=0, **shape)
            legend.setdefault(label, bar)
            start += seconds
        return start

    for row, step in enumerate(steps):
        time = step.time
        bars = [("compute", time.compute, _COMPUTE_COLOUR), ("attention", time.attention, _ATTENTION_COLOUR)]
        for links, seconds in time.waiting.items():
            bars.append((f"wait over {format_mesh_axes(links)}", seconds, _choose_colour(links, mesh_axes)))
        bars.append(("wait for the host", time.host, _HOST_COLOUR))
        end = draw_bars(row, bars, is_hidden=False)
        axes.annotate(format_seconds(end), (end / second, row), xytext=(4, 0), textcoords="offset points", va="center")
        hidden_bars = [
            (f"beside, over {format_mesh_axes(links)}", seconds, _choose_colour(links, mesh_axes))
            for links, seconds in time.hidden.items()
        ]
        draw_bars(row + 0.3, hidden_bars, is_hidden=True)
    axes.set_yticks(range(len(steps)), _label_steps(plan, steps))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * longest / second or 1)  # with room for the time beside the longest bar
    axes.xaxis.set_major_formatter(f"{{x:g}} {unit}")
    axes.set(title="What a step is spent on")
    _draw_legend(axes, [*legend.values()], [*legend])


def _label_steps(plan: PlanRecord, steps: Sequence[Evaluation]) -> list[str]:
    """Returns rank, mesh and policy of each step, and what else tells steps apart that have these in common."""
    keys = [step.candidate.key.mesh_and_settings for step in steps]
    shardings = [list_sharding_parts(step.candidate) for step in steps]
    labels: list[str] = []
    for row, (step, key) in enumerate(zip(steps, keys, strict=True)):
        lines = [f"{plan.evaluations.index(step) + 1}: {format_mesh_sizes(step.candidate)}"]
        lines += textwrap.wrap(format_settings(step.candidate), 32)
        namesakes = [parts for index, parts in enumerate(shardings) if keys[index] == key and index != row]
        if namesakes:
            differing = [part for part in shardings[row] if not all(part in parts for parts in namesakes)]
            lines += textwrap.wrap("; ".join(differing), 32)
        labels.append("\n".join(lines))
    return labels


def _choose_colour(links: tuple[str, ...], mesh_axes: list[str]) -> str:
    """Returns the colour of the first of some mesh axes, as reports have it, and another if they are several."""
    index = next((mesh_axes.index(axis) for axis in links if axis in mesh_axes), len(COLOURS) - 1)
    if len(links) > 1:
        index += 3  # past the colours of the mesh axes, of which there are three at most as a rule
    return COLOURS[index % len(COLOURS)]


def draw_timeline(plan: PlanRecord, path: str | os.PathLike[str] | None, which: int | Evaluation) -> Any:
    """Returns the figure that `Plan.draw_timeline` does, and writes it to a file if there is a path."""
    evaluation = plan.get_evaluation(which)
    timelines, mesh_axes = evaluation.time.timelines, [*evaluation.candidate.mesh]
    if not timelines:
        name = "this candidate"
        if evaluation in plan.evaluations:
            name = f"rank {plan.evaluations.index(evaluation) + 1}"
        ranks = [str(rank) for rank, candidate in enumerate(plan.evaluations, 1) if candidate.time.timelines]
        remedy = f"choose rank {' or '.join(ranks)}"
        if not ranks:
            remedy = (
                "this plan has none that is: on CPUs there are no times of instructions, and on TPUs only candidates "
                "that are compiled whole have them, as far as the `budget` lasts"
            )
        raise ValueError(
            f"there is no timeline of {name}, which is {evaluation.stage}: only timed ones have it; {remedy}"
        )
    rows = [_list_timeline_rows(timeline, mesh_axes) for timeline in timelines]
    heights = [len(links) + 1.2 for links in rows]  # with room for the title and the ticks
    with _open_figure(0.9 + 0.36 * sum(heights), path) as figure:
        subplots = figure.subplots(len(timelines), 1, height_ratios=heights, squeeze=False)[:, 0]
        for axes, timeline, links in zip(subplots, timelines, rows, strict=True):
            _draw_turn(axes, timeline, links, mesh_axes)
        title = f"{evaluation.candidate}, on {plan.topology}: a step in {format_seconds(evaluation.time.total)}"
        figure.suptitle(title, fontsize=9, wrap=True)
        _draw_colour_legend(figure, timelines)
    return figure


def _list_timeline_rows(timeline: Timeline, mesh_axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the rows: computing, sets of mesh axes in the order of the mesh, and the memory of the host."""
    links = {event.links for event in timeline.events if event.links}  # what computes has none
    host_links = [direction for direction in (TO_HOST, FROM_HOST) if direction in links]
    order = {axis: index for index, axis in enumerate(mesh_axes)}

    def rank_row(axes: tuple[str, ...]) -> tuple[Any, ...]:
        return len(axes), [order.get(axis, len(order)) for axis in axes], axes

    return [(), *sorted(links.difference(host_links), key=rank_row), *host_links]


def _draw_turn(axes: Any, timeline: Timeline, rows: Sequence[tuple[str, ...]], mesh_axes: list[str]) -> None:
    """Draws a turn: bars in rows, and bands where the device waits."""
    unit, second = _choose_unit(timeline.seconds, _TIME_UNITS)
    for event in timeline.events:
        start, seconds, waited = (value / second for value in (event.start, event.seconds, event.waited))
        row = rows.index(event.links)
        if not event.links:
            _, colour, ink = _COMPUTING[event.kind]
        elif event.links in (TO_HOST, FROM_HOST):
            colour, ink = _HOST_COLOUR, "black"
        else:
            colour, ink = _choose_colour(event.links, mesh_axes), "black"
        edge = "white" if event.seconds > _THIN_SHARE * timeline.seconds else colour
        axes.barh(row, seconds, left=start, height=0.7, color=colour, edgecolor=edge, linewidth=0.4, zorder=2)
        if event.run_in == "recomputed" and not event.links:
            axes.barh(row + 0.41, seconds, left=start, height=0.07, color=_RECOMPUTED_COLOUR, linewidth=0, zorder=2)
        if waited:
            axes.axvspan(start + seconds - waited, start + seconds, color=_WRONG_COLOUR, alpha=0.14, lw=0, zorder=1)
        if text := _label_event(event, event.seconds / timeline.seconds):
            font = {"color": ink, "fontsize": 7, "linespacing": 0.9}
            axes.text(start + seconds / 2, row, text, font, ha="center", va="center_baseline", zorder=3)
    axes.set_yticks(range(len(rows)), [_ROWS.get(links) or f"over {format_mesh_axes(links)}" for links in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, timeline.seconds / second)
    axes.xaxis.set_major_formatter(f"{{x:g}} {unit}")
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    turns = f"one of {timeline.turns} turns, " if timeline.turns > 1 else ""
    title = f"{timeline.name}: {turns}{format_seconds(timeline.seconds)}"
    if timeline.waited:
        title += f", of which it waits {format_seconds(timeline.waited)} ({timeline.waited / timeline.seconds:.0%})"
    axes.set_title(title, loc="left", fontsize=9)


def _label_event(event: TimelineEvent, share: float) -> str:
    """Returns the longest text for an event that finds room in its bar, in one line or two."""
    texts = [*_list_labels(event)]
    texts += [re.sub(r"(?<=[-_])", "\n", texts[-1], count=1)]  # the shortest, in two lines
    return next((text for text in texts if (1 + max(map(len, text.split("\n")))) * _LETTER_WIDTH < share), "")


def _list_labels(event: TimelineEvent) -> Iterator[str]:
    """Yields texts for an event, the longest first."""
    name = "" if "+" in event.layer else event.layer.rpartition("/")[2]
    if event.links and (purpose := name or event.operation):
        yield f"{event.kind} for {purpose}"
    elif event.kind == "product":
        yield f"{name} {event.operation}".strip()
    yield name if event.kind in ("product", "other") else event.kind


def _draw_colour_legend(figure: Any, timelines: Sequence[Timeline]) -> None:
    """Draws what the colours of computing and of waits mean below all turns."""
    patch = importlib.import_module("matplotlib.patches").Patch
    events = [event for timeline in timelines for event in timeline.events]
    kinds = {event.kind for event in events}
    handles = [patch(color=colour, label=label) for kind, (label, colour, _) in _COMPUTING.items() if kind in kinds]
    if any(event.run_in == "recomputed" for event in events):
        handles.append(patch(color=_RECOMPUTED_COLOUR, label="underlined: recomputed"))
    if any(event.waited for event in events):
        handles.append(patch(color=_WRONG_COLOUR, alpha=0.14, label="the device waits"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
