"""Compiles candidates for the machine of a plan, and reads their figures from what the compiler knows."""

import collections
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..mesh import create_mesh
from ..partitioning.jit._fsdp import fsdp
from ._candidate import Candidate, Evaluation, MeshAxes
from ._communication_report import communication_report
from ._compile_for import compile_for
from ._compiled_program import CompiledProgram
from ._described_devices import DescribedDevice
from ._hardware import get_hardware
from ._link_model import LinkModel
from ._memory_report import memory_report
from ._step_time import estimate_with_computing
from ._step_variants import StepVariant


class CandidateCompiler:
    """Compiles candidates for described devices.

    Args:
        devices: The devices.
        jit_options: The options of `named_jit` other than mappings.
        compiler_options: Options of XLA.
        cache: As for `compile_for`.

    Attributes:
        errors: The errors of candidates that could not be compiled.
    """

    def __init__(
        self,
        devices: Sequence[DescribedDevice],
        jit_options: Mapping[str, Any],
        compiler_options: Mapping[str, Any] | None,
        cache: bool | str | os.PathLike[str],
    ) -> None:
        self.devices, self._jit_options = tuple(devices), jit_options
        self._compiler_options, self._cache = compiler_options, cache
        self.errors: list[Exception] = []
        self.hardware = get_hardware(devices[0].topology.hardware)
        self._links: dict[str, LinkModel] = {}

    def replace_devices(self, devices: Sequence[DescribedDevice]) -> "CandidateCompiler":
        """Returns a compiler for other devices with the same options."""
        return CandidateCompiler(devices, self._jit_options, self._compiler_options, self._cache)

    def make_link_model(self, candidate: Candidate) -> LinkModel:
        """Returns the model of the links of a candidate's mesh."""
        key = str(candidate.mesh)
        if key not in self._links:
            self._links[key] = LinkModel(create_mesh(candidate.mesh, devices=self.devices))
        return self._links[key]

    def evaluate(self, screened: Evaluation, variant: StepVariant, *, is_whole: bool) -> Evaluation:
        """Returns a candidate's evaluation from its compiled program.

        Args:
            screened: What is estimated of the candidate.
            variant: The step with its policy and options.
            is_whole: Whether to compile it whole, for estimates of cycles on TPUs.
        """
        candidate = screened.candidate
        try:
            program = self._compile(candidate, variant, is_whole)
        except (TypeError, ValueError, RuntimeError, TimeoutError) as error:
            self.errors.append(error)
            return replace(screened, stage="compiled", fits=False, problem=_format_problem(error))
        if not is_whole:  # the cache may have it whole; a plan is the same with the cache and without
            program = replace(program, is_stopped=True)
        time = estimate_with_computing(program, screened.time.compute)
        return Evaluation(
            candidate=candidate,
            stage="compiled" if time.source == "flops" else "timed",
            fits=program.fits,
            memory={group: size for group, size in memory_report(program).groups.items() if size},
            sent=_count_sent(program),
            time=time,
        )

    def _compile(self, candidate: Candidate, variant: StepVariant, is_whole: bool) -> CompiledProgram:
        step = fsdp(variant.fn, candidate.parameters, candidate.compute, retrace_warning=False, **self._jit_options)
        return compile_for(
            step,
            *variant.args,
            mesh=self.make_link_model(candidate).mesh,
            mapping=candidate.parameters,
            stop_early=not is_whole,
            compiler_options=self._compiler_options,
            cache=self._cache,
        )


def _format_problem(error: Exception) -> str:
    """Returns an error in one line: its first, and the last if the first ends with a colon."""
    lines = str(error).splitlines() or [repr(error)]
    return f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]


def _count_sent(program: CompiledProgram) -> dict[MeshAxes, int]:
    found: collections.Counter[MeshAxes] = collections.Counter()
    for one in communication_report(program).collectives:
        found[one.mesh_axes] += one.runs * one.sent_bytes
    return dict(found)
