"""What a GPU or CUDA's compiler refuses is refused on the CPU host: launches beyond a limit, and code of the host."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.author_cubin import SWITCH
from gguf_verify.hosts.compiler import counts_fault
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.foreign_sources import ForeignSource
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign.cuda import CudaKernels, CudaSource
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.support.errors import EnvironmentFault, KernelFinding, UsageError

DECLARED = """
formats = ["Q4_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "output"]
block = 64
grid = 1
"""
KERNEL = """
extern "C" __global__ void {bounds} k(const int* w, const int* x, float* y) {{
    {body}
}}
"""


def compiled(folder: Path, text: str, symbol: str = "k", more: str = "") -> CudaKernels:
    (folder / "k.cu").write_text(text)
    kernels = CudaKernels(CudaSource(folder / "k.cu", symbol, parse(DECLARED + more)), CpuHost(1), 300.0)
    kernels.all()
    return kernels


def launched(kernels: CudaKernels, threads: int, shared: int = 0, symbol: str = "k", blocks: int = 1) -> float:
    host = CpuHost(1)
    x, y = host.upload(np.zeros(1, np.int32)), host.output(4)
    kernel = host.load_placed(kernels.of("Q4_0")[f"Q4_0/{symbol}"])
    host.launch(kernel, (blocks, 1, 1), (threads, 1, 1), [x, x, y], shared)
    return float(host.download(y).view(np.float32)[0])


def test_a_source_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In each use: an attempt that seemed to change its files would be made again."""
    commands: list[Sequence[str]] = []
    run = ForeignSource.run

    def counted(self: ForeignSource, command: Sequence[str], *more: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return run(self, command, *more)

    monkeypatch.setattr(ForeignSource, "run", counted)
    text = KERNEL.format(bounds="", body=f"y[0] = 3.0f;  // {uuid4()}")  # no run before has compiled it
    for uses in (1, 2):
        compiled(tmp_path, text)
        # the compiler, the linker, and for counters of each thread the assembler
        counts = platform.machine() == "x86_64" and counts_fault() is None
        assert len(commands) == (3 if counts else 2) * uses


def test_a_header_that_is_new_beside_the_source_is_compiled(tmp_path: Path) -> None:
    """No list of files that an earlier compilation read has it."""
    include = '#if __has_include("tune.h")\n#include "tune.h"\n#else\n#define TUNED 3.0f\n#endif\n'
    text = include + KERNEL.format(bounds="", body=f"y[0] = TUNED;  // {uuid4()}")
    assert launched(compiled(tmp_path, text), 1) == 3
    (tmp_path / "tune.h").write_text("#define TUNED 4.0f\n")
    assert launched(compiled(tmp_path, text), 1) == 4


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles what is compiled for the CPU."""
    try:
        nvrtc.version()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    monkeypatch.delenv(SWITCH, raising=False)


BOUNDED = """#define AT_MOST __launch_bounds__(96, 2)
template <int WARPS> constexpr int threads() { return 32 * WARPS; }
template <int WARPS> __global__ void __launch_bounds__(threads<WARPS>()) k(const int* w, const int* x, float* y) {
    y[0] = WARPS;
}
__global__ AT_MOST void of_macro(const int* w, const int* x, float* y) { y[0] = 7; }
"""


@pytest.mark.parametrize(("symbol", "most", "line"), [("k<2>", 64, 3), pytest.param("of_macro", 96, 6)])
def test_more_threads_than_a_kernel_is_compiled_for(tmp_path: Path, symbol: str, most: int, line: int) -> None:
    kernels = compiled(tmp_path, BOUNDED, symbol)
    assert launched(kernels, most, symbol=symbol) == {64: 2, 96: 7}[most]
    with pytest.raises(
        KernelFinding, match=rf"{most + 1} threads, and its __launch_bounds__ allows {most} \(k.cu:{line}\)"
    ):
        launched(kernels, most + 1, symbol=symbol)


CLUSTERS = """constexpr int ALONG = 2;
#define OF_Y 1
__global__ void __cluster_dims__({dims}) __launch_bounds__(64) k(const int* w, const int* x, float* y) {{ y[0] = 1; }}
__global__ void other(const int* w, const int* x, float* y) {{ y[0] = 1; }}
"""


@pytest.mark.parametrize("dims", ["2, 1, 1", "ALONG, OF_Y", "2u"])
def test_a_grid_of_whole_clusters(tmp_path: Path, dims: str) -> None:
    kernels = compiled(tmp_path, CLUSTERS.format(dims=dims))
    assert launched(kernels, 64, blocks=4) == 1
    with pytest.raises(KernelFinding, match=r"grid of 3×1×1 .* no multiple of its __cluster_dims__, 2×1×1 \(k.cu:3\)"):
        launched(kernels, 64, blocks=3)
    assert launched(compiled(tmp_path, CLUSTERS.format(dims=dims), "other"), 64, symbol="other", blocks=3) == 1


def test_a_cluster_of_too_many_blocks(tmp_path: Path) -> None:
    with pytest.raises(KernelFinding, match="16×1×1 thread blocks, and a cluster has 1 to 8"):
        launched(compiled(tmp_path, CLUSTERS.format(dims="16, 1, 1")), 64, blocks=16)


SHARED = "__shared__ volatile float tile[{n}]; tile[threadIdx.x] = 1; y[0] = tile[0];"


def test_too_much_static_shared_memory(tmp_path: Path) -> None:
    """It is counted for each kernel by itself, with that of the functions that it calls."""
    helper = f"static __device__ __noinline__ void deep(float* y) {{ {SHARED.format(n=5000)} }}\n"
    other = KERNEL.format(bounds="", body="deep(y);").replace(" k(", " other(")
    own = KERNEL.format(bounds="", body=SHARED.format(n=12288))
    assert launched(compiled(tmp_path, helper + other + own), 64) == 1
    with pytest.raises(UsageError, match=r"k has 49,168 bytes of static shared memory, the most in tile \(k.cu:3\)"):
        compiled(tmp_path, KERNEL.format(bounds="", body=SHARED.format(n=12292)))
    with pytest.raises(UsageError, match="k has 69,152 bytes of static shared memory"):
        compiled(tmp_path, helper + KERNEL.format(bounds="", body=f"deep(y); {SHARED.format(n=12288)}"))


@pytest.mark.parametrize(("flag", "most"), [("", 232448), ("-arch=sm_86", 101376)])
def test_static_and_dynamic_shared_memory_together(tmp_path: Path, flag: str, most: int) -> None:
    body = SHARED.format(n=1024) + " extern __shared__ float more[]; more[0] = y[0];"
    kernels = compiled(tmp_path, KERNEL.format(bounds="", body=body), more=f'flags = ["{flag}"]\n' if flag else "")
    assert launched(kernels, 64, most - 4096) == 1
    with pytest.raises(KernelFinding, match=rf"4,096 bytes static .*, and the GPU gives a block {most:,} \(k.cu:2\)"):
        launched(kernels, 64, most - 4080)


@pytest.mark.parametrize(
    ("before", "body", "line"),
    [
        ("static int one() { return 1; }\n", "y[0] = one();", "k.cu(4)"),
        ("int table[] = {1, 2};\n", "y[0] = table[threadIdx.x];", "k.cu(4)"),
        pytest.param("", "y[0] = __no_such_intrinsic(1.0f);", "k.cu", id="unknown"),
    ],
)
@pytest.mark.usefixtures("cuda")
def test_code_of_the_host_in_a_kernel(tmp_path: Path, before: str, body: str, line: str) -> None:
    with pytest.raises(UsageError, match=r"could not compile .*" + re.escape(line)):
        compiled(tmp_path, before + KERNEL.format(bounds="", body=body))


OF_BOTH = """#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <vector>
#include <cstdio>
static const char* names[] = {"a"};
static int calls = 0;
constexpr int half_of(int n) { return n / 2; }
constexpr int THREADS = 64, HALF = half_of(THREADS);
#define DEVICE static __device__ __forceinline__
DEVICE float one(__half h) { return __half2float(h) + HALF - 32; }
struct Shape { int n; Shape(int v) : n(v) {} int blocks() const { return n / 2; } };
static int helper(int n) { ++calls; return n; }
"""
LAUNCHES = """
void launch(const int* w, float* y, Shape s, cudaStream_t stream) {
    k<<<helper(s.blocks()), THREADS, 0, stream>>>(w, w, y);
    if (cudaGetLastError() != cudaSuccess) printf("%s", names[0]);
}
int main() { std::vector<float> v(10); launch(nullptr, v.data(), Shape(1), 0); }
"""


@pytest.mark.usefixtures("cuda")
def test_code_of_the_host_beside_a_kernel(tmp_path: Path) -> None:
    kernels = compiled(tmp_path, OF_BOTH + KERNEL.format(bounds="", body="y[0] = one(__half(1.0f));") + LAUNCHES)
    assert launched(kernels, 64) == 1
    assert re.fullmatch(r"also compiled by .+ for sm_90, and not run there", kernels.compilations["Q4_0"].accepted)


@pytest.mark.usefixtures("cuda")
def test_a_header_that_cudas_compiler_does_not_have(tmp_path: Path) -> None:
    """It is said, and is no fault of the kernel."""
    (tmp_path / "mine").mkdir()
    text = "#if defined(__CUDACC_RTC__) || !defined(GGUF_VERIFY_ON_CPU)\n#include <no/such.h>\n#endif\n"
    kernels = compiled(tmp_path, text + KERNEL.format(bounds="", body="y[0] = 1;"))
    assert kernels.compilations["Q4_0"].accepted.startswith("not compiled by ")
    assert launched(kernels, 64) == 1


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("undefined", ["", "__no_such_intrinsic(1.0f)"])
def test_a_marked_lambda_needs_nvccs_flag_which_nvrtc_lacks(tmp_path: Path, undefined: str) -> None:
    text = KERNEL.format(bounds="", body=f"auto one = [=] __device__ () {{ return 1.0f; }}; y[0] = one(); {undefined};")
    with pytest.raises(UsageError, match="could not compile" if undefined else "--extended-lambda"):
        compiled(tmp_path, text)
    if undefined:
        with pytest.raises(UsageError, match="could not compile"):
            compiled(tmp_path, text, more='flags = ["--extended-lambda"]\n')
    else:
        kernels = compiled(tmp_path, text, more='flags = ["--extended-lambda"]\n')
        assert launched(kernels, 64) == 1


@pytest.mark.usefixtures("cuda")
def test_more_registers_than_a_block_has(tmp_path: Path) -> None:
    many = "float a[100]; for (int i = 0; i < 100; ++i) a[i] = x[i] * w[i]; __syncthreads();\n" + "#pragma unroll\n"
    body = many + "for (int i = 0; i < 100; ++i) y[0] += a[i] * a[99 - i] + a[i * 7 % 100];"
    kernels = compiled(tmp_path, KERNEL.format(bounds="", body=body.replace("for", "\n#pragma unroll\nfor")))
    with pytest.raises(KernelFinding, match=r"its block of 1,024 threads needs [\d,]+ registers .*\(k.cu:2\)"):
        launched(kernels, 1024)


def test_the_report_says_that_it_is_switched_off(tmp_path: Path) -> None:
    kernels = compiled(tmp_path, KERNEL.format(bounds="", body="y[0] = 1;"))
    assert kernels.compilations["Q4_0"].accepted.startswith(f"not compiled by NVRTC ({SWITCH} is off)")


def test_a_kernel_does_not_see_the_emulators_files(tmp_path: Path) -> None:
    conditions = (
        '__has_include("emulator/foreign.hpp") || __has_include("foreign.hpp") || __has_include(<../foreign.hpp>)',
        "__has_include(<../cuda_on_cpu.hpp>) || __has_include(<../emulator/foreign.hpp>)",
        '__has_include("../../emulator/foreign.hpp") || __has_include("../../../emulator/foreign.hpp")',
        "defined(CUDA_ON_CPU_CHECKS) || defined(GGUF_VERIFY_FOREIGN)",
    )
    text = "".join(f"#if {c}\n#error seen\n#endif\n" for c in conditions) + "#include <cuda_fp16.h>\n"
    kernels = compiled(tmp_path, text + KERNEL.format(bounds="", body="y[0] = __half(1.0f);"))
    kernels.under("Q4_0", Schedule(checked=True))
    assert launched(kernels, 64) == 1


@pytest.mark.usefixtures("cuda")
def test_types_of_cudas_driver(tmp_path: Path) -> None:
    """NVRTC cannot compile the driver's own header, which is no fault of the source."""
    text = (
        "#include <cuda.h>\nstatic const char* said(CUresult e) { const char* s; cuGetErrorString(e, &s); return s; }\n"
    )
    text += "struct Host { CUdeviceptr at; CUstream stream; CUfunction function; CUtensorMap map; };\n"
    assert launched(compiled(tmp_path, text + KERNEL.format(bounds="", body="y[0] = sizeof(CUdeviceptr);")), 64) == 8


@pytest.mark.usefixtures("cuda")
def test_an_error_in_a_header_elsewhere_is_the_sources(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    header = tmp_path / "elsewhere" / "h.h"
    header.write_text('#ifdef __CUDACC_RTC__\nstatic_assert(sizeof(int) == 8, "wide");\n#endif\n')
    (tmp_path / "here").mkdir()
    text = f'#include "{header}"\n' + KERNEL.format(bounds="", body="y[0] = 1.0f;")
    with pytest.raises(UsageError, match="static assertion failed"):
        compiled(tmp_path / "here", text)


EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.usefixtures("cuda")
def test_the_examples_are_accepted() -> None:
    source = CudaSource(EXAMPLES / "cuda_q4_0.cu", "gemm")
    kernels = CudaKernels(source, CpuHost(1), 300.0)
    kernels.all()
    source.close()
    assert kernels.compilations["Q4_0"].accepted.startswith("also compiled by ")
