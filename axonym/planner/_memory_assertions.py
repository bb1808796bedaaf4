"""`assert_fits`: an assertion that a program fits into the memory of a device, for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..report._table import format_bytes
from ._compile_for import compile_for
from ._hardware import Hardware
from ._memory_report import MemoryReport, memory_report


_REMEDIES = {
    "parameters": "shard the parameters over more devices, as `fsdp` does",
    "optimizer state": "shard the optimizer state over more devices, as `fsdp` and `sharded_optimizer` do",
    "inputs": "shard the batch over more devices, or make it smaller",
    "results": "donate the arguments that the results replace (`donate_args`), or shard the results",
    "saved activations": "recompute more in the backward pass (`gradient_checkpointing`), or split the batch "
    "(`microbatch`)",
    "gradients": "shard the parameters, and their gradients with them, over more devices",
    "temporaries": "shard or split the batch (`microbatch`), or shard what a layer computes",
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
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in groups.items() if size)
    of = f"the {format_bytes(report.available)}" + (f" of {report.device}" if report.device else "")
    remedy = _REMEDIES.get(next(iter(groups)), "make the program smaller")
    saved = "".join(
        f"\n  {one.name or '/'.join(filter(None, (one.layer, one.operation))) or 'input of a layer'}: "
        f"{format_bytes(one.bytes)} saved"
        for one in report.saved[:3]
        if one.memory == "device"
    )
    note = "\nXLA for CPUs takes more temporaries than for TPUs and GPUs" if report.platform == "cpu" else ""
    return (
        f"the program takes {format_bytes(report.total)} on each device, {format_bytes(report.shortfall)} more than "
        f"{of}: {held}; {remedy}{saved}{note}"
    )
