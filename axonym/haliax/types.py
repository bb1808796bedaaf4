"""`haliax.types`: names for the types of arguments."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike as DTypeLike
from jaxtyping import PyTree


IntScalar: TypeAlias = int | jax.Array
Scalar: TypeAlias = float | int | jax.Array
Precision: TypeAlias = jax.lax.Precision
PrecisionLike: TypeAlias = str | jax.lax.Precision | tuple[str, str] | tuple[Precision, Precision] | None
DType: TypeAlias = np.dtype
FilterSpec: TypeAlias = bool | Callable[[Any], bool]
FilterTree: TypeAlias = PyTree[FilterSpec]
GatherScatterModeStr: TypeAlias = Literal["promise_in_bounds", "clip", "drop", "fill"]
NamedOrNumeric: TypeAlias = Any
ArrayLike: TypeAlias = jax.Array | np.ndarray | jnp.ndarray
