"""Named arrays to and from xarray, pandas and DLPack."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import axonym as nym
from axonym.interop import from_dlpack, from_pandas, from_xarray, to_pandas, to_xarray


VALUES = np.arange(8.0, dtype=np.float32).reshape(4, 2)
TIMES = pd.date_range("2026-01-01", periods=4)


@pytest.fixture
def x(mesh):
    return nym.shard(nym.named(VALUES, ("time", "lat")), {"time": "data"})


def test_xarray_gets_dimensions_and_coordinates(x):
    da = to_xarray(x, {"time": TIMES}, name="rain", attrs={"units": "mm"})
    assert isinstance(da.data, np.ndarray) and (da.dims, da.name, da.attrs["units"]) == (("time", "lat"), "rain", "mm")
    np.testing.assert_array_equal(da.sel(time="2026-01-03"), VALUES[2])
    assert list(da.coords) == ["time"]
    plain = to_xarray(nym.named(3.0, ()))
    assert plain.dims == () and float(plain) == 3
    half = x.astype(jnp.bfloat16)
    assert to_xarray(half).dtype == jnp.bfloat16 and from_xarray(to_xarray(half)).dtype == jnp.bfloat16


def test_xarray_gets_the_coordinates_of_another_array(x):
    coords = {"time": TIMES, "height": 2.0, "name": ("lat", ["a", "b"]), "both": (("time", "lat"), 10 * VALUES)}
    da = xr.DataArray(VALUES, coords, ("time", "lat"))
    for coordinates in (coords, da.coords, {**da.coords}):
        xr.testing.assert_identical(to_xarray(x, coordinates), da)
    stacked = da.stack(point=("time", "lat"))
    xr.testing.assert_identical(to_xarray(from_xarray(stacked), stacked.coords), stacked)


@pytest.mark.parametrize("axis", ["time", "lat"])
def test_coordinates_of_another_array_lose_the_axes_that_are_reduced(axis):
    da = xr.DataArray(VALUES, {"time": TIMES, "height": 2.0, "name": ("lat", ["a", "b"])}, ("time", "lat"))
    xr.testing.assert_identical(to_xarray(from_xarray(da).mean(axis), da.coords), da.mean(axis))
    stacked = da.stack(place=("time", "lat"))
    xr.testing.assert_identical(to_xarray(from_xarray(stacked).mean("place"), stacked.coords), stacked.mean("place"))


def test_xarray_there_and_back_keeps_names_and_elements(x):
    back = from_xarray(to_xarray(x, {"time": TIMES}).transpose("lat", "time"))
    assert back.names == ("lat", "time") and back.dtype == jnp.float32
    np.testing.assert_array_equal(np.asarray(back), VALUES.T)
    data_array = xr.DataArray(x.array, dims=x.names)
    assert from_xarray(data_array).array is x.array, "An array of JAX was copied."


def test_pandas_gets_axes_as_index_and_columns(x):
    table = to_pandas(x, {"time": TIMES, "lat": ["a", "b"]})
    assert isinstance(table, pd.DataFrame) and (table.index.name, table.columns.name) == ("time", "lat")
    np.testing.assert_array_equal(table.loc["2026-01-02", "b"], VALUES[1, 1])
    series = to_pandas(x["lat", 0])
    assert isinstance(series, pd.Series) and series.index.name == "time"
    pd.testing.assert_series_equal(series, pd.Series(VALUES[:, 0], pd.RangeIndex(4, name="time")))
    for dtype in (jnp.bfloat16, jnp.float8_e5m2):
        assert to_pandas(x.astype(dtype)).dtypes.tolist() == [np.float32] * 2
    assert to_pandas(x > 3).dtypes.tolist() == [np.bool_] * 2


def test_pandas_there_and_back_keeps_names_and_elements(x):
    for array in (x, x["lat", 1]):
        back = from_pandas(to_pandas(array))
        assert back.names == array.names and back.dtype == array.dtype
        np.testing.assert_array_equal(np.asarray(back), np.asarray(array))
    mixed = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    np.testing.assert_array_equal(np.asarray(from_pandas(mixed, ("step", "head"))), [[1, 0.5], [2, 1.5]])
    assert from_pandas(mixed["a"], "step").names == ("step",)


def test_dlpack_shares_memory_in_both_directions():
    values = jnp.arange(6.0).reshape(2, 3)
    named = from_dlpack(nym.named(values, ("i", "j")), (nym.Axis("batch", 2), "embed"))
    assert named.names == ("batch", "embed") and named.array.unsafe_buffer_pointer() == values.unsafe_buffer_pointer()
    assert np.asarray(from_dlpack(np.arange(3), "batch")).tolist() == [0, 1, 2]
    assert np.asarray(from_dlpack(nym.ones({"a": 2}), "b")).tolist() == [1, 1]
    with pytest.raises(TypeError, match="takes an array with `__dlpack__`, not a list of length 2"):
        from_dlpack([1, 2], "batch")


HERE = r"\(time: 4, lat: 2\)"
REFUSED = [
    (lambda x: to_xarray(x, {"tme": [1]}), rf"`coords` does not fit {HERE}: .*\btme\b"),
    (lambda x: to_xarray(x, {"lat": [1]}), rf"`coords` does not fit {HERE}: .*\blat\b"),
    (lambda x: to_pandas(x, {"tme": [1]}), f"axis 'tme', which {HERE} does not have"),
    (lambda x: to_pandas(x, {"lat": [1]}), "has 1 values for axis 'lat', whose size is 2"),
    (lambda x: to_pandas(x.expand("a")), r"one axis or two, not \(.*\); index or flatten .* `to_xarray"),
    (lambda x: to_pandas(x.sum()), r"one axis or two, not \(\); use `x.item\(\)`"),
    (lambda x: from_pandas(pd.Series([1])), "`Series` have no name; pass `axes`, as in `axes='step'`"),
    (lambda x: from_pandas(pd.DataFrame({"a": [1]})), r"pass `axes`, as in `axes=\('step', 'head'\)`"),
    (lambda x: from_pandas(pd.Series([2**40]), "b"), "int64 elements .* do not fit int32; .*x64"),
    (lambda x: from_pandas(to_pandas(x).stack()), "the index of the `Series` has 2 levels, .*to_xarray"),
]
OF_ANOTHER_TYPE = [
    (lambda x: to_xarray(x.array), "A named array is needed, not an array of shape"),
    (lambda x: x + xr.DataArray(VALUES), r"with `axonym.interop.from_xarray\(array\)`"),
    (lambda x: from_xarray(VALUES), r"takes a `DataArray`, not a `ndarray`\.$"),
    (lambda x: to_xarray(jax.eval_shape(lambda: x)), f"{HERE} is a shape without data"),
    (lambda x: from_xarray(xr.Dataset({"a": 1})), "takes a `DataArray`, not a `Dataset`; call it for each variable"),
    (lambda x: from_xarray(xr.DataArray([1], dims=[0])), r"names, not 0; use `x.rename\(\{0: 'time'\}\)`"),
    (lambda x: from_xarray(xr.DataArray(TIMES)), r"\(4,\) has dtype datetime64.*numbers first"),
    (lambda x: from_pandas(pd.Series(["a"]), "b"), r"an array of shape \(1,\) has dtype .* JAX lacks"),
    (lambda x: from_pandas(VALUES), "takes a `Series` or a `DataFrame`, not a `ndarray`"),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [(call, ValueError, text) for call, text in REFUSED] + [(call, TypeError, text) for call, text in OF_ANOTHER_TYPE],
)
def test_what_does_not_fit_is_an_error(call, error, message):
    with pytest.raises(error, match=message):
        call(nym.named(VALUES, ("time", "lat")))


@pytest.mark.parametrize(
    "give_names",
    [
        lambda x, names: nym.named(to_xarray(x), names),
        lambda x, names: nym.named(to_pandas(x), names),
        lambda x, names: nym.NamedArray(to_xarray(x), names),
        lambda x, names: from_pandas(to_pandas(x), names),
        lambda x, names: next(nym.data.ShardedLoader([to_xarray(x)], {}, nym.create_mesh({"data": 8}), axes=names)),
    ],
)
def test_names_in_another_order_than_the_dimensions_are_refused(give_names):
    x = nym.named(VALUES, ("time", "lat"))
    with pytest.raises(ValueError, match=r"of the `\w+` are \(time, lat\), which .* \(lat, time\) would exchange"):
        give_names(x, ("lat", "time"))
    with pytest.raises(ValueError, match=r"which the names \(step, time\) would exchange; .*`rearrange` the result"):
        give_names(x, ("step", "time"))
    for names in (("time", "lat"), ("step", "head"), ("step", "lat")):
        np.testing.assert_array_equal(np.asarray(give_names(x, names)), VALUES)


@pytest.mark.parametrize(("name", "call"), [("xarray", to_xarray), ("pandas", to_pandas)])
def test_a_missing_library_is_named(monkeypatch, name, call):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"this needs {name}; install `axonym\[interop\]`, or {name}"):
        call(nym.ones({"a": 2}))
