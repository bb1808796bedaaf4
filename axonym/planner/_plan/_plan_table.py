"""The table of a plan, what other choices cost (`Plan.why`), and two of its candidates part by part (`Plan.diff`)."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from ..._ground.formats import format_bytes, format_count, suggest_name
from ...report._table import WIDTH, Grid, GridPage, GridRow, PrintedReport, format_html_page, format_page
from .._step_time._step_time import StepTime, TimePart, format_seconds, format_step_time, list_time_parts
from ._candidate import (
    Candidate,
    Evaluation,
    PlanRecord,
    format_mesh_axes,
    format_mesh_sizes,
    format_settings,
    format_sharding,
    list_sizes,
)


T = TypeVar("T", bound=Hashable)

_SOURCES = {
    "timed": "timed: memory and bytes sent are the compiler's, computing is {source}; waiting and attention are ours",
    "compiled": "compiled: memory and bytes sent are the compiler's; times are ours, {source}",
    "screened": "screened: all figures are ours; memory is that of the arguments alone, computing is {source}",
}
_UNLIKELY = "unlikely: the arguments fit, but not beside what is estimated to be saved for the backward pass"
_UNKNOWN = "not known: as screened it looks faster than the best, which only compiling it can tell"
_TIMED_BY = {
    "cycles": "from XLA's estimates of cycles",
    "kernels": "from published speeds of kernels",
    "flops": "from operations at the peak of the device",
}
# The rows of a comparison that are numbers, and how these are written; the others are texts.
_NUMBERS: Mapping[str, Callable[[Any], str]] = {
    "step time": format_seconds,
    "hidden": format_seconds,
    "bytes on a device": format_bytes,
    "bytes sent": format_bytes,
}
_STOPS = {
    "budget": "the budget was used up",
    "interrupt": "the search was interrupted",
    "error": "an error ended the search",
}
_LEAST_CAUSE = 0.005  # of a step, or of the memory of a device: smaller differences are not named


def format_fit(plan: PlanRecord, evaluation: Evaluation) -> str:
    """Returns whether an evaluation fits, and by how much it does not."""
    if evaluation.problem:
        return "cannot be compiled"
    if evaluation.fits and evaluation.stage == "screened":
        return "arguments" if plan.is_likely_to_fit(evaluation) else "unlikely"
    return "yes" if evaluation.fits else f"no{_format_excess(plan, evaluation)}"


def _format_excess(plan: PlanRecord, evaluation: Evaluation) -> str:
    excess = evaluation.bytes - plan.hardware.hbm_available
    return f", {format_bytes(excess)} over" if excess > 0 else ""


def make_plan_page(plan: PlanRecord, limit: int | None) -> GridPage:
    """Returns the title, the tables and the notes of a plan: as many candidates as the limit, parts of the top ones."""
    evaluations = plan.evaluations[:limit]
    top = [(rank, evaluation) for rank, evaluation in enumerate(evaluations[: plan.top], 1) if not evaluation.problem]
    grids = [_make_sizes_grid(plan)] if plan.serve else []
    if evaluations:
        grids.append(_make_rank_grid(plan, evaluations))
    if top:
        grids += [_make_memory_grid(plan, top), _make_time_grid(top), _make_sent_grid(top)]
    notes = _list_plan_notes(plan, evaluations)
    return GridPage(_format_plan_title(plan), [grid for grid in grids if grid.rows], [*notes])


def _format_plan_title(plan: PlanRecord) -> str:
    memory = format_bytes(plan.hardware.hbm_available)
    where = f"{plan.topology}, {format_count(plan.devices, 'device')} with {memory} each"
    if not plan.evaluations:
        return f"{where}: no candidate is left"
    if plan.fits:
        name = ", ".join([format_mesh_sizes(plan.best.candidate), *list_sizes(plan.best.candidate)])
        speed = f", {plan.tokens_per_second():,.0f} tokens/s" if plan.serve and plan.tokens else ""
        return f"{where}: {name} is best, {format_step_time(plan.best.time)} {_name_step(plan)}{speed}"
    if plan.has_verdict:
        return f"{where}: nothing fits; {_describe_nearest(plan)}"
    return f"{where}: which candidates fit is not known, since {_explain_unknown(plan)}"


def _explain_unknown(plan: PlanRecord) -> str:
    """Returns why it is not known whether anything fits."""
    if not plan.hardware.has_compiler:
        return f"there is no compiler for {plan.hardware.name}"
    problem = _find_first_problem(plan)
    if plan.nearest.stage == "screened" and problem:
        return f"none could be compiled: {problem}"
    end = f" before {_STOPS[plan.stopped_by]}" if plan.stopped_by else ""
    if plan.nearest.stage == "screened":
        return f"none was compiled{end}{'; give a longer `budget`' if plan.stopped_by == 'budget' else ''}"
    count = sum(evaluation.stage != "screened" for evaluation in plan.evaluations)
    candidates = f"the {format_count(count, 'candidate')} compiled{end} {'does' if count == 1 else 'do'} not fit"
    return f"{candidates}; {_describe_nearest(plan)}"


def _describe_nearest(plan: PlanRecord) -> str:
    """Returns what is nearest to fitting, and what it lacks."""
    nearest = plan.nearest
    if nearest.problem:
        return f"no candidate can be compiled: {nearest.problem}"
    rank = plan.evaluations.index(nearest) + 1
    name = ", ".join(filter(None, (format_mesh_sizes(nearest.candidate), format_settings(nearest.candidate))))
    if not plan.shortfall:
        return f"nearest is rank {rank}, {name}: its compiler says so"
    lacks = "its arguments alone lack" if nearest.stage == "screened" else "it lacks"
    return f"nearest is rank {rank}, {name}: {lacks} {format_bytes(plan.shortfall)} on a device"


def _find_first_problem(plan: PlanRecord) -> str:
    return next((evaluation.problem for evaluation in plan.evaluations if evaluation.problem), "")


def _name_step(plan: PlanRecord) -> str:
    """Returns what a step time is the time of: of a token, if each sequence that is served gets one."""
    return "a token" if plan.serve and plan.best.sequences == plan.best.tokens else "a step"


def _make_sizes_grid(plan: PlanRecord) -> Grid:
    """Returns the best evaluation of each combination of sizes, in their order, the axis that is served last."""
    first_ranks: dict[tuple[tuple[str, int], ...], int] = {}
    for rank, evaluation in enumerate(plan.evaluations, 1):
        first_ranks.setdefault((*evaluation.candidate.sizes.items(),), rank)
    names = sorted(plan.best.candidate.sizes, key=lambda name: name == plan.serve)
    heads = (
        *names,
        *(_name_step(plan) if head == "step time" else head for head in _list_heads(plan)[:-1]),
        "room for",
    )
    rows: dict[tuple[int, ...], GridRow] = {}
    for rank in first_ranks.values() if len(first_ranks) > 1 else ():
        evaluation = plan.get_evaluation(rank)
        sizes = tuple(evaluation.candidate.sizes[name] for name in names)
        rank_cell, mesh, *speeds, size, fit, _ = _make_rank_cells(plan, rank, evaluation)
        speeds = speeds if evaluation.fits else [""] * len(speeds)
        cells = (*map(str, sizes), rank_cell, mesh, *speeds, size, fit, _format_room(plan, evaluation))
        rows[sizes] = GridRow(cells, [format_sharding(evaluation.candidate)])
    return Grid("Best of each size", heads, [rows[sizes] for sizes in sorted(rows)], ("mesh", "fits"))


def _format_room(plan: PlanRecord, evaluation: Evaluation) -> str:
    """Returns how many sequences fill the memory of a device if all beside parameters grows as their number does."""
    parameters = evaluation.memory.get("parameters", 0)
    sequence_bytes = evaluation.bytes - parameters
    if not evaluation.is_usable or evaluation.stage == "screened" or not sequence_bytes:
        return ""
    return f"{evaluation.sequences * (plan.hardware.hbm_available - parameters) // sequence_bytes:,}"


def _make_rank_grid(plan: PlanRecord, evaluations: Sequence[Evaluation]) -> Grid:
    rows = []
    for rank, evaluation in enumerate(evaluations, 1):
        cells = _make_rank_cells(plan, rank, evaluation)
        sharding, settings = format_sharding(evaluation.candidate), format_settings(evaluation.candidate)
        below = [f"{sharding}; {settings}" if settings else sharding]
        if evaluation.problem:
            below.append(evaluation.problem)
        rows.append(GridRow(cells, below))
    return Grid("", _list_heads(plan), rows, ("mesh", "fits", "figures"), _describe_ties(plan))


def _format_speed(speed: float) -> str:
    """Returns a number a second: a whole one, with three digits if it is small; empty if it is not known."""
    if not speed:
        return ""
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _describe_ties(plan: PlanRecord) -> str:
    """Returns a sentence on the ranks that are as fast as the best, as far as is known; empty if there are none."""
    if len(plan.ties) < 2:
        return ""
    runs: list[list[int]] = []
    for rank in plan.ties:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts: list[str] = []
    for run in runs:
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    ranks = ", ".join(texts[:-1]) + " and " * (len(texts) > 1) + texts[-1]
    return f"Ranks {ranks} are ties: their step times differ by less than the error between candidates."


def _list_heads(plan: PlanRecord) -> tuple[str, ...]:
    speed_head = "tokens/s" if plan.tokens else "samples/s"
    return ("rank", "mesh", "step time", speed_head, "a device", "MFU", "bytes a device", "fits", "figures")


def _make_rank_cells(plan: PlanRecord, rank: int, evaluation: Evaluation) -> tuple[str, ...]:
    """Returns the cells below the heads of `_list_heads`."""
    has_time = not evaluation.problem and evaluation.time.total > 0
    measure_speed = plan.tokens_per_second if plan.tokens else plan.samples_per_second
    speed = measure_speed(evaluation) if has_time else 0.0
    return (
        str(rank),
        format_mesh_sizes(evaluation.candidate),
        format_step_time(evaluation.time) if has_time else "",
        _format_speed(speed),
        _format_speed(speed / plan.devices),
        f"{plan.mfu(evaluation):.1%}" if has_time and plan.model_flops else "",
        format_bytes(evaluation.bytes) if evaluation.memory else "",
        format_fit(plan, evaluation),
        evaluation.stage,
    )


def _make_memory_grid(plan: PlanRecord, ranked: Sequence[tuple[int, Evaluation]]) -> Grid:
    """Returns the bytes by group, the largest groups first; those without room for a column are summed as `others`."""
    largest: dict[str, int] = {}
    for _, evaluation in ranked:
        for group, size in evaluation.memory.items():
            largest[group] = max(largest.get(group, 0), size)
    groups = [group for group, size in sorted(largest.items(), key=lambda item: -item[1]) if size]
    columns = _fit_columns(groups)
    rows = []
    for rank, evaluation in ranked:
        sizes = [evaluation.memory.get(group, 0) for group in columns]
        remainder = format_bytes(evaluation.bytes - sum(sizes)) if len(columns) < len(groups) else ""
        share = f"{evaluation.bytes / plan.hardware.hbm_available:.1%}"
        rows.append(GridRow((str(rank), *map(format_bytes, sizes), remainder, format_bytes(evaluation.bytes), share)))
    return Grid("Bytes on a device", ("rank", *columns, "others", "all", "of the memory"), rows)


def _fit_columns(heads: Sequence[T]) -> list[T]:
    """Returns as many columns as a line has room for, next to the rank, the others, and what they add up to."""
    columns, room = [], WIDTH - 50
    for head in heads:
        room -= max(len(str(head)), 10) + 2
        if room < 0:
            break
        columns.append(head)
    return columns


def _make_time_grid(ranked: Sequence[tuple[int, Evaluation]]) -> Grid:
    parts_by_rank = {rank: list_time_parts(evaluation.time) for rank, evaluation in ranked}
    all_parts = [*dict.fromkeys(part for parts in parts_by_rank.values() for part in parts)]
    columns = _fit_columns(all_parts)
    rows = []
    for rank, evaluation in ranked:
        parts, time = parts_by_rank[rank], evaluation.time
        cells = [format_seconds(parts[part]) if parts.get(part) else "-" for part in columns]
        remainder = ""
        if len(columns) < len(all_parts):
            remainder = format_seconds(sum(seconds for part, seconds in parts.items() if part not in columns))
        lower, upper = time.total * (1 - time.error), time.total * (1 + time.error)
        band = f"{format_seconds(lower)} to {format_seconds(upper)}"
        rows.append(GridRow((str(rank), *cells, remainder, format_seconds(time.total), band)))
    return Grid("Seconds of a step", ("rank", *map(str, columns), "others", "step", "between"), rows)


def _make_sent_grid(ranked: Sequence[tuple[int, Evaluation]]) -> Grid:
    rows = []
    for rank, evaluation in ranked:
        time, label = evaluation.time, str(rank)
        for mesh_axes in dict.fromkeys([*evaluation.sent, *time.waiting, *time.hidden]):
            cells = (
                format_bytes(evaluation.sent.get(mesh_axes, 0)),
                format_seconds(time.waiting.get(mesh_axes, 0.0)),
                format_seconds(time.hidden.get(mesh_axes, 0.0)),
            )
            rows.append(GridRow((label, format_mesh_axes(mesh_axes), *cells)))
            label = ""  # the rank is in its first row alone
    return Grid("Sent by a device in a step", ("rank", "over", "bytes", "waited for", "hidden"), rows, ("over",))


def _list_plan_notes(plan: PlanRecord, evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yields the notes of a plan of which these evaluations are shown."""
    if omitted := len(plan.evaluations) - len(evaluations):
        yield f"… {omitted} more; `.table(limit=None)` shows all, `.diff(1, {len(evaluations) + 1})` compares two"
    yield from _list_sources(plan, evaluations)
    if any(format_fit(plan, evaluation) == "unlikely" for evaluation in evaluations):
        yield _UNLIKELY
    yield f"Looked at {_count_candidates(plan)}, in {format_seconds(plan.seconds)}."
    if problem := _find_first_problem(plan):
        yield f"The first that could not be compiled: {problem}"
    if plan.versions:
        versions = ", ".join(f"{name} {number}" for name, number in plan.versions.items())
        flags = ", ".join(f"{name}={value}" for name, value in plan.compiler_options.items())
        yield f"Compiled with {versions}; {flags or 'no flags'}"
    yield from plan.notes


def _list_sources(plan: PlanRecord, evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yields for each stage of these evaluations which figures are XLA's and which are ours."""
    descriptions = dict(_TIMED_BY)
    if any(evaluation.stage == "timed" for evaluation in plan.evaluations):
        descriptions["flops"] = "from operations at the speed of those that are timed"
    for stage, text in _SOURCES.items():
        sources = dict.fromkeys(
            descriptions[evaluation.time.source] for evaluation in evaluations if evaluation.stage == stage
        )
        if sources:
            yield text.format(source=" or ".join(sources))


def _count_candidates(plan: PlanRecord) -> str:
    counts = dict.fromkeys((*_SOURCES, "could not be compiled"), 0)
    for evaluation in plan.evaluations:
        counts["could not be compiled" if evaluation.problem else evaluation.stage] += 1
    parts = [f"{count} {stage}" for stage, count in counts.items() if count]
    left_out = sum(plan.pruned.values())
    if left_out:
        reasons = "; ".join(f"{count}: {reason}" for reason, count in plan.pruned.items())
        parts.append(f"{left_out} left out ({reasons})")
    total = format_count(len(plan.evaluations) + left_out, "candidate")
    return f"{total}: {', '.join(parts)}" if parts else total


class _PrintedPage(PrintedReport):
    """Base class for what is printed as a page of grids."""

    def _make_page(self, limit: int | None) -> GridPage:
        raise NotImplementedError

    def table(self, limit: int | None = None) -> str:
        """Returns the table as text, at most 120 columns wide.

        Args:
            limit: How many rows to show; all of them if None.
        """
        return format_page(self._make_page(limit))

    def _repr_html_(self) -> str:
        return format_html_page(self._make_page(None))


@dataclass(frozen=True)
class Alternative:
    """Another choice for an axis, and the best candidate that makes it.

    Attributes:
        choice: What it is instead, such as `"over model"`.
        rank: The rank of the best candidate with this choice.
        evaluation: What is known of that candidate.
        seconds: By how many seconds a step is longer than that of the best of all; negative if it is shorter, which is
            printed only if it is known to fit. If it was only screened, it is compared with what the screening says of
            the best. If it has other sizes, its times are those for as many samples as the best has.
        bytes: By how many bytes a device holds more than with the same; negative if less.
        causes: What the differences are made of, the largest first, such as `"waits 620.0 ms longer over data"`.

    Example:
        >>> import axonym as nym
        >>> candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",)})
        >>> time = nym.planner.StepTime(1.5, 0.0, {}, {}, 0.0, "flops", 0.5)
        >>> evaluation = nym.planner.Evaluation(candidate, "compiled", True, {"arguments": 64}, {}, time)
        >>> nym.planner.Alternative("not sharded", 2, evaluation, 0.25, 0, ("computes 250.0 ms longer",)).causes
        ('computes 250.0 ms longer',)
    """

    choice: str
    rank: int
    evaluation: Evaluation
    seconds: float
    bytes: int
    causes: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class PlanAlternatives(_PrintedPage):
    """What other choices for an axis cost, the best one first: what `Plan.why` returns, printed as a table.

    Attributes:
        subject: The axis, `"policy"`, `"gather"`, `"microbatches"`, `"state"` or the option.
        choice: What it is in the best candidate.
        alternatives: The other choices that were evaluated, each with its best candidate.
        plan: The plan.
        requested: The choice that was asked for, if it is that of the best candidate; otherwise empty.

    Example:
        >>> import axonym as nym
        >>> def make(over, seconds):
        ...     candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": over})
        ...     time = nym.planner.StepTime(seconds, 0.0, {}, {}, 0.0, "flops", 0.5)
        ...     return nym.planner.Evaluation(candidate, "compiled", True, {"arguments": 64}, {}, time)
        >>> machine = nym.planner.described_devices("cpu:8")[0].topology
        >>> plan = nym.planner.Plan((make(("data",), 1.0), make((), 1.25)), machine, 3, {}, 0.0, 0, {}, {}, 0.5)
        >>> [(other.choice, other.causes) for other in plan.why("embed").alternatives]
        [('not sharded', ('computes 250.0 ms longer',))]
    """

    subject: str
    choice: str
    alternatives: tuple[Alternative, ...]
    plan: PlanRecord = field(repr=False)
    requested: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the plan as dictionaries, lists, strings and numbers."""
        alternatives = [
            {
                "choice": alternative.choice,
                "rank": alternative.rank,
                "seconds": alternative.seconds,
                "bytes": alternative.bytes,
                "fits": None if alternative.evaluation.stage == "screened" else alternative.evaluation.fits,
                "causes": [*alternative.causes],
            }
            for alternative in self.alternatives
        ]
        return {"subject": self.subject, "choice": self.choice, "alternatives": alternatives}

    def _make_page(self, limit: int | None) -> GridPage:
        best, estimate = self.plan.best, self.plan.screened
        title = (
            f"{self.subject}: {self.choice} in the best candidate ({format_mesh_sizes(best.candidate)}, "
            f"{format_step_time(best.time)}, {format_bytes(best.bytes)} a device, {_describe_verdict(self.plan, best)})"
        )
        alternatives = self.alternatives[:limit]
        is_best = f"{self.subject}={self.requested} is the choice of the best candidate itself"
        if not alternatives:
            notes = ["No candidate with another choice was evaluated."]
            return GridPage(title, [], [f"{is_best}.", *notes] if self.requested else notes)
        evaluations = [alternative.evaluation for alternative in alternatives]
        notes = [f"{is_best}; here are the others."] if self.requested else []
        kinds = {(evaluation.stage, evaluation.time.source) for evaluation in evaluations}
        if kinds != {(best.stage, best.time.source)}:
            notes.append("Times of other figures than those of the best candidate are less certain.")
        if any(format_fit(self.plan, evaluation) == "unlikely" for evaluation in evaluations):
            notes.append(_UNLIKELY)
        if any(_is_difference_unknown(self.plan, alternative) for alternative in alternatives):
            notes.append(_UNKNOWN)
        if any(evaluation.units != best.units for evaluation in evaluations):
            notes.append("Differences of times are those for as many samples as the best candidate has.")
        if estimate is not None and any(stage == "screened" for stage, _ in kinds):
            figures = f"{format_step_time(estimate.time)} and {format_bytes(estimate.bytes)} of arguments"
            notes.append(f"What was only screened is compared with what the screening says of the best: {figures}.")
        heads = ("instead", "rank", "mesh", "step time", "difference", "bytes a device", "fits", "figures")
        rows = [_make_alternative_row(self.plan, alternative) for alternative in alternatives]
        return GridPage(title, [Grid("", heads, rows, ("instead", "mesh", "fits", "figures"))], notes)


def _describe_verdict(plan: PlanRecord, evaluation: Evaluation) -> str:
    if evaluation.problem:
        return "it cannot be compiled"
    if evaluation.fits and evaluation.stage == "screened":
        return "its arguments fit" if plan.is_likely_to_fit(evaluation) else "it is unlikely to fit"
    if evaluation.fits:
        return "it fits"
    return f"it does not fit{_format_excess(plan, evaluation)}"


def _make_alternative_row(plan: PlanRecord, alternative: Alternative) -> GridRow:
    evaluation = alternative.evaluation
    candidate = evaluation.candidate
    time, change = "", ""
    if not evaluation.problem:
        time = format_step_time(evaluation.time)
        if not _is_better_if_it_fits(alternative.seconds, evaluation):
            change = _format_change(alternative.seconds, _choose_base(plan, evaluation).time.total, format_seconds)
        elif _is_difference_unknown(plan, alternative):
            change = "not known"
    cells = (
        alternative.choice,
        str(alternative.rank),
        format_mesh_sizes(candidate),
        time,
        change,
        format_bytes(evaluation.bytes) if evaluation.memory else "",
        format_fit(plan, evaluation),
        evaluation.stage,
    )
    key, best = candidate.key, plan.best.candidate.key
    below = []
    if (key.compute, key.parameters) != (best.compute, best.parameters):
        below.append(f"with {format_sharding(candidate)}")
    if format_settings(candidate) != format_settings(plan.best.candidate):
        below.append(f"with {format_settings(candidate)}")
    below += [evaluation.problem] if evaluation.problem else alternative.causes
    return GridRow(cells, ["; ".join(below)] if below else [])


def _is_better_if_it_fits(seconds: float, evaluation: Evaluation) -> bool:
    """Returns whether an alternative looks faster, and is not known to fit."""
    return seconds < 0 and (evaluation.stage == "screened" or not evaluation.fits)


def _is_difference_unknown(plan: PlanRecord, alternative: Alternative) -> bool:
    """Returns whether an alternative may fit, and looks faster, which only compiling it could confirm."""
    evaluation = alternative.evaluation
    return _is_better_if_it_fits(alternative.seconds, evaluation) and plan.is_likely_to_fit(evaluation)


def _format_change(change: float, base: float, format_number: Callable[[Any], str]) -> str:
    """Returns a difference with its sign and in percent: `+250.0 ms (+20%)`; empty if there is none."""
    if abs(change) < 0.5e-12:  # rounding
        return ""
    sign = "+" if change > 0 else "-"
    percent = f" ({change / base:+.0%})" if base > 0 else ""
    return f"{sign}{format_number(abs(change))}{percent}"


class _Choice(NamedTuple):
    """What a candidate chooses: a key to compare it by, how it is written, and the mesh axes that also ask for it."""

    key: Hashable
    text: str
    mesh_axes: Sequence[str] = ()


def find_alternatives(plan: PlanRecord, axis: str) -> PlanAlternatives:
    """Returns what `Plan.why` does."""
    best = plan.best.candidate
    if not isinstance(axis, str):
        raise TypeError(
            "`why` takes the name of an axis, a mesh axis, 'policy' or another setting, or an option, also with a "
            f"choice as in 'data=64', not a {type(axis).__name__}; `diff(1, 3)` compares candidates by rank"
        )
    subject, equals, value = (text.strip() for text in axis.partition("="))
    read_choice = _make_reader(plan, subject)
    best_choice = read_choice(best)
    choices: dict[Hashable, tuple[_Choice, int, Evaluation]] = {}
    ranked = [*enumerate(plan.evaluations, 1)]
    # First those that differ from the best in settings alone, whose differences are those of the settings.
    for rank, evaluation in sorted(ranked, key=lambda ranked: not _has_sharding_of_best(plan, ranked[1])):
        choice = read_choice(evaluation.candidate)
        choices.setdefault(choice.key, (choice, rank, evaluation))
    choices = dict(sorted(choices.items(), key=lambda item: item[1][1]))
    requested = {
        key for key, (choice, _, _) in choices.items() if not equals or value in (choice.text, *choice.mesh_axes)
    }
    if not requested:
        texts = " or ".join(repr(f"{subject}={choice.text}") for choice, _, _ in choices.values())
        raise ValueError(f"no candidate with {axis!r} was evaluated; ask for {texts}")
    alternatives: list[Alternative] = []
    for choice, rank, evaluation in choices.values():
        # If the choice of the best candidate is asked for, all others are compared with it.
        if choice.key == best_choice.key or not requested & {choice.key, best_choice.key}:
            continue
        base = _choose_base(plan, evaluation)
        matched = _match_samples(evaluation, base)
        causes = () if evaluation.problem else tuple(_list_causes(plan, base, matched))
        seconds = matched.time.total - base.time.total
        alternatives.append(Alternative(choice.text, rank, evaluation, seconds, evaluation.bytes - base.bytes, causes))
    is_best_requested = bool(equals) and best_choice.key in requested
    return PlanAlternatives(subject, best_choice.text, tuple(alternatives), plan, value if is_best_requested else "")


def _has_sharding_of_best(plan: PlanRecord, evaluation: Evaluation) -> bool:
    """Returns whether an evaluation is likely to fit, and has the mesh and the mappings of the best."""
    key, best = evaluation.candidate.key, plan.best.candidate.key
    shardings = {(key.mesh, key.compute, key.parameters), (best.mesh, best.compute, best.parameters)}
    return len(shardings) == 1 and plan.is_likely_to_fit(evaluation)


def _make_reader(plan: PlanRecord, subject: str) -> Callable[[Candidate], _Choice]:
    """Returns a function that tells what a candidate chooses for an axis, the policy or an option."""
    candidates = [evaluation.candidate for evaluation in plan.evaluations]
    mesh_axes = dict.fromkeys(axis for candidate in candidates for axis in candidate.mesh)
    mappings = [
        mapping for candidate in candidates for mapping in (candidate.compute, candidate.parameters, candidate.sizes)
    ]
    names = dict.fromkeys(name for mapping in mappings for name in mapping)
    options = dict.fromkeys(name for candidate in candidates for name in candidate.options)

    settings: dict[str, Callable[[Candidate], _Choice]] = {
        "policy": lambda candidate: _Choice(candidate.policy, candidate.policy or "as the arguments have it")
    }
    if any(candidate.gather for candidate in candidates):
        settings["gather"] = lambda candidate: _Choice(candidate.gather, candidate.gather)
    if "microbatches" not in options and any(candidate.microbatches for candidate in candidates):
        settings["microbatches"] = _read_microbatches
    if any(candidate.has_offloaded_state for candidate in candidates):
        settings["state"] = _read_state_memory
    if subject not in {*settings, *names, *mesh_axes, *options}:
        subjects = {"axes": names, "mesh axes": mesh_axes, "options": options}
        listing = "; ".join(f"{kind}: {', '.join(map(repr, group))}" for kind, group in subjects.items() if group)
        suggestion = suggest_name(subject, [*names, *mesh_axes, *options, *settings])
        raise ValueError(
            f"no candidate shards or chooses {subject!r}{suggestion}; there are {', '.join(map(repr, settings))} and "
            f"{listing or 'no axes'}"
        )

    def read_choice(candidate: Candidate) -> _Choice:
        if subject in names:
            key = candidate.compute.get(subject, ()), candidate.parameters.get(subject, ())
            text, texts = _describe_choice(candidate, subject), [format_mesh_axes(axes) for axes in key if axes]
            if (size := candidate.sizes.get(subject)) is None:
                return _Choice(key, text, texts)
            return _Choice((size, key), f"{size} {text}", [*texts, str(size)])
        if subject in mesh_axes:
            size = candidate.mesh.get(subject, 1)
            return _Choice(size, str(size))
        if subject in settings:
            return settings[subject](candidate)
        if subject not in candidate.options:
            return _Choice(None, "left out")
        value = candidate.options[subject]
        return _Choice(repr(value), str(value))  # a value need not be hashable

    return read_choice


def _read_microbatches(candidate: Candidate) -> _Choice:
    count = math.prod(candidate.microbatches.values())
    return _Choice(count, str(count))


def _read_state_memory(candidate: Candidate) -> _Choice:
    memory = "host" if candidate.has_offloaded_state else "device"
    return _Choice(memory, f"on the {memory}")


def _describe_choice(candidate: Candidate, name: str) -> str:
    """Returns what an axis is sharded over while computing and where it is stored."""
    compute, stored = candidate.compute.get(name, ()), candidate.parameters.get(name, ())
    if compute == stored:
        return f"over {format_mesh_axes(compute)}" if compute else "not sharded"
    where = f"stored over {format_mesh_axes(stored)}" if stored else "stored whole"
    return f"over {format_mesh_axes(compute)}, {where}" if compute else where


def _choose_base(plan: PlanRecord, evaluation: Evaluation) -> Evaluation:
    """Returns the evaluation of the best candidate to compare with: screened if the other is only screened."""
    if evaluation.stage == "screened" and plan.screened is not None:
        return plan.screened
    return plan.best


def _match_samples(evaluation: Evaluation, base: Evaluation) -> Evaluation:
    """Returns an evaluation with the times of as many samples as another has, if sizes were searched."""
    ratio, time = base.units / evaluation.units, evaluation.time
    if ratio == 1:
        return evaluation
    waiting, hidden = ({axes: ratio * s for axes, s in part.items()} for part in (time.waiting, time.hidden))
    compute, attention, host = (ratio * seconds for seconds in (time.compute, time.attention, time.host))
    scaled = replace(time, compute=compute, attention=attention, waiting=waiting, hidden=hidden, host=host)
    return replace(evaluation, time=scaled)


def _list_causes(plan: PlanRecord, base: Evaluation, evaluation: Evaluation) -> Iterator[str]:
    """Yields the parts of a step and of memory that differ by `_LEAST_CAUSE` at least, the largest first.

    A step that would be faster, and is not known to fit, has no parts of time, which would look like a gain.
    """
    if evaluation.fits and not plan.is_likely_to_fit(evaluation):
        yield f"saves about {format_bytes(evaluation.saved_bytes)} for the backward pass, with which it would not fit"
    # XLA's figures have attention in the time of computing where ours have it apart.
    are_joined = base.time.source != evaluation.time.source
    before, after = _list_parts(base.time, are_joined), _list_parts(evaluation.time, are_joined)
    if not _is_better_if_it_fits(evaluation.time.total - base.time.total, evaluation):
        for part, change in _list_changes(before, after, _LEAST_CAUSE * base.time.total):
            yield _describe_cause(part, change)
    memory = dict(base.memory)
    if evaluation.stage == "screened":  # which knows the arguments alone
        memory = {group: size for group, size in memory.items() if group in evaluation.memory}
    for group, change in _list_changes(memory, evaluation.memory, _LEAST_CAUSE * plan.hardware.hbm_available):
        yield f"{'+' if change > 0 else '-'}{format_bytes(int(abs(change)))} {group}"


def _list_parts(time: StepTime, with_attention_in_compute: bool) -> dict[TimePart, float]:
    parts = list_time_parts(time)
    if with_attention_in_compute:
        attention = parts.pop(TimePart("attention"), 0.0)
        parts[TimePart("compute")] = parts.get(TimePart("compute"), 0.0) + attention
    return parts


def _list_changes(before: Mapping[T, float], after: Mapping[T, float], least: float) -> list[tuple[T, float]]:
    changes = {part: after.get(part, 0) - before.get(part, 0) for part in {**before, **after}}
    ranked = sorted(changes.items(), key=lambda item: -abs(item[1]))
    return [(part, change) for part, change in ranked if abs(change) >= max(least, 1e-12)]


def _describe_cause(part: TimePart, change: float) -> str:
    difference = f"{format_seconds(abs(change))} {'longer' if change > 0 else 'less'}"
    if part.kind == "compute":
        return f"computes {difference}"
    if part.kind == "attention":
        return f"attention takes {difference}"
    if part.kind == "host":
        return f"waits {difference} for the host"
    return f"waits {difference} over {' and '.join(part.mesh_axes)}"


@dataclass(frozen=True, repr=False)
class PlanComparison(_PrintedPage):
    """Two evaluations part by part: what `Plan.diff` returns, printed as a table.

    Attributes:
        first: An evaluation.
        second: Another one.
        labels: What they are called in the table.
        plans: The plan that each is of.

    Example:
        >>> import axonym as nym
        >>> def make(over, seconds):
        ...     candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": over})
        ...     time = nym.planner.StepTime(seconds, 0.0, {}, {}, 0.0, "flops", 0.5)
        ...     return nym.planner.Evaluation(candidate, "compiled", True, {"arguments": 64}, {}, time)
        >>> machine = nym.planner.described_devices("cpu:8")[0].topology
        >>> plan = nym.planner.Plan((make(("data",), 1.0), make((), 1.25)), machine, 3, {}, 0.0, 0, {}, {}, 0.5)
        >>> plan.diff(1, 2).to_dict()["step time"]
        [1.0, 1.25]
    """

    first: Evaluation
    second: Evaluation
    labels: tuple[str, str]
    plans: tuple[PlanRecord, PlanRecord]

    def to_dict(self) -> dict[str, Any]:
        """Returns the labels, and the rows of the table with numbers in seconds and bytes.

        A row that is part of another has the names of both: `"step time: compute"`.
        """
        rows = {f"{name}: {part}" if part else name: [*values] for name, part, *values in _list_rows(self)}
        return {"labels": [*self.labels], **rows}

    def _make_page(self, limit: int | None) -> GridPage:
        rows = []
        for name, part, first, second in _list_rows(self):
            label = f"  {part}" if part else name
            format_number = _NUMBERS.get(name)
            if format_number is None:
                rows.append(GridRow((label, first, second, "" if first == second else "differs")))
            elif first or second:
                cells = [format_number(value) if value else "-" for value in (first, second)]
                rows.append(GridRow((label, *cells, _format_change(second - first, first, format_number))))
        grid = Grid("", ("", *self.labels, "difference"), rows[:limit], ("", *self.labels))
        stages = self.first.stage, self.second.stage
        notes = [
            f"Of {label}, all figures are ours, and its memory is that of the arguments alone."
            for label, stage in zip(self.labels, stages, strict=True)
            if stage == "screened" and stages[0] != stages[1]
        ]
        return GridPage(f"{self.labels[0]} and {self.labels[1]}", [grid], notes)


def _list_rows(comparison: PlanComparison) -> Iterator[tuple[str, str, Any, Any]]:
    """Yields name, part and both values of each row of a comparison; the part is empty where a row is no part."""
    first, second = map(_list_figures, comparison.plans, (comparison.first, comparison.second))
    for name in first:
        missing = 0 if name in _NUMBERS else "not sharded"
        for part in {**first[name], **second[name]}:
            before, after = first[name].get(part, missing), second[name].get(part, missing)
            if name != "machine" or before != after:
                yield name, part, before, after


def _list_figures(plan: PlanRecord, evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Returns what is compared of an evaluation by row and by part of the row, that of the row itself first."""
    candidate, time = evaluation.candidate, evaluation.time
    names = (*candidate.compute, *candidate.parameters)
    hidden = {f"hidden over {format_mesh_axes(axes)}": seconds for axes, seconds in time.hidden.items()}
    sent = {f"over {format_mesh_axes(axes)}": size for axes, size in evaluation.sent.items()}
    return {
        "machine": {"": str(plan.topology)},
        "mesh": {"": format_mesh_sizes(candidate), **{name: _describe_choice(candidate, name) for name in names}},
        "settings": {"": format_settings(candidate) or "-"},
        "fits": {"": format_fit(plan, evaluation)},
        "figures": {"": evaluation.stage},
        "step time": {"": time.total, **{str(part): seconds for part, seconds in list_time_parts(time).items()}},
        "hidden": {"": sum(hidden.values()), **hidden},
        "bytes on a device": {"": evaluation.bytes, **evaluation.memory},
        "bytes sent": {"": sum(sent.values()), **sent},
    }
