"""`LinkModel`: how long a collective takes on a machine, from the places of its devices and the speed of its links.

Sources: the figures of `Hardware`; for rings and steps Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005; for links of a torus Austin et al., "How to Scale Your Model", 2025; for the
two devices of a chip Google Cloud's page on TPU7x; for GPUs NCCL's own model, in `_nccl.py`.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from .._machine._described_devices import DescribedDevice
from .._machine._hardware import Hardware, get_hardware
from .._program._collectives import SliceGroups, count_sent_bytes, find_slice_groups
from ._nccl import NETWORK_PART, estimate_nccl_seconds, find_nvlink_bandwidth


_FORWARDED = ("collective-permute", "collective-broadcast")  # each device passes the whole on to one other
_EXCHANGED = ("all-to-all", "ragged-all-to-all")


class _TorusLine(NamedTuple):
    """The chips of a group along a dimension of the torus: how many, how far apart, and whether the ends meet."""

    size: int
    stride: int
    is_closed: bool

    @property
    def links(self) -> float:
        """The one-way links that a chip sends over at once; groups between whose chips there are others share them."""
        return (2 if self.is_closed else 1) / self.stride

    @property
    def load(self) -> float:
        """What goes over the busiest link when each chip sends an equal part of 1 to each chip of the line."""
        # Each half of an open line of n chips sends n / 2 x n / 2 parts of 1 / n over the link between the halves. A
        # closed one has two such links, each of which carries half of that.
        return self.stride * self.size / (8 if self.is_closed else 4)


class _Level(NamedTuple):
    """A network of the machine: the members of a group that it connects, and how fast.

    Attributes:
        size: The number of members, each a device or what the networks below connect.
        bandwidth: The bytes a second that a device sends.
        link: The bytes a second that it sends to a neighbor.
        exchange: The bytes a second in which a device sends an equal part to each member.
        is_network: Whether its members are hosts of GPUs.
    """

    size: int
    bandwidth: float
    link: float
    exchange: float
    is_network: bool = False


class LinkModel:
    """How long collectives take on a mesh of described devices, each alone and at the speed of the links.

    A group of devices is connected by up to three networks. On TPUs these are the chip (of two devices on tpu7x), the
    torus and the network of the data center between slices; on GPUs, NVLink in a host and the network between hosts. A
    collective goes over them in turn: an all-gather first gathers over the slowest, where each of the n devices that a
    faster network connects sends 1 / n of what they have, and then over the faster ones. On GPUs these steps run at the
    same time, as in the rings of NCCL, so the slowest counts; on TPUs they add up. Each step is that of a ring.

    In a torus a chip sends in both directions of each dimension that the group spans if the dimension is closed and the
    group takes all of it, and else in one, since each link of an open line carries all that its ends exchange. Groups
    that take every n-th chip of a dimension share its links with n - 1 others. The devices of a chip share its links.
    An all-to-all takes as long as its busiest link is in use.

    On GPUs, the steps of a ring or a tree have NCCL's latencies, and links the bandwidth that NCCL takes them to reach.
    What the model leaves out: on TPUs, the time until the first byte arrives, which counts in small collectives; other
    collectives that run at the same time; and XLA's choice of another algorithm.

    Args:
        mesh: A mesh of described devices.

    Attributes:
        mesh: The mesh.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._hardware = get_hardware(mesh.devices.flat[0].topology.hardware)
        self._levels: dict[tuple[tuple[str, ...], tuple[int, ...] | None], tuple[_Level, ...]] = {}

    def estimate_seconds(
        self, kind: str, result_bytes: int, mesh_axes: tuple[str, ...], group: tuple[int, ...] | None = None
    ) -> float:
        """Returns the seconds of a collective.

        Args:
            kind: In XLA's words, such as `"all-gather"`.
            result_bytes: The bytes that a device has from it.
            mesh_axes: The mesh axes along which the devices of a group differ.
            group: The places in the mesh of the devices of a group, where these are not all along the axes.
        """
        levels = self._find_levels(mesh_axes, group)
        whole = result_bytes
        if kind == "reduce-scatter":  # whose result is a part of what goes over the links
            whole *= math.prod(level.size for level in levels)
        seconds, below = [0.0], 1
        for level in levels:
            seconds.append(_estimate_level(kind, whole, below, level))
            below *= level.size
        # A permutation goes over one network only, taken to be the slowest that it spans.
        is_gpu = self._hardware.platform == "gpu"
        transfer = max(seconds) if is_gpu or kind in _FORWARDED else sum(seconds)
        if not is_gpu or not levels:
            return transfer
        hosts = math.prod(level.size for level in levels if level.is_network)
        return estimate_nccl_seconds(kind, transfer, below, hosts)

    @property
    def slice_axes(self) -> tuple[str, ...]:
        """The mesh axes along which devices of several slices exchange data."""
        return self._slice_groups.mesh_axes

    def estimate_slice_seconds(self, kind: str, result_bytes: int) -> float:
        """Returns the seconds of a collective between the devices that have the same place in each slice."""
        slices = self._slice_groups.size
        whole = result_bytes * slices if kind == "reduce-scatter" else result_bytes
        return _estimate_level(kind, whole, 1, _make_switch(slices, self._hardware.network_bandwidth))

    @functools.cached_property
    def _slice_groups(self) -> SliceGroups:
        return find_slice_groups(self.mesh)

    def _find_levels(self, mesh_axes: tuple[str, ...], places: tuple[int, ...] | None) -> tuple[_Level, ...]:
        """Returns the networks that connect the devices at some places or along mesh axes, the fastest first."""
        key = mesh_axes, places
        if key not in self._levels:
            group = self._find_group(mesh_axes)
            if places is not None:
                group = self.mesh.devices.ravel()[list(places)].tolist()
            hardware = self._hardware
            if hardware.torus_dims:
                levels = _find_torus_levels(group, hardware)
            else:
                hosts = len({device.process_index for device in group})
                link, network = hardware.link_bandwidth, hardware.network_bandwidth
                if hardware.platform == "gpu":
                    link, network = find_nvlink_bandwidth(hardware), NETWORK_PART * network
                outside = _make_switch(hosts, network)._replace(is_network=True)
                levels = [_make_switch(len(group) // hosts, link), outside]
            self._levels[key] = tuple(level for level in levels if level.size > 1)
        return self._levels[key]

    def _find_group(self, mesh_axes: tuple[str, ...]) -> list[DescribedDevice]:
        """Returns the first group of devices along mesh axes."""
        index = tuple(slice(None) if axis in mesh_axes else slice(1) for axis in self.mesh.axis_names)
        return self.mesh.devices[index].ravel().tolist()


def _estimate_level(kind: str, whole: int, below: int, level: _Level) -> float:
    """Returns the seconds of a collective of `whole` bytes in a network whose members are `below` devices each."""
    if kind in _FORWARDED:
        return whole / level.link
    if kind in _EXCHANGED:
        return whole / level.exchange
    sent_bytes = count_sent_bytes("all-reduce" if kind == "all-reduce" else "all-gather", whole // below, level.size)
    return sent_bytes / level.bandwidth


def _make_switch(size: int, bandwidth: float) -> _Level:
    """Returns a network in which each member sends with this speed to any other."""
    # In an exchange each member keeps one part of `size` and sends the others.
    return _Level(size, bandwidth, bandwidth, bandwidth * size / max(size - 1, 1))


def _find_torus_levels(group: Sequence[DescribedDevice], hardware: Hardware) -> list[_Level]:
    """Returns the network in a chip, the torus, and the network between slices."""
    slices = _find_slices(group)
    inside = [device for device in group if device.slice_index == slices[0]]
    chips = {device.coords for device in inside}
    lines = _find_lines(chips, inside)
    shared = hardware.link_bandwidth / hardware.devices_per_chip
    torus = _Level(
        size=len(chips),
        bandwidth=shared * sum(line.links for line in lines),
        link=shared / max((line.stride for line in lines), default=1),
        exchange=shared / max((line.load for line in lines), default=1.0),
    )
    chip = _make_switch(len(inside) // len(chips), hardware.links_in_chip * hardware.link_bandwidth)
    return [chip, torus, _make_switch(len(slices), hardware.network_bandwidth)]


def _find_slices(group: Iterable[DescribedDevice]) -> list[int]:
    return sorted({device.slice_index for device in group})


def _find_lines(chips: set[tuple[int, ...]], group: Sequence[DescribedDevice]) -> list[_TorusLine]:
    """Returns the lines of a group's chips, one for each dimension that they span.

    Chips that are not at all crossings of some rows and columns are taken as an open line.
    """
    places = [sorted(set(along)) for along in zip(*chips, strict=True)]
    if math.prod(map(len, places)) != len(chips):
        return [_TorusLine(len(chips), 1, is_closed=False)]
    topology = group[0].topology
    lines = []
    for positions, size, is_closable in zip(places, topology.sizes, topology.wrap, strict=False):
        if len(positions) > 1:
            stride = min(after - before for before, after in itertools.pairwise(positions))
            is_closed = is_closable and stride * len(positions) == size
            lines.append(_TorusLine(len(positions), stride, is_closed))
    return lines
