"""`PlanRecord`: what a search for a plan found, and the figures that follow from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._candidate import Evaluation
from ._described_devices import Topology
from ._hardware import Hardware, get_hardware


@dataclass(frozen=True, repr=False)
class PlanRecord:
    """The fields of a `Plan`, which has their description, and figures that follow from them."""

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

    @property
    def hardware(self) -> Hardware:
        """The figures of a device."""
        return get_hardware(self.topology.hardware)

    @property
    def devices(self) -> int:
        """The number of devices of the machine."""
        per_chip = self.hardware.devices_per_chip
        return math.prod(self.topology.sizes) * self.topology.slices * per_chip

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
    def nearest(self) -> Evaluation:
        """The best evaluation if it fits; if nothing fits, that which takes least memory on a device.

        Evaluations that were only screened count if there are no others: their bytes are those of arguments alone.
        """
        if self.fits:
            return self.best
        found = [one for one in self.evaluations if not one.problem]
        compiled = [one for one in found if one.stage != "screened"]
        return min(compiled or found, key=lambda one: one.bytes, default=self.best)

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
        return self.tokens / self.get_evaluation(which).time.total

    def mfu(self, which: int | Evaluation = 1) -> float:
        """Returns the part of the devices' peak in bfloat16 that the operations of the model alone take.

        This is the model FLOPs utilization of Chowdhery et al., 2022, appendix B: what is computed again for the
        backward pass does not count.

        Args:
            which: A rank or an evaluation; the best if left out.
        """
        return self.model_flops / (self.get_evaluation(which).time.total * self.devices * self.hardware.bf16_flops)
