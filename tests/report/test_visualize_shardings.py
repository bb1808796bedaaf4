"""Shardings in a terminal: the table of a report, and a picture of each sharding."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


def test_each_sharding_has_one_picture_of_the_devices(auto_mesh, capsys):
    weight = nym.shard(nym.ones({"embed": 8, "mlp": 4}), {"embed": "data", "mlp": "model"}, auto_mesh)
    bias = jax.device_put(np.zeros((3, 2)), NamedSharding(auto_mesh, P(None, "model")))
    nym.visualize_shardings({"layers": [weight, weight], "bias": bias, "scalar": 1.0})
    text = capsys.readouterr().out
    pictures = text.split("\n\n")[-2:]
    assert str(nym.ShardingAnalyzer(auto_mesh).sharding_report({"layers": [weight, weight], "bias": bias})) in text
    assert [picture.splitlines()[0] for picture in pictures] == [
        "dimension 1 over model:",
        "embed over data, mlp over model:",
    ]
    assert "CPU 0,2,4,6" in pictures[0]
    assert [line.split()[1::3] for line in pictures[1].splitlines() if "CPU" in line] == [["CPU"] * 2] * 4


def test_arrays_without_devices_have_a_table_alone(mesh, capsys):
    jax.jit(lambda x: nym.visualize_shardings({"x": x}) or x).trace(np.zeros((8, 4), "float32"))
    shape = jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh.abstract_mesh, P("data")))
    nym.visualize_shardings(shape)
    text = capsys.readouterr().out
    assert text.count("mesh (data: 4, model: 2), 8 devices; by the arrays' own shardings") == 2
    assert "CPU" not in text
