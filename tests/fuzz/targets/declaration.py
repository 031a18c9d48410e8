"""The declaration of a foreign CUDA kernel: TOML, expressions, macros and a domain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.domain import domain_of
from gguf_verify.kernels.foreign.declared import CallDeclaration, parse
from gguf_verify.kernels.foreign.expressions import names_of
from gguf_verify.kernels.foreign.faults import Fault
from gguf_verify.support.errors import KernelFault, UsageError
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line

WHOLE = """\
formats = ["Q4_0", "Q8_0"]
semantics = "q8_1"
takes = "float32"
ordered = true
parameters = ["weights", "activations", "output", "int64 M", "uint32 N", "int32 K"]
block = [128, "min(N, 4)"]
grid = ["ceil(M * N, 128)", "max(1, K / 64 - 1)", 1]
shared = "4 * K + 16"
domain = { M = 1, N = { least = 2, most = 4096 }, K = { multiple = 256 }, architectures = ["sm_80", "sm_90a"] }
macros = { TILE = 16, Q4_0 = { BLOCK = "block_q4_0" } }
"""


def seeds() -> Iterator[bytes]:
    """A declaration with every key, and such with one mistake each."""
    yield WHOLE.encode()
    yield WHOLE.replace('semantics = "q8_1"\n', 'oracle = "o.py:ORACLE"\n').encode()
    for change in (
        ("128,", '"9**9**9",'), ("128,", '"M/0",'), ("128,", '"9"*9,'), ("128", '"' + "(" * 90 + "1" + ")" * 90 + '"'),
        ("128", '"' + "-" * 150 + '1"'), ("128", '"9*9*9*9*9*9"'), ("128", '"__import__(1)"'), ("128", "1e9"),
        ("128", '"M if N else K"'), ("128", "true"), ("128", '"1_0"'), ("128", '"0x10"'), ("128", '"\\u0000"'),
        ("min(N, 4)", "min(N)"), ("min(N, 4)", "ceil(N, M-1)"), ("int64 M", "half M"), ('"weights", ', ""),
        ("TILE", '"1x"'), ("16,", '"a\\nb",'), ("Q4_0 = {", "Q5_0 = {"), ("M = 1", "M = 0"), ("M = 1", "M = true"),
        ("least = 2", "least = 9000"), ("multiple = 256", "multiple = 8192, most = 1"), ("sm_80", "sm_8"),
        ("K = {", "X = {"), ("int64 M", "float32 1e50"), ("int64 M", "int32 M * M * M"), ("int64 M", "stream"),
        ("macros", "operands.output = { stride = 'N + 1' }\nmacros"),
        ("macros", "operands.x.scratch = 'M * K'\nmacros"), ("shared", "when = 'M <= 8 and K % 64 == 0'\nshared"),
        ("128,", '"M if N > 3 else 9 // (M % 7)",'),
        ('"q8_1"', '"own"'), ("shared", "shred"), ("true", '"yes"'), ('["Q4_0", "Q8_0"]', '"Q4_0"'),
        ("float32", "float64"), ("Q8_0", "\\u001b[31m"),
    ):  # fmt: skip
        yield WHOLE.replace(*change).encode()
    yield b"a = " + b"[" * 5000
    yield b"formats = "
    yield b"\xff"


def check(folder: Path, data: bytes) -> None:
    """An accepted declaration launches numbers or says why not; its domain is the declared one."""
    try:
        text = data.decode()
    except UnicodeDecodeError:  # the reader of the file refuses it before
        return
    with refused_in_one_line(UsageError):
        found = parse(text)
        check_declared(found)


def check_declared(found: CallDeclaration) -> None:
    for m, n, k in ((1, 1, 1), (2, 4096, 256), (1 << 20, 1 << 20, 1 << 20)):
        with refused_in_one_line(Fault, KernelFault):
            names = names_of(FORMATS[found.of.formats[0]], m, n, k)
            for launched in found.launched(names) or ():
                numbers = (*launched.grid, *launched.block, launched.shared)
                assert all(type(number) is int and number.bit_length() <= 200 for number in numbers)
            for fmt in found.of.formats:
                assert found.messages(fmt, names, "gemm")
    for fmt in found.of.formats:
        assert all(isinstance(v, str) and "\n" not in v for v in found.defines(fmt).values())
    domain = found.of.domain
    assert domain_of(domain.plain()) == domain
    assert domain.words.isprintable()
    n, k = domain.n.up(1), domain.k.up(1)
    assert domain.outside(n, k) is None
    assert domain.outside(n, k, "61") is None or domain.architectures
    assert domain.outside(0, k)
    for extent in (domain.m, domain.n, domain.k):
        first = extent.up(1)
        assert first in extent
        assert sum(used for used, _ in extent.parts(min(1000, 100 * first))) == min(1000, 100 * first)


TARGET = Target(
    "declaration", "the declaration of a CUDA kernel", seeds, check,
    mutations.of_lines(
        ("M", "N", "K", "+", "-", "*", "/", "**", "<<", "(", ")", "min(", "max(", "ceil(", ",", '"', "[", "]", "{",
         "}", "=", "true", "9" * 50, "lambda:", "[0]", "'''", "sm_90", "least", "most", "multiple", "block", "1j",
         "...", "not ", "0o7", "nan", "f'{M}'"),
    ),
    inputs=500, covered=("gguf_verify.kernels.domain",),
)  # fmt: skip
