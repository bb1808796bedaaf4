"""What a type checker infers for axes: pyright checks the assertions here, and pytest runs them."""

from collections.abc import Mapping
from typing import assert_type

import axonym as nym
from axonym import Axis, AxisSelector, axis


A, B = nym.make_axes(a=2, b=3)
PARTIAL: Mapping[str, int | None] = {"a": 2, "b": None}
Partial = tuple[AxisSelector, ...] | Mapping[str, int | None]


def test_names():
    assert_type(nym.axis_name("a"), str)
    assert_type(nym.axis_name(A), str)
    assert_type(nym.axis_name((A, "b")), tuple[str, ...])
    assert_type(nym.axis_name({"a": 2}), tuple[str, ...])


def test_specs():
    assert_type(axis.axis_size({"a": 2}), int)
    assert_type(axis.resolve_axis((A, B), "a"), Axis)
    assert_type(axis.resolve_axis((A, B), ("a", B)), tuple[Axis, ...])
    assert_type(axis.resolve_axis((A, B), {"a": None}), dict[str, int])
    assert_type(axis.unsize_axes((A, B)), tuple[AxisSelector, ...])
    assert_type(axis.unsize_axes({"a": 2}), dict[str, int | None])


def test_algebra():
    assert_type(axis.union_axes({"a": 2}, B), dict[str, int])
    assert_type(axis.union_axes(nym.ones(A).shape, B), dict[str, int])
    assert_type(axis.union_axes(A, {"b": 3}), tuple[Axis, ...])
    assert_type(axis.union_axes([A], (B,)), tuple[Axis, ...])
    assert_type(axis.union_axes(PARTIAL, "c"), Partial)
    assert_type(axis.eliminate_axes((A, B), "a"), tuple[Axis, ...])
    assert_type(axis.without_axes({"a": 2}, ("a", "c")), dict[str, int])
    assert_type(axis.replace_axis((A, B), "a", {"c": 2, "d": 1}), tuple[Axis, ...])
    assert_type(axis.rearrange_for_partial_order(("b", ...), {"a": 2, "b": 3}), dict[str, int])
    assert_type(axis.rearrange_for_partial_order(("b", ...), (A, B)), tuple[Axis, ...])
