"""`Measurement`, the time of a step on a machine that is there, and what it says of the times of a plan."""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..._ground.formats import suggest_name
from ...training._policy import Policy
from .._machine._described_devices import DescribedDevice, choose_whole_machine
from .._plan._candidate import Candidate, Evaluation
from .._program._collectives import MeshAxes
from .._step_time._step_time import TimePart, format_seconds, format_step_time, list_time_parts
from ._candidate_compiler import CandidateCompiler, SearchProgress
from ._screening import Prospect, Screening
from ._search_space import drop_unsharded, parse_fixed
from ._step_variants import list_variants


_LEAST_FACTOR, _MOST_FACTOR = 0.5, 3.0  # what is outside of this was measured in another way than it is predicted
_LEAST_SHARE = 0.02  # of a predicted step: the factor of a shorter part would be one of what estimates leave out
# The error of a candidate like the measured one, as a part of that of its source: 10 % instead of 15 % with cycles.
# Of the published runs two pairs are of one model on more and on fewer chips. Where one of a pair calibrates the other,
# times are off by 4 % and by 9 %.
_ALIKE_ERROR = 2 / 3
_STEP, _WAIT, _HOST = "step", "wait", str(TimePart("host"))
_LINKS = "links"  # mesh axes that nothing was measured of


@dataclass(frozen=True)
class Measurement:
    """The time of a step as it was measured, for `plan(..., measured=...)`.

    It is the step of the plan, in the form of one candidate, on the same kind of device. The number of devices may be
    another one, and so may be sizes of axes.

    Attributes:
        seconds: The seconds of a step, without those of compiling; or of its parts, named as a `StepTime` is printed:
            `"compute"`, `"attention"`, `"wait"` for all waiting or `"wait data"` for that along a mesh axis, and `"wait
            for the host"`. Without `"attention"`, that is part of `"compute"`.
        mesh: The sizes of all mesh axes, which are called as in the plan.
        compute: The mesh axes of named axes while computing.
        parameters: The mesh axes of named axes between steps, those of `compute` if it has none for them.
        policy: The name of its policy in `policies`; empty if the layers keep their own.
        gather: The name of how it gathers parameters in `gathers`; empty if they are as they are stored.
        options: The keyword arguments of the step.
        sizes: The sizes of axes of the data that differ from those in the arguments of the step.
        args: The arguments of the step, which may be shapes, if more than these sizes differ, such as the number of
            layers; None for those of the plan.
        devices: The machine, as for `plan`; None for that of the plan.
        microbatches: With stages, into how many microbatches they divide an axis.

    Example:
        >>> import axonym as nym
        >>> sharding = {"mesh": {"data": 8}, "compute": {"batch": "data"}, "parameters": {"embed": "data"}}
        >>> nym.planner.Measurement(2.31, **sharding, devices="v5e:2x4").mesh
        {'data': 8}
    """

    seconds: float | Mapping[str, float]
    mesh: Mapping[str, int]
    compute: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    args: tuple[Any, ...] | None = None
    devices: str | Sequence[DescribedDevice] | None = None
    gather: str = ""
    microbatches: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """How many times as long as predicted the parts of a step take.

    Attributes:
        predicted: The measured candidate, as it is predicted.
        prospect: The same, as it is screened.
        factors: The factors by the names of `Measurement.seconds`, `"step"` or `"links"`.
        notes: What was predicted, what was measured, what is scaled, and the errors.
    """

    predicted: Evaluation
    prospect: Prospect
    factors: Mapping[str, float]
    notes: tuple[str, ...]

    def scale(self, evaluation: Evaluation) -> Evaluation:
        """Returns an evaluation with longer or shorter times; the error is smaller if it is like the measured one."""
        time = evaluation.time

        def get_factor(part: TimePart) -> float:
            return self.factors.get(_find_key(part, self.factors), 1.0)

        computing = get_factor(TimePart("compute"))
        waiting: dict[MeshAxes, float] = {}
        hidden: dict[MeshAxes, float] = {}
        for axes in dict.fromkeys([*time.waiting, *time.hidden]):
            waits, beside = time.waiting.get(axes, 0.0), time.hidden.get(axes, 0.0)
            sending = get_factor(TimePart("wait", axes))
            # What runs beside computing is waited for as far as it has become longer than that.
            if (seconds := sending * waits + max(sending - computing, 0.0) * beside) > 0:
                waiting[axes] = seconds
            hidden[axes] = min(sending, computing) * beside
        scaled = replace(
            time,
            compute=computing * time.compute,
            attention=get_factor(TimePart("attention")) * time.attention,
            waiting=waiting,
            hidden=hidden,
            host=get_factor(TimePart("host")) * time.host,
            error=time.error * (_ALIKE_ERROR if self._is_alike(evaluation.candidate) else 1.0),
        )
        return replace(evaluation, time=scaled)

    def _is_alike(self, candidate: Candidate) -> bool:
        """Returns whether a candidate differs from the measured one in sizes of data and of one mesh axis at most."""
        measured = self.predicted.candidate
        key, measured_key = (replace(key, mesh=(), sizes=()) for key in (candidate.key, measured.key))
        resized_axes = {axis for axis, _ in {*candidate.mesh.items()} ^ {*measured.mesh.items()}}
        return key == measured_key and len(resized_axes) <= 1


def calibrate(
    measured: Any,
    fn: Any,
    args: tuple[Any, ...],
    policies: Mapping[str, Any] | None,
    gathers: Mapping[str, Policy] | None,
    compiler: CandidateCompiler,
    log: SearchProgress,
) -> Calibration:
    """Returns what a measured step says of predicted ones; compiles and times its candidate.

    Raises:
        TypeError: If it is not a `Measurement`, or has something of another type.
        ValueError: If it is of other devices or no candidate, or too far from what is predicted.
        RuntimeError: If its candidate cannot be compiled.
    """
    if not isinstance(measured, Measurement):
        raise TypeError(
            "`measured` is a `Measurement`, which has the seconds of a step and how it was sharded, not a "
            f"{type(measured).__name__}"
        )
    for name in ("mesh", "compute", "parameters", "options", "sizes"):
        if not isinstance(value := getattr(measured, name), Mapping):
            raise TypeError(f"`measured` has {value!r} as its {name}; give a mapping from names")
    parts = _read_parts(measured)
    if measured.devices is not None:
        compiler = replace(compiler, devices=_choose_measured_devices(measured, compiler))
    topology = compiler.devices[0].topology
    prospect = _screen_measured(measured, fn, args, policies, gathers, compiler)
    log.show(f"timing the measured {prospect.estimate.candidate}")
    try:
        predicted = compiler.compile(prospect.estimate, prospect.variant, stop_early=False)
    finally:
        log.close()
    if predicted.problem:
        raise RuntimeError(
            f"the measured candidate ({predicted.candidate} on '{topology}') cannot be compiled: {predicted.problem}"
        ) from compiler.errors[-1]
    factors, texts = find_factors(predicted, parts)
    notes = (
        f"calibrated by {predicted.candidate} on {topology}: {'; '.join(texts)}",
        "errors are a third smaller for candidates that differ from the measured one in the size of one mesh axis and "
        "in sizes of the data alone",
    )
    return Calibration(predicted, prospect, factors, notes)


def _read_parts(measured: Measurement) -> dict[str, float]:
    """Returns the measured seconds by part."""
    seconds: Any = measured.seconds
    parts: dict[Any, Any] = dict(seconds) if isinstance(seconds, Mapping) else {_STEP: seconds}
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"`measured` has {value!r} as the seconds of {name!r}; give a number, or one for each part of a step, "
                "such as {'compute': 1.2, 'wait data': 0.1}"
            )
        if not 0 <= value < math.inf or (name == _STEP and value == 0):
            raise ValueError(f"`measured` has {value!r} seconds of {name!r}; they are above 0")
    if not parts:
        raise ValueError("`measured` has no seconds; give those of a step, or of its parts")
    if isinstance(seconds, Mapping):
        waits = {str(TimePart("wait", (axis,))) for axis in measured.mesh}
        names = ["compute", "attention", _WAIT, *sorted(waits), _HOST]
        for name in map(str, parts):
            over_several = {f"{_WAIT} {axis}" for axis in name.removeprefix(f"{_WAIT} ").split("+")}
            if name not in names and not over_several <= waits:
                raise ValueError(
                    f"`measured` has seconds of {name!r}, which is no part of a step; there are {', '.join(names)}"
                    f"{suggest_name(name, names)}"
                )
    return parts


def _choose_measured_devices(measured: Measurement, compiler: CandidateCompiler) -> tuple[DescribedDevice, ...]:
    devices = choose_whole_machine(measured.devices)
    kind, planned_kind = devices[0].topology.hardware, compiler.devices[0].topology.hardware
    if kind != planned_kind:
        raise ValueError(
            f"`measured` is of '{kind}', but the plan is for '{planned_kind}', of which it says nothing; measure the "
            f"step on '{planned_kind}'"
        )
    return devices


def _screen_measured(
    measured: Measurement,
    fn: Any,
    args: tuple[Any, ...],
    policies: Mapping[str, Any] | None,
    gathers: Mapping[str, Policy] | None,
    compiler: CandidateCompiler,
) -> Prospect:
    """Returns the measured candidate with its step."""
    policy = _choose_measured("policy", measured.policy, "policies", policies or {})
    gather = _choose_measured("gather", measured.gather, "gathers", gathers or {})
    options = {name: (value,) for name, value in measured.options.items()}
    sizes = {name: (size,) for name, size in measured.sizes.items()}
    args = args if measured.args is None else tuple(measured.args)
    [variant] = list_variants(fn, args, policy, options or None, collections.Counter(), sizes or None, gather)
    program = variant.named_program
    microbatches = measured.microbatches
    fixed = {"mesh": measured.mesh, "compute": measured.compute, "parameters": measured.parameters}
    parsed = parse_fixed(fixed, (*program.parameter_names, *program.data_names), len(compiler.devices), "measured")
    layers = tuple(name for name in program.layer_names if microbatches and parsed.compute.get(name))
    candidate = Candidate(
        dict(measured.mesh),
        drop_unsharded(dict(parsed.compute)),
        drop_unsharded({**parsed.compute, **parsed.parameters}),
        variant.policy,
        variant.options,
        variant.sizes,
        gather=variant.gather,
        layers=layers,
        microbatches=microbatches if layers else {},
        has_typed_reductions=variant.has_typed_reductions,
    )
    return Screening(variant, compiler.hardware, compiler.make_link_model).screen(candidate)


def _choose_measured(kind: str, name: str, argument: str, choices: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what a measured step has of an argument of `plan`; None if it has none of it."""
    if name and name not in choices:
        raise ValueError(
            f"`measured` has the {kind} {name!r}; `{argument}` has {', '.join(choices) or 'none'}"
            f"{suggest_name(name, [*choices])}"
        )
    return {name: choices[name]} if name else None


def find_factors(predicted: Evaluation, measured: Mapping[str, float]) -> tuple[dict[str, float], list[str]]:
    """Returns the factors of a step, and a text for each part that was measured.

    Raises:
        ValueError: If a factor is not plausible.
    """
    time = predicted.time
    if time.attention == 0 and "compute" in measured:  # attention that is no kernel is part of computing
        computing = measured["compute"] + measured.get("attention", 0.0)
        measured = {name: seconds for name, seconds in measured.items() if name != "attention"} | {"compute": computing}
    beside = {TimePart("wait", axes): seconds for axes, seconds in time.hidden.items()}
    factors: dict[str, float] = {}
    sending: dict[str, float] = {}  # the predicted seconds of collectives, by the name of those along some mesh axes
    texts: list[str] = []
    for name in sorted(measured, key=lambda name: name != "compute"):  # what is sent runs beside computing
        seconds, expected = measured[name], _sum_parts(list_time_parts(time), name, measured)
        if max(seconds, expected) < _LEAST_SHARE * time.total:
            texts.append(f"{name} is too short to tell a factor")
            continue
        room = 0.0 if name == _STEP else _sum_parts(beside, name, measured)
        factors[name] = factor = _solve_factor(seconds, expected, room, factors.get("compute", 1.0))
        if not _LEAST_FACTOR <= factor <= _MOST_FACTOR:
            raise ValueError(
                f"`measured` has {format_seconds(seconds)} for {name!r} where {format_seconds(expected)} are predicted "
                f"for {predicted.candidate}, a factor of {factor:.2g}; one from {_LEAST_FACTOR:g} to {_MOST_FACTOR:g} "
                "is plausible, so see whether these are the seconds of one step, without compiling it, on these "
                f"devices, with this sharding, policy and sizes{'' if name == _STEP else f', or leave out {name!r}'}"
            )
        if name.startswith(f"{_WAIT} ") and name != _HOST:
            sending[name] = expected + room
        if name == _STEP:
            relation = "within" if abs(factor - 1) <= time.error else "outside"
            text = f"a step took {format_seconds(seconds)}, {relation} the predicted {format_step_time(time)}; all is"
        else:
            text = f"{name} took {format_seconds(seconds)} instead of the predicted {format_seconds(expected)},"
            text += " and what is sent is" if room else " and is"
        texts.append(f"{text} scaled by {factor:.3g}")
    if sending:
        factors[_LINKS] = sum(factors[name] * seconds for name, seconds in sending.items()) / sum(sending.values())
        texts.append(f"what is sent over other mesh axes is scaled by {factors[_LINKS]:.3g}")
    if any(_find_key(part, factors) not in factors for part in list_time_parts(time)):
        texts.append("the rest is as predicted")
    return factors, texts


def _sum_parts(parts: Mapping[TimePart, float], name: str, measured: Mapping[str, float]) -> float:
    """Returns the seconds of the parts of a step that were measured under a name."""
    return sum(seconds for part, seconds in parts.items() if _find_key(part, measured) == name)


def _solve_factor(seconds: float, expected: float, beside: float, computing: float) -> float:
    """Returns how many times as long as predicted a part takes; the inverse of what `Calibration.scale` does.

    Args:
        seconds: The measured seconds.
        expected: The predicted ones.
        beside: The predicted seconds of what is sent along the same mesh axes beside computing.
        computing: The factor of computing.
    """
    if seconds < computing * expected or not beside:
        return seconds / expected if expected else math.inf
    return (seconds + computing * beside) / (expected + beside)


def _find_key(part: TimePart, names: Mapping[str, float]) -> str:
    """Returns the name under which a part of a step was measured; empty if it was not."""
    return next((name for name in _list_keys(part) if name in names), "")


def _list_keys(part: TimePart) -> Iterator[str]:
    yield str(part)
    if part.kind == "attention":
        yield "compute"
    if part.kind in ("wait", "host"):
        yield _WAIT
    if part.kind == "wait":
        yield _LINKS
    yield _STEP
