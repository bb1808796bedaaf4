"""Writes the messages in docs/errors.md: `python -m tools.make_errors`.

A comment of the page, such as `<!-- raises mesh_sizes -->`, names a mistake of this module. Below it stands what the
mistake raises, and what it warns of.
"""

import contextlib
import io
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import axonym


PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
ENTRY = re.compile(r"^<!-- raises (?P<mistake>\w+) -->\n\n```text\n(?P<message>.*?)^```\n", re.MULTILINE | re.DOTALL)
MISTAKES: dict[str, Callable[[], None]] = {}

nym: Any = axonym  # without types, because most calls here are wrong
Embed, Mlp = axonym.make_axes(embed=16, mlp=32)


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 8)
    PAGE.write_text(fill(PAGE.read_text()))


def fill(page: str) -> str:
    """Returns the page with the messages that its mistakes have now."""

    def replace(entry: re.Match[str]) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            MISTAKES[entry["mistake"]]()
        return f"<!-- raises {entry['mistake']} -->\n\n```text\n{printed.getvalue()}```\n"

    return ENTRY.sub(replace, page)


def show(call: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Prints the error that a call raises, or its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "Some donated buffers")  # JAX's own warning, without paths
        try:
            call(*args, **options)
        except Exception as error:
            message, _, _ = str(error).partition(" JAX's error: ")  # whose words differ between versions
            print(f"{type(error).__name__}: {message}")
    for warning in caught:
        print(f"{warning.category.__name__}: {warning.message}")


def mistake(raises: Callable[[], None]) -> Callable[[], None]:
    MISTAKES[raises.__name__] = raises
    return raises


def make_mesh(**options: Any) -> jax.sharding.Mesh:
    return nym.create_mesh((4, 2), ("data", "model"), **options)


def make_array(**sizes: int) -> Any:
    return nym.ones(sizes or {"batch": 8, "embed": 16})


def return_first(x, y):
    return x


def sum_scaled(x, scale):
    return scale * x.sum()


# Meshes and mappings.


@mistake
def mesh_sizes():
    show(nym.create_mesh, (3, 4), ("data", "model"))


@mistake
def unknown_mesh_axis():
    with jax.set_mesh(make_mesh()):
        show(nym.shard, make_array(), {"batch": "dta"})


@mistake
def mesh_axis_used_twice():
    with jax.set_mesh(make_mesh()):
        show(nym.shard, make_array(), {"batch": "data", "embed": "data"})


@mistake
def not_divisible():
    with jax.set_mesh(make_mesh()):
        show(nym.shard, make_array(vocab=10), {"vocab": "data"})


@mistake
def typos():
    with jax.set_mesh(make_mesh()):
        show(nym.shard, make_array(imgae=8), {"image": "data"})
        show(nym.shard, make_array(rows=8), {"rows": "data", "columns": "modell"})


@mistake
def nothing_active():
    show(nym.shard, make_array(), {"batch": "data"})
    with jax.set_mesh(make_mesh()):
        show(nym.shard, make_array())


@mistake
def not_a_mapping():
    show(nym.axis_mapping, ["batch", "data"])
    show(nym.shard, {"batch": "data"}, make_array())


@mistake
def declared_axes():
    class Scale(eqx.Module):
        weight: jax.Array = nym.field(axis_names=("embed", "mlp"))

    with jax.set_mesh(make_mesh()):
        show(nym.shard, Scale(jnp.ones((16, 32, 4))), {"embed": "data"})


@mistake
def stages():
    def run(layers, microbatches):
        Layers = nym.Axis("layers", layers)
        stack = nym.nn.Stacked(nym.zeros(Layers), Layers)
        mapping, policy = {"layers": "data", "batch": "model"}, nym.Policy(microbatches=microbatches)
        with jax.set_mesh(make_mesh()), nym.axis_mapping(mapping, policy=policy):
            stack.fold_via(lambda layer, x: x + layer)(make_array())

    show(run, 6, {"batch": 4})


# Rules, reports and locks.


def make_tree() -> Any:
    return {"attn": {"weight": jnp.ones((8, 6))}, "norm": jnp.ones(8)}


@mistake
def pattern_that_does_not_fit():
    with jax.set_mesh(make_mesh()):
        show(nym.PathShardingRule([("norm", P(None, "data"))]).apply, make_tree())


@mistake
def strict_patterns():
    with jax.set_mesh(make_mesh()):
        show(nym.PathShardingRule([("norm", P()), ("wieght$", P("data"))], strict=True).apply, make_tree())


@mistake
def lock():
    mesh = make_mesh()
    params = {"weight": jax.ShapeDtypeStruct((8, 16), "float32")}
    report = nym.ShardingAnalyzer(mesh).sharding_report(params, {"weight": P("data")})
    with contextlib.chdir(tempfile.mkdtemp()):
        show(nym.assert_sharding_lock, report, "model.lock")
        report.save_lock("model.lock")
        show(nym.assert_sharding_lock, params, "model.lock", P("model"), mesh=mesh)


# Compiled functions.


@mistake
def jit_options():
    show(nym.named_jit, return_first, static_argnums=1)


@mistake
def jit_without_mesh():
    show(nym.named_jit(return_first, axis_resources={"batch": "data"}), make_array(), 1)
    with nym.axis_mapping({"batch": "data"}):
        show(nym.named_jit(return_first), make_array(), 1)


@mistake
def static_argument():
    show(nym.named_jit(return_first), make_array(), {"layers": {1, 2}})


@mistake
def elsewhere():
    array = nym.named(jax.device_put(jnp.ones(8), jax.devices()[3]), "batch")
    with jax.set_mesh(make_mesh()):
        show(nym.named_jit(return_first), array, 1)


@mistake
def retraces():
    def run(calls):
        step = nym.named_jit(sum_scaled)
        for rows, scale in calls:
            step(nym.ones({"batch": rows}), scale)

    show(run, [(8, 0.1), (8, 0.09), (8, 0.08), (8, 0.07)])
    show(run, [(rows, 1) for rows in range(1, 11)])


@mistake
def donation():
    x = make_array()
    show(nym.named_jit(sum_scaled, donate_args=(True, False)), make_array(), 2.0)
    show(nym.named_jit(lambda x, y: x + y, donate_args=(True, False)), x, x)


@mistake
def shard_map():
    def gather(x):
        return jax.tree.map(lambda array: jax.lax.all_gather(array, "data"), x)

    total = nym.shard_map(lambda x: x.sum("batch"))
    with jax.set_mesh(make_mesh()), nym.axis_mapping({"batch": "data"}):
        show(total, make_array())
        show(nym.shard_map(gather), make_array())


# Named arrays.


@mistake
def missing_axis():
    x = make_array()
    show(x.sum, "embd")
    show(x.sum, -1)
    show(lambda: x + make_array(batch=6, embed=16))


@mistake
def broadcasting():
    x = make_array()
    show(lambda: x + make_array(batch=8, mlp=4))
    show(lambda: x + jnp.ones((8, 16)))


@mistake
def jax_vmap():
    show(jax.vmap(lambda x: x + 1), make_array())


@mistake
def indices():
    x = make_array()
    show(lambda: x[:, 0])
    show(lambda: x["embed", 99])


@mistake
def traced_indices():
    x = make_array()
    show(jax.jit(lambda i: x["embed", i : i + 2]), 0)
    show(jax.jit(lambda x: x["embed", x["batch", 0] > 0]), x)


@mistake
def legacy_key():
    norms = nym.nn.Stacked.init(nym.Axis("layers", 4), nym.nn.RmsNorm)(Embed)
    drop = norms.fold_via(lambda norm, x, key: nym.nn.Dropout(0.1)(norm(x), key=key))
    show(drop, make_array(), jax.random.PRNGKey(0))


@mistake
def foreign_names():
    x = make_array()
    show(lambda: x.T)
    show(lambda: nym.nn.Linear(Embed, Mlp))


@mistake
def layer_arguments():
    key = jax.random.key(0)
    table = nym.nn.Embedding.init(nym.Axis("vocab", 10), Embed, key=key)
    show(lambda: table(nym.named([3, 10], "pos")))


@mistake
def foreign_functions():
    x = make_array()
    show(jnp.exp, x)


@mistake
def contradicting_operands():
    with jax.set_mesh(make_mesh(axis_types="explicit")):
        rows = nym.shard(make_array(), {"batch": "data"})
        columns = nym.shard(make_array(embed=16, mlp=32), {"mlp": "data"})
        show(nym.dot, rows, columns, axis="embed")


@mistake
def plain_arrays_on_an_explicit_mesh():
    with jax.set_mesh(make_mesh(axis_types="explicit")):
        weights = jax.device_put((jnp.ones((8, 8)), jnp.ones((8, 8))), P("data", "model"))
        show(nym.named_jit(lambda first, second: first @ second), *weights)


# Files and values.


@mistake
def state_dict():
    folder = tempfile.mkdtemp()
    nym.state_dict.save_safetensors({"weight": make_array(mlp=32, embed=16)}, folder)
    show(nym.state_dict.load_safetensors, {"weight": make_array(embed=32, mlp=16)}, folder)
    show(nym.state_dict.load_safetensors, {"wieght": make_array(mlp=32, embed=16)}, folder)


@mistake
def wide_integers():
    ids = np.array([7, 2**40 + 7] * 4)
    loader = nym.data.ShardedLoader([ids], {"batch": "data"}, make_mesh(), axes="batch")
    show(next, loader)
    loader.close()


if __name__ == "__main__":
    main()
