"""`named_jit`: what it looks like before it runs, its options and methods, and its stages."""

import copy
import gc
import pickle
import re
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym
from axonym._ground.caches import CACHE_SIZE

from ...refusals import refusal
from ..arrays import COLUMNS, NAMES, ROWS, VALUES, array, lies


SHAPE = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), NAMES)
PAIR = np.ones(2, np.float32)


def test_mappings_without_a_mesh_are_errors_and_one_in_force_warns():
    rule = nym.PathShardingRule({"x": P("data")})
    for options, text in [
        ({"axis_resources": ROWS}, "which has a mapping of its own, "),
        ({"out_axis_resources": ROWS}, "which has a mapping of its own, "),
        ({"in_axis_resources": ROWS}, "`tripled`, which shards its arguments, "),
        ({"in_axis_resources": nym.AxisMapping({}, fallback=rule)}, "`tripled`, which shards its arguments, "),
    ]:
        with refusal(f"{text}needs a mesh; set one with `jax.set_mesh(mesh)`"):
            nym.named_jit(tripled.__wrapped__, **options)(array())
    text = r"a mapping is active where `tripled` is traced, but no mesh, so nothing is sharded; use `jax.set_mesh`"
    fn = nym.named_jit(tripled.__wrapped__)
    with nym.axis_mapping(ROWS):
        with pytest.warns(RuntimeWarning, match=text) as caught:
            fn(array())
        assert caught[0].filename == __file__
        fn(array())  # traced already, so it says no more


class Counter(eqx.Module):
    step: jax.Array
    by: int = 2

    @nym.named_jit
    def __call__(self, n):
        return self.step + n

    @nym.named_jit(donate_args=(False, True))
    def advanced(self, n, *, twice=False):
        """Advances."""
        return Counter(self.step + n * (2 * self.by if twice else self.by), self.by)

    @staticmethod
    @nym.named_jit
    def zero(n):
        return n * 0


def test_methods():
    counter = Counter(jnp.ones(2))
    np.testing.assert_array_equal(counter(PAIR), [2, 2])
    np.testing.assert_array_equal(counter.zero(PAIR), [0, 0])
    np.testing.assert_array_equal(counter.advanced(PAIR, twice=True).step, [5, 5])
    np.testing.assert_array_equal(Counter.advanced(counter, PAIR).step, [3, 3])
    assert counter.advanced(PAIR).by == 2
    assert (Counter.advanced.__doc__, counter.advanced.__name__) == ("Advances.", "advanced")
    assert Counter.advanced.__wrapped__.__name__ == "advanced"
    assert counter.advanced.eval_shape(PAIR).step == jax.ShapeDtypeStruct((2,), np.float32)
    compiled = counter.advanced.lower(PAIR, twice=True).compile()
    np.testing.assert_array_equal(compiled(counter, PAIR, twice=True).step, [5, 5])
    Counter(np.ones(3, np.float32)).advanced.eval_shape(np.float32(1), twice=True)
    shown = counter.advanced.explain_retrace()
    assert "; changed since the nearest earlier trace: self.step: float32[2] -> float32[3]" in shown
    assert len(counter.advanced.trace(PAIR).jaxpr.eqns) > 0
    counter.advanced.clear_cache()


def test_takes_any_callable():
    class Lowering(eqx.Module):
        lower: float = 3.0

        def __call__(self, x):
            return x * self.lower

    fn = nym.named_jit(Lowering())
    assert fn(PAIR).tolist() == fn.lower(PAIR).compile()(PAIR).tolist() == [3, 3]
    assert nym.named_jit(nym.named_jit(jnp.negative))(PAIR).tolist() == [-1, -1]
    for wrong in ({"batch": "data"}, nym.AxisMapping(), 3):
        with pytest.raises(TypeError, match=r"`named_jit` compiles a function, not .*; give a mapping as `axis_resou"):
            nym.named_jit(wrong)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("static_argnums", "arguments that are not arrays are static already"),
        ("donate_argnums", "use `donate_args`"),
        ("donate_argnames", "use `donate_args` or `donate_kwargs`"),
        ("in_shardings", "use `in_axis_resources`"),
        ("out_shardings", "use `out_axis_resources`"),
        ("donate_arg", "did you mean 'donate_args'?"),
        ("device", "put the arguments on it, as with `jax.device_put`"),
        ("nothing_like_it", "it takes axis_resources, backend, compiler_options, donate_args, donate_kwargs, "),
    ],
)
def test_other_options_are_refused_with_the_remedy(option, remedy):
    for form in (lambda **options: nym.named_jit(jnp.sin, **options), nym.named_jit):
        with pytest.raises(TypeError, match=f"`named_jit` has no option `{option}`; {remedy}."):
            form(**{option: (0,)})


def test_options_of_jit_are_passed_on():
    with refusal("`compiler_options` is a mapping from options of XLA to values, not 'xla_dump_to'.", TypeError):
        nym.named_jit(abs, compiler_options="xla_dump_to")
    texts = [nym.named_jit(lambda x, y: x, keep_unused=kept).lower(PAIR, VALUES).as_text() for kept in (True, False)]
    assert ["tensor<8x4xf32>" in text for text in texts] == [True, False]
    inlined = [compiled(lambda x: x * 2, inline=True) for compiled in (nym.named_jit, jax.jit)]
    assert len({str(jax.make_jaxpr(fn)(PAIR)) for fn in inlined}) == 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_flag"):
        nym.named_jit(lambda x: x * 2, compiler_options={"no_such_flag": True})(PAIR)
    with pytest.warns(DeprecationWarning, match="backend and device argument on jit is deprecated"):
        fn = nym.named_jit(lambda x: x * 2, backend="cpu")
    assert fn(PAIR).device == jax.local_devices(backend="cpu")[0]


class Model:
    @nym.named_jit
    def doubled(self, x):
        return x * 2


def test_a_method_is_the_same_wherever_it_is_taken_from_its_object():
    model = Model()
    copied = copy.copy(model.doubled)
    assert model.doubled == model.doubled == copied != Model().doubled
    assert hash(model.doubled) == hash(copied)
    call = nym.named_jit(lambda fn, x: fn(x))
    for _ in range(2):
        np.testing.assert_array_equal(call(model.doubled, PAIR), [2, 2])
    assert call.trace_count == 1
    call.clear_cache()
    call(model.doubled, PAIR)
    assert call.trace_count == 2


def test_an_argument_may_be_called_self():
    fn = nym.named_jit(lambda self, *, args=1, kwargs=1: self * 2)
    arguments = {"self": PAIR, "args": 2, "kwargs": 3}
    assert fn.eval_shape(**arguments).shape == (2,)
    for call in (fn, fn.lower(**arguments).compile(), fn.trace(**arguments).lower().compile()):
        np.testing.assert_array_equal(call(**arguments), [2, 2])


@nym.named_jit
def tripled(x):
    return x * 3


def test_copied_and_pickled_as_functions_are():
    for copied in (copy.copy(tripled), copy.deepcopy([tripled])[0], pickle.loads(pickle.dumps(tripled))):
        assert copied is tripled
    local = nym.named_jit(lambda x: x)
    assert copy.deepcopy(local) is local
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"<lambda>|<locals>|local object"):
        pickle.dumps(local)


def test_an_error_keeps_no_array_alive():
    def refuse(x):
        raise ValueError("not today")

    x = jnp.ones(3)
    kept = weakref.ref(x)
    with pytest.raises(ValueError, match="not today"):
        nym.named_jit(refuse)(x)
    gc.disable()
    try:
        del x
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("donate", [None, (True, False)])
def test_arrays_have_the_paths_of_their_arguments_in_programs(donate):
    def step(state, batch, *rest, lr, flag=True):
        return {"w": state["w"] * lr + batch.array[0] + rest[0]}

    fn, scalar = nym.named_jit(step, donate_args=donate), np.float32(1)
    state = {"w": nym.NamedArray(np.ones(4, np.float32), "embed"), "static": "text"}
    traced = fn.trace(state, nym.NamedArray(PAIR, "batch"), scalar, lr=scalar, flag=False)
    text = traced.lower().compile().as_text()
    names = [name.replace("\\", "") for name in re.findall(r'parameter\(\d+\).*op_name="([^"]*)"', text)]
    assert {name for name in names if "/" not in name} == {"state['w']", "batch", "rest[0]", "lr"}
    info = traced.jaxpr.debug_info
    assert info.arg_names == ("state['w']", "batch", "rest[0]", "lr")
    assert info.func_src_info.startswith("step at ") and "test_named_jit.py" in info.func_src_info


# What it looks like before it runs


@nym.named_jit(axis_resources=ROWS, in_axis_resources=ROWS, retrace_warning=False)  # traced by each test, in its way
def applied(x, act, *, scale=2.0):
    return {"y": act(x) * scale, "text": "text"}


def test_every_stage_takes_the_arguments_of_the_function(mesh):
    traced = applied.trace(SHAPE, nym.negative, scale=3.0)
    lowered = traced.lower()
    compiled = lowered.compile()
    for stage in (traced, lowered, compiled):
        assert stage.out_info["text"] == "text"
        assert (stage.out_info["y"].names, stage.out_info["y"].array.shape) == (NAMES, (8, 4))
    assert "stablehlo.negate" in lowered.as_text()
    assert compiled.memory_analysis().argument_size_in_bytes == VALUES.nbytes // 4
    result = compiled(array(), nym.negative, scale=3.0)
    np.testing.assert_array_equal(np.asarray(result["y"]), -3 * VALUES)
    assert lies(result["y"], "data", None)
    assert result["text"] == "text"
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = traced.no_such_thing
    for call in (
        lambda fn: fn(array(), nym.exp, scale=3.0),
        lambda fn: fn(array(), nym.negative, scale=2.0),
        lambda fn: fn(array(), nym.negative),
        lambda fn: fn(nym.NamedArray(VALUES, ("batch", "pos")), nym.negative, scale=3.0),
        lambda fn: fn(x=array(), act=nym.negative, scale=3.0),
    ):
        with refusal("The function was compiled for arguments of another structure or other static values", TypeError):
            call(compiled)
    with pytest.raises(TypeError, match=r"compiled with float32.* and called with float32"):
        compiled(nym.NamedArray(np.ones((16, 4), np.float32), NAMES), nym.negative, scale=3.0)


def test_a_compiled_function_knows_its_arguments_whatever_caches_forget():
    fn = nym.named_jit(lambda x, scale, kind: x * scale)
    x = nym.NamedArray(PAIR, "i")
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
    threads, x = 4, nym.NamedArray(PAIR, "i")
    start = threading.Barrier(threads)

    def compile_one(fn):
        start.wait()
        return fn.lower(x, "kind", scale=2.0).compile()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(10):
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
    text = (
        r"`add`: state\['w'\], float32\[8, 4\], is on the mesh \(data: 2, model: 2\).*; the active mesh is "
        r"\(data: 4, model: 2\).*; give the `ShapeDtypeStruct` a sharding on the active mesh"
    )
    with pytest.raises(ValueError, match=text):
        fn.lower({"w": there}, here)
    text = r"`add`: x, float32.* is on .*; state\['w'\] is on .*give the `ShapeDtypeStruct` the same dev"
    with jax.set_mesh(None), pytest.raises(ValueError, match=text):
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


def test_shapes_are_enough_to_trace_and_to_lower_for_another_platform(mesh):
    for shape in (SHAPE, nym.shard(SHAPE, COLUMNS), array()):
        result = applied.eval_shape(shape, nym.negative)
        assert result["text"] == "text"
        assert (result["y"].names, result["y"].array.shape) == (NAMES, (8, 4))
        traced = applied.trace(shape, nym.negative, scale=1)
        assert traced.jaxpr.in_avals[0].shape == (8, 4)
        assert "sdy.sharding" in traced.lower(lowering_platforms=("tpu",)).as_text()
    abstract, placed = mesh.abstract_mesh, nym.shard(SHAPE, ROWS)
    assert nym.named_jit(result_of).eval_shape(placed)["y"].array == jax.eval_shape(
        jax.jit(lambda x: x * 2), placed.array
    )
    with jax.set_mesh(None):
        assert nym.named_jit(result_of).eval_shape(SHAPE)["y"].array.sharding is None
        with jax.sharding.use_abstract_mesh(abstract):
            text = applied.trace(SHAPE, nym.negative).lower(lowering_platforms=("cpu",)).as_text()
            shape = nym.named_jit(result_of, ROWS, in_axis_resources=COLUMNS).eval_shape(SHAPE)
        fn = nym.named_jit(lambda x: x.sum(), donate_args=(True,))
        with pytest.warns(UserWarning, match="Some donated buffers were not usable"):  # lowering leaves that to JAX
            fn.lower(SHAPE)
    assert '%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}' in text
    assert shape["y"].array.sharding == NamedSharding(abstract, P("data", None))


def result_of(x):
    return {"y": x * 2, "plain": x.array.sum(), "text": "text"}


@pytest.mark.parametrize(
    "options", [{"axis_resources": ROWS}, {"axis_resources": ROWS, "out_axis_resources": COLUMNS}, {}]
)
def test_shapes_of_results_have_the_sharding_that_the_results_will_have(mesh, options):
    fn = nym.named_jit(result_of, **options)
    with nym.axis_mapping({"batch": "model"}):
        x = nym.shard(array())
        result = fn(x)
        for given in (x, nym.shard(SHAPE)):
            shape = fn.eval_shape(given)
            assert shape["y"].array.sharding.is_equivalent_to(result["y"].sharding, 2)
            assert shape["text"] == "text"
        compiled = fn.lower(nym.shard(SHAPE)).compile()
    shardings = compiled.output_shardings.arrays
    assert any(sharding.is_equivalent_to(result["y"].sharding, 2) for sharding in shardings)
    assert fn.trace_count == 1
