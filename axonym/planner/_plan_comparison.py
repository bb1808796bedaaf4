"""`PlanAlternatives` and `PlanComparison`: what other choices for an axis cost, and two evaluations part by part."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..named._axis import suggest_name
from ..report._grid import Grid, GridPage, GridRow, format_html_page, format_page
from ..report._table import PrintedReport, format_bytes
from ._candidate import (
    Candidate,
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
from ._plan_table import format_fit


_LEAST_CAUSE = 0.005  # of a step, or of the memory of a device


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
        seconds: By how many seconds a step is longer than that of the best of all; negative if it is shorter. What was
            only screened is compared with what the screening says of the best.
        bytes: By how many bytes a device holds more; negative if less. Compared with the same.
        causes: What the differences are made of, the largest first, such as `"waits 620.0 ms longer over data"`.

    Example:
        >>> import axonym as nym
        >>> candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",)})
        >>> time = nym.planner.StepTime(1.5, 0.0, {}, {}, 0.0, "flops", 0.5)
        >>> one = nym.planner.Evaluation(candidate, "compiled", True, {"arguments": 64}, {}, time)
        >>> nym.planner.Alternative("not sharded", 2, one, 0.25, 0, ("computes 250.0 ms longer",)).causes
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
        subject: The axis, `"policy"` or the option.
        choice: What it is in the best candidate.
        alternatives: The other choices that were evaluated, each with its best candidate.
        plan: The plan.

    Example:
        >>> import axonym as nym
        >>> def make(over, seconds):
        ...     candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": over})
        ...     time = nym.planner.StepTime(seconds, 0.0, {}, {}, 0.0, "flops", 0.5)
        ...     return nym.planner.Evaluation(candidate, "compiled", True, {"arguments": 64}, {}, time)
        >>> machine = nym.planner.described_devices("cpu:8")[0].topology
        >>> plan = nym.planner.Plan((make(("data",), 1.0), make((), 1.25)), machine, 3, {}, 0.0, 0, {}, {}, 0.5)
        >>> [(one.choice, one.causes) for one in plan.why("embed").alternatives]
        [('not sharded', ('computes 250.0 ms longer',))]
    """

    subject: str
    choice: str
    alternatives: tuple[Alternative, ...]
    plan: PlanRecord = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything but the plan as dictionaries, lists, strings and numbers."""
        found = [
            {
                "choice": one.choice,
                "rank": one.rank,
                "seconds": one.seconds,
                "bytes": one.bytes,
                "fits": one.evaluation.fits,
                "causes": [*one.causes],
            }
            for one in self.alternatives
        ]
        return {"subject": self.subject, "choice": self.choice, "alternatives": found}

    def _make_page(self, limit: int | None) -> GridPage:
        best = self.plan.best
        title = (
            f"{self.subject}: {self.choice} in the best candidate ({format_mesh_sizes(best.candidate)}, "
            f"{format_step_time(best.time)}, {format_bytes(best.bytes)} a device, {_describe_verdict(self.plan, best)})"
        )
        rows = [_make_alternative_row(self.plan, one) for one in self.alternatives[:limit]]
        heads = ("instead", "rank", "mesh", "step time", "difference", "bytes a device", "fits", "figures")
        if not rows:
            return GridPage(title, [], ["No candidate with another choice was evaluated."])
        figures = (best.stage, best.time.source)
        is_mixed = any(
            (one.evaluation.stage, one.evaluation.time.source) != figures for one in self.alternatives[:limit]
        )
        notes = ["Times of other figures than those of the best candidate are less certain."] if is_mixed else []
        own = self.plan.screened
        if own is not None and any(one.evaluation.stage == "screened" for one in self.alternatives[:limit]):
            known = f"{format_step_time(own.time)} and {format_bytes(own.bytes)} of arguments"
            notes.append(f"What was only screened is compared with what the screening says of the best: {known}.")
        return GridPage(title, [Grid("", heads, rows, ("instead", "mesh", "fits", "figures"))], notes)


def _describe_verdict(plan: PlanRecord, one: Evaluation) -> str:
    verdict = format_fit(plan, one)
    known = {"yes": "it fits", "arguments": "its arguments fit", "cannot be compiled": "it cannot be compiled"}
    return known.get(verdict, verdict.replace("no", "it does not fit", 1))


def _make_alternative_row(plan: PlanRecord, one: Alternative) -> GridRow:
    found = one.evaluation
    change = "" if found.problem else _format_change(one.seconds, _choose_base(plan, found).time.total, format_seconds)
    cells = (
        one.choice,
        str(one.rank),
        format_mesh_sizes(found.candidate),
        "" if found.problem else format_step_time(found.time),
    )
    size = format_bytes(found.bytes) if found.memory else ""
    formatted = [
        (format(found.candidate), format(plan.best.candidate)) for format in (format_sharding, format_settings)
    ]
    other = [f"with {own}" for own, best in formatted if own != best]
    causes = "; ".join((*other, *([found.problem] if found.problem else one.causes)))
    return GridRow((*cells, change, size, format_fit(plan, found), found.stage), [causes] if causes else [])


def _format_change(change: float, base: float, format_number: Callable[[Any], str]) -> str:
    """Returns a difference with its sign and in percent: `+250.0 ms (+20%)`; empty if there is none."""
    if abs(change) < 0.5e-12:  # rounding
        return ""
    sign = "+" if change > 0 else "-"
    percent = f" ({change / base:+.0%})" if base > 0 else ""
    return f"{sign}{format_number(abs(change))}{percent}"


def find_alternatives(plan: PlanRecord, axis: str) -> PlanAlternatives:
    """Returns what `Plan.why` does."""
    best = plan.best
    if not isinstance(axis, str):
        raise TypeError(
            "`why` takes the name of an axis, a mesh axis, 'policy' or an option, also with a choice as in 'data=64', "
            f"not a {type(axis).__name__}; `diff(1, 3)` compares candidates by rank"
        )
    subject, equals, asked = axis.partition("=")
    read = _make_reader(plan, subject.strip())
    chosen = read(best.candidate)
    found: dict[str, tuple[int, Evaluation]] = {}
    for rank, one in enumerate(plan.evaluations, 1):
        found.setdefault(read(one.candidate), (rank, one))
    meant = {choice for choice in found if not equals or asked.strip() in (choice, *_list_mesh_axes_in(choice))}
    if not meant:
        known = " or ".join(repr(f"{subject.strip()}={choice}") for choice in found)
        raise ValueError(f"no candidate with {axis!r} was evaluated; ask for {known}")
    others = [
        _make_alternative(plan, choice, rank, one)
        for choice, (rank, one) in found.items()
        if choice != chosen and (choice in meant or chosen in meant)
    ]
    return PlanAlternatives(subject.strip(), chosen, tuple(others), plan)


def _make_reader(plan: PlanRecord, subject: str) -> Callable[[Candidate], str]:
    """Returns a function that tells what a candidate chooses for an axis, the policy or an option."""
    candidates = [one.candidate for one in plan.evaluations]
    mesh_axes = dict.fromkeys(axis for one in candidates for axis in one.mesh)
    names = dict.fromkeys(name for one in candidates for name in (*one.compute, *one.parameters))
    options = dict.fromkeys(name for one in candidates for name in one.options)
    if subject in names:
        return lambda one: _describe_choice(one, subject)
    if subject in mesh_axes:
        return lambda one: str(one.mesh.get(subject, 1))
    if subject == "policy":
        return lambda one: one.policy or "as the arguments have it"
    if subject in options:
        return lambda one: str(one.options.get(subject, "left out"))
    known = {"axes": names, "mesh axes": mesh_axes, "options": options}
    listing = "; ".join(f"{kind}: {', '.join(map(repr, these))}" for kind, these in known.items() if these)
    near = suggest_name(subject, [*names, *mesh_axes, *options, "policy"])
    raise ValueError(f"no candidate shards or chooses {subject!r}{near}; there are 'policy' and {listing or 'no axes'}")


def _describe_choice(candidate: Candidate, name: str) -> str:
    """Returns what an axis is sharded over while computing and where it is stored."""
    compute, stored = candidate.compute.get(name, ()), candidate.parameters.get(name, ())
    if compute == stored:
        return f"over {format_over(compute)}" if compute else "not sharded"
    where = f"stored over {format_over(stored)}" if stored else "stored whole"
    return f"over {format_over(compute)}, {where}" if compute else where


def _list_mesh_axes_in(choice: str) -> list[str]:
    """Returns the mesh axes in a choice for a named axis: `data` and `model` of `over data, stored over model`."""
    return [part.rpartition("over ")[2] for part in choice.split(", ") if "over " in part]


def _make_alternative(plan: PlanRecord, choice: str, rank: int, one: Evaluation) -> Alternative:
    base = _choose_base(plan, one)
    causes = () if one.problem else tuple(_list_causes(base, one, plan.hardware.hbm_available))
    return Alternative(choice, rank, one, one.time.total - base.time.total, one.bytes - base.bytes, causes)


def _choose_base(plan: PlanRecord, one: Evaluation) -> Evaluation:
    """Returns what is known of the best candidate in the way in which another one is known."""
    return plan.screened if one.stage == "screened" and plan.screened is not None else plan.best


def _list_causes(base: Evaluation, other: Evaluation, available: int) -> Iterator[str]:
    """Yields the parts of a step and of memory that differ by `_LEAST_CAUSE` at least, the largest first."""
    before, after = list_time_parts(base.time), list_time_parts(other.time)
    if base.time.source != other.time.source:  # one of them may have attention in its time of computing
        before, after = (_join_attention(parts) for parts in (before, after))
    changes = _list_changes(before, after, _LEAST_CAUSE * base.time.total)
    yield from (_describe_cause(part, change) for part, change in changes)
    known = {group for group in base.memory if other.stage != "screened" or group in other.memory}
    held = {group: size for group, size in base.memory.items() if group in known}
    for group, change in _list_changes(held, other.memory, _LEAST_CAUSE * available):
        yield f"{'+' if change > 0 else '-'}{format_bytes(int(abs(change)))} {group}"


def _join_attention(parts: Mapping[str, float]) -> dict[str, float]:
    rest = {part: seconds for part, seconds in parts.items() if part not in ("compute", "attention")}
    return {"compute": parts.get("compute", 0.0) + parts.get("attention", 0.0), **rest}


def _list_changes(before: Mapping[str, float], after: Mapping[str, float], least: float) -> list[tuple[str, float]]:
    changes = {part: after.get(part, 0) - before.get(part, 0) for part in {**before, **after}}
    ranked = sorted(changes.items(), key=lambda item: -abs(item[1]))
    return [(part, change) for part, change in ranked if abs(change) >= max(least, 1e-12)]


def _describe_cause(part: str, change: float) -> str:
    longer = f"{format_seconds(abs(change))} {'longer' if change > 0 else 'less'}"
    if part == "compute":
        return f"computes {longer}"
    what, _, over = part.partition(" ")
    if what == "attention":
        return f"attention takes {longer}"
    return f"waits {longer} {over if over == 'for the host' else 'over ' + over.replace('+', ' and ')}"


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
        found: dict[str, Any] = {"labels": [*self.labels]}
        whole = ""
        for part, one, other, *_ in (*_list_text_rows(self), *_list_number_rows(self.first, self.second)):
            whole = whole if part.startswith(" ") else part
            found[f"{whole}: {part.strip()}" if part.startswith(" ") else part] = [one, other]
        return found

    def _make_page(self, limit: int | None) -> GridPage:
        rows = [
            GridRow((part, one, other, "" if one == other else "differs")) for part, one, other in _list_text_rows(self)
        ]
        for part, one, other, format_number in _list_number_rows(self.first, self.second):
            if one or other:
                cells = (format_number(one) if one else "-", format_number(other) if other else "-")
                rows.append(GridRow((part, *cells, _format_change(other - one, one, format_number))))
        grid = Grid("", ("", *self.labels, "difference"), rows[:limit], ("", *self.labels))
        stages = dict(zip(self.labels, (self.first.stage, self.second.stage), strict=True))
        notes = [
            f"Of {label}, all figures are ours, and its memory is that of the arguments alone."
            for label, stage in stages.items()
            if stage == "screened" and len({*stages.values()}) > 1
        ]
        return GridPage(f"{self.labels[0]} and {self.labels[1]}", [grid], notes)


def _list_text_rows(comparison: PlanComparison) -> Iterator[tuple[str, str, str]]:
    """Yields the parts of two evaluations that are no numbers."""
    one, other = comparison.first, comparison.second
    first, second = one.candidate, other.candidate
    plans = comparison.plans
    if plans[0].topology != plans[1].topology:
        yield "machine", str(plans[0].topology), str(plans[1].topology)
    yield "mesh", format_mesh_sizes(first), format_mesh_sizes(second)
    for name in {**first.compute, **first.parameters, **second.compute, **second.parameters}:
        yield f"  {name}", _describe_choice(first, name), _describe_choice(second, name)
    yield "settings", format_settings(first) or "-", format_settings(second) or "-"
    yield "fits", format_fit(plans[0], one), format_fit(plans[1], other)
    yield "figures", one.stage, other.stage


def _list_number_rows(one: Evaluation, other: Evaluation) -> Iterator[tuple[str, float, float, Callable[[Any], str]]]:
    """Yields the parts of two evaluations that are numbers, and how they are written."""

    def pair(
        first: Mapping[Any, float], second: Mapping[Any, float], label: str, write: Callable[[Any], str]
    ) -> Iterator[tuple[str, float, float, Callable[[Any], str]]]:
        for key in {**first, **second}:
            name = format_over(key) if isinstance(key, tuple) else key
            yield f"  {label}{name}", first.get(key, 0), second.get(key, 0), write

    yield "step time", one.time.total, other.time.total, format_seconds
    yield from pair(list_time_parts(one.time), list_time_parts(other.time), "", format_seconds)
    yield "hidden", sum(one.time.hidden.values()), sum(other.time.hidden.values()), format_seconds
    yield from pair(one.time.hidden, other.time.hidden, "hidden over ", format_seconds)
    yield "bytes on a device", one.bytes, other.bytes, format_bytes
    yield from pair(one.memory, other.memory, "", format_bytes)
    yield "bytes sent", sum(one.sent.values()), sum(other.sent.values()), format_bytes
    yield from pair(one.sent, other.sent, "over ", format_bytes)
