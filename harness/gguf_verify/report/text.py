"""The report at the terminal. It reads result records and computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..gguf import printable
from ..results import Environment, LocatedDiagnosis, Report, RungResult
from . import heat_map

_WIDTH = 110
_HEX_DIGITS = 128


def render(report: Report, verbose: bool = False, blocks: bool = False) -> str:
    """The whole report.

    Args:
        verbose: also one line a tensor, GEMM or token.
        blocks: draw with block characters.
    """
    lines = [*_header(report.environment), ""]
    lines.append(f"{'rung':<8}{'verdict':<12}{'checked':<48}{'worst utilisation':>19}{'time':>11}")
    for rung in report.rungs:
        lines += _rung(rung)
        if verbose:
            lines += _details(rung)
    lines += ["", *_failures(report, blocks), *_unverified(report), *_verdict(report)]
    return "\n".join(lines) + "\n"


def _header(env: Environment) -> Iterator[str]:
    v, file, kernel, options = env.versions, env.file, env.kernel, env.options
    types = ", ".join(f"{n} {t}" for t, n in file.tensor_types.items())
    yield (
        f"gguf-verify {v.gguf_verify} · llama.cpp {v.llama_cpp} (llama-cpp-python {v.llama_cpp_python}, ggml {v.ggml})"
    )
    yield f"{'':12}python {v.python} · numpy {v.numpy} · gguf {v.gguf} · {v.platform}"
    architecture = printable(file.architecture or "?", 40)
    yield f"{'file':12}{printable(file.path, 200)} · {file.size:,} bytes · {architecture} · {types}"
    for digest in file.sha256:
        yield f"{'sha256':12}{digest}"
    host, chosen = f"{'host':12}{env.host.words}", f"chosen {env.host.chosen}"
    yield from [f"{host} ({chosen})"] if len(host + chosen) < _WIDTH else [host, f"{'':12}{chosen}"]
    yield f"{'kernel':12}{kernel.name} · semantics {kernel.definition} · declared order: {kernel.order}"
    if kernel.judged_by:
        yield f"{'':12}judged by {printable(kernel.judged_by, 200)}"
    if kernel.element_kernels:
        kernels = ", ".join(f"{kind} {name}" for kind, name in kernel.element_kernels.items())
        on = "" if env.host.words == kernel.element_host.words else f" on {kernel.element_host.words}"
        yield f"{'':12}matrices that are not quantized: {kernels} · declared order: ascending k{on}"
    judged = ", ".join(f"{kind} {names}" for kind, names in env.reference.definitions.items())
    yield f"{'reference':12}llama.cpp, {env.reference.where} · its semantics: {judged}"
    prompt = printable(options.prompt, 60)
    yield f'{"run":12}seed {options.seed} · {options.threads} threads · {options.n_predict} tokens after "{prompt}"'


def _rung(rung: RungResult) -> Iterator[str]:
    checked = ", ".join(f"{n:,} {kind}" for kind, n in rung.checked.items() if n) or "nothing"
    worst = max(rung.worst.values(), key=lambda w: w.utilisation, default=None)
    shown = f"{worst.utilisation:.3g}" if worst else "-"
    verdict = "broken off" if rung.fault else rung.verdict
    yield f"{rung.name:<8}{verdict:<12}{checked:<48}{shown:>19}{rung.seconds:>9.1f} s"
    for who, w in rung.worst.items():
        yield f"{'':20}{who}: utilisation {w.utilisation:.3g} at {w.where}, score {w.score:.3g}"
    left_out = ", ".join(f"{n:,} {kind}" for kind, n in rung.not_checked.items() if n)
    if left_out:
        yield f"{'':20}not checked by this rung: {left_out}"
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
        fields = msgspec.structs.asdict(record)
        yield "    " + "  ".join(f"{key} {_value(value)}" for key, value in fields.items() if value is not None)


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
            for line in rung.diagnosis.lines:
                yield f"       {printable(line, 300)}"
        for line in heat_map.lines_of(rung, blocks):
            yield f"       {line}"


def _diagnosed(found: LocatedDiagnosis) -> str:
    block = "" if found.block is None else f" block {found.block}"
    return (
        f"DIAGNOSIS of the first wrong GEMM, {printable(found.tensor, 64)}: {found.who}, from row {found.row} "
        f"token {found.token}{block} on"
    )


def _shortened(digits: str) -> str:
    return digits if len(digits) <= _HEX_DIGITS else f"{digits[:_HEX_DIGITS]}… ({len(digits) // 2} bytes)"


def _unverified(report: Report) -> Iterator[str]:
    for rung in report.rungs:
        if rung.fault:
            yield f"BROKEN OFF {rung.name}: {rung.fault}"
        for left in rung.unverified[:10]:
            yield f"NOT VERIFIED {rung.name}: {printable(left.name, 64)}: {printable(left.why)}"
        if len(rung.unverified) > 10:
            yield f"NOT VERIFIED {rung.name}: … and {len(rung.unverified) - 10} more"


def _verdict(report: Report) -> Iterator[str]:
    passed = [r.name for r in report.rungs if r.verdict == "passed"]
    yield f"{report.verdict.upper()} in {report.seconds:.1f} s: {len(passed)} of {len(report.rungs)} rungs passed"
    if means := report.environment.kernel.verified_means:
        yield f"verified here means: {means}"
    if report.exit_code and report.command:
        yield f"repeat with: {printable(report.command)}"
