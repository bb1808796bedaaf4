"""Compiles candidates for the machine of a plan, and reads their figures from what the compiler knows."""

import collections
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...mesh import create_mesh
from ...training._fsdp import fsdp
from .._compiler._compile_for import compile_for
from .._machine._described_devices import DescribedDevice
from .._machine._hardware import Hardware, get_hardware
from .._plan._candidate import Candidate, Evaluation, StopReason
from .._program._collectives import MeshAxes
from .._reports._communication import communication_report
from .._reports._memory import memory_report
from .._step_time._link_model import LinkModel
from .._step_time._step_time import estimate_with_computing
from ._step_variants import StepVariant, place_state_on_host


@dataclass
class CandidateCompiler:
    """Compiles candidates for described devices.

    Attributes:
        devices: The devices.
        jit_options: The options of `named_jit` other than mappings.
        compiler_options: Options of XLA.
        cache: As for `compile_for`.
        errors: The errors of candidates that could not be compiled.
    """

    devices: tuple[DescribedDevice, ...]
    jit_options: Mapping[str, Any]
    compiler_options: Mapping[str, Any] | None
    cache: bool | str | os.PathLike[str]
    errors: list[Exception] = field(default_factory=list[Exception], init=False)
    _links: dict[Any, LinkModel] = field(default_factory=dict[Any, LinkModel], init=False)  # by mesh

    @property
    def hardware(self) -> Hardware:
        """The figures of a device."""
        return get_hardware(self.devices[0].topology.hardware)

    def make_link_model(self, candidate: Candidate) -> LinkModel:
        """Returns the model of the links of a candidate's mesh."""
        key = tuple(candidate.mesh.items()), candidate.axis_types
        if key not in self._links:
            mesh = create_mesh(candidate.mesh, axis_types=candidate.axis_types, devices=self.devices)
            self._links[key] = LinkModel(mesh)
        return self._links[key]

    def compile(self, known: Evaluation, variant: StepVariant, *, stop_early: bool) -> Evaluation:
        """Returns a candidate's evaluation from its compiled program.

        A program that is stopped early (`is_stopped`) has no cycles, so its times have the source `"flops"`, and the
        stage of the evaluation is `"compiled"`. With cycles it is `"timed"`. On GPUs, where nothing is stopped early,
        it always is; on CPUs the source is always `"flops"`.

        Args:
            known: What is known of the candidate; its time of computing counts until cycles are known.
            variant: The step with its policy and options.
            stop_early: Whether to stop before code generation, where the compiler permits.
        """
        candidate = known.candidate
        try:
            mesh = self.make_link_model(candidate).mesh
            args = variant.args
            if candidate.has_offloaded_state:
                args = place_state_on_host(args, mesh.abstract_mesh)
            policy = replace(variant.gather_policy, microbatches=candidate.microbatches)
            options = {"policy": policy, "retrace_warning": False, **self.jit_options}
            step = fsdp(variant.fn, candidate.parameters, candidate.compute, **options)
            program = compile_for(
                step,
                *args,
                mesh=mesh,
                # `fsdp` shards the arguments in the same way; without this, an active mapping of the caller would come
                # first, whose mesh axes the mesh of the candidate may not have.
                mapping=candidate.parameters,
                stop_early=stop_early,
                compiler_options=self.compiler_options,
                cache=self.cache,
            )
        # The step itself can be traced, so an error is one of the candidate. JAX has classes of its own, as for
        # operations that lack a rule for Explicit axes. A full disk concerns all candidates.
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise
            self.errors.append(error)
            lines = str(error).splitlines() or [repr(error)]
            problem = lines[0]
            if problem.endswith(":") and len(lines) > 1:  # what it announces comes last, as in tracebacks
                problem += f" {lines[-1].strip()}"
            return replace(known, stage="compiled", fits=False, problem=problem)
        if stop_early:  # the cache may have it with code; a plan is the same with the cache and without
            program = replace(program, is_stopped=True)
        # Until cycles are known, computing takes what the screening says: operations, or the memory if that is slower.
        # `ComputingSpeed` scales that once others are timed: while the search ranks, and last in `_rank_evaluations`.
        step_time = estimate_with_computing(program, known.time.compute)
        sent: collections.Counter[MeshAxes] = collections.Counter()
        for collective in communication_report(program).collectives:
            sent[collective.mesh_axes] += collective.runs * collective.sent_bytes
        return replace(
            known,
            stage="compiled" if step_time.source == "flops" else "timed",
            fits=program.fits,
            memory={group: size for group, size in memory_report(program).groups.items() if size},
            sent=dict(sent),
            time=step_time,
        )


class SearchProgress:
    """Writes a line for each candidate, which the next replaces on a terminal; knows when the time is over.

    Attributes:
        notes: What the user has to know of the search.
        stopped_by: What ended it, as in `Plan`.
    """

    def __init__(self, is_shown: bool, started: float, budget: float | None) -> None:
        self._is_shown, self._started, self._budget = is_shown, started, budget
        self._is_terminal = is_shown and sys.stderr.isatty()
        self.notes: list[str] = []
        self.stopped_by: StopReason = ""

    def has_used(self, part: float = 1.0) -> bool:
        """Returns whether a part of the budget is used up."""
        return self._budget is not None and time.monotonic() - self._started >= part * self._budget

    def stop(self, reason: StopReason, text: str) -> None:
        """Keeps what has ended the search, and a note of it."""
        self.stopped_by = reason
        self.note(text)

    def note(self, text: str) -> None:
        """Keeps a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def show(self, text: str) -> None:
        """Writes a line, with the seconds so far."""
        line = f"{time.monotonic() - self._started:.0f} s: {text}"
        if self._is_terminal:
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one takes two lines, and one of them stays
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
        elif self._is_shown:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
