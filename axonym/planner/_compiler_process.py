"""Compiles a lowered program in a child process, which has the environment that the compiler needs.

With `stop_early`, the child is stopped once XLA for TPUs has written the memory and the schedule of the program, before
it generates code. What it writes is private to XLA: should that change, the child runs to its end.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any, NamedTuple

from ._buffer_assignment import ProgramMemory, read_buffer_assignment
from ._described_devices import ONE_CHIP, Topology
from ._gpu_schedule import read_gpu_schedule
from ._gpu_targets import format_gpu_target
from ._hardware import get_hardware


_CHILD = Path(__file__).with_name("_compiler_child.py")
_POLL_SECONDS = 0.03
_MOST_ERROR_LINES = 12
_OWN_VARIABLES = ("XLA_", "JAX_", "TPU_", "LIBTPU_", "ALLOW_MULTIPLE_LIBTPU_LOAD")
LIBTPU_ENVIRONMENT = {  # of a process that describes TPUs and has none
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
_DUMPED = "*after_optimizations_after_buffer_assignment.txt"
_SCHEDULE_FOLDER = "schedule"  # apart from what libtpu writes of memory, of which XLA for GPUs writes other figures
_NOTE_WHOLE = "compiled whole: the compiler did not write its memory where it was looked for, which takes longer"


class Plugin(NamedTuple):
    """A compiler that is installed apart from JAX: its packages, where a folder of it is named, and how to get it."""

    package: str
    module: str
    variable: str
    extra: str
    target: str


PLUGINS = {
    "tpu": Plugin("libtpu", "libtpu", "AXONYM_LIBTPU", "plan-tpu", "tpu"),
    "gpu": Plugin("jax-cuda12-pjrt", "jax_plugins.xla_cuda12", "AXONYM_GPU_PLUGINS", "plan-gpu", "gpu-plugins"),
}


@dataclass(frozen=True)
class CompileJob:
    """A lowered program, and what it is compiled for.

    Attributes:
        program: The module in MLIR's bytecode.
        fingerprint: A hash of the module.
        topology: The machine.
        order: The numbers of the devices in the order of the mesh.
        free_arguments: For each argument, whether the compiler chooses its sharding.
        free_results: The same for results.
        compiler_options: XLA's options.
        stop_early: Whether to stop before code generation.
    """

    program: bytes
    fingerprint: str
    topology: Topology
    order: tuple[int, ...]
    free_arguments: tuple[bool, ...]
    free_results: tuple[bool, ...]
    compiler_options: Mapping[str, Any]
    stop_early: bool

    @property
    def platform(self) -> str:
        """JAX's platform of the devices."""
        return get_hardware(self.topology.hardware).platform


@dataclass(frozen=True)
class CompileResult:
    """What is known of a compiled program.

    Attributes:
        text: The optimized program.
        memory: Its memory.
        is_out_of_memory: Whether the compiler says that it does not fit.
        is_stopped: Whether it was stopped before code generation.
        cpu_seconds: The CPU time of the compiler.
        versions: The versions of JAX and of the compiler.
        log: Lines that the compiler wrote to its error stream.
        notes: What the user has to know, such as that a figure could not be had fast.
        schedule: The seconds of instructions by name in XLA's schedule; of GPUs alone.
    """

    text: str
    memory: ProgramMemory
    is_out_of_memory: bool
    is_stopped: bool
    cpu_seconds: float
    versions: dict[str, str]
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schedule: Mapping[str, float] = field(default_factory=dict)


def find_versions(platform: str, where: str) -> dict[str, str]:
    """Returns the versions of JAX, and of the compiler in its folder.

    Raises:
        ModuleNotFoundError: If the compiler is not installed.
    """
    found = {name: version(name) for name in ("jax", "jaxlib")}
    if platform in PLUGINS:
        plugin = PLUGINS[platform]
        found[plugin.package] = _find_distribution(plugin, where).version
    return found


def _find_distribution(plugin: Plugin, where: str) -> Distribution:
    folder = find_plugin_folder(plugin)
    found = distributions(name=plugin.package, path=[folder] if folder else sys.path)
    if one := next(iter(found), None):
        return one
    place = f"the folder {folder!r} of {plugin.variable} does not hold it" if folder else "which is not installed"
    raise ModuleNotFoundError(
        f"compiling for {where} needs {plugin.package}, {place}; install `axonym[{plugin.extra}]`, or set "
        f"{plugin.variable} to a folder that holds it, as `make {plugin.target}` makes one",
        name=plugin.module,
    )


def find_plugin_folder(plugin: Plugin) -> str:
    """Returns the folder of a compiler that the environment names; empty if it names none."""
    return os.environ.get(plugin.variable, "")


def run_compiler(job: CompileJob, timeout: float) -> CompileResult:
    """Compiles a program in a child process.

    Raises:
        ModuleNotFoundError: If the compiler is not installed.
        TimeoutError: If it takes longer than `timeout` seconds.
        OSError: If the disk is full.
        ValueError: If the compiler refuses an option.
        RuntimeError: If it ends otherwise without a result.
    """
    versions = find_versions(job.platform, repr(str(job.topology)))
    with tempfile.TemporaryDirectory(prefix="axonym-compile-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write_job(job, folder)
        ended, cpu_seconds = _run_child(job, folder, timeout)
        result = _read_result(job, folder, ended)
    return replace(result, cpu_seconds=cpu_seconds, versions=versions)


def write_job(job: CompileJob, folder: Path) -> None:
    """Writes what the child reads."""
    described = {
        "tpu": (_format_sizes(job.topology), _make_tpu_options),
        "gpu": (job.topology.hardware, _make_gpu_options),
        "cpu": ("", lambda topology: {}),
    }
    name, make_options = described[job.platform]
    options = dict(job.compiler_options)
    if job.platform == "tpu":
        options = {"xla_dump_to": str(folder / "dump"), "xla_dump_hlo_pass_re": "NONE_AT_ALL", **options}
    if job.platform == "gpu":
        dumped = {"xla_dump_to": str(folder / _SCHEDULE_FOLDER), "xla_dump_latency_hiding_schedule": True}
        dumped["xla_dump_hlo_pass_re"] = "NONE_AT_ALL"
        # XLA's own kernels of products are tuned on a GPU alone; those of cuBLAS, which it has times for, need not be.
        options = {"xla_gpu_enable_triton_gemm": False, **dumped, **options}
    (folder / "program.mlirbc").write_bytes(job.program)
    content = {
        "platform": "cuda" if job.platform == "gpu" else job.platform,
        "topology": name,
        "topology_options": make_options(job.topology),
        "order": job.order,
        "free_arguments": job.free_arguments,
        "free_results": job.free_results,
        "compiler_options": options,
    }
    (folder / "job.json").write_text(json.dumps(content))


def _format_sizes(topology: Topology) -> str:
    return f"{topology.hardware}:{'x'.join(map(str, topology.sizes))}"


def _make_tpu_options(topology: Topology) -> dict[str, Any]:
    wrap = (*topology.wrap, False)[:3]
    slices = {"num_slices": topology.slices} if topology.slices > 1 else {}
    chip = {"chip_config_name": "megacore"} if topology.hardware == "v4" else {}
    host = {"chips_per_host_bounds": [1, 1, 1]} if topology.sizes == ONE_CHIP else {}
    return {"wrap": [int(one) for one in wrap], **slices, **chip, **host}


def _make_gpu_options(topology: Topology) -> dict[str, Any]:
    hardware = get_hardware(topology.hardware)
    return {
        "target_config": format_gpu_target(hardware),
        "topology": f"1x{'x'.join(map(str, topology.sizes))}",
    }


def make_environment(platform: str, logs: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the environment of the child: this one without settings of XLA, and with those that libtpu needs.

    libtpu writes files to the folder `logs`, which would otherwise be that of temporary files.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    plugin = PLUGINS.get(platform)
    folder = find_plugin_folder(plugin) if plugin else ""
    path = os.pathsep.join(filter(None, [folder, kept.get("PYTHONPATH", "")]))
    added = {**LIBTPU_ENVIRONMENT, "TPU_LOG_DIR": os.fspath(logs)} if platform == "tpu" else {}
    return {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **added}


def _run_child(job: CompileJob, folder: Path, timeout: float) -> tuple[int | None, float]:
    """Runs the child; returns its exit code, None if it was stopped since all is written, and its CPU seconds."""
    started, seen = time.monotonic(), None
    with (folder / "errors.txt").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", _CHILD, folder],
            env=make_environment(job.platform, folder),
            stdin=subprocess.PIPE,  # which ends with this process, and the child with it
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            while True:
                ended, status, usage = os.wait4(child.pid, os.WNOHANG)
                if ended:
                    child.returncode = os.waitstatus_to_exitcode(status)
                    return child.returncode, usage.ru_utime + usage.ru_stime
                before, seen = seen, _measure_dump(folder) if job.stop_early else None
                if seen is not None and seen == before:
                    return None, _stop_child(child)
                if time.monotonic() - started > timeout:
                    raise TimeoutError(
                        f"compiling for '{job.topology}' took longer than {timeout:g} seconds; raise `timeout`"
                    )
                time.sleep(_POLL_SECONDS)
        finally:
            if child.returncode is None:
                _stop_child(child)
            if child.stdin is not None:
                child.stdin.close()


def _stop_child(child: "subprocess.Popen[bytes]") -> float:
    """Ends the child; returns its CPU seconds."""
    child.kill()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _measure_dump(folder: Path) -> int | None:
    """Returns the size of the program that XLA has written after it has assigned memory; None before its end."""
    path = next((folder / "dump").glob(_DUMPED), None)
    if path is None:
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        return size if file.read().rstrip().endswith(b"}") else None


def _read_result(job: CompileJob, folder: Path, ended: int | None) -> CompileResult:
    log = (folder / "errors.txt").read_text(errors="replace").splitlines()
    memory = _read_dumped_memory(folder)
    result = _read_json(folder / "result.json")
    made = CompileResult("", memory or ProgramMemory(0, 0, 0, 0, 0), False, ended is None, 0.0, {}, tuple(log))
    if ended is None and memory is not None:
        return replace(made, text=_read_dump(folder, _DUMPED))
    if result is None:
        raise _explain_end(job, ended, log)
    if "error" in result:
        if memory is None or not is_memory_error(result["error"]):
            raise _explain_error(job, result["error"])
        return replace(
            made, text=_read_dump(folder, "*after_optimizations.txt"), is_out_of_memory=True, is_stopped=True
        )
    is_tpu = job.platform == "tpu"
    notes = (_NOTE_WHOLE,) if is_tpu and (memory is None or job.stop_early) else ()
    whole = memory or _read_memory_analysis(result["memory"], job.platform)
    schedule = _read_schedule(folder) if job.platform == "gpu" else {}
    return replace(made, text=(folder / "optimized.txt").read_text(), memory=whole, notes=notes, schedule=schedule)


def _read_dumped_memory(folder: Path) -> ProgramMemory | None:
    return read_buffer_assignment(_read_dump(folder, "*after_optimizations-buffer-assignment.txt"))


def _read_schedule(folder: Path) -> dict[str, float]:
    path = next((folder / _SCHEDULE_FOLDER).glob("*.schedule.txt"), None)
    return {} if path is None else read_gpu_schedule(path.read_text(errors="replace"))


def _read_dump(folder: Path, pattern: str) -> str:
    path = next((folder / "dump").glob(pattern), None)
    return "" if path is None else path.read_text(errors="replace")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _read_memory_analysis(figures: Mapping[str, int], platform: str) -> ProgramMemory:
    """Returns the memory that XLA reports of a program compiled whole; its peak on CPUs is without temporaries."""
    used = figures["argument"] + figures["output"] - figures["alias"] + figures["temp"]
    return ProgramMemory(
        *(figures[name] for name in ("argument", "output", "alias", "temp")),
        peak_bytes=used if platform == "cpu" else figures["peak"] or used,
        **{f"{name}_bytes": figures[name] for name in ("host_argument", "host_output", "host_temp")},
    )


def is_memory_error(message: str) -> bool:
    """Returns whether an error of XLA says that a program takes more memory than a device has."""
    return message.startswith("RESOURCE_EXHAUSTED") and "hbm" in message.lower()


def _explain_end(job: CompileJob, ended: int | None, log: list[str]) -> Exception:
    """Returns the error for a child that has ended without a result."""
    last = "\n".join(log[-_MOST_ERROR_LINES:])
    what = f"the compiler for '{job.topology}'"
    if "No space left on device" in last:
        return OSError(
            f"the disk is full: {what} writes to {tempfile.gettempdir()!r}; free some of it or set TMPDIR\n{last}"
        )
    if ended is not None and ended < 0:
        name = signal.Signals(-ended).name
        hint = "; there may be too little memory on this machine" if name == "SIGKILL" else ""
        return RuntimeError(f"{what} was killed by {name} before it had a result{hint}\n{last}".rstrip())
    return RuntimeError(f"{what} ended with code {ended} and without a result{':' if last else ''}\n{last}".rstrip())


def _explain_error(job: CompileJob, message: str) -> Exception:
    """Returns the error for what the compiler says."""
    if "No such compile option" in message or "does not have field" in message or "flag" in message.lower():
        given = ", ".join(map(repr, job.compiler_options)) or "none"
        return ValueError(f"the compiler for '{job.topology}' refuses an option (given are {given}): {message}")
    if "No space left" in message:
        return OSError(f"the disk is full: {message}")
    return RuntimeError(f"the compiler for '{job.topology}' cannot compile the program: {message}")
