"""CUDA's functions that the CPU host has headers of its own for, one after the other on given words, in a source that
compiles for the CPU host and, against NVIDIA's headers, for a card."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.support.paths import kernel_root

Words = npt.NDArray[np.uint64]

#: Letter of a type → its name in CUDA C++, the bits of a word that it takes, and how it is made of a word w.
TYPES = {
    "h": ("__half", 16, "__ushort_as_half((unsigned short)w)"),
    "b": ("__nv_bfloat16", 16, "__ushort_as_bfloat16((unsigned short)w)"),
    "H": ("__half2", 32, "__halves2half2(as_h(w), as_h(w >> 16))"),
    "B": ("__nv_bfloat162", 32, "__halves2bfloat162(as_b(w), as_b(w >> 16))"),
    "f": ("float", 32, "__uint_as_float((unsigned)w)"),
    "d": ("double", 64, "__longlong_as_double((long long)w)"),
    "i": ("int", 32, "(int)w"),
    "u": ("unsigned", 32, "(unsigned)w"),
    "l": ("long long", 64, "(long long)w"),
    "q": ("unsigned long long", 64, "w"),
    "s": ("short", 16, "(short)w"),
    "t": ("unsigned short", 16, "(unsigned short)w"),
}


@dataclass(frozen=True)
class Case:
    """A function of one to three operands.

    Attributes:
        text: what is computed, in C++, of the operands a, b and c.
        kinds: letters of the operands' types.
        ulp: 0 where the card's bits are claimed; else how many units in the last place they may differ by, where
            results are halves, bfloat16 or float; -1 where nothing is claimed.
    """

    text: str
    kinds: str
    ulp: int = 0

    @property
    def name(self) -> str:
        return f"{self.text} of {', '.join(TYPES[kind][0] for kind in self.kinds)}"


def _called(names: str, kinds: str, ulp: int = 0) -> list[Case]:
    operands = ", ".join("abc"[: len(kinds)])
    return [Case(f"{name}({operands})", kinds, ulp) for name in names.split()]


#: Functions h… and h2… of halves: those of whole numbers, and those that are approximate on a card.
WHOLE = ("trunc", "ceil", "floor", "rint")
APPROXIMATE = (
    "sqrt", "rsqrt", "rcp", "log", "log2", "log10", "exp", "exp2", "exp10", "sin", "cos", "tanh"
)  # fmt: skip
_ROUNDINGS = ("rn", "rz", "ru", "rd")


def _narrow(scalar: str, pair: str, name: str) -> list[Case]:
    """Of half or bfloat16: the letters of the type and of its pair, and its name in functions."""
    cases = []
    for of_scalar, of_pair in [
        ("__hadd __hsub __hmul __hadd_rn __hsub_rn __hmul_rn __hadd_sat __hsub_sat __hmul_sat __hdiv",
         "__hadd2 __hsub2 __hmul2 __hadd2_rn __hsub2_rn __hmul2_rn __hadd2_sat __hsub2_sat __hmul2_sat __h2div"),
        ("__hmax __hmin __hmax_nan __hmin_nan", "__hmax2 __hmin2 __hmax2_nan __hmin2_nan"),
    ]:  # fmt: skip
        cases += _called(of_scalar, 2 * scalar) + _called(of_pair, 2 * pair)
    cases += _called("__hfma __hfma_sat __hfma_relu", 3 * scalar)
    cases += _called("__hfma2 __hfma2_sat __hfma2_relu __hcmadd", 3 * pair)
    cases += _called("__hneg __habs", scalar) + _called("__hneg2 __habs2", pair)
    for names, ulp in ((WHOLE, 0), (APPROXIMATE, 1)):
        cases += _called(" ".join(f"h{n}" for n in names), scalar, ulp)
        cases += _called(" ".join(f"h2{n}" for n in names), pair, ulp)
    cases += _called("htanh_approx", scalar, -1) + _called("h2tanh_approx", pair, -1)
    for order in ["eq", "ne", "le", "ge", "lt", "gt", "equ", "neu", "leu", "geu", "ltu", "gtu"]:
        cases += _called(f"__h{order}", 2 * scalar)
        cases += _called(f"__h{order}2 __h{order}2_mask __hb{order}2", 2 * pair)
    cases += _called("__hisnan __hisinf", scalar) + _called("__hisnan2 __lowhigh2highlow", pair)
    for sign in ["+", "-", "*", "/"]:
        cases += [Case(f"a {sign} b", 2 * scalar), Case(f"a {sign} b", 2 * pair)]
        cases += [Case(f"[=] {{ auto x = a; x {sign}= b; return x; }}()", 2 * kind) for kind in (scalar, pair)]
    for sign in ["==", "!=", "<", ">", "<=", ">="]:
        cases += [Case(f"(a {sign} b)", 2 * scalar), Case(f"(a {sign} b)", 2 * pair)]
    for sign in ("++", "--"):
        cases += [Case(f"[=] {{ auto x = a; x{sign}; return {sign}x; }}()", kind) for kind in (scalar, pair)]
    cases += [Case("-a", scalar), Case("-a", pair), Case("(bool)a", scalar)]
    cases += [Case(f"__float_as_uint(__{name}2float(a))", scalar), *_called(f"__{name}2float", scalar)]
    cases += _called("__low2float __high2float", pair)
    cases += _called(" ".join(f"__float2{name}{r}" for r in ("", "_rn", "_rz", "_ru", "_rd")), "f")
    cases += _called(f"__double2{name}", "d") + _called(f"__float2{name}2_rn", "f")
    cases += _called(f"__floats2{name}2_rn", "ff")
    cases += [Case(f"__float22{name}2_rn(make_float2(a, b))", "ff")]
    cases += [Case(f"__{name}22float2(a).x", pair), Case(f"__{name}22float2(a).y", pair)]
    cases += _called(f"__low2{name} __high2{name} __low2{name}2 __high2{name}2", pair)
    cases += _called(f"__lows2{name}2 __highs2{name}2", 2 * pair)
    cases += _called(f"__{name}2{name}2 __{name}_as_short __{name}_as_ushort", scalar)
    cases += _called(f"__halves2{name}2 make_{name}2", 2 * scalar)
    cases += _called(f"__{name}2char_rz __{name}2uchar_rz", scalar)
    for integer, kind in [("short", "s"), ("ushort", "t"), ("int", "i"), ("uint", "u"), ("ll", "l"), ("ull", "q")]:
        for rounding in _ROUNDINGS:
            cases += _called(f"__{name}2{integer}_{rounding}", scalar) + _called(f"__{integer}2{name}_{rounding}", kind)
    of = TYPES[scalar][0]
    cases += [Case(f"({of})a", kind) for kind in "fdiustlq"]
    cases += [Case(f"({TYPES[kind][0]})a", scalar) for kind in "fiustlq"]
    return cases


def _fp8() -> list[Case]:
    cases = []
    for as_ in ("__NV_E4M3", "__NV_E5M2"):
        for saturation in ("__NV_SATFINITE", "__NV_NOSAT"):
            for name, kind in (("float", "f"), ("double", "d"), ("halfraw", "h"), ("bfloat16raw", "b")):
                cases.append(Case(f"__nv_cvt_{name}_to_fp8(a, {saturation}, {as_})", kind))
            text = f"__nv_cvt_float2_to_fp8x2(make_float2(a, b), {saturation}, {as_})"
            cases += [Case(text, "ff"), Case(f"__nv_cvt_halfraw2_to_fp8x2(a, {saturation}, {as_})", "H")]
        cases.append(Case(f"__half(__nv_cvt_fp8_to_halfraw((unsigned char)a, {as_}))", "t"))
        cases.append(Case(f"__half2(__nv_cvt_fp8x2_to_halfraw2(a, {as_}))", "t"))
    for format_ in ("e4m3", "e5m2"):
        cases += [Case(f"__nv_fp8_{format_}(a).__x", kind) for kind in "fdhb"]
        cases.append(Case(f"(float)__nv_fp8_{format_}(a)", "h"))
    return cases


def _simd() -> list[Case]:
    cases = []
    for lanes in (2, 4):
        cases += _called(" ".join(f"__v{n}{lanes}" for n in ["abs", "absss", "neg", "negss"]), "u")
        names = "add addss addus sub subss subus absdiffs absdiffu avgs avgu haddu maxs maxu mins minu sads sadu"
        orders = "eq ne ges geu gts gtu les leu lts ltu"
        names = f"{names} {' '.join(f'cmp{o} set{o}' for o in orders.split())}"
        cases += _called(" ".join(f"__v{n}{lanes}" for n in names.split()), "uu")
    return cases


def _integers() -> list[Case]:
    cases = _called("__popc __brev", "u") + _called("__clz __ffs", "i") + _called("__clzll __ffsll", "l")
    cases += _called("__popcll __brevll", "q")
    cases += _called("__funnelshift_l __funnelshift_r __funnelshift_lc __funnelshift_rc __byte_perm __usad", "uuu")
    cases += _called("__mulhi __mul24 __hadd __rhadd min max", "ii") + _called(
        "__umulhi __umul24 __uhadd __urhadd", "uu"
    )
    cases += _called("__mul64hi min max", "ll") + _called("__umul64hi min max", "qq") + _called("__sad", "iiu")
    cases += _called("min max", "uu") + _called("min max", "iu") + _called("min max", "ui") + _called("min max", "lq")
    for kinds in ("iii", "uuu"):
        cases += _called("__dp4a __dp2a_lo __dp2a_hi", kinds)
    cases += [Case("__dp4a(as_char4(a), as_char4(b), c)", "uui"), Case("__dp4a(as_uchar4(a), as_uchar4(b), c)", "uuu")]
    return cases


def _floats() -> list[Case]:
    def rounded(names: str, kinds: str) -> list[Case]:
        return _called(" ".join(f"{n}_{r}" for n in names.split() for r in _ROUNDINGS), kinds)

    cases = rounded("__fadd __fsub __fmul __fdiv", "ff") + rounded("__frcp __fsqrt", "f") + rounded("__fmaf", "fff")
    cases += rounded("__dadd __dsub __dmul __ddiv", "dd") + rounded("__drcp __dsqrt", "d") + rounded("__fma", "ddd")
    cases += rounded("__float2int __float2uint __float2ll __float2ull", "f") + rounded("__double2float", "d")
    cases += rounded("__double2int __double2uint __double2ll __double2ull", "d")
    for integer, kind in [("int", "i"), ("uint", "u"), ("ll", "l"), ("ull", "q")]:
        cases += rounded(f"__{integer}2float", kind)
    cases += rounded("__ll2double", "l") + rounded("__ull2double", "q")
    cases += _called("__int2double_rn", "i") + _called("__uint2double_rn", "u")
    cases += _called("__frsqrt_rn __saturatef sqrtf fabsf floorf ceilf truncf rintf roundf nearbyintf", "f")
    cases += _called("fminf fmaxf min max copysignf fmodf", "ff") + _called("fmin fmax min max", "dd")
    cases += _called("min max", "fd") + _called("min max", "df") + _called("fmaf", "fff") + _called("fma", "ddd")
    cases += [Case(f"({n}(a) != 0)", "f") for n in ["isnan", "isinf", "isfinite", "signbit"]]
    cases += _called("__double2hiint __double2loint", "d") + _called("__hiloint2double", "ii") + _called("abs", "i")
    cases += _called("rsqrtf", "f", 2) + _called("__fdividef", "ff", -1)
    cases += _called("__expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf expf exp2f logf tanhf erff", "f", -1)
    cases += _called("__powf powf", "ff", -1)
    return cases


CASES: tuple[Case, ...] = tuple(
    _narrow("h", "H", "half") + _narrow("b", "B", "bfloat16") + _fp8() + _simd() + _integers() + _floats()
)


def source(cases: Sequence[Case] = CASES) -> str:
    """A kernel `compute` that writes word(cases[which](a[i], b[i], c[i])) to y[i]. Results are words whose upper bits
    are 0, but for signed integers, which are extended; all NaN of float are one, and so are those of double."""
    lines = [
        "#include <cuda_fp16.h>",
        "#include <cuda_bf16.h>",
        "#include <cuda_fp8.h>",
        "typedef unsigned long long Word;",
    ]
    for letter, (name, _, made) in TYPES.items():
        lines.append(f"__device__ __forceinline__ {name} as_{letter}(Word w) {{ return {made}; }}")
    for name in ("char4", "uchar4"):
        lines.append(
            f"__device__ __forceinline__ {name} as_{name}(unsigned w) {{ {name} v; memcpy(&v, &w, 4); return v; }}"
        )
    words = {
        "h": "__half_as_ushort(v)", "b": "__bfloat16_as_ushort(v)", "f": "v != v ? 0x7FFFFFFF : __float_as_uint(v)",
        "H": "__half_as_ushort(v.x) | (Word)__half_as_ushort(v.y) << 16",
        "B": "__bfloat16_as_ushort(v.x) | (Word)__bfloat16_as_ushort(v.y) << 16",
        "d": "v != v ? 0x7FFFFFFFFFFFFFFF : (Word)__double_as_longlong(v)",
    }  # fmt: skip
    plain = ["bool", "signed char", "unsigned char"]
    for name, made in [(TYPES[k][0], words.get(k, "(Word)(long long)v")) for k in TYPES] + [
        (name, "(Word)(long long)v") for name in plain
    ]:
        lines.append(f"__device__ __forceinline__ Word word({name} v) {{ return {made}; }}")
    for i, case in enumerate(cases):
        operands = " ".join(
            f"const {TYPES[kind][0]} {name} = as_{kind}({name}_); (void){name};"
            for kind, name in zip(case.kinds, "abc", strict=False)
        )
        lines.append(
            f"static __device__ Word case_{i}(Word a_, Word b_, Word c_) {{ {operands} return word({case.text}); }}"
        )
    chosen = "\n".join(f"        case {i}: r = case_{i}(a[i], b[i], c[i]); break;" for i in range(len(cases)))
    lines.append(
        'extern "C" __global__ void compute(Word* y, const Word* a, const Word* b, const Word* c, int n, int which) {\n'
        "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {\n"
        f"        Word r = 0;\n        switch (which) {{\n{chosen}\n        }}\n        y[i] = r;\n    }}\n}}\n"
    )
    return "\n".join(lines)


#: Ends of ranges, zeros, ones and their neighbours.
_EDGES = {
    16: [0, 1, 2, 0x3FF, 0x400, 0x7F, 0x80, 0x3BFF, 0x3C00, 0x3C01, 0x3F80, 0x3F81, 0x7BFF, 0x7C00, 0x7C01, 0x7E00,
         0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF],
    32: [0, 1, 0x7FFFFF, 0x800000, 0x33000000, 0x33000001, 0x477FEFFF, 0x477FF000, 0x3F7FFFFF, 0x3F800000,
         0x3F800001, 0x4EFFFFFF, 0x4F000000, 0x4F800000, 0x5F000000,
         0x5F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x3F000000, 0x3FC00000, 0x7E800001],
    64: [0, 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0x3FF0000000000001, 0x41DFFFFFFFC00000,
         0x41E0000000000000, 0x43E0000000000000, 0x43F0000000000000, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000,
         0x7FF0000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF, 0x3FE0000000000000, 0x40EFFE0000000000],
}  # fmt: skip


def _edges(bits: int) -> Words:
    """Each with either sign, zeros first."""
    plain = np.array(_EDGES[bits], np.uint64)
    return np.stack([plain, plain | np.uint64(1 << (bits - 1))], axis=1).ravel()


@cache
def operands(kinds: str, n: int, seed: int = 0) -> tuple[Words, Words, Words]:
    """uint64[n'] each: all halves where one of 16 bits is taken; else pairs of edges, words near others (so that sums
    cancel and comparisons meet equals), and words of any bits, in all n."""
    rng = np.random.default_rng([seed, *kinds.encode()])
    if len(kinds) == 1 and TYPES[kinds][1] == 16:
        all_ = np.arange(1 << 16, dtype=np.uint64)
        return all_, all_, all_
    made: list[Words] = []
    for at, kind in enumerate(kinds):
        bits = TYPES[kind][1]
        words = rng.integers(0, 1 << 64, n, np.uint64)
        few = n // 4
        edges = _edges(bits)
        words[:few] = edges[np.arange(few) // len(edges) ** at % len(edges)]
        if kind in "HBu":  # in both lanes
            edges = _edges(16)
            words[: few // 2] = edges[np.arange(few // 2) // len(edges) ** at % len(edges)]
            words[: few // 2] |= edges[rng.integers(0, len(edges), few // 2)] << np.uint64(16)
        if kind in "fd":  # magnitudes from 2^-40 to 2^70, where conversions to integers and halves happen
            some = np.ldexp(rng.uniform(1, 2, few), rng.integers(-40, 70, few)) * rng.choice([-1, 1], few)
            words[few : 2 * few] = some.astype(np.float32).view(np.uint32) if kind == "f" else some.view(np.uint64)
        if kind == "f":  # values of halves and bfloat16, the midpoints of two, and their neighbours
            cut = np.array([1 << 13, 1 << 12, 1 << 16, 1 << 15], np.uint64)[rng.integers(0, 4, few)]
            near = rng.integers(0, 1 << 32, few, np.uint64) // cut * cut + rng.integers(-1, 2, few).astype(np.uint64)
            words[2 * few : 3 * few] = near & np.uint64(0xFFFFFFFF)
        if at and kind == kinds[at - 1]:
            words[3 * few :] = made[at - 1][3 * few :] ^ (
                rng.integers(0, 5, n - 3 * few).astype(np.uint64) << np.uint64(bits - 2)
            )
        made.append(words & np.uint64((1 << bits) - 1))
    while len(made) < 3:
        made.append(made[0])
    return made[0], made[1], made[2]


def as_numbers(words: Words, kind: str) -> npt.NDArray[np.int64]:
    """int64[n, lanes] of words of half, bfloat16, their pairs or float: neighbours differ by 1, all NaN are one."""
    bits, infinite = {"h": (16, 0x7C00), "b": (16, 0x7F80), "f": (32, 0x7F800000)}[kind.lower()]
    parts = [words & np.uint64(0xFFFF), words >> np.uint64(16)] if kind.isupper() else [words]
    made = np.stack(parts, axis=1).astype(np.int64)
    size = made & ((1 << (bits - 1)) - 1)
    ordered = np.where(made >> (bits - 1), -size, size)
    return np.where(size > infinite, np.int64(1) << 40, ordered)


class OnCpu:
    """Functions on the CPU host.

    Args:
        folder: for the source.
        flags: of the compiler.
    """

    def __init__(self, folder: Path, cases: Sequence[Case] = CASES, flags: Sequence[str] = ()) -> None:
        root = folder / "kernels"
        shutil.copytree(kernel_root(), root)
        (root / "k.cu").write_text(source(cases))
        self.numbers = {(case.text, case.kinds): i for i, case in enumerate(cases)}
        self._host = CpuHost(1, flags)
        self._kernel = self._host.load(root, "k.cu", "compute", {})

    def __call__(self, text: str, kinds: str, a: Words, b: Words | None = None, c: Words | None = None) -> Words:
        """uint64[n] of the case of this text and these kinds, of uint64[n] each. Raises KeyError."""
        y = self._host.output(a.nbytes)
        uploaded = [self._host.upload(a if words is None else words) for words in (a, b, c)]
        which = np.int32(self.numbers[text, kinds])
        self._host.launch(self._kernel, (1, 1, 1), (1, 1, 1), [y, *uploaded, np.int32(len(a)), which])
        return self._host.download(y).view(np.uint64)
