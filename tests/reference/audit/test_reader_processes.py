"""Readers that hang, crash or lie are processes of their own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from pathlib import Path
from unittest.mock import patch

import pytest

from gguf_verify.audit.reader_child import ReaderChild
from gguf_verify.audit.readers import READERS, Readers
from gguf_verify.audit.readings import Reading, Seen, compare
from gguf_verify.gguf.parser import parse
from gguf_verify.support.errors import EnvironmentFault, NoSuchFile
from tests.support import corpus
from tests.support.processes import alive, kept, wait_until, works
from tests.support.reader_table import FIELDS, HANGS, PATIENCE
from tests.support.tools import ROOT


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with Readers(time_limit=PATIENCE) as both:
        yield both


@pytest.fixture
def sane(tmp_path: Path) -> Path:
    path = tmp_path / "sane.gguf"
    path.write_bytes(corpus.gguf().data)
    return path


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """gguf-py never ends it."""
    path = tmp_path / "endless.gguf"
    path.write_bytes(HANGS.build().data)
    return path


def ended(pid: int) -> bool:
    """Now, not within a while."""
    return not alive(pid)


def verdicts(readings: Sequence[Reading]) -> list[str]:
    return [r.said.partition(":")[0] if r.verdict in ("broke", "stopped") else r.verdict for r in readings]


def test_processes_start_with_the_first_file_and_serve_many(sane: Path) -> None:
    with Readers() as readers:
        assert readers.pids == {}
        first = readers.read(sane)
        pids = readers.pids
        assert set(pids) == set(READERS)
        assert readers.read(sane) == first
        assert readers.pids == pids
        assert all(readers.versions().values())
    assert readers.pids == {}
    assert all(ended(pid) for pid in pids.values())


def test_hang(sane: Path, endless: Path) -> None:
    with Readers(time_limit=4) as readers:
        readers.read(sane)
        pids = readers.pids
        start = time.monotonic()
        theirs, llama = readers.read(endless)
        assert 3.9 < time.monotonic() - start < 60
        assert (theirs.verdict, theirs.said) == ("stopped", "hung: no answer in 4 s")
        assert llama.verdict == "refused"  # beside it, untouched
        assert ended(pids["gguf-py"])
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        assert readers.pids["llama.cpp"] == pids["llama.cpp"]


def test_a_shorter_time_for_one_file(sane: Path, endless: Path) -> None:
    with Readers(time_limit=PATIENCE) as readers:
        readers.versions()
        theirs, llama = readers.read(endless, 1.5)
    assert (theirs.verdict, theirs.said) == ("stopped", "hung: no answer in 1.5 s")
    assert llama.verdict == "refused"


def test_both_hang_for_one_time_limit(sane: Path) -> None:
    with Readers(time_limit=8) as readers:
        readers.read(sane)
        for pid in readers.pids.values():
            os.kill(kept(pid), signal.SIGSTOP)
        start = time.monotonic()
        assert verdicts(readers.read(sane)) == ["hung", "hung"]
        assert time.monotonic() - start < 15.9  # side by side: one after the other takes 16 s
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_killed_while_it_reads(sane: Path, endless: Path) -> None:
    with Readers(time_limit=PATIENCE) as readers:
        readers.read(sane)
        pid = readers.pids["gguf-py"]
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(readers.read, endless)
            assert works(kept(pid))
            os.kill(pid, signal.SIGKILL)
            assert verdicts(reading.result(60)) == ["crashed (SIGKILL)", "refused"]
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        assert readers.pids["gguf-py"] != pid


def test_a_refusal_describes_the_file(tmp_path: Path, readers: Readers) -> None:
    path = tmp_path / "x.gguf"
    for version in (4, 1):
        path.write_bytes(corpus.gguf(version=corpus.u32(version)).data)
        theirs, llama = readers.read(path)
        assert f"version {version}" in theirs.said
        assert {4: "version 4", 1: "GGUFv1"}[version] in llama.said


def test_killed_between_two_files(sane: Path) -> None:
    """No file is to blame for that."""
    with Readers() as readers:
        readers.read(sane)
        pids = readers.pids
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: all(map(ended, pids.values())))
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_out_of_memory(sane: Path) -> None:
    """gguf-py where it copies a key that is too long; llama.cpp where a file claims more data than there is memory."""
    long = sane.with_name("long.gguf")
    long.write_bytes(corpus.with_pair(corpus.pair(b"x" * (64 << 20), corpus.BOOL, b"\1")).data)
    with Readers(PATIENCE, memory=32 << 20) as readers:
        assert verdicts(readers.read(long))[0] == "out of memory"
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        (entry,) = (e for e in corpus.REFUSED if e.name == "4 TiB of data claimed")
        path = sane.with_name("claims.gguf")
        path.write_bytes(entry.build().data)
        theirs, llama = readers.read(path)
        assert theirs.verdict == "refused"
        assert llama.said.startswith("out of memory (SIGABRT): ")
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_memory_is_beside_the_file(tmp_path: Path) -> None:
    """A large file may be mapped whole, however little memory there is."""
    path = tmp_path / "large.gguf"
    path.write_bytes(corpus.gguf(infos=[corpus.info("a", [1 << 28], corpus.T_F32, 0)], data=[]).data)
    with parse(path) as file:
        os.truncate(path, file.data_offset + (1 << 30))
    with Readers(PATIENCE, memory=32 << 20) as readers:
        assert verdicts(readers.read(path)) == ["accepted", "accepted"]


def test_a_vocabulary_takes_no_memory(tmp_path: Path) -> None:
    """gguf-py reads every element of an array and keeps none: these would take 100 MB."""
    path = tmp_path / "vocabulary.gguf"
    tokens = corpus.array("tokenizer.ggml.tokens", corpus.STRING, 200_000, [corpus.text("word") * 200_000])
    path.write_bytes(corpus.with_pair(tokens).data)
    unknown = path.with_name("unknown.gguf")
    tokens = corpus.array("tokenizer.ggml.tokens", 99, 200_000, [corpus.text("word") * 200_000])
    unknown.write_bytes(corpus.with_pair(tokens).data)
    with Readers(PATIENCE, memory=32 << 20) as readers:
        assert verdicts(readers.read(path)) == ["accepted", "accepted"]
        assert verdicts(readers.read(unknown)) == ["refused", "refused"]  # of a type that does not exist


def test_refusals_do_not_crash_what_follows(sane: Path, tmp_path: Path) -> None:
    """A process that llama.cpp crashed in is replaced, and only that."""
    (entry,) = (e for e in corpus.REFUSED if e.name == "dimensions overflow beside a zero")
    path = tmp_path / "abort.gguf"
    path.write_bytes(entry.build().data)
    with Readers(PATIENCE) as readers:
        readers.read(sane)
        pids = readers.pids
        for _ in range(2):
            assert verdicts(readers.read(path)) == ["refused", "crashed (SIGABRT)"]
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        assert readers.pids["gguf-py"] == pids["gguf-py"]


def test_interrupted_question_is_not_answered_later(sane: Path, endless: Path) -> None:
    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Readers(PATIENCE) as readers:
            readers.read(sane)
            pids = readers.pids
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                readers.read(endless)
            assert all(map(ended, pids.values()))
            assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
    finally:
        signal.signal(signal.SIGALRM, before)


PARENT = """
import sys, threading
from gguf_verify.audit.readers import Readers
readers = Readers(600)
readers.read(sys.argv[1])
print(*readers.pids.values(), flush=True)
readers.read(sys.argv[2])
"""


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_no_process_outlives_its_parent(sane: Path, endless: Path, busy: bool) -> None:
    """Idle ones see the end of the stream; a busy one would not."""
    code = PARENT if busy else PARENT.replace("readers.read(sys.argv[2])", "threading.Event().wait()")
    parent = subprocess.Popen([sys.executable, "-c", code, sane, endless], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    if busy:
        assert works(kept(pids[0]))
    assert not any(map(ended, pids))
    parent.kill()
    parent.wait()
    assert wait_until(lambda: all(map(ended, pids)))


def test_closing_ends_what_another_thread_reads(sane: Path, endless: Path) -> None:
    readers = Readers(PATIENCE)
    readers.read(sane)
    pids = readers.pids
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(readers.read, endless)
        assert works(kept(pids["gguf-py"]))
        readers.close()
        assert all(map(ended, pids.values()))
        assert verdicts(reading.result(60))[0] == "crashed (SIGKILL)"
    with pytest.raises(ValueError, match="closed"):
        readers.read(sane)
    assert readers.pids == {}
    readers.close()  # twice is once


def test_closing_between_two_answers(sane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading thread may look for the next answer when no link is open any more."""

    asked = threading.Event()

    def late(links: Sequence[Connection]) -> Sequence[object]:
        asked.set()
        time.sleep(0.6)
        return wait(links)

    monkeypatch.setattr("gguf_verify.audit.readers.wait", late)
    readers = Readers(PATIENCE)
    readers.versions()
    with ThreadPoolExecutor(1) as pool:
        for pid in readers.pids.values():
            os.kill(kept(pid), signal.SIGSTOP)
        reading = pool.submit(readers.read, sane)
        assert asked.wait(60)
        readers.close()
        assert verdicts(reading.result(60)) == ["crashed (SIGKILL)", "crashed (SIGKILL)"]


def test_limits(sane: Path) -> None:
    """Limits of a reader on the disk, whatever the shell allows: no core, no flood of a log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        with Readers() as readers:
            readers.read(sane)
            for pid in readers.pids.values():
                assert resource.prlimit(kept(pid), resource.RLIMIT_CORE)[0] == 0
                assert resource.prlimit(kept(pid), resource.RLIMIT_FSIZE)[0] == 1 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def fake_gguf_py(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Let gguf-py's reader run this instead."""
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time, gguf\n"
        "from multiprocessing.connection import Connection\n"
        "class GGUFReader:\n"
        "    def __init__(self, path):\n"
        f"{indented}\n"
        "gguf.GGUFReader = GGUFReader\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


INVALID = "sent an invalid answer"
FAKES = {
    "dies of a signal": ("os.kill(os.getpid(), 11)", "crashed (SIGSEGV)"),
    "exits": ("os.write(2, b'so long'); os._exit(3)", "ended (exit code 3): so long"),
    "exits in a way that Python has": ("sys.exit(4)", "ended (exit code 4)"),
    "answers what is no JSON": ("Connection(int(sys.argv[2])).send_bytes(b'\\xff{')", INVALID),
    "answers too deep": ("Connection(int(sys.argv[2])).send_bytes(b'[' * 100000)", INVALID),
    "answers with no object": ("Connection(int(sys.argv[2])).send_bytes(b'7')", INVALID),
    "answers other fields": ("Connection(int(sys.argv[2])).send_bytes(b'{}')", INVALID),
    "answers no number": (
        "Connection(int(sys.argv[2])).send_bytes(b'{\"tensors\": [], \"data_offset\": Infinity}')", INVALID,
    ),
    "answers other tensors": (
        "Connection(int(sys.argv[2])).send_bytes(b'{\"tensors\": [[1, 2]], \"data_offset\": 0}')", INVALID,
    ),
    "stops in the middle of an answer": (
        "os.write(int(sys.argv[2]), b'\\0\\0\\1\\0{')\ntime.sleep(60)", "hung: no answer in 3 s",
    ),
    "has no memory left": ("raise MemoryError", "out of memory"),
    "cannot map the file": ("raise OSError(12, 'Cannot allocate memory')", "out of memory"),
    "floods its log": (
        "while True: os.write(2, b'\\x1b[2J' * 1000)", "was killed because it printed more than 1 MiB",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAKES)
def test_reader_that_breaks_in_another_way(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sane: Path
) -> None:
    body, said = FAKES[name]
    fake_gguf_py(monkeypatch, tmp_path, body)
    with Readers(time_limit=3 if "hung" in said else PATIENCE) as readers:
        theirs, llama = readers.read(sane)
        assert theirs.verdict == ("stopped" if said.startswith(("hung", "out of memory", "was killed")) else "broke")
        assert theirs.said.startswith(said)
        assert llama.verdict == "accepted"
        assert set(readers.pids) == {"llama.cpp"}  # it is not asked again


def test_refusal_is_one_short_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sane: Path) -> None:
    fake_gguf_py(monkeypatch, tmp_path, "raise ValueError('\\x1b[31m\\n\\u202e' + chr(0xdc80) + 'x' * 10**7)")
    with Readers() as readers:
        theirs, _ = readers.read(sane)
    assert theirs.verdict == "refused"
    assert theirs.said.startswith(r"ValueError: \x1b[31m \u202e\x80xxx")
    assert theirs.said.isprintable()
    assert len(theirs.said) <= 201


@pytest.mark.parametrize("fault", ["import", "hang"])
def test_reader_that_cannot_be_started(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sane: Path) -> None:
    if fault == "hang":
        monkeypatch.setattr("gguf_verify.audit.reader_child.START_LIMIT", 0.5)
    stop = "time.sleep(60)" if fault == "hang" else "raise ImportError('no gguf here')"
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'gguf': {stop}\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    readers = Readers()
    said = "hung: no answer in 0.5 s" if fault == "hang" else "no gguf here"
    with pytest.raises(EnvironmentFault, match=f"gguf-py cannot be used: .*{said}"):
        readers.read(sane)
    assert readers.pids == {}


HOSTILE = {
    "escape": "\x1b[31m\x1b]0;x\x07\u202e\n".encode(),
    "NUL": b"a\0b",
    "bad UTF-8": b"\xff\xfe\xc0",
    "10 MB": b"n" * 10**7,
    "10 MB of NUL": bytes(10**7),
    "10 MB of bad UTF-8": b"\xff" * 10**7,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: str, tmp_path: Path, readers: Readers, sane: Path) -> None:
    raw = HOSTILE[name]
    path = tmp_path / "x.gguf"
    # As a tensor's name, as a key, and as a key that stands twice, which both readers name in their refusal.
    for built in (
        corpus.with_second(corpus.info(raw, [32, 2], corpus.T_Q4_0, 32)),
        corpus.with_pair(corpus.pair(raw, corpus.U8, b"\1")),
        corpus.gguf([corpus.pair(raw, corpus.U8, b"\1")] * 2),
    ):
        path.write_bytes(built.data)
        readings = readers.read(path)
        assert "broke" not in {r.verdict for r in readings}
        with parse(path) as file:
            found = compare(file, readings, file.findings)
        for text in [r.said for r in readings] + [f.line() for f in found]:
            assert text.isprintable()
            assert len(text) < 600
    assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_hostile_paths(tmp_path: Path, readers: Readers) -> None:
    for name in ("\x1b[31m\n.gguf", os.fsdecode(b"\xff\xfe.gguf"), "模型 'x'.gguf"):
        path = tmp_path / name
        path.write_bytes(corpus.gguf().data)
        assert verdicts(readers.read(path)) == ["accepted", "accepted"]
    missing = readers.read(tmp_path / "\x1b[2Jnothing")
    assert verdicts(missing) == ["refused", "refused"]
    assert all(r.said.isprintable() for r in missing)
    with pytest.raises(NoSuchFile):  # our own parser refuses it first
        parse(tmp_path / "\x1b[2Jnothing")


def test_paths_are_relative_to_the_caller(
    tmp_path: Path, readers: Readers, sane: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers.read(sane)
    monkeypatch.chdir(tmp_path)
    assert verdicts(readers.read(sane.name)) == ["accepted", "accepted"]


def test_every_seen_field_is_compared() -> None:
    """A field that is added to Seen has to be shown and placed too."""
    assert {field for field, *_ in FIELDS} == set(Seen._fields)


def test_two_threads_hang_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ends the process, another waits for its answer: after an interrupt both close our end."""
    child = ReaderChild(READERS[0])
    child.greet()
    close, closed = child.link._close, []  # type: ignore[attr-defined]

    def slowly() -> None:
        closed.append(True)
        time.sleep(0.3)
        close()

    monkeypatch.setattr(child.link, "_close", slowly)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(child.answer)
        ended = pool.submit(child.close)
        assert answer.result(30).verdict == "broke"
        ended.result(30)
    assert closed == [True]


def test_last_words_while_another_thread_closes() -> None:
    """Its last lines are not read from a descriptor that is closed meanwhile."""
    child = ReaderChild(READERS[0])
    child.greet()
    assert child._log is not None
    asked, last = threading.Event(), child._log.last

    def slowly(nbytes: int, since: int) -> bytes:
        asked.set()
        time.sleep(0.3)
        return last(nbytes, since)

    with patch.object(child._log, "last", slowly), ThreadPoolExecutor(1) as pool:
        words = pool.submit(child.last_lines, 4096)
        assert asked.wait(30)
        child.close()
        assert words.result(30) == []
