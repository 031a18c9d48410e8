"""The recipe "add a kernel" of docs/extending.md: a spec and a source are listed and change a verdict."""

from __future__ import annotations

from pathlib import Path

from tests.meta.test_recipes_one_file import MODEL, ONE_MATRIX
from tests.support.project_copy import ProjectCopy

SPEC = '''"""f32_pairs: a kernel of a test. Even and odd blocks are added apart, so it declares no order."""

from __future__ import annotations

from ..spec import KernelSpec

STEP = KernelSpec(
    "f32_pairs", "gemm/f32/99_pairs.cu", "f32", None, "a kernel of a test",
    fastest=lambda problem: not problem.on_gpu and problem.m > 8,
)
'''

SOURCE = """// 99 pairs: as 01, with a sum of even blocks and one of odd blocks.
#include "formats/format.cuh"

extern "C" __global__ void gemm(const FORMAT* __restrict__ w, const float* __restrict__ x, float* __restrict__ y,
                                int64_t M, int64_t N, int64_t K) {
    const int64_t nb = K / FORMAT::VALUES, stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += stride) {
        const FORMAT* wb = w + i % N * nb;
        const float* xb = x + i / N * K;
        float acc[2] = {0.0f, 0.0f};
        for (int64_t b = 0; b < nb; ++b) {
            for (int s = 0; s < FORMAT::VALUES / QK; ++s, xb += QK) {
                int8_t q[QK];
                wb[b].unpack(s, q);
                for (int k = 0; k < QK; ++k) {
                    const float d = wb[b].scale(s, k / 16), m = wb[b].minimum(s, k / 16);
                    acc[b & 1] += xb[k] * FORMAT::value(d, m, q[k]);
                }
            }
        }
        y[i] = acc[0] + acc[1];
    }
}
"""

FILES = ("harness/gguf_verify/kernels/ladder/f32_pairs.py", "kernels/gemm/f32/99_pairs.cu")
RUN = (MODEL, "--host", "cpu", "--rungs", "blocks,layers", *ONE_MATRIX)


def test_a_new_kernel_is_one_spec_and_one_source(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    before = copy.cli(*RUN, "--kernel", "f32_pairs")
    assert (before.returncode, "no kernel is called 'f32_pairs'" in before.stderr) == (2, True), before.stderr
    assert "f32_pairs" not in copy.cli(*RUN, "--kernel", "f32").stdout

    for path, text in zip(FILES, (SPEC, SOURCE), strict=True):
        copy.add(path, text)
    listed = copy.cli("explain", "f32_pairs").stdout
    assert "f32_pairs" in listed
    assert "A kernel of a test." in listed
    in_family = copy.cli(*RUN, "--kernel", "f32")
    assert in_family.returncode == 0, in_family.stdout + in_family.stderr
    assert "f32_pairs" in in_family.stdout

    (copy.root / FILES[1]).write_text(SOURCE.replace("y[i] = acc[0] + acc[1]", "y[i] = acc[0]"))
    wrong = copy.cli(*RUN, "--kernel", "f32_pairs")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "blk.0.attn_k.weight" in wrong.stdout
