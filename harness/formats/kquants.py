"""K-quants: superblocks of 256 values in groups of 16 or 32, whose scales and minima are integers times d and dmin.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_*_K` (llama.cpp v0.5.0). The zero points
of Q3_K and Q6_K are part of the codes.
"""

from __future__ import annotations

import numpy as np

from .block import BlockFormat, Codes, Field, Run, Structs, each

QK_K = 256


def _read_q8_k(structs: Structs) -> Codes:
    return np.asarray(structs["qs"])


Q8_K = BlockFormat(
    "Q8_K", 15, QK_K,
    (
        Field("d", "<f4", 1, "scale", each(1, Run(32, "float, scale"))),
        Field("qs", "i1", QK_K, "codes in order", each(QK_K, Run(8, "x", 0))),
        Field("bsums", "<i2", QK_K // 16, "sums of 16 codes", each(QK_K // 16, Run(16, "sum", 0))),
    ),
    8, 0, "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)", _read_q8_k, group=QK_K, low=-128,
)  # fmt: skip
