"""Where devices are: which ones there are, and how they are arranged over slices and hosts.

The arranging is JAX's own (`jax.experimental.mesh_utils`); this module decides what to ask it for.
A group of devices with a fast network among them, behind a slower one, is a granule: a slice, or
a process where there is one slice only. The factor of a mesh axis that crosses granules is its
DCN (data-centre network) factor, and the rest lies within a granule.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from ._axis_sizes import as_sizes, describe, did_you_mean, fill, fills, nearest_fit


if TYPE_CHECKING:
    # To a type checker `jax.Device` is a variable and not a type: jaxlib comes without stubs.
    Device: TypeAlias = Any
else:
    Device = jax.Device

_called = {"slice_index": ("slice", "slices"), "process_index": ("process", "processes")}


def select_devices(devices: Any, backend: str | None) -> tuple[Device, ...]:
    """Returns the devices given, checked, or all those of the backend."""
    if devices is None:
        return _all_devices(backend)
    if backend is not None:
        raise ValueError(f"`devices` and `backend='{backend}'` were both given; pass one of them")
    if not isinstance(devices, (Sequence, np.ndarray)) or isinstance(devices, str):
        raise TypeError(f"`devices` is a sequence of devices such as `jax.devices()[:4]`, not {devices!r}")
    selected = tuple(np.asarray(devices, dtype=object).flat)
    if not selected:
        raise ValueError("`devices` is empty; a mesh needs at least one device")
    _check_devices(selected)
    return selected


def _all_devices(backend: str | None) -> tuple[Device, ...]:
    devices = jax.devices(backend)
    if devices[0].platform == "cpu":
        return tuple(sorted(devices, key=lambda device: (device.process_index, device.id)))
    # An accelerator's order says where its chips are, so it stays as it is.
    return tuple(devices)


def _check_devices(devices: Sequence[Any]) -> None:
    seen: set[Any] = set()
    for device in devices:
        # Not `isinstance`: the devices of a topology that is only described are welcome too.
        if not hasattr(device, "device_kind"):
            raise TypeError(f"`devices` holds {device!r}, which is not a device")
        if device in seen:
            raise ValueError(f"`devices` holds {device} twice; a mesh has each device once")
        seen.add(device)


def granules(devices: Sequence[Device], attribute: str) -> dict[int, int]:
    """Counts the devices of each slice (`slice_index`) or process (`process_index`)."""
    return dict(Counter(getattr(device, attribute, 0) for device in devices))


def spans_slices(devices: Sequence[Device]) -> bool:
    """Whether the devices are in more than one slice."""
    return len(granules(devices, "slice_index")) > 1


def spread(sizes: Sequence[int], parts: int) -> tuple[int, ...]:
    """Splits `parts` into one divisor per size, as much of it as possible on the earliest ones.

    Exact whenever `parts` divides the product of `sizes`: each prime of `parts` is taken from the
    first sizes that have it, so none is ever left over.
    """
    factors: list[int] = []
    for size in sizes:
        factors.append(gcd(size, parts))
        parts //= factors[-1]
    return tuple(factors)


def arrange_devices(
    names: Sequence[str],
    sizes: Sequence[int],
    devices: Sequence[Device],
    dcn_mesh_dims: Any,
    *,
    should_sort_granules_by_key: bool,
    allow_split_physical_axes: bool,
) -> np.ndarray:
    """Returns an array of the devices whose shape is `sizes`."""
    attribute, dcn = _dcn_factors(names, sizes, devices, dcn_mesh_dims)
    try:
        if prod(dcn) == 1:
            return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=allow_split_physical_axes)
        return mesh_utils.create_hybrid_device_mesh(
            [size // factor for size, factor in zip(sizes, dcn, strict=True)],
            dcn,
            devices,
            process_is_granule=attribute == "process_index",
            should_sort_granules_by_key=should_sort_granules_by_key,
            allow_split_physical_axes=allow_split_physical_axes,
        )
    except (AssertionError, NotImplementedError) as error:
        raise ValueError(_unlaid(names, sizes, "`allow_split_physical_axes=True`", error)) from error
    except AttributeError as error:
        _check_described(devices, error)
        raise


def arranged_by_jax(
    names: Sequence[str], sizes: Sequence[int], types: tuple[AxisType, ...], devices: Sequence[Device]
) -> Mesh:
    """Returns the mesh that `jax.make_mesh` makes of devices of one slice."""
    try:
        return jax.make_mesh(sizes, names, types, devices=devices)
    except (AssertionError, NotImplementedError) as error:
        raise ValueError(_unlaid(names, sizes, "`use_jax=False`", error)) from error
    except AttributeError as error:
        _check_described(devices, error)
        raise


def _unlaid(names: Sequence[str], sizes: Sequence[int], option: str, error: Exception) -> str:
    return (
        f"JAX cannot lay mesh {describe(names, sizes)} over the network of these devices; use "
        f"whole blocks of the network, other sizes, or {option}. JAX says: {error}"
    )


def _check_described(devices: Sequence[Device], error: AttributeError) -> None:
    """Raises if JAX has asked a device for what its description lacks."""
    if any(error.obj is device for device in devices):
        raise TypeError(
            f"`devices` holds a `{type(error.obj).__name__}` without `{error.name}`, which JAX asks of it to lay the "
            "mesh over the network; a described device has `id`, `process_index`, `platform`, `device_kind` and, if "
            "there are slices, `slice_index`, and a TPU also `coords` and `core_on_chip`"
        ) from error


def _dcn_factors(
    names: Sequence[str], sizes: Sequence[int], devices: Sequence[Device], dcn_mesh_dims: Any
) -> tuple[str, tuple[int, ...]]:
    """Returns what the granules are, and how many of them each mesh axis crosses."""
    if dcn_mesh_dims is None:
        _check_equal("slice_index", devices)
        return "slice_index", spread(sizes, len(granules(devices, "slice_index")))
    factors = _given_factors(names, dcn_mesh_dims)
    if len(factors) != len(names):
        raise ValueError(
            f"`dcn_mesh_dims` {factors} and mesh {describe(names, sizes)} have {len(factors)} and "
            f"{len(names)} entries; give one factor per axis"
        )
    attribute, number = _granularity(factors, devices)
    _check_equal(attribute, devices)
    _check_factors(names, sizes, factors, attribute, number)
    return attribute, fill(factors, number)


def _given_factors(names: Sequence[str], given: Any) -> tuple[int, ...]:
    """Returns the factors in the order of the axes, where they are given by name too."""
    if not isinstance(given, Mapping):
        return as_sizes(given, "dcn_mesh_dims")
    for name in given:
        if name not in names:
            raise ValueError(f"`dcn_mesh_dims` has no mesh axis {name!r} to divide; {did_you_mean(str(name), names)}")
    return as_sizes([given.get(name, 1) for name in names], "dcn_mesh_dims")


def _granularity(factors: Sequence[int], devices: Sequence[Device]) -> tuple[str, int]:
    """Returns what the factors divide the devices into: slices, or processes if they fit better."""
    slices = len(granules(devices, "slice_index"))
    processes = len(granules(devices, "process_index"))
    product = prod(factors)
    if processes > 1 and product != slices and (slices == 1 or product == processes):
        return "process_index", processes
    return "slice_index", slices


def _check_equal(attribute: str, devices: Sequence[Device]) -> None:
    held = granules(devices, attribute)
    if len(set(held.values())) > 1:
        one, many = _called[attribute]
        numbers = ", ".join(f"{number} in {one} {index}" for index, number in sorted(held.items()))
        raise ValueError(
            f"a mesh over several {many} needs equally many devices of each, and there are "
            f"{numbers}; pass as many of each as `devices`"
        )


def _check_factors(
    names: Sequence[str], sizes: Sequence[int], factors: Sequence[int], attribute: str, number: int
) -> None:
    one, many = _called[attribute]
    counted = f"{number} {one if number == 1 else many}"
    fit = f"{describe(names, spread(sizes, number))} would do"
    if not fills(factors, number):
        raise ValueError(
            f"`dcn_mesh_dims` {describe(names, factors)} must multiply to the number of {many}, "
            f"with at most one `-1`, for mesh {describe(names, sizes)} over {counted}; {fit}"
        )
    for name, size, factor in zip(names, sizes, fill(factors, number), strict=True):
        if size % factor:
            raise ValueError(
                f"`dcn_mesh_dims` divides mesh axis '{name}' of size {size} by {factor}, for mesh "
                f"{describe(names, sizes)} over {counted}; {fit}"
            )


def calculate_host_mesh_shape(
    global_mesh_shape: Sequence[int],
    total_devices: int | None = None,
    num_processes: int | None = None,
) -> tuple[int, ...]:
    """Returns the shape of one process' block when a mesh is divided evenly among the processes.

    The earliest axes are divided, as far as they can be, so that the later and busier ones stay
    within a host. The blocks tile the mesh exactly: every size is a multiple of the block's, and
    the multiples are the `dcn_mesh_dims` with which `create_mesh` gives each process its block.

    Args:
        global_mesh_shape: The sizes of the mesh over all processes, all of them positive.
        total_devices: How many devices each process has; None is `jax.local_device_count()`.
        num_processes: How many processes there are; None is `jax.process_count()`.

    Returns:
        One size per mesh axis, with the product `total_devices`.

    Raises:
        TypeError: Something is not an integer.
        ValueError: The mesh does not have as many devices as all processes together.

    Example:
        >>> import axonym as nym
        >>> nym.calculate_host_mesh_shape((2, 4), total_devices=4, num_processes=2)
        (1, 4)
        >>> nym.calculate_host_mesh_shape((1, 4, 3), total_devices=4, num_processes=3)
        (1, 4, 1)
    """
    held = jax.local_device_count() if total_devices is None else total_devices
    processes = jax.process_count() if num_processes is None else num_processes
    (held,) = as_sizes((held,), "total_devices")
    (processes,) = as_sizes((processes,), "num_processes")
    shape = as_sizes(global_mesh_shape, "global_mesh_shape")
    _check_shape(shape, held, processes)
    factors = spread(shape, processes)
    return tuple(size // factor for size, factor in zip(shape, factors, strict=True))


def _check_shape(shape: tuple[int, ...], held: int, processes: int) -> None:
    if min(held, processes) < 1:
        raise ValueError(f"`total_devices` is {held} and `num_processes` is {processes}; both must be positive")
    devices = held * processes
    if min(shape, default=1) < 1 or prod(shape) != devices:
        raise ValueError(
            f"mesh shape {shape} does not fit {devices} devices, {held} in each of {processes} "
            f"processes; the nearest fit is {nearest_fit(shape or (-1,), devices)}"
        )
