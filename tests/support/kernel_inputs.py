"""Weights and activations that tests feed to kernels, and which kernels and formats are paired."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.iq1_m import IQ1_M
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import ELEMENTS, FLOAT_TYPES, FORMATS
from gguf_verify.hosts.base import Host
from gguf_verify.kernels.interleaved import Interleaved
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Tiles
from gguf_verify.kernels.packed import Packed
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.site import QUANTIZER
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.support.paths import kernel_root
from tests.support.tools import LEGACY

MS, NS = (1, 3, 33), (1, 31, 257)


#: On these every kernel is tested, on others only one for each way in which a kernel reads a format's codes (one after
#: the other, and four to a word): `make test-all` has the rest.
OFTEN = frozenset({"Q4_0", "Q5_1", "Q6_K"})
ON_EVERY_FORMAT = frozenset({"f32_naive", "q8_1_dp4a"})


#: Neither PACKED of packed_kernels, nor what tests/reference/kernels/test_decode.py and test_halves.py have.
PLAIN = [
    k for k, spec in KERNELS.items() if not isinstance(spec.launch, Packed | Interleaved) and spec.declares is None
]


PAIRS = [(k, f) for f in FORMATS.values() for k in PLAIN if KERNELS[k].covers(f)]


def often(name: str, fmt: BlockFormat) -> bool:
    return fmt.name in OFTEN or name in ON_EVERY_FORMAT


ALL = pytest.mark.parametrize(("name", "fmt"), [pytest.param(k, f, id=f"{k}-{f.name}") for k, f in PAIRS])


NAIVE = {"f32": "f32_naive", "q8_1": "q8_1_naive"}  # of each semantics


TILED = [k for k, spec in KERNELS.items() if isinstance(spec.launch, Tiles)]


ELEMENT_KERNEL = "gemm/elements/01_naive.cu"


ELEMENT_TYPES: dict[str, tuple[int, Any]] = {
    "F32": (0, np.dtype("<u4")),
    "F16": (1, np.dtype("<u2")),
    "BF16": (30, np.dtype("<u2")),
}  # ggml's ids


assert set(ELEMENT_TYPES) == set(FLOAT_TYPES)


def element_defines(kind: str) -> dict[str, str]:
    return ELEMENTS[kind].macros


def sources() -> list[tuple[str, str, dict[str, str]]]:
    """File, entry and definitions of everything that is compiled, but for what is slow."""
    gemms = [(KERNELS[k].file, "gemm", KERNELS[k].defines_for(f)) for k, f in PAIRS if often(k, f)]
    elements = [(ELEMENT_KERNEL, "gemm", element_defines(kind)) for kind in FLOAT_TYPES]
    return [(QUANTIZER, "quantize", {}), *gemms, *elements]


def lengths(fmt: BlockFormat) -> tuple[int, ...]:
    """K of one block, of an odd number, of several."""
    return tuple(fmt.block_size * n for n in (1, 3, 9 if fmt.block_size == 32 else 4))


def halves(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Finite halves of one kind, as their bits, in both signs."""
    low, high = {"any": (0, 0x7C00), "subnormal": (0, 0x0400), "large": (0x7000, 0x7C00), "usual": (0x1000, 0x2C00)}[
        kind
    ]
    return (rng.integers(low, high, shape) | rng.integers(0, 2, shape) << 15).astype("<u2")


#: What stands for the kinds of halves where scales are bytes: E8M0 (a power of two) and UE4M3 (every byte is finite).
E8M0 = {"any": (0, 190), "subnormal": (0, 3), "large": (160, 190), "usual": (115, 135)}


UE4M3 = {"any": (0, 256), "subnormal": (0, 8), "large": (112, 128), "usual": (32, 64)}


CODES = ("qs", "qh", "ql", "hmask", "signs")


def put_half(fmt: BlockFormat, structs: np.ndarray, name: str, bits: np.ndarray) -> None:
    """Halves, as bits, into a field of the blocks; IQ1_M has its d in the high four bits of four words."""
    if fmt is IQ1_M:
        nibbles = bits[..., None] >> np.arange(0, 16, 4, dtype=np.uint16) << 12
        structs["scales"] = structs["scales"] & 0x0FFF | nibbles
    else:
        structs[name] = bits.view("<f2")


def half_fields(fmt: BlockFormat) -> list[str]:
    return ["d"] if fmt is IQ1_M else [f.name for f in fmt.fields if f.dtype == "<f2"]


def put_scales(rng: np.random.Generator, fmt: BlockFormat, structs: np.ndarray, kind: str) -> None:
    for name in half_fields(fmt):
        put_half(fmt, structs, name, halves(rng, kind, structs.shape))
    if fmt is MXFP4:
        structs["e"] = rng.integers(*E8M0[kind], structs.shape)
    if fmt is NVFP4:
        structs["d"] = rng.integers(*UE4M3[kind], structs["d"].shape)


def random_weights(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random bytes, so every code, under finite scales. Rows take turns: usual scales, any, subnormal, large; some
    blocks have only the least or only the greatest code, or the bytes 0x80 (the least code of Q8_0)."""
    blocks = random_blocks(rng, fmt, n, k)
    structs = fmt.view(blocks)
    for row, kind in zip(range(4), ("usual", "any", "subnormal", "large"), strict=True):
        put_scales(rng, fmt, structs[row::4], kind)
    for byte in (0x00, 0xFF, 0x80):
        chosen = rng.random(structs.shape) < 0.05
        for field in set(CODES) & set(structs.dtype.names or ()):
            raw = structs[field][chosen]
            structs[field][chosen] = np.full(raw.nbytes, byte, np.uint8).view(raw.dtype).reshape(raw.shape)
    return structs.view(np.uint8).reshape(n, -1)


def usual_weights(fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random codes under scales with which all weights are finite halves."""
    rng = np.random.default_rng(n)
    structs = fmt.view(random_blocks(rng, fmt, max(n, 64), k))  # of few, none may be usual
    for field in fmt.fields:
        if field.dtype == "<f2":
            structs[field.name] = rng.normal(0, 0.01, structs[field.name].shape)
    blocks = structs.view(np.uint8).reshape(-1, fmt.block_bytes)
    with np.errstate(all="ignore"):
        fits = np.abs(fmt.decode(blocks)).max(axis=-1) < 1000
    return blocks[np.resize(np.flatnonzero(fits), n * k // fmt.block_size)].reshape(n, -1)


def random_blocks(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random bytes in every field: uint8[n, blocks of k values, bytes]."""
    return rng.integers(0, 256, (n, k // fmt.block_size, fmt.block_bytes), dtype=np.uint8)


def put_extremes(rng: np.random.Generator, fmt: BlockFormat, structs: np.ndarray) -> None:
    """±inf and NaN as a scale and as a minimum of some rows; where scales are bytes, E8M0's NaN, or both of UE4M3's, of
    which llama.cpp makes 0 and the greatest."""
    n, nb = structs.shape
    for name in half_fields(fmt):
        for row, bits in zip(rng.permutation(n), (0x7C00, 0xFC00, 0x7E01), strict=False):
            put_half(fmt, structs[row : row + 1, -1 - rng.integers(nb) :][:, :1], name, np.full((1, 1), bits, "<u2"))
    if fmt in (MXFP4, NVFP4):
        for row, byte in zip(rng.permutation(n), (255, 255, 255 if fmt is MXFP4 else 127), strict=False):
            structs["e" if fmt is MXFP4 else "d"][row, rng.integers(nb)] = byte


def gaussians(rng: np.random.Generator, m: int, k: int) -> np.ndarray:
    """Activations as models have them: one channel in a hundred is an outlier; rows take turns in magnitude."""
    x = rng.standard_normal((m, k))
    x[:, rng.random(k) < 0.01] *= 300
    x *= np.array([1, 1e-3, 30, 1e-7, 1e-41])[np.arange(m) % 5][:, None]  # the last is subnormal
    x[rng.random((m, k)) < 0.02] = 0
    x[rng.random((m, k)) < 0.02] *= -0.0
    return x.astype(np.float32)


def random_activations(rng: np.random.Generator, spec: KernelSpec, m: int, k: int) -> np.ndarray:
    """What the kernel's `gemm` takes. Quantized: every third row is random bytes under any finite d and s."""
    x = gaussians(rng, m, k)
    if SEMANTICS[spec.semantics].activations is None:
        return x.view(np.uint8)
    blocks = encode_q8_1(x).reshape(m, k // 32, Q8_1.block_bytes)
    structs = Q8_1.view(blocks)
    some = structs[1::3]
    some["qs"] = rng.integers(-128, 128, some["qs"].shape)
    some["qs"][rng.random(some.shape) < 0.1] = -128
    some["d"], some["s"] = (halves(rng, "any", some.shape).view("<f2") for _ in range(2))
    return structs.view(np.uint8).reshape(m, -1)


def assert_same(got: np.ndarray, expected: np.ndarray, said: object = "") -> None:
    """The same bits; any NaN is as good as another, since hosts differ in the NaN that they make."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan, err_msg=str(said))
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan], err_msg=str(said))


#: The shapes of the issue that asked for the ladder.
MATRIX = ((1, 2, 7, 8, 16, 33, 64, 128, 257), (1, 31, 128, 257, 1024), (32, 96, 288, 4096))


def has_bits_of_naive(kernel: ShippedKernel, naive: ShippedKernel, fmt: BlockFormat) -> None:
    """At every shape of MATRIX."""
    ms, ns, ks = MATRIX
    rng = np.random.default_rng(20)
    for k in ks:
        w, x = random_weights(rng, fmt, max(ns), k), random_activations(rng, kernel.spec, max(ms), k)
        expected = naive.gemm(naive.upload(fmt, w), x)
        assert np.isfinite(expected).all()
        for n in ns:
            weights = kernel.upload(fmt, w[:n])
            for m in ms:
                assert_same(kernel.gemm(weights, x[:m]), expected[:m, :n], (kernel.name, fmt.name, m, n, k))


LADDER = pytest.mark.parametrize(
    ("name", "fmt"),
    [pytest.param(k, f, id=f"{k}-{f.name}") for k in PLAIN if k not in NAIVE.values() for f in LEGACY.values()],
)


def element_gemm(host: Host, kind: str, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Weights, as bits, [N, K], and float32[M, K]."""
    kernel = host.load(kernel_root(), ELEMENT_KERNEL, "gemm", element_defines(kind))
    (n, k), m = w.shape, len(x)
    out = host.output(4 * m * n)
    args = [host.upload(w), host.upload(x.copy()), out, np.int64(m), np.int64(n), np.int64(k)]
    host.launch(kernel, (-(-m * n // 256), 1, 1), (256, 1, 1), args)
    return host.download(out).view(np.float32).reshape(m, n)


def random_elements(rng: np.random.Generator, kind: str, n: int, k: int) -> np.ndarray:
    """Weights as bits [n, k]. Rows take turns: as models have them; any finite (of F32 and BF16, up to 2^32);
    subnormal; large."""
    dtype = ELEMENT_TYPES[kind][1]
    mantissa = {"F32": 23, "F16": 10, "BF16": 7}[kind]
    exponents = [(9, 15), (0, 31), (0, 1), (28, 31)] if kind == "F16" else [(117, 127), (0, 160), (0, 1), (150, 160)]
    w = np.empty((n, k), dtype)
    for row, (low, high) in enumerate(exponents):
        part = w[row::4]
        sign = rng.integers(0, 2, part.shape) << 8 * dtype.itemsize - 1
        w[row::4] = rng.integers(low << mantissa, high << mantissa, part.shape) | sign
    w[rng.random(w.shape) < 0.02] = 0
    return w


def elements_of_any_bits(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights [257, 3], as bits, and float32[257, 3]."""
    rng, dtype = np.random.default_rng(17), ELEMENT_TYPES[kind][1]
    w = rng.integers(0, 256, (257, 3 * dtype.itemsize), dtype=np.uint8).view(dtype)
    x = rng.integers(0, 1 << 32, (257, 3), dtype=np.uint32).view(np.float32)
    x[::2] = gaussians(rng, 129, 3)
    x[:4, 0] = 65519.996, 65520, -65520, 3.4e38  # the last is infinite as a BF16
    # NaN of which rounding as if it were a number makes ±inf, and -0 or +0
    x.view(np.uint32)[4:8, 0] = 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF
    return w, x


def quantizer_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(10)
    special = rng.standard_normal((40, 96))
    for row, value in enumerate([np.inf, -np.inf, np.nan, -np.nan] * 10):
        special[row, rng.integers(0, 96, 1 + row % 7)] = value
    # codes that fall on a half: a greatest value of 127·2^e gives d = 2^e without rounding
    scale = 2.0 ** rng.integers(-20, 9, (40, 1))
    ties = (rng.integers(-126, 126, (40, 96)) + 0.5) * scale
    ties[:, ::32] = 127 * scale
    near = ties.astype(np.float32)
    near[:, 1::2] = np.nextafter(near[:, 1::2], np.float32(np.inf))
    near[:, 2::4] = np.nextafter(near[:, 2::4], np.float32(0))
    greatest = (rng.uniform(1, 2, (64, 1)) * 10.0 ** rng.integers(-33, 33, (64, 1))).astype(np.float32)
    around = ((rng.integers(-126, 126, (64, 4096)) + 0.5) * (greatest / np.float32(127))).astype(np.float32)
    around = (around * (1 + rng.integers(-4, 5, around.shape) * 2.0**-24)).astype(np.float32)
    around[:, ::32] = greatest
    signed_zeros = np.zeros((2, 96))
    signed_zeros[1] = -0.0
    signed_zeros[:, 40] = 1e-3
    return {
        "gaussians and outliers": gaussians(rng, 64, 4096),
        "small and subnormal": rng.standard_normal((64, 96)) * 10.0 ** rng.integers(-47, -36, (64, 1)),
        "huge": rng.standard_normal((64, 96)) * 10.0 ** rng.integers(3, 39, (64, 1)),
        "sum overflows": rng.uniform(1000, 3000, (8, 96)) * np.array([1, -1])[np.arange(8) % 2][:, None],
        "sum at the edge": np.full((8, 32), 65520 / 32) * np.linspace(0.9995, 1.0005, 8)[:, None],
        "zeros": signed_zeros,
        "constant": np.full((3, 32), 0.1) * [[1], [-1], [1e-30]],
        "ties": ties,
        "beside ties": near,
        "around ties of any scale": around,
        "not finite": special,
        "any bits": rng.integers(0, 0x7F800000, (64, 4096)).astype(np.uint32).view(np.float32)
        * rng.choice(np.array([-1, 1], np.float32), (64, 4096)),
    }  # fmt: skip


#: Without optimization: half the time to compile, and every access that the source has is made.
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-O0", "-g1"]


def stack_bytes(cubin: bytes) -> Iterator[int]:
    """Bytes of stack of each function in a cubin: local arrays and spilled registers lie there.

    An ELF file whose section .nv.info is a list of attributes: format 4 (sized), number 0x11 (frame size), the length
    of the payload, then the payload: function, bytes.
    """
    (at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        start = sections[names][4] + name
        if cubin[start : cubin.index(b"\0", start)] != b".nv.info":
            continue
        while length > 0:
            form, attribute, payload = struct.unpack_from("<BBH", cubin, offset)
            if (form, attribute) == (4, 0x11):
                yield struct.unpack_from("<II", cubin, offset + 4)[1]
            step = 4 + (payload if form == 4 else 0)
            offset, length = offset + step, length - step
