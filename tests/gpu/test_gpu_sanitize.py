"""`--sanitize` on a GPU: findings of compute-sanitizer's tools and of guard pages in incorrect kernels; correct ones
pass, including those that read unwritten memory without using it. Skipped by name where there is no GPU or no
compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import compute_sanitizer, sanitized_host
from gguf_verify.hosts.base import Host
from gguf_verify.hosts.choice import make_host
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.interface import Kernel
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.results.options import Options
from gguf_verify.support.errors import KernelFault, KernelFinding
from gguf_verify.verification import verify
from tests.support.kernel_inputs import random_activations, random_weights
from tests.support.tools import FIXTURES, ROOT, cli

pytestmark = [pytest.mark.needs("gpu"), pytest.mark.needs("compute-sanitizer")]

CHECKED = Schedule(checked=True)
EXAMPLE = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
Q4_0 = FORMATS["Q4_0"]
#: Outputs pass through shared memory to another thread of the block, behind a barrier.
THROUGH_SHARED = (
    EXAMPLE.replace("if (i >= M * N) return;", "__shared__ float kept[128];")
    .replace("const long long m = i / N,", "const long long m = i < M * N ? i / N : 0,")
    .replace(
        "    y[i] = acc;\n",
        "    kept[127 - threadIdx.x] = acc;\n    __syncthreads();\n"
        "    const long long j = (long long)blockIdx.x * 128 + 127 - threadIdx.x;\n    if (j < M * N) y[j] = "
        "kept[threadIdx.x];\n",
    )
)
READ = "    y[i] = acc + 0.0f * (float){};\n"
#: Reads its output, or shared memory, which nothing has written; volatile, so that the reading stays.
UNSET_OF = {"global": "((volatile unsigned*)y)[i]", "shared": "((volatile unsigned*)unset)[threadIdx.x]"}
UNSET = """    __shared__ unsigned unset[128];
    const unsigned other = {read};
    y[i] = {value};
"""
#: That does not depend on it, and that does.
UNUSED, USED = "M < 0 ? __uint_as_float(other) : acc", "__uint_as_float(__float_as_uint(acc) ^ other)"
PAST, BEFORE = "((const unsigned char*)w)[N * blocks * 18 + 16]", "((const signed char*)x)[-16]"


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    """compute-sanitizer needs sockets, which the sandbox takes away."""
    with sandboxed("none"):
        yield


@pytest.fixture(scope="module")
def gpu() -> Host:
    return make_host("gpu")


#: Seconds for a start or a call: beside other tests, compute-sanitizer takes minutes.
LIMIT = 600.0


def altered(source: str, old: str, new: str) -> str:
    assert old in source
    return source.replace(old, new)


def foreign(folder: Path, source: str, gpu: Host) -> Kernel:
    path = folder / "kernel.cu"
    path.write_text(source)
    return open_foreign(f"{path}:gemm", gpu, LIMIT)


def reads_unset(space: str, value: str) -> str:
    return altered(EXAMPLE, "    y[i] = acc;\n", UNSET.format(read=UNSET_OF[space], value=value))


def checked(kernel: Kernel) -> tuple[str, ...]:
    """A product under the checks; returns the unwritten memory that it reads. Raises KernelFinding. The bits must be
    those of an ordinary launch."""
    rng = np.random.default_rng(5)
    rows, x = random_weights(rng, Q4_0, 37, 288), random_activations(rng, KERNELS["q8_1_naive"], 5, 288)
    under = kernel.under(CHECKED)
    assert under is not None
    y = under.gemm(under.upload(Q4_0, rows), x)
    expected = kernel.gemm(kernel.upload(Q4_0, rows), x)
    assert np.array_equal(y.view(np.uint32), expected.view(np.uint32))
    return under.unset


def line_of(source: str, text: str) -> str:
    return f"kernel.cu:{source[: source.index(text)].count(chr(10)) + 1}"


WRONG = {
    "race": (altered(THROUGH_SHARED, "    __syncthreads();\n", ""), "race", "data race: ", "kept[127"),
    "past the end": (
        altered(EXAMPLE, "    y[i] = acc;\n", READ.format(PAST)), "outside", "past the end of its weights", "    y[i]",
    ),
    "before the start": (
        altered(EXAMPLE, "    y[i] = acc;\n", READ.format(BEFORE)), "outside", "outside its buffers", "    y[i]",
    ),
    "misaligned": (
        altered(EXAMPLE, "        int sum = 0;\n", "        int sum = *(const int*)wb.qs & 0;\n").replace(
            "& 0;", "== 0x12345678;"
        ), "misaligned", "misaligned access", "        int sum",
    ),
    "half of each warp": (
        altered(THROUGH_SHARED, "    __syncthreads();\n", "    if (threadIdx.x & 1) __syncthreads();\n"), "divergent",
        "barrier", "    if (threadIdx.x & 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_has_a_finding_with_its_line(tmp_path: Path, gpu: Host, name: str) -> None:
    source, kind, said, place = WRONG[name]
    kernel = foreign(tmp_path, source, gpu)
    with pytest.raises(KernelFinding, match=said) as caught:
        checked(kernel)
    kernel.close()
    assert caught.value.kind == kind
    assert line_of(source, place) in caught.value.lines, caught.value.words


@pytest.mark.parametrize("source", [EXAMPLE, THROUGH_SHARED], ids=["example", "through shared memory"])
def test_right_twins(tmp_path: Path, gpu: Host, source: str) -> None:
    kernel = foreign(tmp_path, source, gpu)
    checked(kernel)
    kernel.close()


def test_threads_that_left(tmp_path: Path, gpu: Host) -> None:
    """On a GPU, threads that ended have arrived at the barrier. The missing writes are found."""
    source = altered(THROUGH_SHARED, "    kept[127", "    if (threadIdx.x >= 48) return;\n    kept[127")
    kernel = foreign(tmp_path, source, gpu)
    with pytest.raises(KernelFault, match=r"as they were before the launch|shared memory .* that nothing has written"):
        checked(kernel)
    kernel.close()


@pytest.mark.parametrize("space", UNSET_OF)
def test_memory_that_nothing_has_written(tmp_path: Path, gpu: Host, space: str) -> None:
    """Read and not used, it is a note where the tool sees it; used, it is a finding, or outputs differ between
    processes. (initcheck of CUDA 13.0 saw no reading of an output on an H200.)"""
    for value in (UNUSED, USED):
        source = reads_unset(space, value)
        line = line_of(source, "    const unsigned other")
        folder = tmp_path / str(len(value))
        folder.mkdir()
        kernel = foreign(folder, source, gpu)
        if value == UNUSED:
            assert set(checked(kernel)) <= {f"{space} memory at {line}"}
        else:
            said = rf"of {space} memory at {line} that nothing|differs between processes, in which memory"
            with pytest.raises(KernelFault, match=said):
                checked(kernel)
        kernel.close()


def test_shared_memory_that_no_tool_looks_at(tmp_path: Path, gpu: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contents before a launch differ between processes, and so do outputs that depend on them."""
    monkeypatch.setattr(compute_sanitizer, "TOOLS", ())
    host = sanitized_host.SanitizedHost(gpu)
    rng = np.random.default_rng(5)
    rows, x = random_weights(rng, Q4_0, 37, 288), random_activations(rng, KERNELS["q8_1_naive"], 5, 288)
    for value in (UNUSED, USED):
        folder = tmp_path / str(len(value))
        folder.mkdir()
        (folder / "kernel.cu").write_text(reads_unset("shared", value))
        kernel = host.load(folder, "kernel.cu", "gemm", {})
        out = host.output(4 * 5 * 37)
        args = [host.upload(rows, "weights"), host.upload(x, "activations"), out, *map(np.int64, (5, 37, 288))]
        host.launch(kernel, (2, 1, 1), (128, 1, 1), args)
        if value == UNUSED:
            host.download(out)
        else:
            with pytest.raises(KernelFault, match="differs between processes"):
                host.download(out)
    host.close()


@pytest.mark.parametrize(
    "name",
    [
        "q8_1_naive",
        "q8_1_tiled",
        "q8_1_mma",
        "q8_1_wgmma",
        "q8_1_gemv",
        "q8_1_split_k",
        "q8_1_decode",
        "q8_1_columns",
    ],
)
def test_shipped_kernels_have_no_finding(gpu: Host, name: str) -> None:
    checked(ShippedKernel(KERNELS[name], gpu))


@pytest.mark.parametrize(("read", "side"), [(PAST, "behind"), (BEFORE, "before")])
def test_guard_pages_alone(tmp_path: Path, gpu: Host, monkeypatch: pytest.MonkeyPatch, read: str, side: str) -> None:
    """Without any tool: a read 16 bytes past the end, or before the start, ends the launch; the right twin passes."""
    monkeypatch.setattr(compute_sanitizer, "TOOLS", ())
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for folder, new in ((right, "    y[i] = acc;\n"), (wrong, READ.format(read))):
        folder.mkdir()
        (folder / "unit.cu").write_text(altered(EXAMPLE, "    y[i] = acc;\n", new))
    rng = np.random.default_rng(5)
    rows, x = random_weights(rng, Q4_0, 37, 288), random_activations(rng, KERNELS["q8_1_naive"], 5, 288)
    host = sanitized_host.SanitizedHost(gpu)
    for folder in (right, wrong):
        kernel = host.load(folder, "unit.cu", "gemm", {})
        buffers = host.upload(rows, "weights"), host.upload(x, "activations"), host.output(4 * 5 * 37)
        args = [*buffers, *(np.int64(v) for v in (5, 37, 288))]
        if folder == wrong:
            with pytest.raises(KernelFault, match=f"outside its buffers: pages {side} one of them"):
                host.launch(kernel, (2, 1, 1), (128, 1, 1), args)
        else:
            host.launch(kernel, (2, 1, 1), (128, 1, 1), args)
            assert np.isfinite(host.download(buffers[2]).view(np.float32)).all()
    host.close()


def test_a_verification(tmp_path: Path, gpu: Host) -> None:
    """It reads memory that nothing has written and does not use it: verified, with a note where the tool sees it."""
    source = reads_unset("global", UNUSED)
    (tmp_path / "kernel.cu").write_text(source)
    options = Options(
        probes="brief",
        sanitize=True,
        n_predict=1,
        tensor=r"blk\.0\.attn_q\.",
        progress=False,
        sandbox="none",
        kernel_time_limit=LIMIT,
    )
    report = verify(FIXTURES / "tiny-Q4_0.gguf", f"{tmp_path / 'kernel.cu'}:gemm", gpu, ["layers"], options)
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]
    assert report.rungs[0].checked["launches of a checked build"] >= 3
    place = line_of(source, "    const unsigned other")
    noted = f"it reads what nothing has written, and its outputs do not depend on it: global memory at {place}"
    assert all(n.endswith(noted) for n in report.rungs[0].notes if "nothing has written" in n), report.rungs[0].notes


def test_not_in_a_sandbox(tmp_path: Path) -> None:
    """A launch that cannot be checked is no fault of the kernel's."""
    (tmp_path / "kernel.cu").write_text(EXAMPLE)
    arguments = ("--host", "gpu", "--tensor", r"blk\.0\.attn_q\.", "--rungs", "layers", "--effort", "quick")
    done = cli(FIXTURES / "tiny-Q4_0.gguf", "--kernel", f"{tmp_path / 'kernel.cu'}:gemm", *arguments, "--sanitize")
    assert done.returncode == 3
    assert "add --sandbox none" in done.stderr
