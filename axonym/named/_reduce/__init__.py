"""Reductions over named axes, and functions along one axis.

Every reduction takes `axis`: one axis, several, or None for all of them, which the result lacks. A result without axes
is still a named array, of which `.scalar()` returns the plain array.
"""

from ._any_all import all as all, any as any, count_nonzero as count_nonzero
from ._covariance import corrcoef as corrcoef, cov as cov
from ._cumulative import (
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
)
from ._diff import diff as diff
from ._max_min import amax as amax, amin as amin, argmax as argmax, argmin as argmin, max as max, min as min, ptp as ptp
from ._nan import (
    nanargmax as nanargmax,
    nanargmin as nanargmin,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmin as nanmin,
    nanprod as nanprod,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
)
from ._quantile import (
    median as median,
    nanmedian as nanmedian,
    nanpercentile as nanpercentile,
    nanquantile as nanquantile,
    percentile as percentile,
    quantile as quantile,
)
from ._softmax import log_softmax as log_softmax, logsumexp as logsumexp, softmax as softmax
from ._sort import argsort as argsort, sort as sort
from ._sum import average as average, mean as mean, prod as prod, product as product, std as std, sum as sum, var as var
