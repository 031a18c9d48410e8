"""The report at the terminal. It reads result records and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..gguf import printable
from ..rungs import RungResult
from ..verification import Report
from . import heat_map

_WIDTH = 110
_HEX_DIGITS = 128


def render(report: Report, verbose: bool = False, blocks: bool = False) -> str:
    """The whole report.

    Args:
        verbose: also one line a tensor, GEMM or token.
        blocks: draw with block characters.
    """
    lines = [*_header(report.header), ""]
    lines.append(f"{'rung':<8}{'verdict':<12}{'checked':<48}{'worst utilisation':>19}{'time':>11}")
    for rung in report.rungs:
        lines += _rung(rung)
        if verbose:
            lines += _details(rung)
    lines += ["", *_failures(report, blocks), *_unverified(report), *_verdict(report)]
    return "\n".join(lines) + "\n"


def _header(h: dict[str, Any]) -> Iterator[str]:
    types = ", ".join(f"{n} {t}" for t, n in h["tensor types"].items())
    yield (
        f"gguf-verify {h['gguf-verify']} · llama.cpp {h['llama.cpp']} (llama-cpp-python {h['llama-cpp-python']}, "
        f"ggml {h['ggml']})"
    )
    yield f"{'':12}python {h['python']} · numpy {h['numpy']} · gguf {h['gguf']} · {h['platform']}"
    architecture = printable(h["architecture"] or "?", 40)
    yield f"{'file':12}{printable(h['file'], 200)} · {h['size']:,} bytes · {architecture} · {types}"
    for digest in h["sha256"]:
        yield f"{'sha256':12}{digest}"
    host, chosen = f"{'host':12}{h['host']}", f"chosen {h['host chosen']}"
    yield from [f"{host} ({chosen})"] if len(host + chosen) < _WIDTH else [host, f"{'':12}{chosen}"]
    yield f"{'kernel':12}{h['kernel']} · semantics {h['semantics']} · declared order: {h['declared order']}"
    if h["judged by"]:
        yield f"{'':12}judged by {printable(h['judged by'], 200)}"
    if others := h["kernels of other types"]:
        kernels = ", ".join(f"{kind} {name}" for kind, name in others.items())
        on = "" if h["host"] == h["host of other types"] else f" on {h['host of other types']}"
        yield f"{'':12}matrices that are not quantized: {kernels} · declared order: ascending k{on}"
    judged = ", ".join(f"{kind} {names}" for kind, names in h["semantics of llama.cpp"].items())
    yield f"{'reference':12}llama.cpp, {h['reference']} · its semantics: {judged}"
    prompt = printable(h["prompt"], 60)
    yield f'{"run":12}seed {h["seed"]} · {h["threads"]} threads · {h["n_predict"]} tokens after "{prompt}"'


def _rung(rung: RungResult) -> Iterator[str]:
    checked = ", ".join(f"{n:,} {kind}" for kind, n in rung.checked.items() if n) or "nothing"
    worst = max(rung.worst.values(), key=lambda w: w.utilisation, default=None)
    shown = f"{worst.utilisation:.3g}" if worst else "-"
    verdict = "broken off" if rung.fault else rung.verdict
    yield f"{rung.name:<8}{verdict:<12}{checked:<48}{shown:>19}{rung.seconds:>9.1f} s"
    for who, w in rung.worst.items():
        yield f"{'':20}{who}: utilisation {w.utilisation:.3g} at {w.where}, score {rung.score[who]:.3g}"
    left_out = ", ".join(f"{n:,} {kind}" for kind, n in rung.not_checked.items() if n)
    if left_out:
        yield f"{'':20}not part of it: {left_out}"
    figures = [
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.3g}" for name, value in rung.figures.items()
    ]
    for i in range(0, len(figures), 2):
        yield f"{'':20}{' · '.join(figures[i : i + 2])}"
    for note in rung.notes[:5]:
        yield f"{'':20}{note}"
    if len(rung.notes) > 5:
        yield f"{'':20}… and {len(rung.notes) - 5} more notes (--json has them all)"


def _details(rung: RungResult) -> Iterator[str]:
    for record in rung.details:
        yield "    " + "  ".join(f"{key} {_value(value)}" for key, value in record.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return printable(value) if isinstance(value, str) else str(value)


def _failures(report: Report, blocks: bool) -> Iterator[str]:
    total, shown = sum(r.n_failures for r in report.rungs), 0
    recorded = [(r, f) for r in report.rungs for f in r.failures][:20]
    places: set[tuple[str, str, int | None, int | None, int | None]] = set()
    for rung, f in recorded:
        place = (rung.name, f.tensor, f.row, f.block, f.token)
        if f.row is not None and place in places:  # the same again, at another M or on other activations
            continue
        places.add(place)
        shown += 1
        yield f"FAILED {rung.name}: {f.what}"
        if f.got is not None and f.expected is not None:
            numbers = f"got {f.got:.9g}, expected {f.expected:.9g}"
            if f.bound is not None:
                numbers += f", bound {f.bound:.3g}"
            if f.utilisation is not None:
                numbers += f", utilisation {f.utilisation:.3g}"
            yield f"       {numbers}"
        if f.block_hex is not None:
            part = f" of part {f.part + 1}" if f.part else ""
            yield f"       block at byte {f.byte_offset}{part}: {_shortened(f.block_hex)}"
    if total > shown:
        again = len(recorded) - shown
        yield f"… {shown} of {total:,} failures shown" + (f"; {again} are of the same outputs" if again else "")
    for rung in report.rungs:
        if rung.diagnosis is not None:
            yield _diagnosed(rung.diagnosis)
            for line in rung.diagnosis["lines"]:
                yield f"       {printable(line, 300)}"
        for line in heat_map.lines_of(rung, blocks):
            yield f"       {line}"


def _diagnosed(found: dict[str, Any]) -> str:
    block = "" if found["block"] is None else f" block {found['block']}"
    return (
        f"DIAGNOSIS of the first wrong GEMM, {printable(found['tensor'], 64)}: {found['who']}, from row {found['row']} "
        f"token {found['token']}{block} on"
    )


def _shortened(digits: str) -> str:
    return digits if len(digits) <= _HEX_DIGITS else f"{digits[:_HEX_DIGITS]}… ({len(digits) // 2} bytes)"


def _unverified(report: Report) -> Iterator[str]:
    for rung in report.rungs:
        if rung.fault:
            yield f"BROKEN OFF {rung.name}: {rung.fault}"
        for name, why in rung.unverified[:10]:
            yield f"NOT VERIFIED {rung.name}: {printable(name, 64)}: {printable(why)}"
        if len(rung.unverified) > 10:
            yield f"NOT VERIFIED {rung.name}: … and {len(rung.unverified) - 10} more"


def _verdict(report: Report) -> Iterator[str]:
    passed = [r.name for r in report.rungs if r.verdict == "passed"]
    yield f"{report.verdict.upper()} in {report.seconds:.1f} s: {len(passed)} of {len(report.rungs)} rungs passed"
    if means := report.header["verified means"]:
        yield f"verified here means: {means}"
    if report.exit_code and report.command:
        yield f"repeat with: {printable(report.command)}"
