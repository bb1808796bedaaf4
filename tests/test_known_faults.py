"""Faults of JAX and XLA that `docs/known-faults.md` lists, in plain JAX: a test fails once JAX has fixed its fault.

Then remove the fault from the page, and its workaround from the package. They run each night, since they are of JAX
alone, whose newest release may have fixed one.
"""

import asyncio
import contextlib
import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.experimental.ode import odeint
from jax.scipy.sparse.linalg import cg
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P


pytestmark = pytest.mark.thorough
ON_CPU = pytest.mark.skipif(jax.default_backend() != "cpu", reason="This is a fault of XLA's CPU backend.")


def put(mesh, spec: P, *shape: int, dtype=np.float32):
    values = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(dtype)
    return jax.device_put(values, NamedSharding(mesh, spec))


@ON_CPU
@pytest.mark.parametrize("accumulate", [jnp.cumprod, jnp.cumsum])
def test_an_update_reads_elements_that_it_has_overwritten(accumulate):
    def shift(x):
        y = accumulate(x)
        return jax.lax.dynamic_update_slice(y, y[:2], (1,))

    x = jnp.array([2, 3, 4, 5])
    y = np.asarray(accumulate(x))
    assert np.array_equal(jax.jit(shift)(x), [y[0], y[0], y[0], y[3]])
    with jax.disable_jit():
        assert np.array_equal(shift(x), [y[0], y[0], y[1], y[3]])


@pytest.mark.parametrize(("dtype", "largest"), [(jnp.bfloat16, 256), (jnp.float16, 2048)])
def test_sums_of_many_terms_in_16_bits_stop(dtype, largest):
    weight, ids, ones = jnp.ones((), dtype), jnp.zeros(5000, int), jnp.ones(5000, dtype)
    gradient = jax.grad(lambda table: table[ids].astype(jnp.float32).sum())(jnp.zeros(2, dtype))
    updated = jnp.zeros(2, dtype).at[ids].add(ones)
    counts = jnp.bincount(ids, ones, length=2), jnp.histogram(ones, 2, (0, 1))[0][::-1]
    assert [result[0] for result in (gradient, updated, *counts)] == [largest] * 4

    def fold(scale):
        return jax.lax.scan(lambda total, x: (total + (scale * x).astype(jnp.float32), None), 0.0, ones)[0]

    assert jax.grad(fold)(weight) == largest


def test_the_gradient_of_a_weight_that_is_sharded_as_the_next_one():
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    batch, weight = P(("data", "fsdp")), P("fsdp", "tensor")
    arrays = put(mesh, weight, 4, 32) - 1, put(mesh, weight, 32, 16) - 1, put(mesh, batch, 64, 16, 4) - 1

    def compute_gradient(constrain, arrays):
        def compute_loss(first, second, x):
            return jnp.square(constrain(jnp.tanh(x @ first)).sum(1) @ second).mean()

        return np.asarray(jax.jit(jax.grad(compute_loss))(*arrays))

    def constrain(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, batch))

    expected = compute_gradient(lambda x: x, [np.asarray(array) for array in arrays])
    largest = np.abs(expected).max()
    assert np.abs(compute_gradient(constrain, arrays) - expected).max() < 1e-5 * largest
    assert np.abs(compute_gradient(lambda x: x, arrays) - expected).max() > 0.1 * largest


def test_indices_of_8_bits():
    x = jnp.arange(300)
    assert x[jnp.int8(-1)] == 43  # right is 299
    assert jax.lax.dynamic_slice(x, (jnp.int8(-3),), (2,))[0] == 41  # right is 297
    assert jax.nn.one_hot(jnp.uint8(44), 384).sum() == 2
    with pytest.raises(OverflowError, match="Python integer 300 out of bounds for int8"):
        x[jnp.array([0, 5], jnp.int8)]


def test_an_array_of_an_explicit_mesh_moved_to_one_device(explicit_mesh):
    x, device = put(explicit_mesh, P("data"), 8), jax.devices()[0]
    with pytest.raises(ValueError, match="Length of device assignment 1 is not equal to the size of the mesh 8"):
        jax.device_put(x, device) + 1
    assert np.array_equal(jax.device_put(x, jax.sharding.SingleDeviceSharding(device)) + 1, np.asarray(x) + 1)


def test_the_gradient_of_a_constraint_outside_of_jit():
    types = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=types)

    def compute_loss(x):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(None))).sum()

    with jax.set_mesh(mesh):
        x = put(mesh, P("y"), 6)
        assert jax.jit(jax.grad(compute_loss))(x).shape == (6,)
        with pytest.raises(ValueError, match="Expected cotangent type"):
            jax.grad(compute_loss)(x)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_random_numbers_in_16_bits(dtype):
    key = jax.random.key(0)
    drawn = jax.random.categorical(key, jnp.zeros(50_257, dtype), shape=(200,))
    assert drawn.mean() < 2000  # not 25,128
    assert jax.random.bernoulli(key, dtype(1e-5), (100_000,)).mean() > 5e-4
    assert len(np.unique(jax.random.normal(key, (10_000,), dtype).astype(np.float32))) <= 2 ** jnp.finfo(dtype).nmant


def test_a_normal_distribution_truncated_in_its_tail():
    x = jax.random.truncated_normal(jax.random.key(0), 8.0, 9.0, (1000,))
    assert (x == np.nextafter(np.float32(9), np.float32(0))).all()


def test_draws_from_probabilities_that_are_none():
    key, nan = jax.random.key(0), jnp.array([0.25, jnp.nan, 0.25])
    assert (jax.random.choice(key, 3, (10,), p=nan) == 1).all()
    assert (jax.random.categorical(key, nan, shape=(10,)) == 1).all()
    assert not jax.random.bernoulli(key, nan[1], (10,)).any()
    assert set(jax.random.choice(key, 3, (10,), p=jnp.array([1.0, -0.5, 0.5])).tolist()) <= {0, 1, 2}


def test_integers_wrap_around_in_small_dtypes():
    x = jnp.arange(3, dtype=jnp.int8)
    assert (jnp.clip(x, 0, 200) == -56).all() and not (x < 200).any() and (x + 200 == x - 56).all()


def test_nans_are_not_looked_for_after_a_context_has_been_left():
    def look_for_nans(turn_on):
        log = jax.jit(jnp.log)
        assert jnp.isnan(log(-1.0))
        with turn_on():
            return bool(jnp.isnan(log(-1.0)))

    @contextlib.contextmanager
    def configure():
        jax.config.update("jax_debug_nans", True)
        try:
            yield
        finally:
            jax.config.update("jax_debug_nans", False)

    def leave_context():
        with jax.debug_nans(False):
            pass
        return look_for_nans(configure)

    with ThreadPoolExecutor(1) as thread, pytest.raises(FloatingPointError, match="invalid value"):
        thread.submit(look_for_nans, configure).result()
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(leave_context).result()
        with pytest.raises(FloatingPointError, match="invalid value"):
            thread.submit(look_for_nans, lambda: jax.debug_nans(True)).result()


@ON_CPU
@pytest.mark.parametrize("transform", [jnp.fft.fft, jnp.fft.irfft])
def test_the_gradient_of_a_transform_fails_for_its_layout(explicit_mesh, transform):
    with jax.set_mesh(explicit_mesh):
        x = put(explicit_mesh, P("data", "model"), 8, 4, dtype=np.complex64)
        gradient = jax.grad(lambda x: jnp.abs(transform(x, axis=1)).sum())
        assert gradient(x).shape == (8, 4)
        with pytest.raises(jax.errors.JaxRuntimeError, match="IsMonotonicWithDim0Major"):
            jax.jit(gradient)(x).block_until_ready()


@ON_CPU
def test_a_transform_and_its_inverse_fail_for_their_layout(mesh):
    x, filters = put(mesh, P("data", "model"), 8, 8), put(mesh, P("data", "model"), 8, 8)

    def solve(x, filters):
        return jnp.fft.ifft(jnp.fft.fft(x) / filters).real

    with pytest.raises(jax.errors.JaxRuntimeError, match="IsMonotonicWithDim0Major"):
        jax.jit(solve)(x, filters).block_until_ready()
    np.testing.assert_allclose(solve(x, filters), solve(np.asarray(x), np.asarray(filters)), rtol=1e-5)


@pytest.mark.parametrize("transform", [jnp.fft.irfft, jnp.fft.hfft, jnp.fft.rfft])
def test_transforms_keep_the_sharding_of_an_axis_that_they_resize(explicit_mesh, transform):
    dtype = np.float32 if transform is jnp.fft.rfft else np.complex64
    with jax.set_mesh(explicit_mesh):
        with pytest.raises(ValueError, match="does not evenly divide the dimension size"):
            transform(put(explicit_mesh, P("data"), 8, dtype=dtype))


@pytest.mark.parametrize("spec", [P("data"), P(None, "model")])
def test_the_gradient_of_a_product_on_an_explicit_mesh(explicit_mesh, spec):
    with jax.set_mesh(explicit_mesh):
        x = put(explicit_mesh, spec, 8, 4)
        assert jnp.prod(x, axis=1).shape == (8,)
        with pytest.raises(Exception, match="This reshape is not supported"):
            jax.grad(lambda x: jnp.prod(x, axis=1).sum())(x)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: jnp.vdot(x, x), "Contracting dimensions are sharded"),
        (lambda x: cg(lambda y: 2 * y, x, maxiter=1)[0], "Contracting dimensions are sharded"),
        (lambda x: odeint(lambda y, t: -y, x, jnp.arange(2.0)), "Incompatible types for broadcasting"),
        (lambda x: jax.lax.associative_scan(jnp.add, x), "slicing on sharded dims"),
    ],
)
def test_functions_that_leave_open_how_a_result_is_sharded(explicit_mesh, fn, message):
    with jax.set_mesh(explicit_mesh):
        with pytest.raises(Exception, match=message):
            jax.jit(fn)(put(explicit_mesh, P("data"), 8))


def test_interleaved_tasks_see_each_others_mesh_and_context(auto_mesh, explicit_mesh):
    context = jax.make_user_context(None)
    seen = {}

    async def work(mesh, value):
        with jax.set_mesh(mesh), context(value):
            await asyncio.sleep(0)
            seen[value] = jax.sharding.get_abstract_mesh(), context.value
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(work(auto_mesh, 1), work(explicit_mesh, 2))

    try:
        asyncio.run(main())
        assert seen[1] == seen[2] == (explicit_mesh.abstract_mesh, 2)
        assert context.value == 1  # and one of the values stays behind
    finally:
        context(None).__enter__()


def test_a_suspended_generator_leaves_its_mesh_and_context_behind(explicit_mesh):
    context = jax.make_user_context(None)

    def generate():
        with jax.set_mesh(explicit_mesh), context(1):
            yield
            yield

    generator = generate()
    next(generator)
    assert (jax.sharding.get_abstract_mesh(), context.value) == (explicit_mesh.abstract_mesh, 1)
    generator.close()
    assert context.value is None


@pytest.mark.parametrize(("row_axis", "id_axis"), [("model", "data"), (None, None)])
def test_the_gradient_of_a_lookup_in_a_sharded_and_reduced_table(row_axis, id_axis):
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("unused", "data", "model"), axis_types=(AxisType.Explicit,) * 3)):
        table = jax.reshard(jnp.arange(24.0).reshape(8, 3), P(row_axis))
        ids = jax.reshard(jnp.array([1, 1, 6, 3]), P(id_axis))

        def look_up(table, reduced):
            table = jax.reshard(table, P(row_axis, None, reduced=reduced))
            return jnp.sum(table.at[ids].get(out_sharding=P(id_axis, None)) ** 2)

        gradients = [
            jax.jit(jax.grad(look_up), static_argnums=1)(table, reduced)
            for reduced in [frozenset(), frozenset({"data"})]
        ]
    assert not np.array_equal(*gradients)


@ON_CPU
def test_the_gradient_of_a_product_along_a_sharded_axis(auto_mesh):
    def compute_loss(x):
        return (jnp.cumprod(x, 1) * jnp.arange(16.0).reshape(2, 8)).sum()

    x = put(auto_mesh, P(None, "model"), 2, 8)
    right = jax.grad(compute_loss)(np.asarray(x))
    with jax.set_mesh(auto_mesh):
        assert not np.allclose(jax.grad(compute_loss)(x), right, rtol=0.1)
        assert np.allclose(jax.jit(jax.grad(compute_loss))(x), right, rtol=1e-3)


@ON_CPU
def test_a_scatter_of_parts_of_unequal_size(auto_mesh):
    def compute_loss(x):
        sorted_ = jnp.sort(x)
        both = jax.lax.with_sharding_constraint(
            jnp.concatenate([sorted_, jnp.log(sorted_), sorted_, sorted_]), NamedSharding(auto_mesh, P("data"))
        )
        return (both * jnp.arange(12.0)).sum()

    x = put(auto_mesh, P(), 3)
    gradient, right = jax.jit(jax.grad(compute_loss))(x), jax.grad(compute_loss)(np.asarray(x))
    assert np.array_equal(np.isclose(gradient, right), [False, True, True])


def test_an_argument_on_another_mesh(auto_mesh):
    x = put(auto_mesh, P("model", "data"), 8, 8)
    with jax.set_mesh(Mesh(auto_mesh.devices.reshape(2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)):
        assert not isinstance((x + 1).sharding, NamedSharding)


def is_right_if_sharded(fn, *arrays):
    return np.allclose(jax.jit(fn)(*arrays), jax.jit(fn)(*map(np.asarray, arrays)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("spec", "groups", "factor"), [(P("data"), 2, 2), (P(None, None, "model"), 1, 4)])
def test_the_gradient_of_the_weight_of_a_sharded_convolution(mesh, spec, groups, factor):
    def compute_gradient(x, weight):
        convolve = functools.partial(jax.lax.conv_general_dilated, feature_group_count=groups)
        return jax.grad(lambda weight: jnp.sin(convolve(x, weight, (1,), "SAME")).sum())(weight)

    x, weight = put(mesh, spec, 4, 8, 8), put(mesh, P(), 8, 8 // groups, 3)
    found, right = compute_gradient(x, weight), compute_gradient(np.asarray(x), np.asarray(weight))
    np.testing.assert_allclose(found, factor * right, rtol=1e-3)


def test_a_convolution_of_spatial_shards(auto_mesh):
    def convolve(x, weight):
        return jax.lax.conv_general_dilated(x, weight, (1,), "SAME")

    x = put(auto_mesh, P(None, None, "model"), 4, 8, 8)
    assert is_right_if_sharded(convolve, x, put(auto_mesh, P(), 8, 8, 3))
    assert not is_right_if_sharded(convolve, x, put(auto_mesh, P("data"), 8, 8, 3))


def pool(x, combine, init):
    return jax.lax.reduce_window(x, init, combine, (1, 3), (1, 1), "SAME")


def test_the_gradient_of_the_maximum_of_sharded_windows(auto_mesh):
    def compute_gradient(x):
        return jax.grad(lambda x: (pool(x, jax.lax.max, -np.inf) * np.cos(np.arange(32.0)).reshape(4, 8)).sum())(x)

    assert is_right_if_sharded(compute_gradient, put(auto_mesh, P("data"), 4, 8))
    assert not is_right_if_sharded(compute_gradient, put(auto_mesh, P(None, "model"), 4, 8))


SMALL_CONVOLUTION = """
import jax, jax.numpy as jnp
convolve = lambda x: jax.lax.conv_general_dilated(x, jnp.ones((1, 1, 4, 2)), (1, 2), ((0, 0), (1, 1)))
jax.jit(jax.grad(lambda x: convolve(x).sum()))(jnp.ones((1, 1, 5, 4)))
"""


SHARDED_CHANNELS = """
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
put = lambda shape, *spec: jax.device_put(jnp.ones(shape), jax.NamedSharding(mesh, jax.P(*spec)))
convolve = lambda x, weight: jax.lax.conv_general_dilated(x, weight, (1,), "SAME", feature_group_count=2)
gradient = jax.grad(lambda weight, x: jnp.sin(convolve(x, weight)).sum())
jax.jit(gradient)(put((8, 2, 3), "data"), put((8, 4, 16), None, None, "model"))
"""


@ON_CPU
def test_channels_in_more_shards_than_groups_end_the_process():
    done = subprocess.run([sys.executable, "-c", SHARDED_CHANNELS], capture_output=True, text=True)
    assert done.returncode < 0 and "new_input_batch_size % new_output_batch_size == 0" in done.stderr


@ON_CPU
def test_the_gradient_of_a_small_convolution_ends_the_process():
    done = subprocess.run([sys.executable, "-c", SMALL_CONVOLUTION], capture_output=True, text=True)
    assert done.returncode < 0 and "Window dimensions do not match RHS shape" in done.stderr


def test_the_sharding_of_the_largest_elements_on_a_mixed_mesh():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Explicit))
    largest, _ = jax.lax.top_k(put(mesh, P(None, None, "model"), 2, 3, 4), 2, axis=0)
    assert largest.sharding.spec == P("model")


def test_the_order_of_an_array_that_varies_does_not_vary(mesh):
    def check(x):
        assert jax.typeof(jnp.sort(x)).manual_axis_type.varying == {"data"}
        assert jax.typeof(jnp.argsort(x)).manual_axis_type.varying == set()
        return x

    jax.shard_map(check, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(put(mesh, P("data"), 8))


def test_automatic_checks_fail_with_shard_map(mesh):
    def compute_sum(x):
        return jax.shard_map(lambda x: jax.lax.psum(x.sum(), "data"), in_specs=P("data"), out_specs=P())(x)

    with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"context mesh .* should match the aval mesh"):
        checkify.checkify(compute_sum, errors=checkify.nan_checks)(put(mesh, P("data"), 8))


DONATE_HOST = """
import jax
x = jax.device_put(jax.numpy.ones((8, 4)), jax.memory.Space.Host)
jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Device) * 2, donate_argnums=0)(x)
"""


@ON_CPU
def test_donating_an_array_on_the_host_ends_the_process():
    done = subprocess.run([sys.executable, "-c", DONATE_HOST], capture_output=True, text=True)
    assert done.returncode < 0, done.stderr


def test_splash_attention_cannot_divide_a_full_mask():
    from jax.experimental.pallas.ops.tpu import splash_attention

    def make_kernel(shards):
        mask = splash_attention.MultiHeadMask([splash_attention.FullMask((256, 256))])
        return splash_attention.make_splash_mha(mask, head_shards=1, q_seq_shards=shards)

    assert make_kernel(1) is not None
    with pytest.raises(ValueError, match="need at least one array to concatenate"):
        make_kernel(2)


def test_splash_attention_of_shared_keys_fails_with_64_bits():
    from jax.experimental.pallas.ops.tpu import splash_attention

    mask = splash_attention.MultiHeadMask([splash_attention.CausalMask((128, 128))] * 2)
    kernel = splash_attention.make_splash_mha(mask, head_shards=1, q_seq_shards=1, interpret=True)
    query, key = (jax.ShapeDtypeStruct((heads, 128, 128), np.float32) for heads in (2, 1))
    assert jax.eval_shape(kernel, query, key, key).shape == query.shape
    with jax.enable_x64(True), pytest.raises(TypeError, match=r"lax\.div requires arguments to have the same dtypes"):
        jax.eval_shape(kernel, query, key, key)


def test_an_array_that_is_moved_keeps_a_copy_on_the_host():
    training, serving = jax.make_mesh((4, 2), ("data", "model")), jax.make_mesh((2, 4), ("replica", "tensor"))
    target = NamedSharding(serving, P("tensor"))

    def is_copied(move):
        x = jax.jit(jnp.sin, out_shardings=NamedSharding(training, P("data", "model")))(np.ones((8, 8)))
        jax.block_until_ready(move(x))
        return x._npy_value is not None  # the copy has no public name

    assert is_copied(lambda x: jax.device_put(x, target))
    assert not is_copied(jax.jit(lambda x: x, out_shardings=target))
