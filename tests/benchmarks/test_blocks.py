"""With roles, devices exchange no more in a train step than with specs by hand, and hold what they must."""

import jax
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks import blocks


SIZES = {
    "Llama": blocks.Sizes(embed=128, mlp=448, heads=8, kv_heads=4, vocab=1024, layers=1, batch=8, length=32),
    "GPT-2": blocks.Sizes(embed=96, mlp=384, heads=4, kv_heads=4, vocab=2049, layers=1, batch=8, length=32),
}
COMPARED = ("by hand", "RoleShardingRule")


@pytest.fixture(scope="module", params=["GPT-2", pytest.param("Llama", marks=pytest.mark.thorough)])
def found(request: pytest.FixtureRequest) -> dict[str, blocks.Cost]:
    """What a step of the model costs, compiled once for each strategy."""
    return blocks.costs(request.param, SIZES[request.param], blocks.full_mesh(2, 4), COMPARED)


def test_roles_exchange_no_more_than_specs_by_hand_and_leave_nearly_the_fewest_bytes(found: dict[str, blocks.Cost]):
    roles = found["RoleShardingRule"]
    assert 0 < roles.collectives <= found["by hand"].collectives
    assert roles.parameters <= 1.02 * roles.optimum
    head, *lines = blocks.table(found).splitlines()
    assert head.split()[:2] == ["collectives", "parameters"]
    assert [line.split("  ")[0] for line in lines] == list(COMPARED)


def test_specs_that_jax_refuses_are_counted_and_left_out():
    sizes = SIZES["GPT-2"]
    model = blocks.MODELS["GPT-2"]
    shapes = model.parameters(sizes)
    specs = blocks.by_hand(model, shapes)
    specs["wte"]["weight"] = P("fsdp", "tp")  # 2049 is odd
    kept, refused = blocks.accepted(shapes, specs, blocks.full_mesh(2, 4))
    assert refused == 1
    assert kept["wte"]["weight"] == P()
    assert kept["h"] == specs["h"]


@pytest.mark.parametrize("name", sorted(SIZES))
def test_specs_by_hand_fit_the_sizes_of_the_benchmark(name: str):
    model, sizes = blocks.MODELS[name], {"Llama": blocks.LLAMA, "GPT-2": blocks.GPT2}[name]
    shapes = model.parameters(sizes)
    mesh = jax.sharding.AbstractMesh((8, 8), blocks.BOTH)
    assert blocks.accepted(shapes, blocks.by_hand(model, shapes), mesh)[1] == 0
