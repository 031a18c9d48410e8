"""Records of the comparisons that a traced build makes (`kernels/emulator/comparisons.hpp`)."""

from __future__ import annotations

import numpy as np

#: `cuda_on_cpu::Comparison`.
RECORD = np.dtype(
    [
        ("at", "u8"), ("times", "u8"), ("which", "u4"), ("outcomes", "u4"), ("a", "f8", 2), ("b", "f8", 2),
        ("apart", "f8", 2),
    ]
)  # fmt: skip
#: Most records of a launch.
MOST_RECORDS = 4096
