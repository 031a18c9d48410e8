"""The printed report of an audit, and its JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from gguf_verify import verify
from gguf_verify.audit import content
from gguf_verify.audit.readers import READERS
from gguf_verify.audit.readings import EXPLAIN
from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.records import MAX_PER_RULE, capped, finding
from gguf_verify.gguf.rules import RULES
from gguf_verify.llama.library import Llama
from gguf_verify.report import json as as_json
from gguf_verify.report.writer import Form, Kind
from gguf_verify.report.writers import MARKDOWN
from gguf_verify.results.options import Options
from gguf_verify.rungs.bytes import _say
from gguf_verify.support.errors import EnvironmentFault
from tests.support import corpus, records
from tests.support.audits import TINY, dies_at_scan, halves, ids, rule, run
from tests.support.reader_table import PAGE, Table, _by_slug, render
from tests.support.shown import json_of, text_of
from tests.support.tools import TamperedKernel, block_bytes, command_here, patched_block, write_model


def three_tensors(path: Path) -> Path:
    """Of each figure in the table of statistics, one that no other place in the file gives."""
    a = np.zeros((2, 2, 18), np.uint8)
    for block, d, codes in (
        (a[0, 0], 0x3C00, 0x00),
        (a[0, 1], 0xB800, 0x8F),
        (a[1, 0], 0, 0x33),
        (a[1, 1], 0x4500, 0x88),
    ):
        block[:2], block[2:] = halves(d), codes
    b = np.zeros((3, 20), np.uint8)
    for block, d, m, codes in (
        (b[0], 0x3400, 0xC200, 0xF0),
        (b[1], 0x3400, 0xC200, 0xF0),
        (b[2], 0x3800, 0x3C00, 0x57),
    ):
        block[:2], block[2:4], block[4:] = halves(d), halves(m), codes
    c = np.full((1, 18), 0x77, np.uint8)
    c[0, :2] = halves(0x3000)
    return write_model(path, {"a": (a.reshape(2, -1), "Q4_0"), "b": (b, "Q4_1"), "c": (c, "Q4_0")})


def test_the_figures_of_a_crafted_model(tmp_path: Path) -> None:
    """|d| 0.125 to 5; a block with d = 0 and one of codes 8 are zeros; 32 + 16 of 160 codes are 0 or 15."""
    text = text_of(Kind.AUDIT, run(three_tensors(tmp_path / "m.gguf"), readers=False))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if re.match(r"Q4_[01] +[0-9]", line)}
    assert rows == {
        "Q4_0": ["2", "5", "2", "0.125", "5", "-", "-", "30.0%", "0"],
        "Q4_1": ["1", "3", "0", "0.25", "0.5", "-3", "1", "66.7%", "1"],
    }


def test_one_of_three_tensors(tmp_path: Path) -> None:
    path = three_tensors(tmp_path / "m.gguf")
    text = text_of(Kind.AUDIT, run(path, tensor="^b$", readers=False))
    assert "1 of 3 checked" in text
    assert "CLEAN (1 of 3 tensors) in" in text
    assert "CLEAN in" in text_of(Kind.AUDIT, run(path, readers=False))


def test_the_map_prints_every_byte_once() -> None:
    result = run(TINY["Q4_0"], readers=False)
    lines = re.findall(r"^ +([0-9]+) +([0-9]+) +([0-9,]+)  ", text_of(Kind.AUDIT, result, byte_map=True), re.M)
    at = 0
    for start, stop, nbytes in lines:
        assert int(start) == at
        at = int(stop)
        assert at - int(start) == int(nbytes.replace(",", ""))
    assert at == TINY["Q4_0"].stat().st_size


def test_the_report_fits_in_100_columns() -> None:
    """Except for names, whose length is unlimited, and the list of what a system's sandbox lacks."""
    free = ("file  ", "CLEAN: ", "sandbox  ")
    for path in (TINY["Q4_0"], TINY["Q5_1"], TINY["F16"]):
        for line in text_of(Kind.AUDIT, run(path, readers=False), detail=2).splitlines():
            assert len(re.sub(r"  \S+\.weight$", "", line)) <= 100 or line.startswith(free), line


def test_colour_only_on_request(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    result = run(path, readers=False)
    assert "\x1b" not in text_of(Kind.AUDIT, result, detail=2, byte_map=True)
    assert "\x1b[1;31merror" in text_of(Kind.AUDIT, result, colour=True)


def test_the_json_holds_the_documented_keys(tmp_path: Path) -> None:
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    whole = json_of(Kind.AUDIT, run(path, source=TINY["F16"]))
    described = set(re.findall(r"\w+", as_json.of_audit.__doc__ or ""))
    assert set(whole) <= described | {"schema"}
    assert (whole["verdict"], whole["exit_code"]) == ("wrong", 1)
    assert {f["id"] for f in whole["findings"]} == {rule("scale-not-finite"), rule("source-differs")}
    assert sum(stop - start for start, stop, *_ in whole["files"][0]["byte_map"]) == path.stat().st_size
    statistics = {t["name"]: t["statistics"] for t in whole["tensors"]}
    assert statistics["blk.0.attn_q.weight"]["not_finite"] == 1
    assert sum(statistics["blk.0.attn_q.weight"]["codes"]) == 256 * 256
    assert whole["readers"][0][0]["reader"] == "gguf-py"
    assert len(whole["readers"][0][0]["tensors"]) == 30


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    x = np.full((2, 32), np.nan, np.float32)
    path = write_model(tmp_path / "m.gguf", {"\x1b[31mred\u202e": (x, "F32")})
    text = text_of(Kind.AUDIT, run(path), detail=2, byte_map=True)
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[31mred\\u202e" in text


def test_results_do_not_depend_on_threads(tmp_path: Path) -> None:
    """However the pieces of the tensors are spread, and in whatever order they are done."""
    path = patched_block(TINY["Q4_0"], tmp_path / "m.gguf", "blk.0.attn_q.weight", 0, 0, 0, b"\x00\x7c")
    one, *others = (run(path, readers=False, threads=threads) for threads in (1, 2, 5))
    assert one.exit_code == 1
    for other in others:
        assert other.findings == one.findings
        assert [c.tensor.name for c in other.contents] == [c.tensor.name for c in one.contents]
        for theirs, ours in zip(other.contents, one.contents, strict=True):
            assert (theirs.scan is None) == (ours.scan is None)
            if theirs.scan and ours.scan:
                same = {**asdict(theirs.scan), "codes": theirs.scan.codes.tolist()}
                assert same == {**asdict(ours.scan), "codes": ours.scan.codes.tolist()}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_scanned_before_llama_died_is_kept(number: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_at_scan(monkeypatch, number)
    result = run(TINY["Q4_0"], readers=False, threads=threads)
    assert result.exit_code == 3
    assert "llama.cpp died in scan (SIGKILL)" in (result.fault or "")
    assert len(result.contents) == 16 * (number - 1)
    assert {why for _, why in result.unverified} == {"not reached"}
    assert len(result.contents) + len(result.unverified) == 30


def test_scans_left_in_the_middle_end_the_process(llama: Llama) -> None:
    """Its next message would be taken for the answer to another call."""
    with Llama() as other, open_model(TINY["Q4_0"]) as model:
        found = content.contents(list(model.tensors.values()), other)
        next(found)
        found.close()
        with pytest.raises(EnvironmentFault, match="died"):
            other.versions()
    assert llama.versions()


# ---- waivers ---------------------------------------------------------------------------------------------------------
# Waivers where a file and a kernel are really wrong: audits, runs, the command line.


TENSOR = "blk.0.attn_q.weight"
DAY = date(2026, 6, 1)


def written(folder: Path, keys: str, until: str = "2026-12-31") -> Path:
    path = folder / "waivers.toml"
    path.write_text(f'[[waiver]]\n{keys}\nreason = "issue 42"\nuntil = {until}\n')
    return path


@pytest.fixture(scope="module")
def infinite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a scale that is not finite."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    return patched_block(TINY["Q4_0"], path, TENSOR, 3, 1, 0, b"\x00\x7c")


def test_a_finding_is_waived_until_its_day(infinite: Path, tmp_path: Path) -> None:
    plain = run(infinite, readers=False, digest=False)
    assert plain.exit_code == 1
    (wrong,) = [f for f in plain.findings if f.severity == "error"]
    path = written(tmp_path, f'finding = "{wrong.id}"\ntensor = "{TENSOR}"')
    waived = run(infinite, readers=False, digest=False, waivers=path, today=DAY)
    assert (waived.exit_code, waived.verdict, waived.words) == (0, "waived", "clean with 1 waived finding")
    assert ids(waived) == ids(plain)
    shown = text_of(Kind.AUDIT, waived)
    assert f"WAIVED finding {wrong.id}, tensor {TENSOR}: 1 failure, until 2026-12-31: issue 42" in shown
    assert "CLEAN WITH 1 WAIVED FINDING in " in shown
    assert "(waived)" in shown
    made = json_of(Kind.AUDIT, waived)
    assert [f["waived"] for f in made["findings"] if f["severity"] == "error"] == [True]
    assert made["waivers"][0]["state"] == "applied"
    assert "Clean with 1 waived finding" in str(MARKDOWN.renders[Kind.AUDIT](waived, Form()))
    late = run(infinite, readers=False, digest=False, waivers=path, today=date(2027, 1, 1))
    assert (late.exit_code, late.waivers[0].state) == (1, "expired")
    number = "-".join(wrong.id.split("-")[:2])
    path = written(tmp_path, f'finding = "{number}"\ntensor = "blk.1.*"')
    other = run(infinite, readers=False, digest=False, waivers=path, today=DAY)
    assert (other.exit_code, other.waivers[0].state) == (1, "unused")


@pytest.fixture(scope="module")
def infinite_everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a scale that is not finite in each matrix: more findings of a rule than are listed."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    data = bytearray(TINY["Q4_0"].read_bytes())
    with open_model(TINY["Q4_0"]) as model:
        for tensor in model.tensors.values():
            if tensor.type.quantized:
                data[tensor.offset : tensor.offset + 2] = b"\x00\x7c"
    path.write_bytes(data)
    return path


def test_a_finding_that_is_not_listed_needs_its_waiver(infinite_everywhere: Path, tmp_path: Path) -> None:
    plain = run(infinite_everywhere, readers=False, digest=False)
    wrong = [f for f in plain.findings if f.severity == "error"]
    assert len(wrong) == MAX_PER_RULE < MAX_PER_RULE + wrong[-1].more
    assert len(wrong[-1].unlisted) == wrong[-1].more
    names = [f.owner for f in wrong]

    def exit_code(tensors: Sequence[str]) -> int:
        path = tmp_path / "waivers.toml"
        path.write_text("".join(
            f'[[waiver]]\nfinding = "{wrong[0].id}"\ntensor = "{name}"\nreason = "x"\nuntil = 2026-12-31\n'
            for name in tensors
        ))  # fmt: skip
        return run(infinite_everywhere, readers=False, digest=False, waivers=path, today=DAY).exit_code

    assert exit_code(names) == 1
    assert exit_code([*names, *wrong[-1].unlisted]) == 0
    assert exit_code([*names[:-1], *wrong[-1].unlisted]) == 1


def test_a_failure_that_is_not_listed_needs_its_waiver() -> None:
    """In the bytes rung of a run, and of what holds nothing each tensor is left."""
    result = records.rung("bytes")
    _say(result, capped([*(finding("overlap", 0, 1, "a", "b", f"t{i}") for i in range(25)),
                         *(finding("zero-bytes", 0, 1, "a", "b", f"z{i}") for i in range(25))]))  # fmt: skip
    assert result.failing == {f"t{i}": 1 for i in range(25)}
    assert [left.name for left in result.unverified] == [f"z{i}" for i in (*range(20), *range(20, 25))]


def test_a_refused_file_is_never_waived(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML" + TINY["Q4_0"].read_bytes()[4:])
    refused = run(path, readers=False, digest=False)
    held = written(tmp_path, f'finding = "{refused.refused.id}"')
    again = run(path, readers=False, digest=False, waivers=held, today=DAY)
    assert (again.exit_code, again.verdict) == (refused.exit_code, refused.verdict) == (4, "refused")
    assert (again.waived, again.waivers[0].state) == (frozenset(), "unused")


def test_a_wrong_kernel_is_waived_and_not_verified(tmp_path: Path) -> None:
    original = block_bytes(TINY["Q4_0"], TENSOR, 3, 1)
    kernel = TamperedKernel("q8_1_naive", original, original[:2] + bytes(b ^ 0x11 for b in original[2:]))
    options = Options(prompt="Once upon", n_predict=1, tensor=TENSOR, probes="brief", progress=False)

    def found(keys: str, day: date = DAY) -> tuple[int, str]:
        path = written(tmp_path, keys)
        report = verify(TINY["Q4_0"], kernel, rungs=["blocks"], options=options, waivers=path, today=day)
        assert sum(report.rungs[0].failing.values()) == report.n_failures > 0
        return report.exit_code, report.verdict

    assert found(f'tensor = "{TENSOR}"\nkernel = "q8_1_naive"') == (0, "waived")
    assert found(f'tensor = "{TENSOR}"\nkernel = "q8_1"') == (1, "mismatch")
    assert found(f'tensor = "{TENSOR}"', date(2027, 1, 1)) == (1, "mismatch")


def test_a_mistake_in_the_file_is_a_usage_error(tmp_path: Path) -> None:
    path = written(tmp_path, 'tensor = "x"', until='"soon"')
    for command in (["verify", "--rungs", "bytes"], ["audit"]):
        done = command_here(command[0], TINY["Q4_0"], *command[1:], "--waivers", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "waiver[0].until: must be a date" in done.stderr
    done = command_here(TINY["Q4_0"], "--identify", "--waivers", path)
    assert done.returncode == 2


# ---- readers page ----------------------------------------------------------------------------------------------------
# docs/readers.md states the verdicts of the readers on the crafted files.


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
