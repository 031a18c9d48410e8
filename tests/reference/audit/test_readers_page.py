"""docs/readers.md states the verdicts of the readers on the crafted files."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.audit.readers import READERS
from gguf_verify.audit.readings import EXPLAIN
from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.rules import RULES
from tests.support import corpus
from tests.support.reader_table import PAGE, Table, _by_slug, render


def test_the_page_is_current(known: Table) -> None:
    assert PAGE.read_text() == render(known), "write it anew: python -m tests.support.reader_table"


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


def test_explanations_of_refusals(known: Table) -> None:
    """`EXPLAIN` holds exactly the rules over whose files, read on by us, a reader stumbles."""
    for reader in READERS:
        rows = [row for row in known.of("error", "warning") if row.cell(reader) == "refused"]
        assert {rule.split("-", 2)[2] for row in rows for rule in row.rules} == set(EXPLAIN[reader])


def test_only_the_expected_rows_break_a_reader(known: Table) -> None:
    broke = {(row.name, r.reader) for row in known.rows for r in row.readings if r.verdict == "broke"}
    assert broke == {
        ("dimensions overflow beside a zero", "llama.cpp"),
        ("dimensions 2^62 - 1, 0 and 2", "llama.cpp"),
    }  # fmt: skip
    stopped = {(row.name, r.reader) for row in known.rows for r in row.readings if r.verdict == "stopped"}
    assert stopped == {("array length 2^60", "gguf-py"), ("4 TiB of data claimed", "llama.cpp")}
    for row in known.rows:
        slugs = _by_slug(row.compared)
        assert slugs.count("reader-broke") == sum(r.verdict == "broke" for r in row.readings), row.name
        assert "llama-refuses" not in slugs, row.name


def test_crash_keeps_the_last_words(known: Table) -> None:
    _, llama = known.named("dimensions overflow beside a zero").readings
    # The source file without the folder in which llama.cpp was built.
    assert llama.said.startswith("crashed (SIGABRT): ggml.c:")
    assert "GGML_ASSERT" in llama.said


def test_every_text_fits_a_line(table: Table) -> None:
    for row in table.rows:
        for reading in row.readings:
            assert reading.said.isprintable()
            assert len(reading.said) < 260
        for found in row.compared:
            assert found.line().isprintable()
            assert len(found.line()) < 600
