"""Pictures as scenes: boxes, lines and texts that are laid out once and drawn as SVG and as PNG.

A scene knows no colour by itself. Boxes have a shade of `shades`, texts and lines a tone, so that a page can draw them
in its own theme.
"""

from __future__ import annotations

import base64
import io
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from . import shades

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

CROSS, STROKE = "x", "/"

#: Tone → its colour on white; a page has variables of these names.
TONES = {
    "text": "#1a2230", "muted": "#545f70", "line": "#c3c9d3", "good": "#14653a", "warn": "#744700", "bad": "#a3182f",
    "good-fill": "#e4f4ea", "warn-fill": "#fcf0d6", "bad-fill": "#fde9eb", "card": "#ffffff", "inset": "#f0f2f5",
}  # fmt: skip
_DARK = {"text": "#e6eaf1", "muted": "#a2acbc", "line": "#4a5465", "card": "#15171c"}

#: Fonts whose letters are of one width, 0.6 of their size, and the others.
_MONO = "ui-monospace,Menlo,Consolas,monospace"
_SANS = "system-ui,-apple-system,Segoe UI,Roboto,Noto Sans,Liberation Sans,sans-serif"

#: The name of the font that `_face` brings.
_OWN = "card"

#: Pixels of a PNG for each of a scene.
SCALE = 2


class Box(NamedTuple):
    """A filled rectangle: `shade` is one of `shades` or a tone; `mark` "x" crosses it out, "/" strikes it through."""

    x: float
    y: float
    width: float
    height: float
    shade: str
    mark: str = ""
    title: str = ""


class Words(NamedTuple):
    """A line of text on the baseline y.

    Args:
        x: its left end, its middle or its right end, as `anchor` says ("start", "middle", "end").
        tone: of the text; where `shade` is given, the ink of that shade.
        mono: in letters of one width.
    """

    x: float
    y: float
    text: str
    shade: str = ""
    tone: str = "text"
    size: float = 13
    bold: bool = False
    anchor: str = "start"
    mono: bool = True

    @property
    def width(self) -> float:
        """A width that no usual font exceeds."""
        return text_width(self.text, self.size, self.bold, self.mono)

    @property
    def left(self) -> float:
        """Where it begins."""
        return self.x - {"start": 0.0, "middle": self.width / 2, "end": self.width}[self.anchor]


class Line(NamedTuple):
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    tone: str = "line"
    width: float = 1


class Frame(NamedTuple):
    """The outline of a rectangle."""

    x: float
    y: float
    width: float
    height: float
    tone: str = "text"
    stroke: float = 2


Item = Box | Words | Line | Frame


@dataclass
class Scene:
    """Items to draw, in order, and the size of the picture."""

    items: list[Item] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def add(self, items: Iterable[Item]) -> None:
        """Put in more."""
        self.items += items


# ---- text ------------------------------------------------------------------------------------------------------------

#: Hundredths of the size that letters of DejaVu Sans take, the widest of the usual fonts.
_WIDTHS = {
    28: "ijlI J'|", 33: " ", 34: ".,:;!", 40: "ft()[]/\\-·", 46: "r\"*", 54: "scz_?F", 60: "kvxyYTPL",
    64: "abdeghnopquEZ0123456789$#S", 69: "ABCKRVX", 79: "DGHNOQU<>=+~", 87: "wMm&", 100: "W@%…—–",
}  # fmt: skip
_WIDTH = {c: hundredths / 100 for hundredths, letters in _WIDTHS.items() for c in letters} | {" ": 0.33, "m": 0.98}


def text_width(text: str, size: float, bold: bool = False, mono: bool = True) -> float:
    """A width in pixels that the usual fonts do not exceed."""
    if mono:
        return 0.615 * size * len(text)
    return size * sum(_WIDTH.get(c, 0.8 if ord(c) < 0x2E80 else 1.05) for c in text) * (1.15 if bold else 1.01)


def shortened(text: str, width: float, size: float, bold: bool = False, mono: bool = True) -> str:
    """Text that fits into a width in pixels. Of several words whole ones are omitted at the end; of one, such as a
    file's name, parts between its hyphens and underscores in the middle, because names differ at both ends."""
    text = safe(text)
    if text_width(text, size, bold, mono) <= width:
        return text
    if len(text) > 1000:
        text = f"{text[:500]}…{text[-500:]}"
    words = " " in text

    def fits(cut: str) -> bool:
        return text_width(cut, size, bold, mono) <= width

    parts = re.findall(r"\S+\s*" if words else r"[^-_]+[-_]*|[-_]+", text)
    for pieces in (parts, [*text]):
        ahead, behind, left = "", "", [*pieces]
        while left:
            if fits(_joined(ahead + left[0], behind)):
                ahead += left.pop(0)
            elif words or not fits(_joined(ahead, left[-1] + behind)):
                break
            if left and not words and fits(_joined(ahead, left[-1] + behind)):
                behind = left.pop() + behind
        if ahead and (behind or words):
            return _joined(ahead, behind)
    return text[:1]


def _joined(ahead: str, behind: str) -> str:
    return f"{ahead if behind else ahead.rstrip(' ,;:')}…{behind}"


def safe(text: str) -> str:
    """Text that XML can hold."""
    return "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "?" for c in text)


# ---- SVG -------------------------------------------------------------------------------------------------------------

#: The style that a page with pictures needs once, in addition to `shades.css()`.
STYLE = (
    f".pic{{font-size:13px;font-family:{_SANS}}}.pic text{{white-space:pre}}.pic .mono{{font-family:{_MONO}}}"
    ".pic .on{fill:var(--ink);pointer-events:none}.pic .fill{fill:var(--fill)}.pic .b{font-weight:700}"
    ".pic .stroke{stroke:var(--ink);stroke-width:1.2;fill:none;pointer-events:none}"
    ".pic .rule{fill:none;pointer-events:none}.pic .middle{text-anchor:middle}.pic .end{text-anchor:end}"
    + "".join(f".pic .t-{tone}{{fill:var(--{tone})}}.pic .s-{tone}{{stroke:var(--{tone})}}" for tone in TONES)
)


def style() -> str:
    """The style that a page must hold once for its pictures."""
    return shades.css() + STYLE


def svg(
    scene: Scene, title: str, told: str, alone: bool = True, dark: bool = True, most_titles: int | None = None
) -> str:
    """A scene as an SVG document, or as an element of a page that has `style()`.

    Args:
        title, told: the picture's name, and what it shows in words.
        alone: it is a document of its own, on white or, where `dark`, as the reader's theme is.
        most_titles: how many boxes say what they hold when they are pointed at; marked ones do first. None for all.
    """
    from xml.sax.saxutils import quoteattr  # late: it imports what opens addresses

    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    width, height = _n(scene.width), _n(scene.height)
    title = safe(title)
    out = [
        f'<svg{space} class="pic" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f"aria-label={quoteattr(title)}>",
        f"<title>{escape(title, False)}</title>", f"<desc>{escape(safe(told), False)}</desc>",
    ]  # fmt: skip
    if alone:
        face = _face() if any(isinstance(v, Words) and not v.mono for v in scene.items) else ""
        out += [f"<style>{_alone(dark)}{face}</style>", f'<rect class="t-card" width="{width}" height="{height}"/>']
    boxes = [v for v in scene.items if isinstance(v, Box)]
    shown = sorted((b for b in boxes if b.title), key=lambda b: not b.mark)
    titled = set(shown if most_titles is None else shown[:most_titles])
    plain: dict[str, list[str]] = {}
    for v in boxes:
        if v in titled:
            out.append(
                f'<rect class="{_class(v.shade)}" x="{_n(v.x)}" y="{_n(v.y)}" width="{_n(v.width)}" '
                f'height="{_n(v.height)}"><title>{escape(safe(v.title), False)}</title></rect>'
            )
        else:
            part = f"M{_n(v.x)} {_n(v.y)}h{_n(v.width)}v{_n(v.height)}h-{_n(v.width)}z"
            plain.setdefault(v.shade, []).append(part)
    out += [f'<path class="{_class(shade)}" d="{"".join(parts)}"/>' for shade, parts in plain.items()]
    for shade in dict.fromkeys(b.shade for b in boxes if b.mark):
        strokes = "".join(_strokes(b) for b in boxes if b.mark and b.shade == shade)
        out.append(f'<path class="stroke {shade}" d="{strokes}"/>')
    out += [drawn for v in scene.items if (drawn := _element(v))]
    return "\n".join([*out, "</svg>"]) + "\n"


def _face() -> str:
    """The font of PNG for a picture that stands alone, so that both look the same: Aileron, which is in the public
    domain (CC0) and comes with Pillow. Where a reader does not load it, widths still fit: see `text_width`."""
    held = getattr(_font(20), "font_bytes", b"")
    source = f"data:font/ttf;base64,{base64.b64encode(held).decode()}"
    return f"@font-face{{font-family:{_OWN};src:url({source})}}.pic{{font-family:{_OWN},{_SANS}}}" if held else ""


def _alone(dark: bool) -> str:
    """The style sheet of a picture that stands alone."""
    light = "".join(f"--{tone}:{colour};" for tone, colour in TONES.items())
    themes = f".pic{{{light}}}"
    if dark:
        night = "".join(f"--{tone}:{colour};" for tone, colour in _DARK.items())
        themes += f"@media screen and (prefers-color-scheme:dark){{.pic{{{night}}}}}"
    return themes + shades.css(dark) + STYLE


def _class(shade: str) -> str:
    return f"t-{shade}" if shade in TONES else f"fill {shade}"


def _element(v: Item) -> str:
    if isinstance(v, Words):
        kinds = [f"on {v.shade}" if v.shade else f"t-{v.tone}", *(["mono"] if v.mono else []),
                 *(["b"] if v.bold else []), *([v.anchor] if v.anchor != "start" else [])]  # fmt: skip
        size = "" if v.size == 13 else f' font-size="{_n(v.size)}"'
        return f'<text class="{" ".join(kinds)}" x="{_n(v.x)}" y="{_n(v.y)}"{size}>{escape(safe(v.text), False)}</text>'
    if isinstance(v, Line):
        at = f'x1="{_n(v.x1)}" y1="{_n(v.y1)}" x2="{_n(v.x2)}" y2="{_n(v.y2)}"'
        return f'<line class="rule s-{v.tone}" stroke-width="{_n(v.width)}" {at}/>'
    if isinstance(v, Frame):
        at = f'x="{_n(v.x)}" y="{_n(v.y)}" width="{_n(v.width)}" height="{_n(v.height)}"'
        return f'<rect class="rule frame s-{v.tone}" stroke-width="{_n(v.stroke)}" {at}/>'
    return ""


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _strokes(box: Box) -> str:
    left, up, right, down = map(_n, _inside(box))
    return f"M{left} {down}L{right} {up}" + (f"M{left} {up}L{right} {down}" if box.mark == CROSS else "")


def _inside(box: Box) -> tuple[float, float, float, float]:
    return box.x + 2, box.y + 2, box.x + box.width - 2, box.y + box.height - 2


# ---- PNG -------------------------------------------------------------------------------------------------------------


def png(scene: Scene, title: str, scale: int = SCALE) -> bytes:
    """A scene as PNG, on white, with `scale` pixels for one of the scene in each direction."""
    from PIL import Image, ImageDraw, PngImagePlugin  # late: few runs draw

    picture = Image.new("RGB", (round(scene.width * scale), round(scene.height * scale)), TONES["card"])
    pen = _Pen(ImageDraw.Draw(picture), scale)
    for item in scene.items:
        pen.draw(item)
    about = PngImagePlugin.PngInfo()
    about.add_text("Title", safe(title).encode("latin-1", "replace").decode("latin-1"))
    out = io.BytesIO()
    picture.save(out, "PNG", pnginfo=about)
    return out.getvalue()


#: Characters that Pillow's font lacks → others.
_PLAIN = {"×": "x", "≤": "<=", "→": "->", "–": "-", "−": "-"}


@cache
def _font(size: float) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


@cache
def _drawable(character: str) -> str:
    """A character as Pillow's font has it: itself, a plain one, or the letter without its accent."""
    plain = _PLAIN.get(character) or unicodedata.normalize("NFD", character)[0]
    lacking = bytes(_font(20).getmask("\ufffe"))
    return next((c for c in (character, plain) if bytes(_font(20).getmask(c)) != lacking), "?")


class _Pen:
    """Draws items with Pillow, `scale` pixels for one of theirs."""

    def __init__(self, draw: ImageDraw, scale: int) -> None:
        self._draw, self._scale = draw, scale

    def draw(self, v: Item) -> None:
        scale = self._scale
        if isinstance(v, Box):
            self._box(v)
        elif isinstance(v, Words):
            self._words(v)
        elif isinstance(v, Line):
            self._draw.line(self._scaled(v.x1, v.y1, v.x2, v.y2), TONES[v.tone], max(1, round(v.width * scale)))
        else:
            half = v.stroke / 2
            outline = self._scaled(v.x - half, v.y - half, v.x + v.width + half, v.y + v.height + half)
            self._draw.rectangle(outline, None, TONES[v.tone], round(v.stroke * scale))

    def _scaled(self, *at: float) -> tuple[int, ...]:
        return tuple(round(v * self._scale) for v in at)

    def _box(self, v: Box) -> None:
        fill, ink = (TONES[v.shade], "") if v.shade in TONES else shades.PALETTE["light"][v.shade]
        x1, y1, x2, y2 = self._scaled(v.x, v.y, v.x + v.width, v.y + v.height)
        if x2 <= x1 or y2 <= y1:
            return
        self._draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill)
        if v.mark:
            left, up, right, down = self._scaled(*_inside(v))
            self._draw.line((left, down - 1, right - 1, up), ink, self._scale)
            if v.mark == CROSS:
                self._draw.line((left, up, right - 1, down - 1), ink, self._scale)

    def _words(self, v: Words) -> None:
        colour = shades.PALETTE["light"][v.shade][1] if v.shade else TONES[v.tone]
        text = "".join(map(_drawable, safe(v.text)))
        size, most = v.size * self._scale, v.width * self._scale
        while _font(size).getlength(text) > most and size > 6:
            size -= 1
        anchor, at = {"start": "ls", "middle": "ms", "end": "rs"}[v.anchor], (v.x * self._scale, v.y * self._scale)
        # there is no bold one: its strokes are drawn wider
        self._draw.text(at, text, colour, _font(size), anchor=anchor, stroke_width=round(size / 40) if v.bold else 0)
