"""`Candidate`, a way to run a step; `Evaluation`, what is known of it; and `PlanRecord`, what a search found."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from ...named._stages import PipelineSchedule
from .._machine._described_devices import Topology, count_devices
from .._machine._hardware import Hardware, get_hardware
from .._program._collectives import MeshAxes
from .._step_time._step_time import StepTime


Stage: TypeAlias = Literal["screened", "compiled", "timed"]
AxisTypes: TypeAlias = Literal["auto", "explicit"]
StopReason: TypeAlias = Literal["", "budget", "interrupt", "error"]
_ERROR_BETWEEN_CANDIDATES = 1 / 3  # of the error of a step time, most of which candidates of one step have in common


@dataclass(frozen=True)
class Candidate:
    """A way to run a step on a machine: a mesh, two mappings, and what the backward pass recomputes.

    Attributes:
        mesh: The sizes of the mesh axes by name.
        compute: For each named axis that is sharded while computing, the mesh axes that it is sharded over.
        parameters: The same for parameters and optimizer state between steps; `compute` and more.
        policy: The name of the policy of rematerialization; empty if the layers keep their own.
        options: The keyword arguments that the function is called with.
        sizes: The sizes of the axes of the data that were searched.
        flags: The name of the published flags of XLA; empty if it is compiled without.
        gather: The name of how parameters are gathered; empty if they are as they are stored.
        layers: The layer axes that are sharded over the stages of pipelines; empty if there are none.
        microbatches: If there are stages, into how many microbatches they divide an axis of the data.
        has_typed_reductions: Whether it adds up gradients in a type of their own.
        has_offloaded_state: Whether the optimizer state is in the memory of the host between updates.

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
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    flags: str = ""
    gather: str = ""
    layers: tuple[str, ...] = ()
    microbatches: Mapping[str, int] = field(default_factory=dict, hash=False)
    has_typed_reductions: bool = False
    has_offloaded_state: bool = False

    @functools.cached_property
    def key(self) -> "CandidateKey":
        """What candidates are compared by."""
        compute = {name: tuple(mesh_axes) for name, mesh_axes in self.compute.items() if mesh_axes}
        parameters = {name: tuple(mesh_axes) for name, mesh_axes in self.parameters.items() if mesh_axes}
        return CandidateKey(
            mesh=tuple(self.mesh.items()),
            compute=tuple(sorted(compute.items())),
            parameters=tuple(sorted(parameters.items())),
            policy=self.policy,
            options=tuple((name, repr(value)) for name, value in self.options.items()),
            sizes=tuple(sorted(self.sizes.items())),
            flags=self.flags,
            gather=self.gather,
            layers=self.layers,
            microbatches=tuple(self.microbatches.items()),
            has_typed_reductions=self.has_typed_reductions,
            has_offloaded_state=self.has_offloaded_state,
        )

    @property
    def axis_types(self) -> AxisTypes:
        """The types of the mesh axes.

        Typed reductions need Explicit ones. On Auto ones, stages would add up gradients over the batch in each turn.
        """
        return "explicit" if self.layers or self.has_typed_reductions else "auto"

    @property
    def stage_axes(self) -> MeshAxes:
        """The mesh axes of the stages of a pipeline, none without one."""
        return tuple(self.compute[self.layers[0]]) if self.layers else ()

    @functools.cached_property
    def schedule(self) -> PipelineSchedule | None:
        """The schedule of the pipeline; None without one."""
        if not self.layers:
            return None
        [microbatches] = self.microbatches.values()
        return PipelineSchedule(math.prod(self.mesh[axis] for axis in self.stage_axes), microbatches)

    @property
    def samples(self) -> int:
        """How many elements the axes have together whose sizes were searched; 1 if none were."""
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        """Formats the candidate in a line."""
        return "; ".join(filter(None, (format_mesh_sizes(self), format_sharding(self), format_settings(self))))


@dataclass(frozen=True, order=True)
class CandidateKey:
    """What candidates are compared by; two that differ in the order of names alone have the same key.

    Attributes:
        mesh: The mesh axes and their sizes, in order.
        compute: The named axes that are sharded while computing, with their mesh axes.
        parameters: The same between steps.
        policy: The name of the policy.
        options: The options, with values as text, since they need not be hashable.
        sizes: The sizes of axes.
        flags: The name of the flags.
        gather: The name of how parameters are gathered.
        layers: The layer axes of the stages.
        microbatches: The axis of the microbatches and their number.
        has_typed_reductions: Whether gradients are added up in a type of their own.
        has_offloaded_state: Whether the optimizer state is in the memory of the host.
    """

    mesh: tuple[tuple[str, int], ...]
    compute: tuple[tuple[str, MeshAxes], ...]
    parameters: tuple[tuple[str, MeshAxes], ...]
    policy: str
    options: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int], ...]
    flags: str
    gather: str
    layers: tuple[str, ...]
    microbatches: tuple[tuple[str, int], ...]
    has_typed_reductions: bool
    has_offloaded_state: bool

    @property
    def computing(self) -> "CandidateKey":
        """The key without how parameters are stored, which candidates share that compute in the same way."""
        return replace(self, parameters=())

    @property
    def work(self) -> "Work":
        """How many parts each axis has, and the settings; devices of candidates that share both compute the same."""
        sizes = dict(self.mesh)
        parts = tuple((name, math.prod(sizes[axis] for axis in axes)) for name, axes in self.compute)
        return parts, replace(self, mesh=(), compute=(), parameters=())

    @property
    def mesh_and_settings(self) -> "CandidateKey":
        """The key without both mappings."""
        return replace(self, compute=(), parameters=())


Work: TypeAlias = tuple[tuple[tuple[str, int], ...], CandidateKey]
"""What devices compute: how many parts each axis has, and the settings."""


@dataclass(frozen=True)
class Evaluation:
    """What is known of a candidate.

    Attributes:
        candidate: The candidate.
        stage: `"screened"` if its figures are those of a model of the machine, `"compiled"` if its memory and
            communication are the compiler's, `"timed"` if its step time is from the compiler's estimates as well.
        fits: Whether it fits into the memory of a device; if it is only screened, whether its arguments do.
        memory: The bytes on a device by group, such as `"parameters"`; if it is only screened, of arguments alone.
        sent: By mesh axes, the bytes that a device sends in a step.
        time: The step time.
        problem: Why it cannot be compiled; empty if it can.
        saved_bytes: If it is only screened, the bytes on a device that loops are estimated to save for the backward
            pass, beside the arguments.
        tokens: The tokens of its step; 0 if not known.
        samples: The samples of its step; 0 if not known.
        model_flops: The floating-point operations of its step, as in `Plan`; 0 if not known.
        sequences: The sequences that its step serves; 0 if it trains.

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
    saved_bytes: int = 0
    tokens: int = 0
    samples: int = 0
    model_flops: float = 0.0
    sequences: int = 0

    @property
    def units(self) -> int:
        """What its step does as many of: the sequences that it serves, or else the samples of its candidate."""
        return self.sequences or self.candidate.samples

    @property
    def cost(self) -> float:
        """The seconds that candidates are ranked by: those of a step, or of a sample where sizes were searched."""
        return self.time.total / self.units

    @property
    def bytes(self) -> int:
        """The bytes on a device."""
        return sum(self.memory.values())

    @property
    def is_usable(self) -> bool:
        """Whether it can be compiled, and fits."""
        return self.fits and not self.problem


def format_mesh_sizes(candidate: Candidate) -> str:
    """Returns the sizes of a mesh: `data 64 x model 4`."""
    return " x ".join(f"{axis} {size}" for axis, size in candidate.mesh.items()) or "one device"


def format_mesh_axes(mesh_axes: MeshAxes) -> str:
    """Returns mesh axes as a text: `data and model`."""
    return " and ".join(mesh_axes) or "unknown axes"


def format_sharding(candidate: Candidate) -> str:
    """Returns what is sharded over what: `batch over data; heads, mlp over model; stored with embed over data`."""
    return "; ".join(list_sharding_parts(candidate))


def list_sharding_parts(candidate: Candidate) -> list[str]:
    """Returns the parts of `format_sharding`."""
    compute, stored = candidate.compute, candidate.parameters
    parts = _group_names(compute) or ["computed whole on each device"]
    added = {name: mesh_axes for name, mesh_axes in stored.items() if mesh_axes and compute.get(name, ()) != mesh_axes}
    if added:
        parts.append(f"stored with {', '.join(_group_names(added))}")
    dropped = [name for name, mesh_axes in compute.items() if mesh_axes and not stored.get(name)]
    if dropped:
        parts.append(f"stored without {', '.join(dropped)}")
    return parts


def _group_names(mapping: Mapping[str, MeshAxes]) -> list[str]:
    """Returns a text for all names that are sharded over the same mesh axes."""
    groups: dict[MeshAxes, list[str]] = {}
    for name, mesh_axes in mapping.items():
        if mesh_axes:
            groups.setdefault(tuple(mesh_axes), []).append(name)
    return [f"{', '.join(names)} over {format_mesh_axes(mesh_axes)}" for mesh_axes, names in groups.items()]


def format_settings(candidate: Candidate) -> str:
    """Returns sizes, microbatches of stages, policy, gathers, options and more: `batch of 512, policy full`."""
    settings = list_sizes(candidate)
    if candidate.schedule is not None:
        settings.append(f"{candidate.schedule.microbatches} microbatches (bubble {candidate.schedule.bubble:.1%})")
    settings += [f"policy {candidate.policy}"] if candidate.policy else []
    settings += [f"gathers {candidate.gather}"] if candidate.gather else []
    settings += ["optimizer state on the host"] if candidate.has_offloaded_state else []
    settings += [f"{name}={value!r}" for name, value in candidate.options.items()]
    return ", ".join([*settings, f"flags {candidate.flags}"] if candidate.flags else settings)


def list_sizes(candidate: Candidate) -> list[str]:
    """Returns the sizes of a candidate as texts: `batch of 512`."""
    return [f"{name} of {size}" for name, size in candidate.sizes.items()]


@dataclass(frozen=True, repr=False)
class PlanRecord:
    """What a search found: the fields of `Plan`, whose docstring describes them, and figures that follow from them.

    Tables and figures take this class, because `Plan` imports them.
    """

    evaluations: tuple[Evaluation, ...]
    topology: Topology
    top: int
    pruned: Mapping[str, int] = field(hash=False)
    model_flops: float
    tokens: int
    versions: Mapping[str, str] = field(hash=False)
    compiler_options: Mapping[str, Any] = field(hash=False)
    seconds: float
    notes: tuple[str, ...] = ()
    screened: Evaluation | None = None
    samples: int = 0
    stopped_by: StopReason = ""
    serve: str = ""

    @property
    def hardware(self) -> Hardware:
        """The figures of a device."""
        return get_hardware(self.topology.hardware)

    @property
    def devices(self) -> int:
        """The number of devices of the machine."""
        return count_devices(self.topology)

    @property
    def best(self) -> Evaluation:
        """The first of the evaluations.

        Raises:
            ValueError: If there is none, since every candidate was left out.
        """
        if not self.evaluations:
            reasons = "; ".join(f"{count}: {reason}" for reason, count in self.pruned.items())
            raise ValueError(f"the plan has no candidate; all were left out: {reasons or 'there was none'}")
        return self.evaluations[0]

    @property
    def fits(self) -> bool:
        """Whether the best evaluation fits into the memory of a device, as its compiler says."""
        best = self.evaluations[0] if self.evaluations else None
        return best is not None and best.stage != "screened" and best.fits and not best.problem

    @property
    def has_verdict(self) -> bool:
        """Whether it is known that the best evaluation fits, or that nothing does.

        It is not if the search was stopped before it found one that fits, or compiled none at all. Arguments that alone
        are too large are enough to know that nothing fits.
        """
        if self.fits or not self.evaluations or (self.nearest.stage == "screened" and not self.nearest.fits):
            return True
        return not self.stopped_by and self.nearest.stage != "screened"

    @property
    def ties(self) -> tuple[int, ...]:
        """The ranks, 1 included, whose step times are too close to that of the best to tell which is the fastest.

        Candidates of one step on one machine have most of the error of a step time in common: operations, XLA's
        estimates of them, and the speed of the device. A third of the larger error is taken as the error between two
        of them, which is a judgement, as the error itself is. Only what was compiled and fits is compared; if all were
        only screened, what is likely to fit.
        """
        are_screened = all(evaluation.stage == "screened" for evaluation in self.evaluations)
        if not self.evaluations or not (self.fits or (are_screened and self.is_likely_to_fit())):
            return ()
        best = self.best.time
        return tuple(
            rank
            for rank, evaluation in enumerate(self.evaluations, 1)
            if self.is_likely_to_fit(evaluation)
            and (are_screened or evaluation.stage != "screened")
            and abs(evaluation.time.total - best.total)
            <= _ERROR_BETWEEN_CANDIDATES * max(evaluation.time.error, best.error) * best.total
        )

    def is_likely_to_fit(self, which: int | Evaluation = 1) -> bool:
        """Returns whether an evaluation fits, or would, if it is only screened, with what its loops save.

        Args:
            which: A rank or an evaluation; the best if left out.
        """
        evaluation = self.get_evaluation(which)
        held_bytes = evaluation.bytes + evaluation.saved_bytes
        return evaluation.is_usable and (evaluation.stage != "screened" or held_bytes <= self.hardware.hbm_available)

    @property
    def nearest(self) -> Evaluation:
        """The best evaluation if it fits; if nothing fits, that which takes least memory on a device.

        Evaluations that were only screened count if there are no others: the first that is likely to fit, or else that
        with the smallest arguments.
        """
        if self.fits:
            return self.best
        possible = [evaluation for evaluation in self.evaluations if not evaluation.problem]
        known = [evaluation for evaluation in possible if evaluation.stage != "screened"]
        likely = [evaluation for evaluation in possible if self.is_likely_to_fit(evaluation)]
        return min(known or likely[:1] or possible, key=lambda evaluation: evaluation.bytes, default=self.best)

    @property
    def shortfall(self) -> int:
        """The bytes that a device lacks for the evaluation that is nearest to fitting; 0 if the plan fits."""
        return 0 if self.fits else max(0, self.nearest.bytes - self.hardware.hbm_available)

    def get_evaluation(self, which: int | Evaluation) -> Evaluation:
        """Returns the evaluation of a rank, of which 1 is the best; an evaluation is returned as it is.

        Raises:
            TypeError: If `which` is neither a rank nor an evaluation.
            ValueError: If there is no such rank.
        """
        if isinstance(which, Evaluation):
            return which
        if not isinstance(which, int) or isinstance(which, bool):
            raise TypeError(f"a candidate is chosen by its rank or as an `Evaluation`, not by a {type(which).__name__}")
        if not 1 <= which <= len(self.evaluations):
            raise ValueError(f"there is no rank {which}; the plan has ranks 1 to {len(self.evaluations)}")
        return self.evaluations[which - 1]

    def tokens_per_second(self, which: int | Evaluation = 1) -> float:
        """Returns the tokens that all devices process in a second; 0 if the tokens of a step are not known.

        Args:
            which: A rank or an evaluation; the best if left out.
        """
        evaluation = self.get_evaluation(which)
        return (evaluation.tokens or self.tokens) / evaluation.time.total

    def samples_per_second(self, which: int | Evaluation = 1) -> float:
        """Returns the samples that all devices process in a second; 0 if the samples of a step are not known.

        Args:
            which: A rank or an evaluation; the best if left out.
        """
        evaluation = self.get_evaluation(which)
        return (evaluation.samples or self.samples) / evaluation.time.total

    def mfu(self, which: int | Evaluation = 1) -> float:
        """Returns the part of the devices' peak in bfloat16 that the operations of the model alone take.

        This is the model FLOPs utilization of Chowdhery et al., 2022, appendix B: what is computed again for the
        backward pass does not count.

        Args:
            which: A rank or an evaluation; the best if left out.
        """
        evaluation = self.get_evaluation(which)
        flops = evaluation.model_flops or self.model_flops
        return flops / (evaluation.time.total * self.devices * self.hardware.bf16_flops)
