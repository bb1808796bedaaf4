"""`named_jit`: the mappings of a compiled function, what it looks like before it runs, and the options it takes."""

import copy
import gc
import pickle
import re
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym

from ..arrays import COLUMNS, NAMES, ROWS, VALUES, array, lies


@pytest.fixture
def device_puts(monkeypatch):
    """The number of arrays in each call of `jax.device_put`."""
    calls, real = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda x, *args: calls.append(len(x)) or real(x, *args))
    return calls


def test_without_mappings_and_mesh_it_compiles():
    np.testing.assert_array_equal(nym.named_jit(lambda x: x * 2)(array()).array, 2 * VALUES)
    np.testing.assert_array_equal(nym.named_jit(lambda x: x * 2, {}, in_axis_resources={})(array()).array, 2 * VALUES)


def test_its_mapping_is_in_force_inside_in_place_of_the_one_outside(mesh):
    seen = []

    @nym.named_jit(axis_resources=ROWS)
    def fn(x):
        seen.append(nym.current_mapping())
        return x * 2

    with nym.axis_mapping(COLUMNS):
        assert lies(fn(array()), "data", None)
        assert nym.current_mapping() == COLUMNS
    assert seen == [nym.AxisMapping(ROWS)]


def test_results_follow_their_mapping_the_inner_one_or_the_active_one(mesh):
    def double(x):
        return {"y": x * 2, "constant": array(), "rest": "text"}

    with nym.axis_mapping({"embed": "data"}):
        for options, spec in [
            ({}, (None, "data")),
            ({"axis_resources": ROWS}, ("data", None)),
            ({"axis_resources": ROWS, "out_axis_resources": COLUMNS}, (None, "model")),
            ({"out_axis_resources": COLUMNS}, (None, "model")),
            ({"axis_resources": {}}, (None, None)),
            ({"axis_resources": ROWS, "out_axis_resources": {}}, (None, None)),
        ]:
            result = nym.named_jit(double, **options)(nym.shard(array(), ROWS))
            assert lies(result["y"], *spec), options
            assert lies(result["constant"], *spec), options
            assert result["rest"] == "text"


def test_without_any_mapping_results_are_left_alone(mesh):
    x = nym.shard(array(), ROWS)
    assert lies(nym.named_jit(lambda x: x * 2, in_axis_resources=ROWS)(x), "data", None)
    assert "sharding_constraint" not in str(nym.named_jit(lambda x: x * 2).trace(x).jaxpr)


@pytest.mark.parametrize(
    "given",
    [
        lambda: jax.device_put(VALUES, jax.devices()[5]),
        lambda: jnp.asarray(VALUES),
        lambda: VALUES,
        lambda: nym.shard(array(), {"embed": "data"}).array,
    ],
    ids=["on another device", "uncommitted", "NumPy", "sharded otherwise"],
)
def test_arguments_are_resharded_on_entry_in_one_go(mesh, device_puts, given):
    fn = nym.named_jit(lambda x, *, more: (x * 2, more["y"] + 1, more["plain"]), in_axis_resources=ROWS)
    with jax.set_mesh(mesh):
        x = nym.NamedArray(given(), NAMES)
    device_puts.clear()
    one, two, plain = fn(x, more={"y": x, "plain": np.ones(3), "text": "text"})
    assert device_puts == [2]
    assert lies(one, "data", None)
    assert lies(two, "data", None)
    np.testing.assert_array_equal(np.asarray(one), 2 * VALUES)
    np.testing.assert_array_equal(plain, np.ones(3))


def test_arguments_in_place_are_not_touched(mesh, device_puts):
    fn = nym.named_jit(lambda x: x * 2, ROWS, in_axis_resources=ROWS, out_axis_resources=ROWS)
    x = nym.shard(array(), ROWS)
    device_puts.clear()
    for _ in range(3):
        x = fn(x)
    assert not device_puts
    np.testing.assert_array_equal(np.asarray(x), 8 * VALUES)


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=NAMES)
    act: object = nym.tanh


def test_declared_fields_are_resharded_on_entry_and_in_results(mesh):
    fn = nym.named_jit(lambda s: Scale(s.weight * 2, s.act), in_axis_resources=ROWS, out_axis_resources=COLUMNS)
    assert lies(fn(Scale(VALUES)).weight, None, "model")
    assert fn(Scale(VALUES)).act is nym.tanh
    inside = nym.named_jit(lambda s: jax.typeof(s.weight).sharding.spec, in_axis_resources=ROWS)(Scale(VALUES))
    assert inside == (P("data", None) if "Explicit" in str(mesh.axis_types) else P(None, None))


def test_arguments_are_constrained_on_entry_inside_jit(mesh):
    fn = nym.named_jit(lambda x: x.array * 2, in_axis_resources=ROWS)
    assert fn(array()).sharding.is_equivalent_to(jax.jit(fn)(nym.named(VALUES, NAMES)).sharding, 2)


def test_mappings_without_a_mesh_are_errors():
    runs = []
    remedy = r"needs a mesh; set one with `jax.set_mesh\(mesh\)`$"
    for options, text in [
        ({"axis_resources": ROWS}, "which has a mapping of its own, "),
        ({"out_axis_resources": ROWS}, "which has a mapping of its own, "),
        ({"in_axis_resources": ROWS}, "`append`, which shards its arguments, "),
    ]:
        with pytest.raises(ValueError, match=text + remedy.rstrip("$")):
            nym.named_jit(runs.append, **options)(array())
    with pytest.raises(ValueError, match="`append`, which shards its arguments, "):
        nym.named_jit(runs.append, in_axis_resources=nym.AxisMapping({}, fallback=Rule()))(array())
    assert not runs


def test_a_mapping_in_force_without_a_mesh_warns():
    doubled = nym.named_jit(lambda x: x * 2)
    text = r"a mapping is active where `<lambda>` is traced, but no mesh, so nothing is sharded; use `jax.set_mesh`"
    with nym.axis_mapping(ROWS):
        with pytest.warns(RuntimeWarning, match=text) as caught:
            assert doubled(array()).shape == (8, 4)
        assert caught[0].filename == __file__
        doubled(array())  # traced already, so it says no more


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
    counter, n = Counter(jnp.ones(2)), np.ones(2, np.float32)
    np.testing.assert_array_equal(counter(n), [2, 2])
    np.testing.assert_array_equal(counter.zero(n), [0, 0])
    np.testing.assert_array_equal(counter.advanced(n, twice=True).step, [5, 5])
    np.testing.assert_array_equal(Counter.advanced(counter, n).step, [3, 3])
    assert counter.advanced(n).by == 2
    assert Counter.advanced.__doc__ == "Advances."
    assert counter.advanced.__name__ == "advanced"
    assert counter.advanced.eval_shape(n).step == jax.ShapeDtypeStruct((2,), np.float32)
    compiled = counter.advanced.lower(n, twice=True).compile()
    np.testing.assert_array_equal(compiled(counter, n, twice=True).step, [5, 5])
    assert len(counter.advanced.trace(n).jaxpr.eqns) > 0
    counter.advanced.clear_cache()


def test_looks_like_the_function():
    def double(x: int) -> int:
        """Doubles."""
        return x * 2

    fn = nym.named_jit(double)
    assert (fn.__name__, fn.__doc__, fn.__wrapped__) == ("double", "Doubles.", double)
    assert "double" in fn.lower(jnp.ones(2)).as_text()


class Rule:
    def apply(self, array):
        return None


class Lowering(eqx.Module):
    lower: float = 3.0

    def __call__(self, x):
        return x * self.lower


def test_takes_any_callable():
    fn = nym.named_jit(Lowering())
    np.testing.assert_array_equal(fn(jnp.ones(2)), [3, 3])
    assert fn.lower(jnp.ones(2)).compile()(jnp.ones(2)).tolist() == [3, 3]
    assert nym.named_jit(nym.named_jit(jnp.sin))(jnp.zeros(2)).tolist() == [0, 0]


@pytest.mark.parametrize("wrong", [{"batch": "data"}, nym.AxisMapping(), 3])
def test_what_is_no_function_is_an_error(wrong):
    text = r"`named_jit` compiles a function, not .*; give a mapping as `axis_resources=`"
    with pytest.raises(TypeError, match=text):
        nym.named_jit(wrong)


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("static_argnums", "arguments that are not arrays are static already"),
        ("static_argnames", "arguments that are not arrays are static already"),
        ("donate_argnums", "use `donate_args`"),
        ("donate_argnames", "use `donate_args` or `donate_kwargs`"),
        ("in_shardings", "use `in_axis_resources`"),
        ("out_shardings", "use `out_axis_resources`"),
        ("donate_arg", "did you mean 'donate_args'?"),
        ("axis_resource", "did you mean 'axis_resources'?"),
        ("device", "put the arguments on it, as with `jax.device_put`"),
        ("nothing_like_it", "it takes axis_resources, backend, compiler_options, donate_args, donate_kwargs, "),
    ],
)
def test_other_options_are_refused_with_the_remedy(option, remedy):
    for form in (lambda **options: nym.named_jit(jnp.sin, **options), nym.named_jit):
        with pytest.raises(TypeError, match=f"`named_jit` has no option `{option}`; {remedy}."):
            form(**{option: (0,)})


def test_options_of_jit_are_passed_on():
    kept = nym.named_jit(lambda x, y: x, keep_unused=True).lower(jnp.ones(2), jnp.ones(3))
    assert "tensor<3xf32>" in kept.as_text()
    assert "tensor<3xf32>" not in nym.named_jit(lambda x, y: x).lower(jnp.ones(2), jnp.ones(3)).as_text()
    inlined = [compiled(lambda x: x * 2, inline=True) for compiled in (nym.named_jit, jax.jit)]
    assert len({str(jax.make_jaxpr(fn)(np.ones(2))) for fn in inlined}) == 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_flag"):
        nym.named_jit(lambda x: x * 2, compiler_options={"no_such_flag": True})(jnp.ones(2))


def test_a_backend_is_passed_on_with_the_warning_of_jax():
    with pytest.warns(DeprecationWarning, match="backend and device argument on jit is deprecated"):
        fn = nym.named_jit(lambda x: x * 2, backend="cpu")
    assert fn(np.ones(2, np.float32)).device == jax.local_devices(backend="cpu")[0]


def test_clear_cache_forgets_what_was_traced():
    traces = []
    fn = nym.named_jit(lambda x: traces.append(x) or x)
    for _ in range(2):
        fn(jnp.ones(2))
        fn(jnp.ones(2))
        fn.clear_cache()
    assert len(traces) == 2


class Model:
    def __init__(self):
        self.calls = []

    @nym.named_jit
    def doubled(self, x):
        return x * 2


def test_a_method_is_the_same_wherever_it_is_taken_from_its_object():
    model = Model()
    other = copy.copy(model.doubled)
    assert model.doubled == model.doubled == other != Model().doubled
    assert hash(model.doubled) == hash(other)
    traces = []
    call = nym.named_jit(lambda fn, x: traces.append(fn) or fn(x))
    for _ in range(2):
        np.testing.assert_array_equal(call(model.doubled, jnp.ones(2)), [2, 2])
    assert len(traces) == 1


def test_an_argument_may_be_called_self():
    fn = nym.named_jit(lambda self, *, args=1, kwargs=1: self * 2)
    arguments = {"self": jnp.ones(2), "args": 2, "kwargs": 3}
    np.testing.assert_array_equal(fn(**arguments), [2, 2])
    assert fn.eval_shape(**arguments).shape == (2,)
    np.testing.assert_array_equal(fn.lower(**arguments).compile()(**arguments), [2, 2])
    np.testing.assert_array_equal(fn.trace(**arguments).lower().compile()(**arguments), [2, 2])


@nym.named_jit
def tripled(x):
    return x * 3


def test_copied_and_pickled_as_functions_are():
    for one in (copy.copy(tripled), copy.deepcopy([tripled])[0], pickle.loads(pickle.dumps(tripled))):
        assert one is tripled
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


def _find_argument_names(fn, *args, **kwargs):
    text = fn.lower(*args, **kwargs).compile().as_text()
    names = re.findall(r'parameter\(\d+\).*op_name="([^"]*)"', text)
    return [name.replace("\\", "") for name in names]


@pytest.mark.parametrize("donate", [None, (True, False)])
def test_arrays_have_the_paths_of_their_arguments_in_programs(donate, mesh):
    def step(state, batch, *rest, lr, flag=True):
        return {"w": state["w"] * lr + batch.sum() + rest[0]}

    fn = nym.named_jit(step, donate_args=donate)
    with jax.set_mesh(mesh):
        state = {"w": nym.ones({"embed": 4}), "static": "text"}
        found = _find_argument_names(fn, state, nym.ones({"batch": 8}), jnp.ones(()), lr=jnp.ones(()), flag=False)
        traced = fn.trace(state, nym.ones({"batch": 8}), jnp.ones(()), lr=jnp.ones(()))
    assert {name for name in found if "/" not in name} == {"state['w']", "batch", "rest[0]", "lr"}
    info = traced.jaxpr.jaxpr.debug_info
    assert info.arg_names == ("state['w']", "batch", "rest[0]", "lr")
    assert info.func_src_info.startswith("step at ") and "test_named_jit.py" in info.func_src_info
