"""Compiles a lowered program in a child process, which has the environment that the compiler needs.

With `stop_early`, the child is stopped once XLA has written the memory and the schedule of the program, before it
generates code. What it writes is private to XLA: should that change, the child runs to its end.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, NamedTuple

from .._machine._described_devices import ONE_CHIP, Topology
from .._machine._hardware import format_gpu_target, get_hardware
from .._program._compiler_output import ProgramMemory, read_buffer_assignment


_CHILD = Path(__file__).with_name("_compiler_child.py")
_POLL_SECONDS = 0.03
_FOLDER_PREFIX = "axonym-compile-"  # by which the child knows that it may remove the folder
_LEAST_FREE_BYTES = 2**16  # on a disk that is not full
_MOST_ERROR_LINES = 12
_COMPILER_VARIABLES = ("XLA_", "JAX_", "TPU_", "LIBTPU_", "ALLOW_MULTIPLE_LIBTPU_LOAD")
LIBTPU_ENVIRONMENT = {  # of a process that describes TPUs and has none
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
_DUMPED = {"tpu": "*after_optimizations_after_buffer_assignment.txt", "cpu": "*cpu_after_optimizations.txt"}
_DUMPED_LAST = {"tpu": _DUMPED["tpu"], "cpu": "*.debug_options"}  # when all is written that is read here
_NOTE_WHOLE = "compiled whole: the compiler did not write its memory where it was looked for, which takes longer"


class Plugin(NamedTuple):
    """A compiler that is installed apart from JAX.

    Attributes:
        package: Its package on PyPI.
        module: The module that JAX imports.
        variable: The environment variable that may name a folder which holds it.
        extra: The extra of Axonym that installs it.
        make_target: What `make` calls the installation into such a folder.
    """

    package: str
    module: str
    variable: str
    extra: str
    make_target: str


PLUGINS = {
    "tpu": Plugin("libtpu", "libtpu", "AXONYM_LIBTPU", "plan-tpu", "tpu"),
    "gpu": Plugin("jax-cuda12-pjrt", "jax_plugins.xla_cuda12", "AXONYM_GPU_PLUGINS", "plan-gpu", "gpu-plugins"),
}


@dataclass(frozen=True)
class CompileJob:
    """A lowered program, and what it is compiled for.

    Attributes:
        bytecode: The module in MLIR's bytecode.
        fingerprint: A hash of the module.
        topology: The machine.
        order: The numbers of the devices in the order of the mesh.
        free_arguments: For each argument, whether the compiler chooses its sharding.
        free_results: The same for results.
        compiler_options: XLA's options.
        stop_early: Whether to stop before code generation.
    """

    bytecode: bytes
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
        log: Lines that the compiler wrote to its error stream.
        notes: What the user has to know, such as that a figure could not be had fast.
    """

    text: str
    memory: ProgramMemory
    is_out_of_memory: bool = False
    is_stopped: bool = False
    cpu_seconds: float = 0.0
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_versions(topology: Topology) -> dict[str, str]:
    """Returns the versions of JAX, and of the compiler for a machine, in its folder.

    Raises:
        ModuleNotFoundError: If the compiler is not installed.
        ValueError: If there is none, as for GPUs of AMD.
    """
    versions = {name: version(name) for name in ("jax", "jaxlib")}
    hardware = get_hardware(topology.hardware)
    if hardware.platform == "gpu":
        format_gpu_target(hardware)  # raises the error
    if hardware.platform in PLUGINS:
        plugin = PLUGINS[hardware.platform]
        folder = find_plugin_folder(plugin)
        distribution = next(iter(distributions(name=plugin.package, path=[folder] if folder else sys.path)), None)
        if distribution is None:
            place = "which is not installed"
            if folder:
                place = f"the folder {folder!r} of {plugin.variable} does not hold it"
            raise ModuleNotFoundError(
                f"compiling for '{topology}' needs {plugin.package}, {place}; install `axonym[{plugin.extra}]`, or set "
                f"{plugin.variable} to a folder that holds it, as `make {plugin.make_target}` makes one",
                name=plugin.module,
            )
        versions[plugin.package] = distribution.version
    return versions


def find_plugin_folder(plugin: Plugin) -> str:
    """Returns the folder of a compiler that the environment names; empty if it names none."""
    return os.environ.get(plugin.variable, "")


def run_compiler(job: CompileJob, timeout: float) -> CompileResult:
    """Compiles a program in a child process.

    Raises:
        TimeoutError: If it takes longer than `timeout` seconds.
        OSError: If the disk is full.
        ValueError: If the compiler refuses an option.
        RuntimeError: If it ends otherwise without a result.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            write_job(job, folder)
            exit_code, cpu_seconds = _run_child(job, folder, timeout)
            result = _read_result(job, folder, exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _make_disk_error(job) from error
    return replace(result, cpu_seconds=cpu_seconds)


def _make_disk_error(job: CompileJob, log: str = "") -> OSError:
    user = f"the compiler for '{job.topology}' writes to {tempfile.gettempdir()!r}"
    return OSError(f"the disk is full: {user}; free some of it or set TMPDIR\n{log}".rstrip())


def write_job(job: CompileJob, folder: Path) -> None:
    """Writes what the child reads."""
    topology_name, topology_options = describe_topology(job.topology)
    defaults: dict[str, Any] = {"xla_dump_to": str(folder / "dump"), "xla_dump_hlo_pass_re": "NONE_AT_ALL"}
    if job.platform == "gpu":
        # XLA tunes its own kernels of products on a GPU, and chooses bad ones without it; those of cuBLAS need none.
        defaults = {"xla_gpu_enable_triton_gemm": False}
    (folder / "program.mlirbc").write_bytes(job.bytecode)
    content = {
        "platform": "cuda" if job.platform == "gpu" else job.platform,
        "topology": topology_name,
        "topology_options": topology_options,
        "order": job.order,
        "free_arguments": job.free_arguments,
        "free_results": job.free_results,
        "compiler_options": {**defaults, **job.compiler_options},
    }
    (folder / "job.json").write_text(json.dumps(content))


def describe_topology(topology: Topology) -> tuple[str, dict[str, Any]]:
    """Returns the name and the options with which JAX describes a machine to its compiler.

    Raises:
        ValueError: If XLA lacks what it has to know of a GPU.
    """
    hardware = get_hardware(topology.hardware)
    sizes = "x".join(map(str, topology.sizes))
    if hardware.platform == "cpu":
        return "", {}
    if hardware.platform == "gpu":
        return hardware.name, {"target_config": format_gpu_target(hardware), "topology": f"1x{sizes}"}
    options: dict[str, Any] = {"wrap": [int(is_closed) for is_closed in (*topology.wrap, False)[:3]]}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if hardware.chip_config:
        options["chip_config_name"] = hardware.chip_config
    if topology.sizes == ONE_CHIP:
        options["chips_per_host_bounds"] = [1, 1, 1]
    return f"{hardware.compiler_name}:{sizes}", options


def make_environment(platform: str, logs: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the environment of the child: this one without settings of XLA, and with those that libtpu needs.

    The compiler writes files of its own to the folder `logs`, which would otherwise be that of temporary files.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_COMPILER_VARIABLES)}
    plugin = PLUGINS.get(platform)
    folder = find_plugin_folder(plugin) if plugin else ""
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, environment.get("PYTHONPATH", "")]))
    environment |= {"JAX_PLATFORMS": "cpu", "TMPDIR": os.fspath(logs)}
    if platform == "tpu":
        environment |= {**LIBTPU_ENVIRONMENT, "TPU_LOG_DIR": os.fspath(logs)}
    return environment


def _run_child(job: CompileJob, folder: Path, timeout: float) -> tuple[int | None, float]:
    """Runs the child; returns its exit code, None if it was stopped since all is written, and its CPU seconds."""
    start_time, dump_size = time.monotonic(), None
    with (folder / "errors.txt").open("wb") as errors:
        child = subprocess.Popen(
            # With -P, modules are not looked for in the folder of the child, where names may be those of others.
            [sys.executable, "-P", _CHILD, folder],
            env=make_environment(job.platform, folder),
            stdin=subprocess.PIPE,  # which ends with this process, and the child with it
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # so that Ctrl-C reaches this process alone, which ends the child
        )
        try:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    child.returncode = os.waitstatus_to_exitcode(status)
                    return child.returncode, usage.ru_utime + usage.ru_stime
                if job.stop_early:
                    previous_size, dump_size = dump_size, _measure_dump(job, folder)
                    # The dump is complete once it has the same size twice and ends as programs do.
                    if dump_size is not None and dump_size == previous_size:
                        return None, _stop_child(child)
                if time.monotonic() - start_time > timeout:
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


def _measure_dump(job: CompileJob, folder: Path) -> int | None:
    """Returns the size of the program that XLA has written after it has assigned memory; None before its end."""
    path, last_path = (_find_dump(folder, pattern[job.platform]) for pattern in (_DUMPED, _DUMPED_LAST))
    if path is None or last_path is None:
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))  # the end alone, since the file is long and this is asked often
        return size if file.read().rstrip().endswith(b"}") else None


def _read_result(job: CompileJob, folder: Path, exit_code: int | None) -> CompileResult:
    """Returns what the child has written; `exit_code` is None if it was stopped early."""
    log = tuple((folder / "errors.txt").read_text(errors="replace").splitlines())
    memory = read_buffer_assignment(_read_dump(folder, "*after_optimizations-buffer-assignment.txt"))
    if memory is not None and job.platform == "cpu":  # whose constants `memory_analysis()` does not count
        memory = _add_up_peak(memory)
    if exit_code is None and memory is not None:
        return CompileResult(_read_dump(folder, _DUMPED[job.platform]), memory, is_stopped=True, log=log)
    try:
        output = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        raise _explain_end(job, exit_code, log) from None
    if "error" in output:
        if memory is None or not is_memory_error(output["error"]):
            raise _explain_error(job, output["error"])
        text = _read_dump(folder, "*after_optimizations.txt")
        return CompileResult(text, memory, is_out_of_memory=True, is_stopped=True, log=log)
    notes: tuple[str, ...] = ()
    if job.platform == "tpu" and (memory is None or job.stop_early):
        notes = (_NOTE_WHOLE,)
    if memory is None:
        memory = ProgramMemory(**output["memory"])
        if job.platform == "cpu" or not memory.peak_bytes:  # on CPUs it is without temporaries
            memory = _add_up_peak(memory)
    text = (folder / "optimized.txt").read_text()
    return CompileResult(text, memory, log=log, notes=notes)


def _add_up_peak(memory: ProgramMemory) -> ProgramMemory:
    arguments_and_results = memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    return replace(memory, peak_bytes=arguments_and_results + memory.temp_bytes)


def _read_dump(folder: Path, pattern: str) -> str:
    """Returns what XLA has written to a file of such a name; empty if there is none."""
    path = _find_dump(folder, pattern)
    return "" if path is None else path.read_text(errors="replace")


def _find_dump(folder: Path, pattern: str) -> Path | None:
    """Returns a file that XLA has written."""
    return next((folder / "dump").glob(pattern), None)


def is_memory_error(message: str) -> bool:
    """Returns whether an error of XLA says that a program takes more memory than a device has."""
    return message.startswith("RESOURCE_EXHAUSTED") and "hbm" in message.lower()


def _explain_end(job: CompileJob, exit_code: int | None, log: Sequence[str]) -> Exception:
    """Returns the error for a child that has ended without a result."""
    last = "\n".join(log[-_MOST_ERROR_LINES:])
    compiler = f"the compiler for '{job.topology}'"
    # On a full disk there may be no room for the log that says so.
    if "No space left on device" in last or shutil.disk_usage(tempfile.gettempdir()).free < _LEAST_FREE_BYTES:
        return _make_disk_error(job, last)
    if exit_code is not None and exit_code < 0:  # the number of a signal
        name = signal.Signals(-exit_code).name
        hint = "; the system may have done so because memory ran short on this machine" if name == "SIGKILL" else ""
        return RuntimeError(f"{compiler} was killed by {name} before it had a result{hint}\n{last}".rstrip())
    colon = ":" if last else ""
    return RuntimeError(f"{compiler} ended with code {exit_code} and without a result{colon}\n{last}".rstrip())


def _explain_error(job: CompileJob, message: str) -> Exception:
    """Returns the error for what the compiler says."""
    if "No such compile option" in message or "does not have field" in message or "flag" in message.lower():
        options = ", ".join(map(repr, job.compiler_options)) or "none"
        return ValueError(f"the compiler for '{job.topology}' refuses an option (given are {options}): {message}")
    if "No space left" in message:
        return OSError(f"the disk is full: {message}")
    return RuntimeError(f"the compiler for '{job.topology}' cannot compile the program: {message}")
