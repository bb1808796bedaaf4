"""Assertions on what a program sends between devices, for tests."""

import math
from collections.abc import Mapping
from typing import Any

from ..report._table import format_bytes
from ._collectives import COLLECTIVE_KINDS, Collective
from ._communication_report import CommunicationReport, communication_report


def assert_no_collectives(fn: Any, axis: str | None = None, /, *args: Any, **kwargs: Any) -> None:
    """Asserts that a program sends nothing along an axis.

    Args:
        fn: As for `communication_report`.
        axis: A mesh axis, or a named axis of the arrays; None for all of them.
        args: The arguments of the function.
        kwargs: Its keyword arguments.

    Raises:
        AssertionError: If it does; the text has each collective, its bytes, layer and source line.
        TypeError: If `axis` is not a name.
        ValueError: If neither the mesh nor the arguments have such an axis, or there is no mesh of several devices, so
            that nothing could be found.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     nym.planner.assert_no_collectives(lambda x: nym.sum(x, "embed"), "data", x)
    """
    if not isinstance(axis, str | None):
        raise TypeError(
            "`assert_no_collectives` takes a mesh axis or a named axis in front of the arguments of the function, or "
            f"None for all of them, not a {type(axis).__name__}"
        )
    report = _report_on_mesh(fn, args, kwargs)
    found = report.select(axis=axis)
    if found:
        shown = _format_collectives(report, found)
        along = f"along {axis!r}" if axis else "between devices"
        raise AssertionError(f"the program sends {format_bytes(sum(one.bytes for one in found))} {along}:\n{shown}")


def assert_communication(fn: Any, /, *args: Any, at_most: int | Mapping[str, int], **kwargs: Any) -> None:
    """Asserts that a program sends at most so many bytes.

    Args:
        fn: As for `communication_report`.
        args: The arguments of the function.
        at_most: The bytes that a device may have from all collectives, or from those of each kind or along each axis:
            `{"all-gather": 2**20, "model": 0}`.
        kwargs: The keyword arguments of the function.

    Raises:
        AssertionError: If it sends more; the text has the largest collectives.
        ValueError: If a key is no kind of collective, and neither the mesh nor the arguments have such an axis, there
            is no mesh of several devices, or a limit is negative.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 8, "embed": 4}))
        ...     nym.planner.assert_communication(
        ...         lambda x: nym.sum(x, "batch"), x, at_most={"all-reduce": 16, "all-gather": 0}
        ...     )
    """
    limits = at_most if isinstance(at_most, Mapping) else {None: at_most}
    for what, limit in limits.items():
        if not isinstance(limit, int | float) or not limit >= 0:
            raise ValueError(
                f"`at_most` is a number of bytes, 0 or more; it was {limit!r}{f' for {what!r}' if what else ''}"
            )
    report = _report_on_mesh(fn, args, kwargs)
    for what, limit in limits.items():
        found = report.select(kind=what) if what in COLLECTIVE_KINDS else report.select(axis=what)
        size = sum(one.bytes for one in found)
        if size > limit:
            shown = _format_collectives(report, found)
            of = f" in {what!r}" if what else ""
            raise AssertionError(
                f"a device has {format_bytes(size)} from collectives{of}, more than the {format_bytes(limit)} that are "
                f"allowed:\n{shown}"
            )


def _report_on_mesh(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CommunicationReport:
    """Returns the report of a program; raises an error if it is for one device, where nothing could be found."""
    report = communication_report(fn, *args, **kwargs)
    if not report.collectives and math.prod(report.mesh.values()) == 1:
        raise ValueError(
            "the program is for one device, which sends nothing; set a mesh of several devices (`jax.set_mesh`) and an "
            "`axis_mapping` around the assertion, or pass what `compile_for` returns"
        )
    return report


def _format_collectives(report: CommunicationReport, found: tuple[Collective, ...]) -> str:
    """Returns the table of some collectives of a report."""
    return CommunicationReport(found, report.mesh, report.platform).table(10)
