"""Reductions over named axes, and the functions that run along one axis.

Every reduction takes `axis`: one axis, several, or None for all of them. The result lacks those axes; with none left it
is a named array without axes, of which `.scalar()` is the plain array.
"""

from ._along import (
    argsort as argsort,
    cumsum as cumsum,
    sort as sort,
)
from ._extremes import (
    argmax as argmax,
    argmin as argmin,
    max as max,
    min as min,
)
from ._softmax import (
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
)
from ._sums import (
    mean as mean,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
from ._truth import (
    all as all,
    any as any,
)
