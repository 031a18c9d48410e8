"""Foreign kernels whose threads add floats by atomic operations: other bits in another order are no fault of a kernel
that declares none; what is wrong beyond rounding is. And CUDA's asynchronous copies, and inline PTX on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign.faults import frames_of
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.report.writer import Kind
from gguf_verify.results.report import Report
from gguf_verify.support.errors import KernelFinding, UsageError
from tests.support.foreign_runs import EXAMPLES, multiplied, operands, verified
from tests.support.shown import text_of

#: What makes a kernel with eight threads an output of the example: each adds its blocks of K to a sum in shared memory.
SPLIT = (EXAMPLES / "cuda_q4_0.cu").read_text()
for _old, _new in (
    ('grid = "ceil(M * N, 128)"', 'grid = "ceil(8 * M * N, 128)"'),
    ("(long long)blockIdx.x * blockDim.x + threadIdx.x;", "((long long)blockIdx.x * blockDim.x + threadIdx.x) / 8;"),
    (
        "if (i >= M * N) return;",
        """__shared__ float sums[16];
    const int part = threadIdx.x % 8;
    if (part == 0) sums[threadIdx.x / 8] = 0;
    __syncthreads();""",
    ),
    ("const long long m = i / N,", "const long long m = i < M * N ? i / N : 0,"),
    ("for (long long b = 0; b < blocks; ++b) {", "for (long long b = part; b < blocks; b += 8) {"),
    (
        "    y[i] = acc;\n",
        """    atomicAdd(&sums[threadIdx.x / 8], acc);
    __syncthreads();
    if (part == 0 && i < M * N) y[i] = sums[threadIdx.x / 8];
""",
    ),
):
    assert _old in SPLIT
    SPLIT = SPLIT.replace(_old, _new)


def run(folder: Path, source: str) -> Report:
    path = folder / "split.cu"
    path.write_text(source)
    return verified(f"{path}:gemm", "layers", tensor=r"blk\.0\.attn_q\.", probes="full")


def test_sums_in_any_order(tmp_path: Path) -> None:
    report = run(tmp_path, SPLIT)
    assert report.exit_code == 0, [f.what for _, f in report.failures]
    assert any("add floats by atomic operations" in note for note in report.rungs[0].notes)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("acc);\n    __syncthreads();", "acc);", "data race: "),
        ("atomicAdd(&sums[threadIdx.x / 8], acc)", "sums[threadIdx.x / 8] += acc", "data race: "),
    ],
)  # fmt: skip
def test_wrong_ones(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SPLIT
    report = run(tmp_path, SPLIT.replace(old, new))
    assert set(report.culprits) == {"kernel"}
    found = [f for _, f in report.failures if said in f.what]
    assert found, [f.what for _, f in report.failures]
    lines = (tmp_path / "split.cu").read_text().splitlines()
    places = [frame.place.rpartition(":") for frame in found[0].trace]
    assert {file for file, _, _ in places} == {"split.cu"}
    assert [lines[int(number) - 1].strip() for _, _, number in places] == [frame.code for frame in found[0].trace]
    assert f" --> {found[0].trace[0].place}\n" in text_of(Kind.RUN, report)


def test_lines_of_findings_are_quoted_where_they_are_known() -> None:
    texts = {"a/k.cu": "one\n  two;\n", "b/h.cuh": "x", "c/h.cuh": "y"}
    places = ("k.cu:2 (for h.cuh:1)", "k.cu:2", "k.cu:1", "k.cu:0", "k.cu:3", "h.cuh:1", "an unknown line")
    assert frames_of(places, texts) == (("k.cu:2", "two;", True), ("k.cu:1", "one", True))
    assert frames_of(places[:1], texts, "here") == (("k.cu:2 (here)", "two;", True),)


def test_the_line_of_a_write_outside_the_output_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text((EXAMPLES / "cuda_q4_0.cu").read_text().replace("    y[i] = acc;", "    y[i + 1] = acc;"))
    line = path.read_text()[: path.read_text().index("y[i + 1]")].count("\n") + 1
    report = verified(f"{path}:gemm", "layers", tensor=r"blk\.0\.attn_q\.", probes="brief")
    assert report.exit_code == 1
    shown = " ".join(text_of(Kind.RUN, report).split())
    place = f"k.cu:{line} (the first access outside, in a checked build)"
    assert f"--> {place} {line} | y[i + 1] = acc; | ^^^^^^^^^^^^^^^ " in shown


def test_what_is_read_unset_and_not_used_is_a_note(tmp_path: Path) -> None:
    source = (EXAMPLES / "cuda_q4_0.cu").read_text()
    new = (
        "__shared__ int unset[128];\nconst int other = ((volatile int*)unset)[threadIdx.x];\n"
        "y[i] = M < 0 ? (float)other : acc;"
    )
    path = tmp_path / "unset.cu"
    path.write_text(source.replace("y[i] = acc;", new))
    line = path.read_text()[: path.read_text().index("const int other")].count("\n") + 1
    report = verified(f"{path}:gemm", "layers", tensor=r"blk\.0\.attn_q\.", probes="brief", sanitize=True)
    assert report.exit_code == 0, [f.what for _, f in report.failures]
    read = f"reads what nothing has written, and its outputs do not depend on it: shared memory at unset.cu:{line}"
    assert [note.endswith(read) for note in report.rungs[0].notes].count(True) == 1, report.rungs[0].notes


# -- asynchronous copies, and inline PTX -------------------------------------------------------------------------------

STAGED = (EXAMPLES / "cuda_q4_0.cu").read_text()
for _old, _new in (
    ("struct Q4_0 {", "#include <cuda_pipeline.h>\nstruct Q4_0 {"),
    (
        "        const Q8_1& xb = x[m * blocks + b];\n",
        """        __shared__ Q8_1 kept[128];
        const Q8_1& xb = kept[threadIdx.x];
        for (int j = 0; j < 36; j += 4)
            __pipeline_memcpy_async((char*)&xb + j, (const char*)&x[m * blocks + b] + j, 4);
        __pipeline_commit();
        __pipeline_wait_prior(0);
""",
    ),
):
    assert _old in STAGED
    STAGED = STAGED.replace(_old, _new)


def checked(path: Path, source: str) -> bool:
    """Whether a product under the checks has the bits of an ordinary one. Raises KernelFinding, UsageError."""
    path.write_text(source)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    try:
        under = kernel.under(Schedule(checked=True))
        assert under is not None
        rows, x = operands()
        y, expected = (k.product(k.upload(FORMATS["Q4_0"], rows), x) for k in (under, kernel))
        return np.array_equal(y.view(np.uint32), expected.view(np.uint32)) and multiplied(kernel)
    finally:
        kernel.close()


def test_copies_of_cuda_pipeline(tmp_path: Path) -> None:
    assert checked(tmp_path / "right.cu", STAGED)
    with pytest.raises(KernelFinding, match=r"data race: .*asynchronous copy"):
        checked(tmp_path / "wrong.cu", STAGED.replace("__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)"))


def test_bytes_that_are_not_copied_become_zero(tmp_path: Path) -> None:
    last = "        __pipeline_memcpy_async((char*)&xb + 32, (const char*)&x[m * blocks + b] + 32, 4, 4);\n"
    commit = "        __pipeline_commit();"
    source = STAGED.replace("36; j += 4", "32; j += 4").replace(commit, last + commit)
    path = tmp_path / "zeros.cu"
    path.write_text(source)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    rows, x = operands()
    given = kernel.quantize(x)
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    y = kernel.gemm(weights, given)
    given.reshape(-1, 36)[:, 32:] = 0
    assert np.array_equal(y, kernel.gemm(weights, given))
    kernel.close()


FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'


def test_inline_ptx_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ptx.cu"
    path.write_text(STAGED.replace("        __pipeline_commit();", "        __pipeline_commit();\n" + 8 * " " + FENCE))
    with pytest.raises(UsageError, match=r"inline PTX `wgmma[^`]*` is not available on a CPU") as caught:
        open_foreign(f"{path}:gemm", CpuHost(1))
    assert "\n" not in str(caught.value)
