"""Plans a step for a machine: `python -m axonym.planner MODULE:FUNCTION --devices v5e:16x16`.

FUNCTION takes no arguments. It returns the step and a tuple of its arguments, which may be shapes, or these and a
dictionary of further arguments of `axonym.planner.plan`:

    def make_step():
        model = jax.eval_shape(lambda: Model.init(jax.random.key(0)))
        batch = jax.eval_shape(lambda: nym.zeros({"batch": 256, "pos": 4096}, int))
        return train_step, (model, batch), {"policies": {"layers": True, "offload": "offload"}}

The exit code is 0 if the best candidate fits, 1 if nothing does, and 2 after an error. It is 3 if neither is known:
the budget was used up before a candidate that fits was compiled, or there is no compiler for the machine. After Ctrl-C
it is 130; what was compiled until then is printed and written.
"""

import argparse
import contextlib
import importlib
import inspect
import itertools
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .._ground.atomic_file import check_file_path, check_folder_path
from .._ground.formats import suggest_name
from ..named._transforms._checkpoint import CHECKPOINT_POLICIES
from ._machine._hardware_file import read_hardware
from ._plan._plan import Plan
from ._search._plan_search import plan
from ._search._published_flags import PUBLISHED
from ._search._saved_names import AUTO


_FITS, _NOTHING_FITS, _ERROR, _UNKNOWN, _INTERRUPTED = 0, 1, 2, 3, 130  # exit codes; argparse has 2, shells 130
_REPEAT_SECONDS = 0.05  # until Ctrl-C that was lost is raised again, past the callback
_PARTS = ("mesh", "compute", "parameters", "microbatches")
_POLICIES = {"none": False, "layers": True}
_LIBRARIES = sys.stdlib_module_names | {"__main__", "axonym", "equinox", "jax", "jaxlib"}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan of a step, and writes it to files."""
    request = _parse_arguments(arguments)
    with _repeat_lost_interrupts():
        return _run_request(request)


@contextlib.contextmanager
def _repeat_lost_interrupts() -> Iterator[None]:
    """Raises Ctrl-C again if Python drops it, as in callbacks of the garbage collector, of which JAX has one."""
    report, main_thread = sys.unraisablehook, threading.main_thread().ident

    def repeat(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            threading.Timer(_REPEAT_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
        else:
            report(lost)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = report


def _run_request(request: argparse.Namespace) -> int:
    """Returns the exit code."""
    try:
        for path in request.hardware:
            read_hardware(path)
        step, args, options = _call_maker(request.step)
        options = {**options, **_read_options(request, options)}
        if request.json is not None:
            check_file_path(request.json, "plan", "plan.json")
        if request.out is not None:
            check_folder_path(request.out, "--out").mkdir(parents=True, exist_ok=True)
        result = plan(step, *args, devices=request.devices, **options)
        print(result)
        _write_results(result, request)
    except KeyboardInterrupt:
        print("axonym.planner: stopped", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        print(_format_error(error, request.step), file=sys.stderr)
        return _ERROR
    if result.stopped_by == "interrupt":
        return _INTERRUPTED
    if not result.has_verdict:
        return _UNKNOWN
    return _FITS if result.fits else _NOTHING_FITS


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m axonym.planner",
        description=summary.split(":")[0],
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", metavar="MODULE:FUNCTION", help="the function that returns the step and its arguments")
    machine = "the machine, such as v5e:16x16, '2 x v5e:16x16', h100:32x8 or cpu:8"
    parser.add_argument("--devices", required=True, help=machine)
    hardware = "files of devices of your own, TOML or JSON, which `--devices` may name; see `read_hardware`"
    parser.add_argument("--hardware", nargs="+", type=Path, default=[], metavar="FILE", help=hardware)
    parser.add_argument("--top", type=int, help="how many candidates are shown with all their parts")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="how long the search may take")
    fixed = (
        "what is not searched for: mesh.model=4, compute.mlp=model, parameters.embed=replica,data, compute.heads=, "
        "microbatches.batch=8"
    )
    parser.add_argument("--fixed", nargs="+", default=[], metavar="PART.NAME=VALUE", help=fixed)
    policy = "what the backward pass recomputes: auto, or none, layers, names of `Stacked`, policies of FUNCTION"
    parser.add_argument("--policy", nargs="+", default=[], metavar="NAME", help=policy)
    sizes = "sizes of axes of the data to try: batch=256,512,1024"
    parser.add_argument("--sizes", nargs="+", default=[], metavar="NAME=SIZES", help=sizes)
    serve = "the axis of the sequences, such as batch, if the step serves a model"
    parser.add_argument("--serve", metavar="NAME", help=serve)
    flags = "also compile the best candidate with flags of XLA that training runs are published with"
    parser.add_argument("--published-flags", action="store_true", help=flags)
    state = "also try the optimizer state in the memory of the host, for a step with an `offloaded_optimizer`"
    parser.add_argument("--offload-state", action="store_true", default=None, help=state)
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--cache", metavar="DIR", help="the folder for compiled programs, instead of the user's own")
    cache.add_argument(
        "--no-cache", dest="cache", action="store_false", default=None, help="compile everything, and keep nothing"
    )
    progress = "write a line for each candidate to the error stream, as on a terminal"
    parser.add_argument("--progress", action="store_true", default=None, help=progress)
    parser.add_argument("--out", metavar="DIR", help="a folder for plan.html, plan.json and plan.svg")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a file for the plan, which `read_plan` reads")
    return parser.parse_args(arguments)


def _call_maker(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Returns the step, its arguments, and the options that a function of a module returns."""
    module, _, function = name.partition(":")
    if not function or not module.replace(".", "_").isidentifier() or module.endswith(".py"):
        raise ValueError(f"the step is given as MODULE:FUNCTION, such as train:make_step, not as {name!r}")
    maker = getattr(importlib.import_module(module), function, None)
    if not callable(maker):
        raise ValueError(f"there is no function {function!r} in module {module!r}")
    result = maker()
    if not isinstance(result, tuple) or len(result) not in (2, 3) or not isinstance(result[1], tuple | list):
        kind = f"a {type(result).__name__}"
        if isinstance(result, tuple):
            kind = f"({', '.join(type(part).__name__ for part in result)})"
        raise TypeError(
            f"{name} returns the step and a tuple of its arguments, or these and a dictionary of arguments of `plan`, "
            f"not {kind}"
        )
    options = result[2] if len(result) == 3 else {}
    if not isinstance(options, dict):
        raise TypeError(f"the third thing that {name} returns is a dictionary of arguments of `plan`, not {options!r}")
    return result[0], tuple(result[1]), options


def _read_options(request: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `plan` that the command line has; they replace those of the function."""
    parameters = [*inspect.signature(plan).parameters][2:]
    for name in options:
        if name not in parameters:
            suggestion = suggest_name(name, parameters)
            raise TypeError(f"{request.step} returns {name!r}, which `plan` does not take{suggestion}")
    names = ("top", "budget", "cache", "progress", "serve", "offload_state")
    arguments = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    if request.fixed:
        arguments["fixed"] = _read_fixed(request.fixed)
    if request.published_flags:
        arguments["compiler_options"] = PUBLISHED
    if request.sizes:
        arguments["sizes"] = _read_sizes(request.sizes)
    if request.policy:
        policies = options.get("policies")
        function_policies = {} if policies in (None, AUTO) else policies
        arguments["policies"] = AUTO if request.policy == [AUTO] else _read_policies(request.policy, function_policies)
    return arguments


def _read_policies(names: Sequence[str], policies: dict[str, Any]) -> dict[str, Any]:
    """Returns policies by name: those of the function, of this command, and of `Stacked`."""
    policies = {**{name: name for name in CHECKPOINT_POLICIES}, **_POLICIES, **policies}
    for name in names:
        if name not in policies:
            suggestion = "" if name == AUTO else suggest_name(name, [AUTO, *policies])
            subject = f"{AUTO!r} beside others" if name == AUTO else repr(name)
            raise ValueError(f"--policy takes {AUTO} alone, or any of {', '.join(policies)}, not {subject}{suggestion}")
    return {name: policies[name] for name in names}


def _read_sizes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not name or not all(value.isdecimal() for value in values.split(",")):
            raise ValueError(f"--sizes takes NAME=SIZE,SIZE,..., such as batch=256,512, not {text!r}")
        sizes[name] = tuple(map(int, values.split(",")))
    return sizes


def _read_fixed(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what is fixed: sizes of mesh axes, the mesh axes of named axes, and numbers of microbatches."""
    fixed: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        part, _, name = key.partition(".")
        is_number = part in ("mesh", "microbatches")
        is_valid = not is_number or (value.isdecimal() and int(value) > 0)
        if part not in _PARTS or not name or not equals or not is_valid:
            raise ValueError(
                "--fixed takes mesh.AXIS=SIZE, compute.NAME=MESH_AXES, parameters.NAME=MESH_AXES and "
                f"microbatches.NAME=NUMBER, not {text!r}"
            )
        axes = tuple(axis for axis in value.split(",") if axis)
        fixed.setdefault(part, {})[name] = int(value) if is_number else axes
    return fixed


def _write_results(result: Plan, request: argparse.Namespace) -> None:
    paths = [] if request.json is None else [result.to_json(request.json)]
    if request.out is not None:
        folder = Path(request.out)
        paths += [result.to_json(folder / "plan.json"), result.to_html(folder / "plan.html")]
        try:
            result.draw(folder / "plan.svg")
            paths.append(folder / "plan.svg")
        except (ImportError, ValueError) as missing:  # no matplotlib, or nothing to draw
            print(f"axonym.planner: {missing}", file=sys.stderr)
    if paths:
        print(f"wrote {', '.join(map(str, paths))}")


def _format_error(error: Exception, step: str) -> str:
    """Returns an error as a text, with the frames of the user's own functions if it is from one of these."""
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES
    ]
    if not frames and not isinstance(error, SyntaxError):
        text = str(error) or "no message"
        if not isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError):
            text = f"{type(error).__name__}: {text}"  # it is none of ours
        return f"axonym.planner: {text}"
    formatted = traceback.TracebackException.from_exception(error)
    # The frame of a caller that an error blames is there twice.
    groups = itertools.groupby(frames, lambda pair: pair[0])
    formatted.stack = traceback.StackSummary.extract(next(same) for _, same in groups)
    formatted.__notes__ = [note for note in getattr(error, "__notes__", ()) if "JAX has removed" not in note]
    head = f"axonym.planner: {step}, or the step that it returns, has an error"
    return "".join([f"{head}\n", *formatted.format(chain=False)]).rstrip()


if __name__ == "__main__":
    sys.exit(run_command())
