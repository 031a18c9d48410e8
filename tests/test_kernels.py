"""Every shipped kernel on the CPU host, bit for bit against NumPy; under sanitizers; compiled for every card.

Here with the formats of one block of 32; tests/test_all_formats.py has all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from harness.errors import EnvironmentFault
from harness.formats import Q8_1, BlockFormat
from harness.hosts import CpuHost, nvrtc
from harness.hosts.base import kernel_root
from harness.hosts.compiler import compiler
from harness.kernels import KERNELS, QUANTIZER, Kernel, KernelSpec
from harness.semantics import SEMANTICS, product
from harness.semantics.activations import encode_q8_1

from .tools import LEGACY, ROOT, altered_kernel

MS, NS, KS = (1, 3, 33), (1, 31, 257), (32, 96, 288)

ALL = pytest.mark.parametrize(
    ("name", "fmt"), [pytest.param(k, f, id=f"{k}-{f.name}") for k in KERNELS for f in LEGACY.values()]
)


@pytest.fixture(scope="module")
def host() -> CpuHost:
    return CpuHost(2)


# -- data ------------------------------------------------------------------------------------------------------------


def halves(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Finite halves of one kind, as their bits, in both signs."""
    low, high = {"any": (0, 0x7C00), "subnormal": (0, 0x0400), "large": (0x7000, 0x7C00), "usual": (0x1000, 0x2C00)}[
        kind
    ]
    return (rng.integers(low, high, shape) | rng.integers(0, 2, shape) << 15).astype("<u2")


def random_weights(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random bytes, so every code, under finite scales. Rows take turns: usual scales, any, subnormal, large; some
    blocks have only the least or only the greatest code, or the bytes 0x80 (the least code of Q8_0)."""
    blocks = rng.integers(0, 256, (n, k // 32, fmt.block_bytes)).astype(np.uint8)
    structs = fmt.view(blocks)
    for row, kind in zip(range(4), ("usual", "any", "subnormal", "large"), strict=True):
        for field in {"d", "m"} & set(structs.dtype.names or ()):
            structs[field][row::4] = halves(rng, kind, structs[field][row::4].shape).view("<f2")
    for byte in (0x00, 0xFF, 0x80):
        chosen = rng.random((n, k // 32)) < 0.05
        for field in {"qs", "qh"} & set(structs.dtype.names or ()):
            structs[field][chosen] = np.full(structs[field].itemsize, byte, np.uint8).view(structs[field].dtype)[0]
    return structs.view(np.uint8).reshape(n, -1)


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


@ALL
def test_bits_are_the_oracles(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """At every edge of the shapes. Elements do not depend on M and N, so one oracle serves all of a K."""
    spec, rng = KERNELS[name], np.random.default_rng(7)
    kernel = Kernel(spec, host)
    for k, ms, ns in [*((k, MS, NS) for k in KS), (4096, (3,), (31,))]:
        w, x = random_weights(rng, fmt, max(ns), k), random_activations(rng, spec, max(ms), k)
        expected = product(SEMANTICS[spec.semantics], fmt, w, x, ordered=True, threads=2).ordered
        assert expected is not None
        assert np.isfinite(expected).all()
        for m in ms:
            for n in ns:
                got = kernel.gemm(kernel.upload(fmt, w[:n]), x[:m])
                assert_same(got, expected[:m, :n], (name, fmt.name, m, n, k))


@pytest.mark.parametrize("fmt", LEGACY.values(), ids=LEGACY)
def test_kernels_of_a_semantics_agree(host: CpuHost, fmt: BlockFormat) -> None:
    """On other data and a longer row than the oracle is asked for."""
    rng = np.random.default_rng(8)
    by_semantics: dict[str, list[KernelSpec]] = {}
    for spec in KERNELS.values():
        by_semantics.setdefault(spec.semantics, []).append(spec)
    assert max(map(len, by_semantics.values())) > 1
    w = random_weights(rng, fmt, 257, 14336)
    for specs in by_semantics.values():
        x = random_activations(rng, specs[0], 3, 14336)
        first, *others = (Kernel(s, host).gemm(Kernel(s, host).upload(fmt, w), x) for s in specs)
        for other in others:
            assert_same(other, first)


@ALL
def test_values_that_are_not_finite(host: CpuHost, name: str, fmt: BlockFormat) -> None:
    """Scales, minima, sums and activations of ±inf and NaN reach just the outputs that they belong to."""
    spec, rng = KERNELS[name], np.random.default_rng(9)
    n, m, k = 31, 33, 96
    w, x = random_weights(rng, fmt, n, k), random_activations(rng, spec, m, k)
    structs = fmt.view(w.reshape(n, -1, fmt.block_bytes))
    for field in {"d", "m"} & set(structs.dtype.names or ()):
        for row, value in zip(rng.permutation(n), (np.inf, -np.inf, np.nan), strict=False):
            structs[field][row, rng.integers(3)] = value
    w = structs.view(np.uint8).reshape(n, -1)
    if spec.semantics == "f32":
        values = x.view(np.float32).copy()
        for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan, 3e38), strict=False):
            values[row, rng.integers(k)] = value
        x = values.view(np.uint8)
    else:
        blocks = Q8_1.view(x.reshape(m, -1, Q8_1.block_bytes))
        for field in ("d", "s"):
            for row, value in zip(rng.permutation(m), (np.inf, -np.inf, np.nan), strict=False):
                blocks[field][row, rng.integers(3)] = value
        x = blocks.view(np.uint8).reshape(m, -1)
    kernel = Kernel(spec, host)
    expected = product(SEMANTICS[spec.semantics], fmt, w, x, ordered=True).ordered
    assert expected is not None
    assert 0 < np.isnan(expected).sum() < expected.size
    assert np.isinf(expected).any()
    assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


@pytest.mark.parametrize("name", KERNELS)
def test_zeros_give_a_positive_zero(host: CpuHost, name: str) -> None:
    """-0 from a negative scale times no codes does not survive the sum with +0."""
    kernel, fmt = Kernel(KERNELS[name], host), LEGACY["Q8_0"]
    w = fmt.pack(d=np.full((4, 3), -1.0), qs=np.zeros((4, 3, 32))).reshape(4, -1)
    x = kernel.quantize(np.ones((2, 96), np.float32))
    assert (kernel.gemm(kernel.upload(fmt, w), x).view(np.uint32) == 0).all()


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
        "not finite": special,
        "any bits": rng.integers(0, 0x7F800000, (64, 4096)).astype(np.uint32).view(np.float32)
        * rng.choice(np.array([-1, 1], np.float32), (64, 4096)),
    }  # fmt: skip


@pytest.mark.parametrize("kind", quantizer_inputs())
def test_quantizer(host: CpuHost, kind: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        x = quantizer_inputs()[kind].astype(np.float32)
    kernel = Kernel(KERNELS["q8_1_naive"], host)
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


def test_quantizer_of_a_block_of_nan(host: CpuHost) -> None:
    """Nothing is left to count in the largest magnitude."""
    x = np.full((1, 32), np.nan, np.float32)
    got, expected = (Q8_1.view(a)["d"] for a in (Kernel(KERNELS["q8_1_naive"], host).quantize(x), encode_q8_1(x)))
    np.testing.assert_array_equal(got, expected)


# -- sanitizers, and indices past 2^31 -------------------------------------------------------------------------------

SANITIZERS = ["-fsanitize=address,undefined", "-fsanitize=float-cast-overflow", "-fno-sanitize-recover=all", "-g"]


def in_a_process(root: Path, cases: list[tuple[str, str]], sanitizers: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ.copy()
    if sanitizers:
        found = subprocess.run([compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
        library = Path(found.stdout.strip())
        if not (library.is_absolute() and library.exists()):
            pytest.skip("the compiler has no address sanitizer as a library (libasan)")
        # leaks are Python's own; the library must come before everything that allocates
        environment |= {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "detect_leaks=0"}
    options = {"root": str(root), "cases": cases, "flags": SANITIZERS if sanitizers else []}
    command = [sys.executable, "-m", "tests.sanitized", json.dumps(options)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def test_clean_under_sanitizers(tmp_path: Path) -> None:
    """All kernels, all formats and the quantizer; inputs end with their allocations."""
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    done = in_a_process(root, [(k, f) for k in KERNELS for f in LEGACY])
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{len(KERNELS) * len(LEGACY)} cases are clean" in done.stdout


@pytest.mark.parametrize(
    ("name", "fmt", "file", "old", "new", "said"),
    [
        pytest.param(
            "q8_1_dp4a", "Q8_0", "formats/q8_0.cuh", "low = load_word_2(qs, j)", "low = load_word_4(qs, j)",
            "load of misaligned address", id="4-byte words from a 34-byte block",
        ),
        pytest.param(
            "q8_1_naive", "Q4_0", "gemm/q8_1/01_naive.cu", "b < nb", "b <= nb",
            "heap-buffer-overflow", id="a block past the row",
        ),
        pytest.param(
            "f32_naive", "Q5_1", "gemm/f32/01_naive.cu", "y[i] = acc", "y[i + 1] = acc",
            "heap-buffer-overflow", id="an element past the output",
        ),
        pytest.param(
            "q8_1_naive", "Q5_0", "quantize/q8_1.cu", "b < n_blocks", "b <= n_blocks",
            "heap-buffer-overflow", id="a block past the activations",
        ),
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, fmt: str, file: str, old: str, new: str, said: str) -> None:
    root = altered_kernel(tmp_path, name, file, old, new).root
    done = in_a_process(root, [(name, fmt)])
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        ("q8_1_naive", "gemm/q8_1/01_naive.cu", "(int64_t)blockIdx.x * blockDim.x", "blockIdx.x * blockDim.x"),
        ("q8_1_dp4a", "gemm/q8_1/04_dp4a.cu", "w + i % N * nb", "w + (int)(i % N * nb)"),
        ("f32_naive", "gemm/f32/01_naive.cu", "x + i / N * K", "x + (uint32_t)(i / N) * K"),
        ("q8_1_naive", "quantize/q8_1.cu", "(int64_t)blockIdx.x * (blockDim", "blockIdx.x * (blockDim"),
    ],
)
def test_an_index_of_32_bits_is_seen(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    """That indices are 64 bits wide is part of what `test_clean_under_sanitizers` runs; here it must fail."""
    done = in_a_process(altered_kernel(tmp_path, name, file, old, new).root, [(name, "Q8_0")], sanitizers=False)
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
    try:
        return nvrtc.architectures()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


@pytest.mark.parametrize("sm", CARDS)
def test_compiles_for_every_card(supported: list[int], sm: str) -> None:
    """And keeps all in registers: no local memory, so nothing spilled."""
    if int(sm) not in supported:
        pytest.skip(f"this NVRTC does not compile for sm_{sm}")
    sources = [(QUANTIZER, {})]
    sources += [
        (k.file, {"FORMAT": f.name, "BLOCK_BYTES": str(f.block_bytes)})
        for k in KERNELS.values()
        for f in LEGACY.values()
    ]
    for file, defines in sources:
        stacks = list(stack_bytes(nvrtc.compile_cubin(kernel_root(), file, sm, defines)))
        assert stacks, "the cubin does not say"
        assert not any(stacks), (file, defines, stacks)


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
