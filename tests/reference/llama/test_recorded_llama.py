"""Answers of llama.cpp that tests replay: only those to the same questions about the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from gguf_verify.llama.gemms import Gemm
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.support import protocol
from tests.support import recorded_llama
from tests.support.recorded_llama import RecordedLlama, Recordings
from tests.support.tools import FIXTURES, patched_block

Q4_0, Q5_1 = FIXTURES / "tiny-Q4_0.gguf", FIXTURES / "tiny-Q5_1.gguf"


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> Recordings:
    fresh = Recordings()
    monkeypatch.setattr(RecordedLlama, "recordings", fresh)
    return fresh


def captured(llama: RecordedLlama, path: Path) -> list[bytes]:
    """The outputs of a prompt's products."""
    llama.model.open(path, 1)
    llama.model.make_context(8)
    tokens = llama.model.tokenize("The")
    return [each.y.tobytes() for each in llama.model.capture(tokens) if isinstance(each, Gemm)]


def test_a_recorded_answer_starts_no_process() -> None:
    outputs = []
    for _ in range(2):
        with RecordedLlama() as llama:
            outputs.append(captured(llama, Q4_0))
    assert not llama.started
    assert outputs[0] == outputs[1] != []


def test_a_new_question_starts_a_process_that_gets_the_earlier_ones() -> None:
    with RecordedLlama() as llama:
        captured(llama, Q4_0)
        expected = llama.model.generate(llama.model.tokenize("The"), 2)
    with RecordedLlama() as llama:
        captured(llama, Q4_0)
        assert not llama.started
        assert llama.model.generate(llama.model.tokenize("The"), 2) == expected
        tokens = llama.model.tokenize("Once")
        assert llama.started
        assert llama.model.evaluate(tokens).logits.shape[0] == len(tokens)


def test_a_process_is_left_to_the_next_one_that_needs_one() -> None:
    """Nothing of the model before stays in its answers. A process that was abandoned is left to no one."""
    with RecordedLlama() as llama:
        captured(llama, Q4_0)
        expected = llama.model.generate(llama.model.tokenize("The"), 2)
        pid = llama.pid
    with RecordedLlama() as llama:
        assert captured(llama, Q5_1) != []
        assert llama.pid == pid
    with RecordedLlama() as llama:
        llama.model.open(Q4_0, 1)
        llama.model.make_context(8, 4)  # not asked before
        assert llama.started
        assert llama.pid == pid
        assert llama.model.generate(llama.model.tokenize("The"), 2) == expected
        llama.abandon()
    with RecordedLlama() as llama:
        llama.model.open(Q5_1, 1)
        assert llama.pid != pid


def test_another_content_of_the_same_name_is_another_question(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Q4_0.read_bytes())
    with RecordedLlama() as llama:
        before = captured(llama, path)
    patched_block(Q4_0, path, "blk.0.attn_q.weight", 0, 0, 2, b"\x12")
    with RecordedLlama() as llama:
        assert captured(llama, path) != before


def test_a_refusal_is_not_recorded() -> None:
    for _ in range(2):
        with RecordedLlama() as llama:
            with pytest.raises(LlamaRefused):
                llama.to_float(0, np.zeros(4, np.uint8), 1)
            assert llama.started


def test_a_recording_that_is_wrong_fails(recordings: Recordings) -> None:
    with RecordedLlama() as llama:
        captured(llama, Q4_0)
    for key in recordings.known():
        answer = recordings.find(key)
        recordings.keep(key, replace(answer, arrays=[each + 1 for each in answer.arrays]))
    with RecordedLlama() as llama, pytest.raises(AssertionError, match="otherwise than it was recorded"):
        captured(llama, Q4_0)


def test_a_capture_that_was_left() -> None:
    """Products that llama.cpp computed ahead may follow the stop, or not."""
    for again in (False, True):
        with RecordedLlama() as llama:
            llama.model.open(Q4_0, 1)
            llama.model.make_context(8)
            tokens = llama.model.tokenize("The")
            capture = llama.model.capture(tokens)
            next(capture)
            capture.close()  # type: ignore[attr-defined]
            assert llama.started is not again
            assert llama.model.evaluate(tokens, first=int(again)).logits.shape[0] == len(tokens) - again


def test_answers_after_an_interrupt_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = protocol.receive

    def interrupted(*given: Any, **options: Any) -> NoReturn:
        monkeypatch.setattr(protocol, "receive", receive)
        raise KeyboardInterrupt

    with RecordedLlama() as llama:
        llama.model.open(Q4_0, 1)
        llama.model.make_context(8)
        tokens = llama.model.tokenize("The")
        monkeypatch.setattr(protocol, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llama.model.evaluate(tokens)
        known = RecordedLlama.recordings.known()
        llama.receive("evaluate")
        assert RecordedLlama.recordings.known() == known


def test_old_recordings_are_dropped() -> None:
    some = Recordings(room=100)
    for number in range(4):
        some.keep(bytes([number]), recorded_llama.Answer.of({}, [np.zeros(40, np.uint8)]))
    assert [some.find(bytes([number])) is not None for number in range(4)] == [False, False, True, True]
