"""Work that is shared out among threads."""

from __future__ import annotations

import os
import threading
import time
import zlib

import numpy as np
import pytest

from gguf_verify.results.rungs import RungResult
from gguf_verify.support import stages, threads
from gguf_verify.support.checksums import PIECE, crc32
from gguf_verify.support.stages import counted, stage
from gguf_verify.support.threads import ahead, beside, each, is_over
from tests.support.processes import wait_until


def test_results_are_in_order_and_by_other_threads() -> None:
    here, gate = threading.get_ident(), threading.Barrier(3, timeout=60)

    def of(item: int) -> tuple[int, int]:
        gate.wait()  # three at a time, or this breaks
        return item, threading.get_ident()

    made = each(of, range(6), 3)
    assert [item for item, _ in made] == list(range(6))
    assert here not in {by for _, by in made}
    assert len({by for _, by in made}) == 3


def test_one_item_or_one_thread_is_the_callers_own() -> None:
    here = threading.get_ident()
    assert each(lambda _: threading.get_ident(), [1], 4) == [here]
    assert each(lambda _: threading.get_ident(), [1, 2], 1) == [here, here]
    assert each(lambda item: item, [], 4) == []


def test_a_thread_that_shares_out_work_waits_for_no_other() -> None:
    """Otherwise all threads would wait for each other."""
    made = each(lambda a: each(lambda b: (a, b, threading.get_ident()), range(2), 2), range(4), 2)
    assert [[(a, b) for a, b, _ in part] for part in made] == [[(a, 0), (a, 1)] for a in range(4)]
    assert all(len({by for _, _, by in part}) == 1 for part in made)


def test_an_error_is_raised_when_no_other_is_at_work() -> None:
    begun, go, ended = threading.Event(), threading.Event(), []

    def of(item: int) -> None:
        if item == 0:
            assert begun.wait(60)
            go.set()
            raise ValueError("the first")
        begun.set()
        assert go.wait(60)
        ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        each(of, [0, 1], 2)
    assert ended == [1]


def test_a_fork_while_another_thread_begins_a_pool() -> None:
    """As while a file is hashed: the child has the lock, and not the thread that would open it."""
    held = threading.Event()

    def hold() -> None:
        with threads._LOCK:
            held.set()
            time.sleep(0.1)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if threads._LOCK.acquire(timeout=5) else 1)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert each(lambda item: item, range(4), 2) == [0, 1, 2, 3]


def _no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_work_ahead_reports_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is reported where the work is needed, and so is a limit of threads."""
    done = threading.Event()

    def work() -> None:
        done.set()
        raise MemoryError

    ahead(work)
    assert done.wait(60)
    with beside(work):
        pass
    assert capsys.readouterr().err == ""
    _no_thread(monkeypatch)
    ahead(work)


def test_work_beside_a_block_has_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise MemoryError

    with beside(threading.get_ident) as ident:
        assert ident() != threading.get_ident()
    with beside(fails) as result, pytest.raises(MemoryError):
        result()
    _no_thread(monkeypatch)
    with beside(threading.get_ident) as ident:
        assert ident() == threading.get_ident()


def test_work_beside_a_block_is_over_with_it() -> None:
    """So is work that was begun beside that work."""

    def outer() -> bool:
        with beside(lambda: wait_until(is_over)) as inner:
            return inner()

    with beside(outer) as ended:
        assert not is_over()
    assert ended()


# ---- checksums -------------------------------------------------------------------------------------------------------
# CRC-32 of pieces that are put together.


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 765])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_zlibs(size: int, threads: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).data
    assert crc32(data, threads) == zlib.crc32(data)


# ---- stages ----------------------------------------------------------------------------------------------------------
# Times of stages: inner ones are taken from outer ones, threads have clocks of their own, and rungs add them up.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves: its one element is the time."""
    now = [100.0]
    monkeypatch.setattr("gguf_verify.support.stages.time.perf_counter", lambda: now[0])
    return now


def test_inner_stages_are_taken_from_outer_ones(clock: list[float]) -> None:
    before = stages.seconds()
    with stage("launch"):
        clock[0] += 1
        with stage("quantize"):
            clock[0] += 2
            with stage("compile"):
                clock[0] += 4
        with stage("quantize"):
            clock[0] += 8
        clock[0] += 16
    assert stages.since(before) == {"compile": 4, "quantize": 10, "launch": 17}
    assert list(stages.since(before)) == [name for name in stages.STAGES if name in ("compile", "quantize", "launch")]


def test_a_stage_that_raises_is_counted_and_closed(clock: list[float]) -> None:
    @counted("judging")
    def broken() -> None:
        clock[0] += 3
        raise ValueError("no")

    before = stages.seconds()
    with pytest.raises(ValueError, match="no"):
        broken()
    with stage("upload"):
        clock[0] += 1
    assert stages.since(before) == {"judging": 3, "upload": 1}


def test_names_are_known() -> None:
    with pytest.raises(AssertionError), stage("lunch"):
        pass


def test_threads_have_clocks_of_their_own() -> None:
    def work() -> None:
        with stage("download"):
            pass

    before = stages.seconds()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert stages.since(before) == {}


def test_a_rung_adds_them_up(clock: list[float]) -> None:
    with stage("pack"):
        clock[0] += 50  # before the rung
    result = RungResult(name="layers")
    for _ in range(2):
        with result.timed():
            clock[0] += 1
            with stage("launch"):
                clock[0] += 2
    assert (result.seconds, result.stages) == (6, {"launch": 4})
