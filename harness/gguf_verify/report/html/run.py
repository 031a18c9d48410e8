"""What a page shows of one run: plain records made of its JSON report (`gguf_verify.report.json_report`, schema 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from markupsafe import Markup

from . import blocks, charts
from .blocks import Block

#: Rows of a table; more are counted.
MOST_ROWS = 5000

QUESTIONS = {
    "bytes": "Does every byte of the file mean to us what it means to llama.cpp?",
    "blocks": "Does one block times one activation block give llama.cpp's number?",
    "layers": "Does each GEMM of the real graph, on the real activations, give llama.cpp's output?",
    "tokens": "Does the model still say the same thing when its GEMMs are ours?",
}
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
    header: Mapping[str, Any]
    rungs: Sequence[Rung]
    failures: Sequence[Failed]
    n_failures: int
    unverified: Sequence[tuple[str, str, str]]  # rung, name, why
    diagnoses: Sequence[tuple[str, Sequence[str]]]
    wrong_map: Markup | None
    heat: Markup | None
    histograms: Sequence[tuple[str, Markup]]
    gemms: Sequence[Mapping[str, Any]]
    n_gemms: int
    tensors: Sequence[Mapping[str, Any]]
    n_tensors: int
    tokens: Sequence[Token]
    token_heads: Sequence[str]
    n_tokens: int


def number(value: Any) -> float | None:
    """A number of a JSON report, which says NaN and infinities as strings; None of anything else."""
    if isinstance(value, str):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def of(report: Mapping[str, Any], failures: int = 80, xrays: int = 40) -> Run:
    """Of a run's JSON report, with at most so many failures and x-rays. Raises ValueError for another schema."""
    if report.get("schema") != 1:
        raise ValueError(f"a run's report of schema {report.get('schema')}, not 1")
    rungs: Sequence[Mapping[str, Any]] = report["rungs"]
    kinds = blocks.types(report)
    layers = next((r for r in rungs if r["name"] == "layers"), None)
    tokens = next((r for r in rungs if r["name"] == "tokens"), None)
    gemms = [_gemm(record) for record in (layers["details"] if layers else ())]
    tensors = _tensors(rungs)
    heads, said = _tokens(tokens["details"] if tokens else ())
    passed = sum(r["verdict"] == "passed" for r in rungs)
    sentence = f"{passed} of {len(rungs)} rungs passed in {report['seconds']:.1f} s"
    total = sum(r["n_failures"] for r in rungs)
    if total:
        sentence += f"; {total:,} failure{'' if total == 1 else 's'}"
    return Run(
        verdict=report["verdict"], level=_LEVELS.get(report["verdict"], "warn"), sentence=sentence,
        command=report["command"], seconds=report["seconds"], header=report["header"],
        rungs=[_rung(r) for r in rungs],
        failures=_failures(rungs, kinds, xrays)[:failures], n_failures=total,
        unverified=[(r["name"], u["name"], u["why"]) for r in rungs for u in r["unverified"]],
        wrong_map=charts.outputs_map(layers["heat_map"]) if layers and layers.get("heat_map") else None,
        diagnoses=[(r["diagnosis"]["tensor"], r["diagnosis"]["lines"]) for r in rungs if r.get("diagnosis")],
        heat=charts.heat_map(_heat(gemms, layers), "Worst utilisation of the kernel by layer and matrix"),
        histograms=_histograms(gemms), gemms=gemms[:MOST_ROWS], n_gemms=len(gemms),
        tensors=tensors[:MOST_ROWS], n_tensors=len(tensors), tokens=said[:MOST_ROWS], token_heads=heads,
        n_tokens=len(said),
    )  # fmt: skip


def _rung(rung: Mapping[str, Any]) -> Rung:
    checked = ", ".join(f"{n:,} {kind}" for kind, n in rung["checked"].items() if n) or "nothing"
    worst = [(who, number(w["utilisation"]) or 0.0, w["where"]) for who, w in rung["worst"].items()]
    figures = [(name, _figure(value)) for name, value in rung["figures"].items()]
    verdict = "broken off" if rung["fault"] else rung["verdict"]
    return Rung(
        rung["name"], QUESTIONS.get(rung["name"], ""), verdict, _LEVELS.get(verdict, "warn"), checked, worst, figures,
        rung["notes"], rung["fault"] or "", rung["seconds"],
    )  # fmt: skip


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)


_FACTS = (
    "tensor", "matrix", "row", "block", "token", "part", "byte_offset", "got", "expected", "bound", "utilisation",
)  # fmt: skip


def _failures(rungs: Sequence[Mapping[str, Any]], kinds: Mapping[str, str], xrays: int) -> list[Failed]:
    out: list[Failed] = []
    shown: set[tuple[str, str]] = set()
    for rung in rungs:
        for failure in rung["failures"]:
            made, digits = Failed(rung["name"], failure["what"], _facts(failure)), failure.get("block_hex")
            if digits:
                kind = kinds.get(failure.get("tensor") or "", "")
                again = (kind, digits) in shown
                made = replace(made, digits=digits, again=again)
                if not again and len(shown) < xrays:
                    shown.add((kind, digits))
                    made = replace(made, block=blocks.block(kind, digits))
            out.append(made)
    return out


def _facts(failure: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = []
    for name in _FACTS:
        value = failure.get(name)
        if value is None or value == "" or (name == "part" and value == 0):
            continue
        shown = value if isinstance(value, str) else f"{value:.9g}" if isinstance(value, float) else f"{value:,}"
        facts.append((name.replace("_", " "), shown))
    return facts


def _gemm(record: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: number(record.get(name)) for name in ("kernel", "llama.cpp", "same activations", "gap NMSE")}
    wrong = int(record.get("failures") or 0)
    level = "bad" if wrong else "good" if columns["kernel"] is not None else "warn"
    return {
        **{name: record.get(name, "") for name in ("tensor", "node", "type", "by", "M", "N", "K", "llama.cpp as")},
        **{"matrix": record.get("matrix")}, "numbers": columns, "failures": wrong, "level": level,
    }  # fmt: skip


def _heat(gemms: Sequence[Mapping[str, Any]], layers: Mapping[str, Any] | None) -> list[charts.Gemm]:
    """What the layers rung judged of the kernel, and what it should have."""
    found = []
    for g in gemms:
        values = [v for v in (g["numbers"]["kernel"], g["numbers"]["same activations"]) if v is not None]
        worst = next((v for v in values if v != v), max(values, default=None))
        found.append(charts.Gemm(g["tensor"], worst, g["failures"]))
    for left in layers["unverified"] if layers else ():
        if not left["name"].startswith("all "):
            found.append(charts.Gemm(left["name"], None))
    return found


def _histograms(gemms: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    out = []
    for name, title in (("kernel", "The kernel"), ("llama.cpp", "llama.cpp")):
        values = [g["numbers"][name] for g in gemms if g["numbers"][name] is not None]
        drawn = charts.histogram(values, f"{title}: GEMMs by worst utilisation")
        if drawn is not None:
            out.append((title, drawn))
    return out


def _tensors(rungs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One record a tensor: what the bytes and the blocks rung say of it."""
    found: dict[str, dict[str, Any]] = {}
    for rung in rungs:
        if rung["name"] not in ("bytes", "blocks"):
            continue
        for record in rung["details"]:
            made = found.setdefault(record["tensor"], {"tensor": record["tensor"], "type": record["type"]})
            made |= {name: record[name] for name in ("bytes", "offset") if name in record}
            made[f"{rung['name']} blocks"] = record["blocks"]
            made[f"{rung['name']} failures"] = record["failures"]
    for made in found.values():
        bad = any(made.get(f"{name} failures") for name in ("bytes", "blocks"))
        made["level"] = "bad" if bad else "good"
    return list(found.values())


def _tokens(details: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Token]]:
    """Columns besides llama.cpp's, and the positions. An encoder's records have cosines instead of tokens."""
    known = ("position", "text", "llama.cpp")
    heads = [name for name in dict.fromkeys(name for record in details for name in record) if name not in known]
    out = []
    for record in details:
        reference = record.get("llama.cpp")
        others = [
            (_token(value), reference is None or value is None or value == reference)
            for value in (record.get(name) for name in heads)
        ]
        out.append(Token(record["position"], record["text"], "" if reference is None else str(reference), others))
    return heads, out


def _token(value: Any) -> str:
    """A token, or the cosine that an encoder has instead."""
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
