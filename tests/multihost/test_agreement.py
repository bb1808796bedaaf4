"""`assert_same_on_all_hosts` with one process; `test_processes.py` has several."""

import pytest

import axonym as nym


def test_one_process_agrees_with_itself():
    nym.assert_same_on_all_hosts({"x": nym.ones({"batch": 2}), "name": "run"}, "tree")


def test_a_name_is_not_empty():
    with pytest.raises(ValueError, match="`name` is empty; pass a name, or None"):
        nym.assert_same_on_all_hosts(1, "")


def test_a_value_without_content_is_refused():
    with pytest.raises(TypeError, match="an object of type `generator` has no content that another process could"):
        nym.assert_same_on_all_hosts({"rows": (row for row in ())})
