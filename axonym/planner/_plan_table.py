"""The table of a plan: its candidates by rank, their memory, the parts of a step, and where the figures are from."""

from collections.abc import Iterator, Sequence

from ..report._grid import Grid, GridPage, GridRow
from ..report._table import WIDTH, format_bytes, format_count
from ._candidate import (
    Evaluation,
    format_mesh_sizes,
    format_over,
    format_seconds,
    format_settings,
    format_sharding,
    format_step_time,
    list_time_parts,
)
from ._plan_record import PlanRecord


_SOURCES = {
    "timed": "timed: memory and bytes sent are the compiler's, computing is {source}; waiting and attention are ours",
    "compiled": "compiled: memory and bytes sent are the compiler's; times are ours, {source}",
    "screened": "screened: all figures are ours; memory is that of the arguments alone, and computing is at the peak",
}
_TIMED_BY = {
    "cycles": "from XLA's estimates of cycles",
    "schedule": "from XLA's schedule",
    "flops": "from operations at the peak of the device",
}
_HEADS = ("rank", "mesh", "step time", "tokens/s", "a device", "MFU", "bytes a device", "fits", "figures")


def format_fit(plan: PlanRecord, one: Evaluation) -> str:
    """Returns whether an evaluation fits, and by how much it does not."""
    if one.problem:
        return "cannot be compiled"
    if one.fits:
        return "yes" if one.stage != "screened" else "arguments"
    excess = one.bytes - plan.hardware.hbm_available
    return f"no, {format_bytes(excess)} over" if excess > 0 else "no"


def make_plan_page(plan: PlanRecord, limit: int | None) -> GridPage:
    """Returns the title, the tables and the notes of a plan: as many candidates as the limit, parts of the top ones."""
    shown = plan.evaluations[:limit]
    detailed = [(rank, one) for rank, one in enumerate(shown[: plan.top], 1) if not one.problem]
    grids = []
    if shown:
        grids.append(_make_rank_grid(plan, shown))
    if detailed:
        grids += [_make_memory_grid(plan, detailed), _make_time_grid(detailed), _make_sent_grid(detailed)]
    return GridPage(_format_plan_title(plan), [grid for grid in grids if grid.rows], [*_list_plan_notes(plan, shown)])


def _format_plan_title(plan: PlanRecord) -> str:
    where = f"{plan.topology}, {format_count(plan.devices, 'device')} with {_format_available(plan)} each"
    if not plan.evaluations:
        return f"{where}: no candidate is left"
    if plan.fits:
        time = plan.best.time
        return f"{where}: {format_mesh_sizes(plan.best.candidate)} is best, {format_step_time(time)} a step"
    is_known = plan.nearest.stage != "screened" or not plan.nearest.fits
    return f"{where}: {'nothing fits; ' if is_known else ''}{describe_nearest(plan)}"


def describe_nearest(plan: PlanRecord) -> str:
    """Returns what is nearest to fitting, what it lacks, and what may help."""
    one = plan.nearest
    if one.stage == "screened" and one.fits:
        problem = next((other.problem for other in plan.evaluations if other.problem), "")
        reason = f"could be compiled: {problem}" if problem else "was compiled; give a longer `budget`"
        return f"which candidates fit is not known, since none {reason}"
    if one.problem:
        return f"no candidate can be compiled: {one.problem}"
    rank = plan.evaluations.index(one) + 1
    what = "its arguments alone lack" if one.stage == "screened" else "it lacks"
    lacks = f"{what} {format_bytes(plan.shortfall)} on a device" if plan.shortfall else "its compiler says so"
    name = ", ".join(filter(None, (format_mesh_sizes(one.candidate), format_settings(one.candidate))))
    return f"nearest is rank {rank}, {name}: {lacks}"


def _format_available(plan: PlanRecord) -> str:
    return format_bytes(plan.hardware.hbm_available)


def _make_rank_grid(plan: PlanRecord, shown: Sequence[Evaluation]) -> Grid:
    rows = []
    for rank, one in enumerate(shown, 1):
        has_time = not one.problem and one.time.total > 0
        speed = plan.tokens_per_second(one) if has_time and plan.tokens else 0.0
        cells = (
            str(rank),
            format_mesh_sizes(one.candidate),
            format_step_time(one.time) if has_time else "",
            f"{speed:,.0f}" if speed else "",
            f"{speed / plan.devices:,.0f}" if speed else "",
            f"{plan.mfu(one):.1%}" if has_time and plan.model_flops else "",
            format_bytes(one.bytes) if one.memory else "",
            format_fit(plan, one),
            one.stage,
        )
        about = (format_sharding(one.candidate), format_settings(one.candidate))
        rows.append(GridRow(cells, ["; ".join(filter(None, about)), *([one.problem] if one.problem else [])]))
    return Grid("", _HEADS, rows, ("mesh", "fits", "figures"))


def _make_memory_grid(plan: PlanRecord, shown: Sequence[tuple[int, Evaluation]]) -> Grid:
    """Returns the bytes by group, the largest groups first; those that find no place are in `others`."""
    largest: dict[str, int] = {}
    for _, one in shown:
        for group, size in one.memory.items():
            largest[group] = max(largest.get(group, 0), size)
    groups = [group for group, size in sorted(largest.items(), key=lambda item: -item[1]) if size]
    kept = _fit_groups(groups)
    heads = ("rank", *kept, "others", "all", "of the memory")
    rows = []
    for rank, one in shown:
        others = one.bytes - sum(one.memory.get(group, 0) for group in kept)
        sizes = [one.memory.get(group, 0) for group in kept]
        share = f"{one.bytes / plan.hardware.hbm_available:.1%}"
        cells = (str(rank), *map(format_bytes, sizes), format_bytes(others) if len(kept) < len(groups) else "")
        rows.append(GridRow((*cells, format_bytes(one.bytes), share)))
    return Grid("Bytes on a device", heads, rows)


def _fit_groups(groups: Sequence[str]) -> list[str]:
    """Returns as many groups as a line has room for, next to the rank, the others, and what they add up to."""
    kept, room = [], WIDTH - 50
    for group in groups:
        room -= max(len(group), 10) + 2
        if room < 0:
            break
        kept.append(group)
    return kept


def _make_time_grid(shown: Sequence[tuple[int, Evaluation]]) -> Grid:
    parts = {rank: list_time_parts(one.time) for rank, one in shown}
    found = [*dict.fromkeys(head for part in parts.values() for head in part)]
    heads = _fit_groups(found)
    rows = []
    for rank, one in shown:
        low, high = (one.time.total * (1 + sign * one.time.error) for sign in (-1, 1))
        band = f"{format_seconds(low)} to {format_seconds(high)}"
        cells = [format_seconds(parts[rank][head]) if parts[rank].get(head) else "-" for head in heads]
        others = sum(seconds for head, seconds in parts[rank].items() if head not in heads)
        rest = format_seconds(others) if len(heads) < len(found) else ""
        rows.append(GridRow((str(rank), *cells, rest, format_seconds(one.time.total), band)))
    return Grid("Seconds of a step", ("rank", *heads, "others", "step", "between"), rows)


def _make_sent_grid(shown: Sequence[tuple[int, Evaluation]]) -> Grid:
    rows = []
    for rank, one in shown:
        time = one.time
        axes = dict.fromkeys([*one.sent, *time.waiting, *time.hidden])
        for at, over in enumerate(axes):
            waited, hidden = time.waiting.get(over, 0.0), time.hidden.get(over, 0.0)
            cells = (format_bytes(one.sent.get(over, 0)), format_seconds(waited), format_seconds(hidden))
            rows.append(GridRow(("" if at else str(rank), format_over(over), *cells)))
    return Grid("Sent by a device in a step", ("rank", "over", "bytes", "waited for", "hidden"), rows, ("over",))


def _list_plan_notes(plan: PlanRecord, shown: Sequence[Evaluation]) -> Iterator[str]:
    if more := len(plan.evaluations) - len(shown):
        yield f"… {more} more; `.table(limit=None)` shows all, `.diff(1, {len(shown) + 1})` compares two"
    yield from _list_sources(plan, shown)
    yield f"Looked at {_count_candidates(plan)}, in {format_seconds(plan.seconds)}."
    if problem := next((one.problem for one in plan.evaluations if one.problem), ""):
        yield f"The first that could not be compiled: {problem}"
    if plan.versions:
        yield (
            "Compiled with "
            + ", ".join(f"{name} {number}" for name, number in plan.versions.items())
            + (
                "; " + ", ".join(f"{name}={value}" for name, value in plan.compiler_options.items())
                if plan.compiler_options
                else "; no flags"
            )
        )
    yield from plan.notes


def _list_sources(plan: PlanRecord, shown: Sequence[Evaluation]) -> Iterator[str]:
    """Yields for each stage that is shown which figures are XLA's and which are ours."""
    is_scaled = any(one.stage == "timed" for one in plan.evaluations)
    by = {**_TIMED_BY, "flops": "from operations at the speed of those that are timed"} if is_scaled else _TIMED_BY
    found: dict[str, list[str]] = {}
    for one in shown:
        sources = found.setdefault(one.stage, [])
        if by[one.time.source] not in sources:
            sources.append(by[one.time.source])
    for stage, text in _SOURCES.items():
        if stage in found:
            yield text.format(source=" or ".join(found[stage]))


def _count_candidates(plan: PlanRecord) -> str:
    stages = {stage: sum(one.stage == stage and not one.problem for one in plan.evaluations) for stage in _SOURCES}
    stages["could not be compiled"] = sum(bool(one.problem) for one in plan.evaluations)
    parts = [f"{count} {stage}" for stage, count in stages.items() if count]
    left_out = sum(plan.pruned.values())
    if left_out:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in plan.pruned.items())
        parts.append(f"{left_out} left out ({reasons})")
    total = format_count(len(plan.evaluations) + left_out, "candidate")
    return f"{total}: {', '.join(parts)}" if parts else total
