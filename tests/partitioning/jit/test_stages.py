"""What a compiled function looks like before it runs: traced, lowered, compiled, and the shapes of its results."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym
from axonym.named._cache import CACHE_SIZE

from ..arrays import COLUMNS, NAMES, ROWS, VALUES, array, lies


SHAPE = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), NAMES)


@nym.named_jit(axis_resources=ROWS, in_axis_resources=ROWS, retrace_warning=False)  # traced by each test, in its way
def applied(x, act, *, scale=2.0):
    return {"y": act(x) * scale, "text": "text"}


def test_ahead_of_time(mesh):
    lowered = applied.lower(SHAPE, nym.negative, scale=3.0)
    assert "stablehlo.negate" in lowered.as_text()
    compiled = lowered.compile()
    assert compiled.memory_analysis().argument_size_in_bytes == VALUES.nbytes // 4
    result = compiled(array(), nym.negative, scale=3.0)
    np.testing.assert_array_equal(np.asarray(result["y"]), -3 * VALUES)
    assert lies(result["y"], "data", None)
    assert result["text"] == "text"


@pytest.mark.parametrize(
    "call",
    [
        lambda fn: fn(array(), nym.exp, scale=3.0),
        lambda fn: fn(array(), nym.negative, scale=2.0),
        lambda fn: fn(array(), nym.negative),
        lambda fn: fn(nym.NamedArray(VALUES, ("batch", "pos")), nym.negative, scale=3.0),
        lambda fn: fn(x=array(), act=nym.negative, scale=3.0),
    ],
    ids=["static argument", "static keyword", "left out", "names", "by keyword"],
)
def test_a_compiled_function_is_for_one_structure_and_its_static_values(mesh, call):
    compiled = applied.lower(SHAPE, nym.negative, scale=3.0).compile()
    with pytest.raises(
        TypeError, match="The function was compiled for arguments of another structure or other static values"
    ):
        call(compiled)
    with pytest.raises(TypeError, match=r"compiled with float32.* and called with float32"):
        compiled(nym.NamedArray(np.ones((16, 4), np.float32), NAMES), nym.negative, scale=3.0)


def test_a_compiled_function_knows_its_arguments_whatever_caches_forget():
    fn = nym.named_jit(lambda x, scale, kind: x * scale)
    x = nym.ones({"i": 2})
    compiled = fn.lower(x, 3.0, "kind").compile()
    plain = nym.named_jit(lambda x: -x).lower(x).compile()
    for forget in (lambda: None, fn.clear_cache):
        forget()
        assert compiled(x, 3.0, "kind").sum().item() == 6.0
        for number in range(CACHE_SIZE + 1):
            with pytest.raises(TypeError, match="other static values"):
                compiled(x, 3.0, number)
        assert compiled(x, float("3"), "kind").sum().item() == 6.0
        with pytest.raises(TypeError, match="other static values"):
            compiled(x, 3, "kind")
    assert plain(x).sum().item() == -2.0


def test_threads_that_compile_at_once_know_their_arguments():
    threads, x = 4, nym.ones({"i": 2})
    start = threading.Barrier(threads)

    def compile_one(fn):
        start.wait()
        return fn.lower(x, "kind", scale=2.0).compile()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(20):
                fn = nym.named_jit(lambda x, kind, *, scale: x * scale)
                for compiled in pool.map(compile_one, [fn] * threads):
                    assert compiled(x, "kind", scale=2.0).sum().item() == 4.0
    finally:
        sys.setswitchinterval(interval)


def shape_on(mesh, spec):
    return nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(mesh, spec)), NAMES)


def add(state, x, unused=None):
    return state["w"] + x


def test_shapes_on_other_devices_are_named(mesh):
    fn = nym.named_jit(add)
    few = jax.sharding.Mesh(mesh.devices[:2], mesh.axis_names, axis_types=mesh.axis_types)
    here, there = shape_on(mesh, P("data")), shape_on(few, P("data"))
    with pytest.raises(
        ValueError,
        match=r"`add`: state\['w'\], float32\[8, 4\], is on the mesh \(data: 2, model: 2\).*; the active mesh is "
        r"\(data: 4, model: 2\).*; give the `ShapeDtypeStruct` a sharding on the active mesh",
    ):
        fn.lower({"w": there}, here)
    with (
        jax.set_mesh(None),
        pytest.raises(
            ValueError,
            match=r"`add`: x, float32.* is on .*; state\['w'\] is on .*give the `ShapeDtypeStruct` the same dev",
        ),
    ):
        fn.lower({"w": there}, here)
    fn.lower({"w": here}, here)


def test_a_compiled_function_names_an_array_that_is_sharded_otherwise(mesh):
    compiled = nym.named_jit(add).lower({"w": shape_on(mesh, P("data"))}, shape_on(mesh, P()), VALUES).compile()
    rows, columns, everywhere = (nym.shard(array(), mapping) for mapping in (ROWS, COLUMNS, {}))
    np.testing.assert_array_equal(np.asarray(compiled({"w": rows}, everywhere, VALUES)), 2 * VALUES)
    np.testing.assert_array_equal(np.asarray(compiled({"w": array()}, array(), VALUES)), 2 * VALUES)
    with pytest.raises(
        ValueError,
        match=r"`add` was compiled for state\['w'\], float32\[8, 4\], with sharding P\('data',\) on \(data: 4, "
        r"model: 2\) of .*, and called with P\(None, 'model'\) on .*; move it with `shard`, or `lower` and `compile` ",
    ):
        compiled({"w": columns}, everywhere, VALUES)
    with pytest.raises(
        ValueError, match=r"was compiled for x, .* with sharding P\(\) on .*, and called with P\('data'"
    ):
        compiled({"w": rows}, rows, VALUES)


def test_shapes_are_enough_to_trace(mesh):
    for shape in (SHAPE, nym.shard(SHAPE, COLUMNS), array()):
        result = applied.eval_shape(shape, nym.negative)
        assert result["text"] == "text"
        assert (result["y"].names, result["y"].array.shape) == (NAMES, (8, 4))
        traced = applied.trace(shape, nym.negative, scale=1)
        assert traced.jaxpr.in_avals[0].shape == (8, 4)
        assert traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_abstract_mesh_is_enough_to_trace_and_lower(kind):
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types=kind).abstract_mesh
    with jax.sharding.use_abstract_mesh(mesh):
        text = applied.trace(SHAPE, nym.negative).lower(lowering_platforms=("cpu",)).as_text()
        assert applied.eval_shape(SHAPE, nym.negative)["y"].shape == (8, 4)
    assert '%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}' in text


def test_every_stage_takes_the_arguments_of_the_function(mesh):
    traced = applied.trace(array(), nym.negative, scale=3.0)
    for stage in (traced, traced.lower(), traced.lower().compile()):
        assert stage.out_info["text"] == "text"
        assert (stage.out_info["y"].names, stage.out_info["y"].array.shape) == (NAMES, (8, 4))
    result = traced.lower().compile()(array(), nym.negative, scale=3.0)
    np.testing.assert_array_equal(np.asarray(result["y"]), -3 * VALUES)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = traced.no_such_thing


def result_of(x):
    return {"y": x * 2, "plain": x.array.sum(), "text": "text"}


OPTIONS = {
    "own": {"axis_resources": ROWS},
    "out": {"axis_resources": ROWS, "out_axis_resources": COLUMNS},
    "in force": {},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_shapes_of_results_have_the_sharding_that_the_results_will_have(mesh, options):
    fn = nym.named_jit(result_of, **OPTIONS[options])
    with nym.axis_mapping({"batch": "model"}):
        x = nym.shard(array())
        result = fn(x)
        for given in (x, nym.shard(SHAPE)):
            shape = fn.eval_shape(given)
            assert shape["y"].array.sharding.is_equivalent_to(result["y"].sharding, 2)
            assert shape["text"] == "text"
        compiled = fn.lower(nym.shard(SHAPE)).compile()
    assert any(one.is_equivalent_to(result["y"].sharding, 2) for one in compiled.output_shardings.arrays)
    assert fn.trace_count == 1


def test_shapes_have_shardings_on_an_abstract_mesh(mesh):
    abstract = mesh.abstract_mesh
    with jax.set_mesh(None), jax.sharding.use_abstract_mesh(abstract):
        shape = nym.named_jit(result_of, ROWS, in_axis_resources=COLUMNS).eval_shape(SHAPE)
    assert shape["y"].array.sharding == NamedSharding(abstract, P("data", None))
    with jax.set_mesh(None):
        assert nym.named_jit(result_of).eval_shape(SHAPE)["y"].array.sharding is None


def test_without_a_mapping_shapes_have_the_sharding_that_jax_knows(mesh):
    shape = nym.named_jit(result_of).eval_shape(nym.shard(SHAPE, ROWS))["y"].array
    known = jax.jit(lambda x: x * 2).eval_shape(nym.shard(SHAPE, ROWS).array)
    assert shape == known


def test_what_is_lowered_for_another_platform_needs_no_devices_of_it(mesh):
    lowered = applied.trace(SHAPE, nym.negative).lower(lowering_platforms=("tpu",))
    assert "sdy.sharding" in lowered.as_text()


def test_lowering_leaves_donation_to_jax():
    fn = nym.named_jit(lambda x: x.sum(), donate_args=(True,))
    with jax.set_mesh(None), pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        fn.lower(SHAPE)
