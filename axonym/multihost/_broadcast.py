"""`broadcast_from_host_zero`: a tree of process 0 in all processes."""

import io
import json
import pickle
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._barrier import as_seconds
from ._coordination_store import get_coordination_store
from ._rendezvous import Rendezvous


T = TypeVar("T")


def broadcast_from_host_zero(tree: T, *, timeout: float = 200) -> T:
    """Returns the tree of process 0 in all processes.

    The other processes may pass anything, such as None. The tree goes through the coordination service of process 0,
    which suits settings, seeds and small models: 100 megabytes take some seconds.

    Args:
        tree: On process 0, any tree of arrays, named arrays, random keys and Python objects that can be pickled, such
            as a name or a dict of settings.
        timeout: How long to wait for the other processes, and for the data of process 0, in seconds.

    Returns:
        An exact copy of the tree of process 0: NumPy arrays stay NumPy arrays, and JAX arrays are created with
            `jnp.asarray`, across all processes if a mesh is active. With one process, the tree itself.

    Raises:
        ValueError: If an array of process 0 is sharded over several processes.
        TypeError: If something in the tree of process 0 cannot be pickled.
        TimeoutError: If a process does not arrive in time, and the message names it, or the tree is too large for the
            timeout.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_from_host_zero({"run": "green-fox", "seed": 17})
        {'run': 'green-fox', 'seed': 17}
    """
    seconds = as_seconds(timeout)
    store = get_coordination_store()
    if store is None:
        return tree
    rendezvous = Rendezvous(store, "broadcast", "tree", seconds, "`broadcast_from_host_zero`")
    payload, error, header = b"", None, ""
    if store.process == 0:
        payload, error = _send_tree(tree, rendezvous)
        # Tell the others about an error: they would wait in vain if this process raised alone.
        problem = None if error is None else [type(error).__name__, str(error)]
        header = json.dumps({"problem": problem, "size": len(payload)})
    rendezvous.wait_for_all(header, error)
    try:
        received = json.loads(rendezvous.read_value(0))
        if received["problem"] is not None:
            kind, message = received["problem"]
            raise _ERRORS[kind](message) from (None if error is None else error.__cause__)
        payload = payload or rendezvous.receive(received["size"])
    finally:
        rendezvous.leave()
    return pickle.loads(payload)


class _ShardedArrayError(ValueError):
    """Raised for an array of which process 0 does not have all elements."""


_ERRORS = {"TypeError": TypeError, "TimeoutError": TimeoutError, "_ShardedArrayError": ValueError}


def _send_tree(tree: Any, rendezvous: Rendezvous) -> tuple[bytes, Exception | None]:
    """Sends a tree; returns it as bytes, and an error if it was not sent."""
    file = io.BytesIO()
    try:
        _TreePickler(file, pickle.HIGHEST_PROTOCOL).dump(tree)
        rendezvous.send(file.getvalue())
    except (_ShardedArrayError, TimeoutError) as error:
        return b"", error
    except Exception as error:  # raised by the objects' own methods
        failure = TypeError(f"the tree of process 0 cannot be sent to the others: {format_cause(error)}")
        failure.__cause__ = error
        return b"", failure
    return file.getvalue(), None


def format_cause(error: Exception) -> str:
    """Writes an error, with its type unless that is obvious."""
    is_obvious = isinstance(error, (TypeError, AttributeError, pickle.PicklingError)) and str(error)
    return str(error) if is_obvious else f"{type(error).__name__}: {error}"


class _TreePickler(pickle.Pickler):
    """Pickles the JAX arrays of a tree, at any depth, without their devices."""

    def reducer_override(self, obj: Any) -> Any:
        """Returns how to restore a JAX array; see `pickle`."""
        if not isinstance(obj, jax.Array):
            return NotImplemented
        if not obj.is_fully_addressable and not obj.is_fully_replicated:
            raise _ShardedArrayError(
                f"an array of shape {obj.shape} is sharded over several processes, so process 0 cannot send it, and "
                "need not: all processes have it"
            )
        if jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
            with jax.set_mesh(None):  # no other process takes part
                return _restore_array, (np.asarray(jax.random.key_data(obj)), str(jax.random.key_impl(obj)))
        return _restore_array, (np.asarray(obj), None)


def _restore_array(data: np.ndarray, impl: str | None) -> jax.Array:
    """Makes a JAX array, of random keys if there is an `impl`."""
    array = jnp.asarray(data)
    return array if impl is None else jax.random.wrap_key_data(array, impl=impl)
