"""X-rays beside llama.cpp's values of the same blocks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gguf_verify.audit.places import WINDOW, find_block
from gguf_verify.audit.xray import llama_values, xray
from gguf_verify.formats.tensor_types import NO_TO_FLOAT, tensor_type
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.support.errors import UsageError
from tests.support.blocks_by_hand import ALL, ELEMENTS, Make, shown
from tests.support.tools import FIXTURES

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("file", ["tiny-Q5_1.gguf", "tiny-Q4_0.gguf", "tiny-F16.gguf"])
def test_real_blocks(file: str, llama: Llama) -> None:
    with open_model(FIXTURES / file) as model:
        raw = (FIXTURES / file).read_bytes()
        for at in range(0, model.size, 99_991):
            try:
                tensor, row, block = find_block(model, offset=at)
            except UsageError:
                continue
            x = xray(tensor, row, block, llama_values(llama, tensor, row, block), asked=at)
            assert x.offset <= at < x.stop
            assert x.raw == raw[x.offset : x.stop]
            assert x.differs == ()
            assert (x.theirs is None) == (tensor.type.name == "F32")
            shown(x)


def test_llama_converts_the_listed_types(llama: Llama, make: Make) -> None:
    """And refuses a conversion that it does not have: calling it would kill the process."""
    types = llama.versions()["types"]
    assert set(NO_TO_FLOAT) <= {tensor_type(t).name for t in types}
    for type_id in types:
        kind = tensor_type(type_id)
        n = kind.block_size if kind.quantized else WINDOW
        data = bytes(kind.block_bytes * n // kind.block_size)
        tensor = make(type_id, [n], data)
        values = llama_values(llama, tensor, 0, 0)
        x = xray(tensor, 0, 0, values)
        text = shown(x)
        if kind.name in NO_TO_FLOAT:
            assert values is None
            with pytest.raises(LlamaRefused, match="no conversion"):
                llama.to_float(type_id, np.frombuffer(data, np.uint8), n)
            assert f"no conversion from {kind.name}" in text
        else:
            assert values.shape == (n,)
            assert x.theirs == tuple(values.tolist())
        if kind.name in ALL or kind.name in ELEMENTS:
            assert len(x.ours) == n
        else:
            assert x.ours is None
            assert f"our decoder does not support {kind.name}" in text
            assert "00 00 00" in text
        if x.theirs is not None:
            assert f" {n - 1} " in text


def test_256_values_fit(llama: Llama, make: Make) -> None:
    data = np.random.default_rng(8).integers(0, 256, 210, dtype=np.uint8).tobytes()
    tensor = make(14, [256], data)
    text = shown(xray(tensor, 0, 0, llama_values(llama, tensor, 0, 0)))
    for i in range(256):
        assert re.search(rf"(?m)(^|│) *{i} +\S+", text), i
