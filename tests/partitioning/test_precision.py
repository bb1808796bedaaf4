"""Element types by name: trees that `Precision` converts, and what layers compute and devices send with it."""

import dataclasses
import pickle
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym
from axonym.partitioning import AxisMapping
from axonym.planner import communication_report
from tests.hlo import Program
from tests.partitioning.blocks import Block


Batch, Embed, Mlp, Layers = nym.make_axes(batch=16, embed=128, mlp=128, layers=2)
COMPUTE = {"batch": ("replica", "data"), "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
X = nym.random.normal(jax.random.key(1), (Batch, Embed.alias("inputs")), dtype=jnp.float16)
HALF = nym.Precision(computing="float16")  # which XLA for CPUs sends in 16 bits, as it does not bfloat16


def make_stack(**options: Any) -> nym.nn.Stacked:
    keys = jax.random.split(jax.random.key(0), Layers.size)
    return nym.nn.Stacked.init(Layers, Block, **options)(Embed, Mlp, key=keys)


def compute_loss(stack: nym.nn.Stacked, x: nym.NamedArray) -> Any:
    return nym.mean(stack.fold(x.rename({"inputs": "embed"})).astype(jnp.float32) ** 2).scalar()


def compute_loss_by_hand(stack: nym.nn.Stacked, x: nym.NamedArray) -> Any:
    return compute_loss(jax.tree.map(lambda leaf: leaf.astype(jnp.float16), stack), x)


def make_mesh(axis_types: Any) -> Any:
    return nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)


def assert_close(tree: Any, expected: Any, rtol: float = 2e-2) -> None:
    for array, expected_array in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        scale = np.abs(expected_array).max()
        np.testing.assert_allclose(np.asarray(array), np.asarray(expected_array), atol=rtol * scale)


def list_sent(step: Any, *args: Any) -> set[tuple[str, str]]:
    """Returns kinds and element types of what is sent, for arrays with more than one dimension."""
    program = Program(step.lower(*args).compile().as_text())
    return {(each.kind, result.dtype) for each in program.collectives() for result in each.results if result.shape[1:]}


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_layers_send_and_compute_in_half_of_the_bits_and_gradients_come_back_in_the_stored_type(axis_types: Any):
    stack = make_stack(gradient_checkpointing=True)
    expected = jax.value_and_grad(compute_loss_by_hand)(stack, X)
    step = nym.fsdp(jax.value_and_grad(compute_loss), STORED, COMPUTE, precision=HALF)
    by_hand = nym.fsdp(jax.value_and_grad(compute_loss_by_hand), STORED, COMPUTE)
    whole = nym.fsdp(jax.value_and_grad(compute_loss), STORED, COMPUTE)
    with jax.set_mesh(make_mesh(axis_types)):
        results = step(stack, X)
        assert_close(results, by_hand(stack, X), 1e-3)
        gathered = communication_report(step, stack, X).count_bytes()["all-gather"]
        assert 2 * gathered == communication_report(whole, stack, X.astype(jnp.float32)).count_bytes()["all-gather"]
        assert {dtype for _, dtype in list_sent(step, stack, X)} == {"f16"}
    assert_close(results, expected)
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


def test_gradients_are_added_up_in_the_type_for_reductions():
    stack = make_stack()

    def list_types(**types: Any) -> set[tuple[str, str]]:
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, precision=nym.Precision(**types))
        sent = list_sent(step, stack, X.astype(types.get("computing", "float32")))
        return {pair for pair in sent if pair[0] != "all-reduce"}

    with jax.set_mesh(make_mesh("explicit")):
        assert list_types(computing="float16") == {("all-gather", "f16"), ("reduce-scatter", "f16")}
        both = list_types(computing="float16", reductions="float32")
        assert both == {("all-gather", "f16"), ("reduce-scatter", "f32")}
        assert list_types(reductions="float16") == {("all-gather", "f32"), ("reduce-scatter", "f16")}


def test_sums_in_32_bits_keep_what_16_bits_lose():
    layer = nym.nn.Linear.init(Embed, nym.Axis("mlp", 2), key=jax.random.key(0), use_bias=False)
    x = nym.ones((nym.Axis("batch", 8), Embed.alias("inputs")), dtype=jnp.float16).at["batch", 0].set(2048)

    def compute_sum(layer: nym.nn.Linear, x: nym.NamedArray) -> Any:
        return nym.sum(layer(x.rename({"inputs": "embed"})).astype(jnp.float32)).scalar()

    mappings = {"batch": "data", "embed": "data"}, {"batch": "data"}
    with jax.set_mesh(nym.create_mesh((8,), ("data",), axis_types="explicit")):
        for reductions, is_exact in ((None, False), ({"embed": "float32"}, True), ({"vocab": "float32"}, False)):
            precision = dataclasses.replace(HALF, reductions=reductions)
            gradient = nym.fsdp(jax.grad(compute_sum), *mappings, precision=precision)(layer, x).weight
            assert bool((np.asarray(gradient.array) == 2055).all()) == is_exact
            assert gradient.dtype == np.float32


def test_reductions_need_explicit_axes_where_gradients_are_added_up():
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
    precision = dataclasses.replace(HALF, reductions="float32")
    loss = nym.fsdp(
        lambda layer, x: nym.sum(layer(x)).scalar(), {"embed": "data"}, {"batch": "data"}, precision=precision
    )
    x = nym.ones({"batch": 8, "embed": 128}, dtype=jnp.float16)
    gradient = nym.fsdp(
        lambda layer: jax.grad(lambda layer: nym.sum(layer(x)).scalar())(layer),
        {"embed": "data"},
        {"batch": "data"},
        precision=precision,
    )
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"), axis_types="auto")):
        assert loss(layer, x).dtype == np.float16  # without a gradient nothing is added up
        message = (
            r"`reductions` of a `Precision` asks for sums in float32 of the gradient of \(mlp, embed\), and on the "
            r"mesh \(data: 4, model: 2\) the compiler adds up gradients where they are computed; make all mesh axes "
            "Explicit"
        )
        with pytest.raises(ValueError, match=message):
            gradient(layer)
    with jax.set_mesh(nym.create_mesh((1, 8), ("data", "model"), axis_types="auto")):
        assert gradient(layer).weight.dtype == np.float32


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_what_layers_convert_may_be_gathered_in_fewer_bits(axis_types: Any):
    stack = make_stack()
    reductions = "float32" if axis_types == "explicit" else None
    precision = dataclasses.replace(HALF, reductions=reductions)
    step = nym.fsdp(jax.value_and_grad(compute_loss), STORED, COMPUTE, precision=precision, gather_dtype="int8")
    with jax.set_mesh(make_mesh(axis_types)):
        results = step(stack, X)
        assert ("all-gather", "s8") in list_sent(step, stack, X)
    assert_close(results, jax.value_and_grad(compute_loss_by_hand)(stack, X), 0.1)
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("axis_types", "reduce_once"),
    [("auto", False), ("auto", True), ("explicit", False), ("explicit", "replica"), ("explicit", True)],
)
def test_microbatches_add_up_gradients_in_the_stored_type(axis_types: Any, reduce_once: Any):
    stack = make_stack()
    precision = dataclasses.replace(HALF, reductions="float32" if axis_types == "explicit" else None)

    @nym.fsdp(STORED, COMPUTE, precision=precision)
    def step(stack: Any, x: Any) -> Any:
        return nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2, reduce_once=reduce_once)(stack, x)

    with jax.set_mesh(make_mesh(axis_types)):
        results = step(stack, X)
    assert_close(results, jax.value_and_grad(compute_loss_by_hand)(stack, X))
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("axis_types", ["auto", "explicit", None])
def test_a_plain_mapping_has_a_precision_too(axis_types: Any):
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    x = nym.ones({"batch": 8, "embed": 128}, dtype=jnp.float16)
    expected = layer.weight.astype(jnp.float16), layer.bias.astype(jnp.float16)

    def apply(layer: nym.nn.Linear) -> Any:
        return nym.sum(layer(x)).scalar().astype(jnp.float32), layer(x)

    def run() -> Any:
        with nym.axis_mapping({"batch": "data", "mlp": "model"}, precision=HALF):
            return jax.jit(jax.value_and_grad(apply, has_aux=True))(layer)

    if axis_types is None:
        (_, result), gradient = run()
    else:
        with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"), axis_types=axis_types)):
            (_, result), gradient = run()
    assert result.dtype == np.float16
    by_hand = dataclasses.replace(layer, weight=expected[0], bias=expected[1])(x)
    np.testing.assert_allclose(np.asarray(result.array), np.asarray(by_hand.array), rtol=1e-2, atol=1e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype(np.float32)}


def test_stages_of_a_pipeline_compute_in_the_type_for_computing():
    stack = make_stack()
    compute = AxisMapping({"batch": "data", "layers": "stage"}, microbatches={"batch": 4})
    stored = compute.merged({"embed": "data"})
    precision = dataclasses.replace(HALF, reductions="float32")
    step = nym.fsdp(jax.value_and_grad(compute_loss), stored, compute, precision=precision)
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "stage"), axis_types="explicit")):
        results = step(stack, X)
        assert ("all-gather", "f16") in list_sent(step, stack, X)
    assert_close(results, jax.value_and_grad(compute_loss_by_hand)(stack, X))
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


def test_other_transformations_take_conversions_for_linear():
    weight, tangent = (nym.random.normal(jax.random.key(i), {"copy": 2, "mlp": 128, "embed": 128}) for i in (2, 3))
    x = nym.ones({"batch": 8, "inputs": 128})

    def apply(weight: nym.NamedArray) -> nym.NamedArray:
        layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
        return dataclasses.replace(layer, weight=weight)(x.rename({"inputs": "embed"}))

    def push_forward(weight: Any, tangent: Any) -> Any:
        return nym.vmap(lambda weight, tangent: jax.jvp(apply, (weight,), (tangent,)), "copy")(weight, tangent)

    expected = jax.tree.map(lambda array: array, push_forward(weight, tangent))
    precision = nym.Precision(computing="bfloat16", reductions="float32")
    with jax.set_mesh(nym.create_mesh((1, 4, 2), ("replica", "data", "model"), axis_types="explicit")):
        results = nym.fsdp(push_forward, STORED, COMPUTE, precision=precision)(weight, tangent)
    assert_close(results, expected)


def test_the_first_name_of_a_parameter_says_how_layers_compute():
    precision = nym.Precision(computing={"mlp": None, ...: "float16"})
    stack = make_stack()
    with jax.set_mesh(make_mesh("explicit")):
        step = nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE, precision=precision)
        report = communication_report(step, stack, X.astype(jnp.float32))
        whole = communication_report(nym.fsdp(jax.grad(compute_loss), STORED, COMPUTE), stack, X.astype(jnp.float32))
    for operation, factor in (("gather(mlp, embed)", 1), ("gather(embed)", 2)):
        sizes = [
            sum(gather.bytes for gather in each.select("all-gather") if gather.operation == operation)
            for each in (whole, report)
        ]
        assert sizes[0] == factor * sizes[1] > 0


def make_layers() -> dict[str, Any]:
    """Returns layers that gather parameters in other ways than `Linear`, each with a function and its input."""
    linear = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    Vocab, Height, Experts = nym.make_axes(vocab=32, height=8, expert=8)
    ids, renamed = nym.arange(Batch), X.rename({"inputs": "embed"})
    image = nym.random.normal(jax.random.key(4), (Batch, Height, Embed.alias("inputs")), dtype=jnp.float16)
    tokens = nym.random.normal(jax.random.key(5), (Batch, Height, Embed), dtype=jnp.float16)
    float8 = nym.quantization.quantize_linear_layers(linear, nym.quantization.Float8DotGeneral.init(4))
    table = nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(1))
    conv = nym.nn.Conv.init((Height,), Embed, Mlp, kernel_size=3, padding="SAME", key=jax.random.key(2))
    mixture = nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts, 2, key=jax.random.key(3))
    return {
        "float8": (float8, lambda layer: layer(renamed)),
        "table": (table, lambda layer: layer.unembed(layer(ids))),
        "fused loss": (table, lambda layer: nym.nn.fused_cross_entropy(renamed, layer.weight, ids, "embed", "vocab")),
        "conv": (conv, lambda layer: layer(image.rename({"inputs": "embed"}))),
        "mixture": (mixture, lambda layer: layer(tokens)[0]),
    }


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("name", ["float8", "table", "fused loss", "conv", "mixture"])
def test_layers_do_with_a_precision_what_they_do_with_converted_parameters(name: str, axis_types: Any):
    layer, apply = make_layers()[name]
    precision = dataclasses.replace(HALF, reductions="float32" if axis_types == "explicit" else None)

    def compute_loss(layer: Any) -> Any:
        return nym.mean(apply(layer).astype(jnp.float32) ** 2).scalar()

    def compute_loss_by_hand(layer: Any) -> Any:
        return compute_loss(precision.cast_computing(layer))

    mapping = {"batch": ("replica", "data"), "vocab": "model"}
    with jax.set_mesh(make_mesh(axis_types)):
        step = nym.fsdp(jax.value_and_grad(compute_loss), {**mapping, "embed": "data"}, mapping, precision=precision)
        by_hand = nym.fsdp(jax.value_and_grad(compute_loss_by_hand), {**mapping, "embed": "data"}, mapping)
        results = step(layer)
        assert_close(results, by_hand(layer), 2e-3)
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(np.float32)}


def test_another_precision_is_another_program():
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    apply = jax.jit(lambda layer: layer(nym.ones(Embed, dtype=jnp.bfloat16)))
    dtypes = []
    for computing in ("bfloat16", "float32", "bfloat16"):
        with nym.axis_mapping(precision=nym.Precision(computing=computing)):
            dtypes.append(apply(layer).dtype)
    assert dtypes == [jnp.bfloat16, np.float32, jnp.bfloat16]


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("embed", "mlp"))
    offset: Any


def test_trees_are_converted_by_names_and_paths():
    float8 = nym.quantization.Float8DotGeneral.init(4)
    layers = [nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(i)) for i in range(2)]
    tree = {
        "layers": nym.quantization.quantize_linear_layers(layers, float8, targets="1"),
        "scale": Scale(jnp.ones((2, 3)), np.ones(2)),
        "key": jax.random.key(0),
        "small": jnp.ones(2, jnp.float8_e4m3fn),
        "step": jnp.zeros((), jnp.int32),
        "rate": 0.5,
        "label": "text",
    }

    def list_converted(types: Any) -> set[str]:
        converted = nym.Precision(parameters=types).cast_parameters(tree)
        assert jax.tree.structure(converted) == jax.tree.structure(tree)
        leaves = jax.tree_util.tree_leaves_with_path(converted, is_leaf=nym.is_named_array)
        return {
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, leaf in leaves
            if getattr(leaf, "dtype", None) == jnp.bfloat16
        }

    weights, biases = {"layers/0/weight", "layers/1/weight"}, {"layers/0/bias", "layers/1/bias"}
    assert list_converted("bfloat16") == {*weights, *biases, "scale/weight", "scale/offset"}
    assert list_converted({"embed": jnp.bfloat16}) == {*weights, "scale/weight"}
    assert list_converted({re.compile("layers/1"): None, "mlp": "bfloat16"}) == {
        *("layers/0/weight", "layers/0/bias", "scale/weight")
    }
    assert list_converted({re.compile(r"offset$"): "bfloat16"}) == {"scale/offset"}
    assert list_converted({"embed": None, ...: "bfloat16"}) == {*biases, "scale/offset"}
    assert list_converted(None) == list_converted({}) == set()
    same = nym.Precision(parameters="float32").cast_parameters(tree)
    assert same["layers"][0].weight.array is tree["layers"][0].weight.array
    assert isinstance(same["scale"].offset, np.ndarray)


def test_shapes_keep_their_shardings_and_optimizer_state_its_structure():
    precision = nym.Precision(parameters="bfloat16", optimizer={re.compile(r"\bmu\b"): "bfloat16"})
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    with jax.set_mesh(make_mesh("auto")):
        shapes = nym.shard(eqx.filter_eval_shape(lambda: layer), STORED)
    converted = precision.cast_parameters(shapes)
    assert converted.weight.dtype == jnp.bfloat16
    assert converted.weight.array.sharding == shapes.weight.array.sharding
    optimizer = optax.adam(1e-3)
    state = precision.cast_optimizer(optimizer.init(layer))

    @jax.jit
    def update(state: Any) -> Any:
        return precision.cast_optimizer(optimizer.update(layer, state)[1])

    assert jax.tree.map(lambda x: x.dtype, update(state)) == jax.tree.map(lambda x: x.dtype, state)
    assert state[0].mu.weight.dtype == jnp.bfloat16
    assert (state[0].nu.weight.dtype, state[0].count.dtype) == (np.float32, np.int32)


def test_precisions_are_values():
    types = {"vocab": None, re.compile("norm"): jnp.float32, ...: "bfloat16"}
    precision = nym.Precision(computing=types, parameters="float32")
    text = "Precision(parameters='float32', computing={'vocab': None, re.compile('norm'): 'float32', ...: 'bfloat16'})"
    assert repr(precision) == text
    assert eval(repr(precision), {"Precision": nym.Precision, "re": re}) == precision
    other = pickle.loads(pickle.dumps(precision))
    assert (other, hash(other)) == (precision, hash(precision))
    assert dataclasses.replace(precision, parameters=None) == nym.Precision(computing=types) != precision
    mapping = AxisMapping(STORED, precision=HALF)
    assert pickle.loads(pickle.dumps(mapping)) == mapping != AxisMapping(STORED)
    assert hash(pickle.loads(pickle.dumps(mapping))) == hash(mapping)
    assert repr(mapping).endswith("precision=Precision(computing='float16'))")
    assert mapping.merged({"embed": None}).precision == HALF
    with nym.axis_mapping(COMPUTE), nym.axis_mapping(mapping, merge=True):
        assert nym.current_mapping() == mapping
    with nym.axis_mapping(precision=HALF), nym.axis_mapping(STORED, merge=True):
        assert nym.current_mapping() == mapping


def test_what_is_no_precision_is_an_error():
    tree = {"head": nym.ones({"embed": 2}), "step": 0}
    with pytest.raises(ValueError, match=r"^`computing` of a `Precision` is a floating-point type of 16 bits .*'int8'"):
        nym.Precision(computing="int8")
    with pytest.raises(ValueError, match=r"`optimizer` of a `Precision` .* to these and None, not 'float8_e4m3fn'"):
        nym.Precision(optimizer={"embed": "float8_e4m3fn"})
    with pytest.raises(TypeError, match=r"Axis\(name='mlp', size=128\) is not a name; use 'mlp'"):
        nym.Precision(parameters={Mlp: "bfloat16"})
    message = "pattern 'tail' in `parameters` of a `Precision` matches no floating-point array; their paths are head"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        nym.Precision(parameters={re.compile("tail"): "bfloat16"}).cast_parameters(tree)
    with pytest.warns(RuntimeWarning, match="`parameters` has axis 'embd', and the arrays have 'embed'"):
        nym.Precision(parameters={"embd": "bfloat16"}).cast_parameters(tree)
    with pytest.warns(RuntimeWarning, match="`reductions` has axis 'replcia', and the mapping has 'replica'"):
        AxisMapping({"replica": "data"}, precision=nym.Precision(reductions={"replcia": "float32"}))
    with pytest.raises(TypeError, match=r"`precision` is a `Precision`, such as `nym.Precision\(.*\)`, not 'bfloat16'"):
        AxisMapping(STORED, precision="bfloat16")
    by_path = nym.Precision(computing={re.compile("head"): "bfloat16"})
    with pytest.raises(ValueError, match=r"pattern 'head' in `computing` of a `Precision` needs paths, .* or convert"):
        nym.fsdp(compute_loss, STORED, COMPUTE, precision=by_path)
    with pytest.raises(ValueError, match=r"`fsdp`, which `precision` belongs to; write `AxisMapping\(..., precision="):
        nym.fsdp(compute_loss, STORED, COMPUTE, precision=HALF, in_axis_resources=(STORED, COMPUTE))
