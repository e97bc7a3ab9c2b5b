"""Comparisons and logic by NumPy's ufuncs; results are bool arrays, those of the bitwise ones also integers."""

from __future__ import annotations

import numpy as np

eq: np.ufunc = np.equal
ne: np.ufunc = np.not_equal
lt: np.ufunc = np.less
le: np.ufunc = np.less_equal
gt: np.ufunc = np.greater
ge: np.ufunc = np.greater_equal
logical_not: np.ufunc = np.logical_not
logical_and: np.ufunc = np.logical_and
logical_or: np.ufunc = np.logical_or
logical_xor: np.ufunc = np.logical_xor
bitwise_not: np.ufunc = np.invert
bitwise_and: np.ufunc = np.bitwise_and
bitwise_or: np.ufunc = np.bitwise_or
bitwise_xor: np.ufunc = np.bitwise_xor
left_shift: np.ufunc = np.left_shift
right_shift: np.ufunc = np.right_shift
isnan: np.ufunc = np.isnan
isinf: np.ufunc = np.isinf
isfinite: np.ufunc = np.isfinite
