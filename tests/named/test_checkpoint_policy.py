"""What loops keep for the backward pass, by `ScanCheckpointPolicy` and the other values of `remat=`."""

import re

import jax
import numpy as np
import pytest

import axonym as nym
from axonym import ScanCheckpointPolicy
from tests.refusals import refusal


w = nym.named(np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32), ("layers", "embed"))
x = nym.named(np.ones(5, np.float32), "embed")


def step(carry, row):
    hidden = nym.tree_checkpoint_name(nym.sin(carry * row), "hidden")
    return carry + nym.tanh(nym.exp(nym.cos(hidden))), (hidden * 2).sum()


def compute_loss(remat, x, w, reverse=False):
    carry, results = nym.scan(step, "layers", remat=remat, reverse=reverse)(x, w)
    return (carry.sum() + (results * results).sum()).scalar()


def kept(remat):
    """Shapes, with a mark for those on the host, of what is kept for the backward pass, scalars of steps aside."""

    def trace(x, w):
        _, backward = jax.vjp(lambda x, w: compute_loss(remat, x, w), x, w)
        return [leaf for leaf in jax.tree.leaves(backward) if hasattr(leaf, "ndim")]

    arrays = jax.make_jaxpr(trace)(x, w).outvars
    arrays = [each.aval for each in arrays if each.aval.ndim and each.aval.shape != (10,)]
    return sorted([(*each.shape, *_HOST.get(str(each.memory_space), ())) for each in arrays], key=str)


_HOST = {"MemorySpace.Host": ("host",)}
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
    "blocks of 4": (ScanCheckpointPolicy(nested=4), [(2, 4, 5), (2, 5), (2, 5), (5,)]),  # and one of 2
    "offloaded blocks": (ScanCheckpointPolicy(nested=True, save_carries="offload"), [(2, 5, "host"), (2, 5, 5)]),
    "blocks of 5": (ScanCheckpointPolicy(nested=5), [(2, 5), (2, 5, 5)]),
    "one block": (ScanCheckpointPolicy(nested=99), [(1, 5), (1, 10, 5)]),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_keeps_what_it_says_and_names_nothing_else(policy):
    remat, shapes = POLICIES[policy]
    if shapes is ALL:  # whatever JAX needs, which depends on its version
        assert kept(remat).count(ONE) > 3
    else:
        assert kept(remat) == sorted(shapes, key=str)
    fold = nym.fold(lambda carry, row: carry * row, "layers", remat=remat)
    named = "= name[" in str(jax.make_jaxpr(fold)(x, w))
    assert named == (policy in ("inputs", "offloaded carries", "offloaded inputs", "offloaded blocks"))


def test_policies_change_no_gradient():
    runs = [("none", reverse) for reverse in (False, True)]
    runs += [("blocks of 4", True), ("blocks of 4", False), ("offloaded blocks", True), ("an offloaded name", False)]
    runs += [("nothing", True)]

    @jax.jit
    def differentiate(x, w):
        gradient = jax.grad(compute_loss, (1, 2))
        return [gradient(POLICIES[policy][0], x, w, reverse) for policy, reverse in runs]

    expected, reverse_expected, *results = differentiate(x, w)
    for (policy, reverse), result in zip(runs[2:], results, strict=True):
        for gradient, other in zip(result, reverse_expected if reverse else expected, strict=True):
            assert gradient.names == other.names
            np.testing.assert_allclose(gradient.array, other.array, rtol=1e-5, atol=1e-5, err_msg=policy)


def test_nested_loops_give_the_results_in_order():
    runs = [(0, False), (1, False), (2, True), (7, True), (7, False)]

    @jax.jit
    def run():
        scans = [nym.scan(lambda c, r: (c + r, (c, "text")), "k", remat="nested", reverse=each) for _, each in runs]
        rows = [nym.arange(nym.Axis("k", steps)) for steps, _ in runs]
        results = [scan(nym.named(0, ()), row) for scan, row in zip(scans, rows, strict=True)]
        assert all(text == "text" for _, (_, text) in results)
        return [(carry, carries) for carry, (carries, _) in results]

    for (steps, reverse), (carry, carries) in zip(runs, run(), strict=True):
        rows = np.arange(steps)[::-1] if reverse else np.arange(steps)
        before = np.cumsum(rows) - rows
        assert carry.item() == rows.sum() and carries.names == ("k",)
        assert np.array_equal(carries.array, before[::-1] if reverse else before)


def test_blocks_have_equal_size_where_that_saves_few_carries():
    def count_blocks(steps):
        rows = nym.zeros({"layers": steps, "embed": 2})
        fold = nym.fold(lambda carry, row: carry * row, "layers", remat="nested")
        program = str(jax.make_jaxpr(fold)(nym.zeros({"embed": 2}), rows))
        return [int(length) for length in re.findall(r"length=(\d+)", program)]

    blocks = {steps: sorted(count_blocks(steps)) for steps in (12, 24, 32, 80, 34)}
    assert blocks == {12: [3, 4], 24: [4, 6], 32: [4, 8], 80: [8, 10], 34: [4, 5, 6]}  # 34 = 5 * 6 + 4


def test_on_a_mesh(mapped, draw):
    rows, start = draw(layers=6, batch=8, embed=4), draw(batch=8, embed=4)

    def differentiate(start, rows, remat):
        fold = nym.fold(lambda carry, row: step(carry, row)[0], "layers", remat=remat)
        return nym.grad(lambda rows: fold(start, rows).sum())(rows)

    expected = jax.jit(differentiate, static_argnums=2)(start, rows, False)
    gradient = jax.jit(differentiate, static_argnums=2)(*nym.shard((start, rows)), "nested")
    np.testing.assert_allclose(gradient.array, expected.array, rtol=1e-4, atol=1e-5)


def test_lists_and_tuples_of_names_are_the_same():
    policy = ScanCheckpointPolicy(save_block_internals=["a"], offload_block_internals=["b"])
    assert policy == ScanCheckpointPolicy(save_block_internals=("a",), offload_block_internals=("b",))
    assert ScanCheckpointPolicy(nested=1) == ScanCheckpointPolicy() != ScanCheckpointPolicy(nested=True)
    assert hash(policy) == hash(ScanCheckpointPolicy(save_block_internals=("a",), offload_block_internals=("b",)))


def test_names_are_given_to_arrays_alone():
    tree = {"x": x, "rate": 0.1, "text": "t", "none": None}
    named = nym.tree_checkpoint_name(tree, "hidden")
    assert named["x"].names == ("embed",) and (named["rate"], named["text"], named["none"]) == (0.1, "t", None)
    assert "name=hidden" in str(jax.make_jaxpr(lambda x: nym.tree_checkpoint_name(x, "hidden"))(x))


def test_errors():
    with pytest.raises(ValueError, match=r"what a loop recomputes is one of 'full', 'nested', .* or a policy, .*nestd"):
        nym.scan(step, "layers", remat="nestd")
    with refusal("`remat` is a boolean, a string or a policy, not 3", TypeError):
        nym.scan(step, "layers", remat=3)  # pyright: ignore[reportArgumentType]
    for options, message in (
        ({"save_carries": "host"}, "`save_carries` is True, False or 'offload', not 'host'"),
        ({"save_inputs": None}, "`save_inputs` is True, False or 'offload', not None"),
        ({"save_block_internals": "hidden"}, "`save_block_internals` takes a sequence of names, not 'hidden'"),
        ({"offload_block_internals": [1]}, "`offload_block_internals` takes a sequence of names"),
        ({"nested": "yes"}, "`nested` is True, False or the number of steps in an inner loop, not 'yes'"),
        ({"nested": -1}, "`nested` is True, False or the number of steps"),
    ):
        with refusal(message, TypeError):
            ScanCheckpointPolicy(**options)
    with refusal("saves everything; give the names of values to save"):
        ScanCheckpointPolicy(save_block_internals=True, offload_block_internals=["hidden"])
