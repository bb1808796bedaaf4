"""The picture of a timeline: a row for what a device computes, and one for each way that it sends along."""

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ._candidate import Evaluation, format_over, format_seconds
from ._plan_figures import (
    ATTENTION_COLOUR,
    COMPUTE_COLOUR,
    HOST_COLOUR,
    STYLE,
    WRONG_COLOUR,
    choose_colour,
    choose_time_unit,
    format_figure_svg,
    import_matplotlib,
    save_figure,
)
from ._plan_record import PlanRecord
from ._program_timeline import FROM_HOST, TO_HOST
from ._timeline import Timeline, TimelineEvent


_WIDTH = 11.0  # inches
_LETTER = 0.0064  # of the width of the picture, that a letter in a bar takes
_THIN = 1 / 300  # of a turn
_OTHER_COLOUR = "#c9c9c9"
_RECOMPUTED_COLOUR = "#0072b2"
_COMPUTING = {
    "product": ("products", COMPUTE_COLOUR, "white"),
    "attention": ("attention", ATTENTION_COLOUR, "black"),
    "other": ("other computing", _OTHER_COLOUR, "black"),
    "loop": ("inner loops", "#ececec", "black"),
}
_ROWS = {(): "computing", TO_HOST: "to the host", FROM_HOST: "from the host"}


def draw_timeline(plan: PlanRecord, path: str | os.PathLike[str] | None, which: int | Evaluation) -> Any:
    """Returns the figure that `Plan.draw_timeline` does, and writes it to a file if there is a path."""
    matplotlib = import_matplotlib()
    found = plan.get_evaluation(which)
    _check_timelines(plan, found)
    timelines = found.time.timelines
    rows = [_list_timeline_rows(timeline, [*found.candidate.mesh]) for timeline in timelines]
    heights = [len(links) + 1.2 for links in rows]
    with matplotlib.rc_context(STYLE):
        module = importlib.import_module("matplotlib.figure")
        figure = module.Figure(figsize=(_WIDTH, 0.9 + 0.36 * sum(heights)), layout="constrained")
        every = figure.subplots(len(timelines), 1, height_ratios=heights, squeeze=False)[:, 0]
        for axes, timeline, links in zip(every, timelines, rows, strict=True):
            _draw_turn(axes, timeline, links, [*found.candidate.mesh])
        title = f"{found.candidate}, on {plan.topology}: a step in {format_seconds(found.time.total)}"
        figure.suptitle(title, fontsize=9, wrap=True)
        _draw_colour_legend(figure, timelines)
        if path is not None:
            save_figure(figure, path)
    return figure


def make_timeline_svg(plan: PlanRecord) -> str:
    """Returns the timeline of the best candidate as SVG."""
    return format_figure_svg(draw_timeline(plan, None, 1), f"A timeline of a plan for {plan.topology}")


def _check_timelines(plan: PlanRecord, found: Evaluation) -> None:
    if found.time.timelines:
        return
    what = f"rank {plan.evaluations.index(found) + 1}" if found in plan.evaluations else "this candidate"
    ranks = [str(rank) for rank, one in enumerate(plan.evaluations, 1) if one.time.timelines]
    remedy = (
        f"choose rank {' or '.join(ranks)}"
        if ranks
        else "this plan has none that is: on CPUs there are no times of instructions, and on TPUs only candidates that "
        "are compiled whole have them, as far as the `budget` lasts"
    )
    raise ValueError(f"there is no timeline of {what}, which is {found.stage}: only timed ones have it; {remedy}")


def _list_timeline_rows(timeline: Timeline, mesh_axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the rows: computing, sets of mesh axes in the order of the mesh, and the memory of the host."""
    links = {event.links for event in timeline.events if event.links}
    hosts = [one for one in (TO_HOST, FROM_HOST) if one in links]
    order = {axis: at for at, axis in enumerate(mesh_axes)}
    sent = sorted(
        links.difference(hosts), key=lambda over: (len(over), [order.get(axis, len(order)) for axis in over], over)
    )
    return [(), *sent, *hosts]


def _draw_turn(axes: Any, timeline: Timeline, rows: Sequence[tuple[str, ...]], mesh_axes: list[str]) -> None:
    """Draws a turn: bars in rows, and bands where the device waits."""
    unit, second = choose_time_unit(timeline.seconds)
    for event in timeline.events:
        start, seconds, waited = (value / second for value in (event.start, event.seconds, event.waited))
        row = rows.index(event.links)
        if event.links:
            host = event.links in (TO_HOST, FROM_HOST)
            colour, ink = HOST_COLOUR if host else choose_colour(event.links, mesh_axes), "black"
        else:
            _, colour, ink = _COMPUTING[event.kind]
        edge = "white" if event.seconds > _THIN * timeline.seconds else colour  # so that no bar is too thin to see
        axes.barh(row, seconds, left=start, height=0.7, color=colour, edgecolor=edge, linewidth=0.4, zorder=2)
        if event.run_in == "recomputed" and not event.links:
            axes.barh(row + 0.41, seconds, left=start, height=0.07, color=_RECOMPUTED_COLOUR, linewidth=0, zorder=2)
        if waited:
            axes.axvspan(start + seconds - waited, start + seconds, color=WRONG_COLOUR, alpha=0.14, lw=0, zorder=1)
        if text := _label_event(event, event.seconds / timeline.seconds):
            look = {"ha": "center", "va": "center_baseline", "fontsize": 7, "linespacing": 0.9}
            axes.text(start + seconds / 2, row, text, color=ink, zorder=3, **look)
    axes.set_yticks(range(len(rows)), [_ROWS.get(links) or f"over {format_over(links)}" for links in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, timeline.seconds / second)
    axes.xaxis.set_major_formatter(f"{{x:g}} {unit}")
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(_describe_turn(timeline), loc="left", fontsize=9)


def _describe_turn(timeline: Timeline) -> str:
    """Returns the name of a loop and the time of a turn: `Stacked, forward: one of 32 turns, 14.2 ms`."""
    turns = f"one of {timeline.turns} turns, " if timeline.turns > 1 else ""
    waited = f", of which it waits {format_seconds(timeline.waited)} ({timeline.waited / timeline.seconds:.0%})"
    return f"{timeline.name}: {turns}{format_seconds(timeline.seconds)}{waited if timeline.waited else ''}"


def _label_event(event: TimelineEvent, share: float) -> str:
    """Returns the longest text for an event that finds room in its bar, in one line or two."""
    texts = [*_list_labels(event)]
    texts += [re.sub(r"(?<=[-_])", "\n", texts[-1], count=1)]
    return next((text for text in texts if (1 + max(map(len, text.split("\n")))) * _LETTER < share), "")


def _list_labels(event: TimelineEvent) -> Iterator[str]:
    """Yields texts for an event, the longest first."""
    name = "" if "+" in event.layer else event.layer.rpartition("/")[2]
    if event.links and (what := name or event.operation):
        yield f"{event.kind} for {what}"
    elif event.kind == "product":
        yield f"{name} {event.operation}".strip()
    yield name if event.kind in ("product", "other") else event.kind


def _draw_colour_legend(figure: Any, timelines: Sequence[Timeline]) -> None:
    """Draws what the colours of computing and of waits mean below all turns."""
    patch = importlib.import_module("matplotlib.patches").Patch
    events = [event for timeline in timelines for event in timeline.events]
    kinds = {event.kind for event in events}
    shown = [patch(color=colour, label=label) for kind, (label, colour, _) in _COMPUTING.items() if kind in kinds]
    if any(event.run_in == "recomputed" for event in events):
        shown.append(patch(color=_RECOMPUTED_COLOUR, label="underlined: recomputed"))
    if any(event.waited for event in events):
        shown.append(patch(color=WRONG_COLOUR, alpha=0.14, label="the device waits"))
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), frameon=False, fontsize=8)
