"""llama.cpp's own products of structured data pass, of every type, or are suspicions that another product clears."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.rungs.remade import Remade
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.exact_products import Bytes, Floats, activations, real_weights, whole_row
from tests.support.lane_kernels import alternating, of_one_block, with_late_outlier

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")

LENGTHS = [2048, 8192, 32768]


def structured(k: int) -> dict[str, Floats]:
    runs = {f"runs of {run}": alternating(2, k, run) for run in ((4, 16) if k <= 2048 else (1, 4, 8, 16, 32, 64))}
    ones = np.ones((2, k), np.float32)
    return runs | {"ones": ones, "late outlier": with_late_outlier(activations(F32, 2, k).view(np.float32))}


def alarms(llama: Llama, fmt: BlockFormat, w: Bytes, k: int) -> list[str]:
    """The data of which an output of llama.cpp stays wrong."""
    semantics = llama_cpu_semantics(fmt)

    def make(x: Floats) -> tuple[Floats, Bytes]:
        return llama.multiply(fmt.type_id, w, x), semantics.bytes_of(x)

    found = []
    for data, x in structured(k).items():
        judgement = judge(make(x)[0], product(semantics, fmt, w, semantics.bytes_of(x)))
        if judgement.doubtful.any():
            judgement = Remade(semantics, fmt, w, make, x.shape).settled(judgement, 1.0)
        if not judgement.passed:
            found.append(f"{data}: score {judgement.score:.3g}, utilisation {judgement.utilisation:.3g}")
    return found


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_structured_activations(fmt: BlockFormat, k: int, llama: Llama) -> None:
    k = whole_row(fmt, k)
    assert alarms(llama, fmt, real_weights(fmt, 4, k), k) == []


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_rows_of_one_block(fmt: BlockFormat, k: int, llama: Llama) -> None:
    k = whole_row(fmt, k)
    assert alarms(llama, fmt, of_one_block(real_weights(fmt, 4, k), fmt), k) == []
