"""`mmq_ds4_bytes`: as `mmq_ds4`, in the bytes that llama.cpp's kernels take: `block_q8_1_mmq`, 144 of 128 values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..activations import Bytes, Floats
from ..encoding import Encoding
from ._mmq_blocks import DS4_BLOCK, packed
from .mmq_ds4 import DS4


def encode_mmq_ds4_bytes(x: Floats) -> Bytes:
    """Return uint8[M, ceil(K/128)·144]; values past K are zeros."""
    return packed(DS4.encode(x))


def _sums(structs: npt.NDArray[np.void]) -> Floats:
    return np.asarray(structs["ds"])[..., 1::2].astype(np.float32)


DS4_BYTES = Encoding(
    name="mmq_ds4_bytes",
    title="block_q8_1_mmq, layout DS4: 4 × (half d, half s), 128 codes; d, s and codes as `mmq_ds4`",
    source=DS4.source,
    encode=encode_mmq_ds4_bytes,
    format=DS4_BLOCK,
    ratios=DS4.ratios,
    rearranges=(DS4, packed),
    values_per_sum=32,
    raw_sum=True,
    read_sums=_sums,
)
