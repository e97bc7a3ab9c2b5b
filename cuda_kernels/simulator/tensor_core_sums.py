"""How the twins of tensor-core instructions add up: exactly, or as the hardware was found to."""

import os

import numpy as np

TRUNCATES = os.environ.get("MINIGRAD_CUDASIM_TRUNCATE", "0") not in ("", "0")
BITS = 25  # of a term that is added, below the highest bit of the largest


def add_products(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """c + a b^T as float32, for c (m, n), a (m, k) and b (n, k), whose products float64 holds exactly.

    It is rounded once. With ``MINIGRAD_CUDASIM_TRUNCATE=1`` bits are cut off instead: of each term, those beyond 25
    below the highest of the largest term, and those of the sum that float32 does not hold. Source: Fasi, Higham,
    Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021).
    """
    if not TRUNCATES:
        return (a @ b.T + c).astype(np.float32)
    terms = np.concatenate([a[:, None, :] * b[None], np.asarray(c, np.float64)[..., None]], -1)
    unit = np.ldexp(1.0, np.frexp(np.abs(terms).max(-1, keepdims=True))[1] - BITS)
    total = (np.trunc(terms / unit) * unit).sum(-1)
    nearest = total.astype(np.float32)
    return np.where(np.abs(nearest) > np.abs(total), np.nextafter(nearest, np.float32(0)), nearest)
