"""Reductions over named axes, and the functions that run along one axis.

Every reduction takes `axis`: one axis, several, or None for all of them. The result lacks those axes; with none left it
is a named array without axes, of which `.scalar()` is the plain array.
"""

from ._along import (
    argsort as argsort,
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
    diff as diff,
    nancumprod as nancumprod,
    nancumsum as nancumsum,
    sort as sort,
)
from ._covariance import (
    average as average,
    corrcoef as corrcoef,
    cov as cov,
)
from ._extremes import (
    amax as amax,
    amin as amin,
    argmax as argmax,
    argmin as argmin,
    max as max,
    min as min,
    ptp as ptp,
)
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
from ._quantiles import (
    median as median,
    nanmedian as nanmedian,
    nanpercentile as nanpercentile,
    nanquantile as nanquantile,
    percentile as percentile,
    quantile as quantile,
)
from ._softmax import (
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
)
from ._sums import (
    mean as mean,
    prod as prod,
    product as product,
    std as std,
    sum as sum,
    var as var,
)
from ._truth import (
    all as all,
    any as any,
    count_nonzero as count_nonzero,
)
