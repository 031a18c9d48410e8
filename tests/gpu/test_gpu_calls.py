"""Calls of foreign kernels on a GPU: launches, scratch and strides; PTX and cubins; functions of libraries that nvcc
made; tensors and operators of PyTorch; outputs of halves. Skipped by name where there is no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.choice import make_host
from gguf_verify.kernels.foreign.names import Further
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import KernelFault
from tests.rungs.kernels.test_foreign_calls import TWO_LAUNCHES
from tests.rungs.kernels.test_foreign_torch import DECLARED, module
from tests.rungs.kernels.test_half_twins import FAULTS, TWINS, twin
from tests.support.foreign_runs import EXAMPLES, operands

pytestmark = pytest.mark.needs("gpu")

ONE = 'parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]\n'
LAUNCH = 'block = 128\ngrid = "ceil(M * N, 128)"\n'


def right(name: str, semantics: str, output: str = "float32", further: Further | None = None) -> bool:
    """Whether a kernel's product on the GPU is correct. Raises KernelFault."""
    host = make_host("gpu", 0)
    kernel = open_foreign(name, host, 600.0, further=further)
    try:
        rows, x = operands()
        y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    finally:
        kernel.close()
        host.close()
    definition = declared(semantics, output=output)
    return judge(y, product(definition, FORMATS["Q4_0"], rows, definition.bytes_of(x))).passed


def test_launches_scratch_padding_strides_and_constants(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(TWO_LAUNCHES)
    assert right(f"{tmp_path / 'k.cu'}:any", "f32")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("y[n * stride + m] = sum;", "y[n * stride + m] = sum; if (!n) y[M] = 0;", "between or after its rows"),
        ("gridDim.z + p] = sum;", "gridDim.z + p + 1] = sum;", "outside its workspace|illegal"),
        (
            "float sum = 0.0f;\n    for (int b",
            "float sum = ((float*)x)[m * stride] = 1.0f;\n    for (int b",
            "activations",
        ),
    ],
)
def test_faults_in_such_calls(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TWO_LAUNCHES
    (tmp_path / "k.cu").write_text(TWO_LAUNCHES.replace(old, new))
    with pytest.raises(KernelFault, match=said):
        right(f"{tmp_path / 'k.cu'}:any", "f32")


@pytest.mark.parametrize("kind", ["ptx", "cubin"])
def test_code_that_is_compiled_already(tmp_path: Path, kind: str) -> None:
    host = make_host("gpu", 0)
    sm = str(host.sm)
    host.close()
    compiled = nvrtc.compile_ptx if kind == "ptx" else nvrtc.compile_cubin
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    for wrong in (False, True):
        (tmp_path / "source.cu").write_text(text.replace("8.0f", "8.1f") if wrong else text)
        (tmp_path / f"k.{kind}").write_bytes(compiled(tmp_path, "source.cu", sm, {}))
        (tmp_path / "k.toml").write_text(f'formats = ["Q4_0"]\nsemantics = "q8_1"\n{ONE}{LAUNCH}')
        assert right(f"{tmp_path / f'k.{kind}'}:gemm", "q8_1") != wrong


LAUNCHER = """
#include <cuda_runtime.h>
extern "C" int run(const void* w, const void* x, void* y, long long M, long long N, long long K, cudaStream_t stream) {
    gemm<<<(unsigned)((M * N + 127) / 128), 128, 0, stream>>>((const Q4_0*)w, (const Q8_1*)x, (float*)y, M, N, K);
    return (int)cudaGetLastError();
}
"""


@pytest.mark.parametrize("arrays", ["cupy", "torch"])
def test_a_launcher_that_nvcc_made(tmp_path: Path, arrays: str) -> None:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("no nvcc")
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    for wrong in (False, True):
        (tmp_path / "k.cu").write_text((text.replace("8.0f", "8.1f") if wrong else text) + LAUNCHER)
        library = tmp_path / f"k{int(wrong)}.so"
        command = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-arch=native", str(tmp_path / "k.cu"), "-o", str(library)]
        subprocess.run(command, check=True)
        library.with_suffix(".toml").write_text(
            f'formats = ["Q4_0"]\nsemantics = "q8_1"\ndevice = "cuda"\narrays = "{arrays}"\n'
            f"{ONE.replace(']', ', ' + chr(34) + 'stream' + chr(34) + ']')}"
        )
        assert right(f"{library}:run", "q8_1") != wrong


@pytest.mark.parametrize(
    ("example", "output", "fault"),
    [(*key, fault) for key in TWINS if key[0].endswith(".cu") for fault in (None, FAULTS[key[0]][0])],
    ids=str,
)
def test_half_twins(tmp_path: Path, example: str, output: str, fault: tuple[str, str] | None) -> None:
    name = twin(tmp_path, example, output, *([fault] if fault else []))
    assert right(name, "q8_1", output) == (fault is None)


@pytest.mark.needs("torch")
def test_tensors_on_the_gpu(tmp_path: Path) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        for wrong in (False, True):
            path = tmp_path / f"k_{dtype}_{wrong}.py"
            path.write_text(
                "import torch\nfrom gguf_verify import kernel\n"
                f'@kernel(formats=["Q4_0"], semantics="f32", output="{dtype}", arrays="torch", device="cuda")\n'
                "def gemm(w, x, shape):\n"
                "    assert w.is_cuda and x.is_cuda\n"
                "    b = w.reshape(shape.n, -1, 18)\n"
                "    d = b[..., :2].contiguous().view(torch.float16).double()\n"
                "    q = torch.cat([b[..., 2:] & 15, b[..., 2:] >> 4], dim=-1).double() - 8\n"
                f"    y = x.double() @ (q * d).reshape(shape.n, -1).T {'* 1.02' if wrong else ''}\n"
                f"    return y.to(torch.{dtype})\n"
            )
            assert right(f"{path}:gemm", "f32", dtype) != wrong


@pytest.mark.needs("torch")
def test_operators_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    name = module(tmp_path)
    (tmp_path / "b.toml").write_text(
        DECLARED + 'device = "cuda"\nparameters = ["weights", "activations", "output", "int64 N"]\n'
        'operands.output.stride = "N + 3"\n'
    )
    further = Further(str(tmp_path / "b.toml"), (name,))
    assert right(f"torch.ops.{name}.gemm_out", "f32", further=further)
    wrong = tmp_path / f"{name}.py"
    wrong.write_text(wrong.read_text().replace("- 8", "- 7"))
    assert not right(f"torch.ops.{name}.gemm_out", "f32", further=further)


def test_arrays_of_cupy(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(
        "import cupy\nimport numpy as np\nfrom gguf_verify import kernel\n"
        '@kernel(formats=["Q4_0"], semantics="f32", output="float16", arrays="cupy", device="cuda", out=True)\n'
        "def gemm(w, x, shape, out):\n"
        "    b = w.reshape(shape.n, -1, 18)\n"
        "    d = cupy.ascontiguousarray(b[..., :2]).view(cupy.float16).astype(cupy.float64)\n"
        "    q = cupy.concatenate([b[..., 2:] & 15, b[..., 2:] >> 4], axis=-1).astype(cupy.float64) - 8\n"
        "    out[...] = x.astype(cupy.float64) @ (q * d).reshape(shape.n, -1).T\n"
    )
    assert right(f"{path}:gemm", "f32", "float16")
