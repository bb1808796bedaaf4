"""The differentiable operations, each as cases; `GROUPS` has them by what they have in common."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import axonym as nym
from axonym import nn, poly

from .cases import Case, axis


KEY = jax.random.key
POSITIONS = [3, 0, 3, 1]


def list_functions(module: str) -> dict[str, Callable[..., Any]]:
    """Returns the public functions that a module of the package defines, by their paths below `axonym`."""
    spaces = {"": nym, "nn.": nn}
    every = {prefix + name: getattr(space, name) for prefix, space in spaces.items() for name in dir(space)}
    return {path: fn for path, fn in every.items() if getattr(fn, "__module__", None) == f"axonym.{module}"}


def count_operands(fn: Callable[..., Any]) -> int:
    kinds = inspect.signature(fn).parameters.values()
    return sum(parameter.default is parameter.empty for parameter in kinds)


NOT_DIFFERENTIABLE = {*"fmod gcd lcm frexp ldexp nextafter spacing heaviside iscomplex isreal ndim".split()}
CONDITIONAL = {"where", "select"}  # which take conditions, and have a case of their own
ELEMENTWISE = ["arithmetic", "functions"]
FUNCTIONS: dict[str, Callable[..., Any]] = list_functions("nn._activations")
for module in ELEMENTWISE:
    FUNCTIONS |= list_functions(f"named._elementwise._{module}")
FUNCTIONS = {path: fn for path, fn in FUNCTIONS.items() if path not in NOT_DIFFERENTIABLE | CONDITIONAL}
UNARY = {path: fn for path, fn in FUNCTIONS.items() if count_operands(fn) == 1}
BINARY = {path: fn for path, fn in FUNCTIONS.items() if count_operands(fn) == 2}
FEW_UNARY, FEW_BINARY = [*UNARY][::6], [*BINARY][::4]


def apply_unary(paths: list[str]) -> Callable[..., Any]:
    def apply(x: Any) -> Any:
        inside = 0.5 + 0.4 * x  # where all of them are defined
        return [UNARY[path](inside + 1 if path in ("acosh", "arccosh") else inside) for path in paths]

    return apply


def apply_binary(paths: list[str]) -> Callable[..., Any]:
    return lambda x, y: [BINARY[path](2 + x, 3 + y) for path in paths]


def hide(x: Any) -> Any:
    """Returns an array with NaNs."""
    return nym.where(x > 0.7, jnp.nan, x)


def make_regular(x: Any, row: str = "row", col: str = "col") -> Any:
    """Returns a matrix that is far from singular, and has real eigenvalues that are far from each other."""
    return 0.3 * x + nym.diag(nym.arange(axis(row)) * 2.0 + 3.0, row, col)


def make_symmetric(x: Any) -> Any:
    return make_regular(x + nym.rename(x, {"row": "col", "col": "row"}).rearrange(x.names))


def cases_along(names: str, fn: Callable[..., Any], *, both: bool = False, is_thorough: bool = False) -> list[Case]:
    """Returns a case of a function along the second of two axes, and one along both."""
    found = [Case(names, lambda x: fn(x, "b"), ("a b",), is_thorough=is_thorough)]
    return [*found, Case(names, lambda x: fn(x, ("a", "b")), ("a b",), "over both")] if both else found


REDUCTIONS = [
    *cases_along("sum", nym.sum),
    *cases_along("mean", nym.mean, is_thorough=True),
    *cases_along("prod product", nym.prod, both=True),
    *cases_along("max amax", nym.max),
    *cases_along("min amin", nym.min, is_thorough=True),
    *cases_along("ptp", nym.ptp, is_thorough=True),
    *cases_along("var", nym.var),
    *cases_along("std", nym.std, is_thorough=True),
    *cases_along("logsumexp nn.logsumexp", nym.logsumexp, both=True),
    *cases_along("nn.logmeanexp", nn.logmeanexp, is_thorough=True),
    *cases_along("softmax nn.softmax", nym.softmax, is_thorough=True),
    *cases_along("log_softmax nn.log_softmax", nym.log_softmax),
    *cases_along("median", nym.median, is_thorough=True),
    *cases_along("quantile percentile", lambda x, axes: nym.quantile(x, 0.3, axes)),
    Case("average", lambda x, w: nym.average(x, "b", weights=2 + w), ("a b", "b")),
    Case("sum", lambda x, y: nym.sum(x, "b", where=y > 0), ("a b", "b"), "of some"),
    *(
        Case(f"nan{name}", lambda x, name=name: getattr(nym, f"nan{name}")(hide(x), "b"), ("a b",), is_thorough=True)
        for name in "sum mean prod max min var std median".split()
    ),
    Case("nanquantile nanpercentile", lambda x: nym.nanquantile(hide(x), 0.3, "b"), ("a b",), is_thorough=True),
    Case("cov corrcoef", lambda x: [fn(x, "a", "b", other="c") for fn in (nym.cov, nym.corrcoef)], ("a b",)),
]
CUMULATIVE = [
    *cases_along("cumprod", nym.cumprod),
    *cases_along("cumsum nancumsum", lambda x, axis: [nym.cumsum(x, axis), nym.nancumsum(hide(x), axis)]),
    *cases_along("nancumprod", lambda x, axis: nym.nancumprod(hide(x), axis), is_thorough=True),
    *cases_along("cumulative_sum", lambda x, axis: nym.cumulative_sum(x, axis, include_initial=True), is_thorough=True),
    *cases_along("cumulative_prod", lambda x, axis: nym.cumulative_prod(x, axis, include_initial=True)),
    *cases_along("diff", lambda x, axis: nym.diff(x, axis, n=2)),
]
SORTING = [
    *cases_along("sort", nym.sort),
    *cases_along("sort", lambda x, axis: nym.sort(x, axis, descending=True), is_thorough=True),
    *cases_along("top_k", lambda x, axis: nym.top_k(x, axis, 3)[0]),
    *cases_along("argsort take_along_axis", lambda x, axis: nym.take_along_axis(x, nym.argsort(x, axis), axis)),
    Case("interp", nym.interp, ("a", "b", "b"), is_thorough=True),
    Case("interp", lambda x, y: nym.interp(3 + x, nym.arange(axis("b")), y), ("a", "b"), "at increasing points"),
    Case("searchsorted where", lambda x, y: x * nym.searchsorted(nym.sort(y, "b"), x), ("a", "b")),
    Case("unique", lambda x: nym.unique(x, axis("b"), axis="b"), ("a b",)),
    Case("unique_values", lambda x: nym.unique_values(x, axis("b")), ("b",), is_thorough=True),
    Case(
        "histogram bincount", lambda x, w: nym.bincount(nym.round(2 + x).astype(int), axis("k"), weights=w), ("b", "b")
    ),
    Case("histogram", lambda x, w: nym.histogram(x, axis("k"), weights=w), ("b", "b"), "of weights", True),
]
PRODUCTS = [
    Case("dot", lambda x, w: nym.dot(x, w, axis="b"), ("a b", "b c")),
    Case("dot", lambda x, w: nym.dot(x, w, axis=("a", "b")), ("a b", "c b a"), "over both"),
    Case("dot", lambda x, y, z: nym.dot(x, y, z, axis="b"), ("a b", "b c", "b"), "of three"),
    Case("einsum", lambda x, y: nym.einsum("{a b}, {b a c} -> c a", x, y), ("a b", "b a c")),
    Case("outer", lambda x, y: nym.outer(x, y), ("a", "b")),
    Case("kron", nym.kron, ("a b", "a b")),
    Case("cross", lambda x, y: nym.cross(x["b", 0:3], y["b", 0:3], "b"), ("a b", "a b")),
]
REARRANGING = [
    Case("rearrange rename", lambda x: nym.rearrange(nym.rename(x, {"a": "d"}), ("c", "d", "b")), ("a b c",)),
    Case("rearrange", lambda x: nym.rearrange(x, "{a b} -> (ab: a b)"), ("a b",), "and merge"),
    Case("flatten ravel", lambda x: nym.flatten(x, "d"), ("a b",)),
    Case("flatten_axes", lambda x: nym.flatten_axes(x, ("b", "a"), "d"), ("a b c",), is_thorough=True),
    Case("flatten_all_axes_but", lambda x: nym.flatten_all_axes_but(x, "d", "b")[0], ("a b c",)),
    Case("unflatten_axis", lambda x: nym.unflatten_axis(x, "b", {"d": 2, "e": 4}), ("a b",)),
    Case("broadcast_axis broadcast_to", lambda x: nym.broadcast_axis(x, axis("c")), ("a b",)),
    Case("broadcast_arrays broadcast_arrays_and_return_axes", lambda x, y: nym.broadcast_arrays(x, y), ("a b", "b")),
    Case("expand squeeze", lambda x: nym.squeeze(nym.expand(x, "d"), "d"), ("a b",)),
    Case("concatenate", lambda x, y: nym.concatenate("b", [x, y, x]), ("a b", "a b")),
    Case("stack", lambda x, y: nym.stack("c", [x, y]), ("a b", "a b")),
    Case("split unbind", lambda x: [*nym.split(x, "b", nym.make_axes(d=2, e=6)), *nym.unbind(x, "a")], ("a b",)),
    Case(
        "pad",
        lambda x: [nym.pad(x, {"b": (1, 3)}, mode=mode) for mode in ("constant", "wrap", "edge", "reflect")],
        ("a b",),
    ),
    Case("pad_left", lambda x: nym.pad_left(x, "b", nym.Axis("b", 12)), ("a b",)),
    Case("repeat", lambda x: [nym.repeat(x, 2, "b"), nym.repeat(x, [1, 0, 2, 3], "a")], ("a b",)),
    Case("tile", lambda x: nym.tile(x, {"b": 2, "a": 3}), ("a b",)),
    Case("roll flip", lambda x: [nym.roll(x, 3, "b"), nym.roll(nym.flip(x, "b"), (1, 2), ("a", "b"))], ("a b",)),
    Case(
        "tril triu trace", lambda x: [nym.tril(x, "a", "b"), nym.triu(x, "a", "b"), nym.trace(x, "a", "b")], ("a b c",)
    ),
    Case("diagonal diag", lambda x: nym.diag(nym.diagonal(x, "a", "b", new_axis="a"), "a", "b"), ("a b c",)),
    Case(
        "where select", lambda x, y: [nym.where(x > 0, x, y), nym.select([x > 0.5, x < 0], [x, y], 1.0)], ("a b", "b")
    ),
]


def update(way: str, index: Any) -> Callable[..., Any]:
    options = {"unique_indices": True} if way == "multiply" else {}  # JAX's gradient needs it
    return lambda x, y: getattr(x.at["b", index], way)(y, **options)


def index_twice(x: Any) -> Any:
    return x["a", nym.named([3, 0], "d"), "b", nym.named([[1], [1], [5]], ("e", "f"))]


def sum_segments(x: Any, y: Any) -> Any:
    return nym.zeros_like(x).at["a", nym.named([1, 0, 1, 1, 3, 0, 0, 2], "b")].add(y)


def look_up_traced(x: Any) -> Any:
    place = nym.argmax(x["a", 0], "b").array
    return [x["b", place], x["b", nym.ds(place, 3)], nym.slice(x, "b", start=place, length=2)]


def change_reference(x: Any, y: Any) -> Any:
    ref = nym.new_ref(x)
    ref["b", 3] = y
    old = nym.swap(ref, ("b", 1), 2 * y)
    return [old, nym.get(ref, ("b", 3)), nym.freeze(ref)]


INDEXING = [
    Case("index take", lambda x: [x["b", 3], x["b", 1:7:2], x["b", POSITIONS], nym.take(x, "b", 2)], ("a b",)),
    Case("take", lambda x: x["b", nym.named(POSITIONS, "d")], ("a b",), "by an array"),
    Case("index", lambda x: x["b", nym.named([3, 0, 3, 1], "a")], ("a b",), "by an array along another axis"),
    Case("index", index_twice, ("a b c",), "twice"),
    Case("dslice ds dblock slice", look_up_traced, ("a b",)),
    Case("updated_slice", lambda x, y: nym.updated_slice(x, {"b": 2}, y["b", 0:3]), ("a b", "a b")),
    *(
        # A way and an index each often, and both together each night.
        Case("NamedArray", update(way, index), ("a b", "a"), f"{way} {index}", is_thorough=row != column)
        for row, way in enumerate(("set", "add", "multiply"))
        for column, index in enumerate((3, slice(1, 7), [4, 0, 1]))
    ),
    Case("NamedArray", update("add", nym.ds(1, 3)), ("a b", "a"), "add a window"),
    Case("NamedArray", update("max", [4, 0, 1]), ("a b", "a"), "max"),
    Case("NamedArray", sum_segments, ("a c", "b c"), "segment sum"),
    Case("new_ref get swap freeze NamedRef", change_reference, ("a b", "a")),
]
TRANSFORMS = [
    Case("scan", lambda x: nym.scan(lambda c, r: (c * 0.5 + nym.sin(r), c), "b")(nym.zeros(axis("a")), x), ("a b",)),
    Case("fold", lambda x, w: nym.fold(lambda c, r: c * 0.5 + r * w, "b")(nym.zeros(axis("a")), x), ("a b", "a")),
    Case("map", lambda x, w: nym.map(lambda row: nym.dot(row, w, axis="a"), "b")(x), ("a b", "a c")),
    Case("vmap", lambda x, w: nym.vmap(lambda row: nym.dot(row, w, axis="a"), "b")(x), ("a b", "a c")),
    Case("lift", lambda x: nym.lift(lambda row: jnp.sin(row) - jnp.mean(row), "b")(x), ("a b",)),
    Case("grad value_and_grad", lambda x: nym.grad(lambda x: (nym.sin(x) ** 2).sum())(x), ("a b",)),
    Case(
        "named_call tree_checkpoint_name",
        nym.named_call(lambda x: nym.sin(x) * nym.tree_checkpoint_name(x, "x")),
        ("a b",),
    ),
    Case(
        "shard_map", lambda x: nym.shard_map(lambda x: nym.sin(x))(x) if nym.current_mapping() else nym.sin(x), ("a b",)
    ),
    Case(
        "microbatch",
        lambda w, x: nym.microbatch(lambda w, x: nym.dot(w, x, axis="a").mean(), "b", 2)(w, x),
        ("a", "a b"),
    ),
]
FFT = [
    *(
        cases_along(f"fft.{name}", getattr(nym.fft, name))[0]
        for name in "fft ifft rfft irfft hfft ihfft fftshift ifftshift".split()
    ),
    Case("fft.fft", lambda x: nym.fft.fft(x, ("a", "b")), ("a b",), "over both"),
]


def of_matrix(names: str, *args: Any, make: Callable[..., Any] = make_regular, is_thorough: bool = False) -> Case:
    """Returns a case of functions of one matrix, of which the compiler shares what they have in common."""
    functions = [getattr(nym.linalg, name) for name in names.split()]
    paths = " ".join(f"linalg.{name}" for name in names.split())
    compute = lambda x: [fn(make(x), "row", "col", *args) for fn in functions]  # noqa: E731
    return Case(paths, compute, ("c row col",), is_thorough=is_thorough)


LINALG = [
    of_matrix("cholesky eigh eigvalsh", make=make_symmetric),
    of_matrix("qr"),
    of_matrix("det slogdet inv", is_thorough=True),
    of_matrix("svd svdvals cond pinv", is_thorough=True),
    of_matrix("eigvals", is_thorough=True),
    of_matrix("matrix_power", 3, is_thorough=True),
    Case("linalg.norm", lambda x: [nym.linalg.norm(x, "col"), nym.linalg.norm(x, ("row", "col"))], ("c row col",)),
    Case("linalg.solve", lambda a, b: nym.linalg.solve(make_regular(a), b, "row", "col"), ("c row col", "row k")),
]
POLY = [
    Case("poly.polyadd poly.polysub", lambda p, q: [poly.polyadd(p, q, "b"), poly.polysub(p, q, "b")], ("a b", "a b")),
    Case("poly.polymul", lambda p, q: poly.polymul(p, q, "b"), ("a b", "b")),
    Case("poly.polydiv", lambda p, q: poly.polydiv(p, 2 + q["b", 0:3], "b"), ("a b", "a b"), is_thorough=True),
    Case("poly.polyder poly.polyint", lambda p: [poly.polyder(p, axis="b"), poly.polyint(p, axis="b")], ("a b",)),
    Case("poly.polyval", lambda p, x: poly.polyval(p, x, "b"), ("a b", "a c")),
    Case("poly.vander", lambda x: poly.vander(x, axis("k")), ("a b",)),
    Case("poly.poly", lambda x: poly.poly(x, "b"), ("a b",), is_thorough=True),
]
RANDOM = [
    Case(
        "random.uniform", lambda x: nym.random.uniform(KEY(0), (axis("a"), axis("b")), minval=x, maxval=2 + x), ("a",)
    ),
    Case(
        "random.permutation random.choice",
        lambda x: [nym.random.permutation(KEY(0), x, "b"), nym.random.choice(KEY(0), axis("c"), x, "b")],
        ("a b",),
    ),
]
ALL_ELEMENTWISE = [
    # All of them are lifted alike, so that a few are enough but each night.
    Case(" ".join(FEW_UNARY), apply_unary(FEW_UNARY), ("a b",), "few"),
    Case(" ".join(FEW_BINARY), apply_binary(FEW_BINARY), ("a b", "b"), "few"),
    Case(" ".join(UNARY), apply_unary([*UNARY]), ("a b",), is_thorough=True),
    Case(" ".join(BINARY), apply_binary([*BINARY]), ("a b", "b"), is_thorough=True),
    Case("clip", lambda x, low: nym.clip(x, low, 0.5), ("a b", "b")),
    Case("real imag angle conj", lambda x, y: [nym.angle(x + 1j * y), nym.conj(x * 1j + y)], ("a b", "b")),
]
GROUPS = {
    "elementwise": ALL_ELEMENTWISE,
    "reductions": REDUCTIONS,
    "cumulative": CUMULATIVE,
    "sorting": SORTING,
    "products": PRODUCTS,
    "rearranging": REARRANGING,
    "indexing": INDEXING,
    "transforms": TRANSFORMS,
    "fft": FFT,
    "linalg": LINALG,
    "poly": POLY,
    "random": RANDOM,
}
