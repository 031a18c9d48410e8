"""Every shipped kernel on the CPU host, bit for bit against NumPy; under sanitizers; compiled for every card."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats import ELEMENTS, FLOAT_TYPES, FORMATS, BlockFormat
from gguf_verify.formats.iq1_m import IQ1_M
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.hosts import CpuHost, nvrtc
from gguf_verify.hosts.base import Host
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.launch import Tiles
from gguf_verify.kernels.packed import Packed
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.site import QUANTIZER, Cards
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.llama import Llama
from gguf_verify.semantics import ASCENDING, SEMANTICS, product
from gguf_verify.semantics.activations import encode_q8_1
from gguf_verify.semantics.elements import element_product
from gguf_verify.support.errors import EnvironmentFault, KernelFault, UsageError
from gguf_verify.support.paths import kernel_root
from tests.support.needs import libasan, need, unmet
from tests.support.tools import LEGACY, ROOT, altered_kernel

MS, NS = (1, 3, 33), (1, 31, 257)

#: On these every kernel is tested, on others only those that compute one output a thread: `make test-all` has the rest.
OFTEN = frozenset({"Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q6_K"})
PLAIN = [k for k, spec in KERNELS.items() if not isinstance(spec.launch, Packed)]  # the rest: test_packing.py
PAIRS = [(k, f) for f in FORMATS.values() for k in PLAIN if KERNELS[k].covers(f)]


def often(name: str, fmt: BlockFormat) -> bool:
    return fmt.name in OFTEN or not isinstance(KERNELS[name].launch, Tiles)


ALL = pytest.mark.parametrize(
    ("name", "fmt"),
    [pytest.param(k, f, id=f"{k}-{f.name}", marks=[] if often(k, f) else [pytest.mark.slow]) for k, f in PAIRS],
)
NAIVE = {"f32": "f32_naive", "q8_1": "q8_1_naive"}  # of each semantics
TILED = [k for k, spec in KERNELS.items() if isinstance(spec.launch, Tiles)]


ELEMENT_KERNEL = "gemm/elements/01_naive.cu"
ELEMENT_TYPES = {"F32": (0, np.dtype("<u4")), "F16": (1, np.dtype("<u2")), "BF16": (30, np.dtype("<u2"))}  # ggml's ids
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


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> CpuHost:
    host = CpuHost(2)
    if len(request.session.items) > 50:  # all of them: compile two at a time what the cache does not hold
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda source: host.load(kernel_root(), *source), sources()))
    return host


# -- data ------------------------------------------------------------------------------------------------------------


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


def random_blocks(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random bytes in every field: uint8[n, blocks of k values, bytes]."""
    return rng.integers(0, 256, (n, k // fmt.block_size, fmt.block_bytes), dtype=np.uint8)


def put_extremes(rng: np.random.Generator, fmt: BlockFormat, structs: np.ndarray) -> None:
    """±inf and NaN as a scale and as a minimum of some rows; where scales are bytes, the greatest and E8M0's NaN."""
    n, nb = structs.shape
    for name in half_fields(fmt):
        for row, bits in zip(rng.permutation(n), (0x7C00, 0xFC00, 0x7E01), strict=False):
            put_half(fmt, structs[row : row + 1, -1 - rng.integers(nb) :][:, :1], name, np.full((1, 1), bits, "<u2"))
    if fmt in (MXFP4, NVFP4):
        for row in rng.permutation(n)[:3]:
            structs["e" if fmt is MXFP4 else "d"][row, rng.integers(nb)] = 255


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


# -- GEMMs -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def ordered_product(semantics: str, fmt: BlockFormat, m: int, n: int, k: int) -> tuple[np.ndarray, ...]:
    """Weights, activations and the oracle's bits; for all kernels of the semantics the same."""
    rng = np.random.default_rng(7)
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, KERNELS[NAIVE[semantics]], m, k)
    expected = product(SEMANTICS[semantics], fmt, w, x, ordered=True, threads=2).ordered
    assert expected is not None
    assert np.isfinite(expected).all()
    assert len(np.unique(expected)) > expected.size / 2
    return w, x, expected


@ALL
def test_bits_are_the_oracles(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """At every edge of the shapes. Elements do not depend on M and N, so one oracle serves all of a K."""
    kernel = ShippedKernel(KERNELS[name], host)
    for k, ms, ns in [*((k, MS, NS) for k in lengths(fmt)), (4096, (3,), (31,))]:
        w, x, expected = ordered_product(kernel.semantics, fmt, max(ms), max(ns), k)
        for m in ms:
            for n in ns:
                got = kernel.gemm(kernel.upload(fmt, w[:n]), x[:m])
                assert_same(got, expected[:m, :n], (name, fmt.name, m, n, k))


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


@pytest.mark.slow
@LADDER
def test_bits_of_naive(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    spec = KERNELS[name]
    has_bits_of_naive(ShippedKernel(spec, host), ShippedKernel(KERNELS[NAIVE[spec.semantics]], host), fmt)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_kernels_of_a_semantics_agree(host: CpuHost, fmt: BlockFormat) -> None:
    """On longer rows than the oracle is asked for, and on blocks and activations of nothing but random bytes, where
    scales, minima and sums of ±inf and NaN are among them."""
    rng = np.random.default_rng(8)
    by_semantics: dict[str, list[KernelSpec]] = {}
    for spec in (KERNELS[k] for k in PLAIN):
        if spec.covers(fmt) and often(spec.name, fmt):
            by_semantics.setdefault(spec.semantics, []).append(spec)
    assert max(map(len, by_semantics.values())) > 1
    for specs in by_semantics.values():
        if len(specs) == 1:
            continue
        few = 3 * fmt.block_size
        w, x = random_weights(rng, fmt, 257, 14336), random_activations(rng, specs[0], 3, 14336)
        raw_w = random_blocks(rng, fmt, 257, few).reshape(257, -1)
        raw_x = random_blocks(rng, Q8_1, 129, few).reshape(129, -1)  # more tokens than a tile has
        if specs[0].semantics == "f32":
            raw_x = random_activations(rng, specs[0], 129, few)
            raw_x.view(np.float32)[::7, ::5] = np.inf
        for weights, activations in ((w, x), (raw_w, raw_x)):
            kernels = [ShippedKernel(s, host) for s in specs]
            first, *others = (kernel.gemm(kernel.upload(fmt, weights), activations) for kernel in kernels)
            assert np.isfinite(first).all() == (weights is w)
            assert np.isfinite(first).any()
            for other in others:
                assert_same(other, first)


@ALL
def test_values_that_are_not_finite(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """Scales, minima, sums and activations of ±inf and NaN reach just the outputs that they belong to."""
    spec, rng = KERNELS[name], np.random.default_rng(9)
    n, m, k = 31, 33, 3 * fmt.block_size
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, spec, m, k)
    structs = fmt.view(w.reshape(n, -1, fmt.block_bytes))
    put_extremes(rng, fmt, structs)
    w = structs.view(np.uint8).reshape(n, -1)
    assert fmt in (MXFP4, NVFP4) or not fmt.finite(w.reshape(n, -1, fmt.block_bytes)).all()
    if spec.semantics == "f32":
        values = x.view(np.float32).copy()
        for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan, 3e38), strict=False):
            values[row, rng.integers(k)] = value
        x = values.view(np.uint8)
    else:
        blocks = Q8_1.view(x.reshape(m, -1, Q8_1.block_bytes))
        for field in ("d", "s"):
            for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan), strict=False):
                blocks[field][row, rng.integers(k // 32)] = value
        x = blocks.view(np.uint8).reshape(m, -1)
    kernel = ShippedKernel(spec, host)
    expected = product(SEMANTICS[spec.semantics], fmt, w, x, order=ASCENDING).ordered
    assert expected is not None
    assert 0 < np.isnan(expected).sum() < expected.size
    assert np.isinf(expected).any()
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


def wrong_bits(kernel: ShippedKernel, host: CpuHost) -> float:
    """The share of outputs in which an altered kernel differs from naive, over every tile's edge and several steps."""
    fmt, rng = FORMATS["Q5_0"], np.random.default_rng(21)
    naive = ShippedKernel(KERNELS[NAIVE[kernel.semantics]], host)
    w, x = random_weights(rng, fmt, 129, 288), random_activations(rng, kernel.spec, 129, 288)
    got, expected = kernel.gemm(kernel.upload(fmt, w), x), naive.gemm(naive.upload(fmt, w), x)
    return float((got.view(np.uint32) != expected.view(np.uint32)).mean())


BARRIER = "__syncthreads();"
BARRIERS = [
    pytest.param(name, i, id=f"{name}-{i}")
    for name in TILED
    for i in range((kernel_root() / KERNELS[name].file).read_text().count(BARRIER))
]


@pytest.mark.parametrize(("name", "which"), BARRIERS)
def test_a_missing_barrier_is_seen(host: CpuHost, tmp_path: Path, name: str, which: int) -> None:
    """Threads run one after the other as far as they can, so that whatever is not waited for is not there."""
    parts = (kernel_root() / KERNELS[name].file).read_text().split(BARRIER)
    before, after = parts[which][-80:], parts[which + 1][:80]
    kernel = altered_kernel(tmp_path, name, KERNELS[name].file, before + BARRIER + after, before + after)
    assert wrong_bits(kernel, host) > 0.01


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("f32_tiled", "", "first < K;", "first + STEP <= K;", id="last values dropped"),
        pytest.param("f32_tiled", "", "x[m * K + first + k]", "x[m * K + k]", id="first values again"),
        pytest.param("f32_tiled", "", "codes[h] >> 8 * i", "codes[0] >> 8 * i", id="upper half of a block lost"),
        pytest.param("f32_vectorized", "", "g < slices", "g < slices - 1", id="last slice dropped"),
        pytest.param("f32_vectorized", "", "wv[k][row + 16]", "wv[k][row + 15]", id="a neighbour's row"),
        pytest.param("f32_vectorized", "", "int k = 0; k < QK; ++k", "int k = QK - 1; k >= 0; --k", id="descending k"),
        pytest.param("q8_1_tiled", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_tiled", "", "x + m * slices + first,", "x + m * slices,", id="first activations again"),
        pytest.param("q8_1_vectorized", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_vectorized", "", "a[j][k / 4]", "a[j][k / 5]", id="codes of other words"),
        pytest.param("q8_1_dp4a_tiled", "", "first < slices; f", "first + STEP <= slices; f", id="last dropped"),
        pytest.param("q8_1_dp4a_tiled", "", "(int)a.w, (int)b[i].w", "(int)a.w, (int)b[i].z", id="a word twice"),
        pytest.param("q8_1_dp4a_tiled", "common.cuh", "-12582912.0f", "-12582911.0f", id="off by one in every sum"),
        pytest.param("q8_1_mma", "", "now = b & 1", "now = 0", id="stale tile"),
        pytest.param("q8_1_mma", "", "b < nb; ++b", "b < nb - 1; ++b", id="last slice dropped"),
        pytest.param("q8_1_mma", "", "{upper.x, lower.x, upper.y, lower.y}", "{upper.x, upper.y, lower.x, lower.y}",
                     id="fragments swapped"),
        pytest.param("q8_1_mma", "", "e % 2 ? of_tokens[t].w", "e / 2 ? of_tokens[t].w", id="another token's sum"),
        pytest.param("q8_1_mma", "gemm/mma.cuh", "l % 4 * 2 + i % 2", "l % 4 * 2", id="another column"),
    ],
)  # fmt: skip
def test_faults_of_tiles(host: CpuHost, tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    assert wrong_bits(altered_kernel(tmp_path, name, file or KERNELS[name].file, old, new), host) > 0.01


@pytest.mark.parametrize("name", TILED)
def test_a_tile_past_the_edge_is_seen(tmp_path: Path, name: str) -> None:
    """Outputs of tokens that are not there."""
    source = (kernel_root() / KERNELS[name].file).read_text()
    found = re.search(r"if \((m0 \+ token < M|m < M) &&|if \((m >= M)\) continue", source)
    assert found is not None
    old = found[0]
    new = "if (true &&" if found[1] else "if (false) continue"
    kernel, fmt, rng = (
        altered_kernel(tmp_path, name, KERNELS[name].file, old, new),
        FORMATS["Q4_1"],
        np.random.default_rng(22),
    )
    w, x = random_weights(rng, fmt, 8, 32), random_activations(rng, kernel.spec, 5, 32)
    with pytest.raises(KernelFault, match="wrote outside its output"):
        kernel.gemm(kernel.upload(fmt, w), x)


def test_a_type_that_a_kernel_does_not_cover(host: CpuHost) -> None:
    kernel = ShippedKernel(KERNELS["q8_1_mma"], host)
    rows = np.zeros((2, 210), np.uint8)
    with pytest.raises(UsageError, match="kernel q8_1_mma does not cover type Q6_K"):
        kernel.upload(FORMATS["Q6_K"], rows)


def test_cards() -> None:
    assert [Cards(80).target(sm) for sm in ("75", "80", "120")] == [None, "80", "120"]
    assert [Cards(exact="90a").target(sm) for sm in ("80", "90", "100")] == [None, "90a", None]
    with pytest.raises(EnvironmentFault, match="kernel fast needs a GPU of sm_90a; this one is sm_100"):
        Cards(exact="90a").target_or_fault("fast", "100")
    with pytest.raises(EnvironmentFault, match="kernel fast needs a GPU of sm_80 or later; this one is sm_75"):
        Cards(80).target_or_fault("fast", "75")


@pytest.mark.parametrize("name", PLAIN)
def test_zeros_give_a_positive_zero(host: CpuHost, name: str) -> None:
    """-0 from a negative scale times no codes does not survive the sum with +0."""
    kernel, fmt = ShippedKernel(KERNELS[name], host), FORMATS["Q8_0"]
    w = fmt.pack(d=np.full((4, 3), -1.0), qs=np.zeros((4, 3, 32))).reshape(4, -1)
    x = kernel.quantize(np.ones((2, 96), np.float32))
    assert (kernel.gemm(kernel.upload(fmt, w), x).view(np.uint32) == 0).all()


# -- weights that are not quantized ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_bits_of_elements_are_the_oracles(host: CpuHost, kind: str) -> None:
    """Of any K. Activations lie on ties of the rounding too, and 65520 and more, which is infinite as a half."""
    rng = np.random.default_rng(16)
    for k in (1, 31, 96, 257, 4096):
        ms, ns = (MS, NS) if k < 4096 else ((3,), (31,))
        w, x = random_elements(rng, kind, max(ns), k), gaussians(rng, max(ms), k)
        ties = rng.random(x.shape) < 0.1
        x.view(np.uint32)[ties] &= np.uint32({"F32": 0xFFFFFFFF, "F16": 0xFFFFF000, "BF16": 0xFFFF8000}[kind])
        expected = element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered
        assert expected is not None
        assert np.isfinite(expected).all()
        for m in ms:
            for n in ns:
                assert_same(element_gemm(host, kind, w[:n], x[:m]), expected[:m, :n], (kind, m, n, k))


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


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_elements_of_any_bits(host: CpuHost, kind: str) -> None:
    """±inf and NaN among them, and sums that overflow."""
    w, x = elements_of_any_bits(kind)
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered
    assert expected is not None
    for kind_of in (np.isnan, np.isinf, np.isfinite):
        assert kind_of(expected).sum() > 50
    assert_same(element_gemm(host, kind, w, x), expected)


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_products_of_elements_are_llama_cpps(host: CpuHost, kind: str, llama: Llama) -> None:
    """Its `mul_mat` lies within the bound, as the kernel does; without the activations' rounding it would not."""
    rng = np.random.default_rng(18)
    for m, n, k in ((1, 5, 32), (3, 33, 96), (33, 31, 4096)):
        w = random_elements(rng, kind, 4 * n, k)[::4].copy()  # as models have them
        x = rng.standard_normal((m, k)).astype(np.float32)
        expected = element_product(kind, w.view(np.uint8), x)
        for y in (llama.multiply(ELEMENT_TYPES[kind][0], w.view(np.uint8), x), element_gemm(host, kind, w, x)):
            assert (np.abs(y - expected.exact) <= expected.bound).all()
        if kind != "F32" and k == 96:
            values = (w.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else w.view(np.float16)
            assert (np.abs(x.astype(np.float64) @ values.T.astype(np.float64) - expected.exact) > expected.bound).any()


# -- the quantizer ---------------------------------------------------------------------------------------------------


def quantizer_inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(10)
    special = rng.standard_normal((40, 96))
    for row, value in enumerate([np.inf, -np.inf, np.nan, -np.nan] * 10):
        special[row, rng.integers(0, 96, 1 + row % 7)] = value
    # codes that fall on a half: a greatest value of 127·2^e gives d = 2^e without rounding
    scale = 2.0 ** rng.integers(-20, 9, (40, 1))
    ties = (rng.integers(-126, 126, (40, 96)) + 0.5) * scale
    ties[:, ::32] = 127 * scale
    near = np.float32(ties)
    near[:, 1::2] = np.nextafter(near[:, 1::2], np.float32(np.inf))
    near[:, 2::4] = np.nextafter(near[:, 2::4], np.float32(0))
    greatest = np.float32(rng.uniform(1, 2, (64, 1)) * 10.0 ** rng.integers(-33, 33, (64, 1)))
    around = np.float32((rng.integers(-126, 126, (64, 4096)) + 0.5) * (greatest / np.float32(127)))
    around = np.float32(around * (1 + rng.integers(-4, 5, around.shape) * 2.0**-24))
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


@pytest.mark.parametrize("kind", quantizer_inputs())
def test_quantizer(host: CpuHost, kind: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        x = quantizer_inputs()[kind].astype(np.float32)
    kernel = ShippedKernel(KERNELS["q8_1_naive"], host)
    m, nb = len(x), x.shape[1] // 32
    got, expected = (Q8_1.view(a.reshape(m, nb, Q8_1.block_bytes)) for a in (kernel.quantize(x), encode_q8_1(x)))
    np.testing.assert_array_equal(got["qs"], expected["qs"])
    for field in ("d", "s"):
        nan = np.isnan(expected[field])
        assert (got[field].view("<u2")[nan] == 0x7FFF).all()  # a GPU's NaN; NumPy keeps the payload
        np.testing.assert_array_equal(got[field].view("<u2")[~nan], expected[field].view("<u2")[~nan])
    if kind in ("sum overflows", "huge"):
        assert np.isinf(expected["s"]).any()
    if kind == "sum at the edge":
        assert 0 < np.isinf(expected["s"]).sum() < expected.size
    if kind in ("ties", "beside ties"):
        assert (np.abs(x / expected["d"].astype(np.float32).repeat(32, axis=1) % 1 - 0.5) < 1e-3).mean() > 0.9
    if kind == "not finite":
        assert np.isnan(expected["s"]).any()
        assert not np.isnan(expected["d"]).any()  # NaN is not counted in the largest magnitude


@pytest.mark.parametrize(
    ("name", "fmt_name"),
    [
        pytest.param(k, f, marks=[pytest.mark.slow] * (k not in PLAIN and f != "Q5_1"))
        for k in KERNELS
        for f in ("Q4_0", "Q5_1", "Q8_0")
    ],
)
def test_quantized_on_the_way(host: CpuHost, name: str, fmt_name: str) -> None:
    """From values: the bits of quantizing, then multiplying."""
    rng, kernel, fmt = np.random.default_rng(24), ShippedKernel(KERNELS[name], host), FORMATS[fmt_name]
    for kind, x in quantizer_inputs().items():
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float32)[:9, :96]
        weights = kernel.upload(fmt, random_weights(rng, fmt, 35, x.shape[1]))
        expected = kernel.gemm(weights, kernel.quantize(x))
        assert_same(kernel.product(weights, x), expected, (name, fmt_name, kind))


def test_quantizer_of_a_block_of_nan(host: CpuHost) -> None:
    """Nothing is left to count in the largest magnitude."""
    x = np.full((1, 32), np.nan, np.float32)
    got, expected = (
        Q8_1.view(a)["d"] for a in (ShippedKernel(KERNELS["q8_1_naive"], host).quantize(x), encode_q8_1(x))
    )
    np.testing.assert_array_equal(got, expected)


# -- sanitizers, and indices past 2^31 -------------------------------------------------------------------------------

#: Without optimization: half the time to compile, and every access that the source has is made.
SANITIZERS = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-O0", "-g1"]


def in_a_process(root: Path, cases: list[tuple[str, str]], sanitizers: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ.copy()
    if sanitizers:
        need("libasan")
        # leaks are Python's own; the library must come before everything that allocates
        environment |= {"LD_PRELOAD": str(libasan()), "ASAN_OPTIONS": "detect_leaks=0"}
    options = {"root": str(root), "cases": cases, "flags": SANITIZERS if sanitizers else []}
    command = [sys.executable, "-m", "tests.support.sanitized", json.dumps(options)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def test_clean_under_sanitizers(tmp_path: Path) -> None:
    """All kernels, their formats and the quantizer; inputs end with their allocations."""
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    cases = [(k, f.name) for k, f in PAIRS if often(k, f)] + [("elements", kind) for kind in FLOAT_TYPES]
    parts = [cases[i::2] for i in range(2)]
    roots = [root, tmp_path / "other"]
    shutil.copytree(kernel_root(), roots[1])
    with ThreadPoolExecutor(2) as pool:  # compiling takes longest
        for part, done in zip(parts, pool.map(in_a_process, roots, parts), strict=True):
            assert done.returncode == 0, done.stderr[-3000:]
            assert f"{len(part)} cases are clean" in done.stdout


def altered_root(folder: Path, file: str, old: str, new: str) -> Path:
    return altered_kernel(folder, "f32_naive", file, old, new).root


@pytest.mark.parametrize(
    ("name", "fmt", "file", "old", "new", "said"),
    [
        pytest.param(
            "q8_1_dp4a", "Q8_0", "formats/q8_0.cuh", "low = load_word_2(qs, j)", "low = load_word_4(qs, j)",
            "load of misaligned address", id="4-byte words from a 34-byte block",
        ),
        pytest.param(
            "q8_1_dp4a", "Q6_K", "formats/q6_k.cuh", "load_word_2(qh + s", "load_word_4(qh + s",
            "load of misaligned address", id="4-byte words from a 210-byte block",
        ),
        pytest.param(
            "q8_1_naive", "Q4_0", "gemm/q8_1/01_naive.cu", "b < nb", "b <= nb",
            "heap-buffer-overflow", id="a block past the row",
        ),
        pytest.param(
            "f32_naive", "Q2_K", "gemm/f32/01_naive.cu", "s < SLICES", "s <= SLICES",
            "runtime error: index|heap-buffer-overflow", id="a slice past the block",
        ),
        pytest.param(
            "q8_1_tiled", "Q4_0", "gemm/q8_1/02_tiled.cu", "m0 + t < M ? m0 + t : M - 1", "m0 + t",
            "heap-buffer-overflow", id="tokens past the last",
        ),
        pytest.param(
            "q8_1_dp4a_tiled", "Q4_K", "gemm/q8_1/05_dp4a_tiled.cu", "n0 + r < N ? n0 + r : N - 1", "n0 + r",
            "heap-buffer-overflow", id="rows past the last",
        ),
        pytest.param(
            "q8_1_mma", "Q5_0", "gemm/q8_1/06_mma.cu", "b + 1 < nb) {\n            int", "true) {\n            int",
            "heap-buffer-overflow", id="a slice past the row",
        ),
        pytest.param(
            "f32_vectorized", "Q8_0", "gemm/f32/03_vectorized.cu", "g * QK + k)", "g * QK + k + 2)",
            "misaligned address", id="16 bytes at a multiple of 8",
        ),
        pytest.param(
            "elements", "BF16", "gemm/elements/01_naive.cu", "k < K", "k <= K",
            "heap-buffer-overflow", id="an element past the row",
        ),
        pytest.param(
            "f32_naive", "Q5_1", "gemm/f32/01_naive.cu", "y[i] = acc", "y[i + 1] = acc",
            "heap-buffer-overflow", id="an element past the output",
        ),
        pytest.param(
            "q8_1_naive", "Q5_0", "quantize/q8_1.cu", "if (b < n_blocks)", "if (b <= n_blocks)",
            "heap-buffer-overflow", id="a block past the activations",
        ),
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, fmt: str, file: str, old: str, new: str, said: str) -> None:
    root = altered_root(tmp_path, file, old, new)
    done = in_a_process(root, [(name, fmt)])
    assert done.returncode != 0
    assert re.search(said, done.stderr)


@pytest.mark.parametrize(
    ("name", "fmt", "file", "old", "new"),
    [
        ("q8_1_naive", "Q8_0", "gemm/q8_1/01_naive.cu", "(int64_t)blockIdx.x * blockDim.x", "blockIdx.x * blockDim.x"),
        ("q8_1_dp4a", "Q6_K", "gemm/q8_1/04_dp4a.cu", "w + i % N * nb", "w + (int)(i % N * nb)"),
        ("f32_naive", "NVFP4", "gemm/f32/01_naive.cu", "x + i / N * K", "x + (uint32_t)(i / N) * K"),
        ("q8_1_mma", "Q4_1", "gemm/q8_1/06_mma.cu", "(int64_t)(blockIdx.x / tiles_m)", "(int)(blockIdx.x / tiles_m)"),
        ("f32_tiled", "Q5_1", "gemm/f32/02_tiled.cu", "(int64_t)(blockIdx.x % tiles_m)", "(int)(blockIdx.x % tiles_m)"),
        ("elements", "F16", "gemm/elements/01_naive.cu", "w + i % N * K", "w + (int)(i % N * K)"),
        ("q8_1_naive", "Q8_0", "quantize/q8_1.cu", "(int64_t)blockIdx.x * WARPS", "blockIdx.x * WARPS"),
    ],
)
def test_an_index_of_32_bits_is_seen(tmp_path: Path, name: str, fmt: str, file: str, old: str, new: str) -> None:
    """That indices are 64 bits wide is part of what `test_clean_under_sanitizers` runs; here it must fail."""
    done = in_a_process(altered_root(tmp_path, file, old, new), [(name, fmt)], sanitizers=False)
    assert done.returncode != 0
    assert done.returncode < 0 or "wrong bits" in done.stderr


# -- every card ------------------------------------------------------------------------------------------------------

CARDS = ("75", "80", "86", "89", "90", "100", "120")


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


@pytest.fixture(scope="module")
def supported() -> list[int]:
    need("nvrtc")
    return nvrtc.architectures()


@pytest.mark.parametrize(
    "sm", [sm if sm in ("75", "120") else pytest.param(sm, marks=pytest.mark.slow) for sm in CARDS]
)
def test_compiles_for_every_card(supported: list[int], sm: str) -> None:
    """And keeps all in registers: no local memory, so nothing spilled."""
    if int(sm) not in supported:
        unmet("nvrtc", f"this version does not compile for sm_{sm}")

    def compiled(source: tuple[str, str, dict[str, str]]) -> list[int]:
        file, _, macros = source
        return list(stack_bytes(nvrtc.compile_cubin(kernel_root(), file, sm, macros)))

    with ThreadPoolExecutor(2) as pool:
        for source, stacks in zip(sources(), pool.map(compiled, sources()), strict=True):
            assert stacks, "the cubin does not say"
            assert not any(stacks), (sm, source, stacks)


def test_a_stack_is_seen(supported: list[int], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ void k(const int* x, int* y, int n) {\n'
        "    int a[64] = {};\n    for (int i = 0; i < n; ++i) a[x[i] & 63] += i;\n    y[0] = a[n & 63];\n}\n"
    )
    for sm in CARDS:
        if int(sm) in supported:
            assert max(stack_bytes(nvrtc.compile_cubin(tmp_path, "k.cu", sm, {}))) == 256


def test_nvrtc_says_what_is_wrong(supported: list[int], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k() { no_such_name(); }\n")
    with pytest.raises(EnvironmentFault, match=r"could not compile k\.cu for sm_90: .*no_such_name"):
        nvrtc.compile_cubin(tmp_path, "k.cu", "90", {})
    with pytest.raises(EnvironmentFault, match="INVALID_OPTION"):
        nvrtc.compile_cubin(tmp_path, "k.cu", "13", {})
