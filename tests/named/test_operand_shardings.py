"""Operations on an Explicit mesh without an active mapping: results are sharded as their operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as nym
from axonym import Axis, dslice
from tests.refusals import refusal


MAPPING = {"batch": "data", "embed": "model", "seq": "data", "row": "data"}
P = jax.P


@pytest.fixture(autouse=True)
def entered(explicit_mesh: Mesh):
    with jax.set_mesh(explicit_mesh):
        yield


def make_operands() -> dict[str, nym.NamedArray]:
    """Returns arrays that are not sharded; `shard` does so by `MAPPING`."""
    values = np.random.default_rng(0)
    sizes = {"x": {"batch": 8, "embed": 4}, "y": {"batch": 8, "pos": 3, "embed": 4}, "w": {"embed": 4, "mlp": 6}}
    sizes |= {"table": {"vocab": 12, "embed": 4}, "rows": {"row": 8, "embed": 4}}
    arrays = {key: nym.named(values.normal(size=(*axes.values(),)).astype("f"), axes) for key, axes in sizes.items()}
    arrays["i"] = nym.named(jnp.asarray([3, 0, 2, 1, 1, 0, 2, 2]), "batch")
    arrays["u"] = nym.ones({"batch": 8, "embed": 4})
    return arrays


CASES = {
    "index list": (lambda x, **_: x["batch", [3, 0, 7, 3]], P(None, "model")),
    "index mask": (lambda x, i, **_: nym.index(x, {"batch": i > 1}, fill=0.0), P("data", "model")),
    "index aligned": (lambda x, i, **_: x["embed", i], P("data")),
    "index positions": (lambda y, i, **_: y["pos", i % 3], P("data", "model")),
    "index both axes": (lambda x, **_: x["batch", nym.named([0, 5], "k"), "embed", nym.named([1, 1], "k")], P(None)),
    "look up": (lambda table, i, **_: table["vocab", i], P("data", "model")),
    "look up with fill": (lambda table, i, **_: nym.take(table, "vocab", i + 10, mode="fill", fill=0.0), None),
    "set": (lambda x, **_: x.at["batch", 3].set(0.0), P("data", "model")),
    "set slice": (lambda x, **_: x.at["embed", 1:3].set(2.0), P("data", "model")),
    "set window": (lambda y, x, **_: y.at["pos", dslice(1, 2)].set(x), P("data", None, "model")),
    "add rows": (lambda table, x, i, **_: table.at["vocab", i].add(x), P(None, "model")),
    "multiply masked": (lambda x, i, **_: x.at["batch", i > 1].multiply(2.0), P("data", "model")),
    "apply": (lambda x, **_: x.at["batch", [0, 1]].apply(jnp.exp), P("data", "model")),
    "concatenate": (lambda x, u, **_: nym.concatenate("batch", [x, u]), P("data", "model")),
    "concatenate other": (lambda y, **_: nym.concatenate("pos", [y, y * 2]), P("data", None, "model")),
    "pad": (lambda x, **_: nym.pad(x, {"batch": (0, 4)}), P("data", "model")),
    "roll": (lambda x, **_: nym.roll(x, 3, "batch"), P("data", "model")),
    "repeat": (lambda x, **_: nym.repeat(x, [1, 3] * 4, "batch"), P("data", "model")),
    "stack": (lambda x, u, **_: nym.stack("n", [x, u]), P(None, "data", "model")),
    "cumsum": (lambda x, **_: nym.cumsum(x, "batch"), P("data", "model")),
    "sort": (lambda x, **_: nym.sort(x, "embed"), P("data", "model")),
    "top k": (lambda x, **_: nym.top_k(x, "batch", 3)[0], P(None, "model")),
    "product": (lambda x, **_: nym.prod(x, "batch"), P("model")),
    "triangle": (lambda x, **_: nym.triu(x, "batch", "embed"), None),
    "lift": (lambda x, **_: nym.lift(jnp.median, "batch")(x), P("model")),
    "split keeps the name": (lambda x, **_: nym.split(x, "batch", nym.make_axes(batch=3, tail=5))[0], P(None, "model")),
    "positions": (lambda x, **_: nym.where(x["embed", 0] > 0, new_axis=Axis("batch", 3), fill_value=0)[0], P(None)),
    "diff of a sharded end": (
        lambda x, u, **_: nym.diff(nym.shard(x, {}), "embed", prepend=x["embed", 0:2]),
        P("data", None),
    ),
    "dot": (lambda x, w, **_: nym.dot(x, w, axis="embed"), P("data", None)),
    "dot of three": (lambda x, w, **_: nym.dot(x, w, x, axis="embed"), P("data", None)),
    "dot batched": (lambda x, y, **_: nym.dot(x, y, axis="embed"), P("data", None)),
    "einsum": (lambda x, y, **_: nym.einsum("{batch embed}, {batch embed} -> embed pos", x, y), P("model", None)),
    "add": (lambda x, u, **_: x + u, P("data", "model")),
    "add column": (lambda y, i, **_: y + i, P("data", None, "model")),
    "merge": (lambda y, **_: y.rearrange("{batch pos embed} -> batch (z: pos embed)"), P("data", None)),
    "split": (lambda x, **_: x.rearrange("{(batch: a b)} -> ... a b", a=2), P("model", None, None)),
}


EAGER = {"index list", "look up", "set slice", "concatenate", "sort", "dot", "einsum", "diff of a sharded end", "split"}


def test_results_are_sharded_as_operands():
    def compute(operands):
        return {case: run(**operands) for case, (run, _) in CASES.items()}

    operands = make_operands()
    expected = jax.jit(compute)(operands)
    with nym.axis_mapping(MAPPING):
        sharded = {**nym.shard(operands), "u": operands["u"]}
    inside = jax.jit(compute)(sharded)
    for case, (run, spec) in CASES.items():
        for result in (inside[case], *([run(**sharded)] if case in EAGER else [])):
            assert result.names == expected[case].names, case
            np.testing.assert_allclose(result.array, expected[case].array, rtol=1e-5, err_msg=case)
            assert spec is None or result.sharding.spec == spec, case


def test_layers_and_gradients_are_sharded_as_parameters(getkey):
    layer = nym.nn.Linear.init(Axis("embed", 4), Axis("mlp", 6), key=getkey())
    table = nym.nn.Embedding.init(Axis("vocab", 12), Axis("embed", 4), key=getkey())
    ids = nym.named(jnp.arange(8), "batch")

    @jax.jit
    @nym.value_and_grad
    def differentiate(model, ids):
        layer, table = model
        return nym.square(layer(table(ids))).mean()

    expected = differentiate((layer, table), ids)
    results = differentiate(*nym.shard(((layer, table), ids), MAPPING))
    for result, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-4, atol=1e-6)
    assert results[1][1].weight.sharding.spec == P(None, "model")


UNEVEN = (
    "axis 'batch' has size 11, which is not divisible by mesh axis 'data' of size 4; the next size that fits is 12; "
    "replicate the axis of the operands first, as with `shard(x, {'batch': None})`; "
    "the array is (batch: 11, embed: 4)"
)
TWICE = (
    "axes 'batch' and 'row' of (batch: 8, row: 8) are both sharded over mesh axis 'data'; state the sharding of "
    "the result with `axis_mapping`, or `shard` one of the operands first"
)
OTHERWISE = "axis 'batch' is sharded over (data) in one operand and over (model) in another; state the sharding"
TEXTS = {
    "concatenate": (lambda x, u, **_: nym.concatenate("batch", [x, u["batch", 0:3]]), UNEVEN),
    "dot": (lambda x, rows, **_: nym.dot(x, rows, axis="embed"), TWICE),
    "add column": (lambda x, other, **_: x + other["embed", 0], OTHERWISE),
    "cross": (lambda x, other, **_: nym.cross(x["embed", 0:3], other["embed", 0:3], "embed"), OTHERWISE),
    "add": (lambda x, other, **_: x + other, OTHERWISE),
}


@pytest.mark.parametrize("case", TEXTS)
def test_ambiguous_shardings_are_errors_that_name_the_axes(case: str):
    run, text = TEXTS[case]
    sharded = nym.shard(make_operands(), MAPPING)
    sharded["other"] = nym.shard(make_operands()["x"], {"batch": "model"})
    for call in (run, lambda **arrays: jax.jit(lambda arrays: run(**arrays))(arrays)):
        with refusal(text):
            call(**sharded)


def test_operands_on_two_meshes_are_named(explicit_mesh):
    x = nym.shard(make_operands()["x"], MAPPING)
    with jax.set_mesh(None):
        other_mesh = nym.create_mesh((8,), ("all",), axis_types="explicit")
        other = nym.shard(make_operands()["x"], {"batch": "all"}, other_mesh)
        text = (
            "cannot compute on different meshes: {} on (data: 4, model: 2) of Explicit axes, {} on (all: 8) of Explicit"
        )
        for run in (lambda: x + other, lambda: nym.where(x > 0, x, other)):
            with refusal(text.format("(batch: 8, embed: 4)", "(batch: 8, embed: 4)")):
                run()
        with refusal(text.format("(batch: 8, embed: 4)", "(batch: 8)")):
            x * other["embed", 0]
        with refusal(text.format("an operand", "another")):
            nym.dot(x, other.rename({"batch": "row"}), axis="embed")
    with refusal(", the result on (data: 4, model: 2) of Explicit axes; move arrays to one of"):
        other + other


def test_errors_about_dtypes_do_not_blame_meshes(auto_mesh):
    x = nym.shard(make_operands()["x"], MAPPING, auto_mesh)
    with jax.set_mesh(nym.create_mesh((8,), ("all",), axis_types="auto")):
        for other in (x, nym.ones({"batch": 8})):
            with refusal("does not accept dtype float32", TypeError):
                nym.bitwise_and(x, other)


def test_a_mapping_decides_where_operands_are_sharded_differently():
    operands = make_operands()
    x, other = nym.shard(operands["x"], {"batch": "data"}), nym.shard(operands["u"], {"batch": "model"})
    with nym.axis_mapping({"batch": "data"}):
        for result in (x + other, jax.jit(nym.add)(x, other)):
            assert result.sharding.spec == P("data", None)
            np.testing.assert_allclose(result.array, (operands["x"] + operands["u"]).array, rtol=1e-6)
        by_compiler = nym.lift(jnp.multiply, "embed")(x, other)
        assert by_compiler.sharding.spec == P("data", None)
        np.testing.assert_allclose(by_compiler.array, operands["x"].array, rtol=1e-6)
        assert nym.prod(x, "embed", where=other > 0).sharding.spec == P("data")


def test_a_mapping_is_not_asked_for_plain_arrays():
    x = nym.shard(make_operands()["x"], MAPPING).array
    with nym.axis_mapping({"batch": "data"}):
        assert nym.sort(x, 1).sharding.spec == P("data", "model")
        assert nym.prod(x, 1).sharding.spec == P("data")


def test_a_replacement_of_dot_general_gets_the_sharding_of_the_operands():
    operands = make_operands()
    sharded = nym.shard(operands, MAPPING)
    seen = []

    def multiply(*args, out_sharding=None, **options):
        seen.append(out_sharding.spec)
        return jax.lax.dot_general(*args, out_sharding=out_sharding, **options)

    result = nym.dot(sharded["x"], sharded["w"], axis="embed", dot_general=multiply)
    assert result.sharding.spec == P("data", None) == seen[0]


def test_no_mapping_is_active_inside_a_function_that_is_applied():
    x = nym.shard(make_operands()["x"], MAPPING)
    seen = []
    x.at["batch", [0, 1]].apply(lambda row: seen.append(nym.current_mapping()) or row)
    assert seen and set(seen) == {None}
