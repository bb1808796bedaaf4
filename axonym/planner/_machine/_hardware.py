"""`Hardware`: the published figures of a device and of its network; presets of TPUs and GPUs, and how to add others."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ..._ground.formats import format_value, suggest_name


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """What XLA's compiler for NVIDIA GPUs has to know of a GPU that is not there.

    Multiprocessors and caches are those of NVIDIA's whitepapers on Ampere, Hopper and Blackwell; what a multiprocessor
    holds is in the CUDA C++ programming guide, by compute capability.

    Attributes:
        compute_capability: Its version, such as `(9, 0)`.
        multiprocessors: How many streaming multiprocessors it has.
        fp32_units: The units for 32-bit floats of each multiprocessor.
        shared_memory: The bytes of shared memory of each multiprocessor.
        block_shared_memory: The most of these that a block of threads may ask for.
        l2_cache: The bytes of the cache that all multiprocessors share.

    Example:
        >>> import axonym as nym
        >>> nym.planner.get_hardware("h100").gpu_target.multiprocessors
        132
    """

    compute_capability: tuple[int, int]
    multiprocessors: int
    fp32_units: int
    shared_memory: int
    block_shared_memory: int
    l2_cache: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """The published figures of a device, such as a TPU chip, and of its network; all of them for one device.

    [Compiling for described devices](../compile-for.md#hardware) has the figures of the presets with their sources.
    `dataclasses.replace(get_hardware("v5e"), name="...", ...)` makes a device of your own, which `memory_report` and
    `assert_fits` take; [`register_hardware`][axonym.planner.register_hardware] makes its name known everywhere.

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
        clock: Cycles a second of its matrix units; on TPUs, of the cycles that XLA estimates.
        devices_per_host: How many devices a host has; of GPUs, how many NVLink or its like connects.
        devices_per_chip: How many devices a chip has. They share its links.
        links: How many links a chip has to its neighbors in a torus; 0 for a switched network.
        link_bandwidth: Bytes a second of a link, one way. On GPUs, those of a GPU to the others of its host.
        torus_dims: How many dimensions the torus has; 0 for a switched network.
        wrap_multiple: In a torus of two dimensions, the size of a dimension whose ends are connected; in one of three,
            the number that must divide all sizes for the ends to be connected. 0 if they never are.
        network_bandwidth: Bytes a second of a device, one way, to devices of other slices or, on GPUs, of other hosts.
        host_bandwidth: Bytes a second between a device and the memory of its host, one way.
        cores: Of TPUs, the cores that work as one device.
        links_in_chip: The bandwidth between the devices of a chip, as a number of links; 0 if a chip is one device.
        max_chips: The most chips of a torus that clouds offer; 0 for no limit.
        aliases: Other names of it, such as `"v5litepod"`.
        compiler_name: Of TPUs, the name that libtpu knows it by.
        chip_config: Of TPUs, libtpu's name for how the cores of a chip work together, where it has to be told.
        gpu_target: Of GPUs, what XLA has to know to compile for it; None if there is no compiler for it here, as for
            GPUs of AMD. Its memory and speed still count for reports, and a plan screens candidates by them.

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
    cores: int = 1
    links_in_chip: int = 0
    max_chips: int = 0
    aliases: tuple[str, ...] = ()
    compiler_name: str = ""
    chip_config: str = ""
    gpu_target: GpuTarget | None = None

    @property
    def has_compiler(self) -> bool:
        """Whether programs can be compiled for it: for GPUs of NVIDIA, but not for those of AMD."""
        return self.platform != "gpu" or self.gpu_target is not None

    def find_wrap(self, topology: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns for each dimension of a torus whether its ends are connected.

        In a torus of two dimensions they are in dimensions of full size, in one of three if it is made of whole cubes,
        as in the table of accelerators that MaxText compiles for.

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


_SLICE_COUNT = re.compile(r"^\s*\d+\s*x(?=\s*[A-Za-z])")  # as in "2 x v5e:16x16"
_GIB, _MIB = 2**30, 2**20
_AMPERE = GpuTarget((8, 0), 108, 64, shared_memory=167936, block_shared_memory=166912, l2_cache=40 * _MIB)
_HOPPER = GpuTarget((9, 0), 132, 128, shared_memory=233472, block_shared_memory=232448, l2_cache=50 * _MIB)
_BLACKWELL = GpuTarget((10, 0), 148, 128, shared_memory=233472, block_shared_memory=232448, l2_cache=126 * _MIB)
_GRACE_BLACKWELL = replace(_BLACKWELL, multiprocessors=152, l2_cache=129 * _MIB)

# docs/compile-for.md has the sources of each figure.
# fmt: off
_H100 = Hardware(
    name="h100", platform="gpu", device_kind="NVIDIA H100 80GB HBM3", bf16_flops=989.4e12, int8_flops=1978.9e12,
    fp8_flops=1978.9e12, hbm_bytes=80 * _GIB, hbm_available=81008 * _MIB, hbm_bandwidth=3352e9, clock=1.98e9,
    devices_per_host=8, devices_per_chip=1, gpu_target=_HOPPER,
    links=0, link_bandwidth=450e9, torus_dims=0, wrap_multiple=0, network_bandwidth=50e9, host_bandwidth=64e9,
)
_PRESETS = (
    Hardware(
        name="v4", platform="tpu", device_kind="TPU v4", bf16_flops=275e12, int8_flops=275e12, fp8_flops=275e12,
        hbm_bytes=32 * _GIB, hbm_available=int(30.75 * _GIB), hbm_bandwidth=1228e9, clock=1.05e9,
        devices_per_host=4, devices_per_chip=1, cores=2, chip_config="megacore", max_chips=4096,
        compiler_name="v4",
        links=6, link_bandwidth=45e9, torus_dims=3, wrap_multiple=4, network_bandwidth=6.25e9, host_bandwidth=16e9,
    ),
    Hardware(
        name="v5e", platform="tpu", device_kind="TPU v5 lite", bf16_flops=197e12, int8_flops=394e12, fp8_flops=197e12,
        hbm_bytes=16 * _GIB, hbm_available=int(15.75 * _GIB), hbm_bandwidth=819e9, clock=1.5e9,
        devices_per_host=4, devices_per_chip=1, max_chips=256, aliases=("v5litepod",),
        compiler_name="v5e",
        links=4, link_bandwidth=45e9, torus_dims=2, wrap_multiple=16, network_bandwidth=3.125e9, host_bandwidth=16e9,
    ),
    Hardware(
        name="v5p", platform="tpu", device_kind="TPU v5", bf16_flops=459e12, int8_flops=918e12, fp8_flops=459e12,
        hbm_bytes=95 * _GIB, hbm_available=int(95.73 * _GIB), hbm_bandwidth=2765e9, clock=1.75e9,
        devices_per_host=4, devices_per_chip=1, cores=2, max_chips=6144,
        compiler_name="v5p",
        links=6, link_bandwidth=90e9, torus_dims=3, wrap_multiple=4, network_bandwidth=6.25e9, host_bandwidth=16e9,
    ),
    Hardware(
        name="v6e", platform="tpu", device_kind="TPU v6 lite", bf16_flops=918e12, int8_flops=1836e12, fp8_flops=918e12,
        hbm_bytes=32 * _GIB, hbm_available=int(31.24 * _GIB), hbm_bandwidth=1638e9, clock=1.75e9,
        devices_per_host=4, devices_per_chip=1, max_chips=256,
        compiler_name="v6e",
        links=4, link_bandwidth=90e9, torus_dims=2, wrap_multiple=16, network_bandwidth=12.5e9, host_bandwidth=32e9,
    ),
    Hardware(
        name="tpu7x", platform="tpu", device_kind="TPU7x", bf16_flops=1153.5e12, int8_flops=1153.5e12,
        fp8_flops=2307e12, hbm_bytes=96 * _GIB, hbm_available=int(94.74 * _GIB), hbm_bandwidth=3690e9, clock=2.2e9,
        devices_per_host=8, devices_per_chip=2, links_in_chip=6, max_chips=9216,
        compiler_name="tpu7x",
        links=6, link_bandwidth=90e9, torus_dims=3, wrap_multiple=4, network_bandwidth=6.25e9, host_bandwidth=32e9,
    ),
    Hardware(
        name="a100", platform="gpu", device_kind="NVIDIA A100-SXM4-80GB", bf16_flops=312e12, int8_flops=624e12,
        fp8_flops=312e12, hbm_bytes=80 * _GIB, hbm_available=81369 * _MIB, hbm_bandwidth=2039e9, clock=1.41e9,
        devices_per_host=8, devices_per_chip=1, gpu_target=_AMPERE,
        links=0, link_bandwidth=300e9, torus_dims=0, wrap_multiple=0, network_bandwidth=25e9, host_bandwidth=32e9,
    ),
    _H100,
    replace(_H100, name="a3_high", network_bandwidth=12.5e9),
    replace(_H100, name="a3_mega", network_bandwidth=25e9),
    Hardware(
        name="h200", platform="gpu", device_kind="NVIDIA H200", bf16_flops=989.4e12, int8_flops=1978.9e12,
        fp8_flops=1978.9e12, hbm_bytes=141 * _GIB, hbm_available=143220 * _MIB, hbm_bandwidth=4800e9, clock=1.98e9,
        devices_per_host=8, devices_per_chip=1, gpu_target=_HOPPER,
        links=0, link_bandwidth=450e9, torus_dims=0, wrap_multiple=0, network_bandwidth=50e9, host_bandwidth=64e9,
    ),
    Hardware(
        name="b200", platform="gpu", device_kind="NVIDIA B200", bf16_flops=2250e12, int8_flops=4500e12,
        fp8_flops=4500e12, hbm_bytes=180 * _GIB, hbm_available=182808 * _MIB, hbm_bandwidth=8000e9, clock=1.965e9,
        devices_per_host=8, devices_per_chip=1, gpu_target=_BLACKWELL,
        links=0, link_bandwidth=900e9, torus_dims=0, wrap_multiple=0, network_bandwidth=50e9, host_bandwidth=64e9,
    ),
    Hardware(
        name="gb200", platform="gpu", device_kind="NVIDIA GB200", bf16_flops=2500e12, int8_flops=5000e12,
        fp8_flops=5000e12, hbm_bytes=186 * _GIB, hbm_available=188920 * _MIB, hbm_bandwidth=8000e9, clock=2.062e9,
        devices_per_host=72, devices_per_chip=1, gpu_target=_GRACE_BLACKWELL,
        links=0, link_bandwidth=900e9, torus_dims=0, wrap_multiple=0, network_bandwidth=50e9, host_bandwidth=225e9,
    ),
    Hardware(
        name="mi300x", platform="gpu", device_kind="AMD Instinct MI300X", bf16_flops=1307.4e12, int8_flops=2614.9e12,
        fp8_flops=2614.9e12, hbm_bytes=192 * _GIB, hbm_available=196592 * _MIB, hbm_bandwidth=5300e9, clock=2.1e9,
        devices_per_host=8, devices_per_chip=1,
        links=0, link_bandwidth=448e9, torus_dims=0, wrap_multiple=0, network_bandwidth=50e9, host_bandwidth=64e9,
    ),
    Hardware(
        name="cpu", platform="cpu", device_kind="cpu", bf16_flops=229.4e12, int8_flops=458.8e12, fp8_flops=229.4e12,
        hbm_bytes=2**42, hbm_available=2**42, hbm_bandwidth=307.2e9, clock=2e9, devices_per_host=1, devices_per_chip=1,
        links=0, link_bandwidth=62e9, torus_dims=0, wrap_multiple=0, network_bandwidth=12.5e9, host_bandwidth=307.2e9,
    ),
)
# fmt: on
HARDWARE: Mapping[str, Hardware] = MappingProxyType({preset.name: preset for preset in _PRESETS})
"""The presets by name: `v4`, `v5e`, `v5p`, `v6e`, `tpu7x`, `a100`, `h100`, `a3_high`, `a3_mega`, `h200`, `b200`,
`gb200`, `mi300x` and `cpu`."""

_FIGURES = (
    *("bf16_flops", "int8_flops", "fp8_flops", "hbm_bytes", "hbm_available", "hbm_bandwidth", "clock"),
    *("devices_per_host", "devices_per_chip", "cores", "link_bandwidth", "network_bandwidth", "host_bandwidth"),
)
_BANDWIDTHS = ("hbm_bandwidth", "link_bandwidth", "network_bandwidth", "host_bandwidth")
_LEAST_BANDWIDTH = 1e6  # below it, a bandwidth was meant in MB/s or GB/s
_registered: dict[str, Hardware] = {}


def register_hardware(hardware: Hardware) -> None:
    """Makes the name of a device known, so that it describes machines and may stand wherever the name of a preset may.

    A name stays known until the process ends. A plan in a file has the name alone: register the device before you read
    it. Programs for TPUs are compiled for the one that `compiler_name` names, with the memory that libtpu knows of it.
    [`read_hardware`][axonym.planner.read_hardware] does the same with the devices in a file.

    Args:
        hardware: The device. Its name has lower-case letters, digits and underscores, and starts with a letter.

    Raises:
        TypeError: If it is not a `Hardware`.
        ValueError: If its name does not fit a description, is that of another device, or a figure is missing: the
            `compiler_name` of a TPU, or the `links_in_chip` of a chip of several devices; if a bandwidth is less than
            a megabyte a second; or if a TPU has more memory than libtpu compiles for.

    Example:
        >>> import axonym as nym
        >>> import dataclasses
        >>> h100 = nym.planner.get_hardware("h100")
        >>> nym.planner.register_hardware(dataclasses.replace(h100, name="h100_nvl", hbm_available=93 * 2**30))
        >>> devices = nym.planner.described_devices("h100_nvl:4x8")
        >>> len(devices), nym.planner.get_hardware("h100_nvl:4x8").hbm_available // 2**30
        (32, 93)
    """
    if not isinstance(hardware, Hardware):
        raise TypeError(f"`hardware` is a `Hardware`, not a {type(hardware).__name__}")
    name = hardware.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"{name!r} cannot stand in a description such as 'v5e:16x16'; name the device with lower-case letters, "
            "digits and underscores"
        )
    namesake = _find_hardware(name)
    if name in ("tpu", "gpu") or (namesake is not None and namesake != hardware):
        raise ValueError(f"{name!r} is the name of another device; give this one a name of its own")
    for figure in _FIGURES:
        if not 0 < getattr(hardware, figure) < math.inf:
            raise ValueError(f"{name!r} has the {figure} {getattr(hardware, figure)!r}; it is a number above 0")
    for figure in _BANDWIDTHS:
        if getattr(hardware, figure) < _LEAST_BANDWIDTH:
            raise ValueError(
                f"{name!r} has the {figure} {getattr(hardware, figure):g}; bandwidths are in bytes a second, such as "
                "12.5e9 for 12.5 GB/s"
            )
    if hardware.platform == "tpu" and hardware.torus_dims not in (2, 3):
        raise ValueError(
            f"{name!r} has {hardware.torus_dims} as `torus_dims`; the torus of a TPU has 2 or 3 dimensions"
        )
    if hardware.platform == "tpu" and not hardware.compiler_name:
        raise ValueError(
            f"{name!r} is a TPU without `compiler_name`, the name that libtpu knows; give that of the nearest one, "
            "such as 'v5e'"
        )
    if hardware.platform == "tpu":
        _check_memory(hardware)
    if hardware.devices_per_chip > 1 and not hardware.links_in_chip:
        raise ValueError(
            f"{name!r} has {hardware.devices_per_chip} devices on a chip; give `links_in_chip`, over how many links "
            "they exchange data"
        )
    _registered[name] = hardware


def _check_memory(hardware: Hardware) -> None:
    """Raises an error if a TPU has more memory than the chip that libtpu takes it for, which decides what fits."""
    sizes = [chip.hbm_available for chip in _PRESETS if chip.compiler_name == hardware.compiler_name]
    if sizes and hardware.hbm_available > sizes[0]:
        raise ValueError(
            f"{hardware.name!r} has {hardware.hbm_available / _GIB:.2f} GiB as `hbm_available`, but libtpu compiles "
            f"for {hardware.compiler_name!r} with {sizes[0] / _GIB:.2f} GiB, and nothing larger fits; give at most "
            f"{sizes[0]} bytes, or the `compiler_name` of a TPU that has more"
        )


def get_hardware(name: str) -> Hardware:
    """Returns the figures of a device by its name; upper and lower case are the same.

    Args:
        name: Such as `"v5e"` or `"H100"`, also in a description such as `"v5e:16x16"`.

    Raises:
        TypeError: If the name is not text.
        ValueError: If there is no such preset and no such device is registered.

    Example:
        >>> import axonym as nym
        >>> nym.planner.get_hardware("H100").bf16_flops
        989400000000000.0
    """
    if not isinstance(name, str):
        raise TypeError(f"hardware is given by its name, such as 'v5e' or 'H100', not by {format_value(name)}")
    short = _SLICE_COUNT.sub("", name).partition(":")[0].strip().lower()
    hardware = _find_hardware(short)
    if hardware is None:
        presets = {**HARDWARE, **_registered}
        if candidates := [device.name for device in presets.values() if device.platform == short]:
            raise ValueError(f"{short!r} does not say which {short.upper()}s; name one of {', '.join(candidates)}")
        variants = [repr(preset) for preset in presets if preset.startswith(f"{short}_")]  # as of a3
        suggestion = f"; did you mean {' or '.join(variants)}?" if variants else suggest_name(short, [*presets])
        raise ValueError(f"no hardware {short!r}; there are {', '.join(presets)}{suggestion}")
    return hardware


def _find_hardware(name: str) -> Hardware | None:
    presets = {**HARDWARE, **_registered}
    return presets.get(name) or next((device for device in presets.values() if name in device.aliases), None)


def format_gpu_target(hardware: Hardware) -> str:
    """Returns the description of a GPU as the text of XLA's `GpuTargetConfigProto`."""
    target = hardware.gpu_target
    if target is None:
        raise ValueError(
            f"there is no compiler for {hardware.name!r}: XLA's plugin compiles for GPUs of NVIDIA, those with a "
            f"`gpu_target`; `memory_report` and `assert_fits` take {hardware.name!r} as the `device` of a program for "
            "others, and `plan` screens candidates for it"
        )
    major, minor = target.compute_capability
    return f"""\
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {target.block_shared_memory}
  shared_memory_per_core: {target.shared_memory}
  threads_per_core_limit: 2048 core_count: {target.multiprocessors} fpus_per_core: {target.fp32_units}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(hardware.hbm_bandwidth)} l2_cache_size: {target.l2_cache}
  clock_rate_ghz: {hardware.clock / 1e9:g} device_memory_size: {hardware.hbm_available}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{hardware.device_kind}"
"""
