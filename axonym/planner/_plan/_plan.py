"""`Plan`: the candidates that a search found, ranked; printed, explained, compared, drawn, saved, and used."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from ...mesh import create_mesh
from ...report._format import check_count
from ...report._table import PrintedTable, format_html_page, format_page
from ...report._write_file import write_file
from .._program._collectives import MeshAxes
from ._candidate import Evaluation, PlanRecord
from ._plan_figure import draw_plan, draw_timeline
from ._plan_file import make_plan_dict, read_plan_file, write_plan_page
from ._plan_table import PlanAlternatives, PlanComparison, find_alternatives, make_plan_page


_MOST_ROWS = 10


@dataclass(frozen=True, repr=False)
class Plan(PlanRecord, PrintedTable):
    """The candidates that a search found, ranked: printed, a table; in a notebook, HTML.

    It is used directly, to run what it has found best:

        with jax.set_mesh(plan.mesh()):
            policy = nym.Policy(microbatches=plan.microbatches)
            step = nym.fsdp(train_step, plan.parameters, plan.compute, policy=policy)

    Attributes:
        evaluations: What is known of each candidate, the best first.
        topology: The machine.
        top: How many candidates are shown with all their parts.
        pruned: How many candidates were left out, by reason.
        model_flops: The floating-point operations of a step of the best candidate on all devices, without what is
            computed again; 0 if not known.
        tokens: The tokens of a step of the best candidate; 0 if not known.
        versions: The versions of JAX and of the compiler, by package.
        compiler_options: XLA's options for the best candidate.
        seconds: The time that the search took.
        notes: What was done in another way than usual, and why.
        screened: What the model of the machine says of the best candidate, which candidates that were only screened are
            compared with; None if the best was only screened, too.
        samples: The size of the batch; 0 if not known.
        stopped_by: What ended the search before it had compiled what it would: `"budget"`, `"interrupt"` or `"error"`,
            such as a full disk; empty if nothing did.
        serve: The axis of the sequences that the step serves; empty if it trains.

    Example:
        >>> import axonym as nym
        >>> compute = {"batch": ("data",)}
        >>> evaluation = nym.planner.Evaluation(
        ...     nym.planner.Candidate({"data": 8}, compute, {**compute, "embed": ("data",)}),
        ...     stage="timed",
        ...     fits=True,
        ...     memory={"parameters": 2**30, "activations": 2**32},
        ...     sent={("data",): 2**30},
        ...     time=nym.planner.StepTime(1.5, 0.25, {("data",): 0.25}, {("data",): 0.5}, 0.0, "cycles", 0.15),
        ... )
        >>> machine = nym.planner.described_devices("v5e:2x4")[0].topology
        >>> plan = nym.planner.Plan((evaluation,), machine, 3, {}, 1.6e15, 2**16, {}, {}, 12.5)
        >>> plan.fits, plan.tokens_per_second(), round(plan.mfu(), 3)
        (True, 32768.0, 0.508)
        >>> print(plan.why("embed"))
        embed: stored over data in the best candidate (data 8, 2.00 s ±15%, 5 GiB a device, it fits)
        <BLANKLINE>
        No candidate with another choice was evaluated.
    """

    @property
    def compute(self) -> Mapping[str, MeshAxes]:
        """The mapping of the best candidate while computing, for `axis_mapping` and `fsdp`."""
        return self.best.candidate.compute

    @property
    def parameters(self) -> Mapping[str, MeshAxes]:
        """The mapping of the best candidate for parameters and optimizer state between steps, for `fsdp`."""
        return self.best.candidate.parameters

    @property
    def policy(self) -> str:
        """The best candidate's policy of rematerialization, by name; empty if the layers keep their own."""
        return self.best.candidate.policy

    @property
    def microbatches(self) -> Mapping[str, int]:
        """Into how many microbatches the stages of the best candidate divide an axis, for `Policy`; empty without."""
        return self.best.candidate.microbatches

    @property
    def gather(self) -> str:
        """How the best candidate gathers parameters, by the name in `gathers`; empty if there were none."""
        return self.best.candidate.gather

    @property
    def options(self) -> Mapping[str, Any]:
        """The keyword arguments that the best candidate calls the function with."""
        return self.best.candidate.options

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of axes of the data that the best candidate has, if any were searched."""
        return self.best.candidate.sizes

    def mesh(self, devices: Sequence[Any] | None = None, axis_types: Any = None) -> Mesh:
        """Returns the mesh of the best candidate.

        Its axes are as in the search: Explicit if it has stages or adds up gradients in a type of their own, else Auto.

        Args:
            devices: The devices, such as what `described_devices` returns; JAX's own if None.
            axis_types: The types of the mesh axes as for `create_mesh`, such as `"explicit"`; those of the search if
                None.

        Raises:
            ValueError: If there are more or fewer devices than the mesh has.
        """
        best = self.best.candidate
        return create_mesh(best.mesh, axis_types=axis_types or best.axis_types, devices=devices)

    def why(self, axis: str) -> PlanAlternatives:
        """Returns what other choices cost: for each, the best candidate with that choice, next to the best of all.

        Args:
            axis: A named axis, whose choices are what it is sharded over while computing and between steps, and its
                size if that was searched; a mesh axis, whose choices are its sizes; `"policy"`; an option; or, where
                they were searched, `"gather"`, `"state"`, which is on the device or the host, and `"microbatches"` of
                stages. For one choice alone: `"data=64"`, `"batch=512"`, `"embed=not sharded"` or `"embed=model"`,
                sharded over `model` while computing or between steps.

        Raises:
            TypeError: If `axis` is no string.
            ValueError: If the candidates have no such axis, or no candidate makes that choice.
        """
        return find_alternatives(self, axis)

    def diff(self, a: "int | Evaluation | Plan", b: "int | Evaluation | Plan | None" = None) -> PlanComparison:
        """Returns two evaluations part by part: mesh, mapping, bytes, bytes sent and seconds.

        Args:
            a: A rank, 1 for the best; an evaluation; or another plan, whose best candidate is compared.
            b: The same. If None, the best of this plan is compared with `a`.

        Raises:
            TypeError: If `a` or `b` is something else.
            ValueError: If there is no such rank.
        """
        first, first_plan, first_label = self._find_side(1 if b is None else a)
        second, second_plan, second_label = self._find_side(a if b is None else b)
        if first_label == second_label:
            first_label, second_label = f"{first_label} (a)", f"{second_label} (b)"
        return PlanComparison(first, second, (first_label, second_label), (first_plan, second_plan))

    def _find_side(self, which: "int | Evaluation | Plan") -> tuple[Evaluation, PlanRecord, str]:
        """Returns an evaluation, its plan, and what it is called."""
        if isinstance(which, Plan):
            return which.best, which, f"best of {which.topology}"
        evaluation = self.get_evaluation(which)
        if evaluation in self.evaluations:
            return evaluation, self, f"rank {self.evaluations.index(evaluation) + 1}"
        return evaluation, self, str(evaluation.candidate)

    def draw(self, path: str | os.PathLike[str] | None = None, *, ranks: int | None = None) -> Any:
        """Draws step time and memory of the candidates, and what a step is spent on; needs matplotlib.

        On the left there is a mark for each candidate that can be compiled, and a line at the memory of a device. On
        the right there is a bar for each of the first steps: computing, attention, and waits by mesh axis; below it,
        hatched, what goes on beside computing.

        Args:
            path: The file to write the picture to; its ending says the format, such as `.svg` or `.png`.
            ranks: How many steps to show; `top` if None.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there is nothing to draw, `ranks` is not 1 or more, or the path has no ending that matplotlib
                knows.
        """
        return draw_plan(self, path, ranks)

    def draw_timeline(self, path: str | os.PathLike[str] | None = None, *, which: int | Evaluation = 1) -> Any:
        """Draws what a device computes, sends and waits for in a turn of the loops over the layers; needs matplotlib.

        There is a picture of a turn for each of the one or two loops that take most of the step, as a rule those over
        the layers forward and backward; of a program without loops, all of it. The first row is what is computed:
        products, attention and the rest. Below it is a row for each set of mesh axes that collectives go along, and for
        each direction of transfers to and from the memory of the host. Where the device does nothing but wait for
        these, it is shaded.

        Args:
            path: The file to write the picture to; its ending says the format, such as `.svg` or `.png`.
            which: A rank or an evaluation; the best if left out.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If the candidate is not timed, there is no such rank, or the path has no ending that matplotlib
                knows.

        Example:
            >>> import axonym as nym
            >>> def make_event(kind, links, start, end, waited=0.0):
            ...     return nym.planner.TimelineEvent(kind, kind, links, start, end, waited, "Stacked/up", "", "forward")
            >>> events = make_event("product", (), 0.0, 2e-3), make_event("all-gather", ("data",), 0.0, 3e-3, 1e-3)
            >>> turn = nym.planner.Timeline("Stacked, forward", 32, 3e-3, events)
            >>> time = nym.planner.StepTime(0.064, 0.0, {("data",): 0.032}, {}, 0.0, "cycles", 0.15, (turn,))
            >>> candidate = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": ("data",)})
            >>> best = nym.planner.Evaluation(candidate, "timed", True, {"parameters": 2**30}, {}, time)
            >>> machine = nym.planner.described_devices("v5e:2x4")[0].topology
            >>> plan = nym.planner.Plan((best,), machine, 3, {}, 0.0, 0, {}, {}, 12.5)
            >>> plan.draw_timeline().axes[0].get_title("left")
            'Stacked, forward: one of 32 turns, 3.00 ms, of which it waits 1.00 ms (33%)'
        """
        return draw_timeline(self, path, which)

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the tables as text, at most 120 columns wide.

        Args:
            limit: How many candidates to show; all of them if None. The first `top` have tables of their parts.

        Raises:
            TypeError: If the limit is not an integer.
            ValueError: If the limit is negative.
        """
        if limit is not None:
            check_count("limit", limit, "the number of candidates to show, or None for all")
        return format_page(make_plan_page(self, limit))

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings, numbers and None."""
        return make_plan_dict(self)

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Writes the plan to a file, completely or not at all; `read_plan` reads it.

        Options that are neither numbers, strings, booleans nor None are written as their text.

        Args:
            path: The file; an existing one is replaced.

        Returns:
            The path of the file.
        """
        return write_file(path, json.dumps(self.to_dict(), indent=1) + "\n", "plan", "plan.json")

    def to_html(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Writes a page with the tables and the pictures; it loads nothing and is written completely or not at all.

        The pictures are those of `draw`, and of `draw_timeline` for the best candidate if that is timed. Without
        matplotlib the page has none, and says so.

        Args:
            path: The file; an existing one is replaced.
            title: The heading of the page; the machine if empty.

        Returns:
            The path of the file.
        """
        return write_plan_page(self, path, title, _MOST_ROWS)

    def _repr_html_(self) -> str:
        return format_html_page(make_plan_page(self, _MOST_ROWS))


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Returns the plan that `Plan.to_json` wrote.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a plan, is damaged, is of another version, or is for devices of your own that are not
            registered.

    Example:
        >>> import axonym as nym, tempfile
        >>> machine = nym.planner.described_devices("cpu:8")[0].topology
        >>> plan = nym.planner.Plan(
        ...     (), machine, 3, {"no name is divisible by mesh axis 'data'": 4}, 0.0, 0, {}, {}, 0.5
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nym.planner.read_plan(plan.to_json(f"{folder}/plan.json")) == plan
        True
    """
    return Plan(**vars(read_plan_file(path)))
