"""What a page shows of one run: records that the templates read, made of a `results.Report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from ...results import (
    Detail,
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
from . import blocks, charts
from .blocks import Block

#: Rows of a table; more are counted.
MOST_ROWS = 5000

_LEVELS = {"passed": "good", "verified": "good", "failed": "bad", "mismatch": "bad"}


class Rung(NamedTuple):
    """A line of the rungs' table."""

    name: str
    question: str
    verdict: str
    level: str
    checked: str
    worst: Sequence[tuple[str, float, str]]  # who, utilisation, where
    figures: Sequence[tuple[str, str]]
    notes: Sequence[str]
    fault: str
    seconds: float


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
    """A position of the tokens rung: its text, and (by whom, token, is it llama.cpp's) of each."""

    position: int
    text: str
    reference: str
    others: Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class Run:
    """A run, ready to be shown."""

    verdict: str
    level: str
    sentence: str
    command: str
    seconds: float
    environment: Environment
    facts: Mapping[str, Any]
    rungs: Sequence[Rung]
    failures: Sequence[Failed]
    n_failures: int
    unverified: Sequence[tuple[str, str, str]]  # rung, name, why
    diagnoses: Sequence[tuple[str, Sequence[str]]]
    wrong_map: Markup | None
    heat: Markup | None
    histograms: Sequence[tuple[str, Markup]]
    gemms: Sequence[GemmRecord]
    n_gemms: int
    tensors: Sequence[Mapping[str, Any]]
    n_tensors: int
    tokens: Sequence[Token]
    token_heads: Sequence[str]
    n_tokens: int


def of(report: Report, failures: int = 80, xrays: int = 40) -> Run:
    """The page of a report, with at most so many failures and x-rays."""
    rungs = report.rungs
    kinds = blocks.types(report)
    layers = report.rung("layers")
    tokens = report.rung("tokens")
    gemms = [r for r in (layers.details if layers else ()) if isinstance(r, GemmRecord)]
    tensors = _tensors(rungs)
    heads, said = _tokens(tokens.details if tokens else ())
    passed = sum(r.verdict == "passed" for r in rungs)
    sentence = f"{passed} of {len(rungs)} rungs passed in {report.seconds:.1f} s"
    total = sum(r.n_failures for r in rungs)
    if total:
        sentence += f"; {total:,} failure{'' if total == 1 else 's'}"
    return Run(
        verdict=report.verdict, level=_LEVELS.get(report.verdict, "warn"), sentence=sentence,
        command=report.command, seconds=report.seconds, environment=report.environment,
        facts=_environment(report.environment), rungs=[_rung(r) for r in rungs],
        failures=_failures(rungs, kinds, xrays)[:failures], n_failures=total,
        unverified=[(r.name, left.name, left.why) for r in rungs for left in r.unverified],
        wrong_map=charts.outputs_map(layers.heat_map) if layers and layers.heat_map else None,
        diagnoses=[(r.diagnosis.tensor, r.diagnosis.lines) for r in rungs if r.diagnosis],
        heat=charts.heat_map(_heat(gemms, layers), "Worst utilisation of the kernel by layer and matrix"),
        histograms=_histograms(gemms), gemms=gemms[:MOST_ROWS], n_gemms=len(gemms),
        tensors=tensors[:MOST_ROWS], n_tensors=len(tensors), tokens=said[:MOST_ROWS], token_heads=heads,
        n_tokens=len(said),
    )  # fmt: skip


def _environment(env: Environment) -> dict[str, Any]:
    """Name → value, for the list at the end of the page."""
    out: dict[str, Any] = {"host": env.host.words, "host chosen": env.host.chosen, "reference": env.reference.where}
    plain = msgspec.to_builtins(env)
    for group in ("versions", "kernel", "file", "options"):
        for name, value in plain[group].items():
            if name != "element_host" and value not in (None, "", {}, ()):
                out[f"{group}: {name.replace('_', ' ')}"] = value
    return out


def _rung(rung: RungResult) -> Rung:
    checked = ", ".join(f"{n:,} {kind}" for kind, n in rung.checked.items() if n) or "nothing"
    worst = [(who, w.utilisation, w.where) for who, w in rung.worst.items()]
    figures = [(name, _figure(value)) for name, value in rung.figures.items()]
    verdict = "broken off" if rung.fault else rung.verdict
    return Rung(
        rung.name, rung.question, verdict, _LEVELS.get(verdict, "warn"), checked, worst, figures,
        rung.notes, rung.fault or "", rung.seconds,
    )  # fmt: skip


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


_FACTS = (
    "tensor", "matrix", "row", "block", "token", "part", "byte_offset", "got", "expected", "bound", "utilisation",
)  # fmt: skip


def _failures(rungs: Sequence[RungResult], kinds: Mapping[str, str], xrays: int) -> list[Failed]:
    out: list[Failed] = []
    shown: set[tuple[str, str]] = set()
    for rung in rungs:
        for failure in rung.failures:
            made, digits = Failed(rung.name, failure.what, _facts(failure)), failure.block_hex
            if digits:
                kind = kinds.get(failure.tensor, "")
                again = (kind, digits) in shown
                made = replace(made, digits=digits, again=again)
                if not again and len(shown) < xrays:
                    shown.add((kind, digits))
                    made = replace(made, block=blocks.block(kind, digits))
            out.append(made)
    return out


def _facts(failure: Failure) -> list[tuple[str, str]]:
    facts = []
    for name in _FACTS:
        value = getattr(failure, name)
        if value is None or value == "" or (name == "part" and value == 0):
            continue
        shown = value if isinstance(value, str) else f"{value:.9g}" if isinstance(value, float) else f"{value:,}"
        facts.append((name.replace("_", " "), shown))
    return facts


def _heat(gemms: Sequence[GemmRecord], layers: RungResult | None) -> list[charts.Gemm]:
    """What the layers rung judged of the kernel, and what it should have."""
    found = [charts.Gemm(g.tensor, g.worst, g.failures) for g in gemms]
    for left in layers.unverified if layers else ():
        if not left.name.startswith("all "):
            found.append(charts.Gemm(left.name, None))
    return found


def _histograms(gemms: Sequence[GemmRecord]) -> list[tuple[str, Markup]]:
    out = []
    for title, values in (("The kernel", [g.own for g in gemms]), ("llama.cpp", [g.llama for g in gemms])):
        drawn = charts.histogram(values, f"{title}: GEMMs by worst utilisation")
        if drawn is not None:
            out.append((title, drawn))
    return out


def _tensors(rungs: Sequence[RungResult]) -> list[dict[str, Any]]:
    """One record a tensor: what the bytes and the blocks rung say of it."""
    found: dict[str, dict[str, Any]] = {}
    for rung in rungs:
        for record in rung.details:
            if not isinstance(record, (TensorBytes, TensorBlocks)):
                continue
            made = found.setdefault(record.tensor, {"tensor": record.tensor, "type": record.type})
            if isinstance(record, TensorBytes):
                made |= {"bytes": record.nbytes, "offset": record.offset}
            made[f"{rung.name} blocks"] = record.n_blocks
            made[f"{rung.name} failures"] = record.failures
    for made in found.values():
        bad = any(made.get(f"{name} failures") for name in ("bytes", "blocks"))
        made["level"] = "bad" if bad else "good"
    return list(found.values())


def _tokens(details: Sequence[Detail]) -> tuple[list[str], list[Token]]:
    """Columns besides llama.cpp's, and the positions. A model that embeds has cosines instead of tokens."""
    heads: list[str] = []
    out = []
    for record in details:
        if isinstance(record, TokenRecord):
            heads = ["kernel (a)", "kernel (b)", "exact (b)"]
            others = [(str(v), v == record.llama) for v in (record.shared, record.own, record.exact)]
            out.append(Token(record.position, record.text, str(record.llama), others))
        elif isinstance(record, EmbeddingRecord):
            heads = ["kernel (a) cosine", "kernel (b) cosine", "exact (b) cosine", "kernel (b) max |Δ|"]
            values = (record.shared, record.own, record.exact, record.own_difference)
            out.append(Token(record.position, record.text, "", [(f"{v:.6g}", True) for v in values]))
    return heads, out
