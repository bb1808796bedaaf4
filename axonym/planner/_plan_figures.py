"""Pictures of a plan: step time and memory of its candidates, and the parts of a step."""

import importlib
import io
import os
from pathlib import Path
from typing import Any

from ..report._table import format_bytes
from ..report._treemap import COLOURS
from ..report._write_file import replace_file
from ._candidate import Evaluation
from ._plan_record import PlanRecord
from ._plan_table import format_mesh_sizes, format_over, format_seconds, format_settings


_GIB = 2**30
_COMPUTE, _ATTENTION, _HOST, _WRONG = "#4d4d4d", "#999999", "#d0d0d0", "#c4161c"
_MOST_LINEAR = 8  # times the shortest step that the longest may be for a linear scale
_MARKERS = {"timed": "o", "compiled": "s", "screened": "^"}
_LABELS = {"timed": "timed", "compiled": "compiled", "screened": "screened (arguments)"}
_LEGEND = {"frameon": False, "fontsize": 8, "loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "axonym", "font.size": 9, "font.family": "sans-serif"}


def draw_plan(plan: PlanRecord, path: str | os.PathLike[str] | None, ranks: int | None) -> Any:
    """Returns the figure that `Plan.draw` does, and writes it to a file if there is a path."""
    matplotlib = _import_matplotlib()
    shown = [one for one in plan.evaluations if not one.problem]
    if not shown:
        raise ValueError("there is nothing to draw: the plan has no candidate that can be compiled")
    steps = shown[: plan.top if ranks is None else ranks]
    with matplotlib.rc_context(_STYLE):
        height = max(3.6, 1.6 + 0.5 * len(steps))
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, height), layout="constrained")
        candidates, parts = figure.subplots(1, 2, width_ratios=(4, 5))
        _draw_candidates(candidates, plan, shown)
        _draw_steps(parts, plan, steps)
        if path is not None:
            _save_figure(figure, path)
    return figure


def _import_matplotlib() -> Any:
    try:
        return importlib.import_module("matplotlib")
    except ImportError as missing:
        raise ImportError(
            "pictures of a plan need matplotlib, which is not installed; install it with `pip install axonym[plan]`"
        ) from missing


def _save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
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
    content = io.BytesIO()
    figure = draw_plan(plan, None, None)
    with _import_matplotlib().rc_context(_STYLE):
        figure.savefig(content, format="svg", metadata={"Date": None, "Title": f"A plan for {plan.topology}"})
    return content.getvalue().decode()


def _draw_candidates(axes: Any, plan: PlanRecord, shown: list[Evaluation]) -> None:
    """Draws a mark for each candidate: its bytes on a device and its step time, by how much is known of it."""
    for stage, marker in _MARKERS.items():
        for fits in (True, False):
            found = [one for one in shown if one.stage == stage and one.fits is fits]
            if found:
                axes.scatter(
                    [one.bytes / _GIB for one in found],
                    [one.time.total for one in found],
                    marker=marker,
                    s=28,
                    facecolors="none" if stage == "screened" else "#0072b2" if fits else _WRONG,
                    edgecolors="#0072b2" if fits else _WRONG,
                    label=f"{_LABELS[stage]}, {'fits' if fits else 'does not fit'}",
                )
    limit = plan.hardware.hbm_available
    axes.axvline(limit / _GIB, color=_WRONG, linestyle="--", linewidth=1, label=f"memory, {format_bytes(limit)}")
    if not plan.best.problem:
        place = [plan.best.bytes / _GIB], [plan.best.time.total]
        axes.scatter(*place, marker="o", s=150, facecolors="none", edgecolors="black", label="best")
    for rank, one in enumerate(plan.evaluations[: plan.top], 1):
        if not one.problem:
            place = one.bytes / _GIB, one.time.total
            axes.annotate(str(rank), place, xytext=(7, 5), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="GiB on a device", ylabel="seconds of a step", title=f"Candidates for {plan.topology}")
    times = [one.time.total for one in shown]
    if max(times) > _MOST_LINEAR * min(times):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, 1.1 * max(times))
    axes.legend(**_LEGEND)


def _draw_steps(axes: Any, plan: PlanRecord, steps: list[Evaluation]) -> None:
    """Draws a bar for each step, of its parts; below it, hatched, what goes on beside computing."""
    labelled: set[str] = set()

    def draw_bar(row: int, start: float, seconds: float, colour: str, label: str, hidden: bool = False) -> None:
        shown = None if label in labelled else label
        labelled.add(label)
        place, height = (row + 0.3, 0.14) if hidden else (row, 0.42)
        look = {"fill": False, "hatch": "/////", "edgecolor": colour} if hidden else {"color": colour}
        axes.barh(place, seconds, left=start, height=height, label=shown, linewidth=0, **look)

    order = [*dict.fromkeys(axis for one in steps for axis in one.candidate.mesh)]
    for row, one in enumerate(steps):
        time, start = one.time, 0.0
        colours = {over: _choose_colour(over, order) for over in (*time.waiting, *time.hidden)}
        bars = [("compute", time.compute, _COMPUTE), ("attention", time.attention, _ATTENTION)]
        bars += [(f"wait over {format_over(over)}", seconds, colours[over]) for over, seconds in time.waiting.items()]
        for label, seconds, colour in [*bars, ("wait for the host", time.host, _HOST)]:
            if seconds:
                draw_bar(row, start, seconds, colour, label)
                start += seconds
        place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(format_seconds(start), (start, row), **place)
        beside = 0.0
        for over, seconds in time.hidden.items():
            if seconds:
                draw_bar(row, beside, seconds, colours[over], f"beside, over {format_over(over)}", hidden=True)
                beside += seconds
    ranks = [_label_step(plan, one) for one in steps]
    axes.set_yticks(range(len(steps)), ranks)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="seconds", title="What a step is spent on")
    axes.legend(**_LEGEND)


def _label_step(plan: PlanRecord, one: Evaluation) -> str:
    rank = plan.evaluations.index(one) + 1
    return "\n".join(filter(None, (f"{rank}: {format_mesh_sizes(one.candidate)}", format_settings(one.candidate))))


def _choose_colour(over: tuple[str, ...], order: list[str]) -> str:
    """Returns the colour of the first of some mesh axes, as reports have it; that of several mixes in the second."""
    at = next((order.index(axis) for axis in over if axis in order), len(COLOURS) - 1)
    return COLOURS[(at + (3 if len(over) > 1 else 0)) % len(COLOURS)]
