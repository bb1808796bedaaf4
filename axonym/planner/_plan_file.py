"""Plans as JSON: what is written is read back as it was, and other files are refused."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..report._write_file import write_file
from ._candidate import Candidate, Evaluation, MeshAxes, StepTime
from ._described_devices import Topology
from ._plan_record import PlanRecord
from ._timeline import Timeline, TimelineEvent


FORMAT = 2
_KIND = "axonym plan"
_STAGES = ("screened", "compiled", "timed")
_PASSES = ("forward", "backward", "recomputed")
_SOURCES = ("cycles", "schedule", "flops")
T = TypeVar("T")


def make_plan_dict(plan: PlanRecord) -> dict[str, Any]:
    """Returns a plan as dictionaries, lists, strings, numbers and None."""
    topology = plan.topology
    return {
        "kind": _KIND,
        "format": FORMAT,
        "topology": {
            "hardware": topology.hardware,
            "sizes": [*topology.sizes],
            "slices": topology.slices,
            "wrap": [*topology.wrap],
        },
        "top": plan.top,
        "pruned": dict(plan.pruned),
        "model_flops": plan.model_flops,
        "tokens": plan.tokens,
        "versions": dict(plan.versions),
        "compiler_options": _encode_options(plan.compiler_options),
        "seconds": plan.seconds,
        "notes": [*plan.notes],
        "evaluations": [_encode_evaluation(one) for one in plan.evaluations],
        "screened": None if plan.screened is None else _encode_evaluation(plan.screened),
    }


def _encode_evaluation(one: Evaluation) -> dict[str, Any]:
    candidate, time = one.candidate, one.time
    return {
        "mesh": dict(candidate.mesh),
        "compute": {name: [*over] for name, over in candidate.compute.items()},
        "parameters": {name: [*over] for name, over in candidate.parameters.items()},
        "policy": candidate.policy,
        "options": _encode_options(candidate.options),
        "stage": one.stage,
        "fits": one.fits,
        "memory": dict(one.memory),
        "sent": _encode_by_axes(one.sent),
        "time": {
            "compute": time.compute,
            "attention": time.attention,
            "waiting": _encode_by_axes(time.waiting),
            "hidden": _encode_by_axes(time.hidden),
            "host": time.host,
            "source": time.source,
            "error": time.error,
            "timelines": [_encode_timeline(one) for one in time.timelines],
        },
        "problem": one.problem,
    }


def _encode_timeline(one: Timeline) -> dict[str, Any]:
    """Returns a timeline with its events as lists, in the order of the fields of `TimelineEvent`."""
    events = [[[*value] if isinstance(value, tuple) else value for value in event] for event in one.events]
    return {"name": one.name, "turns": one.turns, "seconds": one.seconds, "events": events}


def _encode_by_axes(numbers: Mapping[MeshAxes, Any]) -> list[Any]:
    """Returns numbers by mesh axes as pairs, since keys of JSON are strings."""
    return [[[*over], number] for over, number in numbers.items()]


def _encode_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options as they are if they are numbers, strings, booleans or None, and other values as their text."""
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else repr(value)
        for name, value in options.items()
    }


def write_plan_file(plan: PlanRecord, path: str | os.PathLike[str]) -> Path:
    """Writes a plan to a file, completely or not at all, and returns its path."""
    return write_file(path, json.dumps(make_plan_dict(plan), indent=1) + "\n", "plan", "plan.json")


def read_plan_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the fields of the plan in a file; raises a ValueError if there is another thing in it."""
    name = repr(os.fspath(path))
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["kind"] != _KIND:
            raise ValueError("of another kind")
        version = data["format"]
        fields = _decode_plan(data) if version == FORMAT else {}
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no plan {name}; write one with `Plan.to_json`") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # not UTF-8, not JSON, or no plan
        raise ValueError(f"{name} is not a plan, or is damaged; write it again with `Plan.to_json`") from None
    if version != FORMAT:
        reads = f"this version of Axonym reads format {FORMAT}"
        raise ValueError(f"the plan {name} has format {version!r}, and {reads}; make the plan again")
    return fields


def _decode_plan(data: Mapping[str, Any]) -> dict[str, Any]:
    topology = data["topology"]
    sizes, wrap = _read_list(topology["sizes"], int), _read_list(topology["wrap"], bool)
    return {
        "evaluations": tuple(map(_decode_evaluation, _check_type(data["evaluations"], list))),
        "topology": Topology(_check_type(topology["hardware"], str), sizes, _check_type(topology["slices"], int), wrap),
        "top": _check_type(data["top"], int),
        "pruned": _read_dict(data["pruned"], int),
        "model_flops": _check_type(data["model_flops"], float),
        "tokens": _check_type(data["tokens"], int),
        "versions": _read_dict(data["versions"], str),
        "compiler_options": _check_type(data["compiler_options"], dict),
        "seconds": _check_type(data["seconds"], float),
        "notes": _read_list(data["notes"], str),
        "screened": None if data["screened"] is None else _decode_evaluation(data["screened"]),
    }


def _decode_evaluation(data: Mapping[str, Any]) -> Evaluation:
    candidate = Candidate(
        mesh=_read_dict(data["mesh"], int),
        compute={name: _read_list(over, str) for name, over in _check_type(data["compute"], dict).items()},
        parameters={name: _read_list(over, str) for name, over in _check_type(data["parameters"], dict).items()},
        policy=_check_type(data["policy"], str),
        options=_check_type(data["options"], dict),
    )
    time = data["time"]
    return Evaluation(
        candidate=candidate,
        stage=_check_among(data["stage"], _STAGES),
        fits=_check_type(data["fits"], bool),
        memory=_read_dict(data["memory"], int),
        sent=_read_by_axes(data["sent"], int),
        time=StepTime(
            compute=_check_type(time["compute"], float),
            attention=_check_type(time["attention"], float),
            waiting=_read_by_axes(time["waiting"], float),
            hidden=_read_by_axes(time["hidden"], float),
            host=_check_type(time["host"], float),
            source=_check_among(time["source"], _SOURCES),
            error=_check_type(time["error"], float),
            timelines=tuple(map(_decode_timeline, _check_type(time["timelines"], list))),
        ),
        problem=_check_type(data["problem"], str),
    )


def _decode_timeline(data: Mapping[str, Any]) -> Timeline:
    return Timeline(
        name=_check_type(data["name"], str),
        turns=_check_type(data["turns"], int),
        seconds=_check_type(data["seconds"], float),
        events=tuple(map(_decode_event, _check_type(data["events"], list))),
    )


def _decode_event(data: Sequence[Any]) -> TimelineEvent:
    name, kind, links, start, end, waited, layer, operation, run_in = data
    return TimelineEvent(
        name=_check_type(name, str),
        kind=_check_type(kind, str),
        links=_read_list(links, str),
        start=_check_type(start, float),
        end=_check_type(end, float),
        waited=_check_type(waited, float),
        layer=_check_type(layer, str),
        operation=_check_type(operation, str),
        run_in=_check_among(run_in, _PASSES),
    )


def _check_type(value: Any, kind: type[T]) -> T:
    """Returns a value if it is of a type; whole numbers are floats as well, booleans are no numbers."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value  # pyright: ignore[reportReturnType]


def _check_among(value: Any, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {known}")
    return value


def _read_list(values: Any, kind: type[T]) -> tuple[T, ...]:
    return tuple(_check_type(value, kind) for value in _check_type(values, list))


def _read_dict(values: Any, kind: type[T]) -> dict[str, T]:
    return {name: _check_type(value, kind) for name, value in _check_type(values, dict).items()}


def _read_by_axes(pairs: Any, kind: type[T]) -> dict[MeshAxes, T]:
    return {_read_list(over, str): _check_type(number, kind) for over, number in _check_type(pairs, list)}
