"""`ComputingSpeed`: how much longer candidates compute than the operations take at the peak of a device."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ._candidate import Evaluation, StepTime, format_computing
from ._screening import Screened


@dataclass(frozen=True)
class ComputingSpeed:
    """The time of computing of timed candidates, in times of what was screened.

    XLA's estimates exceed the operations at the peak of the device. Without that factor, candidates that are timed
    would look slow beside the others.

    Attributes:
        factors: The factor of each timed candidate, by the way in which it computes.
    """

    factors: dict[str, float]

    @staticmethod
    def measure(compiled: Iterable[tuple[Evaluation, Screened]]) -> "ComputingSpeed":
        """Returns the speed of the candidates that are timed."""
        return ComputingSpeed(
            {
                format_computing(own.candidate): (own.time.compute + own.time.attention) / one.evaluation.time.compute
                for own, one in compiled
                if own.stage == "timed"
            }
        )

    def scale(self, one: Evaluation) -> Evaluation:
        """Returns an evaluation whose computing is from operations as slow as a timed one.

        The factor is that of a timed candidate which computes in the same way, or else the median of the factors, which
        differ little in a large step.
        """
        if one.stage == "timed" or not self.factors:
            return one
        middle = float(np.median([*self.factors.values()]))
        return replace(one, time=_scale_computing(one.time, self.factors.get(format_computing(one.candidate), middle)))


def _scale_computing(time: StepTime, factor: float) -> StepTime:
    """Returns a step time with longer or shorter computing, beside which more or less of what is sent is hidden."""
    compute, waiting, hidden = factor * time.compute, dict(time.waiting), dict(time.hidden)
    for axes, seconds in time.hidden.items():
        if seconds >= min(compute, 0.999 * time.compute):  # where sending takes longer than computing
            moved = min(compute - seconds, waiting.get(axes, 0.0))
            waiting[axes] = waiting.get(axes, 0.0) - moved
            hidden[axes] = seconds + moved
    return replace(time, compute=compute, waiting=waiting, hidden=hidden)
