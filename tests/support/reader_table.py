"""What each reader says of each crafted file, and the page of it: python -m tests.support.reader_table"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_verify.audit.readers import READERS, Readers
from gguf_verify.audit.readings import Reading, compare
from gguf_verify.gguf.consistency import check_consistency
from gguf_verify.gguf.model import RefusedFile, open_model
from gguf_verify.gguf.parser import parse
from gguf_verify.gguf.records import Finding
from gguf_verify.gguf.rules import RULES
from tests.support import corpus
from tests.support.corpus import Entry, SplitEntry
from tests.support.tools import ROOT

PAGE = ROOT / "docs" / "readers.md"


#: gguf-py never ends the one; that it ends another must not depend on how busy the machine is. Seconds.
HANGS = next(e for e in corpus.REFUSED if e.name == "array length 2^60")


SHORT, PATIENCE = 2.0, 60.0


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
        if reading.verdict in ("broke", "stopped"):
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


def _by_slug(findings: Sequence[Finding]) -> list[str]:
    return [f.id.split("-", 2)[2] for f in findings]


@dataclass(frozen=True)
class Fact:
    """Something that a row shows, and what it must say for that."""

    row: str
    gguf_py: str
    llama_cpp: str
    text: str


FACTS = (
    Fact("NUL in a tensor name", "accepted, sees other tensors", "accepted, sees other tensors",
         "Both read the file, but the tensor has two names: gguf-py keeps the NUL, llama.cpp ends the name there."),
    Fact("type whose size gguf-py has wrong", "accepted, sees other tensors", "accepted",
         "A block of Q8_1 has 40 bytes in gguf-py and 36 in ggml: they read the same tensor from different bytes."),
    Fact("offset overlaps", "accepted", "refused",
         "gguf-py returns the same bytes for two tensors."),
    Fact("offset wraps into the file", "accepted", "refused",
         "gguf-py adds an offset near 2^64 to the start of the data, wraps, and returns the header as weights."),
    Fact("array length 2^60", "hung", "refused",
         "These few bytes keep gguf-py busy and growing until memory runs out."),
    Fact("dimensions overflow beside a zero", "refused", "crashed (SIGABRT)",
         "llama.cpp aborts, and so does the program that opened the file."),
    Fact("dimensions 2^62 - 1, 0 and 2", "accepted", "crashed (SIGABRT)",
         "It also aborts on an empty tensor whose dimensions do not overflow."),
    Fact("4 TiB of data claimed", "refused", "out of memory (SIGABRT)",
         "llama.cpp allocates the memory before it checks the file's length, and aborts if the allocation fails."),
    Fact("big-endian", "accepted", "refused",
         "gguf-py reads either byte order."),
    Fact("gap between tensors", "accepted", "refused",
         "llama.cpp rejects a file with bytes between two tensors, although every tensor is well defined."),
    Fact("final padding missing", "accepted", "refused",
         "All tensors are complete. llama.cpp's C reader requires the padding; its model loader does not, and loads "
         "such a file."),
    Fact("trailing bytes", "accepted", "accepted",
         "No reader uses bytes behind the last tensor or in padding; only gguf-verify reports them."),
    Fact("bool 2", "accepted", "accepted",
         "The other readers accept a bool that is neither 0 nor 1."),
)  # fmt: skip


SECTIONS = {
    "refuse": ("Refused", "gguf-verify refuses these files (exit code 4): to continue reading would be unsafe or "
               "ambiguous."),
    "error": ("Errors", "Well defined but wrong (exit code 1)."),
    "warning": ("Warnings", "Read, with a warning (exit code 0)."),
    "claim": ("Claims", "The container is correct, but the metadata contradict the tensors (a warning) or have "
              "meaningless values (an error). Readers of the container do not check this."),
    "good": ("Accepted without a finding", "Unusual but harmless."),
    "disputed": ("Accepted by gguf-verify, not by all", "gguf-verify has no finding of its own for these files; the "
                 "rule is that of the disagreement."),
    "split": ("Split models", "The two readers treat each part as a separate file; the rule is gguf-verify's finding "
              "for the model, at the part that it names."),
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
        "<!-- Generated by `python -m tests.support.reader_table` from tests/support/corpus.py; a test fails "
        "where it is not current. -->",
        "",
        _versions_line(table.versions),
        "",
        "The crafted files of the tests, as gguf-verify, gguf-py (`GGUFReader`) and llama.cpp (`gguf_init_from_file`,",
        "data included) read them. Each file tests one thing that a reader must get right. `gguf-verify audit` runs "
        "the same",
        "comparison on any file. The two other readers run in child processes, so a crash is a result. A reader that "
        "hung, or",
        "took more than 2 GiB beyond the file's size, was stopped and is not compared.",
        "",
        f"Of {len(refused)} files that gguf-verify refuses, gguf-py accepts {accepts['gguf-py']} and llama.cpp "
        f"{accepts['llama.cpp']}; {broke['gguf-py']} and {broke['llama.cpp']} crash or hang them.",
        "",
        "Notable cases:",
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


FIELDS = (
    ("name", "b\x1b[2J", 0, 0, r"the name 'b\x1b[2J'", "the name 'b.weight'"),
    ("shape", (2, 32), 1, 1, "the shape 2 x 32", "the shape 32 x 2"),
    ("shape", (), 1, 1, "the shape 1", "the shape 32 x 2"),
    ("type_id", 8, 2, 2, "type Q8_0", "type Q4_0"),
    ("type_id", 9999, 2, 2, "type 9999", "type Q4_0"),
    ("offset", 5, 3, 3, "data at byte 5", "data at byte 224"),
    ("nbytes", 35, 0, 3, "35 bytes of data", "36 bytes of data"),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = render(tabulate(Path(folder)))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page)
    print(f"{PAGE.relative_to(ROOT)}: {len(page.splitlines())} lines")


if __name__ == "__main__":
    main()
