"""The results file docs/mutation.json, and what is made from it: docs/mutation.md and the tables of docs/evidence.md.

    {"kill": {"population": {file: mutants}, "sources": {file: hash},
              "mutants": {file: {"line:column:operator": outcome}}, "survivors": [record], "checked": {…}},
     "catalogue": {subject: {fault: outcome}}, "naming": …, "alarms": …}

An outcome is a letter, and for what was killed or missed two hexadecimal digits: which other gates catch it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...support.paths import CHECKOUT
from .gate import GATES
from .kill import Record, row_of, sampled
from .mutator import Mutant

ROOT = CHECKOUT
RESULTS, PAGE, TABLES = (ROOT / "docs" / name for name in ("mutation.json", "mutation.md", "evidence.md"))
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

LETTERS = {"killed": "K", "passed": "P", "missed": "M", "same": "s", "uncompilable": "u", "unobservable": "o"}
_NAMES = {letter: name for name, letter in LETTERS.items()}
#: Rows of the table, in order; the last is the catalogue's.
ROWS = ("GEMM sources", "format headers", "quantizer", "packing")
CATALOGUE = "catalogue faults"
#: Of the other gates, those that the table of docs/evidence.md has a column for.
_COLUMNS = {
    "NMSE ≤ 5·10⁻⁴, of the float32 product": "nmse values",
    "NMSE, of the definition": "nmse definition",
    "allclose(10⁻², 10⁻²)": "allclose definition",
    "cosine ≥ 0.98": "cosine definition",
}

#: What a reason begins with, of a mutant that is wrong, or may be, where it does not run here.
UNSEEN = "not observable on this host"

Data = dict[str, Any]


def encoded(outcome: str, gates: Iterable[str] = (), late: bool = False) -> str:
    """A letter, and which of GATES catch it; a t where it was the time limit that killed it."""
    letter = LETTERS[outcome]
    return letter + (f"{sum(1 << GATES.index(g) for g in gates):02x}" if letter in "KP" else "") + "t" * late


def decoded(code: str) -> tuple[str, frozenset[str]]:
    """Of `encoded`: the outcome, and the other gates that catch it. Raises ValueError for what is no code."""
    if code[:1] not in _NAMES:
        raise ValueError(f"{code!r} is no outcome")
    mask = int(code[1:].removesuffix("t") or "0", 16)
    return _NAMES[code[0]], frozenset(g for i, g in enumerate(GATES) if mask >> i & 1)


#: Parts of a file's mutants that count: the largest of these of which all were judged. What was judged beyond is left
#: out: of a batch that was cut off, those that die early are known and those that survive are not.
LEVELS = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0)


def whole_part(records: Mapping[str, Record], everything: Mapping[str, list[Mutant]], seed: int) -> dict[str, Record]:
    """The records that count, of runs with this seed."""
    out: dict[str, Record] = {}
    for level in LEVELS:
        for of_file in sampled(everything, level, seed).values():
            if all(m.id in records for m in of_file):
                out |= {m.id: records[m.id] for m in of_file}
    return out


def collected(
    records: Mapping[str, Record], population: Mapping[str, int], sources: Mapping[str, str],
    beside: Iterable[Record] = (),
) -> Data:  # fmt: skip
    """The part `kill` of the results file. Of what was judged `beside` those that count, the missed ones are kept."""
    found: dict[str, dict[str, str]] = {}
    survivors = []
    for entry in sorted(records.values(), key=lambda r: _order(r["id"])):
        file, place = entry["id"].split(":", 1)
        found.setdefault(file, {})[place] = encoded(
            entry["outcome"], entry.get("gates", ()), entry["by"] == "time limit"
        )
        if entry["outcome"] in ("same", "missed", "passed"):
            survivors.append(_kept(entry))
    more = [_kept(r) for r in sorted(beside, key=lambda r: _order(r["id"])) if r["outcome"] in ("missed", "passed")]
    return {
        "population": dict(population), "sources": dict(sources), "mutants": found, "survivors": survivors,
        "beside": more,
    }  # fmt: skip


def records(data: Data, sources: Mapping[str, str]) -> dict[str, Record]:
    """Id → what is kept of each record, of the files that are what they were when they were judged.

    Args:
        sources: file → its hash now.
    """
    kill = data.get("kill", {})
    survivors = {s["id"]: s for s in kill.get("survivors", ())}
    out: dict[str, Record] = {}
    for file, of_file in kill.get("mutants", {}).items():
        if sources.get(file) != kill["sources"].get(file):
            continue
        for place, code in of_file.items():
            name, (outcome, gates) = f"{file}:{place}", decoded(code)
            by = "time limit" if code.endswith("t") else ""
            out[name] = {"id": name, "outcome": outcome, "by": by, "gates": sorted(gates), **survivors.get(name, {})}
    return out


def _kept(entry: Record) -> Record:
    wanted = ("id", "outcome", "by", "diff", "subject", "overreads", "compared")
    return {k: entry[k] for k in wanted if entry.get(k)}


def _order(name: str) -> tuple[str, int, int, str]:
    file, line, column, operator = name.split(":", 3)
    return file, int(line), int(column), operator


def save(path: Path, data: Data) -> None:
    """Compact, a file's mutants a line, so that a difference can be read."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True)
    path.write_text(
        re.sub(r'(\}, |\{)("(?:gemm|formats|pack|quantize|common|packed|q8_1|f32)[\w./ ]*": \{)', r"\1\n\2", text)
        + "\n"
    )


def load(path: Path) -> Data:
    """The results file; {} where there is none. Raises SystemExit where it is damaged."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text())
        for of_file in data.get("kill", {}).get("mutants", {}).values():
            for code in of_file.values():
                decoded(code)
        return dict(data)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SystemExit(f"{path} holds no results: {error}") from None


# -- figures ----------------------------------------------------------------------------------------------------------


class Tally:
    """Counts of one row."""

    def __init__(self) -> None:
        self.judged = self.changed = self.killed = self.same = 0
        self.caught = dict.fromkeys(GATES, 0)

    def add(self, outcome: str, gates: frozenset[str]) -> None:
        if outcome in ("uncompilable", "unobservable"):
            return
        self.judged += 1
        if outcome == "same":
            self.same += 1
            return
        self.changed += 1
        self.killed += outcome == "killed"
        for gate in gates:
            self.caught[gate] += 1


def tallies(data: Data) -> dict[str, Tally]:
    """The rows of the table."""
    out = {name: Tally() for name in (*ROWS, CATALOGUE)}
    for file, of_file in data.get("kill", {}).get("mutants", {}).items():
        for code in of_file.values():
            out[row_of(file)].add(*decoded(code))
    for faults in data.get("catalogue", {}).values():
        for code in faults.values():
            out[CATALOGUE].add(*decoded(code))
    return out


def _share(part: int, whole: int) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    shown = "100" if part == whole else f"{min(percent, 99.9):.1f}"  # never rounded to all
    return f"{part:,} ({shown} %)"


def table(data: Data) -> list[str]:
    """The table of docs/evidence.md."""
    head = ["", "mutants", "changed a bit", "killed by gguf-verify", *_COLUMNS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, tally in tallies(data).items():
        if tally.judged:
            cells = [_share(tally.caught[gate], tally.changed) for gate in _COLUMNS.values()]
            row = [name, f"{tally.judged:,}", f"{tally.changed:,}", _share(tally.killed, tally.changed), *cells]
            lines.append(f"| {' | '.join(row)} |")
    return lines


def summary(data: Data) -> str:
    """What was run, in a sentence or two."""
    kill = data["kill"]
    whole = sum(kill["population"].values())
    codes = [code for of_file in kill["mutants"].values() for code in of_file.values()]
    outcomes, late = [decoded(code)[0] for code in codes], sum(code.endswith("t") for code in codes)
    count = {name: outcomes.count(name) for name in LETTERS}
    judged = len(outcomes) - count["uncompilable"] - count["unobservable"]
    whole_files = all(len(of_file) == kill["population"][file] for file, of_file in kill["mutants"].items())
    part = "all" if len(outcomes) == whole else f"{'' if whole_files else 'a random part, '}{len(outcomes):,}"
    return (
        f"Of {whole:,} mutants, {part} were run: {count['uncompilable']:,} do not compile, "
        f"{count['unobservable']:,} mean nothing on a CPU, {judged:,} were judged. Of these "
        f"{count['killed']:,} were killed ({late:,} by a time limit), "
        f"{count['missed'] + count['passed']:,} changed a bit of some valid input and were not, and {count['same']:,} "
        f"changed none that was found.{_without(kill)}"
    )


def _without(kill: Data) -> str:
    """Which sources have none that counts."""
    none = [f"`{f}`" for f, whole in sorted(kill["population"].items()) if whole and f not in kill["mutants"]]
    return f" None yet of {', '.join(none)}." if none else ""


def reasons(path: Path = EQUIVALENT) -> list[dict[str, str]]:
    """Why mutants change no bit: `file`, `diff` and perhaps `operator`, regular expressions of a mutant's, and `why`.
    Raises SystemExit where the file is damaged."""
    try:
        found = tomllib.loads(path.read_text()).get("equivalent", [])
        for entry in found:
            re.compile(entry["file"]), re.compile(entry["diff"])
            entry["why"]
        return list(found)
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise SystemExit(f"{path}: {error!r}") from None


def reason(survivor: Record, known: Sequence[Mapping[str, str]]) -> str:
    """Why a survivor that changes no bit is equivalent; "" where nobody has said."""
    if survivor.get("by"):
        return str(survivor["by"])
    if survivor.get("overreads"):
        return f"{UNSEEN}: reads past the end of an input and uses nothing of it; a sanitizer tells"
    file = survivor["id"].split(":")[0]
    for entry in known:
        fits = re.fullmatch(entry["file"], file) and re.search(entry["diff"], survivor["diff"])
        if fits and re.search(entry.get("operator", ""), survivor["id"].split(":", 3)[3]):
            return entry["why"]
    return ""


_ABOUT = {
    UNSEEN.capitalize(): "Wrong on a GPU or to a sanitizer, or perhaps: neither was asked, and no output tells here.",
    "Equivalent": "No output changes: a GPU's compiler makes the same code of it, or for the reason given.",
    "Unexplained": "No input was found at which they change a bit, and nobody has said why there is none. Some may be "
    "killed by rungs that have learned since they were judged: `kill --again` asks.",
}


def page(data: Data, known: Sequence[Mapping[str, str]] | None = None) -> str:
    """docs/mutation.md."""
    known = reasons() if known is None else known
    kill = data["kill"]
    lines = [
        "# Mutants",
        "",
        "<!-- Generated by `python scripts/mutation_score.py report`; a test fails where it is out of date. -->",
        "",
        summary(data),
        "",
        *table(data),
        "",
        "| source | mutants | run | judged | changed a bit | killed |",
        "|---|---|---|---|---|---|",
    ]
    for file, whole in sorted(kill["population"].items()):
        tally = Tally()
        codes = kill["mutants"].get(file, {})
        for code in codes.values():
            tally.add(*decoded(code))
        killed = _share(tally.killed, tally.changed)
        lines.append(f"| `{file}` | {whole:,} | {len(codes):,} | {tally.judged:,} | {tally.changed:,} | {killed} |")
    if checked := data.get("checked"):
        lines += [
            "",
            f"On {checked['mutants']} of them, drawn at random, `verify_model.py` itself was run, with the mutant in "
            f"its sources: its verdict was the same for {checked['same']}.",
        ]
        lines += [f"- `{entry['id']}`: {entry['said']}" for entry in checked.get("differing", ())]
    missed = [s for s in kill["survivors"] if s["outcome"] in ("missed", "passed")]
    beside = kill.get("beside", [])
    lines += ["", "## Missed", "", "They change a bit of the input that is named, and no rung saw it.", ""]
    lines += [_missed(s) for s in missed] or ["None."]
    if beside:
        lines += ["", "And of mutants that were judged beside those that count:", "", *map(_missed, beside)]
    told: dict[str, list[str]] = {UNSEEN.capitalize(): [], "Equivalent": [], "Unexplained": []}
    for survivor in (s for s in kill["survivors"] if s["outcome"] == "same"):
        why = reason(survivor, known)
        title = "Unexplained" if not why else UNSEEN.capitalize() if why.startswith(UNSEEN) else "Equivalent"
        said = why.removeprefix(f"{UNSEEN}: ")
        told[title].append(f"- {_line(survivor)}" + (f": {said}" if said else ""))
    for title, shown in told.items():
        lines += ["", f"## {title}", "", _ABOUT[title], "", *(shown or ["None."])]
    return "\n".join(lines) + "\n"


def _missed(survivor: Record) -> str:
    return f"- {_line(survivor)}: {_code(survivor.get('by', ''))} ({survivor.get('subject', '')})"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _line(survivor: Record) -> str:
    return f"`{survivor['id']}` {_code(survivor['diff'].replace('`', ''))}"
