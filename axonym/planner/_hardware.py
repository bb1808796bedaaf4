"""`Hardware`: the published figures of a device and of its network, and presets of TPUs and GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ..named._axis import format_value, suggest_name


_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Hardware:
    """The published figures of a device, such as a TPU chip, and of its network; all of them for one device.

    [Compiling for described devices](../compile-for.md#hardware) has the figures of the presets with their sources.
    Make one of your own with `dataclasses.replace(get_hardware("v5e"), ...)`, for `memory_report` and `assert_fits`.

    Attributes:
        name: Its name, such as `"v5e"`.
        platform: JAX's platform: `"tpu"`, `"gpu"` or `"cpu"`.
        device_kind: Its name in JAX.
        bf16_flops: Floating-point operations a second in bfloat16, without sparsity.
        int8_flops: Operations a second with 8-bit integers.
        fp8_flops: Operations a second with 8-bit floats; those of bfloat16 where the device has no 8-bit floats.
        hbm_bytes: The bytes of its memory, as published.
        hbm_available: The bytes that programs can use.
        hbm_bandwidth: Bytes a second between memory and the device.
        clock: Cycles a second of its matrix units; those that XLA estimates on TPUs.
        devices_per_host: How many devices a host has.
        devices_per_chip: How many devices a chip has. They share its links.
        links: How many links a chip has to its neighbors in a torus; 0 for a switched network.
        link_bandwidth: Bytes a second of a link, one way. On GPUs, those of a GPU to the others of its host.
        torus_dims: How many dimensions the torus has; 0 for a switched network.
        wrap_multiple: The size of a dimension whose ends are connected; in a torus of three dimensions, the number that
            divides all sizes if the ends are connected. 0 if they never are.
        network_bandwidth: Bytes a second of a device, one way, to devices of other slices or, on GPUs, of other hosts.
        host_bandwidth: Bytes a second between a device and the memory of its host, one way.

    Example:
        >>> import axonym as nym
        >>> v5e = nym.planner.get_hardware("v5e")
        >>> v5e.hbm_available / 2**30, v5e.bf16_flops / 1e12
        (15.75, 197.0)
    """

    name: str
    platform: Literal["tpu", "gpu", "cpu"]
    device_kind: str
    bf16_flops: float
    int8_flops: float
    fp8_flops: float
    hbm_bytes: int
    hbm_available: int
    hbm_bandwidth: float
    clock: float
    devices_per_host: int
    devices_per_chip: int
    links: int
    link_bandwidth: float
    torus_dims: int
    wrap_multiple: int
    network_bandwidth: float
    host_bandwidth: float

    def find_wrap(self, topology: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns for each dimension of a torus whether its ends are connected.

        A torus of two dimensions closes in those of full size, one of three if it is made of whole cubes: as in the
        table of accelerators that MaxText compiles for.

        Args:
            topology: The size of each dimension, in chips.

        Example:
            >>> import axonym as nym
            >>> nym.planner.get_hardware("v5e").find_wrap((8, 16)), nym.planner.get_hardware("v5p").find_wrap((2, 4, 4))
            ((False, True), (False, False, False))
        """
        if not self.wrap_multiple:
            return (False,) * len(topology)
        if self.torus_dims == 2:
            return tuple(size == self.wrap_multiple for size in topology)
        return (all(size % self.wrap_multiple == 0 for size in topology),) * len(topology)


def _make_tpu(
    name: str,
    kind: str,
    tera_flops: tuple[float, float, float],
    hbm: tuple[float, float],
    giga_bytes: float,
    clock: float,
    dims: int,
    link: float,
    network: float,
    host: float,
    devices_per_chip: int = 1,
) -> Hardware:
    bf16, int8, fp8 = (1e12 * value for value in tera_flops)
    return Hardware(
        name=name,
        platform="tpu",
        device_kind=kind,
        bf16_flops=bf16,
        int8_flops=int8,
        fp8_flops=fp8,
        hbm_bytes=int(hbm[0] * _GIB),
        hbm_available=int(hbm[1] * _GIB),
        hbm_bandwidth=giga_bytes * 1e9,
        clock=clock * 1e9,
        devices_per_host=4 * devices_per_chip,
        devices_per_chip=devices_per_chip,
        links=2 * dims,
        link_bandwidth=link,
        torus_dims=dims,
        wrap_multiple=16 if dims == 2 else 4,
        network_bandwidth=network,
        host_bandwidth=host,
    )


def _make_gpu(
    name: str,
    kind: str,
    tera_flops: tuple[float, float, float],
    hbm: tuple[int, int],
    giga_bytes: float,
    clock: float,
    nvlink: float,
    network: float,
    host: float,
) -> Hardware:
    bf16, int8, fp8 = (1e12 * value for value in tera_flops)
    return Hardware(
        name=name,
        platform="gpu",
        device_kind=kind,
        bf16_flops=bf16,
        int8_flops=int8,
        fp8_flops=fp8,
        hbm_bytes=hbm[0] * _GIB,
        hbm_available=hbm[1] * _MIB,
        hbm_bandwidth=giga_bytes * 1e9,
        clock=clock * 1e9,
        devices_per_host=8,
        devices_per_chip=1,
        links=0,
        link_bandwidth=nvlink * 1e9,
        torus_dims=0,
        wrap_multiple=0,
        network_bandwidth=network * 1e9,
        host_bandwidth=host * 1e9,
    )


_CPU = Hardware(
    name="cpu",
    platform="cpu",
    device_kind="cpu",
    bf16_flops=229.4e12,
    int8_flops=458.8e12,
    fp8_flops=229.4e12,
    hbm_bytes=2**42,
    hbm_available=2**42,
    hbm_bandwidth=307.2e9,
    clock=2.0e9,
    devices_per_host=1,
    devices_per_chip=1,
    links=0,
    link_bandwidth=62e9,
    torus_dims=0,
    wrap_multiple=0,
    network_bandwidth=12.5e9,
    host_bandwidth=307.2e9,
)
_PRESETS = (
    _make_tpu("v4", "TPU v4", (275, 275, 275), (32, 30.75), 1228, 1.05, 3, 4.5e10, 6.25e9, 1.6e10),
    _make_tpu("v5e", "TPU v5 lite", (197, 394, 197), (16, 15.75), 819, 1.5, 2, 4.5e10, 3.125e9, 1.6e10),
    _make_tpu("v5p", "TPU v5", (459, 918, 459), (95, 95.73), 2765, 1.75, 3, 9e10, 6.25e9, 1.6e10),
    _make_tpu("v6e", "TPU v6 lite", (918, 1836, 918), (32, 31.24), 1638, 1.75, 2, 9e10, 12.5e9, 3.2e10),
    _make_tpu("tpu7x", "TPU7x", (1153.5, 1153.5, 2307), (96, 94.74), 3690, 2.2, 3, 9e10, 6.25e9, 3.2e10, 2),
    _make_gpu("a100", "NVIDIA A100-SXM4-80GB", (312, 624, 312), (80, 81369), 2039, 1.41, 300, 25, 32),
    _make_gpu("h100", "NVIDIA H100 80GB HBM3", (989.4, 1978.9, 1978.9), (80, 81008), 3352, 1.98, 450, 50, 64),
    _make_gpu("h200", "NVIDIA H200", (989.4, 1978.9, 1978.9), (141, 143220), 4800, 1.98, 450, 50, 64),
    _make_gpu("b200", "NVIDIA B200", (2250, 4500, 4500), (180, 182808), 8000, 1.965, 900, 50, 64),
    _CPU,
)
HARDWARE: Mapping[str, Hardware] = MappingProxyType({one.name: one for one in _PRESETS})
"""The presets by name: `v4`, `v5e`, `v5p`, `v6e`, `tpu7x`, `a100`, `h100`, `h200`, `b200` and `cpu`."""


def get_hardware(name: str) -> Hardware:
    """Returns the figures of a device by its name; upper and lower case are the same.

    Args:
        name: Such as `"v5e"` or `"H100"`, also as the start of a description such as `"v5e:16x16"`.

    Raises:
        TypeError: If the name is not text.
        ValueError: If there is no such preset.

    Example:
        >>> import axonym as nym
        >>> nym.planner.get_hardware("H100").bf16_flops
        989400000000000.0
    """
    if not isinstance(name, str):
        raise TypeError(f"hardware is given by its name, such as 'v5e' or 'H100', not by {format_value(name)}")
    short = name.partition(":")[0].strip().lower()
    if short not in HARDWARE:
        if meant := [one.name for one in HARDWARE.values() if one.platform == short]:
            raise ValueError(f"{short!r} does not say which {short.upper()}s; name one of {', '.join(meant)}")
        known = ", ".join(HARDWARE)
        raise ValueError(f"no hardware {short!r}{suggest_name(short, list(HARDWARE))}; there are {known}")
    return HARDWARE[short]
