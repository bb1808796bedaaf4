"""The compiled train step of the example sends nothing between devices that hand-written JAX does not send."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import axonym as nym
from benchmarks.by_hand.llama import Block, HandwrittenLlama, Parameters

from ..hlo import Program, merge_scatters, table, totals


def drawn(tree: Any) -> Any:
    """Returns NumPy arrays of the shapes in a tree, which take no time to compile."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.normal(scale=0.1, size=x.shape).astype(x.dtype), tree)


def compiled_pair(train_lm: Any, mesh: Mesh, auto_mesh: Mesh) -> tuple[Any, Any, Any, Any]:
    """Returns both compiled steps, each with its arguments; that by hand is on Auto axes and compiled once."""
    axes = train_lm.make_axes(batch=8, seq=16, embed=64, layers=3)
    optimizer = train_lm.make_optimizer(train_lm.parse_args(["--steps", "1"]))
    model = drawn(jax.eval_shape(lambda: train_lm.Transformer.init(axes, key=jax.random.key(0))))
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(optimizer.init, model))
    rows = np.random.default_rng(0).integers(0, axes.vocab.size, (2, 8, 16)).astype(np.int32)
    batch = [nym.shard(nym.NamedArray(row, ("batch", "pos")), train_lm.COMPUTE) for row in rows]
    ours = [*nym.shard((model, state), train_lm.PARAMETERS), *batch]

    own = train_lm.make_train_step(optimizer).lower(*ours).compile()

    sizes = {name: axis.size for name, axis in axes._asdict().items()}
    handwritten = HandwrittenLlama(
        {**sizes, "group": 1}, train_lm.PARAMETERS, train_lm.COMPUTE, mesh=auto_mesh, eps=1e-5, theta=10_000.0
    )
    stacked = model.blocks.stacked
    blocks = {name: getattr(stacked, name).weight.array for name in Block._fields if name != "attention_out"}
    blocks["query"] = blocks["query"][:, :, None]  # with an axis for groups of heads, of which there is one
    blocks["attention_out"] = stacked.out.weight.array[:, :, :, None]
    weights = [layer.weight.array for layer in (model.embedding, model.norm, model.head)]
    parameters = Parameters(weights[0], Block(**blocks), *weights[1:])
    # The one by hand multiplies arrays of different ranks, as plain JAX allows.
    with jax.set_mesh(auto_mesh), jax.numpy_rank_promotion("allow"):
        shardings = jax.tree.map(lambda shape: shape.sharding, handwritten.make_shapes(optimizer))
        moments = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), jax.eval_shape(optimizer.init, parameters))
        step = handwritten.make_train_step(optimizer)
        theirs = [*jax.device_put((parameters, moments, *rows), shardings)]
        return own, ours, step.lower(*theirs).compile(), theirs


def test_the_step_sends_no_more_than_a_hand_written_one(train_lm: Any, mesh: Mesh, auto_mesh: Mesh):
    own, ours, step, theirs = compiled_pair(train_lm, mesh, auto_mesh)
    found, expected = (totals(Program(compiled.as_text()).collectives()) for compiled in (own, step))
    shown = "\n".join([table("Axonym", found), table("hand-written", expected)])
    assert expected["all-gather", "in loops"].arrays == 18, f"The hand-written step gathers otherwise.\n{shown}"
    found = merge_scatters(found)
    assert found.keys() <= expected.keys(), shown
    for key, total in found.items():
        assert all(a <= b for a, b in zip(total, expected[key], strict=True)), f"{key}\n{shown}"
    assert own.cost_analysis()["flops"] <= step.cost_analysis()["flops"] * 1.001, shown
    temporary, other = (compiled.memory_analysis().temp_size_in_bytes for compiled in (own, step))
    assert temporary <= other * 1.05, f"{temporary} and {other} bytes of temporaries\n{shown}"
    assert own.memory_analysis().alias_size_in_bytes == step.memory_analysis().alias_size_in_bytes, (
        "Not all is donated."
    )
    # The comparison is of the same step, whose losses are equal before and after an update.
    for _ in range(2):
        (*ours[:2], loss), (*theirs[:2], other_loss) = own(*ours), step(*theirs)
        np.testing.assert_allclose(loss, other_loss, rtol=1e-5)
