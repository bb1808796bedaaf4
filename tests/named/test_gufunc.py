import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.named._gufunc import apply_gufunc
from tests.named.comparing import assert_close
from tests.refusals import refusal


def _solve(a, b):
    return jnp.linalg.solve(a, b[..., None])[..., 0]


RANDOM = np.random.default_rng(0)
LEFT = RANDOM.normal(size=(3, 4, 3)).astype(np.float32) + 5 * np.eye(3, dtype=np.float32)[:, None]
RIGHT = RANDOM.normal(size=(2, 3, 4)).astype(np.float32)
SOLUTION = np.linalg.solve(LEFT.transpose(1, 0, 2), RIGHT.transpose(0, 2, 1)[..., None])[..., 0]
GRADIENT = np.linalg.inv(LEFT.transpose(1, 0, 2)).sum(1).T  # of the sum of the solution, the same for each `embed`


@pytest.fixture
def system():
    return nym.named(LEFT, ("i", "batch", "j")), nym.named(RIGHT, ("embed", "i", "batch"))


def _solved(a, b):
    return apply_gufunc(_solve, (a, b), (("i", "j"), "i"), (("j",),))[0]


def test_core_axes_go_last_and_loop_axes_broadcast_by_name_on_both_meshes(mapped, system):
    def compute(a, b):
        gradient = nym.grad(lambda b: _solved(a, b).sum())(b)
        return _solved(a, b), gradient, nym.vmap(_solved, "batch")(a, b)

    x, gradient, each = nym.named_jit(compute)(*nym.shard(system))
    assert tuple(x.sharding.spec)[:2] == ("model", "data")
    for result in (x, _solved(*nym.shard(system)), each.rearrange(("embed", ...))):
        assert_close(result, ("embed", "batch", "j"), SOLUTION)
    assert_close(gradient, ("embed", "i", "batch"), np.stack([GRADIENT] * 2))


def test_core_functions_keep_shardings_that_no_mapping_gives(explicit_mesh, system):
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping(batch="data"):
            a, b = nym.shard(system)
        assert _solved(a, b).sharding.spec[1] == "data"


def test_results_of_several_axes_and_options():
    x = nym.ones({"i": 2, "batch": 3, "j": 2})
    values, vectors = jax.eval_shape(
        lambda x: apply_gufunc(jnp.linalg.eigh, [x], [("i", "j")], [("k",), ("i", "k")]), x
    )
    assert values.names == ("batch", "k") and vectors.names == ("batch", "i", "k")
    (upper,) = apply_gufunc(jnp.triu, [x], [("i", "j")], [("i", "j")], k=1)
    assert_close(upper, ("batch", "i", "j"), np.stack([[[0, 1], [0, 0]]] * 3))


def test_core_axes_that_do_not_fit_are_refused(draw):
    with refusal("no axis 'j' in (i: 2)"):
        apply_gufunc(jnp.triu, [draw(i=2)], [("i", "j")], [("i", "j")])
    with refusal("given by an `Axis` or by its name, not by a list of length 1", TypeError):
        nym.median(draw(i=2), [["i"]])  # pyright: ignore[reportArgumentType]
    with refusal("axis 'batch' occurs more than once in (batch, batch)"):
        apply_gufunc(jnp.linalg.eigvalsh, [draw(i=2, j=2, batch=3)], [("i", "j")], [("batch",)])
    with refusal("axis 'i' of (i: 3, j: 3) is a core axis here and a loop axis of another array"):
        apply_gufunc(_solve, (draw(i=3, j=3), draw(k=3, i=3)), (("i", "j"), "k"), (("j",),))
