"""What a page shows of one run: the records of `results`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from ...results import (
    CULPRITS,
    EmbeddingRecord,
    Environment,
    Failure,
    GemmRecord,
    Report,
    RungResult,
    TensorBlocks,
    TensorBytes,
    TokenRecord,
)
from .. import grid, heat_map
from . import block, charts
from .block import Block

#: Rows of a table; more are counted.
MOST_ROWS = 5000
#: Cells of a map that say where they are when they are pointed at; all are drawn.
MOST_TITLES = 100

LEVELS = {"passed": "good", "verified": "good", "failed": "bad", "mismatch": "bad"}


class Rung(NamedTuple):
    """A line of the rungs' table: `worst` has whose output, utilisation and place."""

    result: RungResult
    level: str
    checked: str
    worst: Sequence[tuple[str, float, str]]
    figures: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Failed:
    """A failure; of its block the x-ray, or the bytes where there were x-rays enough. `again`: it is shown above."""

    rung: str
    what: str
    facts: Sequence[tuple[str, str]]
    block: Block | None = None
    digits: str = ""
    again: bool = False


class Token(NamedTuple):
    """A position of the tokens rung: its text, llama.cpp's token, and the others, each with whether it is the same."""

    position: int
    text: str
    reference: str
    others: Sequence[tuple[str, bool]]


class OfTensor(NamedTuple):
    """What the bytes and the blocks rung say of a tensor."""

    name: str
    type: str
    read: TensorBytes | None
    multiplied: TensorBlocks | None

    @property
    def level(self) -> str:
        return (
            "bad" if any(record is not None and record.failures for record in (self.read, self.multiplied)) else "good"
        )


@dataclass(frozen=True)
class Run:
    """A run, ready to be shown."""

    verdict: str
    level: str
    sentence: str
    command: str
    environment: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    rungs: Sequence[Rung]
    failures: Sequence[Failed]
    n_failures: int
    fault: str | None
    unverified: Sequence[tuple[str, str, str]]  # rung, name, why
    diagnoses: Sequence[tuple[str, Sequence[str]]]
    wrong_map: Markup | None
    heat: Markup | None
    histograms: Sequence[tuple[str, Markup]]
    gemms: Sequence[GemmRecord]
    n_gemms: int
    tensors: Sequence[OfTensor]
    n_tensors: int
    tokens: Sequence[Token]
    token_heads: Sequence[str]
    n_tokens: int


def of(report: Report, failures: int = 80, xrays: int = 40) -> Run:
    """A run with at most so many failures and x-rays."""
    layers, tokens = report.rung("layers"), report.rung("tokens")
    gemms = layers.gemms if layers is not None else []
    tensors = _tensors(report)
    heads, said = _tokens(tokens) if tokens is not None else ([], [])
    passed = sum(r.verdict == "passed" for r in report.rungs)
    sentence = f"{passed} of {len(report.rungs)} rungs passed in {report.seconds:.1f} s"
    if total := report.n_failures:
        sentence += f"; {total:,} failure{'' if total == 1 else 's'}"
    if report.culprits:
        sentence += f"; at fault: {report.at_fault}"
    whole = grid.of_layers(layers) if layers is not None else None
    return Run(
        verdict=report.verdict, level=LEVELS.get(report.verdict, "warn"), sentence=sentence, command=report.repeat_of(),
        environment=list(_environment(report.environment)), rungs=[_rung(r) for r in report.rungs],
        failures=_failures(report, xrays)[:failures], n_failures=total, fault=report.fault,
        unverified=[
            (r.name, u.name, f"{u.why} (at fault: {CULPRITS[u.culprit]})") for r in report.rungs for u in r.unverified
        ],
        diagnoses=[(r.diagnosis.tensor, r.diagnosis.lines) for r in report.rungs if r.diagnosis],
        wrong_map=picture(grid.of_gemm(layers.heat_map)) if layers is not None and layers.heat_map else None,
        heat=None if whole is None else picture(whole), histograms=_histograms(gemms), gemms=gemms[:MOST_ROWS],
        n_gemms=len(gemms), tensors=tensors[:MOST_ROWS], n_tensors=len(tensors), tokens=said[:MOST_ROWS],
        token_heads=heads, n_tokens=len(said),
    )  # fmt: skip


def picture(made: grid.Grid) -> Markup:
    """A heat map as an element of the page."""
    return Markup(heat_map.svg([made], MOST_TITLES))


def _environment(environment: Environment) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The environment, a record after the other, each field in words."""
    for name, record in msgspec.to_builtins(environment).items():
        yield name, [(key.replace("_", " "), _words(value)) for key, value in record.items() if value not in (None, "")]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')}: {_words(v)}" for key, v in value.items() if v not in (None, ""))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _rung(rung: RungResult) -> Rung:
    checked = ", ".join(f"{n:,} {kind}" for kind, n in rung.checked.items() if n) or "nothing"
    worst = [(who, w.utilisation, w.where) for who, w in rung.worst.items()]
    figures = [(name, f"{v:,}" if isinstance(v, int) else f"{v:.3g}") for name, v in rung.figures.items()]
    if rung.headroom is not None:
        figures.append(("range", f"{rung.headroom.tensor}: {rung.headroom.words}"))
    return Rung(rung, LEVELS.get(rung.outcome, "warn"), checked, worst, figures)


def _failures(report: Report, xrays: int) -> list[Failed]:
    kinds = report.tensor_types
    out: list[Failed] = []
    shown: set[tuple[str, str]] = set()
    for rung, failure in report.failures:
        made = Failed(rung.name, failure.what, list(_facts(failure)))
        if digits := failure.block_hex:
            kind = kinds.get(failure.tensor, "")
            again = (kind, digits) in shown
            made = replace(made, digits=digits, again=again)
            if not again and len(shown) < xrays:
                shown.add((kind, digits))
                made = replace(made, block=block.of(kind, digits))
        out.append(made)
    return out


def _facts(failure: Failure) -> Iterator[tuple[str, str]]:
    """Who is at fault for a failure, where it is, and its numbers."""
    yield "at fault", CULPRITS[failure.culprit]
    fields = ("tensor", "matrix", "row", "block", "token", "part", "byte_offset", "got", "expected", "bound",
              "utilisation")  # fmt: skip
    for name in fields:
        value = getattr(failure, name)
        if value in (None, "") or (name == "part" and not value):
            continue
        shown = value if isinstance(value, str) else f"{value:.9g}" if isinstance(value, float) else f"{value:,}"
        yield name.replace("_", " "), shown


def _histograms(gemms: Sequence[GemmRecord]) -> list[tuple[str, Markup]]:
    values = {"The kernel": [g.own for g in gemms], "llama.cpp": [g.llama for g in gemms]}
    drawn = [(name, charts.histogram(of, f"{name}: GEMMs by largest utilisation")) for name, of in values.items()]
    return [(name, made) for name, made in drawn if made is not None]


def _tensors(report: Report) -> list[OfTensor]:
    found: dict[str, OfTensor] = {}
    for rung in report.rungs:
        for record in rung.details:
            if isinstance(record, TensorBytes):
                found[record.tensor] = OfTensor(record.tensor, record.type, record, None)
            elif isinstance(record, TensorBlocks):
                before = found.get(record.tensor, OfTensor(record.tensor, record.type, None, None))
                found[record.tensor] = before._replace(multiplied=record)
    return list(found.values())


def _tokens(rung: RungResult) -> tuple[list[str], list[Token]]:
    """Columns besides llama.cpp's, and the positions; an encoder has cosines instead of tokens."""
    tokens = [r for r in rung.details if isinstance(r, TokenRecord)]
    if tokens:
        heads = ["kernel on llama.cpp's activations", "kernel on its own", "exact product"]
        return heads, [
            Token(r.position, r.text, str(r.llama), [(str(v), v == r.llama) for v in (r.shared, r.own, r.exact)])
            for r in tokens
        ]
    heads = ["cosine on llama.cpp's activations", "cosine on the kernel's own", "cosine of the exact product"]
    return heads, [
        Token(r.position, r.text, "", [(f"{v:.6g}", True) for v in (r.shared, r.own, r.exact)])
        for r in rung.details if isinstance(r, EmbeddingRecord)
    ]  # fmt: skip
