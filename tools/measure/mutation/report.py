"""The page docs/mutation.md and the tables of the results file."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gguf_verify.rungs.plan import PLAN
from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

from .. import alarms, markdown
from ..naming import naming
from ..results import OTHER_CHECKS, Data, decoded, encoded
from . import guided
from .population import SAME_CODE, Record
from .subjects import row_of

PAGE = CHECKOUT / "docs" / "mutation.md"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

#: Rows of the table, in order; the last is the catalogue's.
ROWS = ("GEMM sources", "format headers", "quantizer", "packing")
CATALOGUE = "catalogue faults"
#: The other checks with a column in the table.
_COLUMNS = {
    "NMSE ≤ 5·10⁻⁴, of the float32 product": "nmse values",
    "NMSE, of the definition": "nmse definition",
    "allclose(10⁻², 10⁻²)": "allclose definition",
    "cosine ≥ 0.98": "cosine definition",
}

#: Prefix of the reason for a mutant that is or may be wrong on a host where it was not run.
UNSEEN = "not observable on this host"
PROVED, EXPLAINED = "Proved equivalent", "Explained, not proved"

#: The version of the judgement in results; `_BEFORE` for results without one.
VERSION = f"probe plan {PLAN}, with other schedules and checked builds"
_BEFORE = "a probe plan without a version, before other schedules and checked builds existed"


def collected(records: Mapping[str, Record], population: Mapping[str, int], sources: Mapping[str, str]) -> Data:
    """Return the part `kill` or `sample` of the results."""
    found: dict[str, dict[str, str]] = {}
    survivors = []
    for entry in sorted(records.values(), key=lambda r: _order(r["id"])):
        file, place = entry["id"].split(":", 1)
        found.setdefault(file, {})[place] = encoded(
            entry["outcome"], entry.get("checks", ()), entry["by"] == "time limit"
        )
        if entry["outcome"] in ("same", "missed", "passed"):
            survivors.append(_kept(entry))
    return {
        "version": VERSION, "population": dict(population), "sources": dict(sources), "mutants": found,
        "survivors": survivors,
    }  # fmt: skip


def records(data: Data, sources: Mapping[str, str]) -> dict[str, Record]:
    """Return the stored records by id, for the files that have not changed since they were judged.

    Args:
        sources: file → its present hash.
    """
    kill = data.get("kill", {})
    survivors = {s["id"]: s for s in kill.get("survivors", ())}
    out: dict[str, Record] = {}
    for file, of_file in kill.get("mutants", {}).items():
        if sources.get(file) != kill["sources"].get(file):
            continue
        for place, code in of_file.items():
            name, (outcome, checks) = f"{file}:{place}", decoded(code)
            by = "time limit" if code.endswith("t") else ""
            out[name] = {"id": name, "outcome": outcome, "by": by, "checks": sorted(checks), **survivors.get(name, {})}
    return out


def _kept(entry: Record) -> Record:
    wanted = ("id", "outcome", "by", "diff", "subject", "compared")
    return {k: entry[k] for k in wanted if entry.get(k)}


def _order(name: str) -> tuple[str, int, int, str]:
    file, line, column, operator = name.split(":", 3)
    return file, int(line), int(column), operator


# -- figures ----------------------------------------------------------------------------------------------------------


class Tally:
    """The counts in one row of the table."""

    def __init__(self, codes: Iterable[str] = ()) -> None:
        self.judged = self.changed = self.killed = 0
        self.caught = dict.fromkeys(OTHER_CHECKS, 0)
        self.add(codes)

    def add(self, codes: Iterable[str]) -> None:
        for outcome, checks in map(decoded, codes):
            self.judged += outcome not in ("uncompilable", "unobservable")
            self.changed += outcome in ("killed", "passed", "missed")
            self.killed += outcome == "killed"
            for check in checks:
                self.caught[check] += 1


def tallies(data: Data, part: str = "kill") -> dict[str, Tally]:
    """The rows of the table for a part of the results."""
    out = {name: Tally() for name in (*ROWS, CATALOGUE)}
    for file, of_file in data.get(part, {}).get("mutants", {}).items():
        out[row_of(file)].add(of_file.values())
    for faults in data.get("catalogue", {}).values() if part == "kill" else ():
        out[CATALOGUE].add(faults.values())
    return out


def _share(part: int, whole: int) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    shown = "100" if part == whole else f"{min(percent, 99.9):.1f}"  # never rounded up to 100
    return f"{part:,} ({shown} %)"


def table(data: Data, part: str = "kill") -> str:
    """The table of mutants."""
    return markdown.table(
        ["", "mutants", "changed a bit", "killed by gguf-verify", *_COLUMNS],
        [
            [
                name, f"{tally.judged:,}", f"{tally.changed:,}", _share(tally.killed, tally.changed),
                *(_share(tally.caught[check], tally.changed) for check in _COLUMNS.values()),
            ]
            for name, tally in tallies(data, part).items() if tally.judged
        ],
    )  # fmt: skip


def tables(data: Data) -> dict[str, str]:
    """Marker → its content."""
    made = {"kill": table(data), "run": summary(data["kill"])} if "kill" in data else {}
    if "sample" in data:
        made |= {"sample": table(data, "sample"), "sampled": summary(data["sample"])}
    if "guarded" in data:
        head = ["condition", "mutants", "killed without guidance", "killed", "reported as not run", "silent"]
        made |= {
            "guarded": guided.summary(data["guarded"]),
            "conditions": markdown.table(head, guided.rows(data["guarded"])),
        }
    rows = {
        "naming": naming.rows(data["naming"]) if "naming" in data else [],
        "alarms": [row for figures in data.get("alarms", {}).values() for row in alarms.rows(figures)],
    }
    return made | {name: markdown.table(["", "measured", "goal"], of) for name, of in rows.items() if of}


def summary(kill: Data) -> str:
    """Summarize the run in a few sentences."""
    whole = sum(kill["population"].values())
    codes = [code for of_file in kill["mutants"].values() for code in of_file.values()]
    count = Counter(decoded(code)[0] for code in codes)
    late = sum(code.endswith("t") for code in codes)
    judged = len(codes) - count["uncompilable"] - count["unobservable"]
    part = "all" if len(codes) == whole else f"a random sample of {len(codes):,}"
    return (
        f"Of {whole:,} mutants, {part} were run: {count['uncompilable']:,} do not compile, "
        f"{count['unobservable']:,} make no difference on a CPU, and {judged:,} were judged. Of these, "
        f"{count['killed']:,} were killed ({late:,} by a time limit), "
        f"{count['missed'] + count['passed']:,} changed a bit of the output for some valid input and were not killed, "
        f"and {count['same']:,} changed no bit for any input that was tried. They were judged by "
        f"{kill.get('version', _BEFORE)}."
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def reasons(path: Path = EQUIVALENT) -> list[dict[str, str]]:
    """Read the known reasons why mutants change no bit.

    An entry has `file`, `diff` and optionally `operator`, regular expressions that a mutant must match, and `why`.
    Raises UsageError if the file is damaged.
    """
    try:
        found = tomllib.loads(path.read_text()).get("equivalent", [])
        for entry in found:
            for name in ("file", "diff", "operator"):
                re.compile(entry.get(name, "") if name == "operator" else entry[name])
            entry["why"].strip()
        return list(found)
    except (OSError, ValueError, KeyError, AttributeError, re.error) as error:
        raise UsageError(f"{path}: {error!r}") from None


def reason(survivor: Record, known: Sequence[Mapping[str, str]]) -> str:
    """Return why a survivor that changes no bit is equivalent; "" if no reason is known."""
    if survivor.get("by"):
        return str(survivor["by"])
    file, _, _, operator = survivor["id"].split(":", 3)
    for entry in known:
        fits = re.fullmatch(entry["file"], file) and re.search(entry["diff"], survivor["diff"])
        if fits and re.search(entry.get("operator", ""), operator):
            return entry["why"]
    return ""


_ABOUT = {
    UNSEEN.capitalize(): "These may be wrong on a GPU. The reason why no output on the CPU shows them is not tested.",
    PROVED: "A GPU compiler generates the same code for these.",
    EXPLAINED: "The reason why these change no output was written by a person and is not tested.",
    "Unexplained": "No input was found for which these change a bit, and no reason is known. Newer checks in the rungs "
    "may kill some: `python -m tools.measure mutation kill --again` judges them again.",
}


def page(data: Data, known: Sequence[Mapping[str, str]] | None = None) -> str:
    """docs/mutation.md."""
    known = reasons() if known is None else known
    kill = data["kill"]
    files = []
    for file, whole in sorted(kill["population"].items()):
        codes = kill["mutants"].get(file, {})
        tally = Tally(codes.values())
        files.append([
            f"`{file}`", f"{whole:,}", f"{len(codes):,}", f"{tally.judged:,}", f"{tally.changed:,}",
            _share(tally.killed, tally.changed),
        ])  # fmt: skip
    lines = [
        "# Mutants",
        "",
        "<!-- Generated by `python -m tools.measure mutation report`; a test fails where it is out of date. -->",
        "",
        summary(kill),
        "",
        table(data),
        "",
        markdown.table(["source", "mutants", "run", "judged", "changed a bit", "killed"], files),
    ]
    if checked := data.get("checked"):
        lines += [
            "",
            f"For a random {checked['mutants']}, `gguf-verify` itself was run with the mutant in its sources. It gave "
            f"the same verdict for {checked['same']}.",
        ]
        lines += [f"- `{entry['id']}`: {entry['said']}" for entry in checked.get("differing", ())]
    missed = [_missed(s) for s in kill["survivors"] if s["outcome"] in ("missed", "passed")]
    lines += ["", "## Missed", "", "These change a bit for the given input, but no rung reported it.", ""]
    lines += missed or ["None."]
    listed: dict[str, list[str]] = {title: [] for title in _ABOUT}
    for survivor in (s for s in kill["survivors"] if s["outcome"] == "same"):
        why = reason(survivor, known)
        title = EXPLAINED if why else "Unexplained"
        if why == SAME_CODE or why.startswith(UNSEEN):
            title = PROVED if why == SAME_CODE else UNSEEN.capitalize()
        text = why.removeprefix(f"{UNSEEN}: ")
        listed[title].append(f"- {_line(survivor)}" + (f": {text}" if text else ""))
    for title, shown in listed.items():
        lines += ["", f"## {title}", "", _ABOUT[title], "", *(shown or ["None."])]
    if guarded := data.get("guarded"):
        lines += ["", "## Under random conditions", "", guided.summary(guarded), ""]
        lines += [f"- {guided.survivor(s)}" for s in guarded["survivors"]] or ["None survives."]
    return "\n".join(lines) + "\n"


def _missed(survivor: Record) -> str:
    return f"- {_line(survivor)}: {_code(survivor.get('by', ''))} ({survivor.get('subject', '')})"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _line(survivor: Record) -> str:
    return f"`{survivor['id']}` {_code(survivor['diff'].replace('`', ''))}"
