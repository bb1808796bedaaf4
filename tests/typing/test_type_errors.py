"""Mistakes that a type checker reports: pyright finds each ignore comment necessary, and pytest runs them."""

import axonym as nym
from tests.refusals import refusal


x = nym.ones({"a": 2, "b": 3})
v = nym.ones({"b": 3})


def test_wrong_arguments_are_type_errors():
    with refusal("`dot` needs `axis=`", TypeError):
        nym.dot(x, v)  # pyright: ignore[reportCallIssue]
    with refusal("`dot` needs `axis=`", TypeError):
        x.dot(v)  # pyright: ignore[reportCallIssue]
    for wrong in (
        lambda: x["a", "b"],  # pyright: ignore[reportArgumentType]
        lambda: x["a", 0, "b", "a"],  # pyright: ignore[reportArgumentType]
        lambda: x.at["a", "b"],  # pyright: ignore[reportArgumentType]
        lambda: x[{"a": "b"}],  # pyright: ignore[reportArgumentType]
        lambda: x["a", None],  # pyright: ignore[reportArgumentType]
    ):
        with refusal("is indexed by integers, not by", TypeError):
            wrong()
    for wrong in (
        lambda: x[0],  # pyright: ignore[reportArgumentType]
        lambda: x["a"],  # pyright: ignore[reportArgumentType]
        lambda: x[:, 0],  # pyright: ignore[reportArgumentType]
        lambda: x["a", 0, "b"],  # pyright: ignore[reportArgumentType]
    ):
        with refusal("an index names its axes"):
            wrong()
    with refusal("no attribute 'T'", AttributeError):
        _ = x.T  # pyright: ignore[reportAttributeAccessIssue]
    with refusal("no attribute 'reshape'", AttributeError):
        _ = nym.reshape  # pyright: ignore[reportAttributeAccessIssue]
