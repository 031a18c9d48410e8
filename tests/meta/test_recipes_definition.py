"""The recipe "add a definition" of docs/extending.md: one file is accepted in a declaration and changes a verdict."""

from __future__ import annotations

from pathlib import Path

from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES

FILE = "harness/gguf_verify/semantics/definitions/q8_1_integers.py"
#: Like `q8_1`, but the offset is subtracted from the codes: s is not used.
DEFINITION = '''"""`q8_1_integers`: a definition of a test."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_1 import RAW_Q8_1
from ..terms.integers import INTEGERS

Q8_1_INTEGERS = Semantics(
    name="q8_1_integers",
    title="d_w·d_a·Σ (q_w - offset)·q_a",
    source="a kernel of a test",
    encoding=RAW_Q8_1,
    term=INTEGERS,
    any_format=True,
)
'''

KERNEL = """
import numpy as np
from gguf_verify import kernel

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])

@kernel(formats=["Q4_0"], semantics=SEMANTICS)
def gemm(weights, activations, shape):
    w, x = weights.view(Q4_0), activations.view(Q8_1)
    codes = np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1).astype(np.float32) - 8
    products = np.einsum("mbj,nbj->mnb", x["qs"].astype(np.float32), codes)
    return np.einsum("mnb,mb,nb->mn", products, x["d"].astype(np.float32), w["d"].astype(np.float32))
"""

RUN = (FIXTURES / "tiny-Q4_0.gguf", "--rungs", "blocks", "--tensor", r"blk\.0\.attn_k\.", "--probes", "brief")


def test_a_definition_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")
    kernels = {}
    for name in ("q8_1", "q8_1_integers"):
        kernels[name] = tmp_path / f"{name}.py"
        kernels[name].write_text(KERNEL.replace("SEMANTICS", repr(name)))
    as_q8_1, as_integers = (("--kernel", f"{path}:gemm") for path in kernels.values())

    wrong = copy.cli(*RUN, *as_q8_1)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "q8_1_integers" not in wrong.stdout
    unknown = copy.cli(*RUN, *as_integers)
    assert unknown.returncode == 2, unknown.stdout + unknown.stderr
    assert "semantics 'q8_1_integers' is not one of f32, f32_apart, q8_1, " in unknown.stderr

    copy.add(FILE, DEFINITION)
    named = copy.cli(*RUN, *as_q8_1)
    assert named.returncode == 1, named.stdout + named.stderr
    assert "q8_1_integers" in named.stdout  # the diagnosis knows what the kernel computes
    right = copy.cli(*RUN, *as_integers)
    assert right.returncode == 0, right.stdout + right.stderr
