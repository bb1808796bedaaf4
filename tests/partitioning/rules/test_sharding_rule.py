"""What holds of every sharding rule, rules of one's own, and several rules as one, of which the first decides.

Shapes and meshes are drawn at random from awkward ones, and JAX judges each spec.
"""

import copy
import dataclasses
import functools
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from ...processes import run
from ...refusals import refusal


MESHES, LEAVES = 150, 8

# Names of mesh axes as people have them, and as they may have them.
NAMES = ("dp", "fsdp", "ep", "tp", "sp", "data", "model", "x y", "0", "größe", "Batch", "a/b", "None", "stage" * 9)
ROLES = ("tensor", "fsdp", "expert", "batch")
AXIS_SIZES = (1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 16, 32)
PRIMES = (2, 3, 5, 7, 11, 13, 31, 127, 257, 1009, 50257, 10131227)
ROUND = (2, 4, 8, 12, 16, 24, 48, 64, 96, 128, 384, 512, 768, 1000, 4096, 14336, 50304)
KEYS = ("q_proj", "o_proj", "up", "down", "kernel", "weight", "bias", "scale", "embed", "lm_head", "router", "experts")


class Case(NamedTuple):
    """One mesh, arrays to divide over it, the mesh axes that may do so, and the mesh by which JAX judges."""

    mesh: Mesh | AbstractMesh
    leaves: list[jax.ShapeDtypeStruct]
    tree: Any
    axes: dict[str, int]
    judge: Mesh | AbstractMesh


def drawn_mesh(random: np.random.Generator) -> Mesh | AbstractMesh:
    """A mesh of one to six axes and at most 512 devices, some Explicit, seldom Manual; a small one may have devices."""
    names = tuple(str(name) for name in random.permutation(NAMES)[: random.integers(1, 7)])
    sizes: list[int] = []
    for _ in names:
        fitting = [size for size in AXIS_SIZES if size * math.prod(sizes) <= 512]
        sizes.append(int(random.choice(fitting)))
    random.shuffle(sizes)
    kinds = (AxisType.Auto, AxisType.Explicit, AxisType.Manual)
    types = tuple(kinds[at] for at in random.choice(3, size=len(names), p=(0.6, 0.35, 0.05)))
    count = math.prod(sizes)
    if count <= 8 and AxisType.Manual not in types and random.random() < 0.5:
        return Mesh(np.array(jax.devices()[:count]).reshape(sizes), names, axis_types=types)
    return AbstractMesh(tuple(sizes), names, axis_types=types)


def drawn_shape(random: np.random.Generator, axes: dict[str, int]) -> tuple[int, ...]:
    """A shape of rank 0 to 6: primes, round sizes, small ones, products of mesh axes, now and then a zero."""

    def size() -> int:
        kind = random.random()
        if kind < 0.02:
            return 0
        if kind < 0.2:
            return int(random.integers(1, 10))
        if kind < 0.35:
            return int(random.choice(PRIMES))
        if kind < 0.6:
            return int(random.choice(ROUND))
        chosen = [size for size in axes.values() if random.random() < 0.5]
        return math.prod(chosen) * int(random.integers(1, 8))

    return tuple(size() for _ in range(random.integers(0, 7)))


@functools.cache
def cases() -> tuple[Case, ...]:
    random = np.random.default_rng(20)
    drawn = []
    for _ in range(MESHES):
        mesh = judge = drawn_mesh(random)
        if AxisType.Manual in mesh.axis_types:  # with which JAX fails on good specs, too
            judge = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        axes = {name: size for name, size in mesh.shape.items() if size > 1 and types[name] != AxisType.Manual}
        leaves = [jax.ShapeDtypeStruct(drawn_shape(random, axes), jnp.float32) for _ in range(LEAVES)]
        tree = [{str(key): leaf} for key, leaf in zip(random.choice(KEYS, size=LEAVES), leaves, strict=True)]
        drawn.append(Case(mesh, leaves, tree, axes, judge))
    return tuple(drawn)


def entries(spec: P) -> list[tuple[str, ...]]:
    """The mesh axes on each dimension that a spec names."""
    return [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec]


def as_far_as_possible(case: Case) -> Any:
    """What the rule for a limit of memory gives when it cannot hold it: the best there is, with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return nym.MemoryConstrainedShardingRule(1, case.mesh, on_excess="warn").apply(case.tree)


def by_roles(case: Case) -> Any:
    """The rule of roles, each of the mesh axes in one."""
    names = case.mesh.axis_names
    roles: dict[str, Any] = {role: tuple(names[at :: len(ROLES)]) for at, role in enumerate(ROLES)}
    return nym.RoleShardingRule(case.mesh, **roles).apply(case.tree)


def by_composite(case: Case) -> Any:
    rule = nym.CompositeShardingRule(
        nym.PathShardingRule({"bias|scale": P()}), nym.AutoShardingRule(case.mesh, min_shard_size=10**6, reverse=True)
    )
    return rule.apply(case.tree)


def shape_patterns(case: Case) -> dict[tuple[int | None, ...], P]:
    """Patterns for arrays of one rank each: two mesh axes on the first axis, if there are, and one on the last."""
    last, *first = [*case.axes, None][:3]
    specs = {rank: P(tuple(filter(None, first)), *[None] * (rank - 2), last) for rank in range(2, 7)}
    return {(None,) * rank: spec for rank, spec in {1: P(last), **specs}.items()}


def by_shape(case: Case) -> Any:
    """The rule of shapes in force of a mesh, which leaves out mesh axes that do not divide."""
    with jax.sharding.use_abstract_mesh(case.mesh.abstract_mesh):
        return nym.ShapeBasedShardingRule(shape_patterns(case), uneven="replicate").apply(case.tree)


STRATEGIES: dict[str, Callable[[Case], Any]] = {
    "auto": lambda case: nym.AutoShardingRule(case.mesh, min_shard_size=1).apply(case.tree),
    "some axes": lambda case: nym.AutoShardingRule(case.mesh, list(case.mesh.axis_names[::2])).apply(case.tree),
    "helper": lambda case: nym.MeshPartitionHelper(case.mesh).partition_specs(case.tree),
    "memory": as_far_as_possible,
    "roles": by_roles,
    "shapes": by_shape,
    "composite": by_composite,
}


def pairs(strategy: str) -> Iterator[tuple[Case, jax.ShapeDtypeStruct, P]]:
    for case in cases():
        specs = jax.tree.leaves(STRATEGIES[strategy](case), is_leaf=lambda node: isinstance(node, P))
        for leaf, spec in zip(case.leaves, specs, strict=True):
            yield case, leaf, spec


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_jax_accepts_every_spec_and_each_mesh_axis_in_it_divides(strategy: str):
    kinds: Counter[str] = Counter()
    for case, leaf, spec in pairs(strategy):
        names = [name for entry in entries(spec) for name in entry]
        parts = math.prod(case.axes[name] for name in names)
        assert math.prod(NamedSharding(case.judge, spec).shard_shape(leaf.shape)) * parts == leaf.size
        assert len(set(names)) == len(names)
        if strategy == "some axes":
            assert set(names) <= set(case.mesh.axis_names[::2])
        if strategy != "shapes":  # These stay as they are written.
            assert len(spec) == (leaf.ndim if names else 0)
        kinds["whole"] += leaf.ndim > 0 and parts == 1 < math.prod(case.axes.values())
        kinds["several axes on one dimension"] += any(len(entry) > 1 for entry in entries(spec))
        kinds["several dimensions"] += sum(bool(entry) for entry in entries(spec)) > 1
    assert min(kinds[kind] for kind in ("whole", "several axes on one dimension", "several dimensions")) > 20, kinds


PROCESSES = """
import hashlib
import numpy as np
from benchmarks.models import MODELS

start()
mesh = nym.create_mesh((2, 1, 4), ("data", "one", "model"))
assert mesh.size == 8 and len(jax.local_devices()) == 4
tree = MODELS["gpt2-small"]()
plans = [
    nym.AutoShardingRule(mesh).apply(tree),
    nym.MeshPartitionHelper(mesh).partition_specs(tree),
    nym.MeshPartitionHelper(mesh).analyze_pytree(tree),
    nym.MemoryConstrainedShardingRule(70 * 2**20, mesh).apply(tree),
    nym.RoleShardingRule(mesh, tensor="model", batch="data").apply(tree),
]
print("plans", hashlib.sha256(repr(plans).encode()).hexdigest())
rows = np.arange(128.0, dtype=np.float32)
x = nym.MeshPartitionHelper(mesh).auto_shard_pytree({"rows": rows, "name": "rows"}, 1)["rows"]
assert [shard.data.shape for shard in x.addressable_shards] == [(16,)] * 4
assert float(jax.jit(lambda x: x.sum(), out_shardings=jax.sharding.NamedSharding(mesh, jax.P()))(x)) == 8128
"""


@pytest.mark.thorough
def test_processes_of_any_hash_seed_plan_the_same_and_divide_one_array():
    """Sets are ordered by hashes, which differ from process to process."""
    outputs = run(PROCESSES, devices=4, environment=[{"PYTHONHASHSEED": seed} for seed in ("1", "2")])
    plans = [[line for line in output.splitlines() if line.startswith("plans ")] for output in outputs]
    assert len(plans[0]) == 1
    assert plans[0] == plans[1]


class Rows(nym.ShardingRule):
    """Divides the first axis of each matrix."""

    def apply(self, pytree):
        return jax.tree.map(lambda x: P("data") if x.ndim > 1 else P(), pytree)


@dataclasses.dataclass(frozen=True)
class Named(nym.ShardingRule):
    """A rule with an attribute."""

    axis: str

    def apply(self, pytree):
        return jax.tree.map(lambda x: P(self.axis), pytree)


def test_a_rule_has_to_have_apply():
    with pytest.raises(TypeError, match="apply"):
        nym.ShardingRule()


def test_an_empty_spec_of_a_rule_with_apply_alone_says_nothing():
    specs = {"a": P(), "b": P(None, None), "c": P(None, "data"), "d": None, "e": [P((), None)], "f": P(P.UNCONSTRAINED)}
    decided = Given(specs, whole=True).decide(specs)
    assert decided == {"a": None, "b": None, "c": P(None, "data"), "d": None, "e": [None], "f": P(P.UNCONSTRAINED)}


def test_rules_of_ones_own_are_shown_compared_and_copied():
    rule = Rows()
    assert repr(rule) == "Rows()"
    rule.axis = "data"
    assert repr(rule) == "Rows(axis='data')"
    assert repr(Named("data")) == "Named(axis='data')"
    assert Named("data") == pickle.loads(pickle.dumps(Named("data")))
    assert len({Named("data"), Named("data"), Named("model")}) == 2


def test_specs_in_place_of_a_named_array_count_as_its_spec():
    tree = {"x": nym.ones({"a": 4, "b": 8}), "y": np.ones((2, 2))}
    assert nym.CompositeShardingRule(Rows()).apply(tree) == {"x": P("data"), "y": P("data")}


# Several rules as one


class Given(nym.ShardingRule):
    """Gives whatever it is told to, for each array or for the whole tree."""

    def __init__(self, spec, whole=False):
        self.spec, self.whole = spec, whole

    def apply(self, pytree):
        return self.spec if self.whole else jax.tree.map(lambda _: self.spec, pytree)


TREE = {"attn": np.ones((4, 8), np.float32), "norm": np.ones(8, np.float32), "mlp": [np.ones((4, 8), np.float32), None]}
SHAPES = nym.ShapeBasedShardingRule({(None, 8): P("data", None), (8,): P("model")})


def test_the_first_rule_that_decides_is_followed_and_a_matched_empty_spec_decides():
    attention = nym.PathShardingRule([("attn", P(None, "model"))])
    rule = nym.CompositeShardingRule(attention, SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, "model"), "norm": P("model"), "mlp": [P("data", None), None]}
    rule = nym.CompositeShardingRule(nym.PathShardingRule([("norm|mlp", P())]), SHAPES)
    assert rule.apply(TREE) == {"attn": P("data", None), "norm": P(), "mlp": [P(), None]}
    rule = nym.CompositeShardingRule(nym.ShapeBasedShardingRule({(None, 8): P(None, None)}), SHAPES)
    assert rule.apply(TREE) == {"attn": P(None, None), "norm": P("model"), "mlp": [P(None, None), None]}
    rule = nym.CompositeShardingRule(attention)
    assert rule.apply(TREE) == {"attn": P(None, "model"), "norm": P(), "mlp": [P(), None]}
    assert rule.decide(TREE) == {"attn": P(None, "model"), "norm": None, "mlp": [None, None]}


def test_a_composite_may_be_part_of_another():
    inner = nym.CompositeShardingRule(nym.PathShardingRule([("norm", P())]), Given(P()))
    rule = nym.CompositeShardingRule(inner, SHAPES)
    assert rule.apply(TREE) == {"attn": P("data", None), "norm": P(), "mlp": [P("data", None), None]}
    assert rule.rules == (inner, SHAPES)


def test_a_strict_rule_leaves_to_others_what_it_does_not_match():
    strict = nym.PathShardingRule([("attn", P("data"))], strict=True)
    assert nym.CompositeShardingRule(strict, SHAPES).apply(TREE)["norm"] == P("model")
    with pytest.raises(ValueError, match=r"the strict `PathShardingRule` .* pattern 'attn' matches no array"):
        nym.CompositeShardingRule(strict, SHAPES).apply({"mlp": np.ones(8)})


def test_a_subclass_that_decides_in_another_way_is_asked_for_that():
    class Turned(nym.ShapeBasedShardingRule):
        def apply(self, pytree):
            return jax.tree.map(lambda _: P("model"), pytree)

    class Keeps(nym.ShapeBasedShardingRule):
        def decide(self, pytree):
            return jax.tree.map(lambda _: P(), pytree)

    assert nym.CompositeShardingRule(Keeps({}), SHAPES).apply(TREE) == {"attn": P(), "norm": P(), "mlp": [P(), None]}
    rule = nym.CompositeShardingRule(Turned({(8,): P("data")}))
    assert rule.apply(TREE) == {"attn": P("model"), "norm": P("model"), "mlp": [P("model"), None]}


def test_an_error_names_the_rule_that_decided(mesh):
    by_path = nym.PathShardingRule([("norm", P("data"))])
    own, nested = Given(P("data")), nym.CompositeShardingRule(Given(P("data")))
    named_own = "the rule `Given`"
    for rule, name in [(by_path, "the pattern 'norm' of a `PathShardingRule`"), (own, named_own), (nested, named_own)]:
        text = f"['norm']: {name} gives P('data',) for shape (6,): dimension 0 has size 6, which is not divisible by"
        with refusal(text):
            nym.CompositeShardingRule(rule, SHAPES).apply({"norm": jax.ShapeDtypeStruct((6,), jnp.float32)})


MESH = AbstractMesh((4, 2), ("data", "model"))
PAIR = {name: jax.ShapeDtypeStruct((1024, 64), jnp.float32) for name in "ab"}  # 262,144 bytes each
WHOLE_A = nym.PathShardingRule({"a": P()})


def limited(limit, **options):
    return nym.MemoryConstrainedShardingRule(limit, MESH, **options)


def test_a_limit_counts_what_other_rules_have_decided():
    flat = nym.CompositeShardingRule
    for nested in (
        flat,
        lambda first, second: flat(first, flat(second)),
        lambda first, second: flat(flat(first), second),
    ):
        assert nested(WHOLE_A, limited(300_000)).apply(PAIR) == {"a": P(), "b": P("data", "model")}
        assert nested(WHOLE_A, limited(393_216)).apply(PAIR) == {"a": P(), "b": P("model", None)}
        halved = nym.PathShardingRule({"a": P("model")}, uneven="replicate")
        assert nested(halved, limited(393_216)).apply(PAIR) == {"a": P("model"), "b": P()}
        with refusal("need 294,912 bytes on each device, 262,144 of them of arrays whose specs ot"):
            nested(WHOLE_A, limited(294_911)).apply(PAIR)
        with pytest.warns(RuntimeWarning, match="294,812 more than the 100 of"):
            assert nested(WHOLE_A, limited(100, on_excess="warn")).apply(PAIR)["b"] == P("data", "model")


def test_specs_that_do_not_divide_count_as_what_they_leave():
    tree = {"a": jax.ShapeDtypeStruct((6, 64), jnp.float32), "b": jax.ShapeDtypeStruct((64,), jnp.float32)}
    uneven = nym.PathShardingRule({"a": P("data", "model")}, MESH, uneven="replicate")  # 6 x 32 of 4 bytes
    assert nym.CompositeShardingRule(uneven, limited(1024)).apply(tree) == {"a": P(None, "model"), "b": P()}
    assert nym.CompositeShardingRule(uneven, limited(1023)).apply(tree)["b"] == P("model")


def test_rules_after_a_limit_can_only_divide_more_and_one_that_overrides_it_is_asked():
    class Rows(nym.MemoryConstrainedShardingRule):
        def decide(self, pytree):
            return jax.tree.map(lambda _: P("data"), pytree)

    rule = nym.CompositeShardingRule(limited(300_000), nym.PathShardingRule({"a": P(), "b": P("data")}))
    assert rule.apply(PAIR) == {"a": P("data", "model"), "b": P("data")}
    assert nym.CompositeShardingRule(WHOLE_A, Rows(1, MESH)).apply(PAIR) == {"a": P(), "b": P("data")}


def test_what_a_rule_raises_names_it():
    class Fails(nym.ShardingRule):
        def __init__(self, error):
            self.error = error

        def apply(self, pytree):
            raise self.error

    with pytest.raises(ValueError, match=r"^the rule `Fails`: no spec$"):
        nym.CompositeShardingRule(SHAPES, nym.CompositeShardingRule(Fails(ValueError("no spec")))).apply(TREE)
    with pytest.raises(KeyError, match="norm") as caught:
        nym.CompositeShardingRule(SHAPES, Fails(KeyError("norm"))).apply(TREE)
    assert caught.value.__notes__ == ["The rule `Fails` raises this."]
    with pytest.raises(ValueError, match=r"^`AutoShardingRule` needs a mesh"):
        nym.CompositeShardingRule(nym.AutoShardingRule()).apply(TREE)


def test_an_answer_of_another_structure_or_kind_is_an_error_that_names_the_rule():
    for answer in (P("data"), {"attn": P()}, None, [P()] * 3):
        with refusal("the rule `Given` returns a tree of another structure than that of the tree it is applied to"):
            nym.CompositeShardingRule(SHAPES, Given(answer, whole=True)).apply(TREE)
    for answer in ("data", ("data", None), 5):
        with pytest.raises(TypeError, match=r"\['attn'\]: the rule `Given` gives .*; a rule gives a `.*` or None\."):
            nym.CompositeShardingRule(Given(answer)).apply({"attn": np.ones(4)})


def test_uneven_axes_stay_whole_where_the_rule_that_decided_says_so(mesh):
    whole = nym.PathShardingRule([("attn", P("data", "model"))], uneven="replicate")
    rule = nym.CompositeShardingRule(whole, SHAPES)
    assert rule.apply({"attn": np.ones((6, 8))}) == {"attn": P(None, "model")}
    with pytest.raises(ValueError, match="not divisible"):
        rule.apply({"mlp": np.ones((6, 8))})


def test_equal_composites_are_equal_and_survive_copies():
    rule = nym.CompositeShardingRule(SHAPES, nym.PathShardingRule([("a", P())]))
    assert rule != nym.CompositeShardingRule(*reversed(rule.rules))
    for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule), eval(repr(rule), {**vars(nym), "P": P})):
        assert copied == rule
        assert hash(copied) == hash(rule)
    with pytest.raises(AttributeError, match="cannot assign"):
        rule.rules = ()


def test_what_is_no_rule_is_refused_at_once():
    with refusal("a `CompositeShardingRule` has no rule to ask; give it some: CompositeShardingRule(one, other)"):
        nym.CompositeShardingRule()
    for rule, text in [([SHAPES], "a list of length 1."), (Given, ""), (P("data"), "")]:
        with refusal(f"asks instances of `ShardingRule`, one argument each, not {text}", TypeError):
            nym.CompositeShardingRule(rule)
