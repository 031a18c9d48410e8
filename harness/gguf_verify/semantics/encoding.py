"""The record of an encoding: how activations become bytes.

An encoding is one half of a definition, the other is the `Term`. Either it quantizes: activations become codes q_a with
scales d_a and, in some, sums s. Or it keeps values of a floating-point type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from .activations import Bytes, Floats

Doubles = npt.NDArray[np.float64]
Structs = npt.NDArray[np.void]
#: The elements of an array of activations: bytes of blocks, or values.
Dtype = Literal["uint8", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Operands:
    """Decoded activations, by terms of 32 or 16 values.

    Args:
        q: codes, float32[terms, M, values].
        d: scales, float64[terms, M, 1].
        s: sums, float64[terms, M, 1]: the stored ones; d·Σq if a block stores too few of them; zeros if the encoding
            has none.
        s_size: the sum of the magnitudes of the addends of s in a kernel: |s| for a stored one, d·Σ|q| for another.
    """

    q: Floats
    d: Doubles
    s: Doubles
    s_size: Doubles


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The form in which a kernel gets activations.

    Args:
        name: its name in a declaration.
        title: a description in one line.
        source: the code with this encoding.
        encode: float32[M, K] → uint8[M, row bytes].
        dtype: the element type of the array: "uint8" for blocks, else the type of the values.
        format: the format of the blocks; None for values.
        ratios: blocks of activations → x/d before it is rounded to a code, and d before it is rounded to the format;
            None for values.
        values_per_scale: values that share a scale.
        values_per_sum: values of a stored sum; 0: none is stored.
        raw_sum: whether s is the sum of the raw values, rounded to half.
        read_sums: structs of blocks → float32[..., sums of a block], NaN for those that a block has no room for; None:
            the field s is the sum of all.
        cuda_path: the path of llama.cpp's CUDA backend, "MMVQ" or "MMQ", whose quantizer makes these bytes and reveals
            them; empty if there is none.
        rearranges: the encoding with the same content in another byte order, and the conversion from it.
    """

    name: str
    title: str
    source: str
    encode: Callable[[Floats], Bytes]
    dtype: Dtype = "uint8"
    format: BlockFormat | None = None
    ratios: Callable[[Floats], tuple[Floats, Floats]] | None = None
    values_per_scale: int = 32
    values_per_sum: int = 0
    raw_sum: bool = False
    read_sums: Callable[[Structs], Floats] | None = None
    cuda_path: str = ""
    rearranges: tuple[Encoding, Callable[[Bytes], Bytes]] | None = None

    @property
    def quantizes(self) -> bool:
        """Whether activations become codes."""
        return self.format is not None

    def row_bytes(self, k: int) -> int:
        """Return the bytes of a token's k activations: whole blocks, the last one padded with zeros."""
        if self.format is None:
            return k * (4 if self.dtype == "float32" else 2)
        return -(-k // self.format.block_size) * self.format.block_bytes

    def values(self, x: Bytes) -> Floats:
        """Decode bytes uint8[M, row bytes] to values float32[M, K]: for blocks d·q."""
        x = np.ascontiguousarray(x)
        if self.format is not None:
            return self.format.decode(x.reshape(len(x), -1, self.format.block_bytes)).reshape(len(x), -1)
        if self.dtype == "float16":
            return x.view(np.float16).astype(np.float32)
        if self.dtype == "bfloat16":
            return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return x.view(np.float32)

    def scales(self, x: Bytes) -> Floats:
        """Return the scales float32[M, K / values_per_scale] of blocks uint8[M, row bytes]."""
        assert self.format is not None
        blocks = x.reshape(len(x), -1, self.format.block_bytes)
        return self.format.scales(blocks).reshape(len(x), -1)[:, :: self.values_per_scale // self.format.group]

    def sums(self, x: Bytes) -> Floats | None:
        """Return the stored sums, float32[M, K / values_per_sum], NaN where a block has no room; None if there are
        none.
        """
        if not self.values_per_sum:
            return None
        assert self.format is not None
        view = self.format.view(x.reshape(len(x), -1, self.format.block_bytes))
        sums = np.asarray(view["s"])[..., None] if self.read_sums is None else self.read_sums(view)
        return sums.reshape(len(x), -1).astype(np.float32)

    def operands(self, x: Bytes, values: int) -> Operands:
        """Decode blocks uint8[M, row bytes] to terms of `values` values."""
        fmt = self.format
        assert fmt is not None
        m = len(x)
        q = fmt.codes(x.reshape(m, -1, fmt.block_bytes)).astype(np.float32).reshape(m, -1, values).transpose(1, 0, 2)
        d = np.repeat(self.scales(x).astype(np.float64), self.values_per_scale // values, axis=1).T[..., None]
        sums = self.sums(x)
        if sums is None or self.values_per_sum != values:
            return Operands(q, d, np.zeros_like(d), np.zeros_like(d))
        s = sums.astype(np.float64).T[..., None]
        size = np.abs(s)
        if self.read_sums is not None:
            missing = self.no_room(s.shape[0])[:, None, None]
            with np.errstate(invalid="ignore"):  # an infinite scale
                s = np.where(missing, d * q.sum(axis=-1, keepdims=True, dtype=np.float64), s)
                size = np.where(missing, np.abs(d) * np.abs(q).sum(axis=-1, keepdims=True, dtype=np.float64), size)
        return Operands(q, d, s, size)

    def no_room(self, terms: int) -> npt.NDArray[np.bool_]:
        """Return which of this many sums of a row a block has no room for: bool[terms]."""
        assert self.format is not None
        if self.read_sums is None:
            return np.zeros(terms, bool)
        of_block = np.isnan(self.read_sums(np.zeros((), self.format.dtype)))
        return np.resize(of_block, terms)
