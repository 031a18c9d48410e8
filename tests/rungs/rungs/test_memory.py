"""A run holds no more of a model with many layers than of one with few: what was judged is dropped."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.library import Llama
from gguf_verify.llama.model import LoadedModel
from gguf_verify.results.options import Options
from gguf_verify.verification import verify
from tests.support.graphs import WIDTH, WIDTH_FF, dense_llama

LAYERS, TOKENS = 3, 16
#: The products of a layer are told from so many on, when all that comes once for each shape is over.
FIRST = 7
#: Bytes of a layer: activations, one float32 for each value of X and of Y; and codes, a byte each.
ACTIVATIONS = 4 * TOKENS * (10 * WIDTH + 4 * WIDTH_FF)
CODES = 4 * WIDTH * WIDTH + 3 * WIDTH * WIDTH_FF
#: Of the records that a rung keeps of a product.
RECORDS = 4096
assert min(ACTIVATIONS, CODES) > 4 * RECORDS * FIRST  # so that what must not grow would be seen


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Llama() as llama:
        return dense_llama(llama, tmp_path_factory.mktemp("dense") / "m.gguf", LAYERS)


@pytest.mark.usefixtures("live")  # recordings are memory too
@pytest.mark.parametrize("rung", ["blocks", "layers", "tokens"])
def test_what_was_judged_is_dropped(rung: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From layer to layer, the memory of what Python and NumPy hold does not grow by the activations of a layer, nor by
    its weights, decoded or as codes."""
    held: list[list[int]] = []
    tapped = LoadedModel._tapped

    def watched(self: LoadedModel, mode: str, *arguments: Any, **named: Any) -> Iterator[Any]:
        held.append([])
        for each in tapped(self, mode, *arguments, **named):
            if not len(held[-1]) % FIRST:
                gc.collect()
            held[-1].append(tracemalloc.get_traced_memory()[0])
            yield each

    monkeypatch.setattr(LoadedModel, "_tapped", watched)
    options = Options(prompt="x" * (TOKENS - 2), probes="brief", n_predict=1, threads=1, progress=False)
    tracemalloc.start()
    try:
        report = verify(path, "f32_naive", CpuHost(1), rungs=[rung], options=options)
    finally:
        tracemalloc.stop()
    assert report.verdict == "verified"
    assert held
    for each in held:
        assert len(each) == LAYERS * FIRST + 2
        # at the same product of the second layer and of the last one
        grown = each[(LAYERS - 1) * FIRST] - each[FIRST]
        assert grown < RECORDS * FIRST * (LAYERS - 2)
