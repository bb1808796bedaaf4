"""`AxisMapping`: the value that says which mesh axes each named axis is divided over."""

import copy
import pickle

import pytest

import axonym as nym


class Rule:
    """A fallback rule that equals no other, wherever it was copied from, with a repr that never changes."""

    def __repr__(self):
        return "Rule()"

    def apply(self, array):
        return None


def test_order_and_spelling_do_not_matter():
    one = nym.AxisMapping({"batch": "data", "mlp": ["model"], "vocab": ["data", "model"]})
    other = nym.AxisMapping({"vocab": ("data", "model"), "mlp": "model", "batch": ("data",)})
    assert one == other
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1


@pytest.mark.parametrize("nothing", [None, (), []])
def test_no_mesh_axis_is_the_same_as_no_entry(nothing):
    mapping = nym.AxisMapping({"batch": "data", "embed": nothing})
    assert mapping == nym.AxisMapping({"batch": "data"})
    assert hash(mapping) == hash(nym.AxisMapping({"batch": "data"}))
    assert list(mapping) == ["batch"]
    assert len(mapping) == 1
    assert "embed" not in mapping


@pytest.mark.parametrize(
    "other",
    [
        nym.AxisMapping({"batch": "model"}),
        nym.AxisMapping({"bench": "data"}),
        nym.AxisMapping({"batch": ("data", "model")}),
        nym.AxisMapping({"batch": "data", "embed": "model"}),
        nym.AxisMapping({"batch": "data"}, uneven="replicate"),
        nym.AxisMapping({"batch": "data"}, fallback=Rule()),
        nym.AxisMapping(),
        {"batch": "model"},
        "batch",
    ],
    ids=str,
)
def test_what_says_something_else_is_unequal(other):
    assert nym.AxisMapping({"batch": "data"}) != other


def test_the_order_of_mesh_axes_matters():
    assert nym.AxisMapping({"batch": ("data", "model")}) != nym.AxisMapping({"batch": ("model", "data")})


def test_equals_a_plain_mapping_with_its_entries():
    assert nym.AxisMapping({"batch": ("data",), "mlp": None}) == {"batch": "data"}
    assert dict(nym.AxisMapping({"batch": ("data", "model")})) == {"batch": ("data", "model")}


def test_says_the_mesh_axes_of_a_name():
    mapping = nym.AxisMapping({"batch": ["data", "model"], "mlp": "model"})
    assert mapping["batch"] == ("data", "model")
    assert mapping["mlp"] == "model"
    assert mapping.mesh_axes("batch") == ("data", "model")
    assert mapping.mesh_axes("mlp") == ("model",)
    assert mapping.mesh_axes("embed") == ()
    with pytest.raises(KeyError, match="embed"):
        mapping["embed"]


def test_tells_an_entry_that_is_none_from_no_entry():
    mapping = nym.AxisMapping({"batch": "data", "embed": None})
    assert [mapping.knows(name) for name in ("batch", "embed", "mlp")] == [True, True, False]


def test_is_true_if_it_says_anything():
    assert nym.AxisMapping({"batch": "data"})
    assert nym.AxisMapping({}, fallback=Rule())
    assert not nym.AxisMapping({"batch": None}, uneven="replicate")


def test_merged_replaces_adds_and_removes():
    rule = Rule()
    mapping = nym.AxisMapping({"batch": "data", "mlp": "model", "pos": None}, fallback=rule, uneven="replicate")
    merged = mapping.merged({"mlp": None, "batch": "model", "vocab": "data"})
    assert merged == nym.AxisMapping({"batch": "model", "vocab": "data"}, fallback=rule, uneven="replicate")
    assert merged.knows("pos")
    assert merged.knows("mlp")
    assert mapping == nym.AxisMapping({"batch": "data", "mlp": "model"}, fallback=rule, uneven="replicate")
    assert mapping.merged({}, uneven="error") == nym.AxisMapping({"batch": "data", "mlp": "model"}, fallback=rule)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles_say_the_same(copied):
    mapping = nym.AxisMapping({"batch": ("data", "model"), "pos": None}, uneven="replicate")
    assert copied(mapping) == mapping
    assert copied(mapping).knows("pos")


def test_a_pickled_mapping_is_hashed_anew():
    """Hashes of strings differ between processes, as those of the fallback do here."""
    mapping = pickle.loads(pickle.dumps(nym.AxisMapping({"batch": "data"}, fallback=Rule())))
    assert hash(mapping) == hash(nym.AxisMapping({"batch": "data"}, fallback=mapping.fallback))


@pytest.mark.parametrize("name", ["uneven", "fallback", "other"])
def test_never_changes(name):
    with pytest.raises(
        AttributeError, match=f"An `AxisMapping` never changes, so '{name}' cannot be set; use `merged`"
    ):
        setattr(nym.AxisMapping(), name, "replicate")


class Unhashable(Rule):
    __hash__ = None


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("data", r"A `fallback` is a `ShardingRule`, or an object whose `apply\(array\)` returns a .*, not 'data'"),
        (
            Rule,
            r"A `fallback` is a `ShardingRule`, or an object whose `apply\(array\)` returns a `PartitionSpec`, not ",
        ),
        (Unhashable(), "is part of the key of compiled functions, and a Unhashable is not hashable; make it a frozen"),
    ],
    ids=["string", "class", "unhashable"],
)
def test_what_is_no_rule_is_an_error(rule, text):
    for make in (nym.AxisMapping, nym.axis_mapping):
        with pytest.raises(TypeError, match=text):
            make({}, fallback=rule)


def test_shows_what_it_says():
    assert repr(nym.AxisMapping({"batch": ["data"], "mlp": None})) == "AxisMapping({'batch': 'data'})"
    assert repr(nym.AxisMapping({}, fallback=Rule(), uneven="replicate")) == (
        "AxisMapping({}, fallback=Rule(), uneven='replicate')"
    )


@pytest.mark.parametrize(
    ("entries", "error", "text"),
    [
        ({1: "data"}, TypeError, "A mapping goes from names of axes to mesh axes, but 1 is not a name"),
        (
            {nym.Axis("batch", 8): "data"},
            TypeError,
            r"A mapping goes from names of axes to mesh axes, but Axis\(name='batch', size=8\) is not a name",
        ),
        (
            {"batch": 3},
            TypeError,
            "Axis 'batch' is mapped to 3; give a mesh axis, several of them, or None",
        ),
        (
            {"batch": ("data", None)},
            TypeError,
            r"Axis 'batch' is mapped to \('data', None\); give a mesh axis, several of them, or None",
        ),
        ({"batch": {"data"}}, TypeError, "Axis 'batch' is mapped to {'data'}; give a mesh axis"),
        (
            {"batch": ["data", "data"]},
            ValueError,
            r"axis 'batch' is mapped to \('data', 'data'\), which names a mesh axis twice",
        ),
    ],
)
def test_wrong_entries_are_errors(entries, error, text):
    with pytest.raises(error, match=text):
        nym.AxisMapping(entries)
    with pytest.raises(error, match=text):
        nym.axis_mapping(entries)
    with pytest.raises(error, match=text):
        nym.pspec_for_axis("pos", entries)


def test_wrong_options_are_errors():
    with pytest.raises(ValueError, match="`uneven` is 'error' or 'replicate', not 'replicat'"):
        nym.AxisMapping({}, uneven="replicat")
    with pytest.raises(ValueError, match="`uneven` is 'error' or 'replicate', not 'pad'"):
        nym.axis_mapping({}, uneven="pad")


def test_what_is_no_mapping_is_refused():
    with pytest.raises(TypeError, match="A mapping goes from names to mesh axes"):
        nym.axis_mapping([("batch", "data")])
