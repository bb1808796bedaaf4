"""`axonym.haliax` returns what Haliax returned, as recorded by `tools/record_haliax.py`."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import pytest

import axonym as nym
import axonym.haliax as hax


FOLDER = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("haliax_expressions", FOLDER / "expressions.py")
assert SPEC is not None and SPEC.loader is not None
EXPRESSIONS: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXPRESSIONS)
RECORDED = json.loads((FOLDER / "recorded.json").read_text())


def assert_same(found: Any, recorded: Any) -> None:
    """Compares two descriptions; numbers may differ by rounding."""
    if isinstance(recorded, list) and isinstance(found, list):
        assert len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            assert_same(one, other)
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, abs=3e-3)
    else:
        assert found == recorded


@pytest.mark.parametrize("expression", RECORDED)
def test_result_is_that_of_haliax(expression: str):
    with jax.numpy_rank_promotion("allow"):
        assert_same(EXPRESSIONS.describe(eval(expression, EXPRESSIONS.make_names(hax))), RECORDED[expression])


@pytest.mark.parametrize("row", EXPRESSIONS.list_documented(), ids=lambda row: row[0])
def test_documented_differences_hold(row: tuple[str, str, str]):
    expression, in_haliax, here = row
    recorded = RECORDED[expression]
    assert (recorded if isinstance(recorded, str) else str(recorded)) == in_haliax
    assert EXPRESSIONS.describe(eval(expression, EXPRESSIONS.make_names(nym))) == here
    assert in_haliax != here


def test_page_documents_differences():
    assert len(EXPRESSIONS.list_documented()) >= 10
