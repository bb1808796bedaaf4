"""Linear algebra over named axes: the axes of a matrix are given by name, and all others are vectorised."""

from ._decompositions import (
    cholesky as cholesky,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
    qr as qr,
    svd as svd,
    svdvals as svdvals,
)
from ._norms import (
    cond as cond,
    det as det,
    matrix_power as matrix_power,
    matrix_rank as matrix_rank,
    norm as norm,
    slogdet as slogdet,
)
from ._solve import inv as inv, lstsq as lstsq, pinv as pinv, solve as solve
