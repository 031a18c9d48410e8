"""llama.cpp's CUDA backend, driven directly: products outside any model, and activations as it quantizes them.

This module runs in llama.cpp's process. The backend's quantizers write to buffers that cannot be read, but products
with special weights reveal the bytes. If a row of weights has one code 1, all others 0 and the scale 1, its output is
d·q of one activation. If it has the codes 0 and the minimum 1, its output is s of one block. Each 32 activations are
multiplied by the same 32 rows of such weights (ggml_mul_mat broadcasts a matrix over a view [32, M, K/32] of them).

The number of tokens and the layout of the weights' type select the quantizer (ggml-cuda.cu, ggml_cuda_mul_mat; mmq.cuh,
mmq_get_q8_1_ds_layout; llama.cpp v0.5.0): up to 8 tokens use quantize_q8_1, more use quantize_mmq_q8_1, whose layout is
DS4 for Q4_0 and Q4_1 and D4 for Q8_0.
"""

from __future__ import annotations

import ctypes as c
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.block import QK, BlockFormat
from ...formats.llama_products import MMVQ_TOKENS
from ...formats.q4_0 import Q4_0
from ...formats.q4_1 import Q4_1
from ...formats.q8_0 import Q8_0
from ...formats.q8_1 import Q8_1
from ...formats.q8_1_d4 import Q8_1_D4
from ...formats.tensor_types import FORMATS
from ...semantics import cuda
from ...semantics.cuda import NoDefinition
from ...semantics.definitions import SEMANTICS
from ...semantics.definitions.mmq import encode_mmq
from ...semantics.definitions.mmq_d4 import encode_mmq_d4
from ...semantics.encodings.q8_1 import encode_q8_1
from .. import ggml
from ..backends.device import NoDevice, Product
from .registry_device import RegistryDevice

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Number of activations quantized at a time: MMQ pads each 32 of them to 512.
_AT_ONCE = 1 << 22
_CC_MAJOR, _CC_MINOR = 75, 76  # enum CUdevice_attribute


class CudaDevice(RegistryDevice):
    """A GPU of the CUDA backend."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        number = re.fullmatch(r"CUDA(\d+)", self.name)
        self._sm = compute_capability(int(number[1]) if number else 0)

    def properties(self) -> dict[str, Any]:
        return {"sm": self._sm}

    def taken(self, product: Product, x: Floats, wanted: Sequence[int]) -> dict[int, Bytes]:
        """Return the activations in the format of the product's definition; nothing if no definition describes it."""
        fmt = next((f for f in FORMATS.values() if f.type_id == product.type), None)
        if fmt is None or not product.on_backend:
            return {}
        try:
            semantics = cuda.llama_cuda_semantics(fmt, product.tokens, self._sm, product.experts)
        except NoDefinition:
            return {}
        assert semantics.activations is not None
        return {semantics.activations.type_id: self.activations(semantics.name, x)}

    def multiply(self, type: int, w: Bytes, x: Floats, threads: int = 1) -> Floats:
        traits = ggml.ggml_get_type_traits(type).contents
        width = w.shape[1] // traits.type_size * traits.blck_size
        out: Floats = self._columns(type, w, x, width, (w.shape[1], 0, 1), 1)[0]
        return out

    def _by_block(self, type: int, w: Bytes, x: Floats) -> Floats:
        """Compute products float32[K/n, M, N] of weights whose rows are one block of n values with each block of x."""
        block = ggml.ggml_get_type_traits(type).contents.blck_size
        return self._columns(type, w, x, block, (w.shape[1], 0, 1), x.shape[1] // block)

    def block_products(self, type: int, w: Bytes, x: Floats, threads: int = 1) -> Floats:
        traits = ggml.ggml_get_type_traits(type).contents
        block, nb = traits.blck_size, w.shape[1] // traits.type_size
        return self._columns(type, w, x, block, (w.shape[1], traits.type_size, nb), nb)

    def _columns(self, type: int, w: Bytes, x: Floats, width: int, w_steps: tuple[int, int, int], count: int) -> Floats:
        """Multiply `count` columns of x, each `width` values wide, by as many columns of w, or by its only one.

        Args:
            w_steps: strides of w in bytes between rows and between columns, and its number of columns.
        """
        n, (m, k) = len(w), x.shape
        row, column, columns = w_steps
        ctx = ggml.ggml_init(ggml.InitParams(4 << 20, None, True))
        try:
            traits = ggml.ggml_get_type_traits(type).contents
            whole = w.shape[1] // traits.type_size * traits.blck_size
            # MMQ tiles span 256 values: the last column reads into the following rows, which must hold finite numbers
            spare = -(-16 * traits.type_size // w.shape[1])
            wt = ggml.ggml_new_tensor_2d(ctx, type, whole, n + max(1, spare))
            xt = ggml.ggml_new_tensor_2d(ctx, ggml.F32, k, m)
            wv = ggml.ggml_view_3d(ctx, wt, width, n, columns, row, column or n * row, 0)
            xv = ggml.ggml_view_3d(ctx, xt, width, m, count, 4 * k, 4 * width, 0)
            y = ggml.ggml_mul_mat(ctx, wv, xv)
            return self.computed_by(ctx, ((wt, w), (xt, np.asarray(x, np.float32))), y, (count, m, n))
        finally:
            ggml.ggml_free(ctx)

    # ---- activations ------------------------------------------------------------------------------------------------

    def activations(self, definition: str, x: Floats) -> Bytes:
        """Quantize float32[M, K] as products of a definition do, uint8[M, K/32·36]."""
        semantics = SEMANTICS[definition]
        values = np.ascontiguousarray(x, np.float32)
        if semantics.cuda_path == "MMVQ":
            return self.q8_1(values)
        return self.mmq_d4(values) if semantics.activations is Q8_1_D4 else self.mmq(values)

    def q8_1(self, x: Floats) -> Bytes:
        """Quantize float32[M, K] as MMVQ does, by quantize_q8_1: Q8_1 blocks uint8[M, K/32·36]."""
        return self._in_parts(x, MMVQ_TOKENS, lambda part: self._half_scaled(part, Q8_0, 0, encode_q8_1))

    def mmq(self, x: Floats) -> Bytes:
        """Quantize float32[M, K] as MMQ does in the layout DS4, returned as Q8_1 blocks uint8[M, K/32·36]."""
        return self._in_parts(x, None, lambda part: self._half_scaled(part, Q4_0, 8, encode_mmq))

    def mmq_d4(self, x: Floats) -> Bytes:
        """Quantize float32[M, K] as MMQ does in the layout D4, returned as blocks uint8[M, K/32·36]."""
        return self._in_parts(x, None, self._float_scaled)

    def _in_parts(self, x: Floats, most: int | None, quantize: Any) -> Bytes:
        """Quantize some rows at a time: at most `most`, or, if that is None, more than MMVQ takes."""
        m, k = x.shape
        step = most or max(MMVQ_TOKENS + 1, _AT_ONCE // k)
        parts = []
        for start in range(0, m, step):
            part = x[start : start + step]
            rows = len(part)
            if most is None and rows <= MMVQ_TOKENS:
                part = np.concatenate([part, np.repeat(part[-1:], MMVQ_TOKENS + 1 - rows, axis=0)])
            parts.append(quantize(part)[:rows])
        return np.concatenate(parts)

    def _scaled_codes(self, x: Floats, fmt: BlockFormat, zero: int) -> Floats:
        """Return d·q of each activation, float32[M, K/32, 32], using weights of a format whose code `zero` means 0."""
        qs = np.full((QK, QK), zero, np.uint8)
        np.fill_diagonal(qs, zero + 1)
        packed = qs[:, :16] | qs[:, 16:] << 4 if fmt.bits == 4 else qs.view(np.int8)
        y = self._by_block(fmt.type_id, fmt.pack(d=np.ones(QK, np.float16), qs=packed), x)
        return y.transpose(1, 0, 2)

    def _sums(self, x: Floats) -> Floats:
        """Return s of each block, float32[M, K/32]."""
        ones = Q4_1.pack(d=np.zeros(QK, np.float16), m=np.ones(QK, np.float16), qs=np.zeros((QK, 16), np.uint8))
        return self._by_block(Q4_1.type_id, ones, x)[..., 0].T

    def _half_scaled(self, x: Floats, fmt: BlockFormat, zero: int, encode: Any) -> Bytes:
        y, s = self._scaled_codes(x, fmt, zero), self._sums(x)
        with np.errstate(all="ignore"):
            d = (np.abs(y).max(axis=-1) / np.float32(127)).astype(np.float16)
            q, known = _divided(y, d.astype(np.float32))
            known &= s.astype(np.float16).astype(np.float32) == s
            out = Q8_1.pack(d=d, s=s.astype(np.float16), qs=q)
        return _where(known, out, encode(x))

    def _float_scaled(self, x: Floats) -> Bytes:
        """Find for each block the float32 scale that explains all its outputs as rounded multiples."""
        y = self._scaled_codes(x, Q8_0, 0)
        with np.errstate(all="ignore"):
            nearest = np.abs(y).max(axis=-1) / np.float32(127)
            d, q, known = nearest, np.zeros(y.shape, np.int8), np.zeros(nearest.shape, bool)
            for step in (0, 1, -1, 2, -2, 3, -3):
                candidate = (nearest.view(np.int32) + np.int32(step)).view(np.float32)
                codes, fits = _divided(y, candidate)
                new = fits & ~known
                d, q, known = np.where(new, candidate, d), np.where(new[..., None], codes, q), known | fits
        return _where(known, Q8_1_D4.pack(d=d, qs=q), encode_mmq_d4(x))


def _divided(y: Floats, d: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Return y / d as integers, and the blocks for which these integers times d, rounded once, give y again."""
    ratio = np.where(d[..., None] > 0, y / d[..., None], np.float32(0))
    q = np.clip(np.rint(np.nan_to_num(ratio)), -128, 127)
    known = np.isfinite(d) & ((q.astype(np.float32) * d[..., None]).astype(np.float32) == y).all(axis=-1)
    return q.astype(np.int8), known


def _where(known: npt.NDArray[np.bool_], revealed: Bytes, encoded: Bytes) -> Bytes:
    """Return the revealed blocks [M, K/32, bytes]; where scales or sums overflow and hide them, the encoded ones."""
    m, nb, size = revealed.shape
    return np.where(known[..., None], revealed, encoded.reshape(m, nb, size)).reshape(m, nb * size)


def compute_capability(number: int) -> int:
    """Return 10·major + minor of a GPU's compute capability, by its index in CUDA. Raises NoDevice."""
    try:
        driver = c.CDLL("libcuda.so.1")
    except OSError:
        raise NoDevice("llama.cpp's CUDA backend finds no GPU: there is no driver") from None
    device, value = c.c_int(), c.c_int()
    numbers = []
    failed = driver.cuInit(0) or driver.cuDeviceGet(c.byref(device), number)
    for attribute in (_CC_MAJOR, _CC_MINOR):
        failed = failed or driver.cuDeviceGetAttribute(c.byref(value), attribute, device)
        numbers.append(value.value)
    if failed:
        raise NoDevice(f"the driver does not report the GPU's compute capability: error {failed}")
    return 10 * numbers[0] + numbers[1]
