"""`memory_report`: what a compiled program holds on a device by group, against the memory that the device has."""

import collections
import html
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from ..named._arguments import check_integer
from ..named._axis import format_value
from ..partitioning.specs._bytes_per_device import count_array_bytes
from ..report._table import STYLE, PrintedReport, format_bytes
from ..report._write_file import write_html_page
from ._argument_groups import count_argument_groups, group_arguments
from ._compile import (
    compile_function,
    find_mesh,
    get_platform,
    list_arguments,
    list_parameters,
    parse_program,
    trace_function,
)
from ._compiled_program import CompiledProgram
from ._described_devices import described_devices
from ._hardware import Hardware, get_hardware
from ._saved_activations import SavedActivation, find_saved_activations, find_saved_names
from ._sum_bytes import sum_bytes_by


_MOST_ROWS = 20
_SUMMED_BY = ("name", "layer", "operation", "dtype", "memory")
_COLORS = ("#4269d0", "#9a6cd0", "#3ca951", "#6cc5b0", "#efb118", "#ff725c", "#a3a3a3", "#97bbf5")


@dataclass(frozen=True, repr=False)
class MemoryReport(PrintedReport):
    """What a compiled program holds on a device, in bytes: printed, a table; in a notebook, HTML.

    The figures are the compiler's own. `total` is what has to be free for the program, the sum of `groups`:

    | group | |
    |---|---|
    | `parameters`, `optimizer state`, `inputs` | the arguments that the program uses |
    | `results` | those that do not reuse the memory of donated arguments |
    | `saved activations` | what loops of layers keep for the backward pass |
    | `gradients` | what loops of layers collect |
    | `temporaries` | all else: other activations and gradients, gathered parameters, copies, constants |
    | `program` | the program itself, once code is generated |

    Optimizer state are the arrays in named tuples of Optax, and an argument after the parameters whose arrays all end
    in path, names and shape as parameters do, such as moments in a dictionary. Parameters are the other arrays of the
    first argument that has floating-point numbers beside optimizer state, and of each further argument that has moments
    in the optimizer state. Other arguments are inputs.

    Attributes:
        arguments: The bytes of each argument of the function, by name, whether it uses them or not.
        results: Of the results, those that reuse the memory of donated arguments included.
        donated: Of the results that reuse the memory of donated arguments.
        temporaries: Of everything between, at its highest: activations, gradients, gathered parameters, copies.
        program: Of the program itself.
        host: Of what is offloaded to the memory of the host.
        saved: What loops of layers keep for the backward pass, the largest first.
        gradients: Of gradients that loops of layers collect.
        platform: The platform it is compiled for, such as `"tpu"`; empty if not known.
        groups: The bytes by group. Saved activations and gradients count as far as there are temporaries, since arrays
            that are not there at the same time may share memory, and gradients without those that are results.
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
        """The bytes that the program takes more than it may; 0 if it fits, or is compared with nothing."""
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
        label = max(len(row[0]) for row in rows)
        size = max(len(row[1]) for row in rows)
        lines = [f"{name:<{label}}  {number:>{size}}  {note}".rstrip() for name, number, note in rows]
        return "\n".join([self._format_title(), "", *lines, *self._list_notes(limit)])

    def _repr_html_(self) -> str:
        return self._make_html(_MOST_ROWS)

    def _format_title(self) -> str:
        on = f" ({self.platform})" if self.platform else ""
        if not self.available:
            return f"{format_bytes(self.total)} on each device{on}"
        verdict = "it fits" if self.fits else f"it does not fit, {format_bytes(self.shortfall)} are missing"
        of = f" of {format_bytes(self.available)}{f' ({self.device})' if self.device else ''}"
        return f"{format_bytes(self.total)}{of} on each device{on}: {verdict}"

    def _list_rows(self, limit: int | None) -> Iterator[tuple[str, str, str]]:
        """Yields name, bytes and note of each group and saved activation."""
        for name, size in self.groups.items():
            kept = f"and {format_bytes(self.donated)} in the memory of donated arguments" if self.donated else ""
            yield name, format_bytes(size), kept if name == "results" else ""
            if name == "saved activations":
                yield from ((f"  {where}", size, what) for where, size, what in self._list_saved(limit))
        if self.host:
            yield "memory of the host", format_bytes(self.host), ""

    def _list_saved(self, limit: int | None) -> Iterator[tuple[str, str, str]]:
        for one in self.saved[:limit]:
            what = "/".join(filter(None, (one.layer, one.operation))) or ("" if one.name else "input of the layer")
            place = {"host": ", in the memory of the host", "chip": ", in the memory of the chip"}.get(one.memory, "")
            shape = f"{one.dtype}[{', '.join(map(str, one.shape))}]"
            yield (
                one.name or "saved for the backward pass",
                format_bytes(one.bytes),
                f"{shape}  {what}{place}".replace("  , ", ", "),
            )

    def _list_notes(self, limit: int | None) -> Iterator[str]:
        if more := len(self.saved) - len(self.saved[:limit]):
            yield f"… {more} more saved arrays; `.table(limit=None)` shows all"
        if self.arguments:
            sizes = (f"{name} {format_bytes(size)}" for name, size in self.arguments.items())
            yield f"Parameters, state and inputs by argument: {', '.join(sizes)}."
        if self.platform == "cpu":
            yield "XLA for CPUs holds more temporaries than for TPUs and GPUs; the bytes of arguments are exact."

    def _make_html(self, limit: int | None) -> str:
        whole = max(self.total, self.available, 1)
        parts = "".join(
            f"<div title='{name}: {format_bytes(size)}' style='width:{100 * size / whole:.3f}%;background:{one}'></div>"
            for (name, size), one in zip(self.groups.items(), _COLORS, strict=False)
        )
        colors = dict(zip(self.groups, _COLORS, strict=False))
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
    traced = trace_function(fn, args, kwargs)
    names = find_saved_names(traced.jaxpr) if traced is not None else getattr(fn, "saved_names", ())
    compiled, _ = compile_function(*((fn, args, kwargs) if traced is None else (traced.lower(), (), {})))
    positional, keyword = list_arguments(compiled)
    is_known = isinstance(compiled, CompiledProgram)
    parameters = compiled.parameters if is_known else list_parameters(fn, args, len(positional))
    arguments = {**dict(zip(parameters, positional, strict=True)), **keyword}
    memory: Any = compiled.memory_analysis()
    program = parse_program(compiled)
    saved, gradients = find_saved_activations(program, names)
    held = count_argument_groups(program, group_arguments([*arguments.values()]), _list_sizes(compiled))
    name, available = _find_available(compiled, device)
    return MemoryReport(
        arguments=_count_argument_bytes(arguments),
        results=memory.output_size_in_bytes,
        donated=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        program=memory.generated_code_size_in_bytes,
        host=memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes + memory.host_temp_size_in_bytes,
        saved=saved,
        gradients=gradients,
        platform=get_platform(find_mesh(compiled, arguments)),
        groups=_split_memory(compiled, memory, held, saved, gradients),
        device=name,
        available=available,
        is_out_of_memory=isinstance(compiled, CompiledProgram) and device is None and compiled.is_out_of_memory,
    )


def _find_available(compiled: Any, device: str | int | Hardware | None) -> tuple[str, int]:
    """Returns what a program is compared with, and the bytes that it may take."""
    if device is None:
        device = compiled.hardware if isinstance(compiled, CompiledProgram) else 0
    if isinstance(device, int) and not isinstance(device, bool):
        return "", check_integer("`device`, a number of bytes,", device, 0)
    if not isinstance(device, str | Hardware):
        raise TypeError(
            f"`device` is a name such as 'v5e', a `Hardware` or a number of bytes, not {format_value(device)}."
        )
    if isinstance(device, str) and ":" in device:
        own = compiled.topology if isinstance(compiled, CompiledProgram) else None
        other = described_devices(device)[0].topology
        if own is None or (own.hardware, own.sizes) != (other.hardware, other.sizes):
            raise ValueError(
                f"{device!r} is a machine, and the program is compiled for {own or 'the devices here'}; pass "
                f"`compile_for(fn, *args, devices={device!r}, ...)` as `fn`, or compare with {other.hardware!r}"
            )
    hardware = device if isinstance(device, Hardware) else get_hardware(device)
    return hardware.name, hardware.hbm_available


def _list_sizes(compiled: Any) -> tuple[int, ...]:
    return compiled.memory.argument_sizes if isinstance(compiled, CompiledProgram) else ()


def _split_memory(
    compiled: Any, memory: Any, held: Mapping[Any, int], saved: tuple[SavedActivation, ...], gradients: int
) -> dict[str, int]:
    """Returns the bytes of each group, whose sum is what the compiler says that the program takes."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    used = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes
    total = compiled.memory.peak_bytes if isinstance(compiled, CompiledProgram) else used
    groups = {**held, "results": results, "saved activations": 0, "gradients": 0, "temporaries": 0}
    left = total - sum(groups.values())
    kept = sum(one.bytes for one in saved if one.memory == "device")
    groups["saved activations"] = max(min(kept, left), 0)
    collected = gradients if results < gradients else 0  # else they are results
    groups["gradients"] = max(min(collected, left - groups["saved activations"]), 0)
    groups["temporaries"] = left - groups["saved activations"] - groups["gradients"]
    return {**groups, "program": memory.generated_code_size_in_bytes}


def _count_argument_bytes(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Returns the bytes on a device of each argument that has arrays."""
    found: collections.Counter[str] = collections.Counter()
    for name, tree in arguments.items():
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                found[name] += _count_shard_bytes(leaf)
    return dict(found)


def _count_shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    sharding: Any = leaf.sharding
    return count_array_bytes(leaf.dtype, leaf.shape if sharding is None else sharding.shard_shape(leaf.shape))
