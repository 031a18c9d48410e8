"""What nvcc is given with a kernel that is not this project's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.hosts import nvcc
from gguf_verify.hosts.compilation import Author

SOURCE = """
typedef float (*Function)(float);
static __device__ float twice(float x) { return 2 * x; }
template <int K, Function F>
__global__ void kernel(float* y) { *y = F(K + MORE(K)); }
"""


@pytest.mark.needs("nvcc")
def test_macros_hold_commas_and_parameters(tmp_path: Path) -> None:
    """nvcc itself would take what follows a comma in -D for further macros."""
    (tmp_path / "kernel.cu").write_text(SOURCE)
    defines = {"OF": "3, twice", "MORE(k)": "(k + 1)"}
    cubin, names = nvcc.compile_cubin(tmp_path, "kernel.cu", "90", defines, ["kernel<OF>"], Author())
    assert cubin[:4] == b"\x7fELF"
    assert "kernelILi3E" in names["kernel<OF>"]
