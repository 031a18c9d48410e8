"""CUDA C++ as engines use it: on the CPU, through the GPU's compilers, and what is said of the code that was run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.hosts import nvcc
from gguf_verify.hosts.author_cubin import OF_NVCC, OF_NVRTC, author_cubin
from gguf_verify.hosts.base import Artefact
from gguf_verify.hosts.compilation import Author, ForeignUnit, split_flags
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.cubin import functions
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign.cuda import CudaKernels, CudaSource
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.support.errors import KernelFault, KernelFinding, UsageError, say
from tests.support import cuda_features as probe

DECLARED = """
formats = ["Q4_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "output"]
block = 64
grid = 1
"""
KERNEL = 'extern "C" __global__ void k(const int* w, const int* x, float* y) {{\n{body}\n}}\n'


def opened(tmp_path: Path, text: str, symbol: str = "k", more: str = "") -> CudaSource:
    (tmp_path / "k.cu").write_text(text)
    return CudaSource(tmp_path / "k.cu", symbol, parse(DECLARED + more))


def compiled(tmp_path: Path, text: str, symbol: str = "k", more: str = "") -> CudaKernels:
    kernels = CudaKernels(opened(tmp_path, text, symbol, more), CpuHost(1), 300.0)
    kernels.all()
    return kernels


def refused(tmp_path: Path, text: str, more: str = "") -> UsageError:
    with pytest.raises(UsageError) as caught:
        compiled(tmp_path, text, more=more)
    return caught.value


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artefact]:
    """All features in one file, compiled once."""
    folder = tmp_path_factory.mktemp("features")
    (folder / "probe.cu").write_text(probe.source(list(probe.FEATURES)))
    source = CudaSource(folder / "probe.cu", "deep::inside::scaled<4, unsigned>", parse(DECLARED))
    file, author = source.compiled_by(CpuHost(1))
    entries = tuple(probe.entry(name) for name in probe.FEATURES)
    made, _ = CpuHost(1).build_all(ForeignUnit(source.root, file, entries, author=author))
    source.close()
    return made


def run(artefact: Artefact, folder: Path, shared: int) -> probe.Words:
    host = CpuHost(1)
    kernel = host.load_placed(artefact.placed(folder, "k"))
    y = host.output(4 * probe.THREADS)
    host.launch(kernel, (1, 1, 1), (probe.THREADS, 1, 1), [host.upload(probe.inputs()), y], shared)
    return host.download(y).view(np.uint32)


@pytest.mark.parametrize("name", probe.FEATURES)
def test_a_feature_on_the_cpu(name: str, features: dict[str, Artefact], tmp_path: Path) -> None:
    feature = probe.FEATURES[name]
    got = run(features[probe.entry(name)], tmp_path, feature.shared)
    np.testing.assert_array_equal(got, probe.expected(name, probe.inputs()))


@pytest.mark.parametrize("by", ["NVRTC", "nvcc"])
def test_all_features_compile_for_a_gpu(by: str, tmp_path: Path) -> None:
    if nvcc.include_folder() is None or (by == "nvcc" and nvcc.version() is None):
        pytest.skip(f"{by} or CUDA's headers are not here")
    (tmp_path / "probe.cu").write_text(probe.source(list(probe.FEATURES)))
    source = CudaSource(tmp_path / "probe.cu", "deep::inside::scaled<4, unsigned>", parse(DECLARED))
    entries = tuple(probe.entry(name) for name in probe.FEATURES)
    made = author_cubin(ForeignUnit(source.root, OF_NVCC, entries), "90", by=by)
    source.close()
    assert len(entries) >= 50
    assert set(made.names.values()) <= set(functions(made.cubin))
    assert made.names["deep::inside::scaled<4, unsigned>"].startswith("_ZN4deep6inside6scaledILi4Ej")
    assert made.compilation.by.startswith(by)
    assert not any("fmad" in flag or "prec-div" in flag for flag in made.compilation.flags)


def test_what_was_compiled_is_said(tmp_path: Path) -> None:
    """The branches that were left out, by their own file and line; those of other conditions are not of interest."""
    (tmp_path / "arch.h").write_text(
        "#pragma once\n#define MIN_DP4A 610\n#if MIN_DP4A > 1 && __CUDA_ARCH__ < 700\nint old;\n#endif\n"
    )
    text = (
        '#include "arch.h"\n#if defined(SOMETHING)\nint nothing;\n#endif\n'
        "#if __CUDA_ARCH__ >= MIN_DP4A\n#define HAS 1\n#else\nint without;\n#endif\n"
        "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000\nint blackwell;\n#elif !HAS\nint never;\n#endif\n"
        "#ifndef __CUDACC__\n// a comment is no code\n#endif\n" + KERNEL.format(body="y[0] = HAS;")
    )
    kernels = compiled(tmp_path, text, more='flags = ["-O3", "-DMINE=1", "-use_fast_math"]\n')
    said = kernels.compilations["Q4_0"]
    assert said.not_run == (
        "#if MIN_DP4A > 1 && __CUDA_ARCH__ < 700 at arch.h:3",
        "#else of #if __CUDA_ARCH__ >= MIN_DP4A at k.cu:7",
        "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 at k.cu:10",
        "#elif !HAS at k.cu:12",
    )
    assert said.left_out == ("-O3", "-use_fast_math")
    assert "-DMINE=1" in said.flags
    assert re.match(
        r"k\.cu by .+ for the CPU, __CUDA_ARCH__ 900; flags .*; not used: -O3 .*; not run: 4 branches", said.words
    )


def test_branches_that_only_the_cpu_host_takes_are_reported(tmp_path: Path) -> None:
    body = "y[0] = 1;\n#if __INCLUDE_LEVEL__ > 0\n++y[0];\n#endif\n#ifdef CUDA_ON_CPU_CHECKS\n++y[0];\n#endif\n"
    not_run = compiled(tmp_path, KERNEL.format(body=body)).compilations["Q4_0"].not_run
    assert [words.split(" at ")[0] for words in not_run] == ["#if __INCLUDE_LEVEL__ > 0", "#ifdef CUDA_ON_CPU_CHECKS"]


def test_each_type_is_compiled_when_it_is_needed(tmp_path: Path) -> None:
    text = KERNEL.format(body="y[0] = VALUE;")
    declared = DECLARED.replace('["Q4_0"]', '["Q4_0", "Q8_0"]') + "macros.Q4_0 = { VALUE = 1 }\n"
    (tmp_path / "k.cu").write_text(text)
    kernels = CudaKernels(CudaSource(tmp_path / "k.cu", "k", parse(declared)), CpuHost(1), 300.0)
    told: list[str] = []
    assert set(kernels.all(["Q4_0"], told.append)) == {"Q4_0/k"}
    assert told == ["compiling Q4_0 for the CPU (1 of 1)"]
    with pytest.raises(UsageError, match="VALUE"):
        kernels.of("Q8_0")


def test_all_errors_are_shown_with_the_authors_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "inner.h").write_text("\n__device__ int f() { return first; }\n")
    body = "\n".join(["y[0] = second;", "y[1] = third;", *(f"y[0] = e{i};" for i in range(30))])
    error = refused(tmp_path, '#include "inner.h"\n' + KERNEL.format(body=body))
    assert re.search(r": inner\.h:2:\d+: error: .*first", str(error))
    assert len(str(error).splitlines()) == 1
    assert re.match(r"k\.cu:3:\d+: error: .*second", error.details[1])
    assert len(error.details) == 21
    assert error.details[-1] == "… and 13 more"
    assert str(tmp_path) not in "".join([str(error), *error.details])
    assert "source/" not in "".join([str(error), *error.details])
    say(str(error), error.details)
    assert capsys.readouterr().err.count("\n    ") == 21


@pytest.mark.parametrize("by", ["NVRTC", "nvcc"])
def test_errors_of_the_gpus_compilers(by: str, tmp_path: Path) -> None:
    if by == "nvcc" and nvcc.version() is None:
        pytest.skip("nvcc is not here")
    source = opened(tmp_path, KERNEL.format(body="y[0] = first;\ny[1] = second;"))
    with pytest.raises(Exception, match="could not compile") as caught:
        author_cubin(ForeignUnit(source.root, OF_NVRTC, ("k",)), "90", by=by)
    error = source.plain(caught.value)  # type: ignore[arg-type]
    source.close()
    assert [re.sub(r":? error:.*", "", line) for line in error.details] == ["k.cu(2)", "k.cu(3)"]


def test_a_header_that_is_not_here(tmp_path: Path) -> None:
    error = refused(tmp_path, "\n#include <torch/extension.h>\n" + KERNEL.format(body=""))
    assert "k.cu:2:" in str(error)
    assert "<torch/extension.h> was not found; name its folder by include" in str(error)


PTX = 'asm volatile("wgmma.fence.sync.aligned;\\n" ::: "memory");'


def test_inline_ptx_that_the_cpu_does_not_have(tmp_path: Path) -> None:
    """It is refused where the kernel may come to it, and nowhere else."""
    elsewhere = f"__device__ void unused() {{\n    {PTX}\n}}\ntemplate <int N> __device__ void other() {{ {PTX} }}\n"
    compiled(tmp_path, elsewhere + KERNEL.format(body="y[0] = 1;"))
    error = refused(tmp_path, elsewhere + KERNEL.format(body=f"y[0] = 1;\n{PTX}"))
    assert (
        str(error) == "inline PTX `wgmma.fence.sync.aligned` is not available on a CPU: k.cu:7; verify with --host gpu"
    )


def test_folders_of_headers_flags_and_a_template(tmp_path: Path) -> None:
    (tmp_path / "common" / "sub").mkdir(parents=True)
    (tmp_path / "common" / "sub" / "scale.cuh").write_text("#pragma once\n#define SCALE (WIDTH * 2)\n")
    text = (
        "#include <sub/scale.cuh>\nnamespace of {\n"
        "template <int N> __global__ void f(const int*, const int*, float* y) { y[0] = N * SCALE; }\n}\n"
    )
    kernels = compiled(tmp_path, text, "of::f<3>", f'flags = ["-DWIDTH=4"]\ninclude = ["{tmp_path}/common"]\n')
    host = CpuHost(1)
    y = host.output(4)
    x = host.upload(np.zeros(1, np.int32))
    host.launch(host.load_placed(kernels.of("Q4_0")["Q4_0/of::f<3>"]), (1, 1, 1), (1, 1, 1), [x, x, y])
    assert host.download(y).view(np.float32)[0] == 24


@pytest.mark.parametrize(
    ("body", "said"),
    [("__trap();", r"the kernel calls __trap\(\)"), ('asm volatile("trap;");', r"the kernel calls __trap\(\)")],
)
def test_a_kernel_that_traps(body: str, said: str, tmp_path: Path) -> None:
    kernels = compiled(tmp_path, KERNEL.format(body=f"if (threadIdx.x == 3) {{ {body} }}"))
    host = CpuHost(1)
    x, y = host.upload(np.zeros(1, np.int32)), host.output(4)
    with pytest.raises(KernelFault, match=said):
        host.launch(host.load_placed(kernels.of("Q4_0")["Q4_0/k"]), (1, 1, 1), (32, 1, 1), [x, x, y])


#: Instructions whose address is no multiple of what they access; {at} is what makes it wrong.
MISALIGNED = {
    "a load of four words": (
        'int a, b, c, d; asm volatile("ld.global.v4.u32 {{%0, %1, %2, %3}}, [%4];" : "=r"(a), "=r"(b), "=r"(c), '
        '"=r"(d) : "l"(w + {at})); y[t] = (float)(a + b + c + d);', "an access to 16 bytes",
    ),
    "a store of two words": (
        'if (t == 0) asm volatile("st.global.v2.u32 [%0], {{%1, %2}};" :: "l"(y + {at}), "r"(t), "r"(t));',
        "an access to 8 bytes",
    ),
    "a matrix": (
        'for (int i = 0; i < 8; ++i) s[8 * t + i] = w[t % 8]; __syncwarp(); unsigned m; '
        'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%0}}, [%1];" : "=r"(m) : '
        '"r"((unsigned)__cvta_generic_to_shared(s + 8 * (t % 8) + {at}))); y[t] = (float)m;', "an access to 16 bytes",
    ),
    "an asynchronous copy": (
        'if (t == 0) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: '
        '"r"((unsigned)__cvta_generic_to_shared(s)), "l"(w + {at})); asm volatile("cp.async.wait_all;");',
        "an asynchronous copy of 16 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISALIGNED)
def test_a_checked_build_names_misaligned_instructions(name: str, tmp_path: Path) -> None:
    body, said = MISALIGNED[name]
    body = f"const int t = threadIdx.x; __shared__ __align__(16) int s[512];\n{body}"
    checked = Schedule(checked=True)
    host = CpuHost(1).under(checked)
    assert isinstance(host, CpuHost)
    x, y = host.upload(np.arange(64, dtype=np.int32), "weights"), host.output(256)
    for at in (8, 1):
        kernels = CudaKernels(opened(tmp_path, KERNEL.format(body=body.format(at=at))), CpuHost(1), 300.0)
        kernel = host.load_placed(kernels.under("Q4_0", checked)["Q4_0/k"])
        with pytest.raises(KernelFinding, match=f"misaligned access at k.cu:3: {said}") if at == 1 else nullcontext():
            host.launch(kernel, (1, 1, 1), (32, 1, 1), [x, x, y])


@pytest.mark.parametrize(("cache", "bytes_", "right"), [("cg", 16, True), ("cg", 8, False), ("ca", 8, True)])
def test_asynchronous_copies_past_the_first_cache_are_of_16_bytes(
    cache: str, bytes_: int, right: bool, tmp_path: Path
) -> None:
    checked = Schedule(checked=True)
    host = CpuHost(1).under(checked)
    assert isinstance(host, CpuHost)
    x, y = host.upload(np.arange(64, dtype=np.int32), "weights"), host.output(256)
    body = (
        "__shared__ __align__(16) int s[4]; if (threadIdx.x) return;\n"
        f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {bytes_};" :: '
        '"r"((unsigned)__cvta_generic_to_shared(s)), "l"(w)); asm volatile("cp.async.wait_all;"); y[0] = (float)s[0];'
    )
    kernels = CudaKernels(opened(tmp_path, KERNEL.format(body=body)), CpuHost(1), 300.0)
    kernel = host.load_placed(kernels.under("Q4_0", checked)["Q4_0/k"])
    with nullcontext() if right else pytest.raises(KernelFinding, match=r"copies 8 bytes, and cp\.async\.cg copies 16"):
        host.launch(kernel, (1, 1, 1), (32, 1, 1), [x, x, y])


def test_a_checked_build_names_loads_of_constants_that_are_none(tmp_path: Path) -> None:
    checked = Schedule(checked=True)
    host = CpuHost(1).under(checked)
    assert isinstance(host, CpuHost)
    x, y = host.upload(np.arange(64, dtype=np.int32), "weights"), host.output(256)
    body = (
        'float v; y[threadIdx.x] = 1;\nasm volatile("ld.global{kind}.f32 %0, [%1];" : "=f"(v) : "l"(y + threadIdx.x));'
    )
    for kind, expected in (
        (".cg", nullcontext()),
        (".nc", pytest.raises(KernelFinding, match=r"race: .* at k\.cu:3, but")),
    ):
        text = KERNEL.format(body=body.format(kind=kind) + " y[threadIdx.x] = v;")
        kernels = CudaKernels(opened(tmp_path, text), CpuHost(1), 300.0)
        kernel = host.load_placed(kernels.under("Q4_0", checked)["Q4_0/k"])
        with expected:
            host.launch(kernel, (1, 1, 1), (32, 1, 1), [x, x, y])


_OF_GLOBAL = "needs an address in global memory (.global), and gets one in {} memory"
_OF_BOTH = "needs an address in global or shared memory, and gets one in local memory"
_UNCONVERTED = "needs an address in shared memory (.shared) as cvta.to.shared gives it, not a generic one"
#: A statement with an address {at}; an address in the space that its instruction names, one in another space, and the
#: finding of the latter.
SPACES = {
    "ld.global": ('asm("ld.global.s32 %0, [%1];" : "=r"(v) : "l"({at}));', "w + t", "s + t", _OF_GLOBAL),
    "ld.global.v4": (
        'int a, b, c; asm("ld.global.v4.s32 {{%0, %1, %2, %3}}, [%4];" : "=r"(v), "=r"(a), "=r"(b), "=r"(c) : '
        '"l"({at}));',
        "w + 4 * (t % 2)", "s + 4 * (t % 2)", _OF_GLOBAL,
    ),
    "st.global": ('asm("st.global.s32 [%0], %1;" :: "l"({at}), "r"(v));', "(int*)y + t", "s + t", _OF_GLOBAL),
    "st.global of a local": ('asm("st.global.s32 [%0], %1;" :: "l"({at}), "r"(v));', "(int*)y + t", "own", _OF_GLOBAL),
    "atom.global": (
        'asm("atom.global.add.s32 %0, [%1], 1;" : "=r"(v) : "l"({at}));', "(int*)y + t", "s + t", _OF_GLOBAL,
    ),
    "__ldg": ("v = __ldg({at});", "w + t", "s + t", _OF_GLOBAL),
    "__ldcg": ("v = __ldcg({at});", "w + t", "s + t", _OF_GLOBAL),
    "__ldcv": ("v = __ldcv({at});", "w + t", "(const int*)own", _OF_GLOBAL),
    "__stcs": ("__stcs({at}, v);", "(int*)y + t", "s + t", _OF_GLOBAL),
    "ld.shared": ('asm("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"({at}));', "at", "RAW(s + t)", _UNCONVERTED),
    "ld.shared and an offset": (
        'asm("ld.shared.s32 %0, [%1 + 4];" : "=r"(v) : "r"({at}));', "at", "RAW(s + t)", _UNCONVERTED,
    ),
    "ld.shared of dynamic memory": (
        'asm("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"({at}));',
        "(unsigned)__cvta_generic_to_shared(rest + t)", "RAW(rest + t)", _UNCONVERTED,
    ),
    "ld.shared of 64 bits": (
        'asm("ld.shared.s32 %0, [%1];" : "=r"(v) : "l"({at}));',
        "__cvta_generic_to_shared(s + t)", "s + t", _UNCONVERTED,
    ),
    "ld.shared::cluster": (
        'asm("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"({at}));', "at", "RAW(s + t)", _UNCONVERTED,
    ),
    "cvta.to.shared": (
        'asm("{{ .reg .u64 a; {at}.u64 a, %1; ld.shared.s32 %0, [a]; }}" : "=r"(v) : "l"(s + t));',
        "cvta.to.shared", "mov", _UNCONVERTED,
    ),
    "red.shared": ('asm("red.shared.add.s32 [%0], 1;" :: "r"({at}));', "at", "RAW(s + t)", _UNCONVERTED),
    "ldmatrix.shared": (
        'asm("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%0}}, [%1];" : "=r"(v) : "r"({at}));',
        "at - 4 * t + 16 * (t % 8)", "t < 8 ? RAW(s + 4 * t) : 0", _UNCONVERTED,
    ),
    "ldmatrix of a generic address": (
        'asm("ldmatrix.sync.aligned.m8n8.x1.b16 {{%0}}, [%1];" : "=r"(v) : "l"({at}));',
        "(const int*)s + 4 * (t % 8)", "w",
        "needs an address in shared memory (.shared), and gets one in global memory",
    ),
    "cp.async to": (
        'asm("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;" :: "r"({at}), "l"(w + t));',
        "at", "RAW(s + t)", _UNCONVERTED,
    ),
    "cp.async from": (
        'asm("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;" :: "r"(at), "l"({at}));',
        "w + t", "(const int*)rest + t", _OF_GLOBAL,
    ),
    "a pipeline's copy": (
        "__pipeline_memcpy_async({at}, w + t, 4), __pipeline_commit(), __pipeline_wait_prior(0);",
        "s + t", "own", "needs an address in shared memory (.shared), and gets one in local memory",
    ),
    "ld.local": (
        'asm("ld.local.s32 %0, [%1];" : "=r"(v) : "l"({at}));', "own", "s + t",
        "needs an address in local memory (.local, .param), and gets one in shared memory",
    ),
    "ld.const": (
        'asm("ld.const.s32 %0, [%1];" : "=r"(v) : "l"({at}));', "table + t % 4", "w + t",
        "needs an address in constant memory (.const), and gets one in global memory",
    ),
    "atom of any space": ('asm("atom.add.s32 %0, [%1], 1;" : "=r"(v) : "l"({at}));', "s + t", "own", _OF_BOTH),
    "atomicAdd": ("atomicAdd({at}, 1);", "s + t", "own", _OF_BOTH),
    "atomicAdd of a float": ("atomicAdd({at}, 1.0f);", "y + t", "(float*)own", _OF_BOTH),
    "atomicCAS": ("v = atomicCAS({at}, 1, 2);", "(int*)y + t", "own", _OF_BOTH),
}  # fmt: skip
_WITH_SPACES = """#include <cuda_pipeline.h>
#define RAW(p) (unsigned)(unsigned long long)(p)
__constant__ int table[4] = {{1, 2, 3, 4}};
extern "C" __global__ void k(const int* w, const int* x, float* y) {{
    extern __shared__ int rest[]; __shared__ __align__(16) int s[64]; int own[2] = {{x[1], x[2]}}, v = 0;
    const unsigned t = threadIdx.x, at = (unsigned)__cvta_generic_to_shared(s + t);
    s[t] = s[t + 32] = rest[t] = w[t]; __syncthreads();
    switch (x[0]) {{
{cases}
    }}
    y[t] += v + own[t % 2] + s[t];
}}
"""


@pytest.fixture(scope="module")
def with_spaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CpuHost, Any]]:
    cases = [
        f"    case {2 * i + wrong}: {{ {statement.format(at=addresses[wrong])} break; }}"
        for i, (statement, *addresses, _) in enumerate(SPACES.values())
        for wrong in (0, 1)
    ]
    checked = Schedule(checked=True)
    source = opened(tmp_path_factory.mktemp("spaces"), _WITH_SPACES.format(cases="\n".join(cases)))
    host = CpuHost(1).under(checked)
    assert isinstance(host, CpuHost)
    kernels = CudaKernels(source, CpuHost(1), 300.0)  # whose library names the lines
    yield host, host.load_placed(kernels.under("Q4_0", checked)["Q4_0/k"])
    del kernels


@pytest.mark.parametrize("name", SPACES)
def test_an_instruction_takes_addresses_of_its_space_alone(name: str, with_spaces: tuple[CpuHost, Any]) -> None:
    host, kernel = with_spaces
    which, (_, _, wrong, said) = list(SPACES).index(name), SPACES[name]
    w = host.upload(np.arange(64, dtype=np.int32), "weights")

    def launch(case: int) -> None:
        x = host.upload(np.array([case, 1, 2], np.int32), "activations")
        host.launch(kernel, (1, 1, 1), (32, 1, 1), [w, x, host.output(256)], shared=256)

    launch(2 * which)
    words = said.format("local" if "own" in wrong else "shared")
    with pytest.raises(KernelFinding, match=re.escape(f"the instruction at k.cu:{10 + 2 * which} {words}")) as found:
        launch(2 * which + 1)
    assert found.value.kind == "operand"


def test_flags_are_taken_apart() -> None:
    used, left = split_flags(["-D", "A=1", "-O3", "-gencode", "arch=compute_80,code=sm_80", "-DB"], ["-D"])
    assert (used, left) == (["-DA=1", "-DB"], ["-O3", "-gencode=arch=compute_80,code=sm_80"])
    assert nvcc.used_flags(Author(("-arch", "sm_80", "-lineinfo", "-o", "x"), ordered=True)) == (
        ["-lineinfo", "-fmad=false", "-prec-div=true", "-ftz=false"], ["-arch=sm_80", "-o=x"],
    )  # fmt: skip
