"""The stages of a pipeline: how layers and microbatches are divided, and which stage computes what in which turn."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from .._ground.errors import make_error
from ._axis_layout import round_up


STAGE = "axonym stages"
"""The name of the axis along which arrays are divided into stages."""


class StagePlan(NamedTuple):
    """How an active mapping divides layers into the stages of a pipeline.

    Attributes:
        stages: The number of stages.
        axis: The name of the axis that is divided into microbatches.
        microbatches: Their number.
        is_uneven_replicated: Whether axes whose sizes are not divisible are replicated.
        storing: The `Ambient` by which parameters are stored. In it and the next two, `STAGE` is sharded over the mesh
            axes of the layers, over which no other axis is.
        gathering: The `Ambient` in which parameters are gathered.
        computing: The `Ambient` in which the stages compute.
        collecting: The `Ambient` by which results with the layer axis are sharded, which has the place of `STAGE`.
    """

    stages: int
    axis: str
    microbatches: int
    is_uneven_replicated: bool
    storing: Any
    gathering: Any
    computing: Any
    collecting: Any


@dataclass(frozen=True)
class PipelineSchedule:
    """Which microbatch each stage of a pipeline computes in each turn, and with which of its groups of layers.

    All stages do the same works in the same order, each one turn after the stage before it. With several groups of
    layers on each stage, as many microbatches as there are stages pass all groups before the next ones follow. In the
    backward pass the turns run in reverse.

    Attributes:
        stages: The number of stages.
        microbatches: The number of microbatches.
        repeats: The number of groups of layers on each stage.

    Raises:
        ValueError: If a number is not positive, or there are several groups and the number of microbatches is not a
            multiple of that of stages.

    Example:
        >>> import axonym as nym
        >>> schedule = nym.nn.PipelineSchedule(3, 4)
        >>> print(schedule)
        3 stages, 4 microbatches, 6 turns, bubble 33.3 %
        stage 0  0 1 2 3 . .
        stage 1  . 0 1 2 3 .
        stage 2  . . 0 1 2 3
        >>> round(nym.nn.PipelineSchedule(3, 6, repeats=2).bubble, 3)
        0.143
    """

    stages: int
    microbatches: int
    repeats: int = 1

    def __post_init__(self) -> None:
        """Checks the numbers."""
        numbers = self.stages, self.microbatches, self.repeats
        if not all(isinstance(number, int) and number >= 1 for number in numbers):
            raise make_error(
                ValueError,
                f"`PipelineSchedule` takes numbers of stages, microbatches and groups from 1 on, not {numbers}",
            )
        if self.repeats > 1 and self.microbatches % self.stages:
            problem = _describe_multiple(self.stages, self.microbatches, self.repeats)
            raise make_error(ValueError, f"{problem}; the next one is {round_up(self.microbatches, self.stages)}")

    @property
    def works(self) -> int:
        """How often each stage computes."""
        return self.repeats * self.microbatches

    @property
    def turns(self) -> int:
        """How many turns there are in one pass."""
        return self.works + self.stages - 1

    @property
    def bubble(self) -> float:
        """The fraction of the turns in which a stage computes nothing that is used."""
        return (self.stages - 1) / self.turns

    def find_microbatch(self, work: Any) -> Any:
        """Returns the microbatch of a work; in turn `t` a stage `s` does work `t - s`."""
        return work // (self.stages * self.repeats) * self.stages + work % self.stages

    def find_group(self, work: Any) -> Any:
        """Returns the group of layers of a work."""
        return work % (self.stages * self.repeats) // self.stages

    def __str__(self) -> str:
        """Draws a row for each stage; the letter after a microbatch is the group of layers."""
        title = f"{self.stages} stages, {self.microbatches} microbatches, "
        title += "" if self.repeats == 1 else f"{self.repeats} groups of layers each, "
        lines = [f"{title}{self.turns} turns, bubble {100 * self.bubble:.1f} %"]
        cells = []
        for work in range(self.works):
            group = "" if self.repeats == 1 else chr(ord("a") + self.find_group(work))
            cells.append(f"{self.find_microbatch(work)}{group}")
        width = max(map(len, cells))
        for stage in range(self.stages):
            row = ["."] * stage + cells + ["."] * (self.stages - 1 - stage)
            lines.append(f"stage {stage}  {' '.join(cell.rjust(width) for cell in row)}")
        return "\n".join(lines)


def _describe_multiple(stages: int, microbatches: int, repeats: int) -> str:
    return (
        f"a pipeline of {stages} stages with {repeats} groups of layers each needs a multiple of {stages} "
        f"microbatches, not {microbatches}"
    )


def has_enough_microbatches(stages: int, microbatches: int, repeats: int) -> bool:
    """Returns whether a pipeline runs so many microbatches."""
    return microbatches >= stages and (repeats == 1 or microbatches % stages == 0)


def make_schedule(
    stages: int, microbatches: int, repeats: int, name: str, size: int, shards: int = 1
) -> PipelineSchedule:
    """Returns the schedule for a batch.

    Args:
        stages: The number of stages.
        microbatches: The number of microbatches.
        repeats: The number of groups of layers on each stage.
        name: The name of the axis that is divided into microbatches.
        size: Its size.
        shards: Over how many devices each microbatch is sharded.

    Raises:
        ValueError: If there are too few microbatches, or the axis cannot be divided into them.
    """
    step = 1 if repeats == 1 else stages
    is_enough = has_enough_microbatches(stages, microbatches, repeats)
    if is_enough and size % (microbatches * shards) == 0:
        return PipelineSchedule(stages, microbatches, repeats)
    if is_enough:
        devices = "" if shards == 1 else f" for {shards} devices each"
        problem = f"axis {name!r} of size {size} is not divisible into {microbatches} microbatches{devices}"
    elif repeats == 1:
        problem = f"a pipeline of {stages} stages needs as many microbatches or more, not {microbatches}"
    else:
        problem = _describe_multiple(stages, microbatches, repeats)
    counts = [count for count in range(stages, size + 1, step) if size % (count * shards) == 0]
    larger_counts = [count for count in counts if count >= microbatches]
    if counts:
        count = larger_counts[0] if larger_counts else counts[-1]
        remedy = f"`microbatches={{{name!r}: {count}}}` fits this axis"
    else:
        next_count = round_up(max(microbatches, stages), step)
        remedy = f"the next size of axis {name!r} that fits is {round_up(size, next_count * shards)}"
    raise make_error(ValueError, f"{problem}; {remedy}")
