"""Masked arrays of NumPy are refused wherever arrays of NumPy are taken, because their masks would be lost."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import state_dict as sd


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
    lambda mesh, folder: nym.tree.serialise_leaves(folder / "leaves", {"x": MASKED}),
]


@pytest.mark.parametrize("entrance", range(len(ENTRANCES)))
def test_masked_arrays_are_refused(auto_mesh, tmp_path, entrance):
    with pytest.raises((TypeError, ValueError), match=SAID):
        ENTRANCES[entrance](auto_mesh, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_integers_that_do_not_fit_get_no_names():
    with pytest.raises(ValueError, match=r"an array of shape \(2,\) has int64 elements from 7 to 1099511627783"):
        nym.named(np.array([7, 2**40 + 7]), "batch")
    assert nym.named(np.array([7, 2**31 - 1]), "batch").dtype == "int32"
