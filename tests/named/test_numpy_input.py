"""Arrays of NumPy are refused wherever they are taken if masks or numbers would be lost."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import axonym as nym
from axonym import state_dict as sd
from tests.refusals import refusal


MASKED: Any = np.ma.array(np.arange(8), mask=[True] + [False] * 7)
NAMED = nym.NamedArray(np.arange(8), "batch")
SAID = "is a masked array of NumPy, and other arrays have no mask; fill it with `x.filled"


def load_batch(batch: Any, axes: Any, mesh: Any, process_local: bool) -> Any:
    return next(nym.data.ShardedLoader([batch], {}, mesh, axes=axes, process_local=process_local))


def put_in_named_array(array: Any) -> Any:
    """Makes a named array as a function over the leaves of trees does, past the checks of its constructor."""
    return jax.tree.unflatten(jax.tree.structure(NAMED), [array])


ENTRANCES: list[Callable[[Any, Any], Any]] = [
    lambda mesh, folder: nym.NamedArray(MASKED, "batch"),
    lambda mesh, folder: nym.named(MASKED, "batch"),
    lambda mesh, folder: nym.ones({"pos": 9})["pos", MASKED],
    lambda mesh, folder: load_batch(MASKED, "batch", mesh, True),
    lambda mesh, folder: load_batch(MASKED, "batch", mesh, False),
    lambda mesh, folder: load_batch(put_in_named_array(MASKED), None, mesh, True),
    lambda mesh, folder: load_batch(put_in_named_array(MASKED), None, mesh, False),
    lambda mesh, folder: nym.host_local_to_global(put_in_named_array(MASKED), {}, mesh),
    lambda mesh, folder: nym.host_local_to_global({"x": np.ma.masked}, {}, mesh),
    lambda mesh, folder: sd.to_state_dict({"x": MASKED}),
    lambda mesh, folder: sd.to_torch_compatible_state_dict({"x": MASKED}),
    lambda mesh, folder: sd.from_state_dict({"x": np.zeros(8, int)}, {"x": MASKED}),
    lambda mesh, folder: sd.from_state_dict({"x": jnp.zeros(8, int)}, {"x": MASKED}, dtypes="cast"),
    lambda mesh, folder: sd.save_safetensors({"x": MASKED}, folder),
    lambda mesh, folder: sd.stack_state_dict({"0.x": MASKED}),
    lambda mesh, folder: sd.unstack_state_dict({"x": MASKED}),
]


@pytest.mark.parametrize("entrance", range(len(ENTRANCES)))
def test_masked_arrays_are_refused(auto_mesh, tmp_path, entrance):
    with pytest.raises((TypeError, ValueError), match=SAID):
        ENTRANCES[entrance](auto_mesh, tmp_path)
    assert not [*tmp_path.iterdir()]


LOADERS: list[Callable[[Any, Any, Any], Any]] = [
    lambda array, mesh, folder: nym.named(array, "batch"),
    lambda array, mesh, folder: nym.shard({"x": nym.NamedArray(array, "batch")}, {"batch": "data"}, mesh),
    lambda array, mesh, folder: nym.host_local_to_global(nym.NamedArray(array, "batch"), {"batch": "data"}, mesh),
    lambda array, mesh, folder: load_batch(array, "batch", mesh, True),
    lambda array, mesh, folder: load_batch(array, "batch", mesh, False),
    lambda array, mesh, folder: load_batch(xr.DataArray(array), "batch", mesh, True),
    lambda array, mesh, folder: nym.interop.from_xarray(xr.DataArray(array, dims="batch")),
    lambda array, mesh, folder: nym.interop.from_pandas(pd.Series(array), "batch"),
    lambda array, mesh, folder: nym.named(pd.Series(array), "batch"),
    lambda array, mesh, folder: nym.interop.from_dlpack(array, "batch"),
]


@pytest.mark.parametrize("loader", LOADERS)
def test_numbers_of_64_bits_are_rounded_or_refused(auto_mesh, tmp_path, loader):
    """Infinities, NaN and what is rounded to the largest number of 32 bits stay what they are."""
    fitting = np.array([np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1e-300, 0.1, 7])
    [loaded] = jax.tree.leaves(loader(fitting, auto_mesh, tmp_path))
    np.testing.assert_array_equal(loaded, fitting.astype(np.float32))
    for dtype, big in ((np.float64, 1e300), (np.float64, -3.41e38), (np.complex128, 1e300j), (np.int64, 2**40)):
        numbers = np.arange(8).astype(dtype)
        numbers[5] = big
        with pytest.raises(ValueError, match=rf"has {numbers.dtype} elements from .*, which do not fit \w+; convert"):
            loader(numbers, auto_mesh, tmp_path)
    beside_infinity = np.array([np.inf, np.nan, 1e300, *range(5)])
    with refusal("elements from 0.0 to 1e+300, which do not fit float32"):
        loader(beside_infinity, auto_mesh, tmp_path)


def test_elements_that_are_no_numbers_get_no_names():
    times = pd.date_range("2026-01-01", periods=2)
    for array in (times, times.to_numpy(), pd.Series(times), xr.DataArray(times, dims="time"), times - times[0]):
        with pytest.raises(TypeError, match=r"\(2,\) has dtype \w+64\[.*, and JAX has no times; convert them to n"):
            nym.named(array, "time")
    for array in (np.array(["a"]), np.array([None]), np.zeros(1, [("a", int)])):
        with pytest.raises(TypeError, match=r"an array of shape \(1,\) has dtype .*, which JAX lacks; convert it"):
            nym.named(array, "time")
