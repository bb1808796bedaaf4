"""Named arrays to and from other libraries of arrays: xarray, pandas, and all that have DLPack."""

from ._dlpack import from_dlpack as from_dlpack
from ._pandas import from_pandas as from_pandas, to_pandas as to_pandas
from ._xarray import from_xarray as from_xarray, to_xarray as to_xarray
