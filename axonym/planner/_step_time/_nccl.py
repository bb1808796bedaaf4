"""How long collectives of NCCL take on GPUs: latency and bandwidth by algorithm and protocol, as in its own model.

NCCL runs the algorithm and the protocol that it expects to be the fastest. Latencies and parts of the bandwidth are
those that it expects this from (`tuning.cc` of NCCL 2.19 and later). The bandwidth of NVLink is what it takes a link to
reach (`SM80_NVLINK_BW`, `SM90_NVLINK_BW` and `SM100_NVLINK_BW` in `topo.h`). Of adapters of 400 Gb/s, 46 to 48 GB/s are
to be expected, says a maintainer (NVIDIA/nccl-tests, issue 290). A kernel of NCCL takes 24 multiprocessors of an H100
(NVIDIA's developer forum, "Compute-Communication Overlap Causes Severe GEMM Performance Degradation", 2025); with
these gone, products take 22 % longer. On average of several GPUs and models it was 19 % (Lee et al., "Characterizing
Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", arXiv:2507.03114).

With 8 H100s, gathers, scatters and sums of 64 to 512 MiB take 14 % less to 5 % more than in XLA's table of them
(`collective_interpolator_data.h` of 2025).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from .._machine._hardware import Hardware


NETWORK_PART = 0.94  # of the published bandwidth of an adapter
_NVLINK_PARTS: Mapping[int, float] = {8: 20.0 / 25, 9: 20.6 / 25, 10: 40.1 / 50}  # by compute capability
_OTHER_NVLINK_PART = 0.8
_MULTIPROCESSORS = 24  # that a kernel of NCCL takes


class _Protocol(NamedTuple):
    """Seconds of a collective, of its steps over NVLink and over the network, and the part of the bandwidth."""

    start: float
    link: float
    network: float
    part: float


_RING = (
    _Protocol(6.6e-6, 0.6e-6, 2.7e-6, 1 / 4),
    _Protocol(14e-6, 1.9e-6, 4e-6, 0.92),
    _Protocol(8.4e-6, 3.4e-6, 14e-6, 1),
)
_TREE = (
    _Protocol(6.8e-6, 0.6e-6, 5e-6, 0.92 / 3.8),
    _Protocol(14e-6, 1.25e-6, 8.5e-6, 0.92 * 0.92),
    _Protocol(8.4e-6, 4e-6, 14e-6, 0.92),
)


def find_nvlink_bandwidth(hardware: Hardware) -> float:
    """Returns the bytes a second that a GPU sends to the others of its host."""
    capability = hardware.gpu_target.compute_capability[0] if hardware.gpu_target else 0
    return _NVLINK_PARTS.get(capability, _OTHER_NVLINK_PART) * hardware.link_bandwidth


def find_speed_beside_collectives(hardware: Hardware) -> float:
    """Returns how fast kernels compute while a collective runs, as a part of how fast they do alone."""
    multiprocessors = hardware.gpu_target.multiprocessors if hardware.gpu_target else 0
    return 1 - _MULTIPROCESSORS / multiprocessors if multiprocessors > _MULTIPROCESSORS else 1.0


def estimate_nccl_seconds(kind: str, transfer: float, devices: int, hosts: int) -> float:
    """Returns the seconds of a collective, with the algorithm and the protocol that are fastest.

    Args:
        kind: In XLA's words.
        transfer: The seconds that its bytes take at the bandwidth of the links.
        devices: The number of GPUs of a group.
        hosts: The number of hosts that they are on.
    """
    rounds = 2 if kind == "all-reduce" else 1
    if kind in ("all-gather", "reduce-scatter", "all-reduce"):
        steps, network_steps = rounds * (devices - 1), rounds * (hosts - 1)
    else:  # all that a GPU sends to others is on its way at once
        steps, network_steps = 1, int(hosts > 1)
    seconds = [_add_latency(protocol, transfer, steps - network_steps, network_steps) for protocol in _RING]
    if kind == "all-reduce":
        link_steps, network_steps = 2 * (devices // hosts - 1), 2 * math.ceil(math.log2(hosts))
        seconds += [_add_latency(protocol, transfer, link_steps, network_steps) for protocol in _TREE]
    return min(seconds)


def _add_latency(protocol: _Protocol, transfer: float, link_steps: int, network_steps: int) -> float:
    latency = protocol.start + link_steps * protocol.link + network_steps * protocol.network
    return latency + transfer / protocol.part
