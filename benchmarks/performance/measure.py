"""How the benchmarks measure: every contender once in each round, in a shuffled order, and ratios within the rounds.

The machines are shared and noisy, so a figure is compared only with others of its own round. What is recorded is what
the reference takes, and of each ratio the median over the rounds with the tenth and the ninetieth percentile.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: How many rounds.
        turn: How many seconds one contender's turn in a round should take.
        smoke: Whether only to find out that everything runs.
        limit: After how many seconds a row ends, if it has at least `LEAST` rounds.
    """

    rounds: int
    turn: float
    smoke: bool = False
    limit: float = 20.0


LEAST = 5
ROW = 8  # calls in a row
FULL = Effort(rounds=41, turn=0.002)
SMOKE = Effort(rounds=2, turn=0.0, smoke=True)


class Spread(NamedTuple):
    """The median of some figures, and their tenth and ninetieth percentiles."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        if len(figures) < 2:
            return cls(*3 * (_shorten(figures[0]),))
        tenths = statistics.quantiles(figures, n=10, method="inclusive")
        return cls(_shorten(statistics.median(figures)), _shorten(tenths[0]), _shorten(tenths[-1]))


def _shorten(figure: float) -> float:
    """Returns a figure with seven digits, or as an integer if that has more."""
    return round(figure) if abs(figure) >= 1e6 else float(f"{figure:.7g}")


@dataclass(frozen=True)
class Row:
    """One line of the results: what the reference takes, and the ratios of the contenders to it.

    Attributes:
        what: What is measured.
        unit: The unit of `taken`: "us", "ms", "s", "bytes", "equations", "instructions", ...
        against: What the reference is, in words.
        bar: The greatest ratio that Axonym may have; None if there is no such aim.
        taken: The median of what the reference takes.
        ratios: For each other contender, its figure divided by that of the reference in the same round.
    """

    what: str
    unit: str
    against: str
    bar: float | None
    taken: float
    ratios: dict[str, Spread]

    @property
    def missed(self) -> bool:
        """Whether the median is above the bar, as both are shown: with two digits behind the point."""
        return self.bar is not None and round(self.ratios["Axonym"].median, 2) > self.bar

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Row":
        return cls(**{**found, "ratios": {who: Spread(*spread) for who, spread in found["ratios"].items()}})


def row(
    what: str,
    unit: str,
    against: str,
    bar: float | None,
    samples: Mapping[str, Sequence[float]],
    reference: str = "JAX",
) -> Row:
    """Returns the line for the figures of each contender, round by round."""
    base = samples[reference]
    ratios = {
        who: Spread.of([_ratio(*pair) for pair in zip(taken, base, strict=True)])
        for who, taken in samples.items()
        if who != reference
    }
    return Row(what, unit, against, bar, Spread.of(base).median, ratios)


def _ratio(own: float, other: float) -> float:
    return 1.0 if own == other else own / max(other, 1e-300)


def seconds(contenders: Mapping[str, Callable[[], Any]], effort: Effort) -> dict[str, list[float]]:
    """Returns the seconds that a call of each contender took, for each round.

    What is timed is how long a call takes to return. In a turn a contender is called until it has taken as long as
    `effort` says, a few times in a row and as often as the others; results are awaited in between, untimed, because
    calls that find many others waiting have to wait themselves. Before a turn the contender and the garbage collector
    run, untimed.
    """
    repeats = {who: 1 if effort.smoke else _repeats(call, effort.turn) for who, call in contenders.items()}
    taken: dict[str, list[float]] = {who: [] for who in contenders}
    order, shuffle = list(contenders), random.Random(0).shuffle
    end = time.perf_counter() + effort.limit
    for done in range(effort.rounds):
        if done >= LEAST and time.perf_counter() > end:
            break
        shuffle(order)
        for who in order:
            taken[who].append(_turn(contenders[who], repeats[who]))
    return taken


def _turn(call: Callable[[], Any], repeats: int) -> float:
    jax.block_until_ready(call())
    gc.collect(0)
    gc.disable()
    taken, in_a_row = 0.0, min(repeats, ROW)
    turns = round(repeats / in_a_row)
    try:
        for _ in range(turns):
            start = time.perf_counter()
            for _ in range(in_a_row):
                result = call()
            taken += time.perf_counter() - start
            jax.block_until_ready(result)
    finally:
        gc.enable()
    return taken / (turns * in_a_row)


def _repeats(call: Callable[[], Any], turn: float) -> int:
    for _ in range(2):
        jax.block_until_ready(call())
    start = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(call())
    return max(1, min(200, round(5 * turn / (time.perf_counter() - start))))


def timed(
    what: str,
    against: str,
    bar: float | None,
    contenders: Mapping[str, Callable[[], Any]],
    effort: Effort,
    *,
    unit: str = "us",
    reference: str = "JAX",
) -> Row:
    """Returns the line for how long a call of each contender takes; see `seconds`."""
    scale = {"us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    taken = seconds(contenders, effort)
    return row(what, unit, against, bar, {who: [one * scale for one in all_] for who, all_ in taken.items()}, reference)
