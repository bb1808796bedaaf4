"""Selects the devices of a mesh and arranges them over slices and hosts, with `jax.experimental.mesh_utils`.

A granule is a group of devices with a fast network, behind a slower one: a slice, or a process if there is only one
slice. The DCN (data-center network) factor of a mesh axis is the part of its size that crosses granules.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd, prod
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from .._ground.jax_compat import LAYOUT_ERRORS
from ._axis_sizes import as_sizes, can_fill, fill_wildcard, find_nearest_sizes, format_mesh_shape, suggest_mesh_name


if TYPE_CHECKING:
    # To a type checker `jax.Device` is a variable and not a type: jaxlib comes without stubs.
    Device: TypeAlias = Any
else:
    Device = jax.Device

_GRANULE_NAMES = {"slice_index": ("slice", "slices"), "process_index": ("process", "processes")}


def select_devices(devices: Any, backend: str | None) -> tuple[Device, ...]:
    """Returns the devices that are given, after checking them, or all devices of the backend."""
    if devices is None:
        all_devices = jax.devices(backend)
        if all_devices[0].platform != "cpu":
            return tuple(all_devices)  # JAX orders accelerators by their place in the network
        return tuple(sorted(all_devices, key=lambda device: (device.process_index, device.id)))
    if backend is not None:
        raise ValueError(f"`devices` and `backend='{backend}'` were both given; pass one of them")
    if not isinstance(devices, (Sequence, np.ndarray)) or isinstance(devices, str):
        raise TypeError(
            f"`devices` is a sequence of devices such as `jax.devices()[:4]`, not {eqx.tree_pformat(devices)}"
        )
    selected = tuple(np.asarray(devices, dtype=object).flat)
    if not selected:
        raise ValueError("`devices` is empty; a mesh needs at least one device")
    checked: set[Any] = set()
    for device in selected:
        # Not `isinstance`: objects with the same attributes describe devices that are not here.
        if not hasattr(device, "device_kind"):
            raise TypeError(f"`devices` holds {eqx.tree_pformat(device)}, which is not a device")
        if device in checked:
            raise ValueError(f"`devices` holds {device} twice; a mesh has each device once")
        checked.add(device)
    return selected


def _count_granules(devices: Sequence[Device], attribute: str) -> dict[int, int]:
    """Counts the devices of each slice (`slice_index`) or process (`process_index`)."""
    return dict(Counter(getattr(device, attribute, 0) for device in devices))


def spans_slices(devices: Sequence[Device]) -> bool:
    return len(_count_granules(devices, "slice_index")) > 1


def _split_over_axes(sizes: Sequence[int], parts: int) -> tuple[int, ...]:
    """Splits `parts` into a divisor of each size; earlier sizes get as large a divisor as they can.

    The divisors multiply to `parts` if that divides the product of `sizes`, because the earliest sizes that have a
    prime factor of `parts` take it.
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
    attribute, dcn = _resolve_dcn_factors(names, sizes, devices, dcn_mesh_dims)
    with _explain_layout_errors(names, sizes, devices, "`allow_split_physical_axes=True`"):
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


def make_jax_mesh(
    names: Sequence[str], sizes: Sequence[int], types: tuple[AxisType, ...], devices: Sequence[Device]
) -> Mesh:
    """Returns the mesh that `jax.make_mesh` makes of devices of one slice."""
    with _explain_layout_errors(names, sizes, devices, "`use_jax=False`"):
        return jax.make_mesh(sizes, names, types, devices=devices)


@contextmanager
def _explain_layout_errors(
    names: Sequence[str], sizes: Sequence[int], devices: Sequence[Device], option: str
) -> Iterator[None]:
    """Raises an error with a remedy if JAX cannot arrange the devices."""
    try:
        yield
    except LAYOUT_ERRORS as error:
        raise ValueError(
            f"JAX cannot lay out mesh {format_mesh_shape(names, sizes)} on the network of these devices; use complete "
            f"blocks of the network, other sizes, or {option}. JAX's error: {error}"
        ) from error
    except AttributeError as error:
        if not any(error.obj is device for device in devices):
            raise
        raise TypeError(
            f"`devices` holds a `{type(error.obj).__name__}` without `{error.name}`, which JAX needs to lay out the "
            "mesh; a described device has `id`, `process_index`, `platform`, `device_kind` and, if there are slices, "
            "`slice_index`, and a TPU also `coords` and `core_on_chip`"
        ) from error


def _resolve_dcn_factors(
    names: Sequence[str], sizes: Sequence[int], devices: Sequence[Device], dcn_mesh_dims: Any
) -> tuple[str, tuple[int, ...]]:
    """Returns the attribute that identifies a granule, and how many granules each mesh axis crosses."""
    if dcn_mesh_dims is None:
        _check_equal_granules("slice_index", devices)
        return "slice_index", _split_over_axes(sizes, len(_count_granules(devices, "slice_index")))
    if isinstance(dcn_mesh_dims, Mapping):
        for name in dcn_mesh_dims:
            if name not in names:
                raise ValueError(f"no mesh axis {name!r} for `dcn_mesh_dims`; {suggest_mesh_name(str(name), names)}")
        dcn_mesh_dims = [dcn_mesh_dims.get(name, 1) for name in names]
    factors = as_sizes(dcn_mesh_dims, "dcn_mesh_dims")
    if len(factors) != len(names):
        raise ValueError(
            f"`dcn_mesh_dims` {factors} and mesh {format_mesh_shape(names, sizes)} have {len(factors)} and "
            f"{len(names)} entries; give one factor per axis"
        )
    attribute, granules = _choose_granule(factors, devices)
    _check_equal_granules(attribute, devices)
    _check_dcn_factors(names, sizes, factors, attribute, granules)
    return attribute, fill_wildcard(factors, granules)


def _choose_granule(factors: Sequence[int], devices: Sequence[Device]) -> tuple[str, int]:
    """Returns which granules the factors count, and their number: slices, or processes if these fit better."""
    slices = len(_count_granules(devices, "slice_index"))
    processes = len(_count_granules(devices, "process_index"))
    product = prod(factors)
    # With a `-1`, the product fits neither: slices are then meant, if there are several.
    if processes > 1 and product != slices and (slices == 1 or product == processes):
        return "process_index", processes
    return "slice_index", slices


def _check_equal_granules(attribute: str, devices: Sequence[Device]) -> None:
    counts = _count_granules(devices, attribute)
    if len(set(counts.values())) > 1:
        singular, plural = _GRANULE_NAMES[attribute]
        numbers = ", ".join(f"{count} in {singular} {index}" for index, count in sorted(counts.items()))
        raise ValueError(
            f"a mesh over several {plural} needs the same number of devices in each, and there are {numbers}; pass "
            "`devices` with the same number from each"
        )


def _check_dcn_factors(
    names: Sequence[str], sizes: Sequence[int], factors: Sequence[int], attribute: str, granules: int
) -> None:
    singular, plural = _GRANULE_NAMES[attribute]
    over_granules = f"over {granules} {singular if granules == 1 else plural}"
    remedy = f"{format_mesh_shape(names, _split_over_axes(sizes, granules))} would do"
    if not can_fill(factors, granules):
        raise ValueError(
            f"`dcn_mesh_dims` {format_mesh_shape(names, factors)} must multiply to the number of {plural}, "
            f"with at most one `-1`, for mesh {format_mesh_shape(names, sizes)} {over_granules}; {remedy}"
        )
    for name, size, factor in zip(names, sizes, fill_wildcard(factors, granules), strict=True):
        if size % factor:
            raise ValueError(
                f"`dcn_mesh_dims` divides mesh axis '{name}' of size {size} by {factor}, for mesh "
                f"{format_mesh_shape(names, sizes)} {over_granules}; {remedy}"
            )


def calculate_host_mesh_shape(
    global_mesh_shape: Sequence[int],
    total_devices: int | None = None,
    num_processes: int | None = None,
) -> tuple[int, ...]:
    """Returns the shape of the block of one process when a mesh is split evenly among processes.

    The earliest axes are split, as far as they can be, so that the later and busier ones stay within a host. The blocks
    tile the mesh: every size is a multiple of the block's size, and the multiples are the `dcn_mesh_dims` with which
    `create_mesh` gives each process its block.

    Args:
        global_mesh_shape: The sizes of the mesh over all processes, all of them positive.
        total_devices: The number of devices of each process; None is `jax.local_device_count()`.
        num_processes: The number of processes; None is `jax.process_count()`.

    Returns:
        One size per mesh axis, with the product `total_devices`.

    Raises:
        TypeError: A size or number is not an integer.
        ValueError: The mesh does not have as many devices as all processes together.

    Example:
        >>> import axonym as nym
        >>> nym.calculate_host_mesh_shape((2, 4), total_devices=4, num_processes=2)
        (1, 4)
        >>> nym.calculate_host_mesh_shape((1, 4, 3), total_devices=4, num_processes=3)
        (1, 4, 1)
    """
    devices_per_process = jax.local_device_count() if total_devices is None else total_devices
    processes = jax.process_count() if num_processes is None else num_processes
    (devices_per_process,) = as_sizes((devices_per_process,), "total_devices")
    (processes,) = as_sizes((processes,), "num_processes")
    shape = as_sizes(global_mesh_shape, "global_mesh_shape")
    if min(devices_per_process, processes) < 1:
        raise ValueError(
            f"`total_devices` is {devices_per_process} and `num_processes` is {processes}; both must be positive"
        )
    devices = devices_per_process * processes
    if min(shape, default=1) < 1 or prod(shape) != devices:
        raise ValueError(
            f"mesh shape {shape} does not fit {devices} devices, {devices_per_process} in each of {processes} "
            f"processes; the nearest fit is {find_nearest_sizes(shape or (-1,), devices)}"
        )
    factors = _split_over_axes(shape, processes)
    return tuple(size // factor for size, factor in zip(shape, factors, strict=True))
