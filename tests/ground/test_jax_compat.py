"""What the package relies on beyond what JAX promises: one test for each function of `axonym._ground.jax_compat`."""

import collections
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P

from axonym._ground import jax_compat

from ..processes import launched


def test_ufunc_has_a_compiled_function():
    add = jax_compat.get_compiled_ufunc(jnp.add)
    assert isinstance(add, type(jax.jit(jnp.add)))
    assert add(1, 2.5) == jnp.add(1, 2.5)


def test_traced_arrays_have_the_type_of_tracers():
    seen = []
    jax.jit(lambda x: seen.append(type(x)))(1.0)
    assert issubclass(seen[0], jax_compat.TRACER)
    assert not issubclass(type(jnp.ones(2)), jax_compat.TRACER)


def test_compilation_is_reported_by_events_of_this_name():
    events = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: events.append(event))
    jax.jit(lambda x: x * 3.5)(jnp.ones(3))
    assert sum(event.startswith(jax_compat.COMPILE_EVENTS) for event in events) >= 3


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_tracing_is_seen_under_each_transformation(transform):
    seen = []

    def fn(x):
        seen.append(jax_compat.is_tracing())
        return x

    transform(fn)(jnp.ones(2) if transform is jax.vmap else jnp.float32(1))
    assert seen == [True]
    assert not jax_compat.is_tracing()


UNKNOWN_CLUSTER = """
from axonym._ground import jax_compat as compat

try:
    jax.distributed.initialize(cluster_detection_method="deactivate")
except ValueError as error:
    assert compat.is_unknown_cluster_error(error), error
else:
    raise AssertionError("no error")
"""

LATE = """
try:
    jax.devices()
    jax.distributed.initialize(f"127.0.0.1:{PORT}", 1, 0)
except RuntimeError as error:
    assert compat.is_late_initialize_error(error), error
else:
    raise AssertionError("no error")
"""

STORE = """
import os
from axonym._ground import jax_compat as compat

start()
client, process, count = compat.find_coordination_client()
assert (process, count) == (0, 1)

def error_of(call, *args):
    try:
        call(*args)
    except jax.errors.JaxRuntimeError as error:
        return error
    raise AssertionError("no error")

assert compat.is_deadline_error(error_of(client.blocking_key_value_get, "absent", 10))
assert compat.is_missing_key_error(error_of(client.key_value_try_get, "absent"))
client.key_value_set("present", "1")
assert compat.is_existing_key_error(error_of(client.key_value_set, "present", "2"))
"""


def test_errors_of_initialize_are_recognised():
    [done] = launched(UNKNOWN_CLUSTER + LATE, processes=1)
    assert done.code == 0, done.output


def test_coordination_client_and_its_status_codes_are_recognised():
    [done] = launched(STORE, processes=1)
    assert done.code == 0, done.output


def test_missing_coordination_client_is_named(monkeypatch):
    state = types.SimpleNamespace(client=object(), process_id=0, num_processes=2)
    monkeypatch.setattr(multihost_utils, "distributed", types.SimpleNamespace(global_state=state))
    with pytest.raises(RuntimeError, match=f"JAX {jax.__version__} does not have its .*key_value_set"):
        jax_compat.find_coordination_client()
    monkeypatch.delattr(multihost_utils, "distributed")
    with pytest.raises(RuntimeError, match="does not have its coordination service where Axonym looks for it"):
        jax_compat.find_coordination_client()


@pytest.mark.parametrize("use_jax", [False, True])
def test_layout_error_is_recognised(use_jax):
    device = collections.namedtuple("Device", "id coords process_index slice_index core_on_chip platform device_kind")
    devices = [device(i, (i % 4, i // 4, 0), 0, 0, 0, "tpu", "TPU v4") for i in range(16)]
    with pytest.raises(jax_compat.LAYOUT_ERRORS, match="Failed to find assignment"):
        if use_jax:
            jax.make_mesh((2, 8), ("a", "b"), (jax.sharding.AxisType.Auto,) * 2, devices=devices)
        else:
            mesh_utils.create_device_mesh((2, 8), devices, allow_split_physical_axes=False)


def test_arrays_on_different_devices_raise_a_device_mismatch(auto_mesh, explicit_mesh):
    one, other = (jax.device_put(jnp.ones(8), jax.devices()[at]) for at in (1, 2))
    reordered = jax.sharding.Mesh(explicit_mesh.devices[::-1], explicit_mesh.axis_names, explicit_mesh.axis_types)
    meshes = explicit_mesh, reordered
    sharded = [jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("data"))) for mesh in meshes]
    for mesh, arguments in ((None, (one, other)), (auto_mesh, (one,)), (None, sharded), (explicit_mesh, sharded[1:])):
        with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"incompatible devices|mesh|Mesh") as caught:
            jax.jit(lambda *xs: sum(xs))(*arguments)
        assert jax_compat.is_device_mismatch_error(caught.value)
    assert not jax_compat.is_device_mismatch_error(ValueError("another error"))


def test_functions_of_jax_that_ask_for_jax_array_are_found():
    asked = []

    @jax.tree_util.register_pytree_node_class
    class Probe:
        def tree_flatten(self):
            return (), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls()

        def __getattr__(self, name):
            if name == "__jax_array__":
                asked.append(jax_compat.find_refusing_jax_functions())
            raise AttributeError(name)

    probe = Probe()
    for call in (jnp.exp, jax.nn.softmax, lambda x: jnp.concatenate([x])):
        with pytest.raises(TypeError, match="requires ndarray or scalar arguments"):
            call(probe)
    assert {functions[0] for functions in asked} == {"exp", "softmax", "concatenate"}
    asked.clear()
    with pytest.raises(TypeError, match="unsupported operand"):
        jnp.ones(2) + probe
    assert asked and not any(asked)


def test_conflicting_shardings_raise_a_sharding_type_error(explicit_mesh):
    one, other = (
        jax.device_put(jnp.ones(8), jax.NamedSharding(explicit_mesh, jax.P(axis))) for axis in ("data", "model")
    )
    for call in (jnp.add, jax.jit(jnp.dot)):
        with pytest.raises(Exception, match="shard") as caught:
            call(one, other)
        assert jax_compat.is_sharding_type_error(caught.value)
    assert not jax_compat.is_sharding_type_error(ValueError("another error"))


def test_jit_names_arguments_by_a_method_that_it_calls_once_for_a_trace():
    class Names:
        calls = 0

        def name_arrays(self, donated, kept):
            self.calls += 1
            return {"model.weight": donated[0], "x": kept[0]}

    def fn(model, x):
        return x

    def traced(donated, kept, static):
        return fn(donated[0], kept[0])

    names = Names()
    jax_compat.set_argument_names(traced, names.name_arrays, fn)
    jitted = jax.jit(traced, static_argnums=2)
    args = ((jnp.ones(2),), (jnp.ones(2),), "static")
    info = jitted.trace(*args).jaxpr.debug_info
    assert info.arg_names == ("model.weight", "x")
    assert info.func_src_info.startswith("fn at ")
    before = names.calls
    for _ in range(3):
        jitted(*args)
    assert names.calls == before > 0


def test_the_platform_is_that_of_the_active_mesh():
    assert jax_compat.find_platform() == jax.default_backend()
    for platform, expected in (("tpu", "tpu"), ("cuda", "gpu")):
        device = jax.sharding.AbstractDevice("any kind", 1, platform)
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((2,), ("data",), abstract_device=device)):
            assert jax_compat.find_platform() == expected


def test_a_linear_pair_has_all_derivatives_and_vmap(explicit_mesh):
    """Its transpose is the one that it was given: here, one that also doubles."""

    class Plan(NamedTuple):
        stored: NamedSharding
        target: NamedSharding

        def add_dim(self, entry):
            return Plan(*(NamedSharding(sharding.mesh, P(entry, *sharding.spec.partitions)) for sharding in self))

    mesh = explicit_mesh.abstract_mesh
    plan = Plan(NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None)))
    gather = jax_compat.make_linear_pair(
        "gather", lambda x, plan: jax.reshard(x, plan.target), lambda x, plan: jax.reshard(2 * x, plan.stored)
    )
    x = jax.device_put(jnp.arange(8.0), NamedSharding(explicit_mesh, P("data")))
    run = jax.jit(lambda x: gather(x, plan))
    np.testing.assert_array_equal(run(x), x)
    assert jax.typeof(run(x)).sharding == plan.target
    np.testing.assert_array_equal(jax.jvp(run, (x,), (x,))[1], x)
    gradient = jax.jit(jax.grad(lambda x: (run(x) ** 2).sum()))(x)
    np.testing.assert_array_equal(gradient, 4 * x)
    assert jax.typeof(gradient).sharding == plan.stored
    np.testing.assert_array_equal(
        jax.jit(jax.vmap(run, in_axes=1, out_axes=1))(jnp.stack([x, x], 1)), jnp.stack([x, x], 1)
    )
    assert jax.typeof(gather(x, plan)).sharding == plan.target  # outside jit


def test_weights_of_products_in_a_vmap_are_reduced_over_its_mesh_axes(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        x = jax.reshard(jnp.arange(16.0).reshape(2, 8), P("model", "data"))
        weight = jax.reshard(jnp.ones(3), P(None))

        def multiply_rows(weight, x, match):
            weight = jax.reshard(weight, P(None, reduced={"data"}))
            dims = ((), ()), ((), ())
            return jax.vmap(lambda row: jax.lax.dot_general(row, match(weight, row), dims))(x)

        def differentiate(match):
            return jax.jit(jax.grad(lambda weight: (multiply_rows(weight, x, match) ** 2).sum()))(weight)

        with pytest.raises(Exception, match="unreduced"):
            differentiate(lambda weight, row: weight)
        gradient = differentiate(jax_compat.reduce_over_mapped_axes)
        np.testing.assert_allclose(gradient, np.full(3, 2 * (np.arange(16.0) ** 2).sum()))


def test_errors_of_a_vmap_over_a_mesh_axis(auto_mesh):
    constrain = jax.vmap(lambda x: jax.lax.with_sharding_constraint(x, P("data")), spmd_axis_name="data")
    with jax.set_mesh(auto_mesh), pytest.raises(ValueError, match="spmd") as caught:
        jax.jit(constrain)(jnp.ones((4, 4)))
    assert jax_compat.is_mapped_twice_error(caught.value)
    double = jax.custom_batching.custom_vmap(lambda x: 2 * x)
    double.def_vmap(lambda size, is_mapped, x: (2 * x, True))
    with pytest.raises(ValueError, match="Linearization") as caught:
        jax.vmap(jax.grad(double))(jnp.ones(4))
    assert jax_compat.is_missing_gradient_error(caught.value)


def test_slices_are_taken_of_arrays_that_vmap_refuses(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        stages, data = explicit_mesh.axis_names[:2]
        values = np.arange(2.0 * explicit_mesh.shape[stages], dtype=np.float32).reshape(-1, 2)
        array = jax.reshard(jnp.asarray(values), P(stages, None, reduced={data}))
        numbers = jax.reshard(jnp.arange(len(values)), P(stages))

        def double(array):
            return jax.vmap(lambda number: 2 * jax_compat.take_mapped_slice(array, number))(numbers)

        with pytest.raises(ValueError, match="reduced"):
            jax.vmap(lambda row: 2 * row)(array)
        doubled = double(array)
        assert doubled.tolist() == (2 * values).tolist()
        assert jax.typeof(doubled).sharding.spec.reduced == {data}


def test_mesh_axes_of_vmap_are_known_and_can_be_used(auto_mesh, explicit_mesh):
    seen = []

    def look(x):
        seen.append((jax_compat.has_spmd_axes(), jax_compat.find_mapped_mesh_axes()))
        return x

    def square_shards(x):
        with jax_compat.use_mapped_mesh_axes():
            return jax.shard_map(lambda shard: shard**2, in_specs=P(None), out_specs=P(None))(x)

    axis = explicit_mesh.axis_names[0]
    with jax.set_mesh(explicit_mesh):
        x = jax.reshard(jnp.ones((explicit_mesh.shape[axis], 2)), P(axis))
        jax.vmap(look)(x)
        with pytest.raises(ValueError, match="subset"):
            jax.vmap(jax.shard_map(look, in_specs=P(None), out_specs=P(None), axis_names={axis}))(x)
        mapped = jax.custom_batching.custom_vmap(square_shards)
        mapped.def_vmap(lambda size, is_mapped, x: (x**2, True))
        jax.vmap(mapped)(x)
    with jax.set_mesh(auto_mesh):
        jax.vmap(look, spmd_axis_name=auto_mesh.axis_names[0])(jnp.ones((2, 2)))
    look(None)
    assert seen == [(False, (axis,)), (True, ()), (False, ())]


def test_splash_attention_is_differentiated_from_results_for_more_keys():
    from jax.experimental.pallas.ops.tpu import splash_attention

    def make_kernel(keys: int, **options: bool):
        mask = splash_attention.MultiHeadMask([splash_attention.FullMask((128, keys))])
        sizes = splash_attention.BlockSizes(*[128] * 3, *[128] * 3, *[128] * 2)
        return splash_attention.make_splash_mha(
            mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=True, **options
        )

    query, key, value, gradient = jnp.asarray(np.random.default_rng(0).normal(size=(4, 1, 256, 8)), jnp.float32)
    query, gradient = query[:, :128], gradient[:, :128]
    result, differentiate = jax.vjp(make_kernel(256), query, key, value)
    d_query, d_key, d_value = differentiate(gradient)
    _, (log_sums,) = make_kernel(256, save_residuals=True)(query, key, value)
    parts = [
        jax_compat.differentiate_splash_attention(
            make_kernel(128), query, key[:, half], value[:, half], None, result, log_sums, gradient
        )
        for half in (slice(128), slice(128, None))
    ]
    np.testing.assert_allclose(parts[0][0] + parts[1][0], d_query, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([part[1] for part in parts], 1), d_key, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([part[2] for part in parts], 1), d_value, atol=1e-5)
