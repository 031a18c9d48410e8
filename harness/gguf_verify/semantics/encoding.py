"""The bytes of activations: the record that each module of `encodings/` makes.

An encoding is one half of a definition, the other is the `Term`. Either it quantizes: activations become codes q_a with
scales d_a and, in some, sums s. Or it keeps values of a floating-point type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from .activations import Bytes, Floats

Doubles = npt.NDArray[np.float64]
Structs = npt.NDArray[np.void]
#: What an array of activations is of: bytes of blocks, or values.
Dtype = Literal["uint8", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Operands:
    """Decoded activations, by terms of 32 or 16 values.

    Args:
        q: codes, float32[terms, M, values].
        d: scales, float64[terms, M, 1].
        s: sums, float64[terms, M, 1]: the stored ones; where a block stores too few of them, d·Σq; zeros where the
            encoding has none.
        s_size: the sum of the magnitudes that s is made of when a kernel multiplies: |s| of a stored one, d·Σ|q| of
            another.
    """

    q: Floats
    d: Doubles
    s: Doubles
    s_size: Doubles


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How activations are handed to a kernel.

    Args:
        name: its name in a declaration.
        title: it in one line.
        source: who encodes so.
        encode: float32[M, K] → uint8[M, row bytes].
        dtype: what the array holds: "uint8" for blocks, else the type of the values.
        format: of the blocks; None for values.
        ratios: blocks of activations → x/d before it is rounded to a code, and d before it is rounded to the format;
            None for values.
        values_per_scale: values that share a scale.
        values_per_sum: values of a stored sum; 0: none is stored.
        raw_sum: s is the sum of the raw values, rounded to half.
        read_sums: structs of blocks → float32[..., sums of a block], NaN for those that a block has no room for; None:
            the field s is the sum of all.
        cuda_path: the path of llama.cpp's CUDA backend, "MMVQ" or "MMQ", whose quantizer makes these bytes and reveals
            them; empty where there is none.
        rearranges: the encoding whose bytes these are in another order, and what makes them of those.
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
        """Bytes of a token's k activations: of whole blocks, the last one filled up with zeros."""
        if self.format is None:
            return k * (4 if self.dtype == "float32" else 2)
        return -(-k // self.format.block_size) * self.format.block_bytes

    def values(self, x: Bytes) -> Floats:
        """The values that bytes uint8[M, row bytes] stand for, float32[M, K]: of blocks d·q."""
        x = np.ascontiguousarray(x)
        if self.format is not None:
            return self.format.decode(x.reshape(len(x), -1, self.format.block_bytes)).reshape(len(x), -1)
        if self.dtype == "float16":
            return x.view(np.float16).astype(np.float32)
        if self.dtype == "bfloat16":
            return (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return x.view(np.float32)

    def scales(self, x: Bytes) -> Floats:
        """float32[M, K / values_per_scale] of blocks uint8[M, row bytes]."""
        assert self.format is not None
        blocks = x.reshape(len(x), -1, self.format.block_bytes)
        return self.format.scales(blocks).reshape(len(x), -1)[:, :: self.values_per_scale // self.format.group]

    def sums(self, x: Bytes) -> Floats | None:
        """The stored sums, float32[M, K / values_per_sum], NaN where a block has no room; None where there are none."""
        if not self.values_per_sum:
            return None
        assert self.format is not None
        view = self.format.view(x.reshape(len(x), -1, self.format.block_bytes))
        sums = np.asarray(view["s"])[..., None] if self.read_sums is None else self.read_sums(view)
        return sums.reshape(len(x), -1).astype(np.float32)

    def operands(self, x: Bytes, values: int) -> Operands:
        """Blocks uint8[M, row bytes] by terms of so many values."""
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
            with np.errstate(invalid="ignore"):  # a scale that is infinite
                s = np.where(missing, d * q.sum(axis=-1, keepdims=True, dtype=np.float64), s)
                size = np.where(missing, np.abs(d) * np.abs(q).sum(axis=-1, keepdims=True, dtype=np.float64), size)
        return Operands(q, d, s, size)

    def no_room(self, terms: int) -> npt.NDArray[np.bool_]:
        """Of so many sums of a row, those that a block has no room for: bool[terms]."""
        assert self.format is not None
        if self.read_sums is None:
            return np.zeros(terms, bool)
        of_block = np.isnan(self.read_sums(np.zeros((), self.format.dtype)))
        return np.resize(of_block, terms)
