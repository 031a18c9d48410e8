"""CUDA's types on the CPU host: their layouts, their names beside a program's own, halves in warps and in atomic
operations."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts.compiler import compiler
from gguf_verify.hosts.cpu_host import CheckedHost, CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.paths import kernel_root
from tests.support.cuda_functions import OnCpu, operands
from tests.support.exact_formats import (
    DOUBLE,
    FLOAT,
    INTEGERS,
    MODES,
    Format,
    assert_same,
    integers_of,
    of_nan,
    signed,
    values,
)


def loaded(folder: Path, source: str, host: CpuHost, **defines: str) -> Any:
    shutil.copytree(kernel_root(), folder / "kernels")
    (folder / "kernels" / "k.cu").write_text(source)
    return host.load(folder / "kernels", "k.cu", "k", defines)


#: Sizes and alignments: CUDA C++ Programming Guide, "Built-in Vector Types".
LAYOUTS = {
    "char": (1, 1, 2, 1, 4), "short": (2, 2, 4, 2, 8), "int": (4, 4, 8, 4, 16), "long": (8, 8, 16, 8, 16),
    "longlong": (8, 8, 16, 8, 16), "float": (4, 4, 8, 4, 16), "double": (8, 8, 16, 8, 16),
}  # fmt: skip


def layouts() -> str:
    lines = ["#include <vector_types.h>", "#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#include <cuda_fp8.h>"]
    for name, (size, *aligned) in LAYOUTS.items():
        for prefix in ["", "u"] if name not in ("float", "double") else [""]:
            for n, alignment in enumerate(aligned, 1):
                type_ = f"{prefix}{name}{n}"
                lines.append(f"static_assert(sizeof({type_}) == {size * n} && alignof({type_}) == {alignment});")
                lines.append(f"static_assert(sizeof(make_{type_}({', '.join('1' * n)})) == {size * n});")
    for type_, size in {
        "__half": 2, "__half2": 4, "__nv_bfloat16": 2, "__nv_bfloat162": 4, "__half_raw": 2, "__half2_raw": 4,
        "half": 2, "half2": 4, "nv_bfloat16": 2, "nv_bfloat162": 4, "__nv_fp8_e4m3": 1, "__nv_fp8x2_e5m2": 2,
        "__nv_fp8x4_e4m3": 4,
    }.items():  # fmt: skip
        lines.append(f"static_assert(sizeof({type_}) == {size} && alignof({type_}) == {size});")
        lines.append(f"static_assert(std::is_trivially_default_constructible<{type_}>::value);")
    return "\n".join(lines)


NAMES = """
#define A 1
#define N 2
#define M 3
#define K 4
#define QK 5
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math_constants.h>
#include <math.h>
#include <stdint.h>
#include <cstdint>
#include <cassert>
#include <type_traits>
#define SIZE 6
#define Format 7
#define rn 8
static __device__ float half_to_float(half h) { return __half2float(h); }
static __device__ half float_to_half(float f) { return __float2half(f); }
template <class T> static __device__ T lesser(T a, T b) { return min(a, b); }
template <class T> static __device__ T whole(T a) { return a; }
struct block {
    union { half2 dm; struct { half d, m; } both; };
    uint8_t qs[4];
};
static_assert(sizeof(block) == 8);
enum Rounding { DOWN, UP, NEAREST };
static __device__ int lane_of(int lane) { return lane; }
__device__ half2 table[2];
extern "C" __global__ void k(float* y, const half* x) {
    __shared__ half tile[32];
    const int lane = lane_of(threadIdx.x);
    tile[lane] = x[lane];
    __syncthreads();
    half sum = tile[31 - lane];
    sum += half(1);
    sum = sum * __float2half(2.0f);
    const block b = {{half2(sum, __hneg(sum))}, {1, 2, 3, 4}};
    nv_bfloat16 of_sum(sum);
    of_sum = of_sum + nv_bfloat16(0.5f);
    const dim3 grid(2, 3);
    float total = half_to_float(float_to_half(sum)) + (float)of_sum + (float)b.both.m + lesser(3, 4) + whole(2u);
    total += max(grid.x, 3) + abs(-1.5f) + fmaxf(CUDART_PI_F, 4.0f) + A + N + M + K + QK + SIZE + Format + rn + UP;
    total += isnan(total) || isinf(total) ? 1000 : 0;
    assert(total == total);
    if (!__hisnan(sum) && sum != half(0) && sum > x[0] - x[0]) total += __ldg(&x[lane]) ? 0.25f : 0;
    y[lane] = total;
}
"""


def test_layouts_and_names(tmp_path: Path) -> None:
    """A program's own names and macros may be those that the headers use within, and stand before or after them."""
    host = CpuHost(1)
    kernel = loaded(tmp_path, layouts() + NAMES, host, S="9", P="10", F="11", TYPE="12")
    x = np.arange(1, 33, dtype=np.float16)
    y = host.output(4 * 32)
    host.launch(kernel, (1, 1, 1), (32, 1, 1), [y, host.upload(x)])
    sums = 2 * (x[::-1].astype(np.float64) + 1)
    of_sums = sums + 0.5  # 2 to 66 and a half: bfloat16 has 8 bits
    rounded = np.where(of_sums > 64, np.rint(of_sums * 2) / 2, of_sums)
    constants = 3 + 2 + 3 + 1.5 + 4 + (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) + 1
    np.testing.assert_array_equal(host.download(y).view(np.float32), sums + rounded - sums + constants + 0.25)


def test_what_programs_may_be_without(tmp_path: Path) -> None:
    """PyTorch compiles its extensions so."""
    used = {
        "__CUDA_NO_HALF_OPERATORS__": "a + a", "__CUDA_NO_HALF_CONVERSIONS__": "half(1.0f)",
        "__CUDA_NO_HALF2_OPERATORS__": "__low2half(half2(a, a) + half2(a, a))",
    }  # fmt: skip
    lines = ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", 'extern "C" __global__ void k(half* y) {']
    lines += ["const half a = __hadd(y[0], y[0]);", *(f"y[1] = {text};" for text in used.values()), "}"]
    loaded(tmp_path, "\n".join(lines), CpuHost(1))
    for macro, text in used.items():
        command = [compiler(), "-std=c++17", "-fsyntax-only", f"-D{macro}", "-x", "c++", "-"]
        command += [f"-I{kernel_root() / 'emulator' / 'include'}"]
        done = subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False)
        wrong = re.findall(r"^(\S+?):(\d+):.* error: ", done.stderr, re.MULTILINE)
        assert {line for _, line in wrong} == {str(1 + lines.index(f"y[1] = {text};"))}, (macro, done.stderr)
        assert {file for file, _ in wrong} == {"<stdin>"}


SUMS = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(half* y, const half* x) {
    half2 sums = __half2half2(x[threadIdx.x]);
    for (int lanes = 16; lanes > 0; lanes /= 2) sums = __hadd2(sums, __shfl_xor_sync(0xFFFFFFFF, sums, lanes));
    const nv_bfloat16 first = __shfl_sync(0xFFFFFFFF, __float2bfloat16(__half2float(x[threadIdx.x])), 3);
    if (threadIdx.x == 0) {
        y[0] = y[2] = y[3] = y[4] = half(0);
        y[1] = sums.y;
        y[5] = half(__bfloat162float(first));
    }
    __syncthreads();
    atomicAdd(y, x[threadIdx.x]);
    atomicAdd((half2*)(y + 2), make_half2(x[threadIdx.x], half(1)));
    atomicAdd((nv_bfloat16*)(y + 4), __float2bfloat16(1.0f));
}
"""


@pytest.mark.parametrize("checked", [False, True])
def test_halves_in_warps_and_in_atomic_operations(tmp_path: Path, checked: bool) -> None:
    host = CheckedHost(Schedule()) if checked else CpuHost(1)
    kernel = loaded(tmp_path, SUMS, host)
    x = np.arange(32, dtype=np.float16)
    y = host.output(12)
    host.launch(kernel, (1, 1, 1), (32, 1, 1), [y, host.upload(x)])
    got = np.asarray(host.download(y)).view(np.float16)
    assert got[[0, 1, 2, 3, 5]].tolist() == [496, 496, 496, 32, 3]
    assert int(got.view(np.uint16)[4]) == 0x4200  # 32 in bfloat16


# ---- cuda numbers ----------------------------------------------------------------------------------------------------
# CUDA's functions of integers, words of several numbers, float and double on the CPU host against exact arithmetic and
# NumPy, of edges and random words.


def test_words_of_two_and_four_numbers(cpu: OnCpu) -> None:
    a, b, _ = operands("uu", 20_000)
    for lanes, bits in ((2, 16), (4, 8)):
        of = {s: [w.astype(np.uint32).view(f"{s}{bits // 8}").reshape(-1, lanes).astype(np.int64) for w in (a, b)]
              for s in "iu"}  # fmt: skip
        (i, j), (u, v) = of["i"], of["u"]
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        total = i + j
        made = {
            "abs": abs(i), "absss": np.minimum(abs(i), high), "neg": -i, "negss": np.minimum(-i, high), "add": i + j,
            "addss": np.clip(i + j, low, high), "addus": np.minimum(u + v, 2 * high + 1), "sub": i - j,
            "subss": np.clip(i - j, low, high), "subus": np.maximum(u - v, 0), "absdiffs": abs(i - j),
            "absdiffu": abs(u - v), "avgs": np.sign(total) * ((abs(total) + 1) // 2), "avgu": (u + v + 1) // 2,
            "haddu": (u + v) // 2, "maxs": np.maximum(i, j), "maxu": np.maximum(u, v), "mins": np.minimum(i, j),
            "minu": np.minimum(u, v),
        }  # fmt: skip
        ordered = {
            "eq": u == v, "ne": u != v, "ges": i >= j, "geu": u >= v, "gts": i > j, "gtu": u > v, "les": i <= j,
            "leu": u <= v, "lts": i < j, "ltu": u < v,
        }  # fmt: skip
        made |= {f"cmp{n}": -t.astype(np.int64) for n, t in ordered.items()}
        made |= {f"set{n}": t.astype(np.int64) for n, t in ordered.items()}
        for name, numbers in made.items():
            one = name in ("abs", "absss", "neg", "negss")
            text, kinds = (f"__v{name}{lanes}(a)", "u") if one else (f"__v{name}{lanes}(a, b)", "uu")
            expected = numbers.astype(f"u{bits // 8}").view(np.uint32).reshape(-1)
            assert_same(cpu(text, kinds, a, b), expected, text, a, b)
        assert_same(cpu(f"__vsads{lanes}(a, b)", "uu", a, b), abs(i - j).sum(axis=1), "vsads", a, b)
        assert_same(cpu(f"__vsadu{lanes}(a, b)", "uu", a, b), abs(u - v).sum(axis=1), "vsadu", a, b)


MASK = (1 << 32) - 1


def _bytes(word: int, type_: type, shift: int = 0) -> list[int]:
    return [int(v) for v in np.array([word & MASK], np.uint32).view(type_)[shift:]]


def _dot(a: int, b: int, c: int, of_a: type, of_b: type, first: int = 0) -> int:
    pairs = zip(_bytes(a, of_a), _bytes(b, of_b, first), strict=False)
    return c + sum(x * y for x, y in pairs)


def _shifted(lo: int, hi: int, left: int) -> int:
    return ((hi & MASK) << 32 | lo & MASK) << left >> 32 & MASK


FUNCTIONS: dict[tuple[str, str], Callable[..., int]] = {
    ("__popc", "u"): lambda a: bin(a).count("1"),
    ("__popcll", "q"): lambda a: bin(a).count("1"),
    ("__brev", "u"): lambda a: int(f"{a:032b}"[::-1], 2),
    ("__brevll", "q"): lambda a: int(f"{a:064b}"[::-1], 2),
    ("__clz", "i"): lambda a: 32 - (a & MASK).bit_length(),
    ("__clzll", "l"): lambda a: 64 - (a & (1 << 64) - 1).bit_length(),
    ("__ffs", "i"): lambda a: (a & -a & MASK).bit_length(),
    ("__ffsll", "l"): lambda a: (a & -a & (1 << 64) - 1).bit_length(),
    ("__funnelshift_l", "uuu"): lambda lo, hi, s: _shifted(lo, hi, s % 32),
    ("__funnelshift_r", "uuu"): lambda lo, hi, s: (hi << 32 | lo) >> s % 32 & MASK,
    ("__funnelshift_lc", "uuu"): lambda lo, hi, s: _shifted(lo, hi, min(s, 32)),
    ("__funnelshift_rc", "uuu"): lambda lo, hi, s: (hi << 32 | lo) >> min(s, 32) & MASK,
    ("__byte_perm", "uuu"): lambda a, b, s: sum(
        ((b << 32 | a) >> 8 * (s >> 4 * i & 7) & 255) << 8 * i for i in range(4)
    ),
    ("__mulhi", "ii"): lambda a, b: a * b >> 32,
    ("__umulhi", "uu"): lambda a, b: a * b >> 32,
    ("__mul64hi", "ll"): lambda a, b: a * b >> 64,
    ("__umul64hi", "qq"): lambda a, b: a * b >> 64,
    ("__umul24", "uu"): lambda a, b: (a % 2**24) * (b % 2**24) & MASK,
    ("__hadd", "ii"): lambda a, b: (a + b) // 2,
    ("__rhadd", "ii"): lambda a, b: (a + b + 1) // 2,
    ("__uhadd", "uu"): lambda a, b: (a + b) // 2,
    ("__urhadd", "uu"): lambda a, b: (a + b + 1) // 2,
    ("__sad", "iiu"): lambda a, b, c: abs(a - b) + c & MASK,
    ("__usad", "uuu"): lambda a, b, c: abs(a - b) + c & MASK,
    ("__dp4a", "uuu"): lambda a, b, c: _dot(a, b, c, np.uint8, np.uint8) & MASK,
    ("__dp2a_lo", "uuu"): lambda a, b, c: _dot(a, b, c, np.uint16, np.uint8) & MASK,
    ("__dp2a_hi", "uuu"): lambda a, b, c: _dot(a, b, c, np.uint16, np.uint8, 2) & MASK,
    **{(name, kinds): best for kinds in ("ii", "uu", "ll", "qq") for name, best in (("min", min), ("max", max))},
    **{(name, kinds): lambda a, b, f=best: f(a & MASK, b & MASK) for kinds in ("iu", "ui")
       for name, best in (("min", min), ("max", max))},
}  # fmt: skip


def _wrapped(value: int) -> int:
    """A signed word of 32 bits, extended."""
    return ((value + (1 << 31)) % (1 << 32) - (1 << 31)) & (1 << 64) - 1


def test_integers(cpu: OnCpu) -> None:
    for (name, kinds), function in FUNCTIONS.items():
        given = operands(kinds, 1500)[: len(kinds)]
        text = f"{name}({', '.join('abc'[: len(kinds)])})"
        numbers = zip(*(signed(w, kind) for w, kind in zip(given, kinds, strict=True)), strict=True)
        expected = np.array([function(*n) & (1 << 64) - 1 for n in numbers], np.uint64)
        assert_same(cpu(text, kinds, *given), expected, text, *given)
    for name, of_a, first in (("__dp4a", np.int8, 0), ("__dp2a_lo", np.int16, 0), ("__dp2a_hi", np.int16, 2)):
        a, b, c = operands("iii", 1500)
        c = c >> np.uint64(8)  # the sum of the first two does not leave an int's range
        sums = [
            _wrapped(_dot(*n, of_a, np.int8, first))
            for n in zip(signed(a, "i"), signed(b, "i"), signed(c, "i"), strict=True)
        ]
        assert_same(cpu(f"{name}(a, b, c)", "iii", a, b, c), sums, name, a, b, c)
    a, b, _ = operands("ii", 1500)
    low = [[(v & 0xFFFFFF ^ 0x800000) - 0x800000 for v in signed(w, "i")] for w in (a, b)]
    products = [_wrapped(x * y) for x, y in zip(*low, strict=True)]
    assert_same(cpu("__mul24(a, b)", "ii", a, b), products, "__mul24", a, b)


def _root(value: Fraction, reciprocal: bool = False) -> Fraction:
    """√value (of the value's reciprocal) to 200 bits, and odd behind: rounding to fewer bits is the root's own."""
    value = 1 / value if reciprocal else value
    shift = 2 * (200 + max(0, value.denominator.bit_length() - value.numerator.bit_length()))
    scaled = value * Fraction(2) ** shift
    root = math.isqrt(math.floor(scaled))
    inexact = root * root != scaled
    return Fraction(2 * root + inexact, 2) / Fraction(2) ** (shift // 2)


ARITHMETIC: dict[str, tuple[int, Callable[..., Fraction]]] = {
    "add": (2, lambda a, b: a + b), "sub": (2, lambda a, b: a - b), "mul": (2, lambda a, b: a * b),
    "div": (2, lambda a, b: a / b), "rcp": (1, lambda a: 1 / a), "sqrt": (1, _root),
    "fma": (3, lambda a, b, c: a * b + c),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "prefix", "fma", "format_"), [("f", "__f", "__fmaf", FLOAT), ("d", "__d", "__fma", DOUBLE)]
)
def test_roundings(cpu: OnCpu, kind: str, prefix: str, fma: str, format_: Format) -> None:
    """Of finite operands, in each rounding, against exact arithmetic."""
    for name, (n, function) in ARITHMETIC.items():
        given = list(operands(n * kind, 1000)[:n])
        numbers = [values(w, kind) for w in given]
        usable = np.isfinite(np.stack(numbers)).all(axis=0)
        usable &= {"div": numbers[-1] != 0, "rcp": numbers[0] != 0, "sqrt": numbers[0] > 0}.get(name, True)
        given, numbers = [w[usable] for w in given], [v[usable] for v in numbers]
        exact = [function(*(Fraction(v) for v in row)) for row in zip(*(v.tolist() for v in numbers), strict=True)]
        shown = np.array([bool(v) for v in exact])  # the sign of a zero is IEEE 754's own
        given = [w[shown] for w in given]
        text = fma if name == "fma" else prefix + name
        for mode in MODES:
            expected = np.array([format_.encoded(v, mode) for v in exact if v], np.uint64)
            called = f"{text}_{mode}({', '.join('abc'[:n])})"
            assert_same(cpu(called, n * kind, *given), expected, called, *given)


def test_reciprocal_roots(cpu: OnCpu) -> None:
    a = operands("f", 4000)[0]
    x = values(a, "f")
    a = a[(x > 0) & np.isfinite(x)]
    exact = [_root(Fraction(v), True) for v in values(a, "f").tolist()]
    expected = np.array([FLOAT.encoded(v, "rn") for v in exact], np.uint64)
    assert_same(cpu("__frsqrt_rn(a)", "f", a), expected, "__frsqrt_rn", a)


@pytest.mark.parametrize(("kind", "name"), [("f", "float"), ("d", "double")])
def test_numbers_to_integers_and_back(cpu: OnCpu, kind: str, name: str) -> None:
    a = operands(kind, 3000)[0]
    x = values(a, kind)
    for integer, to in [(n, k) for n, k in INTEGERS.items() if k in "iulq"]:
        nan = _wrapped(1 << 31) if to == "i" and kind == "d" else 1 << 31 if to == "u" and kind == "d" else of_nan(to)
        words = operands(to, 700)[0]
        for mode in MODES:
            text = f"__{name}2{integer}_{mode}(a)"
            assert_same(cpu(text, kind, a), integers_of(x, mode, to, nan), text, a)
            text, format_ = f"__{integer}2{name}_{mode}(a)", FLOAT if kind == "f" else DOUBLE
            if (text, to) in cpu.numbers:
                expected = [format_.encoded(Fraction(v), mode) for v in signed(words, to)]
                assert_same(cpu(text, to, words), np.array(expected, np.uint64), text, words)
    if kind == "d":
        finite = a[np.isfinite(x)]
        for mode in MODES:
            expected = [
                FLOAT.encoded(Fraction(v), mode, math.copysign(1, v) < 0) for v in finite.view(np.float64).tolist()
            ]
            assert_same(cpu(f"__double2float_{mode}(a)", "d", finite), np.array(expected, np.uint64), mode, finite)


@pytest.mark.parametrize("kinds", ["ff", "dd", "fd", "df"])
def test_minima_and_maxima(cpu: OnCpu, kinds: str) -> None:
    """Of two zeros, -0 is the smaller; of a number and a NaN, the number."""
    a, b, _ = operands(kinds, 6000)
    x, y = values(a, kinds[0]), values(b, kinds[1])
    names = ["min", "max", *{"ff": ["fminf", "fmaxf"], "dd": ["fmin", "fmax"]}.get(kinds, [])]
    for name in names:
        least = "min" in name
        best = np.where(x == y, np.where(np.signbit(x) == least, x, y), np.fmin(x, y) if least else np.fmax(x, y))
        got = cpu(f"{name}(a, b)", kinds, a, b)
        got_values = values(got, "f" if kinds == "ff" else "d")
        np.testing.assert_array_equal(got_values, best)
        np.testing.assert_array_equal(np.signbit(got_values)[best == 0], np.signbit(best)[best == 0])


def test_approximate_functions(cpu: OnCpu) -> None:
    """Within 3 ulp of the value beside what the rounded product before it takes: |x|·2^-23 of an exponent."""
    a = operands("f", 8000)[0]
    x = values(a, "f")
    a, x = a[(abs(x) < 80) & (abs(x) > 1e-3)], x[(abs(x) < 80) & (abs(x) > 1e-3)]
    functions: dict[str, Callable[[Any], Any]] = {
        "__expf": np.exp, "__exp10f": lambda x: np.power(10.0, x / 3), "__sinf": np.sin, "__cosf": np.cos,
        "rsqrtf": lambda x: 1 / np.sqrt(abs(x)), "__log2f": lambda x: np.log2(abs(x)),
        "__logf": lambda x: np.log(abs(x)), "__log10f": lambda x: np.log10(abs(x)),
    }  # fmt: skip
    for name, function in functions.items():
        given = np.where(name in ("rsqrtf", "__log2f", "__logf", "__log10f"), a & np.uint64(0x7FFFFFFF), a)
        if name == "__exp10f":
            given = (x / 3).astype(np.float32).view(np.uint32).astype(np.uint64)
        got = values(cpu(f"{name}(a)", "f", given), "f")
        expected = function(x)
        allowed = abs(expected) * (3 + 4 * abs(x) * ("exp" in name)) * 2.0**-23
        assert (abs(got - expected) <= allowed).all(), name
    clamped = cpu("__saturatef(a)", "f", np.array([0x7FC00000, 0x80000000, 0x40000000, 0x3F000000], np.uint64))
    assert clamped.tolist() == [0, 0, 0x3F800000, 0x3F000000]
    huge = np.array([0x7E800001, 0x7E800000, 0xFF000000], np.uint64)
    ones = np.full(3, 0x3F800000, np.uint64)
    assert cpu("__fdividef(a, b)", "ff", ones, huge).tolist() == [0, 0x00800000, 0x80000000]
