"""`Candidate`: a way to run a step on a machine; `StepTime` and `Evaluation`: what is known of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ._timeline import Timeline


MeshAxes: TypeAlias = tuple[str, ...]
Stage: TypeAlias = Literal["screened", "compiled", "timed"]

_LEAST_SECONDS = 5e-9  # less is printed as no time


@dataclass(frozen=True)
class Candidate:
    """A way to run a step on a machine: a mesh, two mappings, and what the backward pass recomputes.

    Attributes:
        mesh: The sizes of the mesh axes by name.
        compute: For each named axis that is sharded while computing, the mesh axes that it is sharded over.
        parameters: The same for parameters and optimizer state between steps; `compute` and more.
        policy: The name of the policy of rematerialization; empty if the arguments keep theirs.
        options: The keyword arguments that the function is called with.

    Example:
        >>> import axonym as nym
        >>> compute = {"batch": ("data",), "mlp": ("model",)}
        >>> print(nym.planner.Candidate({"data": 64, "model": 4}, compute, {**compute, "embed": ("data",)}))
        data 64 x model 4; batch over data; mlp over model; stored with embed over data
    """

    mesh: Mapping[str, int] = field(hash=False)
    compute: Mapping[str, MeshAxes] = field(hash=False)
    parameters: Mapping[str, MeshAxes] = field(hash=False)
    policy: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        """Formats the candidate in a line."""
        return "; ".join(filter(None, (format_mesh_sizes(self), format_sharding(self), format_settings(self))))


@dataclass(frozen=True)
class StepTime:
    """The seconds that a step takes, and what they are spent on.

    Attributes:
        compute: Seconds of computing, without kernels of attention.
        attention: Seconds of kernels of attention, for which compilers have no estimate.
        waiting: By the mesh axes that a collective goes along, the seconds in which devices wait for it.
        hidden: The same for collectives that run beside computing; not part of the step.
        host: The seconds in which devices wait for the memory of the host.
        source: Where `compute` comes from: XLA's estimates of cycles (`"cycles"`), XLA's schedule (`"schedule"`), or
            the floating-point operations of the program at the peak of the device (`"flops"`); in a plan, products
            take at least as long as the memory needs for their operands and results.
        error: The part of the total by which it may be wrong, such as 0.15.
        timelines: One turn of each of the one or two loops that take most of the step, such as those forward and
            backward over the layers; empty if the times of instructions are not known.

    Example:
        >>> import axonym as nym
        >>> time = nym.planner.StepTime(1.5, 0.25, {("data",): 0.25}, {("data",): 0.5}, 0.0, "cycles", 0.15)
        >>> time.total
        2.0
        >>> print(time)
        2.00 s ±15%: compute 1.50 s, attention 250.0 ms, wait data 250.0 ms; hidden data 500.0 ms
    """

    compute: float
    attention: float
    waiting: Mapping[MeshAxes, float] = field(hash=False)
    hidden: Mapping[MeshAxes, float] = field(hash=False)
    host: float
    source: Literal["cycles", "schedule", "flops"]
    error: float
    timelines: tuple[Timeline, ...] = field(default=(), repr=False)

    @property
    def total(self) -> float:
        """The seconds of the step."""
        return self.compute + self.attention + sum(self.waiting.values()) + self.host

    def __str__(self) -> str:
        """Formats the step time and its parts in a line."""
        parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in list_time_parts(self).items())
        hidden = ", ".join(
            f"{'+'.join(over)} {format_seconds(seconds)}"
            for over, seconds in self.hidden.items()
            if seconds >= _LEAST_SECONDS
        )
        return format_step_time(self) + (f": {parts}" if parts else "") + (f"; hidden {hidden}" if hidden else "")


@dataclass(frozen=True)
class Evaluation:
    """What is known of a candidate.

    Attributes:
        candidate: The candidate.
        stage: `"screened"` if its figures are those of a model of the machine, `"compiled"` if its memory and
            communication are the compiler's, `"timed"` if its step time is from the compiler's estimates as well.
        fits: Whether it fits into the memory of a device; of one that is screened, whether its arguments do.
        memory: The bytes on a device by group, such as `"parameters"`; of one that is screened, of arguments alone.
        sent: By mesh axes, the bytes that a device sends in a step.
        time: The step time.
        problem: Why it cannot be compiled; empty if it can.

    Example:
        >>> import axonym as nym
        >>> candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",)})
        >>> time = nym.planner.StepTime(1.5, 0.0, {}, {}, 0.0, "flops", 0.5)
        >>> nym.planner.Evaluation(candidate, "screened", True, {"model": 64, "batch": 8}, {}, time).bytes
        72
    """

    candidate: Candidate
    stage: Stage
    fits: bool
    memory: Mapping[str, int] = field(hash=False)
    sent: Mapping[MeshAxes, int] = field(hash=False)
    time: StepTime
    problem: str = ""

    @property
    def bytes(self) -> int:
        """The bytes on a device."""
        return sum(self.memory.values())


def rank_evaluation(evaluation: Evaluation) -> tuple[Any, ...]:
    """Returns the key that sorts evaluations: what fits and is timed first, then by step time."""
    stage = {"timed": 0, "compiled": 1, "screened": 2}[evaluation.stage]
    missing = 0 if evaluation.fits else evaluation.bytes
    is_guess = stage == 2  # that arguments fit says little beside what the compiler knows of others
    return bool(evaluation.problem), is_guess, missing, stage, evaluation.time.total, str(evaluation.candidate)


def format_mesh_sizes(candidate: Candidate) -> str:
    """Returns the sizes of a mesh: `data 64 x model 4`."""
    return " x ".join(f"{axis} {size}" for axis, size in candidate.mesh.items()) or "one device"


def format_computing(candidate: Candidate) -> str:
    """Returns how a candidate computes, which how parameters are stored does not change."""
    return str(replace(candidate, parameters=candidate.compute))


def format_over(mesh_axes: MeshAxes) -> str:
    """Returns mesh axes as a text: `data and model`."""
    return " and ".join(mesh_axes) or "unknown axes"


def format_sharding(candidate: Candidate) -> str:
    """Returns what is sharded over what: `batch over data; heads, mlp over model; stored with embed over data`."""
    compute, stored = candidate.compute, candidate.parameters
    more = {name: over for name, over in stored.items() if over and compute.get(name, ()) != over}
    gathered = [name for name, over in compute.items() if over and not stored.get(name)]
    parts = [
        *(_group_names(compute) or ["computed whole on each device"]),
        *(f"stored with {part}" for part in ([", ".join(_group_names(more))] if more else [])),
        *([f"stored without {', '.join(gathered)}"] if gathered else []),
    ]
    return "; ".join(parts)


def _group_names(mapping: Mapping[str, MeshAxes]) -> list[str]:
    """Returns a text for all names that are sharded over the same mesh axes."""
    groups: dict[MeshAxes, list[str]] = {}
    for name, over in mapping.items():
        if over:
            groups.setdefault(tuple(over), []).append(name)
    return [f"{', '.join(names)} over {format_over(over)}" for over, names in groups.items()]


def format_settings(candidate: Candidate) -> str:
    """Returns the policy and the options of a candidate: `policy full, microbatches=2`; empty if it has none."""
    policy = [f"policy {candidate.policy}"] if candidate.policy else []
    return ", ".join([*policy, *(f"{name}={value!r}" for name, value in candidate.options.items())])


def format_seconds(seconds: float) -> str:
    """Returns a time in the unit that fits: `1.25 s`, `31.5 ms`."""
    if abs(seconds) < _LEAST_SECONDS:
        return "0 s"
    if abs(seconds) >= 0.9995:
        return f"{seconds:.2f} s" if abs(seconds) < 99.995 else f"{seconds:,.0f} s"
    value, unit = (1e3 * seconds, "ms") if abs(seconds) >= 0.9995e-3 else (1e6 * seconds, "µs")
    return f"{value:.2f} {unit}" if abs(value) < 9.995 else f"{value:.1f} {unit}"


def format_step_time(time: StepTime) -> str:
    """Returns the seconds of a step with what they may be wrong by: `1.25 s ±15%`."""
    return f"{format_seconds(time.total)} ±{time.error:.0%}"


def list_time_parts(time: StepTime) -> dict[str, float]:
    """Returns the seconds that make up a step, by what they are spent on."""
    waits = {f"wait {'+'.join(over)}": seconds for over, seconds in time.waiting.items()}
    parts = {"compute": time.compute, "attention": time.attention, **waits, "wait for the host": time.host}
    return {name: seconds for name, seconds in parts.items() if seconds >= _LEAST_SECONDS}
