"""The kernels that take packed weights under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gguf_verify.formats import BlockFormat
from gguf_verify.support.paths import kernel_root
from tests.support.packed_kernels import OF_FIVE, PACKED
from tests.support.tools import altered_kernel, under_sanitizers

SANITIZED = """
import ctypes, mmap, sys
from pathlib import Path
from gguf_verify.formats import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from tests.support.packed_kernels import PACKED, SHAPES, check
from tests.support.kernel_inputs import SANITIZERS
host = CpuHost(1, SANITIZERS)
for name in sys.argv[3:] or PACKED:
    kernel = ShippedKernel(KERNELS[name], host, Path(sys.argv[1]))
    for m, n, blocks in SHAPES[1:4]:
        check(CpuHost(1), name, FORMATS[sys.argv[2]], m, n, blocks, kernel)
# The kernels' stacks are the process's memory again: no mark of theirs may stay where it maps memory next.
rooms = [mmap.mmap(-1, 516 << 10) for _ in range(100)]
for room in rooms:
    ctypes.memset((ctypes.c_char * len(room)).from_buffer(room), 0, len(room))
print("clean")
"""


#: Sources that include 07 are represented by it in `make test`.
@pytest.mark.parametrize("name", PACKED)
@OF_FIVE
def test_clean_under_sanitizers(fmt: BlockFormat, name: str) -> None:
    done = under_sanitizers(SANITIZED, str(kernel_root()), fmt.name, name)
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
    ],
)  # fmt: skip
def test_sanitizers_see(tmp_path: Path, name: str, file: str, old: str, new: str) -> None:
    done = under_sanitizers(SANITIZED, str(altered_kernel(tmp_path, name, file, old, new).root), "Q5_1", name)
    assert done.returncode != 0
    # past the allocation, which may end beside a stack's guards
    assert re.search("AddressSanitizer: (heap|stack)-buffer-(over|under)flow", done.stderr), done.stderr[-2000:]
