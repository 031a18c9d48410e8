"""What nvcc is given with a kernel that is not this project's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.hosts import nvcc
from gguf_verify.hosts.author_cubin import OF_NVCC, author_cubin
from gguf_verify.hosts.compilation import ForeignUnit
from gguf_verify.hosts.foreign_sources import foreign_source

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
    cubin, names = nvcc.compile_cubin(ForeignUnit(tmp_path, "kernel.cu", ("kernel<OF>",), defines), "90")
    assert cubin[:4] == b"\x7fELF"
    assert "kernelILi3E" in names["kernel<OF>"]


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("include", ['#include "{}"', '#define OTHER "{}"\n#include OTHER'])
def test_what_it_reads_is_noted(tmp_path: Path, include: str) -> None:
    """Also where the source does not say which file it is: nvcc lists it."""
    root, header = tmp_path / "source", tmp_path / "other.h"
    root.mkdir()
    header.write_text("#define MORE(k) (k)\n")
    source = SOURCE.replace("template", "template<int, Function> __global__ void kernel(float*);\ntemplate", 1)
    (root / OF_NVCC).write_text(f"{include.format(header)}\n{source}")
    with foreign_source(root, 300.0, (header,)) as noted:
        author_cubin(ForeignUnit(root, OF_NVCC, ("kernel<3, twice>",)), "90", by="nvcc")
    assert str(header) in noted.opened
    assert not [path for path in noted.opened if path.startswith(("what ", f"{root}/", str(nvcc.include_folder())))]
