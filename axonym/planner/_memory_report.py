"""`memory_report`: what a compiled program holds on a device: each argument, results, what is saved, the rest."""

import collections
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from ..partitioning.specs._bytes_per_device import count_array_bytes
from ..report._table import PrintedReport, format_bytes
from ._compile import compile_function, find_mesh, get_platform, list_arguments
from ._hlo_program import HloInstruction, HloProgram
from ._origin import is_in_backward_pass, split_op_name, walk_sources


_MOST_ROWS = 20
_WRITE = "dynamic_update_"  # in the names of what writes a part of an array


@dataclass(frozen=True, slots=True)
class SavedActivation:
    """An array that the forward pass of a loop of layers keeps for the backward pass.

    Attributes:
        layer: The scopes of what is saved; empty for the input of a layer.
        operation: The operation whose result it is; empty for the input of a layer.
        dtype: In XLA's words, such as `bf16`.
        shape: Its shape on one device, that of the layers included.
        bytes: Its bytes on one device.

    Example:
        >>> import axonym as nym
        >>> nym.planner.SavedActivation("Block/up", "dot(embed -> mlp)", "bf16", (4, 32, 512), 131072).bytes
        131072
    """

    layer: str
    operation: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, repr=False)
class MemoryReport(PrintedReport):
    """What a compiled program holds on a device, in bytes: printed, a table.

    The figures are the compiler's own. `total` is what has to be free for the program: arguments, results that do not
    reuse the memory of donated arguments, temporaries, and the program.

    Attributes:
        arguments: The bytes of each argument of the function, by name.
        results: Of the results, those that reuse the memory of donated arguments included.
        donated: Of the results that reuse the memory of donated arguments.
        temporaries: Of everything between, at its highest: activations, gradients, gathered parameters, copies.
        program: Of the program itself.
        host: Of what is offloaded to the memory of the host.
        saved: What loops of layers keep for the backward pass, the largest first; a part of the temporaries.
        gradients: Of gradients that loops of layers collect; a part of the temporaries or of the results.
        platform: The platform it is compiled for, such as `"tpu"`; empty if not known.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 16, "embed": 4}))
        ...     report = nym.planner.memory_report(lambda x, y: x * y, x, 2.0)
        >>> report.arguments, report.results
        ({'x': 32}, 32)
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

    @property
    def total(self) -> int:
        """The bytes that have to be free on a device, arguments included."""
        return sum(self.arguments.values()) + self.results - self.donated + self.temporaries + self.program

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings and numbers."""
        return {**asdict(self), "arguments": dict(self.arguments), "total": self.total}

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text.

        Args:
            limit: How many saved activations to show; all of them if None.
        """
        rows = [*self._list_rows(limit)]
        label = max(len(row[0]) for row in rows)
        size = max(len(row[1]) for row in rows)
        lines = [f"{name:<{label}}  {number:>{size}}  {note}".rstrip() for name, number, note in rows]
        on = f" ({self.platform})" if self.platform else ""
        more = len(self.saved) - len(self.saved[:limit])
        notes = [f"… {more} more saved arrays; `.table(limit=None)` shows all"] if more else []
        if self.platform == "cpu":
            notes.append(
                "XLA for CPUs holds more temporaries than for TPUs and GPUs; the bytes of arguments are exact."
            )
        return "\n".join([f"{format_bytes(self.total)} on each device{on}", "", *lines, *notes])

    def _list_rows(self, limit: int | None) -> Iterator[tuple[str, str, str]]:
        for name, size in self.arguments.items():
            yield f"argument {name}", format_bytes(size), ""
        kept = f"{format_bytes(self.donated)} in the memory of donated arguments" if self.donated else ""
        yield "results", format_bytes(self.results), kept
        yield "temporaries", format_bytes(self.temporaries), ""
        for one in self.saved[:limit]:
            what = "/".join(filter(None, (one.layer, one.operation))) or "input of the layer"
            shape = ", ".join(map(str, one.shape))
            yield "  saved for the backward pass", format_bytes(one.bytes), f"{one.dtype}[{shape}]  {what}"
        if self.gradients:
            yield "  gradients of layers", format_bytes(self.gradients), "some of them may be results"
        yield "program", format_bytes(self.program), ""
        if self.host:
            yield "memory of the host", format_bytes(self.host), ""


def memory_report(fn: Any, /, *args: Any, **kwargs: Any) -> MemoryReport:
    """Returns what a compiled program holds on a device, as its compiler says; nothing is run.

    Args:
        fn: A compiled or lowered function, what `compile_for` returns, a function of `named_jit`, `fsdp` or `jax.jit`,
            or a plain function, which `named_jit` compiles.
        args: Its arguments, which may be shapes; none for what is lowered or compiled.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: If there are arguments for a function that is lowered already, or `fn` is not a function.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> with jax.set_mesh(nym.create_mesh((8,), ("data",))), nym.axis_mapping({"batch": "data"}):
        ...     x = nym.shard(nym.ones({"batch": 16, "embed": 4}))
        ...     print(nym.planner.memory_report(nym.named_jit(lambda x: x * 2, donate_args=True), x).donated)
        32
    """
    compiled, _ = compile_function(fn, args, kwargs)
    arguments = list_arguments(compiled)
    memory: Any = compiled.memory_analysis()
    program = HloProgram(compiled.as_text() or "")
    stacked = [*_find_stacked(program)]
    saved = [_make_saved(program, one) for one in stacked if not is_in_backward_pass(one.op_name)]
    return MemoryReport(
        arguments=_count_argument_bytes(fn, arguments),
        results=memory.output_size_in_bytes,
        donated=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        program=memory.generated_code_size_in_bytes,
        host=memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes + memory.host_temp_size_in_bytes,
        saved=tuple(sorted(saved, key=lambda one: (-one.bytes, one.layer, one.operation))),
        gradients=sum(one.results[0].bytes for one in stacked if is_in_backward_pass(one.op_name)),
        platform=get_platform(find_mesh(compiled, arguments)),
    )


def _count_argument_bytes(fn: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, int]:
    """Returns the bytes on a device of each argument that has arrays."""
    args, kwargs = arguments
    named = {**dict(zip(list_parameters(fn, len(args)), args, strict=True)), **kwargs}
    found: collections.Counter[str] = collections.Counter()
    for name, tree in named.items():
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                found[name] += _count_shard_bytes(leaf)
    return dict(found)


def _count_shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    sharding: Any = leaf.sharding
    return count_array_bytes(leaf.dtype, leaf.shape if sharding is None else sharding.shard_shape(leaf.shape))


def list_parameters(fn: Any, count: int) -> list[str]:
    """Returns the names of the positional parameters of a function; their numbers for one that is lowered."""
    try:
        parameters = [*inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [names[at] if at < len(names) else str(at) for at in range(count)]


def _find_stacked(program: HloProgram) -> Iterator[HloInstruction]:
    """Yields the writes of each turn of a differentiated loop into an array with a part for each turn."""
    for one in program.instructions:
        if one.opcode == "dynamic-update-slice" and "jvp(" in one.op_name and _WRITE in one.op_name:
            runs = program.count_runs(one.computation)
            if runs > 1 and runs in one.results[0].shape:
                yield one


def _make_saved(program: HloProgram, one: HloInstruction) -> SavedActivation:
    """Returns what is written, named after the operation that it is the result of."""
    array, written = one.results[0], program.find_operands(one)[1]
    op_names = (source.op_name for source in walk_sources(program, [written]))
    op_name = next((name for name in op_names if name and _WRITE not in name), "")
    return SavedActivation(*split_op_name(op_name), array.dtype, array.shape, array.bytes)
