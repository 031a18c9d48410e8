"""The products of single blocks, computed together, are those of a call for each."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_blocks, drawn
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import each_block, product
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.sums import Product

N, BLOCKS, M = 40, 5, 3
OF_BLOCKS = [name for name, s in SEMANTICS.items() if s.encoding.quantizes]


def same(made: Product, other: Product) -> None:
    for name in ("exact", "bound", "spread"):
        np.testing.assert_array_equal(getattr(made, name), getattr(other, name), name)
    if other.ordered is not None:
        assert made.ordered is not None
        np.testing.assert_array_equal(made.ordered.view(np.uint32), other.ordered.view(np.uint32))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", OF_BLOCKS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ2_XXS", "MXFP4"])
def test_all_blocks_at_once(kind: str, name: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt, semantics = FORMATS[kind], SEMANTICS[name]
    order = ASCENDING if ordered and semantics.order_known else None
    try:
        semantics.uses_sum(fmt)
    except ValueError:
        pytest.skip("not defined")
    w = any_blocks(fmt, N * BLOCKS, 1).reshape(N, -1)
    x = drawn((M, BLOCKS * fmt.unit), np.ones((1, 1), np.float32), 2)
    with np.errstate(all="ignore"):
        try:
            made = each_block(semantics, fmt, w, semantics.bytes_of(x), order, 2)
        except ValueError:
            pytest.skip("K is no multiple of the activations' blocks")
        if made is None:
            pytest.skip("its activations do not come by blocks of weights")
        assert len(made) == BLOCKS
        for b, of_block in enumerate(made):
            column = np.ascontiguousarray(w[:, b * fmt.block_bytes : (b + 1) * fmt.block_bytes])
            part = np.ascontiguousarray(x[:, b * fmt.unit : (b + 1) * fmt.unit])
            same(of_block, product(semantics, fmt, column, semantics.bytes_of(part), order))
