"""What the package relies on beyond what JAX promises: one test for each function of `axonym._jax_compat`."""

import jax
import jax.numpy as jnp
import pytest

from axonym import _jax_compat

from .processes import launched


def test_inline_option_leaves_nothing_in_the_jaxpr():
    inner = jax.jit(lambda x: x + 1, inline=_jax_compat.get_inline_option())
    jaxpr = jax.make_jaxpr(lambda x: inner(x) * 2)(1.0)
    assert [str(equation.primitive) for equation in jaxpr.eqns] == ["add", "mul"]


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, jax.checkpoint])
def test_tracing_is_seen_under_each_transformation(transform):
    seen = []

    def fn(x):
        seen.append(_jax_compat.is_tracing())
        return x

    transform(fn)(jnp.ones(2) if transform is jax.vmap else jnp.float32(1))
    assert seen == [True]
    assert not _jax_compat.is_tracing()


LATE = """
from axonym import _jax_compat as compat

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
from axonym import _jax_compat as compat

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

CLUSTER = """
from axonym import _jax_compat as compat

try:
    jax.distributed.initialize(cluster_detection_method="deactivate")
except ValueError as error:
    assert compat.is_unknown_cluster_error(error), error
else:
    raise AssertionError("no error")
"""


def test_late_initialize_error_is_recognised():
    [done] = launched(LATE, processes=1)
    assert done.code == 0, done.output


def test_coordination_client_and_its_status_codes_are_recognised():
    [done] = launched(STORE, processes=1)
    assert done.code == 0, done.output


def test_unknown_cluster_error_is_recognised():
    [done] = launched(CLUSTER, processes=1)
    assert done.code == 0, done.output


def test_arrays_on_different_devices_raise_a_device_mismatch(auto_mesh, explicit_mesh):
    one, other = (jax.device_put(jnp.ones(8), jax.devices()[at]) for at in (1, 2))
    reordered = jax.sharding.Mesh(explicit_mesh.devices[::-1], explicit_mesh.axis_names, explicit_mesh.axis_types)
    meshes = explicit_mesh, reordered
    sharded = [jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("data"))) for mesh in meshes]
    for mesh, arguments in ((None, (one, other)), (auto_mesh, (one,)), (None, sharded), (explicit_mesh, sharded[1:])):
        with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"incompatible devices|mesh|Mesh") as caught:
            jax.jit(lambda *xs: sum(xs))(*arguments)
        assert _jax_compat.is_device_mismatch_error(caught.value)
    assert not _jax_compat.is_device_mismatch_error(ValueError("another error"))
