"""`described_devices`: the devices of a machine that is not there, for a mesh to compile for."""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, log2, prod
from typing import Any

from ._hardware import Hardware, get_hardware


_NUMBER = r"\d{1,18}"  # Python does not read numbers of thousands of digits
_DESCRIPTION = re.compile(rf"(?:({_NUMBER})\s*x\s*)?([A-Za-z]\w*):({_NUMBER}(?:x{_NUMBER})*)")
_EXAMPLES = {"tpu": {2: "16x16", 3: "4x8x8"}, "gpu": {0: "32x8"}, "cpu": {0: "64"}}  # by platform and torus
ONE_CHIP = (1, 1)  # a torus of two dimensions; clouds lend v5e and v6e in hosts of one chip as well
_TORI_BELOW_CUBES = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))  # that clouds offer; larger ones are of cubes of 4
_MOST_DEVICES = 1_000_000  # several times the largest machines there are; their devices are listed in 15 seconds
_SLICE_IDS = 100_000  # of several slices, libtpu numbers the devices of slice i from (i + 1) times this


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine: its devices, the sizes of its network, and how it is divided.

    Attributes:
        hardware: The name of its devices.
        sizes: Of TPUs, the chips along each dimension of the torus; of GPUs, hosts and GPUs in each; of CPUs, devices.
        slices: How many of these there are, connected by a slower network.
        wrap: Along which dimensions the ends of the torus are connected; empty if it is none.

    Example:
        >>> import axonym as nym
        >>> nym.planner.described_devices("v5e:8x16")[0].topology
        Topology(hardware='v5e', sizes=(8, 16), slices=1, wrap=(False, True))
    """

    hardware: str
    sizes: tuple[int, ...]
    slices: int
    wrap: tuple[bool, ...]

    def __str__(self) -> str:
        name = f"{self.hardware}:{'x'.join(map(str, self.sizes))}"
        return name if self.slices == 1 else f"{self.slices} x {name}"


@dataclass(frozen=True, slots=True)
class DescribedDevice:
    """A device of a machine that is not there, with the attributes by which JAX lays out a mesh.

    Attributes:
        id: Its number, as libtpu and the CUDA plugin count.
        process_index: The process that has it, one for each host.
        platform: `"tpu"`, `"gpu"` or `"cpu"`.
        device_kind: Its name in JAX, such as `"TPU v5 lite"`.
        coords: The place of its chip in the torus.
        core_on_chip: Which device of its chip it is.
        slice_index: The slice that it is in.
        num_cores: The cores that work as one device; None for others than TPUs.
        topology: The machine that it belongs to.

    Example:
        >>> import axonym as nym
        >>> device = nym.planner.described_devices("v5e:4x4")[5]
        >>> device.coords, device.process_index, str(device.topology)
        ((1, 1, 0), 0, 'v5e:4x4')
    """

    id: int
    process_index: int
    platform: str
    device_kind: str
    coords: tuple[int, ...]
    core_on_chip: int
    slice_index: int
    num_cores: int | None
    topology: Topology

    @property
    def client(self) -> Any:
        """What JAX runs programs with; raises an AttributeError, since there is no device."""
        raise AttributeError(
            f"{self} is described and not there, so nothing runs on it and no array is put on it; pass shapes, and "
            "compile functions with `nym.planner.compile_for`"
        )

    def __str__(self) -> str:
        return f"{self.device_kind} {self.id} of {self.topology}"


def described_devices(
    description: str, *, slices: int = 1, wrap: Sequence[bool] | None = None
) -> tuple[DescribedDevice, ...]:
    """Returns the devices of a machine that is not there, for `create_mesh(..., devices=...)` and `compile_for`.

    They have numbers, places and hosts as libtpu and the CUDA plugin give them, so that a mesh is laid out as on the
    machine: along whole dimensions of the torus where sizes permit. No compiler is needed.

    Args:
        description: The name of a preset or of registered hardware, and sizes: for TPUs, the chips along the dimensions
            of the torus (`"v5e:16x16"`, `"v5p:4x8x8"`, or one chip, `"v6e:1x1"`); for GPUs, hosts and GPUs in each
            (`"h100:32x8"`), where a host of GB200 is all that NVLink connects (`"gb200:2x72"`); for CPUs, a number
            (`"cpu:64"`). Several tori, connected by the data-center network, are `"2 x v5e:16x16"`.
        slices: How many of these tori there are, where the description does not say it.
        wrap: For each dimension of the torus, whether its ends are connected; None for what is usual, see
            [`Hardware.find_wrap`][axonym.planner.Hardware.find_wrap].

    Returns:
        The devices in the order of their numbers.

    Raises:
        TypeError: If the description is not a string.
        ValueError: If the description, `slices` or `wrap` is not one of a machine, or it has more than a million
            devices. Tori are those that clouds offer: of two dimensions, powers of two of which the longer is at most
            twice the shorter; of three, cubes of 4 or parts of one; and no larger than `Hardware.max_chips`.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh({"data": 64, "model": 4}, devices=nym.planner.described_devices("v5e:16x16"))
        >>> dict(mesh.shape), mesh.devices[0, 0].device_kind
        ({'data': 64, 'model': 4}, 'TPU v5 lite')
        >>> len(nym.planner.described_devices("2 x v5e:16x16"))
        512
    """
    hardware, described_slices, sizes = _parse_description(description)
    if described_slices is not None and slices not in (1, described_slices):
        raise ValueError(f"{description!r} has {described_slices} slices, but `slices` is {slices}; give one of them")
    slices = slices if described_slices is None else described_slices
    if slices < 1:
        raise ValueError(f"there are {slices} slices; give 1 or more")
    if slices > 1 and hardware.platform != "tpu":
        more = "x".join(map(str, (slices * sizes[0], *sizes[1:])))
        raise ValueError(
            f"there are {slices} slices, which are tori of TPUs; for more of {hardware.name!r}, describe "
            f"'{hardware.name}:{more}'"
        )
    count = prod(sizes) * slices * hardware.devices_per_chip
    if count > _MOST_DEVICES:
        raise ValueError(f"{description!r} has {count:,} devices; a machine has {_MOST_DEVICES:,} at most")
    _check_sizes(description, hardware, slices, sizes)
    if wrap is None:
        wrap = hardware.find_wrap(sizes) if hardware.platform == "tpu" else ()
    elif hardware.platform != "tpu":
        raise ValueError(f"`wrap` is of the torus of TPUs, and {hardware.name} has none; leave it out")
    elif len(wrap) != len(sizes):
        raise ValueError(
            f"`wrap` has {len(wrap)} entries, but the torus has {len(sizes)} dimensions; give one for each"
        )
    topology = Topology(hardware.name, sizes, slices, tuple(map(bool, wrap)))
    return tuple(
        DescribedDevice(
            id=number,
            process_index=host,
            platform=hardware.platform,
            device_kind=hardware.device_kind,
            coords=coords,
            core_on_chip=core,
            slice_index=index,
            num_cores=hardware.cores if hardware.platform == "tpu" else None,
            topology=topology,
        )
        for number, host, coords, core, index in _list_places(hardware, topology)
    )


def _list_places(hardware: Hardware, topology: Topology) -> Iterator[tuple[int, int, tuple[int, ...], int, int]]:
    """Yields the number of each device in ascending order, its host, chip, place on the chip, and slice."""
    if hardware.platform != "tpu":
        devices_per_host = topology.sizes[-1]  # of CPUs, all
        for number in range(prod(topology.sizes)):
            yield number, number // devices_per_host, (), 0, 0
        return
    x_size, y_size, z_size = (*topology.sizes, 1)[:3]
    hosts_per_slice = -(-x_size * y_size * z_size // 4)  # each has 2 x 2 chips
    for index in range(topology.slices):
        numbers = itertools.count(_SLICE_IDS * (index + 1) if topology.slices > 1 else 0)
        for z, y, x in itertools.product(range(z_size), range(y_size), range(x_size)):  # the first dimension fastest
            host = hosts_per_slice * index + x // 2 + x_size // 2 * (y // 2 + y_size // 2 * z)
            for core in range(hardware.devices_per_chip):
                yield next(numbers), host, (x, y, z), core, index


def count_devices(topology: Topology) -> int:
    """Returns the number of devices of a machine."""
    return prod(topology.sizes) * topology.slices * get_hardware(topology.hardware).devices_per_chip


def choose_devices(devices: Any) -> tuple[DescribedDevice, ...]:
    """Returns described devices from their description, or as they are.

    Raises:
        TypeError: If they are neither.
    """
    if isinstance(devices, str):
        return described_devices(devices)
    described = tuple(devices) if isinstance(devices, Sequence) else ()
    if not described or not all(isinstance(device, DescribedDevice) for device in described):
        argument = f"a sequence of {type(described[0]).__name__}" if described else repr(devices)
        raise TypeError(
            f"`devices` is a description such as 'v5e:16x16', or what `described_devices` returns, not {argument}"
        )
    return described


def choose_whole_machine(devices: Any) -> tuple[DescribedDevice, ...]:
    """Returns what `choose_devices` does if these are all devices of a machine, and raises a ValueError if not."""
    described = choose_devices(devices)
    topology = described[0].topology
    if len(described) != count_devices(topology):
        whole = f"the {count_devices(topology)} devices of '{topology}'"
        raise ValueError(f"`devices` are {len(described)} of {whole}; a plan is for all")
    return described


def _parse_description(description: str) -> tuple[Hardware, int | None, tuple[int, ...]]:
    """Returns the hardware, the number of slices if the description has it, and the sizes of one."""
    if not isinstance(description, str):
        raise TypeError(f"a description is a string such as 'v5e:16x16', not a {type(description).__name__}")
    hardware = get_hardware(re.sub(r"-\d+$", "", description.strip()))  # without the number of "v5e-8"
    match = _DESCRIPTION.fullmatch(description.strip())
    sizes = tuple(map(int, match[3].split("x"))) if match else ()
    dims = {"tpu": hardware.torus_dims, "gpu": 2, "cpu": 1}[hardware.platform]
    if len(sizes) != dims or 0 in sizes:
        size_kinds = {
            "tpu": "chips along each dimension",
            "gpu": "hosts and GPUs in each",
            "cpu": "the number of devices",
        }
        raise ValueError(
            f"{description!r} does not describe a machine: {hardware.name} takes {size_kinds[hardware.platform]}, as "
            f"in '{hardware.name}:{_choose_example(hardware, description)}'"
        )
    slices = int(match[1]) if match and match[1] else None
    return hardware, slices, sizes


def _check_sizes(description: str, hardware: Hardware, slices: int, sizes: tuple[int, ...]) -> None:
    """Raises an error for a machine that there is not, with the nearest one that there is."""
    problem, nearest = "", sizes
    if hardware.platform == "gpu" and sizes[1] > hardware.devices_per_host:
        hosts = -(-prod(sizes) // hardware.devices_per_host)
        problem, nearest = f"a host has at most {hardware.devices_per_host} GPUs", (hosts, hardware.devices_per_host)
    elif hardware.platform == "tpu":
        chips, tori = prod(sizes), _list_tori(hardware, prod(sizes))
        if tuple(sorted(sizes)) in map(tuple, map(sorted, tori)):
            return
        if hardware.max_chips and chips > hardware.max_chips:
            problem = f"a torus has at most {hardware.max_chips:,} chips"
            parts = -(-chips // hardware.max_chips)
            slices, chips = parts * slices, chips / parts
        elif any(size % 2 for size in sizes[:2]):
            problem = "hosts have 2 x 2 chips, so the first two sizes are even"
        elif hardware.torus_dims == len(ONE_CHIP):
            problem = "tori have sizes that are powers of two, of which the longer is at most twice the shorter"
        else:
            problem = "tori are made of cubes of 4 x 4 x 4 chips, or a part of one"

        def rank_torus(torus: tuple[int, ...]) -> tuple[float, float, int]:
            return abs(log2(prod(torus) / chips)), _measure_distance(torus, sizes), max(torus)

        nearest = min(tori, key=rank_torus)
    if problem:
        topology = Topology(hardware.name, nearest, slices, ())
        raise ValueError(f"{description!r} does not describe a machine: {problem}; the nearest is '{topology}'")


def _list_tori(hardware: Hardware, chips: int) -> list[tuple[int, ...]]:
    """Returns the tori that clouds offer, at most twice as large as so many chips, with sizes in ascending order.

    Source: the pages of Google Cloud on v4, v5e, v5p, v6e and TPU7x.
    """
    most_chips = min(hardware.max_chips or 2 * chips, 2 * chips)
    if hardware.torus_dims == len(ONE_CHIP):
        squares = [(2**i, 2**i) for i in range(most_chips.bit_length())]
        tori = [*squares, *((side, 2 * side) for side, _ in squares[1:])]
    else:
        cubes = [
            (x, y, z)
            for x in range(4, most_chips // 16 + 1, 4)
            for y in range(x, isqrt(most_chips // x) + 1, 4)
            for z in range(y, most_chips // (x * y) + 1, 4)
        ]
        tori = [*_TORI_BELOW_CUBES, *cubes]
    return [torus for torus in tori if prod(torus) <= most_chips] or tori[:1]


def _measure_distance(torus: Sequence[int], sizes: Sequence[int]) -> float:
    """Returns how much the sizes of two tori differ, in any order."""
    return sum(abs(log2(first / second)) for first, second in zip(sorted(torus), sorted(sizes), strict=True))


def _choose_example(hardware: Hardware, description: str) -> str:
    """Returns sizes of a machine with as many devices as "v5e-8" or "h100:64" ask for, or any."""
    match, dims = re.search(rf"([-:])({_NUMBER})$", description.strip()), hardware.torus_dims
    count = int(match[2]) if match else 0
    if hardware.platform == "gpu" and count and count % hardware.devices_per_host == 0:
        return f"{count // hardware.devices_per_host}x{hardware.devices_per_host}"
    if hardware.platform == "tpu":
        chips = count
        if match and match[1] == "-":  # clouds count the cores; of chips with several devices it is not known
            chips = count // hardware.cores if hardware.devices_per_chip == 1 else 0
        exponent = chips.bit_length() - 1
        has_torus = chips >= 8 or (dims == len(ONE_CHIP) and chips in (1, 4))
        if has_torus and chips == 2**exponent:
            return "x".join(str(2 ** ((exponent + dim) // dims)) for dim in range(dims))
    return _EXAMPLES[hardware.platform][dims]
