"""An array with two named axes, mappings for it, and where it lies: what the tests of compiled functions work on."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


ROWS, COLUMNS = {"batch": "data"}, {"embed": "model"}
NAMES = ("batch", "embed")
VALUES = np.arange(32.0, dtype=np.float32).reshape(8, 4)


def array():
    return nym.NamedArray(VALUES, NAMES)


def lies(x, *spec) -> bool:
    return x.sharding.is_equivalent_to(NamedSharding(jax.sharding.get_mesh(), P(*spec)), x.ndim)
