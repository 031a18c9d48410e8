"""The graph goes on while a product is judged, by a bounded number of products; a capture that is left early leaves
llama.cpp's process ready for the next call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.llama import child as child_module
from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.library import Llama
from gguf_verify.llama.model import _AHEAD
from tests.support.graphs import dense_llama
from tests.support.tools import FIXTURES

TOKENS = [1, 20, 30, 40]
#: Seconds in which nothing may come. Too few of them make a test pass, never fail.
A_WHILE = 0.3
PATIENCE = 60.0


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    with Llama() as process:
        process.model.open(FIXTURES / "tiny-Q4_0.gguf", 1)
        process.model.make_context(16)
        yield process


def told(llama: Llama) -> str:
    """The name of the next product that llama.cpp tells of."""
    header, _ = llama.receive("evaluate")
    assert header["event"] == "gemm"
    return str(header["node"])


def test_it_computes_a_bounded_number_of_products_ahead(llama: Llama) -> None:
    names = [gemm.node for gemm in llama.model.capture(TOKENS) if isinstance(gemm, Gemm)]
    options = {"activations": [], "checksum": False, "ahead": _AHEAD}
    llama.send("evaluate", {}, {"tokens": TOKENS, "mode": "capture", "options": options})
    seen = [told(llama) for _ in range(1 + _AHEAD)]  # none of them was answered
    for _ in range(3):
        assert not llama._link.poll(A_WHILE)
        llama.reply("evaluate", {})
        seen.append(told(llama))
    assert seen == names[: len(seen)]
    llama.reply("evaluate", {"stop": True})
    header, _ = llama.receive("evaluate")
    assert header == {"refused": "stopped"}
    assert llama.model.evaluate(TOKENS).logits.shape == (4, 512)


def test_a_capture_asks_for_it(llama: Llama) -> None:
    """While the first product is held, the next ones come."""
    capture = llama.model.capture(TOKENS)
    next(capture)
    assert llama._link.poll(PATIENCE)
    told(llama)
    assert llama._link.poll(PATIENCE)
    llama.reply("evaluate", {"stop": True})
    while "event" in llama.receive("evaluate")[0]:
        pass


def test_a_graft_waits(llama: Llama) -> None:
    """No node behind a product is computed before the product's output is replaced."""
    seen = []

    def replace(gemm: Gemm) -> np.ndarray | None:
        seen.append(gemm.node)
        if len(seen) < 3:
            assert not llama._link.poll(A_WHILE)
        return None

    llama.model.graft(TOKENS, replace)
    assert len(seen) == 22


@pytest.mark.parametrize("products", [1, 2, 3, 4, 20, 21, 22])
def test_leaving_it_anywhere(llama: Llama, products: int) -> None:
    expected = llama.model.evaluate(TOKENS).logits
    capture = llama.model.capture(TOKENS, (8,))
    for _ in range(products):
        assert isinstance(next(capture), Gemm)
    capture.close()  # type: ignore[attr-defined]
    assert (llama.model.evaluate(TOKENS).logits == expected).all()


def test_an_interrupt(llama: Llama) -> None:
    expected = llama.model.evaluate(TOKENS).logits

    def interrupted() -> None:
        for i, _ in enumerate(llama.model.capture(TOKENS)):
            if i == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (llama.model.evaluate(TOKENS).logits == expected).all()


def products(path: Path) -> list[dict[str, Any]]:
    """All that a capture and a graft tell of a model, and a product of blocks."""
    with Llama() as process:
        process.model.open(path, 1)
        process.model.make_context(64)
        tokens = list(range(1, 60))
        out = [asdict(each) for each in process.model.capture(tokens, (8,), checksum=True)]
        out.append(asdict(process.model.graft(tokens, lambda gemm: np.float32(0.5) * gemm.y)))
        w = process.quantize(2, np.random.default_rng(1).standard_normal((512, 512), np.float32))
        out.append({"blocks": process.block_products(2, w, np.ones((3, 512), np.float32))})
        return out


def test_the_same_through_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no shared memory, the same bytes go through the socket; and where it has room for one."""
    with Llama() as process:
        path = dense_llama(process, tmp_path / "m.gguf", 2)
    expected = products(path)
    assert len(expected) == 2 * 7 + 1 + 1 + 2
    assert expected[0]["x"].nbytes > 1 << 15
    for size in (None, 1 << 17):
        if size is None:
            monkeypatch.setattr(child_module, "_lane_files", lambda: ())
        else:
            monkeypatch.undo()
            monkeypatch.setattr(child_module, "_lane_size", lambda nbytes=size: nbytes)
        for one, other in zip(expected, products(path), strict=True):
            assert one.keys() == other.keys()
            for key in one:
                assert same(one[key], other[key]), (size, key)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


def test_large_arrays_do_not_pass_the_socket(tmp_path: Path) -> None:
    """The memory beside it was written to."""
    with Llama() as process:
        assert process._child.lanes is not None
        out, back = process._child.lanes
        x = np.ones((64, 4096), np.float32)
        w = process.quantize(2, x)
        process.multiply(2, w, x)
        for lane in (out, back):
            raw = np.empty(1 << 12, np.uint8)
            lane.get(0, raw)
            assert raw.any()
