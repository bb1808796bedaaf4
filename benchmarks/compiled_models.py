"""What the models in `examples/models` and those by hand send between devices, on TPUs that are not there.

`AXONYM_LIBTPU=FOLDER python -m benchmarks.compiled_models [--only NAME ...] [--page FILE]` compiles a step of each
model in `benchmarks/performance/models.py` by hand and with names, on Auto and on Explicit meshes, small but sharded
over all axes of a mesh of eight devices, and counts collectives and the bytes that a device sends. `make tpu` fills the
folder. With `--page`, the table replaces the one in a page of the documentation.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from axonym.planner._program._collectives import COLLECTIVE_KINDS
from axonym.planner._program._hlo_program import HloProgram

from .compiled_steps import AXIS_TYPES, CONTENDERS, compile_apart, count_collectives, format_versions, replace_table


TOPOLOGY = "v5e:2x4"
# Of every axis that a model has: divisible by what it is sharded over, and as large as to be worth it.
SIZES = {
    **{"batch": 8, "pos": 512, "positions": 512, "vocab": 4096},
    **{"embed": 512, "heads": 8, "head_dim": 64, "mlp": 2048, "experts": 8},
    **{"head_embed": 512, "hidden": 512, "source": 512, "frames": 1024},
}
COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}


def choose_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the size of each axis of a model."""
    return {axis: SIZES.get(axis, size) for axis, size in sizes.items()}


def choose_mesh(sizes: Mapping[str, int]) -> tuple[dict[str, int], dict[str, str]]:
    """Returns the sizes of the mesh axes for a model with these axes, and its mapping for computing."""
    if "experts" in sizes:
        return {"data": 2, "expert": 2, "model": 2}, {**COMPUTE, "experts": "expert"}
    return {"data": 2, "model": 4}, COMPUTE


def compile_steps(name: str) -> dict[str, dict[str, tuple[int, int]]]:
    """Returns how often collectives of each kind run in the step of each contender, and what a device sends."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax.experimental import mesh_utils, topologies

    from .performance.models import MODELS, make_named_step

    model, optimizer = MODELS[name], optax.adamw(3e-4)
    sizes = choose_sizes(model.sizes)
    mesh_axes, compute = choose_mesh(sizes)
    stored = {**compute, "embed": "data"}
    topology = topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    devices = mesh_utils.create_device_mesh(tuple(mesh_axes.values()), topology)
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for who, axis_type in AXIS_TYPES.items():
        axis_types = (jax.sharding.AxisType[axis_type.title()],) * len(mesh_axes)
        mesh = jax.sharding.Mesh(devices, tuple(mesh_axes), axis_types=axis_types)
        if who == "by hand":
            by_hand = model.by_hand(sizes, stored, compute, jnp.bfloat16, mesh, **model.options)
            compiled = by_hand.make_train_step(optimizer).lower(*by_hand.make_shapes(optimizer)).compile()
        else:
            with jax.set_mesh(mesh):
                step, shapes = make_named_step(model, sizes, stored, compute, optimizer)
                compiled = step.lower(*shapes).compile()
        counts[who] = count_collectives(HloProgram(compiled.as_text() or ""), devices.size)
    return counts


def format_table(counts: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]) -> str:
    """Returns the table in Markdown: for each model and each kind of collective, the figures of all contenders."""
    by_hand, *named = CONTENDERS
    lines = [
        f"| model | | {by_hand} | | {' | '.join(f'{who} | | ratio' for who in named)} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, by_contender in counts.items():
        for kind in COLLECTIVE_KINDS:
            if any(kind in kinds for kinds in by_contender.values()):
                runs, reference = by_contender[by_hand].get(kind, (0, 0))
                cells = [title, kind, str(runs), f"{reference / 2**20:.3f} MiB"]
                for who in named:
                    runs, size = by_contender[who].get(kind, (0, 0))
                    cells += [str(runs), f"{size / 2**20:.3f} MiB", f"{size / reference:.3f}" if reference else "-"]
                lines.append(f"| {' | '.join(cells)} |")
                title = ""
    return "\n".join([f"Measured {format_versions()}.", "", *lines])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="which models; default: all")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    parser.add_argument("--compile", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.compile:
        name, into = given.compile
        Path(into).write_text(json.dumps(compile_steps(name)))
        return
    names = given.only or list_models()
    table = format_table({name: compile_apart("benchmarks.compiled_models", name) for name in names})
    print(table)
    if given.page:
        given.page.write_text(replace_table(given.page.read_text(), table, "collectives"))


def list_models() -> list[str]:
    from .performance.models import MODELS

    return list(MODELS)


if __name__ == "__main__":
    main()
