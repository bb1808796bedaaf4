"""Wrong types, sizes and orders of arguments of reports are errors of one sentence, with value and next step."""

from re import escape

import jax
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym
from axonym.report import LayerTime, TimeByLayer


MESH = nym.create_abstract_mesh((4, 2), ("data", "model"))
ANALYZER = nym.ShardingAnalyzer(MESH)
TREE = {"w": jax.ShapeDtypeStruct((8, 4), "float32")}
SPECS = {"w": P("data")}
X = nym.NamedArray(TREE["w"], ("batch", "embed"))
TIMES = TimeByLayer((LayerTime("up", 0.1, 0.0, 1.0, 1),), 1, ("jit_step",))
NO_MESH = "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 'data'."
SWAPPED = "The first argument has `PartitionSpec`s in place of arrays; the specs are the second one."


def make_report():
    return ANALYZER.sharding_report(TREE, SPECS)


WRONG = {
    "explain: a mesh axis": (lambda: nym.explain(X, {"batch": "data"}, "data"), TypeError, NO_MESH),
    "explain: a mesh axis, no mapping": (lambda: nym.explain(X, mesh="data"), TypeError, NO_MESH),
    "explain: swapped": (lambda: nym.explain({"batch": "data"}, X, MESH), TypeError, "A mapping goes from names to"),
    "analyzer: a mesh axis": (lambda: nym.ShardingAnalyzer("data"), TypeError, NO_MESH),
    "report: swapped": (lambda: ANALYZER.sharding_report(SPECS, TREE), TypeError, SWAPPED),
    "validate: swapped": (lambda: ANALYZER.validate_partition_specs(SPECS, TREE), TypeError, SWAPPED),
    "estimate: swapped": (lambda: ANALYZER.estimate_memory_usage(SPECS, TREE), TypeError, SWAPPED),
    "depth: text": (
        lambda: ANALYZER.sharding_report(TREE, depth="2"),
        TypeError,
        "`depth` is the number of keys of a path that make a group, an integer; it was '2'.",
    ),
    "depth: negative": (lambda: ANALYZER.sharding_report(TREE, depth=-1), ValueError, "make a group; it was -1."),
    "largest: text": (
        lambda: make_report().largest_replicated("2"),
        TypeError,
        "`n` is the number of arrays to return, an integer; it was '2'.",
    ),
    "largest: float": (lambda: make_report().largest_replicated(1.5), TypeError, "an integer; it was 1.5."),
    "limit: text": (
        lambda: make_report().table("2"),
        TypeError,
        "`limit` is the number of arrays to show, or None for all, an integer; it was '2'.",
    ),
    "limit of layers: True": (lambda: TIMES.table(True), TypeError, "`limit` is the number of layers to show"),
    "compare: a tree": (lambda: ANALYZER.compare(make_report(), TREE), TypeError, "`compare` takes two `ShardingRe"),
    "page: no path": (lambda: make_report().to_html(None), TypeError, "The page needs the path of a file, not None."),
    "page: title": (
        lambda: make_report().to_html("report.html", title=3),
        TypeError,
        "`title` is the heading of the page, a string, not 3.",
    ),
    "lock: no path": (lambda: make_report().save_lock(None), TypeError, "The lock needs the path of a file, not None."),
    "lock: swapped": (
        lambda: nym.assert_sharding_lock("a.lock", TREE),
        TypeError,
        "The sharding lock needs the path of a file, not {'w': ",
    ),
    "monitor: swapped": (lambda: nym.create_monitored_function(ANALYZER, P(), abs), TypeError, "`fn` is a function to"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_of_reports_are_explained(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=escape(text)):
        call()
