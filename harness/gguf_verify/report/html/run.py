"""The page of a run: the records of `results`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from ...checks import Check
from ...results.costs import QuantizationCosts
from ...results.diagnoses import LocatedDiagnosis
from ...results.failures import CULPRITS, Failure
from ...results.products import EmbeddingRecord, GemmRecord, TensorBlocks, TensorBytes, TokenRecord, TypeEnvelope
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.text import counted
from .. import grid, heat_map, run_words, shades
from . import block, charts
from .block import Block

#: Rows of a table; more are counted.
MOST_ROWS = 5000
#: Cells of a map that show their place under the pointer; all cells are drawn.
MOST_TITLES = 100


class Rung(NamedTuple):
    """A line of the rungs' table: `worst` has side, utilisation and place; `stages` its time by stage."""

    result: RungResult
    level: str
    checked: str
    worst: Sequence[tuple[str, float, str]]
    figures: Sequence[tuple[str, str]]
    stages: Sequence[tuple[str, float]]


class Picture(NamedTuple):
    """A heat map: its name, a description, and the picture."""

    title: str
    told: Sequence[str]
    drawn: Markup


class Explained(NamedTuple):
    """A diagnosis: faults with their fixes, and the places where it was found, with further facts."""

    found: Sequence[tuple[str, str]]
    places: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class First:
    """The first failure: its numbers, where it is, and the x-rays of its block and of the activations that it met."""

    rung: str
    what: str
    numbers: Sequence[tuple[str, str]]
    facts: Sequence[tuple[str, str]]
    block: Block | None = None
    activations: Sequence[Block] = ()


class Count(NamedTuple):
    """The number of failures of a tensor in each rung; the tensor "" has those of no tensor."""

    tensor: str
    type: str
    wrong: Sequence[int]
    total: int


class Token(NamedTuple):
    """A position of the tokens rung: its text, llama.cpp's token, and the others, each with whether it is the same."""

    position: int
    text: str
    reference: str
    others: Sequence[tuple[str, bool]]


class OfTensor(NamedTuple):
    """The records of a tensor in the bytes rung and the blocks rung."""

    name: str
    type: str
    read: TensorBytes | None
    multiplied: TensorBlocks | None

    @property
    def level(self) -> str:
        return (
            "bad" if any(record is not None and record.failures for record in (self.read, self.multiplied)) else "good"
        )


class Costs(NamedTuple):
    """Ready to be shown."""

    found: QuantizationCosts
    bars: Markup | None
    predictions: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Run:
    """A run, ready to be shown."""

    verdict: str
    level: str
    sentence: str
    margin: str
    command: str
    environment: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    rungs: Sequence[Rung]
    explained: Sequence[Explained]
    wrong_map: Picture | None
    first: First | None
    counts: Sequence[Count]
    n_counts: int
    failures: Sequence[tuple[RungResult, Failure]]
    n_failures: int
    fault: str | None
    unverified: Sequence[tuple[str, str, str]]  # rung, name, why
    envelopes: Sequence[TypeEnvelope]
    skipped: Sequence[Check]
    heat: Picture | None
    histograms: Sequence[tuple[str, Markup]]
    gemms: Sequence[GemmRecord]
    n_gemms: int
    tensors: Sequence[OfTensor]
    n_tensors: int
    tokens: Sequence[Token]
    token_heads: Sequence[str]
    n_tokens: int


def of(report: Report, failures: int = 80) -> Run:
    """Return a run with at most this number of failures."""
    layers, tokens = report.rung("layers"), report.rung("tokens")
    gemms = layers.gemms if layers is not None else []
    tensors = _tensors(report)
    counts = _counts(report)
    heads, said = _tokens(tokens) if tokens is not None else ([], [])
    whole = grid.of_layers(layers) if layers is not None else None
    envelopes = [e for r in report.rungs for e in r.envelopes]
    return Run(
        verdict=report.words, level=shades.level(report.verdict), sentence=_sentence(report),
        margin=_margin(report), command=report.repeat_of(),
        environment=list(_environment(report)), rungs=[_rung(r) for r in report.rungs],
        explained=_all_explained(report),
        wrong_map=picture(grid.of_gemm(layers.heat_map)) if layers is not None and layers.heat_map else None,
        first=_first(report), counts=counts[:MOST_ROWS], n_counts=len(counts),
        failures=report.failures[:failures],
        n_failures=report.n_failures, fault=report.fault or report.unfinished,
        unverified=[
            (r.name, u.title, u.why + run_words.blame(u)) for r in report.rungs for u in r.unverified
        ],
        envelopes=envelopes if report.kernel_ran else [], skipped=report.skipped,
        heat=None if whole is None else picture(whole), histograms=_histograms(gemms), gemms=gemms[:MOST_ROWS],
        n_gemms=len(gemms), tensors=tensors[:MOST_ROWS], n_tensors=len(tensors), tokens=said[:MOST_ROWS],
        token_heads=heads, n_tokens=len(said),
    )  # fmt: skip


def _sentence(report: Report) -> str:
    """Who is at fault, and the counts."""
    told = f"{report.at_fault}. " if report.culprits else ""
    told += f"On random data (no model): {run_words.drawn(report.drawn)}. " if report.drawn is not None else ""
    told += f"{run_words.passed(report)} in {report.seconds:.1f} s"
    if total := report.n_failures:
        told += f"; {counted(total, 'failures')}"
    return told + "."


def _margin(report: Report) -> str:
    """Return the largest error of the kernel relative to its bound; "": no bound was judged."""
    found = run_words.worst(report)
    if found is None:
        return ""
    worst, at = found[0].utilisation, f"in the {found[1].name} rung, at {found[0].where}"
    if not worst <= 1:
        return f"The largest error of the kernel is {run_words.of_bound(worst)}, {at}."
    return f"The largest error of the kernel is {100 * worst:.3g} % of its bound, {at}."


def _all_explained(report: Report) -> list[Explained]:
    """The diagnoses of all rungs; those that say the same cause are one, with the places of all."""
    of: dict[tuple[tuple[str, str], ...], Explained] = {}
    leading = report.diagnosed
    rest = [(rung, d) for rung in report.rungs for d in rung.diagnoses if all(d is not other for _, other in leading)]
    for rung, diagnosis in [*leading, *rest]:
        made = _explained(rung.name, diagnosis)
        key = tuple(made.found)
        if key in of:
            made = of[key]._replace(places=[*of[key].places, *made.places])
        of[key] = made
    return list(of.values())


def _explained(rung: str, d: LocatedDiagnosis) -> Explained:
    """A diagnosis with its fixes apart from the rest."""
    found, more = [], []
    for line in d.lines:
        words, fix, cure = line.partition(". Fix: ")
        if fix:
            found.append((words[:1].upper() + words[1:] + ".", cure))
        else:
            more.append(line)
    if not found and more:
        first, *more = more
        found = [(first[:1].upper() + first[1:] + ".", "")]
    block = "" if d.block is None else f", block {d.block:,}"
    where = f"{rung}: {d.where}, {d.who}, first wrong at row {d.row:,}, token {d.token:,}{block}"
    return Explained(found, [(where, more)])


def _first(report: Report) -> First | None:
    """The failure that says most: the first with numbers and a block, else the first with numbers, else the first."""
    if not report.failures:
        return None

    def told(f: Failure) -> tuple[bool, bool]:
        return f.got is None, f.block_hex is None

    rung, failure = min(report.failures, key=lambda one: told(one[1]))
    numbers = [(name, shown) for name, shown in _facts(failure) if name in _NUMBERS]
    culprit, *facts = [(name, shown) for name, shown in _facts(failure) if name not in _NUMBERS]
    kind = failure.block_type or report.tensor_types.get(failure.tensor, "")
    made = None if not failure.block_hex else block.of(kind, failure.block_hex)
    met = block.of_activations(failure.activation_type, failure.activation_hex or "")
    return First(rung.name, failure.what, numbers, [*facts, culprit], made, met)


def _counts(report: Report) -> list[Count]:
    """Count failures by tensor and rung, the most first; last those of no tensor."""
    types, made = report.tensor_types, []
    for tensor in [*run_words.failing(report), ""]:
        wrong = [rung.failing.get(tensor, 0) for rung in report.rungs]
        if any(wrong):
            made.append(Count(tensor, types.get(tensor, ""), wrong, sum(wrong)))
    return made


def picture(made: grid.Grid) -> Picture:
    """A heat map as an element of the page."""
    return Picture(made.title, made.told, Markup(heat_map.svg([made], MOST_TITLES)))


def _environment(report: Report) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The environment, a record after the other, each field in words; of the kernel only where it ran."""
    for name, record in msgspec.to_builtins(report.environment).items():
        if name in ("kernel", "host") and not report.kernel_ran:
            record = {name: "was not run"}
        if not isinstance(record, Mapping):
            record = {"where": record}
        yield (
            name,
            [
                (key.replace("_", " "), str(value) if key == "seed" else _words(value))
                for key, value in record.items()
                if value not in (None, "")
            ],
        )


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')}: {_words(v)}" for key, v in value.items() if v not in (None, ""))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _rung(rung: RungResult) -> Rung:
    checked = run_words.counts(rung.checked) or "nothing"
    worst = [(who, w.utilisation, w.where) for who, w in rung.worst.items()]
    figures = [(name, f"{v:,}" if isinstance(v, int) else f"{v:.3g}") for name, v in rung.figures.items()]
    if rung.headroom is not None:
        figures.append(("range", run_words.headroom(rung.headroom)))
    spent = sorted(rung.stages.items(), key=lambda one: -one[1])
    if spent and (rest := rung.seconds - sum(rung.stages.values())) > 0:
        spent.append(("everything else", rest))
    return Rung(rung, shades.level(rung.outcome), checked, worst, figures, spent)


#: Facts of a failure that are its numbers.
_NUMBERS = ("got", "expected", "bound", "utilisation")


def _facts(failure: Failure) -> Iterator[tuple[str, str]]:
    """Who is at fault for a failure, where it is, and its numbers."""
    yield "at fault", CULPRITS[failure.culprit]
    fields = ("tensor", "matrix", "row", "block", "token", "part", "byte_offset", "got", "expected", "bound",
              "utilisation")  # fmt: skip
    for name in fields:
        value = getattr(failure, name)
        if value in (None, "") or (name == "part" and not value):
            continue
        digits = 4 if name in ("bound", "utilisation") else 9
        shown = value if isinstance(value, str) else f"{value:.{digits}g}" if isinstance(value, float) else f"{value:,}"
        yield name.replace("_", " "), shown


def _histograms(gemms: Sequence[GemmRecord]) -> list[tuple[str, Markup]]:
    values = {"The kernel": [g.own for g in gemms], "llama.cpp": [g.llama for g in gemms if g.llama is not None]}
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


def costs(report: Report) -> Costs | None:
    """The costs of a run; None where none were measured."""
    found = report.costs
    if found is None:
        return None
    facts = []
    if (text := found.text) is not None:
        facts = [("text", f"{text.text}: {text.tokens:,} tokens"), ("predictions scored", run_words.scored(text))]
        for name, value, source in run_words.predictions(text):
            facts.append((name, f"{value}, of the source {source}" if source else value))
    return Costs(found, charts.layer_costs(found.by_layer), facts)
