"""A GPU and the CPU host give the same bits. Skipped by name where no GPU can be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import FLOAT_TYPES, FORMATS
from gguf_verify.hosts import compute_sanitizer
from gguf_verify.hosts.base import Host
from gguf_verify.hosts.choice import make_host
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.cupy_host import CupyHost
from gguf_verify.hosts.memory import GUARD_BYTES, POISON
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.kernels.spec import KernelSpec
from gguf_verify.results.options import Options
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.elements import element_product
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from gguf_verify.support.paths import kernel_root
from gguf_verify.verification import verify
from tests.support.kernel_inputs import (
    ALL,
    LADDER,
    NAIVE,
    PLAIN,
    TILED,
    assert_same,
    element_gemm,
    elements_of_any_bits,
    gaussians,
    has_bits_of_naive,
    lengths,
    put_extremes,
    quantizer_inputs,
    random_activations,
    random_blocks,
    random_elements,
    random_weights,
    sources,
)
from tests.support.needs import need, unmet
from tests.support.packed_kernels import PACKED
from tests.support.tools import ROOT, altered_kernel

pytestmark = pytest.mark.needs("gpu")

MS, NS = (1, 3, 16, 33, 128), (1, 31, 257, 768)


@pytest.fixture(scope="module")
def gpu() -> Host:
    return make_host("gpu")


@pytest.fixture(scope="module")
def cpu(request: pytest.FixtureRequest) -> CpuHost:
    host = CpuHost()
    if len(request.session.items) > 50:  # all of them: compile everything that is not cached, on every core
        needed = [source for source in sources() if source[0] not in {KERNELS[k].file for k in TILED}]
        # each process begins with a share of its own, and finds the others' in the cache
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        begin = len(needed) * number // processes
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // processes)) as pool:
            list(pool.map(lambda source: host.load(kernel_root(), *source), needed[begin:] + needed[:begin]))
    return host


def test_auto_takes_the_gpu(gpu: Host) -> None:
    assert isinstance(make_host("auto"), CupyHost)
    assert isinstance(gpu, CupyHost)
    assert gpu.describe().startswith("gpu: ")
    assert f"sm_{gpu.sm}" in gpu.describe()


# -- the same bits ---------------------------------------------------------------------------------------------------


@ALL
def test_gemm(gpu: Host, cpu: CpuHost, name: str, fmt: BlockFormat) -> None:
    """Against naive on the CPU: codes of all kinds under scales from subnormal to the largest, activations with
    outliers, every edge of the shapes. Elements do not depend on M and N: the small shapes must repeat the bits of the
    large one."""
    spec, rng = KERNELS[name], np.random.default_rng(11)
    on_gpu, on_cpu = ShippedKernel(spec, gpu), ShippedKernel(KERNELS[NAIVE[spec.semantics]], cpu)
    one, _, several = lengths(fmt)
    for k, ms, ns in ((one, MS, NS), (several, MS, NS), (4096, (3, 128), (31, 257))):
        w, x = random_weights(rng, fmt, max(ns), k), random_activations(rng, spec, max(ms), k)
        whole = on_cpu.gemm(on_cpu.upload(fmt, w), x)
        assert np.isfinite(whole).all()
        if spec.semantics == "f32":  # elsewhere the least product of a half scale is 2^-48
            assert ((whole != 0) & (np.abs(whole) < 2**-126)).any()  # a flush of subnormals to zero would be seen
        for n in ns:
            weights = on_gpu.upload(fmt, w[:n])
            for m in ms:
                got, expected = on_gpu.gemm(weights, x[:m]), np.ascontiguousarray(whole[:m, :n])
                np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32), err_msg=f"{m}x{n}x{k}")


@LADDER
def test_bits_of_naive(gpu: Host, name: str, fmt: BlockFormat) -> None:
    spec = KERNELS[name]
    has_bits_of_naive(ShippedKernel(spec, gpu), ShippedKernel(KERNELS[NAIVE[spec.semantics]], gpu), fmt)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_kernels_of_a_semantics_agree_on_the_gpu(gpu: Host, fmt: BlockFormat) -> None:
    """With each other and with NumPy; and with each other on nothing but random bytes."""
    rng, k = np.random.default_rng(12), 3 * fmt.block_size
    by_semantics: dict[str, list[KernelSpec]] = {}
    for spec in (KERNELS[k] for k in PLAIN):
        if spec.covers(fmt):
            by_semantics.setdefault(spec.semantics, []).append(spec)
    w = random_weights(rng, fmt, 257, k)
    for semantics, specs in by_semantics.items():
        x = random_activations(rng, specs[0], 33, k)
        expected = product(SEMANTICS[semantics], fmt, w, x, order=ASCENDING).ordered
        assert expected is not None
        for spec in specs:
            kernel = ShippedKernel(spec, gpu)
            assert_same(kernel.gemm(kernel.upload(fmt, w), x), expected, spec.name)
    raw_w = random_blocks(rng, fmt, 257, k).reshape(257, -1)
    raw_x = random_blocks(rng, Q8_1, 33, k).reshape(33, -1)
    kernels = [ShippedKernel(spec, gpu) for spec in by_semantics["q8_1"]]
    first, *others = (kernel.gemm(kernel.upload(fmt, raw_w), raw_x) for kernel in kernels)
    assert np.isfinite(first).any()
    assert not np.isfinite(first).all()
    for other in others:
        assert_same(other, first)


@pytest.mark.parametrize("kind", FLOAT_TYPES)
def test_elements(gpu: Host, cpu: CpuHost, kind: str) -> None:
    rng = np.random.default_rng(19)
    for k in (1, 31, 288, 4096):
        w, x = random_elements(rng, kind, 257, k), gaussians(rng, 33, k)
        expected = element_gemm(cpu, kind, w, x)
        assert np.isfinite(expected).all()
        if k < 4096:
            assert_same(expected, element_product(kind, w.view(np.uint8), x, order=ASCENDING).ordered)
        for m, n in ((1, 1), (3, 31), (33, 257)):
            got = element_gemm(gpu, kind, w[:n], x[:m])
            np.testing.assert_array_equal(got.view(np.uint32), expected[:m, :n].view(np.uint32), err_msg=f"{m}x{n}x{k}")
    w, x = elements_of_any_bits(kind)
    assert_same(element_gemm(gpu, kind, w, x), element_gemm(cpu, kind, w, x))


@pytest.mark.parametrize("name", ["tiny-F16.gguf", "tiny-Q4_0.gguf"])
def test_a_model_verifies_on_the_gpu(gpu: Host, name: str) -> None:
    """All rungs, by the kernel of quantized weights and by that of others."""
    options = Options(probes="brief", prompt="Once upon a time", n_predict=4, threads=2, progress=False)
    report = verify(ROOT / "fixtures" / name, host=gpu, options=options)
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]
    assert report.environment.host.words.startswith("gpu: ")
    assert [r.checked["GEMMs"] for r in report.rungs if r.name == "layers"] == [22]


QUANTIZER_INPUTS = quantizer_inputs() | {"nothing but NaN": np.full((2, 96), np.nan)}


@pytest.mark.parametrize("kind", QUANTIZER_INPUTS)
def test_quantizer(gpu: Host, cpu: CpuHost, kind: str) -> None:
    """NaN included: both hosts write the same half for it."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = QUANTIZER_INPUTS[kind].astype(np.float32)
    got, expected = (ShippedKernel(KERNELS["q8_1_naive"], host).quantize(x) for host in (gpu, cpu))
    np.testing.assert_array_equal(got, expected)


def test_quantizer_at_the_shapes_of_the_gemms(gpu: Host, cpu: CpuHost) -> None:
    rng = np.random.default_rng(13)
    on_gpu, on_cpu = (ShippedKernel(KERNELS["q8_1_naive"], host) for host in (gpu, cpu))
    for k in (32, 288, 4096):
        x = rng.standard_normal((max(MS), k)).astype(np.float32)
        x[:, ::37] *= 200
        for m in MS:
            np.testing.assert_array_equal(on_gpu.quantize(x[:m]), on_cpu.quantize(x[:m]))
        np.testing.assert_array_equal(on_gpu.quantize(x), encode_q8_1(x))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_values_that_are_not_finite(gpu: Host, cpu: CpuHost, fmt: BlockFormat) -> None:
    """±inf and NaN as scales, minima and sums: in the same places; the NaN itself may have other bits."""
    rng, k = np.random.default_rng(14), 3 * fmt.block_size
    structs = fmt.view(random_weights(rng, fmt, 31, k).reshape(31, 3, fmt.block_bytes))
    put_extremes(rng, fmt, structs)
    w = structs.view(np.uint8).reshape(31, -1)
    for spec in (KERNELS[k] for k in PLAIN if KERNELS[k].covers(fmt)):
        x = random_activations(rng, spec, 33, k)
        if spec.semantics != "f32":
            blocks = Q8_1.view(x.reshape(33, -1, Q8_1.block_bytes))
            for field in ("d", "s"):
                blocks[field][rng.permutation(33)[:3], 2] = [np.inf, -np.inf, np.nan]
            x = blocks.view(np.uint8).reshape(33, -1)
        on_both = ShippedKernel(spec, gpu), ShippedKernel(KERNELS[NAIVE[spec.semantics]], cpu)
        got, expected = (kernel.gemm(kernel.upload(fmt, w), x) for kernel in on_both)
        # the scales of these two are bytes, none of which is a NaN to llama.cpp
        assert np.isnan(expected).any() or (fmt in (MXFP4, NVFP4) and spec.semantics == "f32")
        assert_same(got, expected, (spec.name, fmt.name))


# -- the host --------------------------------------------------------------------------------------------------------


def altered(folder: Path, gpu: Host, old: str, new: str) -> ShippedKernel:
    kernel = altered_kernel(folder, "q8_1_naive", "gemm/q8_1/01_naive.cu", old, new)
    return ShippedKernel(kernel.spec, gpu, kernel.root)


def small_product(kernel: ShippedKernel) -> np.ndarray:
    fmt = FORMATS["Q4_0"]
    w = random_weights(np.random.default_rng(15), fmt, 5, 32)
    return kernel.gemm(kernel.upload(fmt, w), kernel.quantize(np.ones((3, 32), np.float32)))


@pytest.mark.parametrize(
    ("at", "counts"),
    [
        ("-1", "1 byte before, 0 after"),
        (f"-{GUARD_BYTES}", "1 byte before, 0 after"),
        ("4 * M * N", "0 bytes before, 1 after"),
        (f"4 * M * N + {GUARD_BYTES - 1}", "0 bytes before, 1 after"),
    ],
)
def test_bytes_outside_the_output(gpu: Host, tmp_path: Path, at: str, counts: str) -> None:
    kernel = altered(tmp_path, gpu, "y[i] = acc;", f"y[i] = acc; ((uint8_t*)y)[{at}] = 7;")
    with pytest.raises(KernelFault, match=counts):
        small_product(kernel)


def test_unwritten_elements_hold_poison(gpu: Host, tmp_path: Path) -> None:
    got = small_product(altered(tmp_path, gpu, "y[i] = acc", "if (i != 7) y[i] = acc"))
    assert (np.flatnonzero(got.view(np.uint32) == POISON) == [7]).all()
    assert (got.view(np.uint32) == POISON).sum() == 1


def test_compile_error(gpu: Host, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"could not compile gemm/q8_1/01_naive\.cu for sm_.*no_such_name"):
        small_product(altered(tmp_path, gpu, "y[i] = acc", "y[i] = no_such_name"))


def test_block_size_that_disagrees(gpu: Host) -> None:
    with pytest.raises(EnvironmentFault, match="disagree about the size of a block"):
        gpu.load(kernel_root(), "gemm/q8_1/01_naive.cu", "gemm", {**FORMATS["Q4_0"].macros, "BLOCK_BYTES": "20"})


def test_illegal_address(tmp_path: Path) -> None:
    """One line, not a traceback of CuPy's; in a process of its own, since the device is lost to it."""
    root = altered_kernel(
        tmp_path, "q8_1_naive", "gemm/q8_1/01_naive.cu", "y[i] = acc", "y[i + (1ll << 40)] = acc"
    ).root
    program = """if True:
        import sys
        from pathlib import Path
        from gguf_verify.support.errors import KernelFault
        from gguf_verify.hosts.choice import make_host
        from gguf_verify.kernels.ladder import KERNELS
        from gguf_verify.kernels.shipped import ShippedKernel
        from tests.gpu.test_gpu import small_product
        try:
            small_product(ShippedKernel(KERNELS["q8_1_naive"], make_host("gpu"), Path(sys.argv[1])))
        except KernelFault as fault:
            print("fault:", fault)
    """
    command = [sys.executable, "-c", program, str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert "fault: CUDA failed" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(name, fmt, id=f"{name}-{fmt.name}")
        for name in (*PACKED, "q8_1_mma")
        for fmt in FORMATS.values()
        if KERNELS[name].covers(fmt)
    ],
)
def test_packed_kernels(gpu: Host, cpu: CpuHost, name: str, fmt: BlockFormat) -> None:
    """The ladder's shapes: the bits of naive on the same GPU; of the CPU for the kernel with an order of its own."""
    spec, naive = KERNELS[name], ShippedKernel(KERNELS["q8_1_naive"], gpu)
    if spec.cards.target(str(gpu.sm)) is None:
        unmet("gpu", f"{name} needs {spec.cards}")
    kernel, on_cpu, rng = ShippedKernel(spec, gpu), ShippedKernel(spec, cpu), np.random.default_rng(23)
    for k in (32, 96, 288, 4096) if fmt.block_size == 32 else (fmt.block_size, 3 * fmt.block_size, 4096):
        w, x = random_weights(rng, fmt, 1024, k), random_activations(rng, naive.spec, 257, k)
        ms: tuple[int, ...] = (1, 2, 7, 8, 16, 33, 64, 128, 257)
        if spec.order == ASCENDING:
            whole = naive.gemm(naive.upload(fmt, w), x)
        else:
            ms = ms[:6]
            whole = on_cpu.gemm(on_cpu.upload(fmt, w), x[: max(ms)])
        assert np.isfinite(whole).all()
        for n in (1, 31, 128, 257, 1024):
            weights = kernel.upload(fmt, w[:n])
            for m in ms:
                got, expected = kernel.gemm(weights, x[:m]), np.ascontiguousarray(whole[:m, :n])
                np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32), err_msg=f"{m}x{n}x{k}")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_decode_has_the_bits_of_naive(gpu: Host, fmt: BlockFormat) -> None:
    """Of few and of many strips, of rows that do and do not fill the last round, and of bytes that are no number."""
    rng = np.random.default_rng(33)
    kernel, naive = (ShippedKernel(KERNELS[name], gpu) for name in ("q8_1_decode", "q8_1_naive"))
    for n, k in ((1, 256), (300, 2816), (14336, 4096), (70, 14336), (40, 65536)):
        blocks = random_blocks(rng, fmt, n, k) if n == 300 else None
        if blocks is not None:
            put_extremes(rng, fmt, fmt.view(blocks))
        rows = random_weights(rng, fmt, n, k) if blocks is None else blocks.reshape(n, -1)
        x = random_activations(rng, naive.spec, 17, k)
        theirs, ours = naive.upload(fmt, rows), kernel.upload(fmt, rows)
        for m in (1, 2, 3, 8, 17):
            assert_same(kernel.gemm(ours, x[:m]), naive.gemm(theirs, x[:m]), (fmt.name, m, n, k))


@pytest.mark.parametrize("m", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("name", ["q8_1_gemv", "q8_1_decode", "q8_1_columns"])
def test_gemv_of_values(gpu: Host, name: str, m: int) -> None:
    """Quantized in the kernel: the bits of quantizing, then multiplying. The inverse of d is the GPU's."""
    rng, kernel = np.random.default_rng(30), ShippedKernel(KERNELS[name], gpu)
    for kind_of_weights in ("Q4_0", "Q5_1", "Q8_0"):
        fmt = FORMATS[kind_of_weights]
        for kind, x in QUANTIZER_INPUTS.items():
            with np.errstate(over="ignore", invalid="ignore"):
                x = x.astype(np.float32)[-m:]
            weights = kernel.upload(fmt, random_weights(rng, fmt, 300, x.shape[1]))
            assert_same(kernel.product(weights, x), kernel.gemm(weights, kernel.quantize(x)), (name, kind))
    w, x = random_weights(rng, fmt, 300, 4096), rng.standard_normal((200 * m, 4096)).astype(np.float32)
    weights = kernel.upload(fmt, w)
    for i in range(0, len(x), m):
        assert_same(kernel.product(weights, x[i : i + m]), kernel.gemm(weights, kernel.quantize(x[i : i + m])), i)


# -- compute-sanitizer -----------------------------------------------------------------------------------------------


def under_sanitizer(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    need("compute-sanitizer")
    program = compute_sanitizer.program() or ""
    command = [
        program,
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "tests.support.gpu_sweep",
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_clean_under_compute_sanitizer(tool: str) -> None:
    done = under_sanitizer(tool)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "products are right" in done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "RACECHECK SUMMARY: 0 hazards" in done.stdout


@pytest.mark.parametrize(
    ("tool", "name", "file", "old", "new", "said"),
    [
        pytest.param("memcheck", "q8_1_naive", "gemm/q8_1/01_naive.cu", "b < nb", "b <= nb", "Invalid __global__ read",
                     id="a block past the row"),
        pytest.param("racecheck", "q8_1_tiled", "gemm/q8_1/02_tiled.cu", "__syncthreads();", "", "hazard",
                     id="no barriers"),
    ],
)  # fmt: skip
def test_compute_sanitizer_sees(tmp_path: Path, tool: str, name: str, file: str, old: str, new: str, said: str) -> None:
    root = tmp_path / "kernels"
    shutil.copytree(kernel_root(), root)
    source = (root / file).read_text()
    assert old in source
    (root / file).write_text(source.replace(old, new))
    done = under_sanitizer(tool, str(root), name)
    assert done.returncode != 0
    assert said in done.stdout
