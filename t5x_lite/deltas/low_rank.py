"""Singular value decompositions of what is added to kernels.

    a b = Qa Ra (Qb Rb)^T = Qa (Ra Rb^T) Qb^T        the core Ra Rb^T is [R, R]

so that a product of low rank is decomposed without being made.
"""

import numpy as np

from t5x_lite.deltas.parts import LowRank, Part

_VECTORS = ("bias", "scale")
"""Last names of arrays whose last axis alone is theirs: the one before it may be the layers'."""


def is_kernel(path: str, shape: tuple[int, ...]) -> bool:
    """Whether the last two axes of an array are a matrix."""
    return len(shape) >= 2 and path.rpartition("/")[2] not in _VECTORS


def factored(part: Part, rank: int) -> LowRank:
    """The product of a rank that is nearest to an additive part of a kernel.

    The singular values' square roots are on both sides. Source: Eckart and Young 1936.

    Args:
      part: [..., I, O].
      rank: at most; the smaller one of I and O is enough.
    """
    if isinstance(part, LowRank):
        qa, ra = np.linalg.qr(np.asarray(part.a, np.float32))
        qb, rb = np.linalg.qr(np.swapaxes(np.asarray(part.b, np.float32), -1, -2))
        core = np.float32(part.scale) * np.matmul(ra, np.swapaxes(rb, -1, -2))
        u, s, v = np.linalg.svd(core, full_matrices=False)
        u, v = np.matmul(qa, u), np.matmul(v, np.swapaxes(qb, -1, -2))
    else:
        u, s, v = np.linalg.svd(part.dense(), full_matrices=False)
    root = np.sqrt(s[..., :rank])
    return LowRank(u[..., :, :rank] * root[..., None, :], root[..., :, None] * v[..., :rank, :])
