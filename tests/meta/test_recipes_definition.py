"""The recipe "add a definition" of docs/extending.md, with its file: a new formula is accepted and changes verdicts."""

from __future__ import annotations

import re
from pathlib import Path

from gguf_verify.semantics.definitions import SEMANTICS
from tests.support.project_copy import ProjectCopy
from tests.support.tools import FIXTURES, ROOT

NAME = "q8_1_half_minimum"
FILE = f"harness/gguf_verify/semantics/definitions/{NAME}.py"

#: Q5_1 by the formula of the page, or with the minimum's part in float32.
KERNEL = """
import numpy as np
from gguf_verify import kernel

Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])

@kernel(formats=["Q5_1"], semantics=SEMANTICS)
def gemm(weights, activations, shape):
    w, x = weights.view(Q5_1), activations.view(Q8_1)
    nibbles = np.concatenate([w["qs"] & 15, w["qs"] >> 4], axis=-1)
    codes = (nibbles + (w["qh"][..., None] >> np.arange(32) & 1) * 16).astype(np.float32)
    q, d = x["qs"].astype(np.float32), x["d"].astype(np.float32)
    products = np.einsum("mbj,nbj->mnb", q, codes) * d[:, None] * w["d"].astype(np.float32)
    sums = (d * q.sum(axis=-1)).astype(np.MINIMUM)
    return (products + sums[:, None] * w["m"].astype(np.MINIMUM)).sum(axis=-1, dtype=np.float32)
"""

RUN = (FIXTURES / "tiny-Q5_1.gguf", "--rungs", "blocks", "--tensor", r"blk\.0\.attn_k\.", "--effort", "quick")


def recipe() -> str:
    """The file that the page shows."""
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page.partition("## A definition\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(text)


def test_a_new_formula_is_one_file(tmp_path: Path) -> None:
    copy = ProjectCopy(tmp_path / "project")

    def verify(declared: str, minimum: str) -> tuple[int, str]:
        path = tmp_path / f"{declared}_{minimum}.py"
        path.write_text(KERNEL.replace("SEMANTICS", repr(declared)).replace("MINIMUM", minimum))
        found = copy.cli(*RUN, "--kernel", f"{path}:gemm")
        return found.returncode, found.stdout + found.stderr

    assert NAME not in SEMANTICS
    copy.add(FILE, recipe())
    code, said = verify(NAME, "float16")
    assert code == 0, said
    code, said = verify(NAME, "float32")
    assert code == 1, said
    code, said = verify("q8_1", "float16")
    assert (code, NAME in said) == (1, True), said  # the diagnosis names the formula that the kernel computes
