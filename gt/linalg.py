"""``gt.linalg``: torch.linalg's names.

Next: ``gt.functions.factorization``, ``solving``, ``norms`` and ``matrices`` (what they do).
"""

from gt.arguments import guard
from gt.functions.factorization import (
    cholesky,
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    lu,
    lu_factor,
    lu_factor_ex,
    qr,
    svd,
    svdvals,
)  # fmt: skip
from gt.functions.linalg import matmul
from gt.functions.matrices import cross, det, diagonal, matrix_exp, matrix_power, multi_dot, slogdet, vander, vecdot
from gt.functions.norms import matrix_norm, norm, vector_norm
from gt.functions.solving import (
    cond,
    inv,
    inv_ex,
    lstsq,
    lu_solve,
    matrix_rank,
    pinv,
    solve,
    solve_ex,
    solve_triangular,
    tensorinv,
    tensorsolve,
)  # fmt: skip
from gt.runtime.errors import LinAlgError

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "householder_product",
    "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power",
    "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals",
    "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip

guard(globals())
