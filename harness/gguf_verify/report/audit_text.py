"""The audit at the terminal, in 100 columns but for names and findings. It reads records and computes no verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..audit import Audit, Content, coverage
from ..audit.fingerprint import Fingerprint
from ..gguf import Finding, GgufFile, printable
from . import xray_text

_MOST_TENSORS_COMPARED = 3
_LABEL = 12
_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {"error": "1;31", "warning": "33", "note": "36", "clean": "1;32"}

#: What the summary of the byte map adds up, by kind of range.
_SUMMARY = (
    ("header", ("magic", "version", "tensor count", "key count")),
    ("metadata", ("key", "value type", "element type", "element count", "value")),
    ("descriptions", ("tensor name", "dimensions", "type", "offset")),
    ("padding", ("padding",)),
    ("data", ("data",)),
    ("gaps", ("gap",)),
    ("trailing", ("trailing",)),
    ("unread", ("unread",)),
)


def render(audit: Audit, verbose: bool = False, whole_map: bool = False, colour: bool = False) -> str:
    """The whole report; with `verbose` also statistics of every tensor, with `whole_map` every range of the file."""
    lines = [*_header(audit.header, audit.contents), ""]
    for file in audit.files:
        if len(audit.files) > 1 or file.part:
            lines.append(f"part {file.part + 1}: {printable(file.path.name)}, {file.size:,} bytes")
        lines += _ownership(file)
        if whole_map:
            lines += ["", *_map(file), ""]
    if audit.n_tensors != len(audit.contents) and audit.refused is None:
        lines.append(f"{'tensors':{_LABEL}}{len(audit.contents):,} of {audit.n_tensors:,} looked at")
    lines += _readings(audit)
    lines += _statistics(audit, verbose)
    lines += _fingerprints(audit.fingerprints)
    lines += _source(audit)
    lines += _findings(audit, colour)
    lines += _compared(audit, verbose, colour)
    lines += ["", *_verdict(audit, colour)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _paint(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if colour and style in _COLOURS else text


def _header(h: dict[str, Any], contents: Sequence[Content]) -> Iterator[str]:
    llama = f" · llama.cpp {h['llama.cpp']} (llama-cpp-python {h['llama-cpp-python']})" if "llama.cpp" in h else ""
    yield f"gguf-verify {h['gguf-verify']}{llama}"
    more = f"ggml {h['ggml']} · " if "ggml" in h else ""
    yield f"{'':{_LABEL}}{more}python {h['python']} · numpy {h['numpy']} · gguf {h['gguf']} · {h['platform']}"
    types = ", ".join(f"{n} {t}" for t, n in Counter(c.tensor.type.name for c in contents).items())
    about = [f"{h['size']:,} bytes", printable(h.get("architecture") or "", 40), types]
    yield f"{'file':{_LABEL}}{' · '.join([printable(h['file'], 200), *filter(None, about)])}"
    for digest in h["sha256"] or ["not computed"]:
        yield f"{'sha256':{_LABEL}}{digest}"
    if h.get("source"):
        yield f"{'source':{_LABEL}}{printable(h['source'], 200)}"
        for digest in h["source sha256"] or ["not computed"]:
            yield f"{'':{_LABEL}}{digest}"


# -- the byte map -----------------------------------------------------------------------------------------------


def _ownership(file: GgufFile) -> Iterator[str]:
    sizes: Counter[str] = Counter()
    for owned in file.byte_map:
        sizes[owned.kind] += owned.nbytes
    parts = [(name, sum(sizes[kind] for kind in kinds)) for name, kinds in _SUMMARY]
    unread = sizes["unread"]
    if any(f.id.endswith("-unowned") for f in coverage(file)):
        said = "NOT each owned by one field, see below"
    elif unread:
        said = f"{unread:,} of them not read"
    else:
        said = "each owned by one field: 100 %"
    yield f"{'bytes':{_LABEL}}{file.size:,}, {said}, {len(file.byte_map):,} ranges"
    yield f"{'':{_LABEL}}{' · '.join(f'{name} {n:,}' for name, n in parts if n)}"


def _map(file: GgufFile) -> Iterator[str]:
    yield f"{'start':>14} {'stop':>14} {'bytes':>13}  {'kind':<14}owner and value"
    for r in file.byte_map:
        what = " = ".join(filter(None, [printable(r.owner, 64), printable(r.note, 60)]))
        yield f"{r.start:>#14x} {r.stop:>#14x} {r.nbytes:>13,}  {r.kind:<14}{what}"


def _readings(audit: Audit) -> Iterator[str]:
    for part, readings in enumerate(audit.readings):
        of_part = f" part {part + 1}" if len(audit.readings) > 1 else ""
        for reading in readings:
            said = f": {reading.said}" if reading.said else ""
            seen = f", {len(reading.tensors):,} tensors" if reading.verdict == "accepted" else ""
            yield f"{reading.reader + of_part:{_LABEL}}{reading.verdict}{seen}{printable(said, 300)}"


# -- statistics -------------------------------------------------------------------------------------------------

_COLUMNS = (
    f"{'blocks':>13} {'zero':>9} {'|d| from':>10} {'to':>9} {'m from':>10} {'to':>9} {'ends':>6} {'equal rows':>10}"
)


def _statistics(audit: Audit, verbose: bool) -> Iterator[str]:
    scanned = [c for c in audit.contents if c.scan is not None]
    if not scanned:
        return
    yield ""
    yield f"{'type':<7}{'tensors':>7} {_COLUMNS}"
    for name in dict.fromkeys(c.tensor.type.name for c in scanned):
        of_type = [c for c in scanned if c.tensor.type.name == name]
        yield f"{name:<7}{len(of_type):>7} {_row(of_type)}"
    yield "zero: blocks of zeros · ends: share of codes at either end · equal rows: to an earlier one"
    if verbose:
        yield ""
        yield f"{'tensor':<14} {_COLUMNS}"
        for c in scanned:
            shape = " x ".join(map(str, c.tensor.shape)) or "one value"
            yield f"{printable(c.tensor.name, 64)} ({c.tensor.type.name}, {shape})"
            yield f"{'':<14} {_row([c])}"
            if c.tensor.type.quantized:
                yield f"{'':<15}codes {_histogram([c])}"
    else:
        for name in dict.fromkeys(c.tensor.type.name for c in scanned if c.tensor.type.quantized):
            yield f"{name:<7}codes {_histogram([c for c in scanned if c.tensor.type.name == name])}"


def _row(contents: Sequence[Content]) -> str:
    scans = [c.scan for c in contents if c.scan is not None]
    low, high = _span(s.scale for s in scans)
    least, most = _span(s.minimum for s in scans)
    equal = [s.duplicate_rows for s in scans]
    known = sum(n for n in equal if n is not None)
    rows = f"{known:,}" if None not in equal else "?" if not known else f"> {known - 1:,}"
    ends = _ends(contents)
    return (
        f"{sum(s.blocks for s in scans):>13,} {sum(s.zero_blocks for s in scans):>9,} {low:>10} {high:>9} {least:>10} "
        f"{most:>9} {'-' if ends is None else f'{100 * ends:.1f}%':>6} {rows:>10}"
    )


def _span(spans: Iterable[list[float] | None]) -> tuple[str, str]:
    known = [s for s in spans if s is not None]
    if not known:
        return "-", "-"
    return f"{min(s[0] for s in known):.3g}", f"{max(s[1] for s in known):.3g}"


def _codes(contents: Sequence[Content]) -> np.ndarray | None:
    fmt = contents[0].tensor.type.format
    if fmt is None:
        return None
    total = sum((c.scan.codes for c in contents if c.scan is not None), np.zeros(256, np.int64))
    return np.asarray(total[: 1 << fmt.bits])


def _ends(contents: Sequence[Content]) -> float | None:
    codes = _codes(contents)
    return None if codes is None or not codes.sum() else float((codes[0] + codes[-1]) / codes.sum())


def _histogram(contents: Sequence[Content]) -> str:
    """The codes' counts as bars, 64 at most; a code that occurs has a bar."""
    codes = _codes(contents)
    if codes is None or not codes.sum():
        return "-"
    bins = codes.reshape(min(len(codes), 64), -1).sum(axis=1)
    heights = np.ceil(bins * len(_BARS) / bins.max()).astype(int)
    fmt = contents[0].tensor.type.format
    low = fmt.low if fmt is not None else 0
    return f"{low} {''.join(_BARS[h - 1] if h else ' ' for h in heights)} {low + len(codes) - 1}"


def _fingerprints(fingerprints: Sequence[Fingerprint]) -> Iterator[str]:
    if not fingerprints:
        return
    yield ""
    yield "fingerprint: which codes the blocks with d ≠ 0 hold"
    for f in fingerprints:
        known = [rule for rule, _ in f.obeying]
        for i, (rule, n) in enumerate(f.obeying):
            share = f"{_percent(n, f.blocks)} of {f.blocks:,}" if f.blocks else "no such block"
            if f.consistent in known[:i]:  # what a narrower rule implies
                break
            yield f"{f.type if not i else '':<7}{rule.text:<25} {share:<26} {rule.producer}"
        verdict = f"as {f.consistent.producer} leaves them" if f.consistent else "no known rule holds throughout"
        if f.blocks:
            yield f"{'':<7}{verdict}"


def _percent(n: int, total: int) -> str:
    """100 % only where it is all of them."""
    share = 100 * n / total
    if n in (0, total):
        return "100 %" if n else "0 %"
    return f"{min(share, 99.9999):.4f} %" if share > 99.9 else f"{max(share, 0.1):.1f} %"


def _source(audit: Audit) -> Iterator[str]:
    if not audit.comparisons:
        return
    compared = [c for c in audit.comparisons if c.result is not None]
    n = len(audit.contents)
    identical = sum(not c.result.differing for c in compared if c.result is not None)
    yield ""
    yield f"{'source':{_LABEL}}{identical} of {n} tensors are, byte for byte, what llama.cpp makes of it"


# -- findings ---------------------------------------------------------------------------------------------------


def _findings(audit: Audit, colour: bool) -> Iterator[str]:
    if not audit.findings:
        return
    yield ""
    for f in audit.findings:
        yield from _finding(f, len(audit.files) > 1 or f.part > 0, colour)


def _finding(f: Finding, parts: bool, colour: bool) -> Iterator[str]:
    of_part = f" of part {f.part + 1}" if parts else ""
    where = f"byte {f.start}" if f.stop <= f.start + 1 else f"bytes {f.start} to {f.stop - 1}"
    yield f"{_paint(f'{f.severity:<8}', f.severity, colour)}{f.id} at {where}{of_part}"
    yield f"{'':8}found {f.found}; expected {f.expected}"
    yield f"{'':8}{f.why}"


def _compared(audit: Audit, verbose: bool, colour: bool) -> Iterator[str]:
    pairs = [c.xrays for c in audit.comparisons if c.xrays is not None]
    shown = pairs if verbose else pairs[:_MOST_TENSORS_COMPARED]
    for ours, made in shown:
        yield ""
        yield from xray_text.pair(ours, made, colour, ("file", "source")).splitlines()
    if len(pairs) > len(shown):
        yield f"… {len(shown)} of {len(pairs)} tensors that differ shown (-v shows all)"


def _verdict(audit: Audit, colour: bool) -> Iterator[str]:
    if audit.fault:
        yield f"BROKEN OFF: {audit.fault}"
    for name, why in audit.unverified[:10]:
        yield f"NOT VERIFIED {printable(name, 64)}: {printable(why)}"
    if len(audit.unverified) > 10:
        yield f"NOT VERIFIED … and {len(audit.unverified) - 10} more"
    severities = Counter(f.severity for f in audit.findings)
    counts = ", ".join(f"{severities[s]} {s}{'' if severities[s] == 1 else 's'}" for s in ("error", "warning", "note"))
    verdict = _paint(audit.verdict.upper(), "clean" if audit.exit_code == 0 else "error", colour)
    if audit.exit_code == 0 and len(audit.contents) != audit.n_tensors:
        verdict += f" ({len(audit.contents):,} of {audit.n_tensors:,} tensors)"
    yield f"{verdict} in {audit.seconds:.1f} s: {counts}"
    if audit.exit_code and audit.command:
        yield f"repeat with: {printable(audit.command)}"
