"""The implementations of attention: each equals the plain one, and is chosen, sharded and refused as documented."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..hlo import Program
from ..refusals import refusal
from .conftest import assert_leaves_close


Mask = nym.nn.AttentionMask
Batch, Heads, Group, Pos, KeyPos, HeadDim = nym.make_axes(batch=4, heads=2, group=2, pos=10, key_pos=12, head_dim=4)
KEY = jax.random.key(3)


def attend(implementation, *inputs, **options):
    options = {"block_size": 4, "QPos": "pos", **options}
    return nym.nn.dot_product_attention("key_pos", "head_dim", *inputs, implementation=implementation, **options)


def differentiate(implementation, inputs, **options):
    """The result of attention and the gradients for its inputs and for those options that are differentiated."""
    numbers = {name: options.pop(name) for name in ("bias", "sinks") if name in options}

    @nym.named_jit
    def compute(inputs, numbers):
        def loss(inputs, numbers):
            result = attend(implementation, *inputs, **numbers, **options)
            weights = np.sin(1 + np.arange(result.size, dtype=np.float32)).reshape(result.array.shape)
            return (result * nym.named(weights.astype(result.dtype), result.names)).sum().scalar(), result

        return jax.grad(loss, (0, 1), has_aux=True)(inputs, numbers)

    return compute(inputs, numbers)


def draw_inputs(draw, QPos=Pos, KPos=KeyPos, Value=HeadDim):
    query, key = draw(Batch, QPos, Heads, Group, HeadDim), draw(Heads, KPos, Batch, HeadDim)
    return query, key, draw(KPos, Batch, Heads, Value)


def draw_segments(draw, QPos=Pos, KPos=KeyPos):
    ids = [np.sort(draw.random.integers(0, 3, (Batch.size, axis.size))) for axis in (QPos, KPos)]
    return nym.named(ids[0], ("batch", QPos.name)), nym.named(ids[1], ("batch", KPos.name))


def list_blocked_cases(draw):
    mixed = (Mask.causal(2) & Mask.segment_ids(*draw_segments(draw))) | Mask.prefix(nym.named([0, 1, 2, 3], "batch"))
    return {
        "window": {"mask": Mask.causal(1) & Mask.sliding_window(3)},
        "no key": {"mask": Mask.causal(-3), "sinks": draw(Heads)},
        "all": {
            "mask": mixed,
            "bias": draw(Heads, Pos, KeyPos),
            "sinks": draw(Group, Heads),
            "scale": 0.7,
            "soft_cap": 2.0,
            "dropout": 0.3,
            "dropout_key": KEY,
        },
    }


def test_blocks_equal_all_scores_at_once_where_queries_see_no_key(draw):
    inputs, options = draw_inputs(draw, Value=nym.Axis("out", 3)), list_blocked_cases(draw)["no key"]
    assert_leaves_close(differentiate("blocked", inputs, **options), differentiate("plain", inputs, **options))


def test_blocks_equal_all_scores_in_64_bits(draw):
    """Also with `jax_enable_x64`, under which integers have two types, results have the type of their inputs."""
    inputs, options = draw_inputs(draw), list_blocked_cases(draw)["all"]
    with jax.enable_x64(True):
        wide = lambda tree: jax.tree.map(lambda leaf: leaf.astype(float) if leaf.dtype == "float32" else leaf, tree)  # noqa: E731
        options |= {"bias": wide(options["bias"]), "sinks": wide(options["sinks"])}
        result, expected = (differentiate(name, wide(inputs), **options) for name in ("blocked", "plain"))
        assert {leaf.dtype.name for leaf in jax.tree.leaves(result)} == {"float64"}
        assert_leaves_close(result, expected, 1e-10)
        del options["bias"], options["sinks"]
        shapes = jax.eval_shape(lambda inputs: differentiate("blocked", inputs, **options), inputs)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {"float32"}


@pytest.mark.parametrize("implementation", ["plain", "blocked", "jax"])
def test_a_bias_hides_keys_as_a_mask_does(draw, implementation):
    """Also all keys of a query, by itself or together with a mask: its result and its gradients are zero then."""
    inputs, QueryKeys = draw_inputs(draw), (Pos, KeyPos)
    is_shown = nym.named(draw.random.random((10, 12)) > 0.3, QueryKeys) & (nym.arange(Pos) != 4)
    causal = nym.nn.causal_mask(*QueryKeys)
    expected = differentiate("plain", inputs, mask=is_shown & causal)
    lowest = [float(jnp.finfo(dtype).min) for dtype in (jnp.float32, jnp.bfloat16)]
    hidden = nym.named([-jnp.inf, *lowest, -jnp.inf], Batch)
    bias = nym.where(is_shown, 0.0, hidden.broadcast_axis(QueryKeys))
    mask = causal if implementation == "blocked" else Mask.causal()
    result = differentiate(implementation, inputs, mask=mask, bias=bias)
    assert_leaves_close((result[0][0], result[1]), (expected[0][0], expected[1]))
    assert np.isfinite(result[0][1]["bias"].array).all()
    assert not result[1]["pos", 4].array.any()


@pytest.mark.parametrize(("axis_types", "sharded", "case"), [("explicit", "heads", "all"), ("auto", "pos", "window")])
def test_blocks_are_sharded_by_the_mapping(draw, request, axis_types, sharded, case):
    inputs, options = draw_inputs(draw), list_blocked_cases(draw)[case]
    expected = differentiate("plain", inputs, **options)
    mesh = request.getfixturevalue(f"{axis_types}_mesh")
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", sharded: "model"}):
        result = differentiate("blocked", nym.shard(inputs), **options)
        for x in (result[1], result[0][0][0]):  # the result and the gradient of the query
            assert x.sharding.is_equivalent_to(nym.sharding_for_axis(x.axes), x.ndim)
    assert_leaves_close(jax.device_get(result), expected)


def test_gradients_of_blocks_are_sharded_by_the_mapping_of_the_result(draw, mesh):
    mapping = {"batch": "data", "heads": "model"}
    inputs = nym.shard(draw_inputs(draw), mapping)

    def loss(inputs):
        with nym.axis_mapping(mapping):
            return attend("blocked", *inputs, Mask.causal()).sum().scalar()

    with nym.axis_mapping({"heads": "model"}):
        compiled = jax.jit(jax.grad(loss)).lower(inputs).compile()
    assert not Program(compiled.as_text()).collectives()


def test_blocks_of_keys_that_a_traced_function_closes_over_stay_sharded(draw, explicit_mesh):
    inputs, gradients = draw_inputs(draw), {}
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data"}):
            query, *keys = nym.shard(inputs)

        def loss(query, implementation):
            return (attend(implementation, query, *keys, Mask.causal()) ** 2).sum().scalar()

        for implementation in ("blocked", "plain"):
            gradients[implementation] = jax.jit(jax.grad(loss), static_argnums=1)(query, implementation)
    assert_leaves_close(gradients["blocked"], gradients["plain"])


def test_a_sharded_query_is_not_gathered(auto_mesh):
    shape = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    query, key = nym.NamedArray(shape, ("pos", "head_dim")), nym.NamedArray(shape, ("key_pos", "head_dim"))
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"pos": "data"}):
        for mask in (Mask.causal(), None):
            gradient = jax.grad(
                lambda *x, mask=mask: attend("blocked", *map(nym.shard, x), mask).sum().scalar(), (0, 1)
            )
            program = Program(nym.named_jit(gradient).lower(query, key, key).compile().as_text())
            assert not [collective for collective in program.collectives() if collective.kind != "all-reduce"]


@pytest.mark.parametrize(
    ("query_dtype", "key_dtype", "value_dtype", "tolerance"),
    [
        ("float32", "float8_e4m3fn", "float16", 1e-5),
        ("bfloat16", "float8_e5m2", "float8_e4m3fn", 0.03),
        ("bfloat16", "float32", "float32", 0.03),
    ],
)
def test_results_have_the_dtype_of_the_query_and_are_summed_in_float32(
    draw, query_dtype, key_dtype, value_dtype, tolerance
):
    dtypes = query_dtype, key_dtype, value_dtype
    low = tuple(x.astype(dtype) for x, dtype in zip(draw_inputs(draw), dtypes, strict=True))

    @jax.jit
    def attend_causally(*low):
        exact = attend("plain", *(x.astype("float32") for x in low), Mask.causal())
        return attend("plain", *low, Mask.causal()), attend("blocked", *low, Mask.causal()), exact

    *results, exact = attend_causally(*low)
    for implementation, result in zip(("plain", "blocked"), results, strict=True):
        assert result.dtype == query_dtype
        assert_leaves_close(result.astype("float32"), exact, tolerance)
        gradients = jax.eval_shape(lambda *low, name=implementation: differentiate(name, low, mask=Mask.causal()), *low)
        assert tuple(gradient.dtype for gradient in gradients[0][0]) == dtypes
    jaxpr = str(jax.make_jaxpr(lambda *low: attend("blocked", *low, Mask.causal()))(*low))
    assert set(re.findall(r":(\w+)\[[^]]*\] = exp\b", jaxpr)) == {"f32"}


def test_blocks_that_no_query_attends_to_are_skipped(draw):
    query, key, value = draw_inputs(draw, Pos.resize(16), KeyPos.resize(16))

    def count_blocks(mask):
        jaxpr = jax.make_jaxpr(lambda *inputs: attend("blocked", *inputs, mask))(query, key, value)
        return [int(length) for length in re.findall(r"scan\[[^]]*?length=(\d+)", str(jaxpr), re.DOTALL)]

    assert count_blocks(None) == [16]
    assert count_blocks(Mask.causal()) == [10]
    assert count_blocks(Mask.causal() & Mask.sliding_window(4)) == [7]
    assert count_blocks(Mask.causal(jnp.int32(0))) == [16]


def test_memory_of_blocks_grows_linearly():
    """Four times the positions take about four times the temporary memory, which is far from that of all scores."""

    def measure(implementation, size):
        shape = jax.ShapeDtypeStruct((size, 64), jnp.float32)
        query, key = nym.NamedArray(shape, ("pos", "head_dim")), nym.NamedArray(shape, ("key_pos", "head_dim"))

        def loss(*inputs):
            return attend(implementation, *inputs, Mask.causal(), block_size=128).sum().scalar()

        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(query, key, key).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert measure("blocked", 4096) < 4.5 * measure("blocked", 1024) < measure("plain", 4096) / 8


def test_blocks_work_in_vmap_and_shard_map(draw, auto_mesh):
    inputs = draw_inputs(draw)

    def compute(*inputs):
        def attend_causally(*inputs):
            return attend("blocked", *inputs, Mask.causal(1))

        return (
            attend("plain", *inputs, Mask.causal(1)),
            nym.vmap(attend_causally, "batch")(*inputs),
            nym.shard_map(attend_causally)(*inputs),
        )

    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data", "heads": "model"}):
        expected, by_vmap, by_shard_map = jax.device_get(nym.named_jit(compute)(*inputs))
    assert_leaves_close(by_vmap.rearrange(expected.names), expected)
    assert_leaves_close(by_shard_map, expected)


def test_attention_of_jax_equals_the_plain_one(draw, explicit_mesh):
    inputs = draw_inputs(draw, KPos=KeyPos.resize(10))
    ids, _ = draw_segments(draw)
    bias = nym.where(nym.arange(KeyPos.resize(10)) > 1, draw(Heads, KeyPos.resize(10)), -jnp.inf)
    options = {"mask": Mask.causal(3) & Mask.segment_ids(ids), "bias": bias}
    expected = differentiate("plain", inputs, **options)
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"batch": "data", "heads": "model"}):
        result = differentiate("jax", nym.shard(inputs), **options)
    assert_leaves_close(jax.device_get(result), expected)


def test_masks_reach_jax_as_flags_where_they_can(draw, monkeypatch):
    inputs, given, compute = draw_inputs(draw), [], jax.nn.dot_product_attention
    expected = [
        (Mask.causal(), {"is_causal": True}, False),
        (Mask.sliding_window(3) & Mask.causal(), {"is_causal": True, "local_window_size": (2, 0)}, False),
        (Mask.sliding_window(3), {"local_window_size": (2, 2)}, False),
        (Mask.causal() & Mask.prefix(7), {"is_causal": True}, True),
        (Mask.causal() | Mask.prefix(2), {}, True),
        (Mask.causal(1), {}, True),
    ]

    def spy(query, key, value, bias, mask, **options):
        flags = {name: options[name] for name in ("is_causal", "local_window_size") if name in options}
        given.append((flags, mask is not None))
        return compute(query, key, value, bias, mask, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)

    @nym.named_jit
    def attend_by(implementation, inputs):
        return [attend(implementation, *inputs, mask) for mask, _, _ in expected]

    assert_leaves_close(attend_by("jax", inputs), attend_by("plain", inputs))
    assert given == [(flags, is_array) for _, flags, is_array in expected]


def test_splash_attention_equals_the_plain_one(draw):
    """The kernel for TPUs, which Pallas interprets on CPUs."""
    QPos, KPos = Pos.resize(128), KeyPos.resize(128)
    ids, key_ids = draw_segments(draw, QPos, KPos)
    key_ids = key_ids + (nym.arange(Batch) == 2)  # of a sequence without keys of the first segment
    mask = Mask.causal() & Mask.sliding_window(30) & Mask.segment_ids(ids, key_ids)
    options = {"mask": mask, "sinks": draw(Heads, Group), "soft_cap": 2.0, "scale": 0.3}
    inputs = draw_inputs(draw, QPos, KPos)
    assert_leaves_close(differentiate("splash", inputs, **options), differentiate("plain", inputs, **options), 3e-5)


def test_splash_attention_is_sharded_by_the_mapping(draw, explicit_mesh):
    inputs = draw_inputs(draw, Pos.resize(512), KeyPos.resize(512))
    expected = jax.jit(lambda *inputs: attend("plain", *inputs))(*inputs)
    with jax.set_mesh(explicit_mesh), nym.axis_mapping({"pos": "data", "heads": "model"}):
        result = nym.named_jit(lambda *inputs: attend("splash", *inputs))(*nym.shard(inputs))
        assert result.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes), result.ndim)
    assert_leaves_close(jax.device_get(result), expected)


def test_splash_attention_of_shared_keys_is_refused_with_64_bits():
    axes = Heads, Pos.resize(128), HeadDim
    inputs = jax.eval_shape(lambda: (nym.zeros((Group, *axes)), nym.zeros(axes).rename({"pos": "key_pos"})))
    compute = lambda query, key: attend("splash", query, key, key)  # noqa: E731
    assert jax.eval_shape(compute, *inputs).shape == inputs[0].shape
    message = "'splash' cannot compute this: JAX's kernel fails for heads that share keys while `jax_enable"
    with jax.enable_x64(True), refusal(message):
        jax.eval_shape(compute, *inputs)


def test_auto_uses_cudnn_on_gpus_that_have_it(draw, monkeypatch):
    """The choice alone: no GPU is there, so JAX computes the same without the kernel."""
    inputs = [x.astype(jnp.bfloat16) for x in draw_inputs(draw)]
    query, key, value = (nym.concatenate(HeadDim.resize(8), (x, x)) for x in inputs)
    given, compute = [], jax.nn.dot_product_attention

    def spy(*arrays, implementation, **flags):
        given.append((implementation, flags.get("is_causal"), flags.get("local_window_size")))
        return compute(*arrays, implementation="xla", **flags)

    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    device = types.SimpleNamespace(compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for mask in (Mask.causal(), Mask.sliding_window(3)):
        jax.eval_shape(lambda *inputs, mask=mask: attend("auto", *inputs, mask), query, key, value)
    assert given == [("cudnn", True, None), ("cudnn", None, None)]

    def find_why_not(query, key, value, **options):
        choice = nym.nn.explain_attention("key_pos", "head_dim", query, key, value, QPos="pos", **options)
        return choice.implementation, dict(choice.others).get("jax", "").partition(": ")[2]

    whole = [x.astype(jnp.float32) for x in (query, key, value)]
    assert find_why_not(*whole) == ("plain", "cuDNN takes float16 and bfloat16, not float32")
    why = "cuDNN takes heads of up to 128 elements and a multiple of 8, not 4"
    assert find_why_not(*inputs) == ("plain", why)
    odd = query["pos", 0:9]
    why = "cuDNN takes masks of an even number of positions, and axis 'pos' has 9"
    assert find_why_not(odd, key, value, mask=Mask.causal()) == ("plain", why)
    device.compute_capability = "7.5"
    assert find_why_not(query, key, value) == ("plain", "the compute capability of the GPU is 7.5, less than 8.0")
    device.compute_capability = "gfx942"
    assert find_why_not(query, key, value) == ("plain", "there is no NVIDIA GPU")


def test_auto_chooses_by_the_number_of_scores_and_explains():
    shape = jax.ShapeDtypeStruct((4096, 8), jnp.bfloat16)
    query, key = nym.NamedArray(shape, ("pos", "head_dim")), nym.NamedArray(shape, ("key_pos", "head_dim"))
    choice = nym.nn.explain_attention("key_pos", "head_dim", query, key, key, Mask.causal())
    assert choice.implementation == "blocked"
    assert str(choice).splitlines() == [
        "blocked (used)  the scores of a head are many: 16,777,216, more than 4,194,304",
        "splash          on cpu it runs in interpret mode, which is slow",
        "jax             without the kernel of cuDNN it is no better than 'plain': there is no NVIDIA GPU",
        "plain           'blocked' comes first",
    ]
    bias = nym.zeros({"layers": 2, "key_pos": 4096})
    choice = nym.nn.explain_attention("key_pos", "head_dim", query, key, key, bias=bias)
    assert choice.implementation == "plain"
    assert dict(choice.others)["blocked"] == "the bias has axis 'layers', which neither query nor key has"
    jaxpr = jax.make_jaxpr(lambda *x: nym.nn.dot_product_attention("key_pos", "head_dim", *x))(query, key, key)
    assert "scan[" in str(jaxpr)


@pytest.mark.parametrize(
    ("implementation", "options", "reason"),
    [
        ("jax", {"soft_cap": 2.0}, "it has no `soft_cap`; these can: 'splash', 'blocked', 'plain'"),
        ("jax", {"precision": "highest"}, "it takes no `precision`; these can: 'blocked', 'plain'"),
        ("splash", {"bias": nym.zeros({"key_pos": 128})}, "it has no `bias`; these can: 'jax', 'blocked', 'plain'"),
        ("splash", {"mask": nym.ones({"key_pos": 128}, bool)}, "it takes masks of Python numbers and segment ids"),
        ("splash", {"mask": Mask.causal(-1)}, "each query must attend to a key, and the mask hides all keys from some"),
        ("splash", {"attention_dtype": "bfloat16"}, "it computes the scores in float32, not in the `attention_dtype`"),
        ("blocked", {"bias": nym.zeros({"layers": 2})}, "the bias has axis 'layers', which neither query nor key has"),
        ("blocked", {"scale": nym.ones({"key_pos": 128})}, "the scale has axis 'key_pos', which the query lacks"),
    ],
)
def test_a_feature_that_an_implementation_lacks_is_an_error(draw, implementation, options, reason):
    inputs = draw_inputs(draw, Pos.resize(128), KeyPos.resize(128))
    with refusal(f"dot_product_attention: implementation {implementation!r} cannot compute this: {reason}"):
        attend(implementation, *inputs, **options)


def test_errors_of_implementations_name_axes_and_sizes(draw):
    query, key, value = draw_inputs(draw)
    with refusal("it needs a multiple of 128 positions, and axis 'pos' has size 10"):
        attend("splash", query, key, value)
    with refusal("it needs keys and values of the same size, here 4 and 5"):
        attend("jax", query, key, draw(KeyPos, Batch, Heads, nym.Axis("out", 5)))
    with refusal("the key has axis 'heads', which the value lacks"):
        attend("jax", query, key, draw(KeyPos, Batch, HeadDim))
    with refusal("it needs query, key and value of one dtype, here bfloat16, float32, float32"):
        attend("jax", query.astype(jnp.bfloat16), key, value)
