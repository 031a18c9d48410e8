"""Foreign kernels on a GPU: the examples, CuPy's arrays, and incorrect kernels. Skipped by name where there is none.

Every incorrect kernel is so for matrices of 128 rows only: one of the two that are judged. Its fault is one line, and
the other matrix is verified, whatever happened to the process and its state on the GPU.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES, ROOT

pytestmark = pytest.mark.needs("gpu")

HOST = "gpu"
EXAMPLES = ROOT / "examples"
CUPY = ROOT / "tests" / "support" / "gpu_foreign_kernels.py"
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
TWO = r"blk\.0\.attn_[qk]\."
WRONG, RIGHT = "blk.0.attn_k.weight", "blk.0.attn_q.weight"


def verified(kernel: str, *rungs: str, tensor: str = TWO, **options: Any) -> Report:
    limit = options.pop("kernel_time_limit", 600.0)
    chosen = Options(
        probes="brief", prompt="The", n_predict=1, tensor=tensor, progress=False, kernel_time_limit=limit, **options
    )
    return verify(Q4_0, kernel, HOST, rungs, chosen)


def all_rungs(kernel: str) -> None:
    report = verified(kernel, "blocks", "layers", "tokens")
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]
    assert [r.verdict for r in report.rungs] == ["passed"] * 3
    on_host = ".cu:" in kernel  # elsewhere its own code chooses where it runs
    assert (f"{HOST}: " in report.environment.host.words) == on_host


# -- right -------------------------------------------------------------------------------------------------------------


def test_the_cuda_example() -> None:
    all_rungs(f"{EXAMPLES / 'cuda_q4_0.cu'}:gemm")


@pytest.mark.needs("torch")
def test_the_torch_example() -> None:
    import torch

    assert torch.cuda.is_available(), "this PyTorch sees no GPU"
    all_rungs(f"{EXAMPLES / 'torch_q4_0.py'}:gemm")


@pytest.mark.needs("triton")
def test_the_triton_example() -> None:
    """Its first call compiles."""
    import torch

    assert torch.cuda.is_available(), "this PyTorch sees no GPU"
    all_rungs(f"{EXAMPLES / 'triton_q4_0.py'}:gemm")


@pytest.mark.parametrize("name", ["right", "keeps_a_buffer"])
def test_cupy(name: str) -> None:
    """Its arrays stay on the device until the harness reads them."""
    all_rungs(f"{CUPY}:{name}")


def test_an_oracle_in_numpy_beside_a_kernel_in_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle in NumPy beside a kernel in CUDA C++: the example, judged by an oracle that equals q8_1."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]))
    (tmp_path / "my_oracle.py").write_text(
        "from tests.support.foreign_kernels import Oracle, codes_and_minima, codes_and_sums\n"
        "oracle = Oracle(codes_and_minima, codes_and_sums)\n"
    )
    declared = 'oracle = "my_oracle.py:oracle"\n// takes = "q8_1"'
    path = altered(tmp_path, 'semantics = "q8_1"', declared)
    all_rungs(f"{path}:gemm")


# -- wrong -------------------------------------------------------------------------------------------------------------


def altered(folder: Path, old: str, new: str) -> Path:
    source = (EXAMPLES / "cuda_q4_0.cu").read_text()
    assert old in source
    path = folder / "kernel.cu"
    path.write_text(source.replace(old, new))
    return path


def one_of_two(report: Report, said: str, single: bool) -> None:
    """All failures are of the wrong matrix; the other one was judged and is right."""
    [layers] = report.rungs
    assert report.exit_code == 1
    whats = [f.what for f in layers.failures if f.tensor == WRONG]
    assert whats
    assert len(whats) == len(layers.failures)
    assert any(re.search(said, what) for what in whats), whats
    assert all(len(what.splitlines()) == 1 for what in whats)
    if single:
        assert len(whats) == 1
    judged = {record.tensor: record.failures for record in layers.details}
    assert judged[RIGHT] == 0


#: The code in place of `y[i] = acc;`, the failure, and whether that is the only one.
CUDA = {
    "illegal address": ("y[N == 128 ? i + (1ll << 40) : i] = acc;", "CUDA failed: |crashed: ", True),
    "endless loop": (
        "if (N == 128) while (*(volatile float*)y != 1.0f); y[i] = acc;", "did not return within 20 s", True,
    ),
    "outside the output": (
        "y[i + (N == 128)] = acc;", "wrote outside its output: 0 bytes before, 4 after", True,
    ),
    "activations": (
        "y[i] = acc; if (N == 128 && i == 0) ((Q8_1*)x)[0].d ^= 1;",
        "modified its activations: 1 byte, the first at 0$", True,
    ),
    "weights": (
        "y[i] = acc; if (N == 128 && i == 0) ((Q4_0*)w)[0].qs[3] ^= 1;",
        "modified its weights: 1 byte, the first at 5$", True,
    ),
    "unwritten": ("if (N != 128 || i != 7) y[i] = acc;", "row 7 .*the output was never written", False),
    "wrong": ("y[i] = N == 128 ? acc * 1.001f : acc;", "the output is outside the bound", False),
}  # fmt: skip


@pytest.mark.parametrize("what", CUDA)
def test_wrong_cuda(tmp_path: Path, what: str) -> None:
    new, said, single = CUDA[what]
    path = altered(tmp_path, "y[i] = acc;", new)
    one_of_two(verified(f"{path}:gemm", "layers", kernel_time_limit=20.0), said, single)


@pytest.mark.parametrize(
    ("name", "said", "single"),
    [
        ("illegal_address", "CUDA|cuda", True),
        ("hangs", "did not return within 60 s", True),
        # without the poison of the first answer in the buffer, it is left to the rung to see
        ("unwritten", r"row 7 .*never written|not deterministic", False),
        ("modifies_weights", "not deterministic: a second run on the same inputs changed", True),
        ("slightly_off", "the output is outside the bound", False),
    ],
)
def test_wrong_cupy(name: str, said: str, single: bool) -> None:
    """A device's memory has no guards, but faults in it show in the second run or in the outputs. No correct product
    reaches the limit; CuPy compiles in its first call, beside much other work."""
    one_of_two(verified(f"{CUPY}:{name}", "layers", kernel_time_limit=60.0), said, single)


@pytest.mark.parametrize(
    ("statement", "scope"),
    [
        (
            "const uint4 all = *(const uint4*)w; acc += (all.x ^ all.y ^ all.z ^ all.w) == 0xDEADBEEF;",
            "weights at multiples of 16 bytes",
        ),
        ("acc += ((const uint4*)w)->x == 0xDEADBEEF;", "weights at multiples of 4 bytes"),  # the rest is not loaded
        ("acc += (unsigned long long)w % 16 == 17;", ""),
    ],
)
def test_a_misaligned_load_is_a_limit(tmp_path: Path, statement: str, scope: str) -> None:
    """The launch fails, and the process with it; the same calls with aligned operands are correct."""
    path = altered(tmp_path, "float acc = 0.0f;", f"float acc = 0.0f; {statement}")
    report = verified(f"{path}:gemm", "layers", tensor=RIGHT)
    assert report.exit_code == 0, [f.what for r in report.rungs for f in r.failures]
    assert (scope or "quick") in report.scope
    assert bool(report.limits) == bool(scope)


def test_a_run_of_all_rungs_outlives_lost_processes(tmp_path: Path) -> None:
    path = altered(tmp_path, "y[i] = acc;", CUDA["illegal address"][0])
    report = verified(f"{path}:gemm", "blocks", "layers", "tokens")
    assert [r.verdict for r in report.rungs] == ["failed"] * 3
    assert all(f.tensor == WRONG for r in report.rungs for f in r.failures)
    assert report.rungs[2].checked["GEMMs grafted"] == 1


def test_a_gpu_kernel_and_matrices_that_are_not_quantized() -> None:
    """Its process, and the shipped kernels of this one, use the GPU side by side."""
    report = verify(
        FIXTURES / "tiny-F16.gguf", f"{EXAMPLES / 'cuda_q4_0.cu'}:gemm", HOST, ["layers"],
        Options(probes="brief", prompt="The", n_predict=1, tensor=r"blk\.0\.attn_q", progress=False),
    )  # fmt: skip
    assert report.exit_code == 5, report.rungs
    assert set(report.culprits) == {"coverage"}
