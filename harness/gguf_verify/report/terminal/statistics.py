"""Figures of an audit: of each type of weights, of what made the file, and of the comparison with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...audit.content import Content
from ...audit.fingerprint import Fingerprint
from ...audit.record import Audit
from ...audit.source import Comparison
from ...support.text import printable
from .console import facts, table

if TYPE_CHECKING:
    from ...audit.source import Outcome

#: Tensors whose statistics -vv shows; the rest is counted.
MOST_TENSORS = 1000
_BARS = "▁▂▃▄▅▆▇█"


def of_types(audit: Audit, whole: bool) -> Iterator[RenderableType]:
    """The figures of each type, with `whole` of each tensor, and how often each code occurs."""
    scanned = [c for c in audit.contents if c.scan is not None]
    order = [share.type for share in audit.composition.types]
    of_type: dict[str, list[Content]] = {}
    for c in sorted(scanned, key=lambda c: order.index(c.tensor.type.name)):
        of_type.setdefault(c.tensor.type.name, []).append(c)
    groups = [((name, f"{len(found)}"), found) for name, found in of_type.items()]
    yield from ("", _figures(("type", "tensors"), groups))
    yield "zero: blocks of zeros · ends: the share of codes that are the lowest or the highest"
    yield "equal rows: rows that equal an earlier row"
    if whole:
        some = scanned[:MOST_TENSORS]
        tensors = [((c.tensor.type.name, _shape(c), printable(c.tensor.name, 64)), [c]) for c in some]
        yield from ("", _figures(("type", "shape", "tensor"), tensors))
        if len(scanned) > len(some):
            yield f"… and {len(scanned) - len(some):,} more tensors"
        groups = [((name, ""), found) for (_, _, name), found in tensors]
    yield facts((names[0], f"codes {_histogram(found)}") for names, found in groups if found[0].tensor.type.quantized)


def _shape(content: Content) -> str:
    return "×".join(map(str, content.tensor.shape)) or "one value"


def _figures(heads: tuple[str, ...], groups: Sequence[tuple[tuple[str, ...], list[Content]]]) -> Table:
    """Two columns of names, the figures, and where there is a third name that, which may be long."""
    columns = ("blocks", "zero", "|d| from", "to", "m from", "to", "ends", "equal rows")
    made = table(*heads[:2], *columns, *heads[2:], right=range(1, 2 + len(columns)))
    for names, contents in groups:
        made.add_row(*map(Text, names[:2]), *_row(contents), *map(Text, names[2:]))
    return made


def _row(contents: Sequence[Content]) -> Iterator[str]:
    scans = [c.scan for c in contents if c.scan is not None]
    yield from (f"{sum(s.blocks for s in scans):,}", f"{sum(s.zero_blocks for s in scans):,}")
    yield from (*_span(s.scale for s in scans), *_span(s.minimum for s in scans))
    codes = _codes(contents)
    yield "-" if codes is None else f"{100 * float((codes[0] + codes[-1]) / codes.sum()):.1f}%"
    equal = [s.duplicate_rows for s in scans]
    known = sum(n for n in equal if n is not None)
    yield f"{known:,}" if None not in equal else "?" if not known else f"> {known - 1:,}"


def _span(spans: Iterable[list[float] | None]) -> tuple[str, str]:
    known = [s for s in spans if s is not None]
    return (f"{min(s[0] for s in known):.3g}", f"{max(s[1] for s in known):.3g}") if known else ("-", "-")


def _codes(contents: Sequence[Content]) -> np.ndarray | None:
    """The count of each code, from the lowest; None: a type without codes, or nothing was counted."""
    fmt = contents[0].tensor.type.format
    if fmt is None:
        return None
    total = np.zeros(256, np.int64)
    for c in contents:
        if c.scan is not None:
            total += c.scan.codes
    return np.asarray(total[: 1 << fmt.bits]) if total.sum() else None


def _histogram(contents: Sequence[Content]) -> str:
    """The codes' counts as bars, 64 at most; a code that occurs has a bar."""
    codes, fmt = _codes(contents), contents[0].tensor.type.format
    if codes is None or fmt is None:
        return "-"
    bins = codes.reshape(min(len(codes), 64), -1).sum(axis=1)
    heights = np.ceil(bins * len(_BARS) / bins.max()).astype(int)
    return f"{fmt.low} {''.join(_BARS[h - 1] if h else ' ' for h in heights)} {fmt.low + len(codes) - 1}"


def fingerprints(found: Sequence[Fingerprint]) -> Table:
    """The rules that the blocks of each type obey, and who leaves such blocks."""
    made = table("", "", "", "", folded=3, heading=False)
    for f in found:
        known = [rule for rule, _ in f.obeying]
        for i, (rule, n) in enumerate(f.obeying):
            if f.consistent in known[:i]:  # a narrower rule implies it
                break
            share = f"{percent(n, f.blocks)} of {f.blocks:,}" if f.blocks else "no such block"
            made.add_row(*map(Text, (f.type if not i else "", rule.text, share, rule.producer)))
        if f.blocks:
            verdict = f"as {f.consistent.producer} leaves them" if f.consistent else "no known rule holds throughout"
            made.add_row("", "", "", Text(verdict))
    return made


def percent(n: int, total: int) -> str:
    """100 % only where it is all of them, 0 % only where it is none."""
    share = 100 * n / total
    if n in (0, total):
        return "100 %" if n else "0 %"
    if share < 0.1:
        return "less than 0.1 %"
    return f"{min(share, 99.9999):.4f} %" if share > 99.9 else f"{share:.1f} %"


def source(audit: Audit) -> str:
    """The comparison with the source, by number of tensors."""
    outcomes = Counter(c.outcome for c in audit.comparisons)
    matrix = " with the importance matrix" if audit.header.imatrix else ""
    told = f"source: {outcomes['same']} of {len(audit.contents)} tensors are, byte for byte, what llama.cpp makes of it"
    told += matrix
    others: dict[Outcome, str] = {
        "possible": "may be, with some importance matrix (not proven)", "impossible": "cannot be, with any",
        "differs": "differ", "missing": "are not in it", "not compared": "were not compared",
    }  # fmt: skip
    told += "".join(f"; {outcomes[kind]} {words}" for kind, words in others.items() if outcomes[kind])
    through = {c.through for c in audit.comparisons if c.through}
    if through:
        told += f"; by way of {' and '.join(sorted(through))}"
    if audit.source_keys:
        told += f"; {audit.source_keys.words}"
    if audit.unmapped:
        told += f"; {len(audit.unmapped):,} tensors of the source were not compared, such as "
        told += f"{printable(audit.unmapped[0][0], 64)}: {printable(audit.unmapped[0][1])}"
    return told


def errors(audit: Audit) -> Table:
    """By type: the relative error of the values, and that of llama.cpp's own quantization of the same source."""
    made = table("type", "tensors", "error", "llama.cpp's", "worst tensor", right=(1, 2, 3))
    by_type: dict[str, list[Comparison]] = {}
    for c in audit.comparisons:
        if c.error is not None and c.made_error is not None:
            by_type.setdefault(c.tensor.type.name, []).append(c)
    for kind, found in by_type.items():
        worst = max(found, key=lambda c: c.error or 0)
        least = max(c.made_error or 0 for c in found)
        made.add_row(*map(Text, (
            kind, f"{len(found)}", f"{100 * (worst.error or 0):.3g} %", f"{100 * least:.3g} %",
            printable(worst.tensor.name, 64),
        )))  # fmt: skip
    return made
