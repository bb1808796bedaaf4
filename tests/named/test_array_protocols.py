"""What NumPy, pandas, Matplotlib, treescope, DLPack and Python's own functions do with a named array."""

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import treescope

import axonym as nym
from tests.refusals import refusal


VALUES = np.array([3.0, 1.0, 2.0, 5.0], np.float32)
x = nym.named(jnp.asarray(VALUES), "step")
y = nym.named(jnp.arange(6.0).reshape(2, 3), ("a", "b"))


@pytest.fixture(autouse=True)
def no_window():
    matplotlib.use("Agg")
    yield
    plt.close("all")


def test_an_array_of_one_axis_is_iterated_over(mapped):
    for array in (x, nym.NamedArray(VALUES, "step"), nym.shard(x.rename({"step": "batch"}))):
        elements = list(array)
        assert len(array) == 4 and [float(one) for one in elements] == [3.0, 1.0, 2.0, 5.0]
        assert all(isinstance(one, nym.NamedArray) and one.names == () for one in elements)
    assert float(jax.jit(lambda x: sum(list(x)[1:], start=x["step", 0]))(x).array) == 11.0
    assert 5.0 in x and 4.0 not in x


def test_other_iterations_and_lengths_name_the_plain_array():
    for array, shown in ((y, "(a: 2, b: 3)"), (x.sum(), "()")):
        with refusal(f"Iterating over {shown} needs an axis; use `unbind(x, axis)`, or `x.array` for a", TypeError):
            list(array)
        with refusal(f"{shown} has no single length; use `x.axis_size(axis)`, `x.size` or", TypeError):
            len(array)


def test_functions_of_numpy_see_the_elements(mapped):
    sharded = nym.shard(x.rename({"step": "batch"}))
    for array in (x, sharded):
        for fn in (np.mean, np.sum, np.std, np.max, np.argsort, np.cumsum, np.median, np.sort, np.ravel, np.diff):
            np.testing.assert_array_equal(fn(array), fn(VALUES))
        np.testing.assert_array_equal(np.concatenate([array, array]), np.concatenate([VALUES, VALUES]))
        np.testing.assert_array_equal(np.where(VALUES > 2, array, 0.0), np.where(VALUES > 2, VALUES, 0.0))
    assert type(np.mean(x)) is np.float32 and isinstance(np.sort(x), np.ndarray)
    np.testing.assert_array_equal(np.mean(y, axis=0, keepdims=True), [[1.5, 2.5, 3.5]])
    with pytest.raises(jax.errors.TracerArrayConversionError, match="traced array with shape float32"):
        jax.jit(lambda x: np.mean(x))(x)


def test_operators_with_arrays_of_numpy_keep_names():
    assert (np.ones(()) + x).names == (jnp.ones(()) + x).names == divmod(np.float32(3), x)[0].names == ("step",)
    with refusal("A plain array of shape (4,) has no axis names", TypeError):
        np.ones(4) + x


def test_memory_is_shared_by_dlpack():
    shared = np.from_dlpack(x)
    np.testing.assert_array_equal(shared, VALUES)
    assert shared.ctypes.data == x.array.unsafe_buffer_pointer()
    assert isinstance(jnp.from_dlpack(y), jax.Array)
    np.testing.assert_array_equal(np.from_dlpack(nym.NamedArray(VALUES, "step")), VALUES)


def test_dlpack_of_a_sharded_array_is_an_error(mapped):
    expected = r"\(batch: 4\) is on 8 devices, and DLPack shares the memory of one; use `np.asarray"
    with pytest.raises(BufferError, match=expected):
        np.from_dlpack(nym.shard(x.rename({"step": "batch"})))


def test_matplotlib_draws_named_arrays(mapped):
    sharded = nym.shard(x.rename({"step": "batch"}))
    np.testing.assert_array_equal(plt.plot(x)[0].get_ydata(), VALUES)
    np.testing.assert_array_equal(plt.plot(x, sharded)[0].get_xydata(), np.stack([VALUES, VALUES], 1))
    assert [line.get_ydata().tolist() for line in plt.plot(y)] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    np.testing.assert_array_equal(plt.scatter(x, x).get_offsets()[:, 0], VALUES)
    np.testing.assert_array_equal(plt.imshow(y).get_array(), np.asarray(y))
    assert plt.hist(x)[0].sum() == 4


def test_pandas_takes_named_arrays(mapped):
    for array in (x, nym.shard(x.rename({"step": "batch"}))):
        np.testing.assert_array_equal(pd.DataFrame({"loss": array})["loss"], VALUES)
        np.testing.assert_array_equal(pd.Series(array), VALUES)
    np.testing.assert_array_equal(pd.DataFrame(y), np.asarray(y))


# treescope looks at all public names of NumPy, also at those that NumPy 2.5 warns about.
treescope_scan = pytest.mark.filterwarnings("ignore:The chararray class is deprecated:DeprecationWarning")


@treescope_scan
def test_treescope_shows_axes_values_and_spec(mapped):
    array = nym.shard(nym.named(jnp.arange(32.0).reshape(8, 4), ("batch", "embed")))
    shown = treescope.render_to_text({"weight": array, "few": x})
    assert "batch: 8, embed: 4" in shown and f"{array.sharding.spec}" in shown and "28., 29., 30., 31." in shown
    assert "'few': NamedArray(float32, step: 4, [3., 1., 2., 5.])" in shown
    large = treescope.render_to_text(nym.ones({"batch": 128, "embed": 256, "pos": 2}))
    assert "<NamedArray float32(batch: 128, embed: 256, pos: 2)>" in large


@treescope_scan
def test_treescope_draws_axes_values_and_shardings(mapped):
    array = nym.shard(nym.named(jnp.arange(800.0).reshape(200, 4), ("batch", "embed")))
    drawn = treescope.render_array(array, rows=["embed"]).treescope_part.html_src
    assert '"label": "batch: 200"' in drawn and '"label": "embed: 4"' in drawn
    drawn = treescope.render_array_sharding(array).treescope_part.html_src
    assert '"label": "batch: 200/4"' in drawn and '"label": "embed: 4/2"' in drawn
    adapter = array.__treescope_ndarray_adapter__()
    axes = adapter.get_axis_info_for_array_data(array)
    assert [(axis.axis_name, axis.size) for axis in axes] == [("batch", 200), ("embed", 4)]
    mask = nym.named(jnp.arange(4) < 3, "embed")
    values, shown = adapter.get_array_data_with_truncation(array, mask, (2, None))
    np.testing.assert_array_equal(values[[0, 1, 3, 4]], np.asarray(array)[[0, 1, 198, 199]])
    np.testing.assert_array_equal(shown, np.array([[1], [1], [0], [1], [1]]) * [1, 1, 1, 0] == 1)
    sharding = adapter.get_sharding_info_for_array_data(array)
    assert sharding.shard_shape == (50, 2) and len(sharding.device_index_to_shard_slices) == 8
    assert adapter.get_numpy_dtype(array) == np.float32


def test_treescope_draws_only_what_can_be_read():
    visible = x.__treescope_ndarray_adapter__().should_autovisualize
    assert visible(x) and visible(nym.NamedArray(VALUES, "step"))
    seen = []
    jax.jit(lambda x: seen.append(visible(x)))(x)
    deleted = nym.ones({"a": 2})
    deleted.array.delete()
    assert seen == [False] and not visible(deleted) and not visible(jax.eval_shape(lambda: x))
