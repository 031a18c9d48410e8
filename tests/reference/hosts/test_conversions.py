"""Floats that an integer type cannot hold: the CPU host makes the integer that a GPU makes, or says that it cannot."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support.errors import NotRun
from tests.support.short_kernels import Build, run

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
