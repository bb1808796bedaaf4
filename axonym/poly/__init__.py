"""Polynomials with coefficients along a named axis, highest power first, vectorised over all other axes."""

from ._arithmetic import (
    polyadd as polyadd,
    polydiv as polydiv,
    polymul as polymul,
    polysub as polysub,
    trim_zeros as trim_zeros,
)
from ._calculus import polyder as polyder, polyint as polyint, polyval as polyval
from ._polyfit import polyfit as polyfit, vander as vander
from ._roots import poly as poly, roots as roots
