"""Named arrays to and from other libraries of arrays: xarray, pandas, and all that have DLPack."""

from ._dlpack import from_dlpack as from_dlpack
from ._labelled_arrays import (
    from_pandas as from_pandas,
    from_xarray as from_xarray,
    to_pandas as to_pandas,
    to_xarray as to_xarray,
)
