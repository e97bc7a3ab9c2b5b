"""Comparisons and logic by NumPy's ufuncs; results are bool arrays, those of the bitwise ones also integers."""

from __future__ import annotations

import numpy as np

eq = np.equal
ne = np.not_equal
lt = np.less
le = np.less_equal
gt = np.greater
ge = np.greater_equal
logical_not = np.logical_not
logical_and = np.logical_and
logical_or = np.logical_or
logical_xor = np.logical_xor
bitwise_not = np.invert
bitwise_and = np.bitwise_and
bitwise_or = np.bitwise_or
bitwise_xor = np.bitwise_xor
left_shift = np.left_shift
right_shift = np.right_shift
isnan = np.isnan
isinf = np.isinf
isfinite = np.isfinite
