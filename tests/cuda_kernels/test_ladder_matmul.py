"""Each step of the ladder is the product, at sizes that no tile divides."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import ordered

from minigrad.cuda_kernels.ladders import ladder_matmul
from minigrad.cuda_kernels.platform import array


@pytest.mark.parametrize("step", ladder_matmul.STEPS)
def test_a_step_is_the_product(step):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((19, 20)).astype("f4"), rng.standard_normal((20, 24)).astype("f4")
    with ordered(1):
        y = ladder_matmul.multiply(step, array.from_host(a), array.from_host(b))
    np.testing.assert_allclose(array.to_host(y), a.astype("f8") @ b, rtol=1e-5, atol=1e-5)
