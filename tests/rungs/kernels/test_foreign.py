"""Kernels of others: taken as they are declared, and not trusted."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats import FORMATS
from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.hosts import CpuHost, nvrtc
from gguf_verify.identification import identify_model
from gguf_verify.kernels.foreign import ForeignKernel, Oracle, open_foreign, sources
from gguf_verify.kernels.foreign.cuda import CudaSource, Expression, parse
from gguf_verify.llama import Gemm
from gguf_verify.report import identify_report, json_report, text
from gguf_verify.results import Options
from gguf_verify.rungs.layers import explain
from gguf_verify.rungs.layers.activations import llama_activations
from gguf_verify.semantics import SEMANTICS, exact_result, judge, product, quantized_inside
from gguf_verify.semantics.activations import encode_q8_0_cpu, encode_q8_1, encode_q8_1_cpu
from gguf_verify.support.errors import KernelFault, UsageError
from gguf_verify.verification import Report, verify
from tests.support import foreign_kernels
from tests.support.needs import need
from tests.support.tools import FIXTURES, ROOT, assert_one_line, cli

KERNELS = ROOT / "tests" / "support" / "foreign_kernels.py"
EXAMPLES = ROOT / "examples"
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
M, N, K = 5, 7, 96


def opened(name: str, time_limit: float = 20.0) -> ForeignKernel:
    return open_foreign(f"{KERNELS}:{name}", CpuHost(1), time_limit)


def operands() -> tuple[np.ndarray, np.ndarray]:
    """uint8[N, row bytes] of Q4_0, float32[M, K]."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 256, (N, K // 32 * 18), np.uint8)
    rows.reshape(N, -1, 18)[..., 1] = 0x2C  # d about 0.06
    return rows, rng.standard_normal((M, K), np.float32)


def multiplied(kernel: ForeignKernel) -> bool:
    """Whether a product is right."""
    rows, x = operands()
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    semantics = SEMANTICS[kernel.semantics]
    return judge(y, product(semantics, FORMATS["Q4_0"], rows, semantics.bytes_of(x))).passed


def verified(kernel: Any, *rungs: str, tensor: str = "blk.0.attn_q", **options: Any) -> Report:
    chosen = Options(prompt="The", n_predict=1, tensor=tensor, progress=False, **options)
    return verify(Q4_0, kernel, CpuHost(1), rungs or ("blocks", "layers"), chosen)


@pytest.mark.parametrize("name", ["right", "plain", "dlpack", "into_out", "prints", "float_activations", "on_device"])
def test_right(name: str) -> None:
    kernel = opened(name)
    assert multiplied(kernel)
    assert multiplied(kernel)
    kernel.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", r"^the kernel raised ValueError: first line$"),
        ("leaves", r"^the kernel raised SystemExit: goodbye$"),
        ("transposed", r"returned float32\[7, 5\], expected float32\[5, 7\]"),
        ("doubles", r"returned float64\[5, 7\], expected float32\[5, 7\]"),
        ("nothing", r"returned NoneType, not an array"),
        ("writes_weights", r"modified its weights: 1 bytes, the first at 3$"),
        ("writes_activations", r"modified its activations: 1 bytes, the first at 539$"),
        ("writes_outside", r"wrote outside its output: 0 bytes before, 8 after"),
        ("random", r"not deterministic: .* changed 1 of 35 outputs, the first row 0 token 0"),
        ("keeps", r"leaves outputs as they were: .*row 0 token 0 was never written"),
        ("keeps_on_device", r"leaves outputs as they were: .*row 0 token 0 was never written"),
        ("crashes", r"crashed: its process died of SIGSEGV"),
        ("exits", r"crashed: its process ended with exit code 7; it said: last words"),
    ],
)
def test_faults(name: str, said: str) -> None:
    """Each is told in one line, and the next call finds a fresh process."""
    kernel = opened(name)
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    for _ in range(2):
        with pytest.raises(KernelFault, match=said) as caught:
            kernel.product(weights, x)
        assert len(str(caught.value).splitlines()) == 1
    kernel.close()


def test_an_endless_loop() -> None:
    """Ends at the time limit of a call, which is not that of starting; after three the kernel is not run again."""
    kernel = opened("hangs", 1.0)
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    with pytest.raises(KernelFault, match="did not return within 1 s"):
        kernel.product(weights, x)
    kernel._talk.hangs = 3
    with pytest.raises(KernelFault, match="was not run: it ran into the time limit 3 times"):
        kernel.product(weights, x)
    kernel.close()


def test_what_the_process_says_is_not_trusted(tmp_path: Path) -> None:
    """A kernel that writes to the socket itself."""
    (tmp_path / "k.py").write_text(
        "import os, sys\nfrom gguf_verify.kernels.foreign import kernel\n@kernel(['Q4_0'], 'q8_1')\n"
        "def k(w, x, shape):\n    os.write(int(sys.argv[1]), b'\\x7f\\xff\\xff\\xff' * 4)\n"
    )
    kernel = open_foreign(f"{tmp_path / 'k.py'}:k", CpuHost(1), 20.0)
    rows, x = operands()
    with pytest.raises(KernelFault, match=r"stopped answering$"):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_a_crash_does_not_end_the_run() -> None:
    """attn_k has 128 rows, attn_q 256: one fails and is named, the other is verified."""
    report = verified(f"{KERNELS}:crashes_for_128_rows", "layers", "tokens", tensor=r"blk\.0\.attn_[qk]\.")
    layers, tokens = report.rungs
    assert report.exit_code == 1
    assert [f.what for f in layers.failures] == ["blk.0.attn_k.weight: the kernel crashed: its process died of SIGSEGV"]
    assert [d.tensor for d in layers.details] == ["blk.0.attn_q.weight"]
    assert [f.what for f in tokens.failures] == [f.what for f in layers.failures]
    assert tokens.checked["GEMMs grafted"] == 1


@pytest.mark.parametrize(
    ("name", "said"), [("nan", "the output is NaN"), ("partial", "row 255 .*the output was never written")]
)
def test_wrong_outputs(name: str, said: str) -> None:
    report = verified(f"{KERNELS}:{name}", "layers")
    assert report.exit_code == 1
    of_kernel = [f.what for f in report.rungs[0].failures if f.what.startswith("kernel")]
    assert of_kernel
    assert all(re.search(said, what) for what in of_kernel)


def test_a_function_of_this_process() -> None:
    """The Python API, all rungs; what the kernel does, it does in a copy of this process."""
    seen = []

    def counting(*arguments: Any) -> Any:
        seen.append(os.getpid())
        return foreign_kernels.right(*arguments)

    counting.formats, counting.semantics = ["Q4_0"], "q8_1"  # type: ignore[attr-defined]
    report = verified(counting, "blocks", "layers", "tokens")
    assert report.exit_code == 0, report
    assert report.environment.kernel.name == "counting"
    assert seen == []


@pytest.mark.parametrize(("name", "code"), [("as_mmq", 0), ("as_q8_1", 1)])
def test_the_declared_semantics_is_the_one_that_judges(name: str, code: int) -> None:
    """MMQ's arithmetic is right under its own name, and wrong under another."""
    assert verified(f"{KERNELS}:{name}").exit_code == code


class _Ordered(foreign_kernels.Plain):
    ordered = True


def test_a_declared_order_is_judged_by_its_bits() -> None:
    """A BLAS has an order of its own."""
    report = verified(_Ordered(), "layers")
    assert report.exit_code == 1
    assert any("does not have the bits of the declared order" in f.what for f in report.rungs[0].failures)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"formats": ["Q4_9"]}, "format 'Q4_9' is none of"),
        ({"formats": []}, "declares no formats"),
        ({"formats": "Q4_0"}, "formats is no list of strings"),
        ({"semantics": "w4a8"}, "semantics 'w4a8' is none of f32, q8_1, "),
        ({"semantics": "q8_1_half", "ordered": True}, "no order of q8_1_half is known"),
        ({"pack": 3}, "its pack cannot be called"),
    ],
)
def test_wrong_declarations(attributes: dict[str, Any], said: str) -> None:
    wrong = type("Wrong", (foreign_kernels.Plain,), attributes)()
    with pytest.raises(UsageError, match=said):
        open_foreign(wrong, CpuHost(1))


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (None, "gemm", r"foreign\.py is no file$"),
        ("", "gemm", r"foreign\.py has no gemm$"),
        ("gemm = 3", "gemm", "it is int, which cannot be called"),
        ("import no_such_module", "gemm", "cannot be imported: ModuleNotFoundError: No module named"),
        ("1 +", "gemm", "cannot be imported: SyntaxError"),
        ("import sys; sys.exit(0)", "gemm", "cannot be imported: SystemExit"),
        ("import os; os.abort()", "gemm", "cannot be started: the kernel crashed: its process died of SIGABRT"),
        ("def gemm(): pass", "gemm", "it declares no formats"),
        ("gemm = 3", "", r"is neither FILE\.py:NAME nor FILE\.cu:SYMBOL$"),
    ],
)
def test_what_is_no_kernel(tmp_path: Path, source: str | None, name: str, said: str) -> None:
    if source is not None:
        (tmp_path / "foreign.py").write_text(source)
    with pytest.raises(UsageError, match=said) as caught:
        open_foreign(f"{tmp_path / 'foreign.py'}:{name}", CpuHost(1), 20.0)
    assert len(str(caught.value).splitlines()) == 1


def test_an_import_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "START_LIMIT", 2.0)
    (tmp_path / "foreign.py").write_text("while True: pass")
    with pytest.raises(UsageError, match="did not start within 2 s"):
        open_foreign(f"{tmp_path / 'foreign.py'}:gemm", CpuHost(1), 2.0)


def test_an_import_may_take_longer_than_a_call(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(
        "import time\ntime.sleep(1.5)\nfrom gguf_verify.kernels.foreign import kernel\n@kernel(['Q4_0'], 'f32')\n"
        "def gemm(w, x, shape): ...\n"
    )
    open_foreign(f"{tmp_path / 'foreign.py'}:gemm", CpuHost(1), 0.5).close()


def test_identified() -> None:
    """A kernel that computes another definition than it declares."""
    options = Options(progress=False, tensor="blk.0.attn_q")
    found = identify_model(Q4_0, f"{KERNELS}:drops_s", CpuHost(1), options)
    assert found.exit_code == 1
    kernels = [p for p in found.products if p.who != "llama.cpp"]
    assert kernels
    assert not any(p.right for p in kernels)
    right = identify_model(Q4_0, f"{ROOT / 'examples' / 'numpy_q4_0.py'}:gemm", CpuHost(1), options)
    assert right.exit_code == 0
    assert all(p.right for p in right.products)


def test_diagnoses_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says nothing is tried three times in a run."""
    tried: list[int] = []

    def nothing(*_: object) -> object:
        tried.append(1)
        return SimpleNamespace(wrong=0)

    monkeypatch.setattr(explain, "diagnose_kernel", nothing)
    options = Options(progress=False, tensor="attn_q|attn_k|attn_v", n_predict=1)
    report = verify(Q4_0, f"{KERNELS}:drops_s", CpuHost(1), ["layers"], options)
    assert report.exit_code == 1
    assert len(tried) == 3


def test_command_line(tmp_path: Path) -> None:
    assert_one_line(cli(Q4_0, "--kernel", tmp_path / "nope.py:gemm"), 2, r"nope\.py is no file")
    arguments = (Q4_0, "--tensor", "blk.0.attn_k", "--rungs", "blocks", "--host", "cpu", "-t", 1)
    done = cli(*arguments, "--kernel", f"{KERNELS}:raises")
    assert done.returncode == 1
    assert "blk.0.attn_k.weight: the kernel raised ValueError: first line" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("example", ["numpy_q4_0.py:gemm", "cuda_q4_0.cu:gemm"])
def test_the_header_says_where_it_runs(example: str) -> None:
    """By its file and symbol, and in lines that fit a terminal."""
    options = Options(progress=False, tensor="blk.0.attn_k")
    report = verify(Q4_0, f"{EXAMPLES / example}", CpuHost(1), ["blocks"], options)
    header = text.render(report).split("\n\n")[0].splitlines()
    host = next(line for line in header if line.startswith("host"))
    assert any(line.startswith(f"kernel      {example} · ") for line in header)
    assert str(EXAMPLES) not in "\n".join(header)
    assert "in its own process" in host
    assert ("cpu:" in host) == example.startswith("cuda")
    assert ("(chosen by the kernel)" in host) == example.startswith("numpy")
    assert all(len(line) <= 130 for line in header)
    assert report.environment.options.kernel_time_limit == 60


@pytest.mark.parametrize("example", ["numpy_q4_0.py:gemm", "cuda_q4_0.cu:gemm", "torch_q4_0.py:gemm"])
def test_examples(example: str) -> None:
    if example.startswith("torch"):
        need("torch")
    report = verified(f"{EXAMPLES / example}", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    assert [r.verdict for r in report.rungs] == ["passed"] * 3


def test_the_triton_example_in_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which runs it on the CPU, too slowly for a whole run."""
    need("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernel = open_foreign(f"{EXAMPLES / 'triton_q4_0.py'}:gemm", CpuHost(1))
    assert multiplied(kernel)
    kernel.close()


def test_an_example_without_its_library() -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    done = cli(Q4_0, "--kernel", f"{EXAMPLES / 'triton_q4_0.py'}:gemm")
    assert_one_line(done, 2, r"triton_q4_0\.py cannot be imported: ModuleNotFoundError: No module named 'torch'$")


def altered(folder: Path, example: str, old: str, new: str) -> Path:
    source = (EXAMPLES / example).read_text()
    assert old in source
    path = folder / example
    path.write_text(source.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("example", "name", "old", "new"),
    [
        ("numpy_q4_0.py", "gemm", "- 8 * s[:, None]", "- 7 * s[:, None]"),
        ("cuda_q4_0.cu", "gemm", "xb.qs[j + 16]", "xb.qs[j + 15]"),
        ("torch_q4_0.py", "gemm", "[qs & 15, qs >> 4]", "[qs >> 4, qs & 15]"),
    ],
)
def test_a_fault_in_an_example(tmp_path: Path, example: str, name: str, old: str, new: str) -> None:
    if example.startswith("torch"):
        need("torch")
    report = verified(f"{altered(tmp_path, example, old, new)}:{name}")
    assert [r.verdict for r in report.rungs] == ["failed", "failed"]
    first = report.rungs[1].failures[0]
    assert first.tensor == "blk.0.attn_q.weight"
    assert first.block is not None
    assert "is outside the bound" in first.what


def test_an_endless_loop_dies_with_the_harness() -> None:
    """Also where nobody is left to end it."""
    code = f"""
import numpy as np
from gguf_verify.kernels.foreign import open_foreign
from gguf_verify.formats import FORMATS
from gguf_verify.hosts import CpuHost
kernel = open_foreign({f"{KERNELS}:hangs"!r}, CpuHost(1))
print(kernel._talk.process.pid, flush=True)
kernel.product(kernel.upload(FORMATS["Q4_0"], np.zeros((1, 18), np.uint8)), np.zeros((1, 32), np.float32))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        time.sleep(1)
        assert Path(f"/proc/{pid}").exists()
        harness.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_process_is_left() -> None:
    kernel = opened("right")
    assert kernel._talk.process is not None
    pid = kernel._talk.process.pid
    kernel.close()
    assert not Path(f"/proc/{pid}").exists()


DECLARED = """
formats = ["Q4_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
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
    assert Expression(expression).value(M, N, K) == value


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
    with pytest.raises(UsageError, match="is no expression of M, N and K"):
        Expression(expression)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("formats =", "formats", "is no TOML"),
        ("formats =", "format =", "declares no formats"),
        ("block = 128", "block = [1, 2, 3, 4]", "one to three dimensions"),
        ("block = 128", 'block = "M ** 2"', "is no expression"),
        ("int32 M", "float M", "parameter 'float M' is none of"),
        ('"weights", ', "", "parameters must hold weights once"),
        ("block", 'macros = { "A B" = 1 }\nblock', "macro 'A B' is no name"),
        ("block", "macros = { Q5_0 = { A = 1 } }\nblock", "'Q5_0', which is not among its formats"),
        ("block", "blocks = 3\nblock", "declares 'blocks', which means nothing"),
        ("q8_1", "q8_9", "semantics 'q8_9' is none of"),
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
        ("y[i] = acc;", "y[i] = acc; *(float*)(long long)i = 1;", r"crashed: its process died of SIGSEGV"),
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
        ("block = 128", 'block = "M * 1000"', r"its block at M=5, N=7, K=96 is 5000 × 1 × 1, which CUDA does not"),
        (
            'grid = "ceil(M * N, 128)"',
            'grid = "M - 5"',
            r"its grid at M=5, N=7, K=96 is 0 × 1 × 1, which CUDA does not",
        ),
        ("block = 128", 'block = "1024 / (M - 5)"', r"divides by zero at M=5, N=7, K=96"),
    ],
)
def test_faults_of_cuda(tmp_path: Path, old: str, new: str, said: str) -> None:
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', old, new)}:gemm", CpuHost(1), 20.0)
    rows, x = operands()
    with pytest.raises(KernelFault, match=said):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    root = Path(kernel._source._asked["root"])  # type: ignore[attr-defined]
    assert root.is_dir()
    kernel.close()
    assert not root.exists()


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


@pytest.mark.parametrize(
    ("old", "new", "name", "said"),
    [
        (
            "float acc = 0.0f;",
            "float acc = zero;",
            "gemm",
            r"compile .*: cuda_q4_0\.cu:\d+:\d+: error: .*zero",
        ),
        ("int M, int N", "int M, long long N", "gemm", "the parameters of gemm are not those that are declared"),
        ("[gguf-verify]", "[gguf]", "gemm", r"no // \[gguf-verify\] block, and there is no cuda_q4_0\.toml"),
        ("q8_1", "q8_1", "gemv", "could not compile .*gemv"),
        ("q8_1", "q8_1", "a-b", "'a-b' is no name of a function"),
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


def test_the_cuda_example_compiles_for_gpus() -> None:
    """By NVRTC, which needs no GPU; it has not run on one here."""
    source = CudaSource(EXAMPLES / "cuda_q4_0.cu", "gemm")
    for sm in ("75", "90"):
        assert nvrtc.compile_cubin(source.root, "foreign.cu", sm, {})[:4] == b"\x7fELF"
    source.close()


# -- activations that the kernel quantizes itself ----------------------------------------------------------------------


def test_quantizes_itself() -> None:
    """All rungs, and what the report says of it."""
    report = verified(f"{KERNELS}:quantizes", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    assert [r.verdict for r in report.rungs] == ["passed"] * 3
    assert "judged by q8_1 of the float32 activations that it takes" in text.render(report)


@pytest.mark.parametrize("name", ["truncates", "off_by_ulps", "sums_off"])
def test_another_quantizer_inside(name: str) -> None:
    report = verified(f"{KERNELS}:{name}", "layers")
    assert report.exit_code == 1
    of_kernel = [f.what for f in report.rungs[0].failures if f.what.startswith("kernel")]
    assert of_kernel
    assert all("its quantizer may differ" in what for what in of_kernel)


def test_the_diagnosis_of_a_quantizer_inside() -> None:
    report = verified(f"{KERNELS}:truncates", "layers")
    assert report.rungs[0].diagnosis is not None
    assert "quantizer of activations truncates" in " ".join(report.rungs[0].diagnosis.lines)


def test_a_kernel_given_blocks_is_not_said_to_quantize() -> None:
    report = verified(f"{KERNELS}:drops_s", "layers")
    assert not any("its quantizer may differ" in f.what for f in report.rungs[0].failures)


def test_sums_in_any_order() -> None:
    """s may be either half where the order of the additions decides; nowhere else."""
    x = np.random.default_rng(3).standard_normal((4096, 96), np.float32)
    ours = Q8_1.view(encode_q8_1(x).reshape(len(x), -1, 36))["s"]
    in_order = foreign_kernels.quantized_in_order(x).view(foreign_kernels.numpy_q4_0.Q8_1)["s"]
    assert (foreign_kernels.quantized(x) == encode_q8_1(x)).all()
    moved = (ours != in_order).any(axis=1)
    assert 0 < moved.sum() < 100
    x = np.ascontiguousarray(x[moved][:8])
    rows, fmt = operands()[0], FORMATS["Q4_0"]
    for name, passes in (("sums_in_order", True), ("sums_off", False)):
        kernel = opened(name)
        y = kernel.product(kernel.upload(fmt, rows), x)
        kernel.close()
        judged = judge(y, product(kernel.definition, fmt, rows, kernel.quantize(x)))
        assert judged.passed == passes
        strict = judge(y, product(SEMANTICS["q8_1"], fmt, rows, encode_q8_1(x)))
        assert not strict.passed


def test_llama_cpps_blocks_as_values() -> None:
    """What such a kernel is fed on llama.cpp's activation bytes has these codes and scales again."""
    x, fmt = np.random.default_rng(4).standard_normal((64, 256), np.float32), FORMATS["Q4_0"]
    theirs = np.ascontiguousarray(x[::-1])  # so that none of it can come from the values
    blocks = encode_q8_1_cpu(theirs).reshape(64, -1, 36)
    quantized = {Q8_1.type_id: blocks.reshape(64, -1), Q8_0.type_id: encode_q8_0_cpu(theirs)}
    gemm = Gemm("w", "y", fmt.type_id, x, np.zeros((64, 8), np.float32), quantized, None)
    fed = llama_activations(quantized_inside(SEMANTICS["q8_1"]), fmt, gemm, SEMANTICS["q8_0_cpu"])
    again = encode_q8_1(fed.view(np.float32)).reshape(64, -1, 36)
    assert (Q8_1.codes(again) == Q8_1.codes(blocks)).all()
    assert (Q8_1.scale(again) == Q8_1.scale(blocks)).all()


# -- oracles of a kernel's author --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["own", "own_both", "own_blocks"])
def test_an_oracle_of_its_author(name: str) -> None:
    """Every rung; the report says so, what a pass means, and how far each definition is."""
    report = verified(f"{KERNELS}:{name}", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    shown = text.render(report)
    assert "semantics own" in shown
    assert "judged by an oracle of its author (its own: " in shown
    assert "verified here means: the kernel computes what an oracle of its author says" in shown
    for rung in report.rungs:
        distances = {k: v for k, v in rung.figures.items() if k.startswith("the author's oracle to ")}
        assert [k.split(" ")[4].rstrip(",") for k in distances] == ["f32", "q8_1", "mmq", "q8_0_cpu"]
        assert any("(llama.cpp)" in k for k in distances)
        assert all(v < 1e-3 for v in distances.values())
        assert sum(v < 1e-6 for v in distances.values()) == 1  # half activations are near f32; own_blocks is q8_1
    assert json_report.to_dict(report)["environment"]["kernel"]["judged_by"] == report.environment.kernel.judged_by


@pytest.mark.parametrize(("name", "like"), [("own_values", "f32"), ("own_codes", "mmq")])
def test_what_an_oracle_leaves_out(name: str, like: str) -> None:
    """Is the file's weights, and the values of the activations as the kernel takes them."""
    kernel, fmt = opened(name), FORMATS["Q4_0"]
    rows, x = operands()
    y = kernel.product(kernel.upload(fmt, rows), x)
    ours = product(kernel.definition, fmt, rows, kernel.quantize(x))
    known = product(SEMANTICS[like], fmt, rows, SEMANTICS[like].bytes_of(x))
    alone = exact_result(kernel.definition, fmt, rows, kernel.quantize(x))
    kernel.close()
    np.testing.assert_allclose(alone, ours.exact, rtol=1e-12)
    assert judge(y, ours).passed
    np.testing.assert_allclose(ours.exact, known.exact, rtol=1e-12)
    assert (ours.bound >= known.bound).all()


def test_no_other_report_speaks_of_oracles() -> None:
    report = verified(f"{KERNELS}:right", "blocks")
    assert report.environment.kernel.judged_by is None
    assert "author" not in text.render(report)


@pytest.mark.parametrize("name", ["own_wrong"])
def test_wrong_by_its_own_oracle(name: str) -> None:
    report = verified(f"{KERNELS}:{name}", "blocks", "layers", "tokens")
    assert [r.verdict for r in report.rungs] == ["failed"] * 3
    assert report.rungs[1].failures[0].block == 0
    assert report.rungs[1].diagnosis is not None
    assert (
        "(f32), not Q4_0 (own) as declared: the kernel is correct for that definition"
        in report.rungs[1].diagnosis.lines[0]
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("oracle_raises", "the kernel's oracle raised ValueError: no idea in its activations$"),
        ("oracle_random", "the kernel's oracle is not deterministic: a second call of its activations gave other"),
        ("oracle_changes_inputs", "the kernel's oracle modified its activations' inputs: . bytes, the first at"),
        ("oracle_nan", "the kernel's oracle gives activations that are not finite, the first in row 0$"),
        ("oracle_infinite", "the kernel's oracle gives weights that are not finite, the first in row 0$"),
        ("oracle_transposed", r"gives float64\[32, 3\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_floats", r"gives float32\[3, 32\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_nothing", "the kernel's oracle gives no array as its activations$"),
        ("oracle_wide", r"gives float64\[3, 288\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_unlike", "the kernel's oracle gives weights of 33 columns and activations of 32$"),
        ("oracle_crashes", "the kernel's oracle crashed: its process died of SIGSEGV$"),
        ("oracle_is_own_output", "the kernel's oracle raised KeyError: 'y' in its weights$"),
    ],
)
def test_what_is_no_oracle(name: str, said: str) -> None:
    """One line a rung, nothing is judged by it, and the next rung finds a fresh process."""
    report = verified(f"{KERNELS}:{name}", "blocks", "layers", "tokens", tensor=r"blk\.0\.attn_k\.")
    assert report.exit_code == 1
    for rung in report.rungs:
        assert len(rung.failures) == 1, rung.failures
        what = rung.failures[0].what
        assert what.startswith("blk.0.attn_k.weight: ")
        if rung.name == "blocks":  # the shapes are those of blocks
            assert re.search(said, what)
        else:
            assert "the kernel's oracle " in what


def test_an_oracle_that_hangs() -> None:
    options = {"tensor": r"blk\.0\.attn_k\.", "kernel_time_limit": 0.5}
    report = verified(f"{KERNELS}:oracle_hangs", "blocks", "layers", "tokens", **options)
    assert report.exit_code == 1
    assert [f.what for r in report.rungs for f in r.failures] == [
        "blk.0.attn_k.weight: the kernel's oracle did not return within 0.5 s"
    ] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "oracle_huge",
            r"has terms that cancel: its bound is .* as that of any definition, and would excuse any",
        ),
        (
            "oracle_of_another_product",
            r"another product: NMSE \d.* to \w+, the nearest definition, more than 0.01$",
        ),
        ("oracle_is_the_kernel", r"describes another product: NMSE \d"),
    ],
)
@pytest.mark.parametrize("rung", ["blocks", "layers", "tokens"])
def test_oracles_of_something_else(name: str, said: str, rung: str) -> None:
    """Each kernel is within the bound of its oracle, and each rung sees by itself what that is."""
    report = verified(f"{KERNELS}:{name}", rung, tensor=r"blk\.0\.attn_k\.")
    assert report.exit_code == 1
    whats = {f.what for f in report.rungs[0].failures}
    assert all(what.startswith("blk.0.attn_k.weight: the oracle of the kernel's author ") for what in whats)
    assert all(re.search(said, what) for what in whats)
    assert whats


def test_an_oracle_that_leaves_out_a_few_weights() -> None:
    """Which no distance of the products would tell."""
    report = verified(f"{KERNELS}:oracle_drops_a_weight", "layers", tensor=r"blk\.0\.attn_k\.")
    [failure] = report.rungs[0].failures
    assert "has other weights than the file: 0.0031 of them, the first in row 0 of a product, value 255" in failure.what
    assert all(v < 2e-3 for k, v in report.rungs[0].figures.items() if k.startswith("the author's oracle to "))


def test_an_oracle_given_as_an_object() -> None:
    report = verified(foreign_kernels.own, "blocks", "layers")
    assert report.exit_code == 0, report.rungs


def test_identified_beside_its_oracle() -> None:
    options = Options(progress=False, tensor="blk.0.attn_q")
    for name, code in (("own", 0), ("own_wrong", 1), ("quantizes", 0), ("oracle_raises", 1)):
        found = identify_model(Q4_0, f"{KERNELS}:{name}", CpuHost(1), options)
        assert found.exit_code == code, name
        kernels = [p for p in found.products if p.who != "llama.cpp"]
        assert all(p.right == (code == 0) for p in kernels)
        if name == "own":
            assert {p.found.names for p in kernels if p.found is not None} == {("own",)}
            shown = identify_report.render(found)
            assert "declares own (an oracle of its author (its own: activations))" in shown
            assert "foreign_kernels.py:own  own " in shown


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"semantics": "own"}, "semantics 'own without an Oracle' is none of f32, q8_1, "),
        ({"semantics": foreign_kernels.half_activations, "ordered": True}, "no order of an oracle is known"),
        ({"takes": "q8_1"}, "takes 'q8_1' is none of float32, f32"),
        ({"semantics": "q8_1", "takes": "mmq"}, "takes 'mmq' is none of float32, q8_1"),
        (
            {"semantics": foreign_kernels.half_activations, "takes": "q8_0_cpu"},
            "takes 'q8_0_cpu' is none of float32, q",
        ),
    ],
)
def test_wrong_declarations_of_oracles(attributes: dict[str, Any], said: str) -> None:
    wrong = type("Wrong", (foreign_kernels.Plain,), attributes)()
    with pytest.raises(UsageError, match=said):
        open_foreign(wrong, CpuHost(1))
    with pytest.raises(UsageError, match="the oracle's weights cannot be called"):
        Oracle(weights=3)  # type: ignore[arg-type]


ORACLE = """
import numpy as np
from gguf_verify import Oracle

def halves(x):
    return x.astype(np.float16).astype(np.float64)

oracle = Oracle(activations=halves)
half = 3
"""
#: The example of float32 activations.
OF_FLOATS = [
    ("const Q8_1* x", "const float* x"),
    ("        const Q8_1& xb = x[m * blocks + b];\n        int sum = 0;\n", "        float sum = 0.0f;\n"),
    ("xb.qs[j];", "x[m * K + b * 32 + j];"),
    ("xb.qs[j + 16];", "x[m * K + b * 32 + j + 16];"),
    ("(wb.qs[j] & 15)", "float((wb.qs[j] & 15) - 8)"),
    ("(wb.qs[j] >> 4)", "float((wb.qs[j] >> 4) - 8)"),
    ("from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s))", "from_half(wb.d) * sum"),
]
#: It quantizes: each thread the blocks that it needs.
QUANTIZES = [
    ("const Q8_1* x", "const float* x"),
    (
        "        const Q8_1& xb = x[m * blocks + b];\n",
        """        const float* v = x + m * K + b * 32;
        float most = 0.0f, part[32], s = 0.0f;
        for (int j = 0; j < 32; ++j) most = fmaxf(most, fabsf(v[j])), part[j] = v[j], s += v[j];
        const float d = most / 127.0f;
        int q[32];
        for (int j = 0; j < 32; ++j) q[j] = d > 0.0f ? int(roundf(v[j] / d)) : 0;
""",
    ),
    ("xb.qs[j]", "q[j]"),
    ("xb.qs[j + 16]", "q[j + 16]"),
    ("from_half(xb.d)", "rounded(d)"),
    ("from_half(xb.s)", "rounded(s)"),
    (
        'extern "C"',
        """__device__ float rounded(float x) {  // to half and back; no subnormal halves here
    const unsigned bits = __float_as_uint(x), kept = bits + 0x0FFFu + (bits >> 13 & 1u) & 0xFFFFE000u;
    return __uint_as_float(kept);
}

extern "C\"""",
    ),
    ('semantics = "q8_1"', 'semantics = "q8_1"\n// takes = "float32"'),
]


def cuda(folder: Path, changes: list[tuple[str, str]]) -> Path:
    path = EXAMPLES / "cuda_q4_0.cu"
    source = path.read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = folder / "kernel.cu"
    path.write_text(source)
    (folder / "my_oracle.py").write_text(ORACLE)
    return path


BY_ORACLE = ('semantics = "q8_1"', 'oracle = "my_oracle.py:oracle"')
ROUNDS = ("x[m * K + b * 32 + j", "rounded(x[m * K + b * 32 + j")


def test_cuda_with_an_oracle(tmp_path: Path) -> None:
    """Right only where it rounds its activations, as its oracle does."""
    exact = verified(f"{cuda(tmp_path, [*OF_FLOATS, BY_ORACLE])}:gemm", "layers")
    assert exact.exit_code == 1
    rounding = [QUANTIZES[-2], ("+ j];", "+ j]);"), ("+ j + 16];", "+ j + 16]);"), ROUNDS]
    report = verified(f"{cuda(tmp_path, [*OF_FLOATS, BY_ORACLE, *rounding])}:gemm", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    assert "judged by an oracle of its author (its own: activations)" in text.render(report)


def test_cuda_that_quantizes_itself(tmp_path: Path) -> None:
    report = verified(f"{cuda(tmp_path, QUANTIZES)}:gemm", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    wrong = verified(f"{cuda(tmp_path, [*QUANTIZES, ('roundf(v[j] / d)', '(v[j] / d)')])}:gemm", "layers")
    assert wrong.exit_code == 1
    assert "its quantizer may differ" in wrong.rungs[0].failures[0].what


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([('semantics = "q8_1"', 'semantics = "own"')], "semantics 'own' is none: it goes with an oracle"),
        ([('semantics = "q8_1"', 'semantics = "q8_1"\n// oracle = "o.py:o"')], "in place of semantics"),
        ([('semantics = "q8_1"', 'oracle = "my_oracle.py"')], 'oracle is "FILE.py:NAME"'),
        ([('semantics = "q8_1"', 'oracle = "none.py:oracle"')], "none.py is no file"),
        ([('semantics = "q8_1"', 'oracle = "my_oracle.py:none"')], "my_oracle.py has no none"),
        (
            [('semantics = "q8_1"', 'oracle = "my_oracle.py:half"')],
            "its oracle is no gguf_verify.kernels.foreign.Oracle",
        ),
        ([('semantics = "q8_1"', 'semantics = "q8_1"\n// takes = "f32"')], "takes 'f32' is none of float32, q8_1"),
    ],
)
def test_wrong_oracles_of_cuda(tmp_path: Path, changes: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        open_foreign(f"{cuda(tmp_path, changes)}:gemm", CpuHost(1))
    assert len(str(caught.value).splitlines()) == 1
