"""The parser against crafted files, and against files that change under it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.model import RefusedFile, open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.rules import RULES
from gguf_verify.support.errors import EXIT_MALFORMED, NoSuchFile
from tests.support import corpus
from tests.support.corpus import A, Entry
from tests.support.crafted_files import assert_tiles, by_name, save


@pytest.mark.parametrize("entry", corpus.BAD, ids=by_name)
def test_each_bad_file_gives_exactly_its_finding(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    assert entry.slug is not None
    with parse(path) as file:
        assert [(f.id, f.effect) for f in file.findings] == [(RULES[entry.slug].id, entry.effect)]
        (finding,) = file.findings
        assert (finding.start, finding.stop) == (built.start, built.stop), finding.line()
        assert (file.refused == finding) == (entry.effect == "refuse")
        assert "\n" not in finding.line()
        assert finding.line().isprintable()
        assert finding.why
        assert finding.expected
        assert finding.found


@pytest.mark.parametrize("entry", corpus.GOOD, ids=by_name)
def test_harmless_files_are_accepted_in_silence(entry: Entry, tmp_path: Path) -> None:
    path, _ = save(entry, tmp_path)
    with open_model(path) as model:
        assert model.findings == ()
        assert check_consistency(model) == ()


@pytest.mark.parametrize("entry", [*corpus.CLAIMS, *corpus.TRUE_CLAIMS], ids=by_name)
def test_each_lie_of_the_metadata_is_found(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    with open_model(path) as model:
        assert model.findings == ()
        found = check_consistency(model)
        if entry.slug is None:
            assert found == ()
            return
        assert [f.id for f in found] == [RULES[entry.slug].id]
        (finding,) = found
        assert (finding.start, finding.stop) == (built.start, built.stop)
        assert finding.effect == entry.effect


@pytest.mark.parametrize("entry", corpus.CORPUS, ids=by_name)
def test_byte_map_covers_every_byte_once(entry: Entry, tmp_path: Path) -> None:
    assert_tiles(save(entry, tmp_path)[0])


def test_every_rule_has_a_crafted_file() -> None:
    covered = {e.slug for e in corpus.CORPUS} | {e.slug for e in corpus.SPLITS}
    own = {slug for slug, rule in RULES.items() if rule.number < 100}  # those above are found by others
    assert own - covered == {"expert-count"}  # tested below
    ids = [rule.id for rule in RULES.values()]
    assert len({i[:8] for i in ids}) == len(ids)


@pytest.mark.parametrize("entry", [e for e in corpus.BAD if e.effect == "refuse"], ids=by_name)
def test_refused_file_is_one_line_with_name_and_byte(entry: Entry, tmp_path: Path) -> None:
    path, built = save(entry, tmp_path)
    with pytest.raises(RefusedFile) as caught:
        open_model(path)
    line = str(caught.value)
    assert caught.value.exit_code == EXIT_MALFORMED
    assert line.isprintable()
    assert len(line) < 1000
    assert line.startswith(f"{path}: byte {built.start}: ")


def test_expert_count(tmp_path: Path) -> None:
    pairs = [
        corpus.pair("general.architecture", corpus.STRING, corpus.text("llama")),
        corpus.marked(corpus.pair("llama.expert_count", corpus.U32, corpus.u32(4)), 2),
    ]
    built = corpus.gguf(pairs, [corpus.info("blk.0.ffn_up_exps.weight", [4, 1, 2], corpus.T_F32, 0)], [A])
    path = tmp_path / "experts.gguf"
    path.write_bytes(built.data)
    with open_model(path) as model:
        (finding,) = check_consistency(model)
    assert finding.id == RULES["expert-count"].id
    assert (finding.start, finding.stop) == (built.start, built.stop)


def test_every_prefix_of_a_file_is_judged(tmp_path: Path) -> None:
    """Cut anywhere, a file is refused, or short of padding only; and never crashes the parser."""
    built = corpus.gguf().data
    path = tmp_path / "cut.gguf"
    for size in range(len(built)):
        path.write_bytes(built[:size])
        with parse(path) as file:
            whole = size >= len(built) - 28  # only final padding is cut
            assert [f.effect for f in file.findings] == (["warning"] if whole else ["refuse"]), size
        assert_tiles(path)


def test_every_byte_can_be_wrong(tmp_path: Path) -> None:
    """Any byte set to anything may be accepted or refused, but ends in a verdict and a whole map."""
    built = corpus.gguf().data
    path = tmp_path / "flipped.gguf"
    header = len(built) - sum(map(len, corpus.DATA))
    for at in range(header):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(built[:at] + bytes([value]) + built[at + 1 :])
            assert_tiles(path)


def test_file_that_turns_into_a_fifo_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at it and its opening."""
    path = tmp_path / "m.gguf"
    os.mkfifo(path)
    regular = os.stat(__file__)
    monkeypatch.setattr("gguf_verify.gguf.mapped.os.stat", lambda _: regular)

    def waited(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(5)
    try:
        with pytest.raises(NoSuchFile, match="regular file"):
            parse(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
