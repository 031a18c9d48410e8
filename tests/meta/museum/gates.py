"""The results of common checks (allclose, NMSE, cosine) for a kernel of the museum, on ordinary data and one shape."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign import products
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.support.errors import KernelFault
from tools.measure.mutation.recording import passed_by

#: Tokens, rows and columns of the two products that are checked.
TOKENS, N, K = (16, 48), 256, 256
#: The checks and their names in `passed_by`. Each compares with the exact product of the kernel's own definition, which
#: is a better reference than most kernel tests have, and lets a correct kernel pass.
GATES = {"allclose": "allclose definition", "NMSE": "nmse definition", "cosine": "cosine definition"}


def weights(fmt: str, llama: Llama) -> np.ndarray:
    """Gaussian weights quantized by llama.cpp, uint8[N, row bytes]."""
    w = (np.random.default_rng(1).standard_normal((N, K)) * 0.05).astype(np.float32)
    return llama.quantize(FORMATS[fmt].type_id, w, np.ones(K, np.float32)).reshape(N, -1)


def passed(kernel: Path, fmt: str, rows: np.ndarray) -> dict[str, bool]:
    """Return whether each of GATES lets the kernel FILE:gemm pass.

    The kernel runs in another process, once for each of TOKENS. If that process dies, or CUDA would reject the launch,
    no gate lets it pass. Such checks call a kernel once, so `same_bits`, which compares repeated calls, is disabled.
    """
    opened = open_foreign(f"{kernel}:gemm", CpuHost(1))
    try:
        with mock.patch.object(products, "same_bits"):
            semantics = SEMANTICS[opened.semantics]
            uploaded = opened.upload(FORMATS[fmt], rows)
            found = dict.fromkeys(GATES, True)
            for m in TOKENS:
                x = np.random.default_rng(m).standard_normal((m, K)).astype(np.float32)
                exact = product(semantics, FORMATS[fmt], rows, semantics.bytes_of(x)).exact
                try:
                    said = passed_by(opened.product(uploaded, x), exact, exact)
                except KernelFault:
                    return dict.fromkeys(GATES, False)
                found = {gate: found[gate] and said[name] for gate, name in GATES.items()}
            return found
    finally:
        opened.close()
