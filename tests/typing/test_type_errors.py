"""Mistakes that a type checker reports: pyright finds each ignore comment necessary, and pytest runs them."""

import pytest

import axonym as nym


x = nym.ones({"a": 2, "b": 3})
v = nym.ones({"b": 3})


def test_wrong_arguments_are_type_errors():
    with pytest.raises(TypeError, match="`dot` needs `axis=`"):
        nym.dot(x, v)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="`dot` needs `axis=`"):
        x.dot(v)  # pyright: ignore[reportCallIssue]
    for wrong in (
        lambda: x["a", "b"],  # pyright: ignore[reportArgumentType]
        lambda: x["a", 0, "b", "a"],  # pyright: ignore[reportArgumentType]
        lambda: x.at["a", "b"],  # pyright: ignore[reportArgumentType]
        lambda: x[{"a": "b"}],  # pyright: ignore[reportArgumentType]
        lambda: x["a", None],  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(TypeError, match="is indexed by integers, not by"):
            wrong()
    for wrong in (
        lambda: x[0],  # pyright: ignore[reportArgumentType]
        lambda: x["a"],  # pyright: ignore[reportArgumentType]
        lambda: x[:, 0],  # pyright: ignore[reportArgumentType]
        lambda: x["a", 0, "b"],  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(ValueError, match="an index names its axes"):
            wrong()
    with pytest.raises(AttributeError, match="no attribute 'T'"):
        _ = x.T  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="no attribute 'reshape'"):
        _ = nym.reshape  # pyright: ignore[reportAttributeAccessIssue]
