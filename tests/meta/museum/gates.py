"""What the checks that kernels are usually tested by say of a kernel of the museum, on ordinary data and one shape."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import FORMATS
from gguf_verify.kernels.foreign.child import Fault, PythonRunner, import_kernel
from gguf_verify.kernels.foreign.cuda import CudaRunner, CudaSource
from gguf_verify.llama import Llama
from gguf_verify.measure.mutation.other_checks import passed_by
from gguf_verify.semantics import SEMANTICS, product
from gguf_verify.support.errors import HarnessError

#: Tokens, rows and columns of the two products that are checked.
TOKENS, N, K = (16, 48), 256, 256
#: The checks, as `passed_by` names them. Each compares with the exact product of the kernel's own definition, which is
#: more than most tests of kernels have, and lets a right kernel pass.
GATES = {"allclose": "allclose definition", "NMSE": "nmse definition", "cosine": "cosine definition"}


def _once(runner: CudaRunner | PythonRunner, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """One call, without the second one that would show what is not deterministic: other checks make one."""
    if isinstance(runner, PythonRunner):
        return runner._once(x)
    return runner._once(x, runner._host, runner._kernels[runner._fmt], runner._weights)


def weights(fmt: str, llama: Llama) -> np.ndarray:
    """Gaussian weights quantized by llama.cpp, uint8[N, row bytes]."""
    w = (np.random.default_rng(1).standard_normal((N, K)) * 0.05).astype(np.float32)
    return llama.quantize(FORMATS[fmt].type_id, w, np.ones(K, np.float32)).reshape(N, -1)


def passed(kernel: Path, fmt: str, rows: np.ndarray) -> dict[str, bool]:
    """Whether each of GATES lets the kernel FILE:gemm pass, which runs once for each of TOKENS in a process of its own.
    None does if that dies, or if CUDA would refuse the launch."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            return pool.submit(_passed, kernel, fmt, rows).result(60)
        except BrokenProcessPool:
            return dict.fromkeys(GATES, False)


def _passed(kernel: Path, fmt: str, rows: np.ndarray) -> dict[str, bool]:
    source = CudaSource(kernel, "gemm") if kernel.suffix == ".cu" else None
    try:
        runner: CudaRunner | PythonRunner
        if source is not None:
            runner = CudaRunner(source.root, "gemm", source.declared, "cpu", 1)
        else:
            runner = PythonRunner(import_kernel(kernel, "gemm"))
        semantics = SEMANTICS[runner.declaration.semantics]
        runner.load(fmt, rows, N, K)
        found = dict.fromkeys(GATES, True)
        for m in TOKENS:
            x = np.random.default_rng(m).standard_normal((m, K)).astype(np.float32)
            encoded = semantics.bytes_of(x)
            taken = x.view(np.uint8) if runner.declaration.given == "float32" else encoded
            exact = product(semantics, FORMATS[fmt], rows, encoded).exact
            try:
                said = passed_by(_once(runner, taken), exact, exact)
            except (Fault, HarnessError):
                return dict.fromkeys(GATES, False)
            found = {gate: found[gate] and said[name] for gate, name in GATES.items()}
        return found
    finally:
        if source is not None:
            source.close()
