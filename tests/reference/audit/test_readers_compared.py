"""Comparison of one reader's view of a file with another's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.audit.readers import READERS, Readers
from gguf_verify.audit.readings import Reading, compare, not_compared, ours
from gguf_verify.gguf.file import GgufFile
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import Finding
from gguf_verify.gguf.rules import RULES
from gguf_verify.llama.reader_process import MAX_WHOLE
from tests.support import corpus
from tests.support.reader_table import FIELDS, PATIENCE, _by_slug


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with Readers(time_limit=PATIENCE) as both:
        yield both


def test_llama_cpp_does_not_read_the_data_of_large_files(tmp_path: Path, readers: Readers) -> None:
    """So it does not see that they are cut; gguf-py does, and the note says so."""
    path = tmp_path / "large.gguf"
    path.write_bytes(corpus.gguf(infos=[corpus.info("a", [MAX_WHOLE // 2], corpus.T_F32, 0)], data=[]).data)
    os.truncate(path, MAX_WHOLE + 1)
    theirs, llama = readers.read(path)
    assert (theirs.verdict, llama.verdict, llama.said) == ("refused", "accepted", "it did not read the data")
    with parse(path) as file:
        (note,) = compare(file, (theirs, llama), file.findings)
    assert note.found == "llama.cpp accepts it with 1 tensor (it did not read the data)"
    os.truncate(path, MAX_WHOLE)
    assert readers.read(path)[1].verdict == "refused"


@pytest.fixture
def good(tmp_path: Path) -> Iterator[GgufFile]:
    path = tmp_path / "good.gguf"
    path.write_bytes(corpus.gguf().data)
    with parse(path, part=1) as file:
        yield file


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[GgufFile]:
    path = tmp_path / "bad.gguf"
    path.write_bytes(corpus.gguf(magic=corpus.Mark(b"GGUf")).data)
    with parse(path, part=1) as file:
        yield file


def as_if(file: GgufFile, reader: str = "llama.cpp", verdict: str = "accepted", said: str = "") -> Reading:
    """A reading that agrees with ours as far as it goes."""
    if verdict == "accepted":
        return replace(ours(file), reader=reader, said=said)
    return Reading(reader, verdict, said)  # type: ignore[arg-type]


def some_finding(slug: str, part: int = 1) -> Finding:
    rule = RULES[slug]
    return Finding(rule.id, rule.effect, 7, 9, "e", "f", rule.why, part=part)


@pytest.mark.parametrize(
    ("reader", "slug", "effect"), [("llama.cpp", "llama-refuses", "error"), ("gguf-py", "gguf-py-refuses", "warning")]
)
def test_refusal_that_nothing_explains(good: GgufFile, reader: str, slug: str, effect: str) -> None:
    reading = as_if(good, reader, "refused", "I do not like it")
    (found,) = compare(good, (reading,), ())
    assert (found.id, found.effect) == (RULES[slug].id, effect)
    assert (found.start, found.stop, found.part) == (0, good.size, 1)
    assert reader in found.found
    assert "I do not like it" in found.found


def test_only_a_finding_that_can_be_the_reason_explains_a_refusal(good: GgufFile) -> None:
    reading = as_if(good, "llama.cpp", "refused", "tensor 'b' has offset 96")
    # Trailing bytes stop no reader; a gap stops llama.cpp, in the file where it is.
    for explained in ([some_finding("trailing")], [some_finding("gap", part=0)], [some_finding("bad-utf8")]):
        assert _by_slug(compare(good, (reading,), explained)) == ["llama-refuses"]
    (found,) = compare(good, (reading,), [some_finding("trailing"), some_finding("gap")])
    assert (found.id, found.effect, found.start, found.stop) == (RULES["reader-verdict"].id, "note", 7, 9)
    assert RULES["gap"].id in found.found
    (found,) = compare(good, (as_if(good, "gguf-py", "refused"),), [some_finding("gap"), some_finding("bad-utf8")])
    assert RULES["bad-utf8"].id in found.found


def test_we_refuse_and_they_do_not(good: GgufFile, bad: GgufFile) -> None:
    assert compare(bad, [as_if(bad, name, "refused", "no") for name in READERS], bad.findings) == ()
    found = compare(bad, (as_if(good, "gguf-py"), as_if(good, "llama.cpp", said="a remark")), bad.findings)
    assert _by_slug(found) == ["reader-verdict"] * 2
    assert bad.refused is not None
    for f in found:
        assert bad.refused.id in f.expected
        assert (f.start, f.stop, f.part) == (bad.refused.start, bad.refused.stop, 1)
    assert found[1].found == "llama.cpp accepts it with 2 tensors (a remark)"


def test_we_refuse_and_they_see_different_tensors(good: GgufFile, bad: GgufFile) -> None:
    one = as_if(good, "gguf-py")
    other = replace(as_if(good), tensors=(one.tensors[0], one.tensors[1]._replace(name="b")))
    found = compare(bad, (one, other), bad.findings)
    assert _by_slug(found) == ["reader-verdict", "reader-verdict", "reader-differs"]
    assert found[2].effect == "error"
    assert found[2].found == "llama.cpp sees the name 'b' in tensor 1"
    assert found[2].expected == "the name 'b.weight', as gguf-py sees"
    assert bad.refused is not None
    assert (found[2].start, found[2].stop) == (bad.refused.start, bad.refused.stop)


@pytest.mark.parametrize("verdict", ["crashed (SIGSEGV): its last words", "ended (exit code 3)"])
def test_reader_that_broke(good: GgufFile, bad: GgufFile, verdict: str) -> None:
    for file, (start, stop) in ((good, (0, good.size)), (bad, (0, 4))):
        (found,) = compare(file, (as_if(file, "gguf-py", "broke", verdict),), file.findings)
        assert (found.id, found.effect) == (RULES["reader-broke"].id, "warning")
        assert found.found == f"gguf-py {verdict}"
        assert (found.start, found.stop) == (start, stop)


@pytest.mark.parametrize(("field", "value", "first", "last", "found", "expected"), FIELDS)
def test_reader_sees_another_tensor(
    good: GgufFile, field: str, value: Any, first: int, last: int, found: str, expected: str
) -> None:
    """The byte range is that of the field in the tensor's description, known from writing the file."""
    a, b = ours(good).tensors
    reading = replace(as_if(good), tensors=(a, b._replace(**{field: value})))
    (f,) = compare(good, (as_if(good, "gguf-py"), reading), ())
    assert (f.id, f.effect, f.owner, f.part) == (RULES["reader-differs"].id, "error", "b.weight", 1)
    assert f.found == f"llama.cpp sees {found} in tensor 1"
    assert f.expected == f"{expected}, as gguf-verify sees"
    name, count, *dimensions, kind, offset = corpus.INFOS[1]
    fields = [name, count + b"".join(dimensions), kind, offset]
    begin = corpus.gguf().data.index(b"".join(corpus.INFOS[1]))
    assert f.start == begin + sum(map(len, fields[:first]))
    assert f.stop == begin + sum(map(len, fields[: last + 1]))


def test_reader_sees_tensors_in_another_order_or_number(good: GgufFile) -> None:
    a, b = ours(good).tensors
    (f,) = compare(good, (replace(as_if(good), tensors=(b, a)),), ())
    assert f.found == "llama.cpp sees the name 'b.weight' in tensor 0 (the first of 2 that differ)"
    (f,) = compare(good, (replace(as_if(good), tensors=(a,)),), ())
    assert (f.found, f.expected) == ("llama.cpp sees 1 tensor", "2 tensors, as gguf-verify sees")
    described = good.tensors["b.weight"].described
    assert (f.start, f.stop) == (described[0].start, described[3].stop)
    (f,) = compare(good, (replace(as_if(good), tensors=(a, b, a)),), ())
    assert f.found == "llama.cpp sees 3 tensors"
    assert (f.start, f.stop) == (8, 16)  # the number of tensors
    (f,) = compare(good, (replace(as_if(good), tensors=()),), ())
    assert f.found == "llama.cpp sees 0 tensors"


def test_reader_counts_from_elsewhere(good: GgufFile, tmp_path: Path) -> None:
    begin = good.data_offset
    (f,) = compare(good, (replace(as_if(good), data_offset=begin + 32),), ())
    assert f.id == RULES["reader-differs"].id
    assert f.found == f"llama.cpp counts offsets from byte {begin + 32}"
    assert (f.start, f.stop) == (begin, begin + 32)
    (f,) = compare(good, (replace(as_if(good), data_offset=1 << 70),), ())
    assert (f.start, f.stop) == (begin, good.size)
    path = tmp_path / "empty.gguf"
    path.write_bytes(corpus.gguf(infos=[], data=[]).data)
    with parse(path) as file:  # without tensors nothing counts from there
        assert compare(file, (replace(as_if(file), data_offset=1),), ()) == ()


def test_trailing_ones_are_no_difference(tmp_path: Path, readers: Readers) -> None:
    path = tmp_path / "x.gguf"
    shapes: tuple[list[int], ...] = ([], [1], [1, 1, 1, 1], [8], [8, 1, 1], [2, 1, 4, 1], [0], [0, 1], [1, 0])
    infos, data = [], b""
    for i, shape in enumerate(shapes):
        infos.append(corpus.info(f"t{i}", shape, corpus.T_F32, len(data)))
        data += bytes(0 if 0 in shape else 32)
    path.write_bytes(corpus.gguf(infos=infos, data=[data]).data)
    readings = readers.read(path)
    with parse(path) as file:
        assert compare(file, readings, ()) == ()
        for reading in readings:
            assert [t.shape for t in reading.tensors] == [(), (), (), (8,), (8,), (2, 1, 4), (0,), (0,), (1, 0)]


def test_reader_that_was_stopped_is_not_compared(good: GgufFile, bad: GgufFile) -> None:
    for file in (good, bad):
        readings = (
            as_if(file, "gguf-py", "stopped", "hung: no answer in 1 s"),
            as_if(file, "llama.cpp", "refused", ""),
        )
        assert compare(file, readings[:1], file.findings) == ()
        assert not_compared(readings) == [("gguf-py's view of the file", "not compared: hung: no answer in 1 s")]
