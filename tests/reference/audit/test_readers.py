"""Three readers on the same bytes: their verdicts side by side, what becomes of a reader that breaks, docs/readers.md.

`python -m tests.reference.audit.test_readers` writes the page anew.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from gguf_verify.audit.reader_process import MAX_WHOLE
from gguf_verify.audit.readers import EXPLAIN, READERS, Readers, Reading, Seen, _Child, compare, ours
from gguf_verify.gguf import RULES, Finding, GgufFile, RefusedFile, check_consistency, open_model, parse
from gguf_verify.support.errors import EnvironmentFault, MalformedFile
from tests.support import corpus
from tests.support.corpus import Entry, SplitEntry
from tests.support.tools import FIXTURES, ROOT

PAGE = ROOT / "docs" / "readers.md"
#: gguf-py never ends the one; that it ends another must not depend on how busy the machine is. Seconds.
HANGS = next(e for e in corpus.REFUSED if e.name == "array length 2^60")
SHORT, PATIENCE = 2.0, 60.0


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A crafted file, or one part of a split model: our findings, both readings, and what comparing them gave."""

    name: str
    group: str
    rules: tuple[str, ...]
    readings: tuple[Reading, ...]
    compared: tuple[Finding, ...]
    accepted: bool

    def cell(self, reader: str) -> str:
        """A reader's verdict in a few words."""
        reading = next(r for r in self.readings if r.reader == reader)
        if reading.verdict == "broke":
            return reading.said.partition(":")[0]
        other = any(f.id == RULES["reader-differs"].id and (not self.accepted or reader in f.found)
                    for f in self.compared)  # fmt: skip
        return "accepted, sees other tensors" if reading.verdict == "accepted" and other else reading.verdict


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]
    versions: dict[str, str]

    def of(self, *groups: str) -> list[Row]:
        return [row for row in self.rows if row.group in groups]

    def named(self, name: str) -> Row:
        (row,) = (row for row in self.rows if row.name == name)
        return row


def _row(entry: Entry, group: str, readers: Readers, folder: Path) -> Row:
    path = folder / entry.file_name
    path.write_bytes(entry.build().data)
    readings = readers.read(path)
    with parse(path) as file:
        compared = compare(file, readings, file.findings)
        findings = list(file.findings)
        accepted = file.refused is None
    if entry.claim:
        with open_model(path) as model:
            findings += check_consistency(model)
    return Row(entry.name, group, tuple(f.id for f in findings), readings, compared, accepted)


def _split_rows(entry: SplitEntry, readers: Readers, folder: Path) -> Iterator[Row]:
    """One row for each file that is there; the model's refusal stands with the file that it names."""
    for name, data in entry.files.items():
        (folder / name).write_bytes(data)
    where, rule = "", ""
    try:
        open_model(folder / entry.opened).close()
    except RefusedFile as refused:
        where, rule = refused.path.name, refused.finding.id
    for name in entry.files:
        readings = readers.read(folder / name)
        with parse(folder / name) as file:
            compared = compare(file, readings, file.findings)
            yield Row(f"{entry.name}: `{name}`", "split", (rule,) if name == where else (), readings, compared,
                      file.refused is None)  # fmt: skip
    for name in entry.files:
        (folder / name).unlink()


def tabulate(folder: Path) -> Table:
    groups: dict[str, Iterable[Entry]] = {
        "refuse": (e for e in corpus.BAD if e.effect == "refuse"),
        "error": (e for e in corpus.BAD if e.effect == "error"),
        "warning": (e for e in corpus.BAD if e.effect == "warning"),
        "claim": corpus.CLAIMS,
        "good": [*corpus.GOOD, *corpus.TRUE_CLAIMS],
        "disputed": corpus.DISPUTED,
    }
    with Readers(time_limit=PATIENCE) as readers, Readers(time_limit=SHORT) as hasty:
        rows = [
            _row(entry, group, hasty if entry.name == HANGS.name else readers, folder)
            for group, entries in groups.items()
            for entry in entries
        ]
        for entry in corpus.SPLITS:
            rows += _split_rows(entry, readers, folder)
        return Table(tuple(rows), readers.versions())


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tabulate(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def known(table: Table) -> Table:
    """The table where the readers are those that the page and the expectations are of."""
    stated = next((line for line in PAGE.read_text().splitlines() if line.startswith("Readers: ")), "")
    if stated != _versions_line(table.versions):
        pytest.skip(f"the page is of other versions: {stated!r}, here are {_versions_line(table.versions)!r}")
    return table


def _by_slug(findings: Sequence[Finding]) -> list[str]:
    return [f.id.split("-", 2)[2] for f in findings]


# ---- the page -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """Something that a row shows, and what it must say for that."""

    row: str
    gguf_py: str
    llama_cpp: str
    text: str


FACTS = (
    Fact("NUL in a tensor name", "accepted, sees other tensors", "accepted, sees other tensors",
         "Both read the file, and a tensor has two names: gguf-py keeps the NUL, llama.cpp ends the name there."),
    Fact("type whose size gguf-py has wrong", "accepted, sees other tensors", "accepted",
         "gguf-py takes a block of Q8_1 for 40 bytes, ggml for 36: the same tensor, read from other bytes."),
    Fact("offset overlaps", "accepted", "refused",
         "gguf-py hands out the same bytes as two tensors."),
    Fact("offset wraps into the file", "accepted", "refused",
         "gguf-py adds an offset near 2^64 to the start of the data, wraps, and hands out the header as weights."),
    Fact("array length 2^60", "hung", "refused",
         "These few bytes keep gguf-py busy, and growing, until memory ends."),
    Fact("dimensions overflow beside a zero", "refused", "crashed (SIGABRT)",
         "llama.cpp aborts, and with it the program that opened the file."),
    Fact("dimensions 2^62 - 1, 0 and 2", "accepted", "crashed (SIGABRT)",
         "It also aborts on an empty tensor whose dimensions do not overflow."),
    Fact("4 TiB of data claimed", "refused", "out of memory (SIGABRT)",
         "llama.cpp asks for the memory before it looks whether the file is as long, and aborts where it gets none."),
    Fact("big-endian", "accepted", "refused",
         "gguf-py reads either byte order."),
    Fact("gap between tensors", "accepted", "refused",
         "llama.cpp loads no file with bytes between two tensors, though every tensor is well defined."),
    Fact("final padding missing", "accepted", "refused",
         "All tensors are whole. Its C reader asks for the padding too; its model loader does not, and loads such a "
         "file."),
    Fact("trailing bytes", "accepted", "accepted",
         "What stands behind the last tensor, and in padding, is read by nobody: only gguf-verify says so."),
    Fact("bool 2", "accepted", "accepted",
         "Nor does anyone else mind a bool that is neither 0 nor 1."),
)  # fmt: skip

SECTIONS = {
    "refuse": ("Refused", "gguf-verify refuses these files (exit code 4): reading on would be unsafe or ambiguous."),
    "error": ("Errors", "Well defined but wrong (exit code 1)."),
    "warning": ("Warnings", "Read, with a warning (exit code 0)."),
    "claim": ("Claims", "The container is right, but the metadata say something wrong of the tensors (a warning). "
              "Readers of the container do not look."),
    "good": ("Accepted in silence", "Harmless, however odd."),
    "disputed": ("Accepted by gguf-verify, not by all", "gguf-verify has nothing against these files; the rule is that "
                 "of the disagreement."),
    "split": ("Split models", "Each part is a file of its own to the two readers; the rule is what gguf-verify says of "
              "the model, at the part that it names."),
}  # fmt: skip


def _versions_line(versions: dict[str, str]) -> str:
    return "Readers: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."


def render(table: Table) -> str:
    """docs/readers.md. Fails where a fact is not one."""
    refused = table.of("refuse")
    verdicts = {name: [row.cell(name) for row in refused] for name in READERS}
    accepts = {name: sum(cell.startswith("accepted") for cell in cells) for name, cells in verdicts.items()}
    broke = {name: sum(cell.partition(" ")[0] in ("hung", "crashed", "out") for cell in cells)
             for name, cells in verdicts.items()}  # fmt: skip
    lines = [
        "# Three readers, the same bytes",
        "",
        "<!-- Generated by `python -m tests.reference.audit.test_readers` from tests/support/corpus.py; a test fails "
        "where it is not current. -->",
        "",
        _versions_line(table.versions),
        "",
        "The files of the tests' corpus, each made by code to hold one thing that a reader must get right, as",
        "gguf-verify, gguf-py (`GGUFReader`) and llama.cpp (`gguf_init_from_file`, data included) see them. "
        "`gguf-verify audit`",
        "runs the same comparison on any file. The two others read in child processes, so what a file does to them is "
        "a verdict:",
        "crashed, hung, out of memory (2 GiB beside the file).",
        "",
        f"Of {len(refused)} files that gguf-verify refuses, gguf-py accepts {accepts['gguf-py']} and llama.cpp "
        f"{accepts['llama.cpp']}; {broke['gguf-py']} and {broke['llama.cpp']} break them.",
        "",
        "Some that are worth a look:",
        "",
    ]
    for fact in FACTS:
        row = table.named(fact.row)
        assert (row.cell("gguf-py"), row.cell("llama.cpp")) == (fact.gguf_py, fact.llama_cpp), f"no fact: {fact}"
        lines.append(f"- *{fact.row}* (gguf-py: {fact.gguf_py}; llama.cpp: {fact.llama_cpp}). {fact.text}")
    for group, (title, text) in SECTIONS.items():
        lines += ["", f"## {title}", text, "", "| file | rule | gguf-py | llama.cpp |", "|---|---|---|---|"]
        for row in table.of(group):
            rules = row.rules or (tuple(f.id for f in row.compared) if group == "disputed" else ())
            shown = ", ".join(f"`{rule}`" for rule in rules)
            lines.append(f"| {row.name} | {shown} | {row.cell('gguf-py')} | {row.cell('llama.cpp')} |")
    return "\n".join(lines) + "\n"


def test_the_page_is_current(known: Table) -> None:
    assert PAGE.read_text() == render(known), "write it anew: python -m tests.reference.audit.test_readers"


# ---- the corpus -----------------------------------------------------------------------------------------------------


def test_harmless_files_give_nothing(known: Table) -> None:
    for row in known.of("good", "claim"):
        assert row.compared == (), row.name
        assert [r.verdict for r in row.readings] == ["accepted", "accepted"], row.name


def test_disputed_files(known: Table, tmp_path: Path) -> None:
    """We accept each in silence; the disagreement is found, and where it is."""
    for entry in corpus.DISPUTED:
        path, built = tmp_path / "x.gguf", entry.build()
        path.write_bytes(built.data)
        with open_model(path) as model:
            assert model.findings == ()
            assert check_consistency(model) == ()
        row = known.named(entry.name)
        (found,) = (f for f in row.compared if f.id == RULES[str(entry.slug)].id)
        assert (found.effect, found.start, found.stop) == (entry.effect, built.start, built.stop), found.line()


def test_a_verdict_that_is_not_ours_is_a_note_that_names_the_finding(known: Table) -> None:
    for row in known.of("refuse", "error", "warning"):
        notes = [f for f in row.compared if f.id == RULES["reader-verdict"].id]
        other = "accepted" if not row.accepted else "refused"
        assert len(notes) == sum(r.verdict == other for r in row.readings), row.name
        for note in notes:
            assert note.effect == "note"
            assert row.rules[0] in note.line()


def test_what_explains_a_refusal_does(known: Table) -> None:
    """`EXPLAIN` holds exactly the rules over whose files, read on by us, a reader stumbles."""
    for reader in READERS:
        rows = [row for row in known.of("error", "warning") if row.cell(reader) == "refused"]
        assert {rule.split("-", 2)[2] for row in rows for rule in row.rules} == set(EXPLAIN[reader])


def test_only_the_expected_rows_break_a_reader(known: Table) -> None:
    broke = {(row.name, r.reader) for row in known.rows for r in row.readings if r.verdict == "broke"}
    assert broke == {
        ("array length 2^60", "gguf-py"), ("dimensions overflow beside a zero", "llama.cpp"),
        ("dimensions 2^62 - 1, 0 and 2", "llama.cpp"), ("4 TiB of data claimed", "llama.cpp"),
    }  # fmt: skip
    for row in known.rows:
        slugs = _by_slug(row.compared)
        assert slugs.count("reader-broke") == sum(r.verdict == "broke" for r in row.readings), row.name
        assert "llama-refuses" not in slugs, row.name


def test_every_text_fits_a_line(table: Table) -> None:
    for row in table.rows:
        for reading in row.readings:
            assert reading.said.isprintable()
            assert len(reading.said) < 260
        for found in row.compared:
            assert found.line().isprintable()
            assert len(found.line()) < 600


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with Readers(time_limit=PATIENCE) as both:
        yield both


def assert_agreed(readers: Readers, path: Path) -> None:
    readings = readers.read(path)
    with parse(path) as file:
        assert compare(file, readings, file.findings) == ()
        for reading in readings:
            assert reading.verdict == "accepted"
            assert len(reading.tensors) == len(file.tensors) > 0
            assert reading.tensors == ours(file).tensors


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*.gguf")))
def test_fixtures_are_agreed_on(name: str, readers: Readers) -> None:
    assert_agreed(readers, FIXTURES / name)


def test_shared_models_are_agreed_on(shared_models: Path, readers: Readers) -> None:
    for path in sorted(shared_models.glob("*.gguf")):
        assert_agreed(readers, path)


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


# ---- comparing ------------------------------------------------------------------------------------------------------


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
    # Trailing bytes stop nobody; a gap stops llama.cpp, in the file where it is.
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
    assert found[2].expected == "the name 'b.weight', as gguf-py does"
    assert bad.refused is not None
    assert (found[2].start, found[2].stop) == (bad.refused.start, bad.refused.stop)


@pytest.mark.parametrize("verdict", ["crashed (SIGSEGV): its last words", "hung: no answer in 1 s", "out of memory"])
def test_reader_that_broke(good: GgufFile, bad: GgufFile, verdict: str) -> None:
    for file, (start, stop) in ((good, (0, good.size)), (bad, (0, 4))):
        (found,) = compare(file, (as_if(file, "gguf-py", "broke", verdict),), file.findings)
        assert (found.id, found.effect) == (RULES["reader-broke"].id, "warning")
        assert found.found == f"gguf-py {verdict}"
        assert (found.start, found.stop) == (start, stop)


FIELDS = (
    ("name", "b\x1b[2J", 0, 0, r"the name 'b\x1b[2J'", "the name 'b.weight'"),
    ("shape", (2, 32), 1, 1, "the shape 2 x 32", "the shape 32 x 2"),
    ("shape", (), 1, 1, "the shape 1", "the shape 32 x 2"),
    ("type_id", 8, 2, 2, "type Q8_0", "type Q4_0"),
    ("type_id", 9999, 2, 2, "type 9999", "type Q4_0"),
    ("offset", 5, 3, 3, "data at byte 5", "data at byte 224"),
    ("nbytes", 35, 0, 3, "35 bytes of data", "36 bytes of data"),
)


@pytest.mark.parametrize(("field", "value", "first", "last", "found", "expected"), FIELDS)
def test_reader_sees_another_tensor(
    good: GgufFile, field: str, value: object, first: int, last: int, found: str, expected: str
) -> None:
    """The byte range is that of the field in the tensor's description, known from writing the file."""
    a, b = ours(good).tensors
    reading = replace(as_if(good), tensors=(a, b._replace(**{field: value})))
    (f,) = compare(good, (as_if(good, "gguf-py"), reading), ())
    assert (f.id, f.effect, f.owner, f.part) == (RULES["reader-differs"].id, "error", "b.weight", 1)
    assert f.found == f"llama.cpp sees {found} in tensor 1"
    assert f.expected == f"{expected}, as gguf-verify does"
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
    assert (f.found, f.expected) == ("llama.cpp sees 1 tensor", "2 tensors, as gguf-verify does")
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
    shapes = ([], [1], [1, 1, 1, 1], [8], [8, 1, 1], [2, 1, 4, 1], [0], [0, 1], [1, 0])
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


# ---- readers that break ---------------------------------------------------------------------------------------------


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


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def verdicts(readings: Sequence[Reading]) -> list[str]:
    return [r.said.partition(":")[0] if r.verdict == "broke" else r.verdict for r in readings]


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
    assert all(gone(pid) for pid in pids.values())


def test_hang(sane: Path, endless: Path) -> None:
    with Readers(time_limit=0.7) as readers:
        readers.read(sane)
        pids = readers.pids
        start = time.monotonic()
        theirs, llama = readers.read(endless)
        assert 0.6 < time.monotonic() - start < 5
        assert (theirs.verdict, theirs.said) == ("broke", "hung: no answer in 0.7 s")
        assert llama.verdict == "refused"  # beside it, untouched
        assert gone(pids["gguf-py"])
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        assert readers.pids["llama.cpp"] == pids["llama.cpp"]


def test_both_hang_for_one_time_limit(sane: Path) -> None:
    with Readers(time_limit=2.0) as readers:
        readers.read(sane)
        for pid in readers.pids.values():
            os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        assert verdicts(readers.read(sane)) == ["hung", "hung"]
        assert time.monotonic() - start < 3.8  # side by side
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_killed_while_it_reads(sane: Path, endless: Path) -> None:
    with Readers(time_limit=PATIENCE) as readers:
        readers.read(sane)
        pid = readers.pids["gguf-py"]
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        assert verdicts(readers.read(endless)) == ["crashed (SIGKILL)", "refused"]
        killer.join()
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]
        assert readers.pids["gguf-py"] != pid


def test_what_is_said_is_about_the_file(tmp_path: Path, readers: Readers) -> None:
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
        assert wait_until(lambda: all(map(gone, pids.values())))
        assert verdicts(readers.read(sane)) == ["accepted", "accepted"]


def test_out_of_memory(sane: Path, endless: Path) -> None:
    """gguf-py where its memory ends before its time; llama.cpp where a file claims more data than there is memory."""
    with Readers(PATIENCE, memory=32 << 20) as readers:
        assert verdicts(readers.read(endless)) == ["out of memory", "refused"]
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


def test_crash_keeps_the_last_words(tmp_path: Path, known: Table) -> None:
    _, llama = known.named("dimensions overflow beside a zero").readings
    # The source file without the folder in which llama.cpp was built.
    assert llama.said.startswith("crashed (SIGABRT): ggml.c:")
    assert "GGML_ASSERT" in llama.said


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
            assert all(map(gone, pids.values()))
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
    time.sleep(0.3)  # it is in the middle of the second file
    assert not any(map(gone, pids))
    parent.kill()
    parent.wait()
    assert wait_until(lambda: all(map(gone, pids)))


def test_closing_ends_what_another_thread_reads(sane: Path, endless: Path) -> None:
    readers = Readers(PATIENCE)
    readers.read(sane)
    pids = readers.pids
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(readers.read, endless)
        time.sleep(0.3)
        readers.close()
        assert all(map(gone, pids.values()))
        assert verdicts(reading.result(10))[0] == "crashed (SIGKILL)"
    with pytest.raises(ValueError, match="closed"):
        readers.read(sane)
    assert readers.pids == {}
    readers.close()  # twice is once


def test_closing_between_two_answers(sane: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads may look for the next answer when no link is open any more."""

    def late(links: Sequence[Connection]) -> list[object]:
        time.sleep(0.6)
        return wait(links)

    monkeypatch.setattr("gguf_verify.audit.readers.wait", late)
    readers = Readers(PATIENCE)
    readers.versions()
    with ThreadPoolExecutor(1) as pool:
        for pid in readers.pids.values():
            os.kill(pid, signal.SIGSTOP)
        reading = pool.submit(readers.read, sane)
        time.sleep(0.3)
        readers.close()
        assert verdicts(reading.result(10)) == ["crashed (SIGKILL)", "crashed (SIGKILL)"]


def test_limits(sane: Path) -> None:
    """Of what a reader may leave on the disk, whatever the shell allows: no core, no flood of a log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        with Readers() as readers:
            readers.read(sane)
            for pid in readers.pids.values():
                assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0
                assert resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] == 1 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


# ---- readers that are not what they should be -----------------------------------------------------------------------


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


FAKES = {
    "dies of a signal": ("os.kill(os.getpid(), 11)", "crashed (SIGSEGV)"),
    "exits": ("os.write(2, b'so long'); os._exit(3)", "ended (exit code 3): so long"),
    "exits in a way that Python has": ("sys.exit(4)", "ended (exit code 4)"),
    "answers what is no JSON": ("Connection(int(sys.argv[2])).send_bytes(b'\\xff{')", "answered nonsense"),
    "answers too deep": ("Connection(int(sys.argv[2])).send_bytes(b'[' * 100000)", "answered nonsense"),
    "answers with no object": ("Connection(int(sys.argv[2])).send_bytes(b'7')", "answered nonsense"),
    "answers other fields": ("Connection(int(sys.argv[2])).send_bytes(b'{}')", "answered nonsense"),
    "answers no number": (
        "Connection(int(sys.argv[2])).send_bytes(b'{\"tensors\": [], \"data_offset\": Infinity}')", "answered nonsense",
    ),
    "answers other tensors": (
        "Connection(int(sys.argv[2])).send_bytes(b'{\"tensors\": [[1, 2]], \"data_offset\": 0}')", "answered nonsense",
    ),
    "stops in the middle of an answer": (
        "os.write(int(sys.argv[2]), b'\\0\\0\\1\\0{')\ntime.sleep(60)", "hung: no answer in 0.7 s",
    ),
    "has no memory left": ("raise MemoryError", "out of memory"),
    "cannot map the file": ("raise OSError(12, 'Cannot allocate memory')", "out of memory"),
    "floods its log": (
        "try:\n    while True: os.write(2, b'\\x1b[2J' * 1000)\nexcept OSError: os.abort()",
        r"crashed (SIGABRT): \x1b[2J\x1b[2J",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAKES)
def test_reader_that_breaks_in_another_way(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sane: Path
) -> None:
    body, said = FAKES[name]
    fake_gguf_py(monkeypatch, tmp_path, body)
    with Readers(time_limit=0.7) as readers:
        theirs, llama = readers.read(sane)
        assert theirs.verdict == "broke"
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
        monkeypatch.setattr("gguf_verify.audit.readers.START_LIMIT", 0.5)
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


# ---- hostile names --------------------------------------------------------------------------------------------------

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
    with pytest.raises(MalformedFile):  # we never come to compare that
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
    child = _Child(READERS[0])
    child.greet()
    close, closed = child.link._close, []

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
    """What it printed is not read from a descriptor that is closed meanwhile."""
    child = _Child(READERS[0])
    child.greet()
    assert child.log is not None
    asked, fileno = threading.Event(), child.log.fileno

    def slowly() -> int:
        asked.set()
        time.sleep(0.3)
        return fileno()

    with patch.object(child, "log", Mock(wraps=child.log, closed=False, fileno=slowly)), ThreadPoolExecutor(1) as pool:
        words = pool.submit(child.last_lines, 4096)
        assert asked.wait(30)
        child.close()
        assert words.result(30) == []


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = render(tabulate(Path(folder)))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page)
    print(f"{PAGE.relative_to(ROOT)}: {len(page.splitlines())} lines")


if __name__ == "__main__":
    main()
