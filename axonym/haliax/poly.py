"""`haliax.poly`: polynomials."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .. import poly as polynomials
from ..named._array import is_named_array
from ..named._axis import Axis, AxisSelector
from ..named._base import with_array
from ._adapt import adapt
from ._array import convert_result


def _adapt_product(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of two polynomials whose coefficients may be along axes of different names."""

    @functools.wraps(fn)
    def combine(p: Any, q: Any) -> Any:
        if is_named_array(p) and is_named_array(q):
            q = q.rename(dict(zip(q.names, p.names, strict=False)))
        return fn(p, q)

    return adapt(combine, "p1=p p2=q")


poly = adapt(polynomials.poly, "seq_of_zeros=zeros")
polyadd = _adapt_product(polynomials.polyadd)
polyder = adapt(polynomials.polyder)
polydiv = _adapt_product(polynomials.polydiv)
polyint = adapt(polynomials.polyint)
polymul = _adapt_product(polynomials.polymul)
polysub = _adapt_product(polynomials.polysub)
roots = adapt(polynomials.roots)
trim_zeros = adapt(polynomials.trim_zeros, "f=x")


def polyval(p: Any, x: Any) -> Any:
    """Evaluates a polynomial; a plain array gives a plain array.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.polyval(hax.named([1.0, 0.0], "degree"), 3.0)
        Array(3., dtype=float32)
    """
    values = jnp.polyval(getattr(p, "array", p), getattr(x, "array", x))
    return convert_result(with_array(x, values)) if is_named_array(x) else values


def polyfit(x: Any, y: Any, deg: int, rcond: Any = None, full: bool = False, w: Any = None, cov: bool = False) -> Any:
    """Fits a polynomial; with `full`, everything but the coefficients is plain. See `jax.numpy.polyfit`.

    The second axis of a covariance has the name of the first, followed by `_cov`.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.named([0.0, 1.0, 2.0], "i")
        >>> hax.polyfit(x, 2 * x + 1, 1).array.round(3)
        Array([2., 1.], dtype=float32)
    """
    cov_name = f"{x.names[0]}_cov" if cov and not full and x.names else None
    fit = polynomials.polyfit(x, y, deg, rcond=rcond, full=full, w=w, cov=cov, other=cov_name)
    if full:
        coefficients, *diagnostics = fit
        fit = coefficients, *(diagnostic.array for diagnostic in diagnostics)
    return convert_result(fit)


def vander(x: Any, degree: AxisSelector) -> Any:
    """Returns the Vandermonde matrix; an axis given by name gets as many columns as `x` has elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.vander(hax.arange(hax.Axis("i", 2)), "degree").shape
        {'i': 2, 'degree': 2}
    """
    return convert_result(polynomials.vander(x, Axis(degree, x.size) if isinstance(degree, str) else degree))
