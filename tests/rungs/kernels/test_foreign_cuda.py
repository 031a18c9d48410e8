"""Kernels of other people in CUDA C++: the sidecar that declares them, and their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.author_cubin import OF_NVRTC
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign.cuda import CudaSource
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.kernels.foreign.expressions import Expression, names_of
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.support.errors import KernelFault, NotRun, NotTried, UsageError
from tests.support.foreign_runs import EXAMPLES, K, M, N, altered, multiplied, operands

DECLARED = """
formats = ["Q4_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
block = 128
grid = "ceil(M * N, 128)"
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        ("M * (N + 2) - K / 32", 5 * 9 - 3),
        ("ceil(M * N, 32)", 2),
        ("min(M, N) + max(N, 4) * 2", 19),
        ("K / 100", 0),
    ],
)
def test_expressions(expression: str | int, value: int) -> None:
    assert Expression(expression).value(names_of(FORMATS["Q4_0"], M, N, K)) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "M +",
        "__import__('os')",
        "M ** 9",
        "L",
        "M.real",
        "ceil(M)",
        "1.5",
        "True",
        True,
        1.5,
        "-M",
        "(" * 150,
        "1" * 201,
    ],
)
def test_what_is_no_expression(expression: object) -> None:
    with pytest.raises(UsageError, match="is not an expression of M, N and K"):
        Expression(expression)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("formats =", "formats", "is not valid TOML"),
        ("formats =", "format =", r"which is not a known key. did you mean 'formats'\?"),
        ("formats =", "# formats =", r'declares no formats: write, for example, formats = \["Q4_0"\]'),
        ('["Q4_0"]', '"Q4_0"', r'formats is not a list of strings: write formats = \["Q4_0"\]'),
        ('"Q4_0"', '"Q40"', "'Q40' is not one of .*; did you mean 'Q4_0'"),
        ("int64 M", "int46 M", "; did you mean 'int64 M'"),
        ("block = 128", "block =", "is not valid TOML: .*: 'block ='"),
        ("block = 128", "block = [1, 2, 3, 4]", "one to three dimensions"),
        ("block = 128", 'block = "M ** 2"', "is not an expression"),
        ("int64 M", "float M", "parameter 'float M' is not one of"),
        ('"weights", ', "", "parameters must name weights once"),
        ("block", 'macros = { "A B" = 1 }\nblock', "macro 'A B' is not a name"),
        ("block", 'macros = { A = "\\u0000" }\nblock', "macro 'A' is not a name with a string"),
        ("block", 'flags = ["a\\u0000"]\nblock', "flags holds a NUL character"),
        ("block", "macros = { Q5_0 = { A = 1 } }\nblock", "'Q5_0', which is not among its formats"),
        ("block", "blocks = 3\nblock", "declares 'blocks', which is not a known key"),
        ("q8_1", "q8_9", "semantics 'q8_9' is not one of"),
    ],
)
def test_wrong_cuda_declarations(old: str, new: str, said: str) -> None:
    assert old in DECLARED
    with pytest.raises(UsageError, match=said):
        parse(DECLARED.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("y[i] = acc;", "y[i + 1] = acc;", r"wrote outside its output: 0 bytes before, 4 after"),
        ("y[i] = acc;", "y[i] = acc; ((Q8_1*)x)[m].d ^= 1;", r"modified its activations: 5 bytes, the first at 0$"),
        ("y[i] = acc;", "y[i] = acc; *(float*)(long long)i = 1;", r"^the kernel accesses a null pointer"),
        ("y[i] = acc;", "abort(); y[i] = acc;", r"crashed: its process died of SIGABRT"),
        (
            "y[i] = acc;",
            "if (i & 1) __syncthreads(); else __syncwarp(); y[i] = acc;",
            "wait at a barrier that the others never reach",
        ),
        (
            "y[i] = acc;",
            "DYNAMIC_SHARED(room); room[threadIdx.x] = 1; y[i] = acc;",
            r"wrote outside its 0 bytes of dynamic shared memory$",
        ),
        ("block = 128", 'block = "M * 1000"', r"at M=5, N=7, K=96 its block is 5000 × 1 × 1, which CUDA does not"),
        (
            'grid = "ceil(M * N, 128)"',
            'grid = "M - 5"',
            r"at M=5, N=7, K=96 its grid is 0 × 1 × 1, which CUDA does not",
        ),
        ("block = 128", 'block = "1024 / (M - 5)"', r"divides by zero or overflows at M=5, N=7, K=96"),
    ],
)
def test_faults_of_cuda(tmp_path: Path, old: str, new: str, said: str) -> None:
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', old, new)}:gemm", CpuHost(1), 20.0)
    rows, x = operands()
    with pytest.raises(KernelFault, match=said):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    library = Path(kernel._source._asked["kernels"]["Q4_0/gemm"]["parts"]["code"])  # type: ignore[attr-defined]
    assert library.is_file()
    kernel.close()
    assert not library.parent.parent.exists()


def test_cuda_that_converts_otherwise_than_a_gpu(tmp_path: Path) -> None:
    """The kernel may be correct on a GPU: the product is not judged, in any order of threads."""
    new = "y[i] = acc + 0.0f * (float)(unsigned)(acc - 1e6f);"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', 'y[i] = acc;', new)}:gemm", CpuHost(1))
    rows, x = operands()
    said = r"cannot hold it, at cuda_q4_0\.cu:\d+: a GPU gives the nearest integer"
    with pytest.raises(NotRun, match=said):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    for schedule in (Schedule(checked=True), Schedule("descending")):
        other = kernel.under(schedule)
        if other is not None:
            with pytest.raises(NotTried, match=said):
                other.product(other.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_cuda_cannot_tell_the_flags_of_the_cpu_host(tmp_path: Path) -> None:
    """Which nvcc does not give its host compiler: the processor's instructions, optimization, instrumentation."""
    ours = ("__OPTIMIZE__", "__SANITIZE_THREAD__", "__AVX2__", "__FMA__", "__SSE4_1__", "_REENTRANT")
    seen = " || ".join(f"defined({name})" for name in ours)
    new = f"volatile int one = 1;\n#if {seen} || !defined(__CUDACC__)\n#error seen\n#endif\ny[i] = one * acc;"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', 'y[i] = acc;', new)}:gemm", CpuHost(1))
    assert multiplied(kernel)
    checked = kernel.under(Schedule(checked=True))
    assert checked is None or multiplied(checked)
    kernel.close()


def test_cuda_that_takes_shared_memory_for_zeros(tmp_path: Path) -> None:
    new = "__shared__ float sums[128]; float& acc = sums[threadIdx.x]; if (K == 32) acc = 0.0f;"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', 'float acc = 0.0f;', new)}:gemm", CpuHost(1))
    assert not multiplied(kernel)
    kernel.close()


def test_cuda_that_does_not_end(tmp_path: Path) -> None:
    path = altered(tmp_path, "cuda_q4_0.cu", "y[i] = acc;", "while (*(volatile float*)y != 1.0f); y[i] = acc;")
    kernel = open_foreign(f"{path}:gemm", CpuHost(1), 1.0)
    rows, x = operands()
    with pytest.raises(KernelFault, match="did not return within 1 s"):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_cuda_that_does_not_end_in_another_order(tmp_path: Path) -> None:
    """Nothing is known of it, and the kernel is still called in the usual order."""
    # what a block finds there depends on the order
    new = "__shared__ int turn; volatile int one = 1; if (K == 1) turn = 1; while (!turn && one) {} y[i] = acc;"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', 'y[i] = acc;', new)}:gemm", CpuHost(1), 1.0)
    rows, x = operands()
    other = kernel.under(Schedule("descending"))
    assert other is not None
    with pytest.raises(NotTried, match="the kernel did not return within 1 s"):
        other.product(other.upload(FORMATS["Q4_0"], rows), x)
    assert not kernel._conversation.hangs
    kernel.close()


@pytest.mark.parametrize(
    ("old", "new", "name", "said"),
    [
        (
            "float acc = 0.0f;",
            "float acc = zero;",
            "gemm",
            r"compile .*: cuda_q4_0\.cu:\d+:\d+: error: .*zero",
        ),
        (
            "long long M, long",
            "int M, long",
            "gemm",
            'gemm has the parameter int M, but "int64 M" is declared; write parameters = .*"int32 M"',
        ),
        ("[gguf-verify]", "[gguf]", "gemm", r"no // \[gguf-verify\] block, and there is no cuda_q4_0\.toml"),
        ("q8_1", "q8_1", "gemv", "it has no function gemv; it has gemm"),
        ("q8_1", "q8_1", "a-b", "'a-b' is not the name of a function"),
    ],
)
def test_what_is_no_cuda_kernel(tmp_path: Path, old: str, new: str, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', old, new)}:{name}", CpuHost(1))
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path) not in str(caught.value) or "block" in said


def test_sidecar_headers_macros_and_shared_memory(tmp_path: Path) -> None:
    """The declaration in FILE.toml, the formats' structs in a header; a header that changes is compiled anew."""
    text = altered(tmp_path, "cuda_q4_0.cu", "[gguf-verify]", "[gguf]").read_text()
    at = text.index("extern")
    (tmp_path / "lib").mkdir()
    header = tmp_path / "lib" / "blocks.h"
    body = text[at:].replace(
        "float acc = 0.0f;", "DYNAMIC_SHARED(room); float& acc = ((float*)room)[threadIdx.x]; acc = 0;"
    )
    body = body.replace("sum += (wb", "sum += STEP * (wb")
    (tmp_path / "cuda_q4_0.cu").write_text('#include "lib/blocks.h"\n' + body)
    declared = DECLARED + 'shared = "4 * 128"\nmacros.Q4_0 = { STEP = 1 }\n'
    (tmp_path / "cuda_q4_0.toml").write_text(declared)
    for alteration, right in (("", True), ("* 2", False)):
        header.write_text(text[:at].replace("496329220096.0f;", f"496329220096.0f {alteration};"))
        kernel = open_foreign(f"{tmp_path / 'cuda_q4_0.cu'}:gemm", CpuHost(1))
        assert multiplied(kernel) == right
        kernel.close()


@pytest.mark.parametrize("how", ["../shared/step.h", "{folder}/shared/step.h"], ids=["relative", "absolute"])
def test_an_edited_header_outside_of_the_kernels_folder_is_seen(how: str, tmp_path: Path) -> None:
    """On the CPU and, as far as NVRTC goes, on a GPU; undone, the kernel is right again."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "shared").mkdir()
    header = tmp_path / "shared" / "step.h"
    path = altered(tmp_path / "mine", "cuda_q4_0.cu", "sum += (wb", "sum += STEP * (wb")
    path.write_text(f'#include "{how.format(folder=tmp_path)}"\n{path.read_text()}')
    keys = []
    for step in (1, 2, 1):
        header.write_text(f"#define STEP {step}\n")
        kernel = open_foreign(f"{path}:gemm", CpuHost(1))
        assert multiplied(kernel) == (step == 1)
        kernel.close()
        source = CudaSource(path, "gemm")
        keys.append(nvrtc.cubin_key(source.root, OF_NVRTC, "90", {}))
        source.close()
    assert None not in keys
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("line", ["#define OTHER HEADER\n#include OTHER", "#/* */include HEADER", "%: include HEADER"])
def test_what_nvrtc_reads_must_be_known(line: str, tmp_path: Path) -> None:
    """A cubin whose sources are not all known is not found again."""
    (tmp_path / "k.cu").write_text(f'#define HEADER "{tmp_path}/h.h"\n{line}\n')
    (tmp_path / "h.h").write_text('extern "C" __global__ void k() {}\n')
    assert nvrtc.compile_cubin(tmp_path, "k.cu", "90", {})
    assert nvrtc.cubin_key(tmp_path, "k.cu", "90", {}) is None
    (tmp_path / "k.cu").write_text("#include HEADER  // the macro that the compiler is given\n")
    first = nvrtc.cubin_key(tmp_path, "k.cu", "90", {"HEADER": '"h.h"'})
    (tmp_path / "h.h").write_text("")
    assert first is not None
    assert nvrtc.cubin_key(tmp_path, "k.cu", "90", {"HEADER": '"h.h"'}) not in (first, None)


def test_nvrtc_does_not_look_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("root", 'extern "C" __global__ void k() {}'), ("here", "#error of another folder")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.cu").write_text(text + "\n")
    monkeypatch.chdir(tmp_path / "here")
    assert nvrtc.compile_cubin(tmp_path / "root", "k.cu", "90", {})


def test_the_cuda_example_compiles_for_gpus() -> None:
    """By NVRTC, which needs no GPU; it has not run on one here."""
    source = CudaSource(EXAMPLES / "cuda_q4_0.cu", "gemm")
    for sm in ("75", "90"):
        assert nvrtc.compile_cubin(source.root, OF_NVRTC, sm, {})[:4] == b"\x7fELF"
    source.close()
