"""Calls with more than weights, activations and an output: several launches, scratch, strides, padding, conditions; and
code that is no CUDA C++: a shared library, a FILE.toml."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.compiler import compiler
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import EnvironmentFault, KernelFault, UsageError
from tests.support.foreign_runs import K, M, N, operands
from tests.support.tools import ROOT

TWO_LAUNCHES = """
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// [operands.activations]
// columns = "ceil(K, 128) * 128"
// stride = "ceil(K, 128) * 128 + 8"
// [operands.output]
// transposed = true
// stride = "M + 3"
// [operands.workspace]
// scratch = "4 * M * N * ceil(K, 64)"
// [operands.factors]
// constant = ["int32 1", "int32 N"]
// [[launches]]
// symbol = "parts"
// parameters = ["weights", "activations", "workspace", "int32 M", "int32 N", "int32 K", "int64 ceil(K, 128) * 128 + 8"]
// grid = ["N", "M", "ceil(K, 64)"]
// block = 1
// [[launches]]
// symbol = "added"
// parameters = ["workspace", "output", "factors", "int32 M", "int32 N", "int32 ceil(K, 64)", "int32 M + 3"]
// grid = ["N", "M"]
// block = 1
// [/gguf-verify]

struct Q4_0 { unsigned short d; unsigned char qs[16]; };

__device__ float from_half(unsigned short h) {
    return __uint_as_float((h & 0x8000u) << 16 | (h & 0x7FFFu) << 13) * 5192296858534827628530496329220096.0f;
}

extern "C" __global__ void parts(const Q4_0* w, const float* x, float* part, int M, int N, int K, long long stride) {
    const int n = blockIdx.x, m = blockIdx.y, p = blockIdx.z;
    float sum = 0.0f;
    for (int b = 2 * p; b < 2 * p + 2; ++b) {
        for (int j = 0; j < 32 && b < K / 32; ++j) {
            const Q4_0& block = w[n * (K / 32) + b];
            const int q = j < 16 ? block.qs[j] & 15 : block.qs[j - 16] >> 4;
            sum += from_half(block.d) * (q - 8) * x[m * stride + 32 * b + j];
        }
        // what lies behind K is zero
        if (b >= K / 32 && 32 * b < stride - 8) sum += x[m * stride + 32 * b];
    }
    part[((long long)m * N + n) * gridDim.z + p] = sum;
}

extern "C" __global__ void added(const float* part, float* y, const int* factors, int M, int N, int parts, int stride) {
    const int n = blockIdx.x, m = blockIdx.y;
    float sum = 0.0f;
    for (int p = 0; p < parts; ++p) sum += part[(m * factors[1] + n) * parts + p] * factors[0];
    y[n * stride + m] = sum;
}
"""


def made(kernel: ForeignKernel, fmt: str = "Q4_0") -> np.ndarray:
    rows, x = operands()
    return kernel.product(kernel.upload(FORMATS[fmt], rows), x)


def right(y: np.ndarray, semantics: str = "f32") -> bool:
    rows, x = operands()
    definition = SEMANTICS[semantics]
    return judge(y, product(definition, FORMATS["Q4_0"], rows, definition.bytes_of(x))).passed


def two_launches(folder: Path, old: str = "", new: str = "") -> ForeignKernel:
    assert old in TWO_LAUNCHES
    (folder / "k.cu").write_text(TWO_LAUNCHES.replace(old, new) if old else TWO_LAUNCHES)
    return open_foreign(f"{folder / 'k.cu'}:any", CpuHost(1), 20.0)


def test_launches_scratch_padding_strides_and_constants(tmp_path: Path) -> None:
    kernel = two_launches(tmp_path)
    y = made(kernel)
    assert y.shape == (M, N)
    assert right(y)
    launched = kernel.launches(FORMATS["Q4_0"], M, N, K)
    assert launched is not None
    assert [one.grid for one in launched] == [(N, M, 2), (N, M, 1)]
    assert kernel.only_launch(FORMATS["Q4_0"], M, N, K) == launched[-1]
    kernel.close()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("y[n * stride + m] = sum;", "y[n * stride + m] = sum; if (!n) y[M] = 0;", "4 bytes between or after its rows"),
        ("gridDim.z + p] = sum;", "gridDim.z + p + 1] = sum;", "wrote outside its workspace: 0 bytes before, 4 after"),
        ("const float* x, float* part", "float* x, float* part", None),
        (
            "float sum = 0.0f;\n    for (int b",
            "float sum = ((float*)x)[m * stride] = 1.0f;\n    for (int b",
            "activations",
        ),
        ("gridDim.z + p] = sum;", "gridDim.z + p] = sum; ((float*)factors_)[0] = 2;", "does not compile|factors_"),
    ],
    ids=["between-rows", "past-scratch", "not-const", "writes-activations", "does-not-compile"],
)
def test_faults_in_such_calls(tmp_path: Path, old: str, new: str, said: str | None) -> None:
    if said is None:
        kernel = two_launches(tmp_path, old, new)
        assert right(made(kernel))
        kernel.close()
        return
    with pytest.raises((KernelFault, UsageError), match=said):
        made(two_launches(tmp_path, old, new))


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (
            "for (int b = 2 * p; b",
            "if (p) return; for (int b = 2 * p; b",
            "not deterministic",
        ),  # a part that nobody writes
        ("+ 32 * b];\n    }", "+ 32 * b + 32];\n    }", "past the end of its activations"),  # and between its rows
        ("factors[1] + n", "(factors[1] - 1) + n", ""),
        ("n * stride + m", "n * (stride - 3) + m", "between or after its rows"),
    ],
    ids=["unwritten-scratch", "between-rows", "wrong-part", "wrong-stride"],
)
def test_wrong_products_in_such_calls(tmp_path: Path, old: str, new: str, finding: str) -> None:
    kernel = two_launches(tmp_path, old, new)
    if finding:
        with pytest.raises(KernelFault, match=finding):
            made(kernel)
    else:
        assert not right(made(kernel))
    kernel.close()


def test_a_launch_for_few_tokens_and_one_for_more(tmp_path: Path) -> None:
    """The second is wrong, and is launched from six tokens on."""
    text = (Path(__file__).parents[3] / "examples" / "cuda_q4_0.cu").read_text()
    body = text[text.index("struct Q4_0") :]
    wrong = body[body.index('extern "C"') :].replace("gemm(", "many(").replace("acc +=", "acc -=")
    (tmp_path / "k.cu").write_text(body + wrong)
    one = 'parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]\nblock = 128\n'
    one += 'grid = "ceil(M * N, 128)"\n'
    (tmp_path / "k.toml").write_text(
        f'formats = ["Q4_0"]\nsemantics = "q8_1"\ncode = "${{HOLDS_KERNELS}}/k.cu"\n[[launches]]\nsymbol = "gemm"\n'
        f'when = "M <= 5"\n{one}[[launches]]\nsymbol = {{ Q4_0 = "many" }}\nwhen = "M > 5"\n{one}'
    )
    with pytest.raises(UsageError, match="set the environment variable HOLDS_KERNELS"):
        open_foreign(str(tmp_path / "k.toml"), CpuHost(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDS_KERNELS", str(tmp_path))
        kernel = open_foreign(str(tmp_path / "k.toml"), CpuHost(1))
    assert right(made(kernel), "q8_1")
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    y, less = kernel.product(weights, np.concatenate([x, x[:1]])), kernel.product(weights, x)
    np.testing.assert_array_equal(y[:5], -less)
    kernel.close()


C_SOURCE = """
#include <math.h>
#include <stdint.h>
#include <string.h>
static float from_half(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x8000u) << 16 | (uint32_t)(h & 0x7FFFu) << 13;
    float f;
    memcpy(&f, &u, 4);
    return ldexpf(f, 112);
}
int gemm(const uint8_t* w, const float* x, float* y, int64_t M, int32_t N, int64_t K, float scale, void* stream) {
    if (stream) return 7;
    if (N == 9) return 3;
    for (int64_t m = 0; m < M; ++m)
        for (int32_t n = 0; n < N; ++n) {
            float sum = 0;
            for (int64_t k = 0; k < K; ++k) {
                const uint8_t* b = w + (n * (K / 32) + k / 32) * 18;
                uint16_t d;
                memcpy(&d, b, 2);
                const int j = (int)(k % 32), q = j < 16 ? b[2 + j] & 15 : b[2 + j - 16] >> 4;
                sum += from_half(d) * (float)(q - 8) * x[m * K + k];
            }
            y[m * N + n] = sum * scale;
        }
    return 0;
}
"""
OF_C = """
formats = ["Q4_0"]
semantics = "f32"
parameters = ["weights", "activations", "output", "int64 M", "int32 N", "int64 K", "float32 1.0", "stream"]
"""
NAMED = f'symbol = "gemm"\n{OF_C}'


def library(folder: Path, text: str = C_SOURCE) -> Path:
    (folder / "k.c").write_text(text)
    command = [compiler(), "-x", "c", "-O1", "-shared", "-fPIC", str(folder / "k.c"), "-o", str(folder / "k.so"), "-lm"]
    subprocess.run(command, check=True)
    return folder / "k.so"


def test_a_function_of_c(tmp_path: Path) -> None:
    path = library(tmp_path)
    with pytest.raises(UsageError, match=r"k\.toml, the file for its declaration, does not exist"):
        open_foreign(f"{path}:gemm", CpuHost(1))
    (tmp_path / "k.toml").write_text(OF_C + 'returns = "int32"\n')
    with pytest.raises(UsageError, match="the library has no function gemv"):
        open_foreign(f"{path}:gemv", CpuHost(1))
    kernel = open_foreign(f"{path}:gemm", CpuHost(1), 20.0)
    assert right(made(kernel))
    rows, x = operands()
    more = np.concatenate([rows, rows[:2]])
    with pytest.raises(KernelFault, match="function returned 3, but 0 means success"):
        kernel.product(kernel.upload(FORMATS["Q4_0"], more), x)
    kernel.close()


def test_the_library_of_the_tutorial(tmp_path: Path) -> None:
    """What the page for maintainers declares opens a function of its interface; this one computes float32 products."""
    text = (ROOT / "docs" / "tutorials" / "engine-maintainer.md").read_text()
    (declared,) = (block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "parameters" in block)
    path = library(tmp_path, C_SOURCE.replace("int32_t N, int64_t K, float scale, void* stream", "int64_t N, int64_t K")
                   .replace("if (stream) return 7;", "const float scale = 1;"))  # fmt: skip
    path.with_suffix(".toml").write_text(declared.replace('"q8_1"', '"f32"'))
    kernel = open_foreign(f"{path}:gemm", CpuHost(1), 20.0)
    assert right(made(kernel))
    kernel.close()


def test_a_function_of_c_that_returns_nothing(tmp_path: Path) -> None:
    """Its caller finds in the register of results whatever was computed last."""
    text = C_SOURCE.replace("return 7;", "return;").replace("return 3;", "return;").replace("int gemm(", "void gemm(")
    left = "    note(M * N);\n}"
    text = text.replace("    return 0;\n}", left).replace(
        "void gemm(",
        "static volatile int64_t told;\nstatic int64_t note(int64_t v) { told = v; return v; }\nvoid gemm(",
    )
    assert left in text
    path = library(tmp_path, text)
    (tmp_path / "k.toml").write_text(OF_C)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1), 20.0)
    assert right(made(kernel))
    kernel.close()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("y[m * N + n] = sum", "y[m * N + n + 1] = sum", "wrote outside its output: 0 bytes before, 4 after"),
        ("if (N == 9)", "*(volatile int*)0 = 1; if (N == 9)", "crashed: its process died of SIGSEGV"),
        ("if (N == 9)", "for (;;) stream = w ? stream : 0; if (N == 9)", "did not return within"),
    ],
    ids=["outside", "crash", "hang"],
)
def test_faults_of_a_function_of_c(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in C_SOURCE
    path = library(tmp_path, C_SOURCE.replace(old, new))
    (tmp_path / "other.toml").write_text(OF_C + f'code = "{path}"\n[[launches]]\n')
    (tmp_path / "k.toml").write_text(OF_C)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1), 1.0)
    with pytest.raises(KernelFault, match=said):
        made(kernel)
    kernel.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OF_C, "it names no code"),
        (OF_C + 'code = "k.so"\n', "each launch must name its function"),
        (NAMED + 'code = "none.so"\n', "none.so, is not a file"),
        (NAMED + 'code = "k.toml"\n', r"its code, k\.toml, is not a \.cu, \.ptx"),
        (NAMED.replace("float32 1.0", "float32 one") + 'code = "k.so"\n', "'one' is not a number"),
        (NAMED.replace("stream", "streams") + 'code = "k.so"\n', "parameter 'streams' is not one of"),
        (
            NAMED + 'code = "k.so"\noperands.weights = { stripe = 3 }\n',
            "'stripe' is not a key of operand weights: did you mean 'stride'",
        ),
        (NAMED + 'code = "k.so"\noperands.room = { zeroed = true }\n', "either scratch = BYTES or constant"),
        (NAMED + 'code = "k.so"\noutput = "half"\n', "output 'half': "),
        (NAMED + 'code = "k.so"\nreturns = "float32"\n', "returns one of void, int32, not 'float32'"),
        (NAMED + 'code = "k.so"\noperands.room = { tail = 3 }\n', "either scratch = BYTES or constant"),
        (NAMED + 'code = "k.so"\noperands.weights = { alignment = 24 }\n', "one of 1, 2, 4, 8, 16, 32, 64, 128, 256"),
        (NAMED + 'code = "k.so"\ncomputes = "attention"\n', "computes 'attention' is out of scope. In scope are gemm"),
    ],
)
def test_declarations_that_say_nothing_valid(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "k.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        open_foreign(str(tmp_path / "k.toml"), CpuHost(1))
    assert len(str(caught.value).splitlines()) == 1


def test_code_for_a_card_needs_one(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text("// nothing")
    (tmp_path / "k.toml").write_text(OF_C + "block = 1\ngrid = 1\n")
    with pytest.raises(EnvironmentFault, match=r"a \.ptx file only runs on a GPU"):
        open_foreign(f"{tmp_path / 'k.ptx'}:gemm", CpuHost(1))
    with pytest.raises(UsageError, match=r"add --declare FILE\.toml"):
        open_foreign("torch.ops.mine.gemm", CpuHost(1))


HALF = """
import numpy as np
from gguf_verify import kernel

@kernel(formats=["Q4_0"], semantics="f32", output="float16"{more})
def gemm(weights, activations, shape{out}):
    d = weights.reshape(shape.n, -1, 18)[..., :2].copy().view(np.float16).astype(np.float32)
    qs = weights.reshape(shape.n, -1, 18)[..., 2:]
    q = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.float32) - 8
    y = activations @ (q * d).reshape(shape.n, -1).T
    {give}
"""


@pytest.mark.parametrize(
    ("more", "out", "give", "said"),
    [
        ("", "", "return y.astype(np.float16)", None),
        (", out=True", ", out", "out[...] = y", None),
        (", operands={'output': {'transposed': True}}", "", "return y.T.astype(np.float16)", None),
        ("", "", "return y", 'expected float16.*declare output = "float32"'),
        ("", "", "return y.T.astype(np.float16)", "declare operands.output.transposed = true"),
        (", out=True", ", out", "out[:, 1:] = y[:, 1:]", "never"),
    ],
)
def test_half_outputs(tmp_path: Path, more: str, out: str, give: str, said: str | None) -> None:
    (tmp_path / "k.py").write_text(HALF.format(more=more, out=out, give=give))
    kernel = open_foreign(f"{tmp_path / 'k.py'}:gemm", CpuHost(1), 20.0)
    if said in (None, "never"):
        y = made(kernel)
        rows, x = operands()
        exact = product(SEMANTICS["f32"], FORMATS["Q4_0"], rows, x.view(np.uint8)).exact
        close = np.abs(y - exact) <= 2.0**-10 * np.abs(exact) + 1e-3
        assert y.dtype == np.float32
        assert close[:, 1:].all()
        assert close[:, 0].all() == (said is None)
        assert np.isnan(y[:, 0]).all() == (said == "never")
    else:
        with pytest.raises(KernelFault, match=said):
            made(kernel)
    kernel.close()
