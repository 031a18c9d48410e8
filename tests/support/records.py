"""Results that were never measured, for tests of what only reads results."""

from __future__ import annotations

from gguf_verify.processes.sandbox import Sandbox
from gguf_verify.results.environment import Environment, FileInfo, HostInfo, KernelInfo, ReferenceInfo, Versions
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.products import GemmRecord
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.registry import RUNGS


def rung(name: str) -> RungResult:
    """An empty result of a rung."""
    return RungResult(name=name, question=RUNGS[name].question, substance=RUNGS[name].substance)


def gemm(tensor: str, own: float, failures: int = 0, **fields: object) -> GemmRecord:
    """A GEMM with this worst utilisation on its own activations."""
    usual: dict[str, object] = {
        "matrix": None, "node": "node", "type": "Q4_0", "m": 12, "n": 256, "k": 256, "kernel": "q8_1_dp4a",
        "llama_definition": "q8_0_cpu", "shared": own / 2, "other_m": own / 3, "other_shapes": None, "llama": 0.05,
        "gap_nmse": 1e-4,
    }  # fmt: skip
    return GemmRecord(tensor=tensor, own=own, failures=failures, **(usual | fields))  # type: ignore[arg-type]


def environment(kind: str = "Q4_0", tensors: int = 21) -> Environment:
    """Of a run on a CPU."""
    host = HostInfo(name="cpu", device="a CPU", chosen="as asked for")
    return Environment(
        versions=Versions(
            gguf_verify="0.1.0", python="3.11.7", numpy="2.4.6", gguf="0.19.0", llama_cpp_python="0.3.36",
            llama_cpp="0.5.0", ggml="0.25.3", llama_build="CPU : AVX2 = 1", platform="Linux x86_64",
            byte_order="little",
        ),
        host=host,
        kernel=KernelInfo(
            name="q8_1", definition="q8_1", judged_by=None, verified_means=None, order="ascending k", covers=(kind,),
            element_kernels={}, element_host=host,
        ),
        file=FileInfo(
            path="/models/tiny-Q4_0.gguf", size=1495200, sha256=("2f96a0a1" * 8,), architecture="llama",
            tensor_types={kind: tensors},
        ),
        reference=ReferenceInfo(where="CPU", definitions={kind: "q8_0_cpu"}),
        sandbox=Sandbox(kind="bubblewrap", by="bubblewrap 0.8.0"),
        options=Options(probes="brief", prompt="Once upon a time", n_predict=32, threads=2, seed=0),
    )  # fmt: skip


def failure(tensor: str) -> Failure:
    """An output of a tensor that is outside its bound."""
    return Failure(f"kernel: {tensor} row 17 token 0: the output is outside the bound", tensor, 17, None, 0)
