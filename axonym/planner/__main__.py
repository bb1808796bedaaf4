"""Plans a step for a machine: `python -m axonym.planner MODULE:FUNCTION --devices v5e:16x16`.

FUNCTION takes no arguments. It returns the step and a tuple of its arguments, which may be shapes, or these and a
dictionary of further arguments of `axonym.planner.plan`:

    def make_step():
        model = jax.eval_shape(lambda: Model.init(jax.random.key(0)))
        batch = jax.eval_shape(lambda: nym.zeros({"batch": 256, "pos": 4096}, int))
        return train_step, (model, batch), {"policies": {"layers": True, "offload": "offload"}}

The exit code is 0 if the best candidate fits, 1 if nothing does, and 2 after an error.
"""

import argparse
import importlib
import inspect
import itertools
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._atomic_file import check_file_path
from ..named._axis import suggest_name
from ..named._transforms._checkpoint_policy import CHECKPOINT_POLICIES
from ._plan import Plan
from ._plan_search import plan


_PARTS = ("mesh", "compute", "parameters")
_POLICIES = {"none": False, "layers": True}
_LIBRARIES = sys.stdlib_module_names | {"__main__", "axonym", "equinox", "jax", "jaxlib"}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan of a step, and writes it to files."""
    given = _parse_arguments(arguments)
    try:
        step, args, options = _call_maker(given.step)
        options = {**options, **_read_options(given, options)}
        if given.json is not None:
            check_file_path(given.json, "plan", "plan.json")
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
        found = plan(step, *args, devices=given.devices, **options)
        print(found)
        _write_results(found, given)
    except KeyboardInterrupt:
        print("axonym.planner: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        print(_format_error(error, given.step), file=sys.stderr)
        return 2
    return 0 if found.fits else 1


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m axonym.planner",
        description=first.split(":")[0],
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", metavar="MODULE:FUNCTION", help="the function that returns the step and its arguments")
    parser.add_argument("--devices", required=True, help="the machine, such as v5e:16x16, h100:32x8 or cpu:8")
    parser.add_argument("--top", type=int, help="how many candidates are shown with all their parts")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="how long the search may take")
    fixed = "what is not searched for: mesh.model=4, compute.mlp=model, parameters.embed=replica,data, compute.heads="
    parser.add_argument("--fixed", nargs="+", default=[], metavar="PART.NAME=VALUE", help=fixed)
    policy = "what the backward pass recomputes: none, layers, what `Stacked` knows by name, or a policy of FUNCTION"
    parser.add_argument("--policy", nargs="+", default=[], metavar="NAME", help=policy)
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--cache", metavar="DIR", help="the folder for compiled programs, instead of the user's own")
    cache.add_argument(
        "--no-cache", dest="cache", action="store_false", default=None, help="compile everything, and keep nothing"
    )
    progress = "write a line for each candidate to the error stream, as on a terminal"
    parser.add_argument("--progress", action="store_true", default=None, help=progress)
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder for plan.html, plan.json and plan.svg")
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
    made = maker()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[1], tuple | list):
        raise TypeError(
            f"{name} returns the step and a tuple of its arguments, or these and a dictionary of arguments of `plan`, "
            f"not {_describe_result(made)}"
        )
    options = made[2] if len(made) == 3 else {}
    if not isinstance(options, dict):
        raise TypeError(f"the third thing that {name} returns is a dictionary of arguments of `plan`, not {options!r}")
    return made[0], tuple(made[1]), options


def _describe_result(made: Any) -> str:
    if not isinstance(made, tuple):
        return f"a {type(made).__name__}"
    return f"({', '.join(type(one).__name__ for one in made)})"


def _read_options(given: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `plan` that the command line has; they replace those of the function."""
    names = ("top", "budget", "cache", "progress")
    found = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    known = [*inspect.signature(plan).parameters][2:]
    for name in options:
        if name not in known:
            raise TypeError(f"{given.step} returns {name!r}, which `plan` does not take{suggest_name(name, known)}")
    if given.fixed:
        found["fixed"] = _read_fixed(given.fixed)
    if given.policy:
        found["policies"] = _read_policies(given.policy, options.get("policies") or {})
    return found


def _read_policies(names: Sequence[str], own: dict[str, Any]) -> dict[str, Any]:
    """Returns policies by name: those of the function, of this command, and of `Stacked`."""
    known = {**{name: name for name in CHECKPOINT_POLICIES}, **_POLICIES, **own}
    for name in names:
        if name not in known:
            raise ValueError(f"--policy takes {', '.join(known)}, not {name!r}{suggest_name(name, [*known])}")
    return {name: known[name] for name in names}


def _read_fixed(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what is fixed: sizes of mesh axes, and the mesh axes of named axes."""
    fixed: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        part, _, name = key.partition(".")
        is_valid = part != "mesh" or (value.isdecimal() and int(value) > 0)
        if part not in _PARTS or not name or not equals or not is_valid:
            raise ValueError(
                f"--fixed takes mesh.AXIS=SIZE, compute.NAME=MESH_AXES and parameters.NAME=MESH_AXES, not {text!r}"
            )
        axes = tuple(axis for axis in value.split(",") if axis)
        fixed.setdefault(part, {})[name] = int(value) if part == "mesh" else axes
    return fixed


def _write_results(found: Plan, given: argparse.Namespace) -> None:
    paths = [] if given.json is None else [found.to_json(given.json)]
    if given.out is not None:
        paths += [found.to_json(given.out / "plan.json"), found.to_html(given.out / "plan.html")]
        try:
            found.draw(given.out / "plan.svg")
            paths.append(given.out / "plan.svg")
        except (ImportError, ValueError) as missing:  # no matplotlib, or nothing to draw
            print(f"axonym.planner: {missing}", file=sys.stderr)
    if paths:
        print(f"wrote {', '.join(map(str, paths))}")


def _format_error(error: Exception, step: str) -> str:
    """Returns an error as a text, with the frames of the user's own functions if it is from one of these."""
    frames = traceback.walk_tb(error.__traceback__)
    own = [one for one in frames if one[0].f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES]
    if not own and not isinstance(error, SyntaxError):
        return f"axonym.planner: {_describe_error(error)}"
    shown = traceback.TracebackException.from_exception(error)
    # The frame of a caller that an error blames is there twice.
    shown.stack = traceback.StackSummary.extract(next(same) for _, same in itertools.groupby(own, lambda one: one[0]))
    shown.__notes__ = [note for note in getattr(error, "__notes__", ()) if "JAX has removed" not in note]
    head = f"axonym.planner: {step}, or the step that it returns, has an error"
    return "".join([f"{head}\n", *shown.format(chain=False)]).rstrip()


def _describe_error(error: Exception) -> str:
    """Returns an error as a text; errors that are not ours have their type in front."""
    text = str(error) or "no message"
    known = isinstance(error, ValueError | TypeError | OSError | ImportError | RuntimeError)
    return text if known else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(run_command())
