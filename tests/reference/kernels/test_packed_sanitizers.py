"""The kernels that take packed or interleaved weights under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gguf_verify.support.paths import kernel_root
from tests.support.packed_kernels import FIVE, PACKED
from tests.support.tools import altered_kernel, under_sanitizers

SANITIZED = """
import ctypes, mmap, sys
from pathlib import Path
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from tests.support.packed_kernels import SHAPES, check
from tests.support.kernel_inputs import SANITIZERS
host = CpuHost(1, SANITIZERS)
root, fmt, name = sys.argv[1:]
kernel = ShippedKernel(KERNELS[name], host, Path(root))
for m, n, blocks in [(3, 33, 76)] if name == "q8_1_decode" else SHAPES[1:4]:
    check(CpuHost(1), name, FORMATS[fmt], m, n, blocks, kernel)
# The kernels' stacks are the process's memory again: no mark of theirs may stay where it maps memory next.
rooms = [mmap.mmap(-1, 516 << 10) for _ in range(100)]
for room in rooms:
    ctypes.memset((ctypes.c_char * len(room)).from_buffer(room), 0, len(room))
print("clean")
"""


#: Sources that include 07 are represented by it in `make test`.
@pytest.mark.parametrize(
    ("kind", "name"), [*((fmt.name, name) for name in PACKED for fmt in FIVE), ("MXFP4", "q8_1_decode")]
)
def test_clean_under_sanitizers(kind: str, name: str) -> None:
    done = under_sanitizers(SANITIZED, str(kernel_root()), kind, name)
    assert done.stdout == "clean\n", done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "(x, tokens * count, place", "(x, TOKENS * count, place",
                     id="a token past the last"),
        pytest.param("q8_1_gemv", "gemm/q8_1/08_gemv.cu", "} else if (m < M) {", "} else {",
                     id="a token past the last of a tile"),
        pytest.param("q8_1_wgmma", "pack/activations.cu", "from < M && stage", "stage",
                     id="a row past the activations"),
        pytest.param("q8_1_wgmma", "pack/weights.cu", "row < N && slice", "slice", id="a row past the weights"),
        pytest.param("q8_1_decode", "gemm/q8_1/10_decode.cu", "(x, share.tokens * count, place",
                     "(x, TOKENS * count, place", id="a token past the last of few"),
        pytest.param("q8_1_decode", "pack/interleaved.cu", "row < N ? from[at + j] : 0", "from[at + j]",
                     id="a row past the interleaved weights"),
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    kind = "MXFP4" if name == "q8_1_decode" else "Q5_1"
    done = under_sanitizers(SANITIZED, str(altered_kernel(tmp_path, name, file, old, new).root), kind, name)
    assert done.returncode != 0
    # past the allocation, which may end beside a stack's guards
    assert re.search("AddressSanitizer: (heap|stack)-buffer-(over|under)flow", done.stderr), done.stderr[-2000:]
