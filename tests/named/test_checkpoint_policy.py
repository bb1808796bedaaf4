"""What loops keep for the backward pass, by `ScanCheckpointPolicy` and the other values of `remat=`."""

import re

import jax
import numpy as np
import pytest

import axonym as nym
from axonym import ScanCheckpointPolicy


w = nym.named(np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32), ("layers", "embed"))
x = nym.named(np.ones(5, np.float32), "embed")


def step(carry, row):
    hidden = nym.tree_checkpoint_name(nym.sin(carry * row), "hidden")
    return carry + nym.tanh(nym.exp(nym.cos(hidden))), (hidden * 2).sum()


def loss(remat, x, w, reverse=False):
    carry, results = nym.scan(step, "layers", remat=remat, reverse=reverse)(x, w)
    return (carry.sum() + (results * results).sum()).scalar()


gradients = jax.jit(jax.grad(loss, (1, 2)), static_argnums=(0, 3))


def kept(remat):
    """Shapes, with a mark for those on the host, of what is kept for the backward pass, scalars of steps aside."""
    _, backward = jax.vjp(lambda x, w: loss(remat, x, w), x, w)
    arrays = [leaf for leaf in jax.tree.leaves(backward) if getattr(leaf, "ndim", 0) and leaf.shape != (10,)]
    shapes = [(*array.shape, *_HOST.get(array.sharding.memory_kind, ())) for array in arrays]
    return sorted(shapes, key=str)


_HOST = {"pinned_host": ("host",)}
ALL, ONE, HOST = None, (10, 5), (10, 5, "host")

POLICIES = {
    "none": (False, ALL),
    "disabled": (ScanCheckpointPolicy(disable=True), ALL),
    "carries": (True, [ONE, ONE]),  # the other one is the argument, which is there anyway
    "default": (ScanCheckpointPolicy(), [ONE, ONE]),
    "inputs": (ScanCheckpointPolicy(save_inputs=True), [ONE, ONE]),
    "simple": (ScanCheckpointPolicy(simple=True, save_carries=False, nested=True), [ONE, ONE]),
    "everything": ("save_all", ALL),
    "nothing": ("full", [(5,), ONE]),
    "nothing as well": ("recompute", [(5,), ONE]),
    "a name": (ScanCheckpointPolicy(save_block_internals=["hidden"]), [ONE, ONE, ONE]),
    "offloaded carries": ("offload", [ONE, HOST]),
    "an offloaded name": (ScanCheckpointPolicy(offload_block_internals=["hidden"]), [ONE, ONE, HOST]),
    "offloaded inputs": (ScanCheckpointPolicy(save_inputs="offload"), [ONE, HOST]),
    "nested": ("nested", [(2, 5), (2, 5, 5)]),
    "blocks of 4": (
        ScanCheckpointPolicy(nested=4),
        [(2, 4, 5), (2, 5), (2, 5), (5,)],
    ),  # and one of 2
    "offloaded blocks": (ScanCheckpointPolicy(nested=True, save_carries="offload"), [(2, 5, "host"), (2, 5, 5)]),
    "blocks of 5": (ScanCheckpointPolicy(nested=5), [(2, 5), (2, 5, 5)]),
    "one block": (ScanCheckpointPolicy(nested=99), [(1, 5), (1, 10, 5)]),
}


@pytest.mark.parametrize(("remat", "shapes"), POLICIES.values(), ids=POLICIES)
def test_a_policy_keeps_what_it_says_and_changes_no_gradient(remat, shapes):
    if shapes is ALL:  # whatever JAX needs, which depends on its version
        assert kept(remat).count(ONE) > 3
    else:
        assert kept(remat) == sorted(shapes, key=str)
    for reverse in (False, True):
        for one, other in zip(gradients(remat, x, w, reverse), gradients(False, x, w, reverse), strict=True):
            assert one.names == other.names and np.allclose(one.array, other.array, atol=1e-5)


def test_nested_loops_give_the_results_in_order():
    for steps in (0, 1, 2, 7):
        rows = nym.arange(nym.Axis("k", steps))
        for reverse in (False, True):
            options = {"remat": "nested", "reverse": reverse}
            carry, results = nym.scan(lambda c, r: (c + r, (c, "text")), "k", **options)(nym.named(0, ()), rows)
            expected, plain = nym.scan(lambda c, r: (c + r, c), "k", reverse=reverse)(nym.named(0, ()), rows)
            assert carry.item() == expected.item() and results[1] == "text"
            assert results[0].names == ("k",) and np.array_equal(results[0].array, plain.array)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_named_unless_a_policy_asks_for_a_name(policy):
    fold = nym.fold(lambda carry, row: carry * row, "layers", remat=POLICIES[policy][0])
    named = "= name[" in str(jax.make_jaxpr(fold)(x, w))
    assert named == (policy in ("inputs", "offloaded carries", "offloaded inputs", "offloaded blocks"))


def test_blocks_have_equal_size_where_that_saves_few_carries():
    def count_blocks(steps):
        rows = nym.zeros({"layers": steps, "embed": 2})
        fold = nym.fold(lambda carry, row: carry * row, "layers", remat="nested")
        program = str(jax.make_jaxpr(fold)(nym.zeros({"embed": 2}), rows))
        return [int(length) for length in re.findall(r"length=(\d+)", program)]

    found = {steps: sorted(count_blocks(steps)) for steps in (12, 24, 32, 80, 34)}
    assert found == {12: [3, 4], 24: [4, 6], 32: [4, 8], 80: [8, 10], 34: [4, 5, 6]}  # 34 = 5 * 6 + 4


@pytest.mark.parametrize(
    "remat", ["nested", "full", ScanCheckpointPolicy(save_block_internals=["hidden"])], ids=["nested", "full", "a name"]
)
def test_on_a_mesh(mapped, draw, remat):
    rows, start = draw(layers=6, batch=8, embed=4), nym.zeros({"batch": 8, "embed": 4})

    def total(start, rows, remat):
        return (nym.fold(lambda c, r: step(c, r)[0], "layers", remat=remat)(start, rows)).sum()

    expected = nym.grad(total, 1)(start, rows, False)
    gradient = jax.jit(nym.grad(total, 1), static_argnums=2)(*nym.shard((start, rows)), remat)
    assert np.allclose(gradient.array, expected.array, atol=1e-5)


def test_lists_and_tuples_of_names_are_the_same():
    one = ScanCheckpointPolicy(save_block_internals=["a"], offload_block_internals=["b"])
    assert one == ScanCheckpointPolicy(save_block_internals=("a",), offload_block_internals=("b",))
    assert ScanCheckpointPolicy(nested=1) == ScanCheckpointPolicy() != ScanCheckpointPolicy(nested=True)
    assert hash(one) == hash(ScanCheckpointPolicy(save_block_internals=("a",), offload_block_internals=("b",)))


def test_names_are_given_to_arrays_alone():
    tree = {"x": x, "rate": 0.1, "text": "t", "none": None}
    named = nym.tree_checkpoint_name(tree, "hidden")
    assert named["x"].names == ("embed",) and (named["rate"], named["text"], named["none"]) == (0.1, "t", None)
    assert "name=hidden" in str(jax.make_jaxpr(lambda x: nym.tree_checkpoint_name(x, "hidden"))(x))


def test_errors():
    with pytest.raises(ValueError, match=r"what a loop recomputes is one of 'full', 'nested', .* or a policy, .*nestd"):
        nym.scan(step, "layers", remat="nestd")
    with pytest.raises(TypeError, match="`remat` is a boolean, a string or a policy, not 3"):
        nym.scan(step, "layers", remat=3)  # pyright: ignore[reportArgumentType]
    for options, message in (
        ({"save_carries": "host"}, "`save_carries` is True, False or 'offload', not 'host'"),
        ({"save_inputs": None}, "`save_inputs` is True, False or 'offload', not None"),
        ({"save_block_internals": "hidden"}, "`save_block_internals` takes a sequence of names, not 'hidden'"),
        ({"offload_block_internals": [1]}, "`offload_block_internals` takes a sequence of names"),
        ({"nested": "yes"}, "`nested` is True, False or the number of steps in an inner loop, not 'yes'"),
        ({"nested": -1}, "`nested` is True, False or the number of steps"),
    ):
        with pytest.raises(TypeError, match=message):
            ScanCheckpointPolicy(**options)
    with pytest.raises(ValueError, match="saves everything; give the names of values to save"):
        ScanCheckpointPolicy(save_block_internals=True, offload_block_internals=["hidden"])
