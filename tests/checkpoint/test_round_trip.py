"""What is saved comes back bit for bit: every kind of leaf, on other meshes, in another order of axes."""

import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym

from ..comparing import assert_same


Embed, Mlp = nym.make_axes(embed=8, mlp=4)
MAPPING = {"embed": "data", "mlp": "model"}


def make_model() -> nym.nn.Linear:
    return nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))


@functools.cache
def make_state() -> Any:
    """One of every kind of leaf."""
    model = make_model()
    odd = np.array([np.nan, -0.0, 1e-45, np.inf], np.float32).view(np.uint32) | 1
    return {
        "model": model,
        "optimizer": optax.adamw(1e-3).init(model),
        "key": jax.random.key(3, impl="rbg"),
        "keys": nym.named(jax.random.split(jax.random.key(1), 8), "embed"),
        "bfloat16": nym.named(jnp.arange(8.0, dtype="bfloat16"), "embed"),
        "bits": nym.named(jnp.asarray(odd.view(np.float32)), "mlp"),
        "numpy": np.arange(6).reshape(2, 3),
        "scalars": [np.float64(2.5), np.int8(3), 3, 2.5, True, 1j, "text", b"bytes", None, 2**80, float("inf")],
        "empty": (jnp.ones((0, 3)), {}, [], ()),
        "keys of dicts": {7: {"a/b": jnp.ones(2), "": jnp.zeros(()), "..": jnp.ones(1, bool)}},
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with jax.set_mesh(None):
        nym.checkpoint.save(folder, make_state(), 3)
    return folder


def test_every_kind_of_leaf_comes_back(saved: Path) -> None:
    assert_same(make_state(), nym.checkpoint.restore(saved, make_state()))
    like = {**make_state(), "model": eqx.filter_eval_shape(make_model)}  # shapes without data say what to restore
    assert_same(make_state(), nym.checkpoint.restore(saved, like))


def test_orbax_reads_the_arrays_by_path(tmp_path: Path) -> None:
    nym.checkpoint.save(tmp_path, {"weight": nym.NamedArray(np.arange(4), "embed"), "step": 3}, 1)
    with ocp.CheckpointManager(tmp_path) as manager:
        restored = manager.restore(1, args=ocp.args.StandardRestore())
    assert {path: array.tolist() for path, array in restored.items()} == {"state['weight']": [0, 1, 2, 3]}


def test_without_like_nodes_are_dicts_lists_and_tuples(saved: Path) -> None:
    restored, state = nym.checkpoint.restore(saved), make_state()
    same = ("key", "keys", "bfloat16", "bits", "numpy", "scalars", "empty", "keys of dicts")
    assert_same({name: restored[name] for name in same}, {name: state[name] for name in same})
    assert_same(restored["model"]["weight"], state["model"].weight)
    assert restored["optimizer"][1:] == ({}, {})
    assert_same(restored["optimizer"][0]["mu"]["bias"], state["optimizer"][0].mu.bias)


def test_arrays_are_read_onto_the_mesh_by_the_mapping(saved: Path, mesh: jax.sharding.Mesh) -> None:
    state = make_state()
    like = {**state, "model": eqx.filter_eval_shape(make_model)}
    for restored in (
        nym.checkpoint.restore(saved, like, mapping=MAPPING),
        nym.checkpoint.restore(saved, mapping=MAPPING),
    ):
        model = restored["model"]
        weight = model["weight"] if isinstance(model, dict) else model.weight
        assert weight.sharding == jax.sharding.NamedSharding(mesh, P("model", "data"))
        assert (
            restored["keys"].sharding.spec == P("data")
            and restored["keys of dicts"][7]["a/b"].sharding.is_fully_replicated
        )
        assert np.array_equal(weight.array, state["model"].weight.array)
    with nym.axis_mapping(MAPPING):
        assert nym.checkpoint.restore(saved, like)["model"].weight.sharding.spec == P("model", "data")
    assert_same(jax.device_get(like["numpy"]), restored["numpy"])


def test_arrays_return_to_the_memory_of_the_host(tmp_path: Path, mesh: jax.sharding.Mesh) -> None:
    mapping = {"embed": "data"}
    optimizer = nym.offloaded_optimizer(optax.adam(1e-3))
    with jax.set_mesh(mesh):
        state = nym.shard(optimizer.init(nym.ones({"embed": 8, "mlp": 4})), mapping)
        nym.checkpoint.save(tmp_path, state, step=0)
        for options in ({}, {"mapping": mapping}):
            restored = nym.checkpoint.restore(tmp_path, state, **options)
            for array, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
                assert array.sharding == expected.sharding
                assert array.sharding.memory_kind == ("pinned_host" if array.ndim else "device")
        sharding = nym.infer_resource_partitions(state[0].mu, mapping, preserve_existing_shardings=False)
        assert sharding.memory_kind == "pinned_host"


def test_another_order_of_axes_is_transposed_back(tmp_path: Path, mesh: jax.sharding.Mesh) -> None:
    weight = nym.random.normal(jax.random.key(0), (Mlp, Embed))
    keys = nym.named(jax.random.split(jax.random.key(1), (4, 8)), (Mlp, Embed))
    numpy = nym.NamedArray(np.arange(32).reshape(4, 8), (Mlp, Embed))
    state = {"weight": weight, "keys": keys, "numpy": numpy}
    nym.checkpoint.save(tmp_path, state, 1)
    like = {name: nym.NamedArray(jax.ShapeDtypeStruct((8, 4), x.dtype), (Embed, Mlp)) for name, x in state.items()}
    like["numpy"] = nym.NamedArray(np.zeros((8, 4), int), (Embed, Mlp))
    for options in ({}, {"mapping": MAPPING}):
        restored = nym.checkpoint.restore(tmp_path, like, **options)
        assert restored["weight"].names == ("embed", "mlp")
        assert restored["weight"].sharding.spec == (P("data", "model") if options else P(None, None))
        assert np.array_equal(restored["weight"].array, np.asarray(weight.array).T)
        assert np.array_equal(restored["numpy"].array, numpy.array.T) and isinstance(
            restored["numpy"].array, np.ndarray
        )
        data = np.asarray(jax.random.key_data(restored["keys"].array))
        assert np.array_equal(data[3, 2], jax.random.key_data(keys.array)[2, 3])
    with jax.set_mesh(None):
        alone = nym.checkpoint.restore(tmp_path, like)
        assert np.array_equal(alone["weight"].array, np.asarray(weight.array).T)
    with pytest.raises(ValueError, match=r"\(embed: 8, mlp: 4\) here and axes \(mlp: 4, embed: 8\) in the"):
        nym.checkpoint.restore(tmp_path, like, axis_order="error")


def test_uncommitted_arrays_stay_uncommitted(saved: Path) -> None:
    with jax.set_mesh(None):
        restored = nym.checkpoint.restore(saved, make_state())
        assert not restored["model"].weight.array.committed and not restored["key"].committed
        placed = jax.device_put(make_state()["model"], jax.devices()[3])
        restored = nym.checkpoint.restore(saved, {"model": placed}, strict=False)
        assert restored["model"].weight.array.devices() == {jax.devices()[3]}


def test_layers_move_between_shards_and_stages(tmp_path: Path) -> None:
    """What was trained fully sharded goes on as a pipeline, and the reverse."""
    Layers = nym.Axis("layers", 4)

    def make_state() -> Any:
        stack = nym.nn.Stacked.init(Layers, nym.nn.Linear)(Embed, Mlp, key=jax.random.key(0))
        return {"model": stack, "optimizer": optax.adam(1e-3).init(stack)}

    def interleave(state: Any, stages: int, repeats: int) -> Any:
        def is_stack(node: Any) -> bool:
            return isinstance(node, nym.nn.Stacked)

        return jax.tree.map(lambda x: x.interleave(stages, repeats) if is_stack(x) else x, state, is_leaf=is_stack)

    sharded, staged = {"embed": "data"}, {"layers": "data", "mlp": "model"}
    state = make_state()
    nym.checkpoint.save(tmp_path, nym.shard(state, sharded, nym.create_mesh((8,), ("data",))), 1)
    with jax.set_mesh(nym.create_mesh((2, 4), ("data", "model"), axis_types="explicit")):
        restored = nym.checkpoint.restore(tmp_path, jax.eval_shape(make_state), mapping=staged)
        assert restored["model"].stacked.weight.array.sharding.spec == P("data", "model", None)
        assert_same(jax.device_get(restored), jax.device_get(state))
        nym.checkpoint.save(tmp_path, interleave(restored, 2, 2), 2)
    like = jax.eval_shape(lambda: interleave(make_state(), 2, 2))
    back = nym.checkpoint.restore(tmp_path, like, mapping=sharded, mesh=nym.create_mesh((8,), ("data",)))
    assert_same(jax.device_get(interleave(back, 1, 1)), jax.device_get(state))
    with pytest.raises(ValueError, match=r"interleaving is \(1, 1\) here and was \(2, 2\), so .* in another order"):
        nym.checkpoint.restore(tmp_path, jax.eval_shape(make_state))
