"""Verdicts and exit codes of audits, also of files that change and of a llama.cpp that dies."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.audit import content
from gguf_verify.audit.examination import Examination
from gguf_verify.audit.fingerprint import REFERENCE
from gguf_verify.audit.readers import Readers
from gguf_verify.audit.readings import Reading
from gguf_verify.formats.tensor_types import ELEMENTS, tensor_type
from gguf_verify.gguf.model import Model, open_model
from gguf_verify.gguf.records import Range
from gguf_verify.gguf.storage import ByteMap
from gguf_verify.hosts.compiler import build
from gguf_verify.llama.files import FilePasses
from gguf_verify.llama.library import Llama
from gguf_verify.report.writer import Kind
from gguf_verify.support import cache
from gguf_verify.support.errors import MalformedFile, UsageError
from gguf_verify.support.paths import kernel_root
from tests.support import corpus
from tests.support.audits import TINY, at_scan, bytes_rung, dies_at_scan, ids, one_tensor, rule, run
from tests.support.processes import end_kept
from tests.support.shown import json_of, text_of
from tests.support.tools import FIXTURES, edited_model, patched, patched_block, split_model, write_model


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.gguf")), ids=lambda p: p.name)
def test_fixtures_are_clean(path: Path) -> None:
    result = run(path)
    assert (result.exit_code, result.findings, result.unverified) == (0, (), [])
    assert [r.verdict for readings in result.readings for r in readings] == ["accepted", "accepted"]
    for print_ in result.fingerprints:
        assert print_.consistent is not None
        assert print_.consistent.producer == REFERENCE


def test_shared_models_are_clean(shared_models: Path) -> None:
    paths = sorted(shared_models.glob("*.gguf"))
    assert paths
    for path in paths:
        result = run(path)
        assert (result.exit_code, result.findings) == (0, ()), path.name


@pytest.mark.parametrize("entry", corpus.CORPUS, ids=lambda e: e.name)
def test_exit_codes_of_the_corpus(entry: corpus.Entry, tmp_path: Path) -> None:
    """The other readers are in test_readers_compared.py."""
    path = tmp_path / entry.file_name
    path.write_bytes(entry.build().data)
    expected = {"refuse": 4, "error": 1, "warning": 0, None: 0}[entry.effect]
    result = run(path, readers=False)
    for strict in (False, True):
        result.strict = strict
        assert result.exit_code == (1 if strict and entry.effect == "warning" else expected), text_of(
            Kind.AUDIT, result
        )
        ours = [f for f in result.findings if int(f.id[5:8]) < 100]
        assert [f.id for f in ours] == ([] if entry.slug is None else [rule(entry.slug)])
        text = text_of(Kind.AUDIT, result, detail=2, byte_map=True)
        assert text.replace("\n", "").isprintable()
        json_of(Kind.AUDIT, result)


@pytest.mark.parametrize("entry", corpus.SPLITS, ids=lambda e: e.name)
def test_exit_codes_of_split_models(entry: corpus.SplitEntry, tmp_path: Path) -> None:
    for name, data in entry.files.items():
        (tmp_path / name).write_bytes(data)
    result = run(tmp_path / entry.opened, readers=False)
    assert result.exit_code == (0 if entry.slug is None else 4)
    if entry.slug is not None:
        assert rule(entry.slug) in ids(result)
        assert entry.named in text_of(Kind.AUDIT, result)


def test_all_parts_of_a_split_model(tmp_path: Path) -> None:
    first, second, *_ = split_model(TINY["Q4_0"], tmp_path, 12)
    result = run(first)
    assert (result.exit_code, len(result.files), len(result.readings)) == (0, 3, 3)
    assert len(result.contents) == 30
    with open_model(first) as model:
        tensor = next(t for t in model.tensors.values() if t.part == 1 and t.type.quantized)
        offset = tensor.block_offset(1, 1)
    patched(second, second, offset, b"\x00\x7c")
    (found,) = run(first, readers=False).findings
    assert (found.part, found.start) == (1, offset)


def test_a_type_that_is_not_covered(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(path, {"w": (np.zeros((4, 292), np.uint8), "Q8_K")})  # of activations; no file has it
    result = run(path, readers=False)
    assert result.exit_code == 5
    assert {why for _, why in result.unverified} == {"type Q8_K is not covered"}
    assert "NOT VERIFIED" in text_of(Kind.AUDIT, result)


def test_nothing_but_a_header_is_clean(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([], [], []).data)
    result = run(path)
    assert (result.exit_code, result.findings) == (0, ())


def test_selected_tensors(tmp_path: Path) -> None:
    result = run(TINY["Q4_0"], tensor=r"^blk\.0\.attn", readers=False)
    assert {c.tensor.name for c in result.contents} == {
        f"blk.0.attn_{what}.weight" for what in ("norm", "q", "k", "v", "output")
    }
    with pytest.raises(UsageError, match="no tensor matches"):
        run(TINY["Q4_0"], tensor="nothing")


def dies_at(monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> list[int]:
    """llama.cpp is killed in its call of that number; returns where the calls are counted."""
    whole, calls = getattr(FilePasses, method), []

    def call(self: FilePasses, *arguments: object, **named: object) -> object:
        calls.append(self._process.pid)
        if len(calls) == number:
            end_kept(self._process.pid, 9)
        return whole(self, *arguments, **named)

    monkeypatch.setattr(FilePasses, method, call)
    return calls


def test_llama_dies_in_the_middle_of_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    dies_at_scan(monkeypatch, 2)
    compared = dies_at(monkeypatch, "requantize", 0)
    result = run(TINY["Q4_0"], readers=False, source=TINY["F16"])
    assert (result.exit_code, result.verdict, len(result.contents)) == (3, "broken off", 16)
    with open_model(TINY["Q4_0"]) as model:
        names = list(model.tensors)
    assert result.unverified == [(name, "not reached") for name in names[16:]]
    assert "died in scan (SIGKILL)" in (result.fault or "")
    assert (compared, result.comparisons) == ([], ())  # there is no llama.cpp to compare with
    text = text_of(Kind.AUDIT, result)
    assert "16 of 30 checked" in text
    assert "… and 4 tensors were not verified" in text


def test_llama_dies_in_the_middle_of_a_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Earlier findings are kept."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.2.ffn_down.weight", 9, 4, 7, b"\x5a")
    with open_model(path) as model:
        names = list(model.tensors)
    reached = names.index("blk.2.ffn_down.weight") + 1
    dies_at(monkeypatch, "requantize", reached + 1)
    result = run(path, readers=False, source=TINY["F16"])
    why = "not compared with the source: not reached"
    assert result.unverified == [(name, why) for name in names[reached:]] != []
    assert ids(result) == [rule("source-differs")]
    assert (result.exit_code, len(result.contents)) == (1, 30)
    text = text_of(Kind.AUDIT, result)
    assert f"{reached - 1} of 30 tensors are, byte for byte" in text
    assert "BROKEN OFF: llama.cpp died in requantize (SIGKILL)" in text
    monkeypatch.undo()
    dies_at(monkeypatch, "requantize", 5)
    assert run(TINY["Q4_0"], readers=False, source=TINY["F16"]).exit_code == 3


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(("effect", "code"), [("warning", 3), ("error", 1)])
def test_findings_survive_that_llama_does_not_start(effect: str, code: int, tmp_path: Path) -> None:
    entry = next(e for e in corpus.BAD if e.effect == effect)
    path = tmp_path / "m.gguf"
    path.write_bytes(entry.build().data)
    result = run(path, readers=False, time_limit=0.001)
    assert ids(result) == [rule(entry.slug or "")]
    assert (result.exit_code, result.contents) == (code, ())
    assert "llama.cpp hung in start" in (result.fault or "")
    assert {why for _, why in result.unverified} == {"not reached"}
    assert len(result.unverified) == result.n_tensors
    assert "BROKEN OFF" in text_of(Kind.AUDIT, result)


def at_call(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, number: int, do: Callable[[], object]) -> None:
    """Do something just before llama.cpp's call of that number."""
    whole, calls = getattr(kind, method), []

    def call(self: object, *arguments: object, **named: object) -> object:
        calls.append(1)
        if len(calls) == number:
            do()
        return whole(self, *arguments, **named)

    monkeypatch.setattr(kind, method, call)


def rewritten(path: Path) -> None:
    """One bit of the last byte, in place."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def renamed(path: Path) -> None:
    """Another file of the same bytes in its place."""
    Path(shutil.copy(path, path.with_name("other"))).replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "rewritten": rewritten, "renamed": renamed, "touched": lambda path: os.utime(path, ns=(1, 1)),
    "cut": lambda path: os.truncate(path, 1000), "removed": os.unlink,
}  # fmt: skip


@pytest.mark.parametrize("number", [2, 3], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("change", ["rewritten", "renamed"])
def test_a_file_that_changes_while_it_is_scanned(
    change: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_scan(monkeypatch, number, lambda _llama: CHANGES[change](path))
    result = run(path, readers=False)
    assert (result.changed, result.exit_code, result.verdict) == (True, 3, "broken off")
    (said,) = [line for line in text_of(Kind.AUDIT, result).splitlines() if "changed while it was read" in line]
    assert said.startswith("BROKEN OFF in ")
    assert " s: a file changed while it was read, so the findings may be wrong · more: gguf-verify explain " in said


def test_a_file_that_changes_after_the_last_scan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing fails then: only the state of the file at the end tells. An error that was found need not be one."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    whole = Examination.fingerprints

    def late(self: Examination) -> object:
        rewritten(path)
        return whole(self)

    monkeypatch.setattr(Examination, "fingerprints", late)
    result = run(path, readers=False)
    assert (result.changed, result.exit_code) == (True, 3)
    assert ids(result) == [rule("scale-not-finite")]


def test_a_source_that_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Path(shutil.copy(TINY["F16"], tmp_path / "s.gguf"))
    at_call(monkeypatch, FilePasses, "requantize", 30, lambda: os.utime(source, ns=(1, 1)))
    result = run(TINY["Q4_0"], readers=False, source=source)
    assert (result.changed, result.exit_code) == (True, 3)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_the_first_scan(
    change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_call(monkeypatch, Llama, "versions", 1, lambda: CHANGES[change](path))
    try:
        result = run(path)
    except MalformedFile:  # its digest was not done yet
        assert change == "cut"
        return
    assert (result.changed, result.exit_code) == (True, 3)
    assert len(result.unverified) == 30


@pytest.mark.parametrize("change", ["rewritten", "renamed", "touched", "removed"])
def test_the_bytes_rung_of_a_file_that_changes(change: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = Path(shutil.copy(TINY["Q4_0"], tmp_path / "m.gguf"))
    at_scan(monkeypatch, 3, lambda _llama: CHANGES[change](path))
    report = bytes_rung(path)
    assert (report.exit_code, report.verdict) == (3, "broken off")
    assert report.fault == "a file was changed while it was verified: m.gguf was written to, cut or replaced"
    assert report.rungs[0].fault is None  # it is reported once


DOCTORED: dict[str, Callable[[list[Range]], list[Range]]] = {
    "a hole": lambda owned: owned[:7] + owned[8:],
    "the first range gone": lambda owned: owned[1:],
    "the end gone": lambda owned: owned[:-1],
    "one twice": lambda owned: [*owned, owned[9]],
    "one byte too early": lambda owned: [*owned[:-1], owned[-1]._replace(start=owned[-1].start - 1)],
    "one byte too many": lambda owned: [*owned[:-1], owned[-1]._replace(stop=owned[-1].stop + 1)],
}


@pytest.mark.parametrize("doctor", DOCTORED)
def test_bytes_that_no_field_or_two_own(doctor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doctored(path: Path) -> Model:
        model = open_model(path)
        ranges, model.parts[0].byte_map = list(model.parts[0].byte_map), ByteMap()
        for owned in DOCTORED[doctor](ranges):
            model.parts[0].byte_map.add(*owned)
        return model

    for module in ("gguf_verify.audit.audit", "gguf_verify.rungs.opening"):
        monkeypatch.setattr(sys.modules[module], "open_model", doctored)
    result = run(TINY["Q4_0"], readers=False)
    assert set(ids(result)) == {"GGUF-104-unowned"}
    assert (result.exit_code, result.verdict) == (1, "wrong")
    text = text_of(Kind.AUDIT, result)
    assert "each owned by one field: 100 %" not in text
    assert "NOT each owned by one field, see below" in text
    report = bytes_rung(TINY["Q4_0"])
    assert report.exit_code == 1
    assert any("GGUF-104-unowned" in failure.what for failure in report.rungs[0].failures)


def test_bytes_of_a_refused_file_that_were_not_read(tmp_path: Path) -> None:
    entry = next(e for e in corpus.BAD if e.slug == "string-length")
    path = tmp_path / "m.gguf"
    path.write_bytes(entry.build().data)
    result = run(path, readers=False)
    unread = sum(r.nbytes for r in result.files[0].byte_map if r.kind == "unread")
    text = text_of(Kind.AUDIT, result)
    assert unread > 0
    assert f"bytes       {result.files[0].size:,}, {unread:,} of them not read, " in text
    assert "100 %" not in text


def test_a_cache_entry_that_is_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = one_tensor(tmp_path / "m.gguf", np.zeros((2, 32), np.uint8), "BF16")
    kind = tensor_type(ELEMENTS["BF16"].type_id)
    assert kind is not None
    content_of_library = build(kernel_root(), '#include "emulator/scan.hpp"\n', content.scanner_options(kind))
    (library,) = cache.index_folder().glob("*.so")
    library.write_bytes(b"garbage")
    result = run(path, readers=False)
    assert (result.exit_code, result.fault) == (0, None)
    (rebuilt,) = set(cache.index_folder().glob("*.so")) - {library} or {library}
    assert rebuilt.read_bytes()[:4] == content_of_library[:4] == b"\x7fELF"


def test_a_claim_is_a_note_of_the_bytes_rung(tmp_path: Path) -> None:
    report = bytes_rung(edited_model(TINY["Q4_0"], tmp_path / "m.gguf", {"general.file_type": 7}))
    assert report.exit_code == 0
    assert [note for note in report.rungs[0].notes if rule("file-type") in note]


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "/no/compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run(TINY["Q4_0"], readers=False)
    assert result.exit_code == 3
    assert "no C++ compiler" in (result.fault or "")


def test_the_bytes_rung_reports_a_stopped_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that gives up is no pass."""
    stopped = tuple(Reading(name, "stopped", "hung: no answer in 1 s") for name in ("gguf-py", "llama.cpp"))
    monkeypatch.setattr(Readers, "read_model", lambda *_: (stopped,))
    report = bytes_rung(TINY["Q4_0"])
    assert report.exit_code == 5
    left = {(u.name, u.why) for u in report.rungs[0].unverified}
    assert left >= {(f"{r.reader}'s view of the file", "not compared: hung: no answer in 1 s") for r in stopped}
