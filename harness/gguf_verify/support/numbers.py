"""Number types from untrusted text: of another process, a file or a message.

NumPy never parses such text: `np.dtype("M8[ns/0]")` ends the process, and other texts mean records and objects. So
elsewhere `np.dtype` takes only constants, which a test checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .text import printable

#: Name, such as "float32" → type.
NAMES: Mapping[str, np.dtype[Any]] = {np.dtype(kind).name: np.dtype(kind) for kind in "?bhilqBHILQefdFD"}
#: `dtype.str` of numbers and booleans, little-endian → type.
CODES: Mapping[str, np.dtype[Any]] = {
    np.dtype(kind).str: np.dtype(kind)
    for kind in ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
}
#: The same in any byte order, as headers of `.npy` files write them.
CODES_OF_FILES: Mapping[str, np.dtype[Any]] = {
    order + code[1:]: np.dtype(order + code[1:]) for code in CODES for order in "<>|="
}


def number_type(text: object, known: Mapping[str, np.dtype[Any]] = NAMES) -> np.dtype[Any]:
    """Return the type that a text names. Raises ValueError if it names none."""
    if not isinstance(text, str) or text not in known:
        raise ValueError(f"{printable(str(text), 60)} is not a number type")
    return known[text]
