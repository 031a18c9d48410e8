"""Sums of terms of codes in a declared order, compiled for this processor: `support.arrays.AddTerms`."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from ..support.arrays import AddTerms, offer_sums
from ..support.errors import EnvironmentFault
from ..support.paths import kernel_root
from .compiler import compile_alone, shared_library

Floats = npt.NDArray[np.float32]

_UNIT = '#include "oracle/codes.hpp"\n'
_NONE, _ADDED, _INSIDE = range(3)


def offer() -> None:
    """Offer compiled sums to products that NumPy computes. They are compiled at their first use."""
    offer_sums(_compiled)


def _compiled() -> AddTerms | None:
    """Compile and load the function. Returns None where that is not possible: NumPy computes these sums too."""
    try:
        function = shared_library(kernel_root(), _UNIT, how=compile_alone).add_terms_of_codes
    except EnvironmentFault:
        return None
    function.restype = None
    function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 3 + [ctypes.c_int]

    def add(sums: Floats, d_a: Floats, d_w: Floats, z: Floats | None, m_w: Floats | None, acc: Floats) -> None:
        (terms, m, n), second = sums.shape, _NONE if z is None else _INSIDE if m_w is None else _ADDED
        shapes = [(d_a, (terms, m)), (z, (terms, m)), (d_w, (terms, n)), (m_w, (terms, n)), (acc, (m, n))]
        if any(of is not None and of.shape != shape for of, shape in shapes):
            raise ValueError("the terms of a product have other numbers of tokens or rows")
        held = [None if of is None else np.ascontiguousarray(of, np.float32) for of in (sums, d_a, d_w, z, m_w)]
        function(*(None if of is None else of.ctypes.data for of in (*held, acc)), *sums.shape, second)

    return add
