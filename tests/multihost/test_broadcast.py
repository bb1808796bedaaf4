"""`broadcast_from_host_zero` with one process; `test_processes.py` has several."""

import io
import pickle

import jax
import numpy as np
import pytest

import axonym as nym
from axonym.multihost._shared_values import _TreePickler


def test_one_process_gets_the_tree_itself():
    tree = {"x": nym.ones({"batch": 2}), "name": "run"}
    assert nym.broadcast_from_host_zero(tree) is tree


def test_a_wrong_timeout_is_refused():
    with pytest.raises(ValueError, match="`timeout` is a number of seconds from"):
        nym.broadcast_from_host_zero(1, timeout=0)


def test_arrays_are_pickled_without_their_devices():
    file = io.BytesIO()
    x = jax.device_put(np.arange(3.0), jax.devices()[3])
    _TreePickler(file).dump({"x": x, "key": jax.random.key(3)})
    copy = pickle.loads(file.getvalue())
    assert copy["x"].tolist() == [0, 1, 2] and copy["x"].devices() == {jax.devices()[0]}
    assert jax.random.key_data(copy["key"]).tolist() == jax.random.key_data(jax.random.key(3)).tolist()
