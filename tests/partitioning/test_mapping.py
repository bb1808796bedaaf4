"""`AxisMapping`, which mesh axes each named axis is divided over, and `axis_mapping`, which makes one active."""

import copy
import functools
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import axonym as nym
from axonym._ground.caches import CACHE_SIZE
from tests.partitioning.arrays import on_auto
from tests.refusals import refusal


def rebuild_by_pickling(x):
    return pickle.loads(pickle.dumps(x))


REBUILD = pytest.mark.parametrize("rebuild", [copy.copy, copy.deepcopy, rebuild_by_pickling])


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


def test_what_says_something_else_is_unequal():
    entries = {"batch": "data"}
    others = [nym.AxisMapping(entries, uneven="replicate"), nym.AxisMapping(entries, fallback=Rule()), "batch"]
    others += [{"batch": "model"}, {"bench": "data"}, {"batch": ("data", "model")}, {**entries, "embed": "model"}, {}]
    for other in others:
        assert nym.AxisMapping(entries) != other


def test_says_the_mesh_axes_of_a_name():
    mapping = nym.AxisMapping({"batch": ["data", "model"], "mlp": "model", "pos": None})
    assert mapping == {"batch": ("data", "model"), "mlp": "model"} == dict(mapping)
    assert mapping != nym.AxisMapping({"batch": ("model", "data"), "mlp": "model"})
    assert [mapping.mesh_axes(name) for name in ("batch", "mlp", "embed")] == [("data", "model"), ("model",), ()]
    assert [mapping.knows(name) for name in ("batch", "pos", "embed")] == [True, True, False]
    with pytest.raises(KeyError, match="embed"):
        mapping["embed"]


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


@REBUILD
def test_copies_and_pickles_say_the_same(rebuild):
    mapping = nym.AxisMapping({"batch": ("data", "model"), "pos": None}, uneven="replicate")
    assert rebuild(mapping) == mapping
    assert rebuild(mapping).knows("pos")


def test_a_pickled_mapping_is_hashed_anew():
    """Hashes of strings differ between processes, as those of the fallback do here."""
    mapping = pickle.loads(pickle.dumps(nym.AxisMapping({"batch": "data"}, fallback=Rule())))
    assert hash(mapping) == hash(nym.AxisMapping({"batch": "data"}, fallback=mapping.fallback))


def test_never_changes():
    with refusal("An `AxisMapping` never changes, so 'uneven' cannot be set; use `merged`", AttributeError):
        nym.AxisMapping().uneven = "replicate"


class Unhashable(Rule):
    __hash__ = None


NO_RULE = "A `fallback` is a `ShardingRule`, or an object whose `apply(array)` returns a `PartitionSpec`, not "
NO_HASH = "compiled functions, and a Unhashable is not hashable; make it a f"
NO_NAME = "A mapping goes from names of axes to mesh axes, but "
NO_MESH_AXIS = "Axis 'batch' is mapped to "


@pytest.mark.parametrize(
    ("entries", "options", "error", "text"),
    [
        ({}, {"fallback": "data"}, TypeError, NO_RULE + "'data'"),
        ({}, {"fallback": Rule}, TypeError, NO_RULE),
        ({}, {"fallback": Unhashable()}, TypeError, NO_HASH),
        ({}, {"uneven": "replicat"}, ValueError, "`uneven` is 'error' or 'replicate', not 'replicat'"),
        ({1: "data"}, {}, TypeError, NO_NAME + "1 is not a name"),
        ({nym.Axis("batch", 8): "data"}, {}, TypeError, NO_NAME + "Axis(name='batch', size=8) is not a name"),
        ({"batch": 3}, {}, TypeError, NO_MESH_AXIS + "3; give a mesh axis, several of them, or None"),
        ({"batch": ("data", None)}, {}, TypeError, NO_MESH_AXIS + "('data', None); give a mesh axis, several of them"),
        ({"batch": {"data"}}, {}, TypeError, NO_MESH_AXIS + "{'data'}; give a mesh axis"),
        ({"batch": ["data"] * 2}, {}, ValueError, "is mapped to ('data', 'data'), which names a mesh axis twice"),
        ([("batch", "data")], {}, TypeError, "A mapping goes from names to mesh axes"),
    ],
    ids=str,
)
def test_wrong_entries_and_options_are_errors(entries, options, error, text):
    for make in (nym.AxisMapping, nym.axis_mapping):
        with refusal(text, error):
            make(entries, **options)
    if not options:
        with refusal(text, error):
            nym.pspec_for_axis("pos", entries)


def test_shows_what_it_says():
    assert repr(nym.AxisMapping({"batch": ["data"], "mlp": None})) == "AxisMapping({'batch': 'data'})"
    assert repr(nym.AxisMapping({}, fallback=Rule(), uneven="replicate")) == (
        "AxisMapping({}, fallback=Rule(), uneven='replicate')"
    )


# `axis_mapping`, which nests, is used again, keeps threads apart and is part of every jit cache key.


def test_entries_come_from_a_mapping_keywords_or_both():
    with nym.axis_mapping(batch="data"):
        assert nym.current_mapping() == {"batch": "data"}
    with nym.axis_mapping({"batch": "data", "mlp": "data"}, mlp="model"):
        assert nym.current_mapping() == {"batch": "data", "mlp": "model"}
    with nym.axis_mapping({"batch": "data", "mlp": "data"}, mlp=None):
        assert nym.current_mapping() == {"batch": "data"}


def test_the_inner_mapping_replaces_the_outer_one():
    nym.axis_mapping(batch="data")  # is not entered
    assert nym.current_mapping() is None
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        with nym.axis_mapping({"embed": "model"}):
            assert nym.current_mapping() == nym.current_thread_local_mapping() == {"embed": "model"}
        assert nym.current_mapping() == {"batch": "data", "mlp": "model"}
    assert nym.current_mapping() is None


def test_merged_the_inner_entries_win_and_none_unmaps():
    with nym.axis_mapping({"batch": "data", "embed": "model", "mlp": "model"}):
        with nym.axis_mapping({"embed": "data", "mlp": None}, merge=True):
            assert nym.current_mapping() == {"batch": "data", "embed": "data"}
            with nym.axis_mapping(mlp="data", batch=None, merge=True):
                assert nym.current_mapping() == {"embed": "data", "mlp": "data"}
    with nym.axis_mapping({"batch": "data"}, merge=True):
        assert nym.current_mapping() == {"batch": "data"}


def test_merged_the_outer_options_stay_where_the_inner_one_says_nothing():
    rule, other = Rule(), Rule()
    with nym.axis_mapping({"batch": "data"}, fallback=rule, uneven="replicate"):
        with nym.axis_mapping(mlp="model", merge=True):
            assert nym.current_mapping() == nym.AxisMapping(
                {"batch": "data", "mlp": "model"}, fallback=rule, uneven="replicate"
            )
        with nym.axis_mapping(merge=True, fallback=other, uneven="error"):
            assert nym.current_mapping() == nym.AxisMapping({"batch": "data"}, fallback=other)
        with nym.axis_mapping(mlp="model"):
            assert nym.current_mapping() == nym.AxisMapping({"mlp": "model"})


def test_an_axis_mapping_brings_its_options_along():
    rule = Rule()
    given = nym.AxisMapping({"batch": "data"}, fallback=rule, uneven="replicate")
    with nym.axis_mapping(given):
        assert nym.current_mapping() == given
    with nym.axis_mapping(given, uneven="error", mlp="model"):
        assert nym.current_mapping() == nym.AxisMapping({"batch": "data", "mlp": "model"}, fallback=rule)
    with nym.axis_mapping(batch="model", uneven="replicate"), nym.axis_mapping(nym.AxisMapping(), merge=True):
        assert nym.current_mapping() == nym.AxisMapping({"batch": "model"}, uneven="error")


def test_one_object_can_be_entered_again_and_within_itself():
    mapping, merging = nym.axis_mapping({"batch": "data"}), nym.axis_mapping({"mlp": "model"}, merge=True)
    for _ in range(2):
        with mapping as entered:
            assert entered is mapping
            with nym.axis_mapping({"mlp": "model"}), mapping:
                assert nym.current_mapping() == {"batch": "data"}
            assert nym.current_mapping() == {"batch": "data"}
        assert nym.current_mapping() is None
    for outside in ({"batch": "data"}, {"embed": "data"}):
        with nym.axis_mapping(outside), merging:
            assert nym.current_mapping() == {**outside, "mlp": "model"}


def test_decorates_a_function():
    @nym.axis_mapping({"batch": "data"})
    def depth(n):
        """Counts."""
        assert nym.current_mapping() == {"batch": "data"}
        return 1 + depth(n - 1) if n else 0

    assert depth(3) == 3
    assert depth.__doc__ == "Counts."
    assert nym.current_mapping() is None


def generate():
    yield nym.current_mapping()


async def wait():
    return nym.current_mapping()


async def stream():
    yield nym.current_mapping()


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (generate, r"`generate`: the body of generator functions .* `with axis_mapping\(\.\.\.\):` .* without `yield`"),
        (stream, "`stream`: the body of async generator functions .* without `await` or `yield`"),
        (functools.partial(generate), "the body of generator functions runs after the call, when the mapping is not"),
        (wait, r"`axis_mapping\(\.\.\.\)` cannot decorate `wait`: the body of async functions .* without `await`"),
    ],
    ids=["generator", "async generator", "partial", "async"],
)
def test_a_function_whose_body_runs_after_the_call_cannot_be_decorated(fn, text):
    with pytest.raises(TypeError, match=text):
        nym.axis_mapping({"batch": "data"})(fn)


def test_the_name_of_an_option_is_not_taken_for_an_axis():
    with pytest.raises(
        TypeError, match=r"`merge` .* is True or False, not 'data'; to map an axis named 'merge', put it"
    ):
        nym.axis_mapping(merge="data")
    with nym.axis_mapping({"merge": "data"}, self="model"):
        assert nym.current_mapping() == {"merge": "data", "self": "model"}


@REBUILD
def test_pickled_and_copied_with_its_options_but_not_entered(rebuild):
    with nym.axis_mapping(mlp="model", merge=True) as entered:
        other = rebuild(entered)
    with nym.axis_mapping({"batch": "data"}, uneven="replicate"):
        with other, other:
            assert nym.current_mapping() == nym.AxisMapping({"batch": "data", "mlp": "model"}, uneven="replicate")
        assert nym.current_mapping() == nym.AxisMapping({"batch": "data"}, uneven="replicate")
    assert nym.current_mapping() is None


def test_an_exception_restores_the_outer_mapping():
    @nym.axis_mapping({"embed": "model"})
    def failing():
        raise KeyError("embed")

    with nym.axis_mapping({"batch": "data"}):
        with pytest.raises(KeyError, match="embed"):
            failing()
        assert nym.current_mapping() == {"batch": "data"}


def test_a_new_thread_has_no_mapping():
    with nym.axis_mapping({"batch": "data"}), ThreadPoolExecutor(1) as pool:
        assert pool.submit(nym.current_mapping).result() is None


@pytest.mark.parametrize(
    ("mesh", "compiled"), [("auto", nym.named_jit), ("explicit", jax.jit)], indirect=["mesh"], ids=["named_jit", "jit"]
)
def test_a_changed_mapping_is_traced_once_and_an_equal_one_found_again(mesh, compiled):
    seen = []

    @compiled
    def total(x):  # a scalar result, so that only the mapping can make a difference
        seen.append(nym.current_mapping())
        return nym.auto_sharded(x).sum().array

    x = nym.ones({"batch": 8, "embed": 4})
    by_batch, by_both = nym.AxisMapping({"batch": "data"}), nym.AxisMapping({"batch": "data", "embed": "model"})
    uneven = nym.AxisMapping({"batch": "data"}, uneven="replicate")
    alike = [by_batch, {"batch": "data"}, {"batch": ("data",)}, {"batch": "data", "embed": None}]
    for mapping in [*alike, by_both, {"embed": "model", "batch": "data"}, *alike, by_both, uneven, uneven]:
        with nym.axis_mapping(mapping):
            assert total(x) == 32
    assert total(x) == total(x) == 32
    assert seen == [by_batch, by_both, uneven, None]


@on_auto
def test_a_mapping_is_found_again_whatever_caches_forget(mesh):
    traced = []
    compiled = jax.jit(lambda x: nym.auto_sharded(traced.append(x.shape) or x))
    for number in (0, *range(CACHE_SIZE + 1), 0):
        with nym.axis_mapping({f"axis {number}": "data"}):
            if number == 0:
                compiled(nym.ones({"axis 0": 8}))
    assert traced == [(8,)]


# Names that differ by a slip of a typist are warned of, and names that differ on purpose are not.


@pytest.mark.parametrize(
    ("name", "known"),
    {"bacth": "batch", "batc": "batch", "Embed": "embed", "hidden_dmi": "hidden_dim", "mpl": "mlp"}.items(),
)
def test_a_near_miss_warns_once(name, known):
    text = (
        f"^axis '{name}' is replicated: the mapping has no '{name}', but has '{known}'; correct the name, or map "
        f"'{name}' to None$"
    )
    with pytest.warns(RuntimeWarning, match=text) as caught:
        assert nym.pspec_for_axis((name, "pos"), {known: "data"}) == P(None, None)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nym.pspec_for_axis((name, "key_pos"), {known: "model", "mlp": "data"})
        nym.pspec_for_axis(name, {known: "model", name: None})  # is meant


def test_names_that_differ_on_purpose_do_not_warn():
    pairs = {"pos": "key_pos", "q_head": "q_heads", "heads_per": "head_per", "mlp": "mlp2", "layer1": "layer2"}
    pairs |= {"embed": "embedding", "patch": "batch", "stage": "state", "head_q": "head_k", "head_k": "head_kv"}
    pairs |= {"qhead": "head", "my_qhead": "my_head", "queryx": "queryy", "x": "y", "row": "raw", "h12": "h21"}
    for pair in pairs.items():
        for name, known in (pair, pair[::-1]):
            assert nym.pspec_for_axis(name, {known: "data"}) == P(None)


@pytest.mark.parametrize(
    ("axis", "known"), [("dta", "data"), ("modle", "model"), ("Data", "data"), ("tesnor", "tensor"), ("fspd", "fsdp")]
)
def test_a_slip_in_a_mesh_axis_warns_once(axis, known):
    mesh = AbstractMesh((2, 2), ("batch", known), axis_types=(AxisType.Auto,) * 2)
    text = rf"axis 'mlp' is mapped to mesh axis '{axis}', which the mesh .*; did you mean '{known}'\?"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        for batch in (2, 4):
            nym.sharding_for_axis(nym.Axis("batch", batch), {"batch": "batch", "mlp": axis}, mesh)
    assert len(caught) == 1


def test_mesh_axes_of_other_meshes_do_not_warn():
    for axis, known in {"dp": "fsdp", "tp": "sp", "fsdp": "dp", "data": "data2", "datas": "data", "x": "y"}.items():
        mesh = AbstractMesh((2, 2), ("batch", known), axis_types=(AxisType.Auto,) * 2)
        assert nym.sharding_for_axis("batch", {"batch": "batch", "mlp": axis}, mesh).spec == P("batch")


# Threads.


def test_threads_trace_at_once_under_their_own_mappings(auto_mesh):
    """And none sees the mapping of another, also where all enter one object."""
    x = nym.NamedArray(jax.ShapeDtypeStruct((8, 8, 8), np.float32), ("a", "b", "c"))
    merging = nym.axis_mapping({"c": None}, merge=True)
    start, traced = threading.Barrier(16), set()
    double = nym.named_jit(
        lambda x: traced.add(nym.current_mapping()) or nym.auto_sharded(x + x), retrace_warning=False
    )

    def work(thread):
        start.wait()
        for number in range(thread, thread + 8):
            a, b = (None, "data", "model", ("data", "model"))[number % 4], ("model" if number % 4 == 1 else None)
            assert nym.current_mapping() is None
            mapping = nym.AxisMapping({"a": a, "b": b, f"unused {number % 16}": "data"})
            with jax.set_mesh(auto_mesh), nym.axis_mapping(mapping):
                with merging:
                    assert nym.pspec_for_axis(x.axes) == nym.shard(x).array.sharding.spec == P(a, b, None)
                with pytest.raises(ValueError, match="axis 'a' has size 7"), nym.axis_mapping(a="data"):
                    nym.zeros({"a": 7})
                double.lower(x)
                assert nym.current_mapping() == mapping
        return True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(16)))
    finally:
        sys.setswitchinterval(interval)
    assert len(traced) == 16


def test_jax_searches_its_cache_of_calls_without_code_in_python(auto_mesh):
    """Such code lets another thread run, which may change the cache meanwhile: that crashed."""
    compared = []

    def note_comparison(frame, event, _):
        if event == "call" and frame.f_code.co_name in ("__eq__", "__hash__") and "axonym" in frame.f_code.co_filename:
            compared.append(frame.f_code.co_qualname)

    functions = (
        jax.jit(lambda x, number: x, static_argnums=1),
        nym.named_jit(lambda x, number: x, retrace_warning=False),
    )
    for profile in (None, note_comparison):
        for number, name in enumerate("abcdefghijklmnop"):
            with jax.set_mesh(auto_mesh), nym.axis_mapping({name: "data"}):
                for function in functions:
                    sys.setprofile(profile)
                    function(np.ones(8, np.float32), number // 4)
                    sys.setprofile(None)
    assert not compared
