import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.named._gufunc import apply_gufunc


def _solve(a, b):
    return jnp.linalg.solve(a, b[..., None])[..., 0]


@pytest.fixture
def system(draw):
    a, b = draw(i=3, batch=4, j=3), draw(embed=2, i=3, batch=4)
    eye = nym.named(5 * jnp.eye(3), ("i", "j"))
    return a + eye.broadcast_axis({"batch": 4}), b


def _solved(a, b):
    return apply_gufunc(_solve, (a, b), (("i", "j"), "i"), (("j",),))[0]


def test_core_axes_go_last_and_loop_axes_broadcast_by_name(system):
    a, b = system
    x = _solved(a, b)
    assert x.names == ("embed", "batch", "j")
    for e in range(2):
        for n in range(4):
            left = nym.dot(a["batch", n], x["embed", e, "batch", n], axis="j")
            np.testing.assert_allclose(left.array, b["embed", e, "batch", n].array, rtol=1e-4, atol=1e-5)


def test_core_functions_run_sharded_on_both_meshes(mapped, system):
    a, b = system
    expected = _solved(a, b).array
    a, b = nym.shard(a), nym.shard(b)
    x = nym.named_jit(_solved)(a, b)
    np.testing.assert_allclose(x.array, expected, rtol=1e-5)
    assert tuple(x.sharding.spec)[:2] == ("model", "data")
    np.testing.assert_allclose(_solved(a, b).array, expected, rtol=1e-5)
    gradient = jax.grad(lambda b: _solved(a, b).sum().scalar())(b)
    assert gradient.names == b.names


def test_core_functions_keep_shardings_that_no_mapping_gives(explicit_mesh, system):
    a, b = system
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping(batch="data"):
            a, b = nym.shard((a, b))
        assert _solved(a, b).sharding.spec[1] == "data"


def test_results_of_several_axes(draw):
    values, vectors = apply_gufunc(jnp.linalg.eigh, [draw(i=2, batch=3, j=2)], [("i", "j")], [("k",), ("i", "k")])
    assert values.names == ("batch", "k")
    assert vectors.names == ("batch", "i", "k")


def test_options_are_passed_on(draw):
    (x,) = apply_gufunc(jnp.triu, [draw(i=2, j=2, batch=3)], [("i", "j")], [("i", "j")], k=1)
    assert x.names == ("batch", "i", "j")
    assert not x["i", 0, "j", 0].array.any()


def test_a_core_axis_must_be_there(draw):
    with pytest.raises(ValueError, match=r"no axis 'j' in \(i: 2\)"):
        apply_gufunc(jnp.triu, [draw(i=2)], [("i", "j")], [("i", "j")])
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by a list of length 1"):
        nym.median(draw(i=2), [["i"]])  # pyright: ignore[reportArgumentType]


def test_a_name_of_a_result_must_not_be_a_loop_axis(draw):
    with pytest.raises(ValueError, match=r"axis 'batch' occurs more than once in \(batch, batch\)"):
        apply_gufunc(jnp.linalg.eigvalsh, [draw(i=2, j=2, batch=3)], [("i", "j")], [("batch",)])


def test_a_core_axis_of_one_array_must_not_be_a_loop_axis_of_another(draw):
    with pytest.raises(
        ValueError, match=r"axis 'i' of \(i: 3, j: 3\) is a core axis here and a loop axis of another array"
    ):
        apply_gufunc(_solve, (draw(i=3, j=3), draw(k=3, i=3)), (("i", "j"), "k"), (("j",),))


def test_core_functions_run_under_vmap_over_a_sharded_axis(mapped, system):
    a, b = (nym.shard(x) for x in system)
    mapped_over = nym.vmap(_solved, "batch")(a, b)
    np.testing.assert_allclose(mapped_over.rearrange(("embed", ...)).array, _solved(a, b).array, rtol=1e-5)
