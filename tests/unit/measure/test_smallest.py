"""The smallest faults that are found: the search, and that combinations find smaller ones together than singly."""

from __future__ import annotations

import numpy as np

from gguf_verify.formats.tensor_types import FORMATS
from tests.support.exact_products import real_weights
from tools.measure.smallest import measure, smallest


def test_the_smallest_power_of_two_that_is_found() -> None:
    for power in (0, 1, 7, 24):
        assert smallest(lambda share, least=2.0**-power: share >= least) == 2.0**-power  # type: ignore[misc]
    assert smallest(lambda share: True) == 2.0**-24
    assert smallest(lambda share: False) == np.inf


def test_combinations_find_smaller_faults_together() -> None:
    found = measure(FORMATS["Q8_0"], real_weights(FORMATS["Q8_0"], 1024, 256), 4, 0)
    assert found["together"] < found["single"] < 1
    assert found["sampled"] <= found["together"]
