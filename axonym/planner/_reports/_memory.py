"""`memory_report`: what a compiled program holds on a device, by group; and `assert_fits`, for tests."""

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..._ground.arguments import check_integer
from ..._ground.formats import format_bytes, format_value
from ...report._table import STYLE, PrintedReport
from ...report._write_file import write_html_page
from .._compiler._compile_for import compile_for
from .._compiler._compiled_program import CompiledProgram, list_parameters, read_program
from .._machine._described_devices import described_devices
from .._machine._hardware import Hardware, get_hardware
from .._program._arguments import count_argument_groups, group_arguments
from .._program._saved_activations import SavedActivation, find_saved_activations
from ._sum_bytes import sum_bytes_by


_MOST_ROWS = 20
_SUMMED_BY = ("name", "layer", "operation", "dtype", "memory")
_COLORS = ("#4269d0", "#9a6cd0", "#3ca951", "#6cc5b0", "#efb118", "#ff725c", "#a3a3a3", "#97bbf5", "#9c6b4e")
_REMEDIES = {
    "parameters": "shard the parameters over more devices, as `fsdp` does",
    "optimizer state": "shard the optimizer state over more devices, as `fsdp` and `sharded_optimizer` do",
    "cache": "shard the cache over more devices, or make it shorter",
    "inputs": "shard the batch over more devices, or make it smaller",
    "results": "donate the arguments that the results replace (`donate_args`), or shard the results",
    "saved activations": "recompute more in the backward pass (`gradient_checkpointing`), or split the batch "
    "(`microbatch`)",
    "gradients": "shard the parameters, and their gradients with them, over more devices",
    "temporaries": "shard or split the batch (`microbatch`), or shard what a layer computes",
}


@dataclass(frozen=True, repr=False)
class MemoryReport(PrintedReport):
    """What a compiled program holds on a device, in bytes: printed, a table; in a notebook, HTML.

    The figures are the compiler's own. `total` is what has to be free for the program, the sum of `groups`:

    | group | |
    |---|---|
    | `parameters`, `optimizer state`, `inputs` | the arguments that the program uses |
    | `cache` | those in a `KVCache`, if there are any |
    | `results` | those that do not reuse the memory of donated arguments |
    | `saved activations` | what loops of layers keep for the backward pass |
    | `gradients` | what loops of layers collect |
    | `temporaries` | all else: other activations and gradients, gathered parameters, copies, constants |
    | `program` | the program itself, once code is generated |

    Optimizer state is what lies in named tuples of Optax, and each argument after the parameters whose arrays all end
    in path, names and shape as parameters do, such as moments in a dictionary. Parameters are the other arrays of the
    first argument with floating-point numbers, and of each further argument that has moments in the optimizer state.
    Other arguments are inputs.

    Attributes:
        arguments: The bytes of each argument of the function, by name, whether it uses them or not.
        results: The bytes of the results, with those that reuse the memory of donated arguments.
        donated: The bytes of the results that reuse the memory of donated arguments.
        temporaries: The most bytes at a time between: activations, gradients, gathered parameters, copies.
        program: The bytes of the program itself.
        host: The bytes that are offloaded to the memory of the host.
        saved: What loops of layers keep for the backward pass, the largest first.
        gradients: The bytes of gradients that loops of layers collect.
        platform: The platform it is compiled for, such as `"tpu"`; empty if not known.
        groups: The bytes by group. Saved activations and gradients together are at most the temporaries, since arrays
            of different times may share memory; gradients that are results count as results.
        device: What the program is compared with, such as `"v5e"`; empty for nothing.
        available: The bytes that a program may take of it; 0 if it is compared with nothing.
        is_out_of_memory: Whether the compiler says that the program does not fit.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 16, "embed": 4}))
        ...     report = nym.planner.memory_report(lambda w, x: w * x, nym.ones({"embed": 4}), x, device="v5e")
        >>> report.groups["parameters"], report.groups["inputs"], report.groups["results"], report.fits
        (16, 32, 32, True)
    """

    arguments: Mapping[str, int] = field(hash=False)
    results: int
    donated: int
    temporaries: int
    program: int
    host: int
    saved: tuple[SavedActivation, ...] = ()
    gradients: int = 0
    platform: str = ""
    groups: Mapping[str, int] = field(default_factory=dict, hash=False)
    device: str = ""
    available: int = 0
    is_out_of_memory: bool = False

    @property
    def total(self) -> int:
        """The bytes that have to be free on a device, arguments included."""
        return sum(self.groups.values())

    @property
    def shortfall(self) -> int:
        """By how many bytes the program exceeds what it may take; 0 if it fits, or is compared with nothing."""
        return max(self.total - self.available, 0) if self.available else 0

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a device, as far as it is compared with one."""
        return not self.is_out_of_memory and not self.shortfall

    def count_saved(self, by: str = "name") -> dict[str, int]:
        """Returns the bytes of saved activations, those on the host included, summed up by an attribute of them.

        Args:
            by: `"name"`, `"layer"`, `"operation"`, `"dtype"` or `"memory"`.

        Raises:
            ValueError: If it is another one.
        """
        return sum_bytes_by(self.saved, by, _SUMMED_BY)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings and numbers."""
        mappings = {"arguments": dict(self.arguments), "groups": dict(self.groups)}
        return {**asdict(self), **mappings, "total": self.total, "fits": self.fits}

    def to_html(self, path: str | os.PathLike[str], title: str = "Memory report") -> Path:
        """Writes a page with the table and a bar; it loads nothing and is written completely or not at all.

        Args:
            path: The file; an existing one is replaced.
            title: The heading of the page.

        Returns:
            The path of the file.
        """
        return write_html_page(path, title, self._make_html(None), "memory.html")

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text.

        Args:
            limit: How many saved activations to show; all of them if None.
        """
        rows = [*self._list_rows(limit)]
        name_width = max(len(name) for name, _, _ in rows)
        size_width = max(len(size) for _, size, _ in rows)
        lines = [f"{name:<{name_width}}  {size:>{size_width}}  {note}".rstrip() for name, size, note in rows]
        return "\n".join([self._format_title(), "", *lines, *self._list_notes(limit)])

    def _repr_html_(self) -> str:
        return self._make_html(_MOST_ROWS)

    def _format_title(self) -> str:
        platform = f" ({self.platform})" if self.platform else ""
        if not self.available:
            return f"{format_bytes(self.total)} on each device{platform}"
        verdict = "it fits"
        if self.shortfall:
            verdict = f"it does not fit, {format_bytes(self.shortfall)} are missing"
        elif not self.fits:
            verdict = "it does not fit, the compiler says"
        device = f" ({self.device})" if self.device else ""
        sizes = f"{format_bytes(self.total)} of {format_bytes(self.available)}{device}"
        return f"{sizes} on each device{platform}: {verdict}"

    def _list_rows(self, limit: int | None) -> Iterator[tuple[str, str, str]]:
        """Yields name, bytes and note of each group and saved activation."""
        for name, size in self.groups.items():
            note = ""
            if name == "results" and self.donated:
                note = f"and {format_bytes(self.donated)} in the memory of donated arguments"
            yield name, format_bytes(size), note
            if name != "saved activations":
                continue
            for array in self.saved[:limit]:
                origin = "/".join(filter(None, (array.layer, array.operation)))
                if not origin and not array.name:
                    origin = "input of the layer"
                note = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
                if origin:
                    note += f"  {origin}"
                if array.memory != "device":
                    note += f", in the memory of the {array.memory}"
                yield f"  {array.name or 'saved for the backward pass'}", format_bytes(array.bytes), note
        if self.host:
            yield "memory of the host", format_bytes(self.host), ""

    def _list_notes(self, limit: int | None) -> Iterator[str]:
        if omitted := len(self.saved) - len(self.saved[:limit]):
            yield f"… {omitted} more saved arrays; `.table(limit=None)` shows all"
        if self.arguments:
            sizes = (f"{name} {format_bytes(size)}" for name, size in self.arguments.items())
            yield f"Parameters, state and inputs by argument: {', '.join(sizes)}."
        if self.platform == "cpu":
            yield "XLA for CPUs holds more temporaries than for TPUs and GPUs; the bytes of arguments are exact."

    def _make_html(self, limit: int | None) -> str:
        whole = max(self.total, self.available, 1)
        colors = dict(zip(self.groups, _COLORS, strict=False))
        parts = "".join(
            f"<div title='{name}: {format_bytes(size)}' "
            f"style='width:{100 * size / whole:.3f}%;background:{colors[name]}'></div>"
            for name, size in self.groups.items()
        )
        rows = "".join(
            f"<tr><td style='border-left:6px solid {colors.get(name, 'transparent')};padding-left:6px'>"
            f"{'&emsp;' * name.startswith(' ')}{html.escape(name.strip())}</td>"
            f"<td class='number'>{size}</td><td>{html.escape(note)}</td></tr>"
            for name, size, note in self._list_rows(limit)
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._list_notes(limit))
        bar = f"<div style='display:flex;height:18px;max-width:640px;background:rgba(128,128,128,.2)'>{parts}</div>"
        title = f"<p>{html.escape(self._format_title())}</p>"
        return f'<div class="axonym-table">{STYLE}{title}{bar}<table>{rows}</table>{notes}</div>'


def memory_report(fn: Any, /, *args: Any, device: str | int | Hardware | None = None, **kwargs: Any) -> MemoryReport:
    """Returns what a compiled program holds on a device, as its compiler says; nothing is run.

    Args:
        fn: A compiled or lowered function, what `compile_for` returns, a function of `named_jit`, `fsdp` or `jax.jit`,
            or a plain function, which `named_jit` compiles.
        args: Its arguments, which may be shapes; none for what is lowered or compiled.
        device: What to compare with: the name of a preset such as `"v5e"` or `"H100"`, other figures of a device, or
            the bytes of its memory. None for nothing, and for what `compile_for` returns its own devices.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: If there are arguments for a function that is lowered already, or `fn` is not a function.
        ValueError: If there is no such device, or it is the description of a machine that `fn` is not compiled for.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 16, "embed": 4}))
        ...     print(nym.planner.memory_report(nym.named_jit(lambda x: x * 2, donate_args=True), x).donated)
        32
    """
    program = read_program(fn, args, kwargs)
    described = program.compiled if isinstance(program.compiled, CompiledProgram) else None
    parameters = list_parameters(fn, args, len(program.args)) if described is None else described.parameters
    arguments = {**dict(zip(parameters, program.args, strict=True)), **program.kwargs}
    memory: Any = program.compiled.memory_analysis()
    saved, gradients = find_saved_activations(program.hlo, program.saved_names)
    arrays_by_argument = {name: group_arguments([tree]) for name, tree in arguments.items()}
    argument_sizes = () if described is None else described.memory.argument_sizes
    argument_groups = count_argument_groups(program.hlo, group_arguments([*arguments.values()]), argument_sizes)
    name, available = _find_available(described, device)
    return MemoryReport(
        arguments={name: sum(array.bytes for array in arrays) for name, arrays in arrays_by_argument.items() if arrays},
        results=memory.output_size_in_bytes,
        donated=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        program=memory.generated_code_size_in_bytes,
        host=memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes + memory.host_temp_size_in_bytes,
        saved=saved,
        gradients=gradients,
        platform=program.platform,
        groups=_split_memory(described, memory, argument_groups, saved, gradients),
        device=name,
        available=available,
        is_out_of_memory=described is not None and device is None and described.is_out_of_memory,
    )


def _find_available(described: CompiledProgram | None, device: str | int | Hardware | None) -> tuple[str, int]:
    """Returns what a program is compared with, and the bytes that it may take.

    Args:
        described: The program if it is compiled for described devices.
        device: As for `memory_report`.
    """
    if device is None:
        device = 0 if described is None else described.hardware
    if isinstance(device, int) and not isinstance(device, bool):
        return "", check_integer("`device`, a number of bytes,", device, 0)
    if not isinstance(device, str | Hardware):
        raise TypeError(
            f"`device` is a name such as 'v5e', a `Hardware` or a number of bytes, not {format_value(device)}."
        )
    if isinstance(device, str) and ":" in device:
        topology = None if described is None else described.topology
        machine = described_devices(device)[0].topology
        if topology is None or replace(topology, wrap=machine.wrap) != machine:
            raise ValueError(
                f"{device!r} is a machine, and the program is compiled for {topology or 'the devices here'}; pass "
                f"`compile_for(fn, *args, devices={device!r}, ...)` as `fn`, or compare with {machine.hardware!r}"
            )
    hardware = device if isinstance(device, Hardware) else get_hardware(device)
    return hardware.name, hardware.hbm_available


def _split_memory(
    described: CompiledProgram | None,
    memory: Any,
    argument_groups: Mapping[Any, int],
    saved: tuple[SavedActivation, ...],
    gradients: int,
) -> dict[str, int]:
    """Returns the bytes of each group, whose sum is what the compiler says that the program takes."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    if described is None:
        total = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes
    else:
        total = described.memory.peak_bytes
    # All but arguments and results is temporary. Saved arrays and gradients count as far as there is room: some are
    # never there at the same time and share memory.
    temporaries = total - sum(argument_groups.values()) - results
    saved_bytes = sum(array.bytes for array in saved if array.memory == "device")
    saved_bytes = max(min(saved_bytes, temporaries), 0)
    if results >= gradients:
        gradients = 0  # they are results
    gradients = max(min(gradients, temporaries - saved_bytes), 0)
    return {
        **argument_groups,
        "results": results,
        "saved activations": saved_bytes,
        "gradients": gradients,
        "temporaries": temporaries - saved_bytes - gradients,
        "program": memory.generated_code_size_in_bytes,
    }


def assert_fits(
    fn: Any,
    args: Sequence[Any] = (),
    device: str | int | Hardware | None = None,
    *,
    mesh: Any = None,
    mapping: Any = None,
    **options: Any,
) -> None:
    """Asserts that a program fits into the memory of a device; nothing is run.

    With the name of a device or a number of bytes, the function is compiled as it is where the test runs, on the active
    mesh. With the description of a machine, it is compiled for that, on a mesh of the sizes in `mesh` or of the active
    one: exact, and needs its compiler, as `compile_for` does. XLA for CPUs takes more temporaries than for TPUs and
    GPUs, up to 2.4 times as much memory in all.

    Args:
        fn: As for `memory_report`.
        args: The arguments of the function, a tuple; they may be shapes.
        device: The name of a device such as `"v5e"` or `"H100"`, figures of another one, the bytes of its memory, or
            the description of a machine such as `"v5e:16x16"`. None for the devices of what `compile_for` returns.
        mesh: For a machine, the sizes of the mesh axes by name, or a mesh; the axes of the active one if None.
        mapping: For a machine, the mapping that is active; the active one if None.
        **options: For a machine, the other options of `compile_for`.

    Raises:
        AssertionError: If it does not fit; the text has the shortfall, the bytes of each group, and a next step.
        TypeError: If there is nothing to compare with, or options of a machine and no machine.
        ValueError: If there is no such device or machine, or the mesh has another number of devices.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> weight = nym.NamedArray(jax.ShapeDtypeStruct((4096, 8192), "float32"), ("embed", "mlp"))
        >>> nym.planner.assert_fits(lambda w: w * 2, (weight,), device="v5e")
        >>> nym.planner.assert_fits(
        ...     lambda w: w * 2, (weight,), "cpu:8", mesh={"model": 8}, mapping={"mlp": "model"}, cache=False
        ... )
    """
    if not isinstance(args, tuple | list):
        raise TypeError(f"`args` is a tuple of the arguments of the function, not a {type(args).__name__}")
    if isinstance(device, str) and ":" in device:
        report = memory_report(compile_for(fn, *args, devices=device, mesh=mesh, mapping=mapping, **options))
    elif mesh is not None or mapping is not None or options:
        raise TypeError(
            "`mesh`, `mapping` and options of `compile_for` go with the description of a machine in `device`, as in "
            "device='v5e:16x16'; for a device alone, the active mesh and mapping count"
        )
    else:
        report = memory_report(fn, *args, device=device)
    if not report.available:
        raise TypeError("`device` is what the program has to fit into: 'v5e', 'v5e:16x16', or a number of bytes")
    if not report.fits:
        raise AssertionError(_explain_shortfall(report))


def _explain_shortfall(report: MemoryReport) -> str:
    """Returns by how much a program does not fit, what it holds, and what to do about the largest group."""
    groups: Mapping[str, int] = dict(sorted(report.groups.items(), key=lambda item: -item[1]))
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in groups.items() if size)
    device = f" of {report.device}" if report.device else ""
    remedy = _REMEDIES.get(next(iter(groups)), "make the program smaller")
    lines = [
        f"the program takes {format_bytes(report.total)} on each device, {format_bytes(report.shortfall)} more than "
        f"the {format_bytes(report.available)}{device}: {sizes}; {remedy}"
    ]
    for array in report.saved[:3]:
        if array.memory == "device":
            name = array.name or "/".join(filter(None, (array.layer, array.operation))) or "input of a layer"
            lines.append(f"  {name}: {format_bytes(array.bytes)} saved")
    if report.platform == "cpu":
        lines.append("XLA for CPUs takes more temporaries than for TPUs and GPUs")
    return "\n".join(lines)
