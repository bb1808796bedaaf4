"""What must stay when code is moved: the compiled steps of eight models, and what a call enters on its way.

`python -m benchmarks.structure programs FOLDER` writes the optimized HLO of a training step of each model in
`examples/models`, on one device, on a mesh of Auto and on one of Explicit axes. Names of instructions are numbers in
order, and metadata is left out, so two folders are equal if the compiler was given the same programs.

`python -m benchmarks.structure calls` counts the functions and files of Axonym that a call enters, which is how far a
reader goes from a question to its answer. `--list` names them.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import optax

import axonym as nym

from .performance.models import MODELS, make_named_step


OWN = str(Path(nym.__file__).parent)
DEVICES = 8
MESH = {"data": 2, "model": 4}
COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
STORED = {**COMPUTE, "embed": "data"}


def normalize(text: str) -> str:
    """Returns HLO without metadata, and with numbers in order for the names of instructions and computations."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    lines = [line for line in text.splitlines() if line and not line[0].isdigit() and line not in _TABLES]
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match.group(), f"%{len(numbers)}")

    return re.sub(r"%[\w.\-]+", number, "\n".join(lines[1:])) + "\n"


_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def write_programs(folder: Path) -> None:
    """Writes one file for each model and kind of mesh."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        for kind in ("none", "auto", "explicit"):
            mapping = ({}, {}) if kind == "none" else (STORED, COMPUTE)
            # Some models have two heads, which four devices cannot share, and a batch of one sample a device.
            sizes = {size: number * 4 if size in ("heads", "batch") else number for size, number in model.sizes.items()}
            mesh = nym.create_mesh(MESH, axis_types="auto" if kind == "none" else kind)
            with nym.set_mesh(mesh):
                step, arguments = make_named_step(model, sizes, *mapping, optax.adam(1e-3))
                compiled = step.lower(*arguments).compile()
            path = folder / f"{name.lower().replace(' ', '')}-{kind}.hlo"
            path.write_text(normalize(compiled.as_text() or ""), encoding="utf8")
            print(path)


def find_entered(call: Callable[[], Any]) -> list[CodeType]:
    """Returns the functions of Axonym that a call enters, in order, without comprehensions."""
    entered: dict[CodeType, None] = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and "<" not in code.co_name:
            entered[code] = None

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(entered)


def prepare_dot() -> Callable[[], Any]:
    x = nym.shard(nym.ones({"batch": 8, "embed": 16}), {"batch": "data"})
    weight = nym.shard(nym.ones({"embed": 16, "mlp": 32}), {"mlp": "model"})
    return lambda: nym.dot(x, weight, axis="embed")


def prepare_shard() -> Callable[[], Any]:
    x = nym.ones({"batch": 24, "embed": 16})
    return lambda: nym.shard(x)


def prepare_miss() -> Callable[[], Any]:
    step = nym.named_jit(lambda x: x + 1)
    x = nym.ones({"batch": 8, "embed": 8})
    return lambda: step(x)


def prepare_hit() -> Callable[[], Any]:
    call = prepare_miss()
    call()
    return call


def prepare_attention() -> Callable[[], Any]:
    sizes = {"batch": 2, "heads": 2, "pos": 8, "head_dim": 4}
    query = nym.ones(sizes)
    key = query.rename({"pos": "key_pos"})
    attend = nym.nn.dot_product_attention  # `nn` is imported here
    return lambda: attend("key_pos", "head_dim", query, key, key)


MESH_CALLS: Mapping[str, Callable[[], Callable[[], Any]]] = {
    "`dot`, first call on an Explicit mesh": prepare_dot,
    "`shard(x)`": prepare_shard,
    "a miss of `named_jit`": prepare_miss,
    "a hit of `named_jit`": prepare_hit,
}
"""What each call needs, which returns the call to follow."""


def print_calls(list_functions: bool) -> None:
    """Prints how many functions and files each call enters."""
    entered: dict[str, list[CodeType]] = {}
    with nym.set_mesh(nym.create_mesh(MESH, axis_types="explicit")), nym.axis_mapping(COMPUTE):
        for name, prepare in MESH_CALLS.items():
            entered[name] = find_entered(prepare())
    entered["attention on one device, first call"] = find_entered(prepare_attention())
    for name, functions in entered.items():
        files = {function.co_filename for function in functions}
        print(f"{name}: {len(functions)} functions in {len(files)} files")
        if list_functions:
            for function in functions:
                path = function.co_filename.removeprefix(f"{OWN}/")
                print(f"    {path}:{function.co_firstlineno} {function.co_qualname}")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    programs = commands.add_parser("programs", help="write the compiled steps of eight models")
    programs.add_argument("folder", type=Path)
    calls = commands.add_parser("calls", help="count what a call enters")
    calls.add_argument("--list", action="store_true", dest="list_functions", help="name the functions, in order")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if arguments.command == "programs":
        write_programs(arguments.folder)
    else:
        print_calls(arguments.list_functions)


if __name__ == "__main__":
    main()
