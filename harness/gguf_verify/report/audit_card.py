"""One picture of an audit for a README or a model card: the verdict, and what the weights consist of.

The card has the size and the frame of that of a run: see `card`. Types are ordered by bytes, and each has its share,
since a file's name says little: in a small model that is called Q4_K_M most bytes may be Q8_0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..results.composition import Composition
from ..support.text import counted, printable
from . import shades
from .card import HEIGHT, MARGIN, WIDTH, cut, head
from .published import published
from .scene import Box, Item, Line, Scene, Words

if TYPE_CHECKING:
    from ..audit.record import Audit

#: Shades of the types, the most bytes first; further ones share the last.
_SHADES = ("u8", "u6", "u5", "u4", "u3", "u2", "u1", "u0", "un")
#: The bar: its upper edge and its height.
_TOP, _TALL = 392, 44
#: Columns and rows of the legend.
_ACROSS, _DOWN = 3, 3


def card(audit: Audit) -> Scene:
    """The card as a scene."""
    made = Scene(width=WIDTH, height=HEIGHT)
    made.add(head(audit.words.upper(), _said(audit), shades.level(audit.verdict)))
    made.add(_facts(audit))
    made.add(_types(audit.composition if audit.refused is None else Composition(())))
    made.add(_foot(audit))
    return made


def _said(audit: Audit) -> str:
    said = published(audit.sentence)
    return said[:1].upper() + said[1:]


def _facts(audit: Audit) -> Iterator[Item]:
    types, h = audit.composition, audit.header
    lines = [
        ("model", audit.path.name),
        ("file", f"{h.size:,} bytes, {h.architecture or 'no architecture'}, {counted(audit.n_tensors, 'tensors')}"),
        ("weights", f"{types.weights:,}, {types.bits_per_weight:.2f} bits per weight" if types.types else "none"),
    ]
    for i, (name, value) in enumerate(lines):
        y, bold = 236 + 52 * i, name == "model"
        yield Words(MARGIN, y, name, tone="muted", size=22, mono=False)
        yield Words(MARGIN + 130, y, cut(value, WIDTH - 2 * MARGIN - 130, 27, bold), size=27, bold=bold, mono=False)


def _types(of: Composition) -> Iterator[Item]:
    """The bar of bytes by type, and its legend."""
    x, wide = float(MARGIN), WIDTH - 2 * MARGIN
    if not of.types:
        words = "no types: the file holds no tensor, or was refused"
        yield Words(x, _TOP + 24, words, tone="muted", size=22, mono=False)
        return
    shown = _ACROSS * _DOWN
    for i, share in enumerate(of.types):
        part = wide * share.nbytes / of.nbytes
        yield Box(x, _TOP, part, _TALL, _SHADES[min(i, len(_SHADES) - 1)], title=f"{share.type}: {of.percent(share)}")
        if i:
            yield Line(x, _TOP, x, _TOP + _TALL, "card", 2)
        x += part
    for i, share in enumerate(of.types[:shown]):
        left, y = MARGIN + i % _ACROSS * wide / _ACROSS, _TOP + _TALL + 32 + i // _ACROSS * 30
        yield Box(left, y - 17, 20, 20, _SHADES[i])
        words = f"{of.percent(share)} {share.type}, {share.bits_per_weight:.3g} bits"
        if i == shown - 1 and len(of.types) > shown:
            words = f"and {len(of.types) - i:,} more types"
        yield Words(left + 30, y, cut(words, wide / _ACROSS - 50, 21), size=21, mono=False)


def _foot(audit: Audit) -> Iterator[Item]:
    yield Line(MARGIN, 560, WIDTH - MARGIN, 560)
    n = audit.counts
    counts = ", ".join(counted(n[severity], f"{severity}s") for severity in ("error", "warning", "note"))
    read = ", ".join(f"{r.reader} {r.words.partition(',')[0]}" for readings in audit.readings[:1] for r in readings)
    words = f"{counts}; {read}" if read else counts
    yield Words(MARGIN, 592, cut(words, WIDTH - 2 * MARGIN, 20), tone="muted", size=20, mono=False)
    h = audit.header
    words = f"gguf-verify {h.gguf_verify}, {f'llama.cpp {h.llama_cpp}' if h.llama_cpp else 'without llama.cpp'}"
    words += f", sha256 {h.sha256[0][:16]}…" if h.sha256 else ""
    yield Words(MARGIN, 617, cut(words, WIDTH - 2 * MARGIN, 17), tone="muted", size=17, mono=False)


def told(audit: Audit) -> str:
    """Return the card in words, for readers who cannot see it."""
    types = audit.composition
    held = f" {types.bits_per_weight:.2f} bits per weight: {types.words(9)}." if types.types else ""
    return f"{audit.words.upper()}: {printable(audit.path.name, 100)}. {_said(audit)}.{held}"
