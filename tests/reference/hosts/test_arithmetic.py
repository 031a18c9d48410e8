"""The CPU host's arithmetic: guards, halves, dot products, tensor cores and roundings."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.memory import GUARD_BYTES, POISON
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import KernelFault, NotRun
from tests.support.short_kernels import WRITE_A_BYTE, Build, run


@pytest.mark.parametrize("nbytes", [1, 7, 64, 4096])
def test_bytes_outside_the_output(build: Build, nbytes: int) -> None:
    host = CpuHost(1)
    kernel = build(WRITE_A_BYTE, host)
    for at, counts in [
        (-1, "1 byte before, 0 after"),
        (-GUARD_BYTES, "1 byte before, 0 after"),
        (nbytes, "0 bytes before, 1 after"),
        (nbytes + GUARD_BYTES - 1, "0 bytes before, 1 after"),
    ]:
        with pytest.raises(KernelFault, match=counts):
            run(host, kernel, 1, 1, np.empty(nbytes, np.uint8), np.int64(at))
    for at in (0, nbytes - 1):
        assert run(host, kernel, 1, 1, np.empty(nbytes, np.uint8), np.int64(at))[at] == 7


def test_unwritten_elements_hold_poison(build: Build) -> None:
    host = CpuHost(1)
    got = run(host, build(WRITE_A_BYTE, host), 1, 1, np.empty(100, np.uint32), np.int64(4 * 41 + 2))
    assert (np.flatnonzero(got != POISON) == [41]).all()
    assert np.isnan(np.uint32(POISON).view(np.float32))


def all_halves() -> np.ndarray:
    return np.arange(2**16, dtype=np.uint16)


def test_half_to_float(build: Build) -> None:
    host = CpuHost(1)
    kernel = build(
        "void k(float* y, const uint16_t* x) { const int i = blockIdx.x; y[i] = half_to_float(x[i]); }", host
    )
    got = run(host, kernel, 2**16, 1, np.empty(2**16, np.float32), all_halves())
    expected = all_halves().view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_float_to_half(build: Build) -> None:
    host = CpuHost(1)
    source = """void k(uint16_t* y, const float* x, int64_t n) {
        for (int64_t i = blockIdx.x; i < n; i += gridDim.x) y[i] = float_to_half(x[i]);
    }"""
    # Every half, every midpoint of two and their neighbours, in both signs; the edges of the range; random bits.
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    midpoints = np.append((finite[1:] + finite[:-1]) / 2, 65520.0)
    exact = np.concatenate([finite, midpoints]).astype(np.float32)
    up, down = np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))
    edges = [65519.99, 65520, 65536, 3e38, np.inf, np.nan, 1e-45, 1e-40, 2**-25, 2**-24, 2**-14, 2**-126]
    values = np.concatenate([exact, up, down, np.array(edges, np.float32)])
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000).astype(np.uint32).view(np.float32)
    x = np.concatenate([values, -values, bits])
    got = run(host, build(source, host), 64, 1, np.empty(len(x), np.uint16), x, np.int64(len(x)))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    expected[np.isnan(x)] = 0x7FFF  # what a GPU's cvt.rn.f16.f32 makes of every NaN
    np.testing.assert_array_equal(got, expected)
    assert (got == 0x7C00).any()


def test_byte_perm(build: Build) -> None:
    host, rng = CpuHost(1), np.random.default_rng(3)
    source = """void k(uint32_t* y, const uint32_t* a, const uint32_t* b, const uint32_t* s, int n) {
        for (int i = 0; i < n; ++i) y[i] = __byte_perm(a[i], b[i], s[i]);
    }"""
    a, b, s = (rng.integers(0, 1 << 32, 500, np.uint32) for _ in range(3))
    got = run(host, build(source, host), 1, 1, np.empty(500, np.uint32), a, b, s, np.int32(500))
    both = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], axis=1)
    chosen = np.stack([s >> 4 * i & 7 for i in range(4)], axis=1)
    np.testing.assert_array_equal(got, np.take_along_axis(both, chosen, axis=1).copy().view(np.uint32)[:, 0])


def test_mma(build: Build) -> None:
    """Against a product of integers; warps of a block do not mix."""
    host, rng = CpuHost(1), np.random.default_rng(4)
    source = """void k(int*, const int8_t*, const int8_t*);
#include "gemm/mma.cuh"
extern "C" __global__ void k(int* y, const int8_t* a, const int8_t* b) {
        const int warp = threadIdx.x / 32, r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        const uint32_t* rows = (const uint32_t*)(a + 512 * warp);
        const uint32_t* columns = (const uint32_t*)(b + 256 * warp);
        const uint32_t *upper = rows + 8 * r + c, *lower = upper + 64;
        const uint32_t of_a[4] = {upper[0], lower[0], upper[4], lower[4]};
        const uint32_t of_b[2] = {columns[8 * r + c], columns[8 * r + c + 4]};
        int d[4];
        mma(d, of_a, of_b, 100);
        for (int i = 0; i < 4; ++i) y[128 * warp + 8 * (r + i / 2 * 8) + 2 * c + i % 2] = d[i];
    }"""
    a, b = rng.integers(-128, 128, (3, 16, 32), np.int8), rng.integers(-128, 128, (3, 8, 32), np.int8)
    got = run(host, build(source, host), 1, 96, np.empty((3, 16, 8), np.int32), a, b)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1) + 100)


def test_buffers_are_aligned() -> None:
    """Wherever the array lies; a kernel may load 16 bytes at a time."""
    whole = np.arange(200, dtype=np.uint8)
    for at in range(32):
        buffer = CpuHost(1).upload(whole[at : at + 100])
        assert buffer.address % 16 == 0
        np.testing.assert_array_equal(buffer.array, whole[at : at + 100])


@pytest.mark.parametrize("flags", [[], ["-mno-sse4.1"]], ids=["simd", "portable"])
def test_dp4a(build: Build, flags: list[str]) -> None:
    if flags and "x86_64" not in os.uname().machine:
        pytest.skip("the SIMD path is x86's")
    host = CpuHost(1, flags)
    source = """void k(int* y, const int* a, const int* b, const int* c, int n) {
        for (int i = 0; i < n; ++i) y[i] = __dp4a(a[i], b[i], c[i]);
    }"""
    rng = np.random.default_rng(2)
    extreme = np.array([-128, -127, -1, 0, 1, 127], np.int8)
    a, b = (np.concatenate([rng.choice(extreme, (3000, 4)), rng.integers(-128, 128, (3000, 4)).astype(np.int8)])
            for _ in range(2))  # fmt: skip
    a[0] = b[0] = b[1] = -128
    a[1] = 127
    c = rng.integers(-(2**30), 2**30, len(a)).astype(np.int32)
    got = run(host, build(source, host), 1, 1, c, a.view(np.int32), b.view(np.int32), c, np.int32(len(a)))
    np.testing.assert_array_equal(got, c + (a.astype(np.int32) * b).sum(axis=1))


def test_roundings_are_those_asked_for(build: Build) -> None:
    """One rounding in __fmaf_rn, two in a·b + c (never contracted), and subnormal results are kept."""
    source = """void k(float* y, const float* a, const float* b, const float* c, int n) {
        for (int i = 0; i < n; ++i) {
            y[i] = __fmaf_rn(a[i], b[i], c[i]);
            y[n + i] = __fadd_rn(__fmul_rn(a[i], b[i]), c[i]);
            y[2 * n + i] = a[i] * b[i] + c[i];
            y[3 * n + i] = __fdiv_rn(a[i], b[i]);
        }
    }"""
    host = CpuHost(1)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 5000)).astype(np.float32)
    # nearly cancels, so that a rounding too many shows
    c = (-(a * b) * (1 + rng.integers(-2, 3, 5000) * 2.0**-23)).astype(np.float32)
    a[:1000] *= np.float32(2**-70)
    b[:1000] *= np.float32(2**-70)
    a[:1000:2] *= np.float32(2**-8)
    c[:1000] = rng.integers(-9, 10, 1000) * np.float32(2**-149)
    got = run(host, build(source, host), 1, 1, np.empty((4, 5000), np.float32), a, b, c, np.int32(5000))
    # 24 + 24 bits and a near-cancelling c fit float64's 53 (and below 2^-126, its range), so one rounding is left
    fused = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (fused != a * b + c).mean() > 0.3
    assert ((fused != 0) & (np.abs(fused) < 2**-126)).any()
    for row, expected in zip(got, [fused, a * b + c, a * b + c, a / b], strict=True):
        np.testing.assert_array_equal(row.view(np.uint32), expected.view(np.uint32))


# ---- conversions -----------------------------------------------------------------------------------------------------
# Floats that an integer type cannot hold: the CPU host makes the integer that a GPU makes, or says that it cannot.


#: Of C++, by bits and sign.
INTEGERS = {
    (8, True): "signed char", (8, False): "unsigned char", (16, True): "short", (16, False): "unsigned short",
    (32, True): "int", (32, False): "unsigned", (64, True): "long long", (64, False): "unsigned long long",
}  # fmt: skip
TYPES = [(source, bits, is_signed) for source in ("float", "double") for bits, is_signed in INTEGERS]
_CASES = "".join(
    f"case {i}: y[0] = (long long)({INTEGERS[bits, is_signed]})({source})x[0]; break;\n"
    for i, (source, bits, is_signed) in enumerate(TYPES)
)
CAST = f"void k(long long* y, const double* x, int n) {{ if (threadIdx.x) return;\nswitch (n) {{\n{_CASES}}} }}"
_ENDS = [sign * 2.0**bits for bits in (7, 8, 15, 16, 31, 32, 63, 64, 100) for sign in (-1, 1)]
VALUES = [
    *_ENDS, *(math.nextafter(v, 0) for v in _ENDS), 0.75, -0.75, -1.0, -5.0, 300.5, -300.5, 70000.0, 3e9, -3e9,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
#: Functions of <math.h>, and how they round.
ROUNDING: dict[str, Callable[[float], int]] = {
    "lrint": round, "llrint": round, "lround": lambda x: math.trunc(x + math.copysign(0.5, x))
}  # fmt: skip

HOSTS = [
    pytest.param(False, id="plain"),
    pytest.param(True, id="checked", marks=pytest.mark.skipif(checks_fault() is not None, reason="GCC alone checks")),
]


def host(checked: bool) -> CpuHost:
    made = CpuHost(1).under(Schedule(checked=True)) if checked else CpuHost(1)
    assert isinstance(made, CpuHost)
    return made


def on_gpu(x: float, source: str, bits: int, is_signed: bool) -> int:
    """The bits that nvcc 13.0's code makes: cvt.rzi to 32 bits at least, which saturates, and of that the lower bits.
    Of NaN (PTX ISA 9.0, cvt): 0, or the upper bit where source or destination has 64 bits."""
    wide = max(bits, 32)
    if math.isnan(x):
        made = 1 << (wide - 1) if wide == 64 or source == "double" else 0
    else:
        least, most = (-(1 << (wide - 1)), (1 << (wide - 1)) - 1) if is_signed else (0, (1 << wide) - 1)
        made = most if x >= most else least if x <= least else math.trunc(x)
    made &= (1 << bits) - 1
    return made - (1 << bits) if is_signed and made >> (bits - 1) else made


def holds(x: float, bits: int, is_signed: bool) -> bool:
    least, past = (-(1 << (bits - 1)), 1 << (bits - 1)) if is_signed else (0, 1 << bits)
    return least - 1 < x < past


@pytest.mark.parametrize("checked", HOSTS)
def test_a_cast_is_a_gpus_or_not_made(build: Build, checked: bool) -> None:
    on = host(checked)
    kernel = build(CAST, on)
    refused = set()
    for number, (source, bits, is_signed) in enumerate(TYPES):
        for value in VALUES:
            x = float(np.float32(value)) if source == "float" else value
            expected: int | None = None
            with contextlib.suppress(NotRun):
                made = run(on, kernel, 1, 1, np.zeros(1, np.uint64), np.array([x]), np.int32(number))
                expected = on_gpu(x, source, bits, is_signed) % 2**64
                assert int(made[0]) == expected, (source, bits, is_signed, x)
            if expected is None:
                refused.add((bits, is_signed))
                assert not holds(x, bits, is_signed), (source, bits, is_signed, x)
    assert refused == set(INTEGERS)


def saturated(name: str, x: float) -> int:
    if math.isnan(x):
        return -(2**63)
    made = ROUNDING[name](x) if math.isfinite(x) else int(math.copysign(2**64, x))
    return max(-(2**63), min(2**63 - 1, made))


def test_the_reason_names_the_line(build: Build) -> None:
    on = host(False)
    kernel = build("void k(int* y, const float* x, int n) {\n\n y[0] = (int)(unsigned)x[0]; }", on)
    with pytest.raises(NotRun, match=r"at k\.cu:4: a GPU gives the nearest integer, this CPU another one"):
        run(on, kernel, 1, 1, np.zeros(1, np.int32), np.array([-1], np.float32), np.int32(0))


@pytest.mark.parametrize("of", ["float", "double"])
def test_functions_of_the_c_library_saturate(build: Build, of: str) -> None:
    """Those of C, and the overloads of C++."""
    on = host(False)
    names = [name + suffix for name in ROUNDING for suffix in ("", "f" * (of == "float"))]
    cases = "".join(f"case {i}: y[threadIdx.x] = {name}(x[threadIdx.x]); break;" for i, name in enumerate(names))
    kernel = build(f"void k(long long* y, const {of}* x, int n) {{ switch (n) {{ {cases} }} }}", on)
    x = np.array(
        [0.5, 1.5, -2.5, 1e10, 1e19, -1e19, math.inf, -math.inf, math.nan],
        {"float": np.float32, "double": np.float64}[of],
    )
    for i, name in enumerate(names):
        made = run(on, kernel, 1, len(x), np.zeros(len(x), np.int64), x, np.int32(i))
        assert made.tolist() == [saturated(name.removesuffix("f"), v) for v in map(float, x)], name
