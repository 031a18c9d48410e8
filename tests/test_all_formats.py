"""Every kernel with every format: bit for bit against NumPy on the CPU host and on a GPU; compiled for cards."""

from __future__ import annotations

import numpy as np
import pytest

from harness.errors import EnvironmentFault
from harness.formats import FORMATS, BlockFormat
from harness.hosts import CpuHost, make_host, nvrtc
from harness.hosts.base import Host, kernel_root
from harness.hosts.cupy_host import gpu_fault
from harness.kernels import KERNELS, Kernel, KernelSpec
from harness.semantics import SEMANTICS, product
from harness.semantics.elements import ELEMENTS, element_product

from .test_semantics import random_blocks

CARDS = ("75", "90")  # the oldest and Hopper's; tests/test_kernels.py has all of them for the legacy formats


def finite_weights(fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    rng = np.random.default_rng((fmt.type_id, n, k))
    return random_blocks(fmt, n * k // fmt.block_size, rng, wild=True).reshape(n, -1)


def any_weights(fmt: BlockFormat, n: int, k: int) -> np.ndarray:
    """Random bytes: scales that are infinite and NaN among them."""
    rng = np.random.default_rng((fmt.type_id, n, k))
    return rng.integers(0, 256, (n, fmt.row_bytes(k)), np.uint8)


def activations(spec: KernelSpec, m: int, k: int) -> np.ndarray:
    rng = np.random.default_rng((m, k))
    x = (rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, 1)))).astype(np.float32)
    encode = SEMANTICS[spec.semantics].encode
    return encode(x) if encode else x.view(np.uint8)


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    """In every bit; any NaN equals any NaN."""
    equal = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert equal.all(), np.argwhere(~equal)[:5]


def check(fmt: BlockFormat, spec: KernelSpec, host: Host) -> None:
    """One block, an odd number of them, and rows and tokens that fill no tile."""
    kernel = Kernel(spec, host)
    for draw, n, m, blocks in ((finite_weights, 1, 1, 1), (finite_weights, 131, 3, 3), (any_weights, 33, 5, 2)):
        k = blocks * fmt.block_size
        w, x = draw(fmt, n, k), activations(spec, m, k)
        expected = product(SEMANTICS[spec.semantics], fmt, w, x, ordered=True).ordered
        assert expected is not None
        assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected)


@pytest.fixture(scope="module")
def cpu() -> CpuHost:
    return CpuHost(2)


@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
def test_declared_order(fmt: BlockFormat, spec: KernelSpec, cpu: CpuHost) -> None:
    check(fmt, spec, cpu)


@pytest.mark.gpu
@pytest.mark.skipif(gpu_fault() is not None, reason="no GPU")
@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
def test_declared_order_on_the_gpu(fmt: BlockFormat, spec: KernelSpec) -> None:
    check(fmt, spec, make_host("gpu"))


@pytest.mark.parametrize("sm", CARDS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
def test_compiles(fmt: BlockFormat, sm: str) -> None:
    defines = {"FORMAT": fmt.name, "BLOCK_BYTES": str(fmt.block_bytes)}
    try:
        for spec in KERNELS.values():
            assert nvrtc.compile_cubin(kernel_root(), spec.file, sm, defines)
    except EnvironmentFault as fault:
        if "could not compile" in str(fault):
            raise
        pytest.skip(str(fault))


# -- elements ---------------------------------------------------------------------------------------------------


def element_weights(kind: str, n: int, k: int) -> np.ndarray:
    w = np.random.default_rng((n, k)).standard_normal((n, k)).astype(np.float32)
    if kind == "F16":
        return w.astype(np.float16).view(np.uint8)
    return w.view(np.uint8) if kind == "F32" else (w.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 40, 172), (3, 131, 33)])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_elements(kind: str, m: int, n: int, k: int, cpu: CpuHost) -> None:
    """The naive kernel of weights that are not quantized has the bits of its declared order."""
    w = element_weights(kind, n, k)
    x = np.random.default_rng((m, k, 7)).standard_normal((m, k)).astype(np.float32)
    x[0, 0] = 1.00390625 if kind == "BF16" else 1.00048828125  # a tie of the rounding
    defines = {"ELEMENT": kind, "BLOCK_BYTES": str(w.shape[1] // k)}
    kernel = cpu.load(kernel_root(), "gemm/elements/01_naive.cu", "gemm", defines)
    out = cpu.output(4 * m * n)
    shape = [np.int64(i) for i in (m, n, k)]
    cpu.launch(kernel, (-(-m * n // 256), 1, 1), (256, 1, 1), [cpu.upload(w), cpu.upload(x.copy()), out, *shape])
    y = cpu.download(out).view(np.float32).reshape(m, n)
    expected = element_product(kind, w, x, ordered=True)
    assert expected.ordered is not None
    assert_same(y, expected.ordered)
    assert (np.abs(y - expected.exact) <= expected.bound).all()
