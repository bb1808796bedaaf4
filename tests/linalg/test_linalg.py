"""Linear algebra: values of NumPy and gradients of JAX, names, sharded and not, and what does not fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, linalg

from ..refusals import refusal


def in_front(x):
    """The plain array with axes (batch, i, j), or with other axes behind (batch, i)."""
    return np.asarray(x.rearrange(("batch", "i", ...)).array)


def close(x, expected, tolerance=1e-3):
    np.testing.assert_allclose(getattr(x, "array", x), expected, rtol=tolerance, atol=tolerance / 10)


def multiply(x, y, axis):
    """The product of two matrices, with the batch in front."""
    return nym.dot(x, y, axis=axis).rearrange(("batch", ...))


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_is_a_triangle_whose_square_is_the_matrix(matrices, upper):
    x = matrices(3, symmetric=True)
    y = linalg.cholesky(x, "i", "j", upper=upper)
    assert y.names == ("batch", "i", "j")
    close(y, np.linalg.cholesky(in_front(x), upper=upper))
    plain = np.asarray(y.array)
    close(plain.mT @ plain if upper else plain @ plain.mT, in_front(x))


def test_one_triangle_is_read_if_told(matrices):
    x = matrices(3)
    lower = np.tril(in_front(x))
    symmetric = lower + np.tril(lower, -1).mT
    close(linalg.cholesky(x, "i", "j", symmetrize_input=False), np.linalg.cholesky(symmetric))
    for values in (linalg.eigvalsh, lambda *args, **options: linalg.eigh(*args, **options)[0]):
        close(values(x, "i", "j", symmetrize_input=False), np.linalg.eigvalsh(symmetric))


@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr_multiplies_to_the_matrix(draw, mode):
    x = draw(i=4, batch=2, j=3)
    q, r = linalg.qr(x, "i", "j", Axis("new", 3 if mode == "reduced" else 4), mode=mode)
    expected = np.linalg.qr(in_front(x), mode=mode)
    assert q.names == ("batch", "i", "new") and r.names == ("batch", "new", "j")
    close(abs(q.array), abs(expected[0]))
    close(multiply(q, r, "new"), in_front(x))


def test_svd_multiplies_to_the_matrix(draw, matrices):
    x = draw(j=3, batch=2, i=4)
    u, s, vh = linalg.svd(x, "i", "j")
    assert (u.names, s.names, vh.names) == (("batch", "i", "k"), ("batch", "k"), ("batch", "k", "j"))
    close(s, np.linalg.svd(in_front(x), compute_uv=False))
    close(multiply(u * s, vh, "k"), in_front(x))
    close(linalg.svdvals(x, "i", "j", "values"), s.array)
    x = matrices(3, symmetric=True)
    u, s, vh = linalg.svd(x, "i", "j", hermitian=True)
    close(multiply(u * s, vh, "k"), in_front(x))


@pytest.mark.parametrize("name", ["eigh", "eig"])
def test_matrices_stretch_their_eigenvectors(matrices, name):
    x = matrices(3, symmetric=name == "eigh")
    values, vectors = getattr(linalg, name)(x, "i", "j", "value")
    assert values.names == ("batch", "value") and vectors.names == ("batch", "i", "value")
    product = nym.dot(x.astype(vectors.dtype), vectors.rename({"i": "j"}), axis="j").rearrange(vectors.names)
    close(product, (vectors * values).array)
    alone = {"eigh": linalg.eigvalsh, "eig": linalg.eigvals}[name](x, "i", "j")
    assert alone.names == ("batch", "k")
    close(alone, values.array)


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, 0.5, jnp.inf, -jnp.inf], ids=str)
def test_the_norms_of_vectors(draw, ord):
    x = draw(i=4, batch=2, j=3)
    for axis in ("batch", Axis("batch", 2)):
        found = linalg.norm(x, axis, ord=ord)
        assert found.names == ("i", "j")
        close(found, np.linalg.norm(x.array, ord=ord, axis=1))


@pytest.mark.parametrize("ord", [None, 1, -1, 2, -2, jnp.inf, -jnp.inf, "fro", "nuc"], ids=str)
def test_the_norms_of_matrices(draw, ord):
    x = draw(i=4, batch=2, j=3)
    for rows, cols in (("i", "j"), ("j", "i")):
        found = linalg.norm(x, (rows, cols), ord=ord)
        assert found.names == ("batch",)
        close(found, np.linalg.norm(x.array, ord=ord, axis=(x.names.index(rows), x.names.index(cols))))


def test_the_norm_over_any_number_of_axes(draw):
    x = draw(i=4, batch=2, j=3)
    plain = np.asarray(x.array)
    for found in (linalg.norm(x), linalg.norm(x, ("j", "batch", "i"))):
        assert found.names == ()
        close(found, np.linalg.norm(plain))
    close(linalg.norm(x, ()), abs(plain))
    close(linalg.norm(x["i", 0], ord="fro"), np.linalg.norm(plain[0]))
    close(linalg.norm(x["i", 0, "j", 0], ord=1), abs(plain[0, :, 0]).sum())


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int64, bool, jnp.bfloat16, jnp.float16, jnp.complex64])
def test_norms_have_the_type_that_jax_gives_them(dtype):
    plain = np.array([[100, -100], [1, 0]]).astype(dtype)
    found, expected = linalg.norm(nym.named(plain, ("i", "j")), "j"), jnp.linalg.norm(plain, axis=1)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.array.astype(float), expected.astype(float), rtol=1e-2)
    with jax.enable_x64(True):
        for ord in (None, 1, 2):
            x = jax.ShapeDtypeStruct((2, 3), dtype)
            own = functools.partial(linalg.norm, axis="j", ord=ord)
            expected = jax.eval_shape(functools.partial(jnp.linalg.norm, ord=ord, axis=1), x).dtype
            assert jax.eval_shape(own, nym.NamedArray(x, ("i", "j"))).dtype == expected, ord


def test_determinants(matrices):
    x = matrices(3)
    sign, log = linalg.slogdet(x, "i", "j")
    expected = np.linalg.det(in_front(x))
    assert linalg.det(x, "i", "j").names == sign.names == log.names == ("batch",)
    for found in (linalg.det(x, "i", "j").array, sign.array * np.exp(log.array), linalg.det(x, "j", "i").array):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_ranks():
    x = nym.named([[[1.0, 2.0, 0.0], [2.0, 4.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 1e-3, 0.0]]], ("batch", "i", "j"))
    assert linalg.matrix_rank(x, "i", "j").array.tolist() == [1, 2]
    assert linalg.matrix_rank(x, "j", "i", rtol=0.1).array.tolist() == [1, 1]
    assert linalg.matrix_rank(1000 * x, "i", "j", rtol=0.1).array.tolist() == [1, 1]
    assert linalg.matrix_rank(x["j", :2], "i", "j", hermitian=True).array.tolist() == [1, 2]


@pytest.mark.parametrize("p", [None, 2, 1, "fro"], ids=str)
def test_condition_numbers(matrices, p):
    x = matrices(3)
    found = linalg.cond(x, "i", "j", p=p)
    assert found.names == ("batch",)
    close(found, np.linalg.cond(in_front(x), p=p))


@pytest.mark.parametrize("n", [-2, 0, 1, 3])
def test_powers(matrices, n):
    x = matrices(3)
    found = linalg.matrix_power(x, "i", "j", n)
    assert found.names == ("batch", "i", "j")
    close(found, np.linalg.matrix_power(in_front(x), n))


def test_solve_solves_for_all_right_hand_sides_and_matrices(matrices, draw):
    a, b = matrices(), draw(p=2, i=4, batch=4, q=3)
    x = linalg.solve(a, b, "i", "j")
    assert x.names == ("batch", "j", "p", "q")
    close(x, np.linalg.solve(in_front(a), in_front(b).reshape(4, 4, 6)).reshape(4, 4, 2, 3))
    close(linalg.solve(a["batch", 1], b["batch", 1], "i", "j"), x["batch", 1].array)
    b = draw(i=4)
    x = linalg.solve(a, b, Axis("i", 4), Axis("j", 4))
    assert x.names == ("batch", "j")
    close(x, np.linalg.solve(in_front(a), np.tile(b.array, (4, 1))[..., None])[..., 0])


def test_each_matrix_is_factorised_once(matrices, draw):
    a, b = matrices()["batch", 0], draw(p=5, i=4)
    jaxpr = str(jax.make_jaxpr(lambda a, b: linalg.solve(a, b, "i", "j"))(a, b))
    assert jaxpr.count(" lu[") <= 1 and "f32[5,4,4]" not in jaxpr


@pytest.mark.parametrize("sides", [{}, {"p": 2, "q": 3}], ids=["one", "several"])
def test_lstsq_comes_closest(draw, sides):
    a, b = draw(i=5, batch=2, j=3), draw(i=5, **sides, batch=2)
    x, residuals, rank, values = linalg.lstsq(a, b, "i", "j", "value")
    assert (x.names, residuals.names) == (("batch", "j", *sides), ("batch", *sides))
    assert (rank.names, values.names) == (("batch",), ("batch", "value"))
    for n in range(2):
        expected = np.linalg.lstsq(in_front(a)[n], in_front(b)[n].reshape(5, -1))
        close(np.asarray(x.array)[n].reshape(3, -1), expected[0])
        close(np.asarray(residuals.array)[n].reshape(-1), expected[1])
        close(values.array[n], expected[3])
    assert rank.array.tolist() == [3, 3]


def test_inv_maps_back(matrices, draw):
    x, y = matrices(), draw(batch=4, i=4)
    inverse = linalg.inv(x, "i", "j")
    assert inverse.names == ("batch", "j", "i")
    close(inverse, np.linalg.inv(in_front(x)))
    close(nym.dot(inverse, y, axis="i"), linalg.solve(x, y, "i", "j").array)
    close(linalg.inv(inverse, "j", "i"), in_front(x))


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)], ids=["wide", "tall"])
def test_pinv_maps_back_as_far_as_it_can(draw, sizes):
    x = draw(i=sizes[0], batch=2, j=sizes[1])
    inverse = linalg.pinv(x, "i", "j")
    assert inverse.shape == {"batch": 2, "j": sizes[1], "i": sizes[0]}
    close(inverse, np.linalg.pinv(in_front(x)))


def test_pinv_takes_what_is_small_for_zero(matrices):
    x = nym.named([[4.0, 0.0], [0.0, 1.0]], ("i", "j"))
    close(linalg.pinv(x, "i", "j", rtol=0.5), [[0.25, 0.0], [0.0, 0.0]])
    symmetric = matrices(3, symmetric=True)
    close(linalg.pinv(symmetric, "i", "j", hermitian=True), np.linalg.inv(in_front(symmetric)))


OF_MATRICES = {
    "cholesky": linalg.cholesky,
    "qr": linalg.qr,
    "svd": linalg.svd,
    "eigh": linalg.eigh,
    "eig": linalg.eig,
    "inv": linalg.inv,
    "pinv": linalg.pinv,
    "slogdet": lambda x, *axes: linalg.slogdet(x, *axes)[1],
    "matrix_rank": linalg.matrix_rank,
    "matrix_power": lambda x, *axes: linalg.matrix_power(x, *axes, 3),
    "norm": lambda x, *axes: linalg.norm(x, axes),
    "norm of rows": lambda x, *axes: linalg.norm(x, axes, ord=jnp.inf),
    "norm of vectors": lambda x, *axes: linalg.norm(x, "i", ord=jnp.inf),
}


def test_sharded_arrays_give_the_same(mesh, matrices, draw):
    @jax.jit
    def compute(x, b):
        results = {name: fn(x, "i", "j") for name, fn in OF_MATRICES.items()}
        return results | {name: getattr(linalg, name)(x, b, "i", "j") for name in ("solve", "lstsq")}

    x, b = matrices(symmetric=True), draw(i=4, batch=4, p=2)
    with jax.set_mesh(None):
        expected = jax.device_get(compute(x, b))
    with nym.axis_mapping({"batch": "data", "i": "model"}):
        x, b = nym.shard((x, b))
        results = nym.named_jit(compute)(x, b)
        results |= {"solve eagerly": linalg.solve(x, b, "i", "j"), "svd eagerly": linalg.svd(x, "i", "j")}
    for name, found in results.items():
        for array, values in zip(jax.tree.leaves(found), jax.tree.leaves(expected[name.split(" eag")[0]]), strict=True):
            np.testing.assert_allclose(array, values, rtol=1e-3, atol=1e-3, err_msg=name)
            assert array.sharding.spec[0] == "data", name


SQUARE = ["cholesky", "eigh", "eigvalsh", "eig", "eigvals", "det", "slogdet", "inv"]


@pytest.mark.parametrize("name", [*SQUARE, "qr", "svd", "svdvals", "matrix_rank", "cond", "pinv"])
def test_matrices_have_two_axes_by_name(draw, name):
    function, x = getattr(linalg, name), draw(embed=2, b=1, pos=3)
    message = f"`{name}` needs square matrices; axes 'embed' and 'pos' of (embed: 2, b: 1, pos: 3) have sizes 2 and 3"
    with refusal(message) if name in SQUARE else refusal("axis 'pos' has size 3 here, 4 was asked for"):
        function(x, "embed", "pos" if name in SQUARE else Axis("pos", 4))
    with refusal("no axis 'embd' in (embed: 2, b: 1, pos: 3); did you mean 'embed'?"):
        function(x, "pos", "embd")
    with refusal("A named array is needed", TypeError):
        function(np.eye(2), "i", "j")


@pytest.mark.parametrize("name", ["qr", "svd", "svdvals", "eigh", "eigvalsh", "eig", "eigvals"])
def test_the_new_axis_is_new_and_has_its_size(draw, name):
    function, x = getattr(linalg, name), draw(i=2, k=1, j=2)
    with refusal("(i: 2, k: 1, j: 2) has an axis 'k' already; give the new axis another name with `new_axis`"):
        function(x, "i", "j")
    with refusal("axis 'new' has size 2 here, 3 was asked for"):
        function(x, "i", "j", Axis("new", 3))


A = nym.named(np.ones((4, 4, 4), np.float32), ("i", "batch", "j"))
X = nym.named(np.ones((2, 1, 3), np.float32), ("i", "b", "j"))
REFUSED = [
    (lambda: linalg.norm(A, ord=2), "a norm with `ord` needs one or two axes, not (i, batch, j)"),
    (lambda: linalg.norm(A, "bach"), "no axis 'bach' in (i: 4, batch: 4, j: 4); did you mean 'batch'?"),
    (lambda: linalg.qr(A, "i", "j", mode="raw"), "the `mode` of `qr` must be 'reduced' or 'complete', not 'raw'"),
    (lambda: linalg.svd(X, "i", "j", hermitian=True), "`svd` needs square matrices"),
    (lambda: linalg.pinv(X, "i", "j", hermitian=True), "`pinv` needs square matrices"),
    (lambda: linalg.matrix_power(X, "i", "j", 2), "`matrix_power` needs square matrices"),
    (lambda: linalg.matrix_rank(X, "i", "j", hermitian=True), "`matrix_rank` needs square matrices"),
    (lambda: linalg.cond(X, "i", "j", p=1), "`cond` needs square matrices"),
    (lambda: linalg.solve(X, nym.ones({"i": 2}), "i", "j"), "`solve` needs square matrices; axes 'i' and 'j' of (i: 2"),
    (lambda: linalg.solve(A, nym.ones({"batch": 4}), "i", "j"), "no axis 'i' in (batch: 4)"),
    (lambda: linalg.solve(A, nym.ones({"i": 4, "batch": 2}), "i", "j"), "axis 'batch' has size 4 and size 2 in (i: 4"),
    (lambda: linalg.solve(A, nym.ones({"i": 4, "j": 4}), "i", "j"), "has axis 'j', which the solution will have; `ren"),
    (lambda: linalg.solve(A, nym.ones({"i": 4}), "i", "i"), "axis 'i' is given more than once in (i, i)"),
    (lambda: linalg.lstsq(A, nym.ones({"batch": 4}), "i", "j"), "no axis 'i' in (batch: 4)"),
    (lambda: linalg.lstsq(A, nym.ones({"i": 4, "batch": 2}), "i", "j"), "axis 'batch' has size 4 and size 2 in"),
    (lambda: linalg.lstsq(A, nym.ones({"i": 4}), "i", "j", "batch"), "has an axis 'batch' already; give the new axis"),
]
NOT_NAMED = "A named array is needed, not an array of shape"
OF_ANOTHER_TYPE = [
    (lambda: linalg.norm(np.ones(2)), NOT_NAMED),
    (lambda: linalg.solve(A, np.ones(4), "i", "j"), NOT_NAMED),
    (lambda: linalg.matrix_power(A, "i", "j", 0.5), "matrix_power: `n` must be an integer, not 0.5"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_axes_that_do_not_fit_are_refused(call, message):
    with refusal(message):
        call()


@pytest.mark.parametrize(("call", "message"), OF_ANOTHER_TYPE)
def test_what_is_no_named_array_or_number_is_refused(call, message):
    with refusal(message, TypeError):
        call()
