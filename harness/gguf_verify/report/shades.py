"""Shades of utilisation: the one scale of colours that heat maps, tables and pages use.

The scale is logarithmic. Up to the bound there are two steps a decade, over it one a decade; both are ordered by
lightness, so that eyes which cannot tell the colours apart can still tell their order. What is over the bound, or
wrong, is red, and is marked by a cross or a frame, or said in words, as well.
"""

from __future__ import annotations

from math import floor, isfinite, log10

#: Steps up to the bound: below 10⁻⁴ of it, then two a decade.
STEPS = 9
#: Not checked.
UNCHECKED = "un"
#: Over the bound, or wrong: a decade each from 1 to 100,000, and more or not finite.
WRONG = ("x0", "x1", "x2", "x3", "x4", "x5")

_KEYS = (*(f"u{i}" for i in range(STEPS)), *WRONG, UNCHECKED)
_RIGHT = {
    "light": "#eef4fb #dfeaf7 #cbdff2 #b2d0ec #94bce2 #6f9fd0 #3f74ad #275b94 #163f70",
    "dark": "#1c2735 #1f3147 #223c5b #26486f #2b5583 #356699 #6d9fd4 #94bdea #c3ddf8",
}
_REST = {
    "light": "#ec9aa4 #dc6c7e #b8263f #931430 #6d0b22 #470514 #e3e5e9",
    "dark": "#9c3446 #bb4458 #e8788a #f09aa7 #f7bcc5 #fddde2 #2c333f",
}
#: Theme → shade → (colour, colour of text on it).
PALETTE: dict[str, dict[str, tuple[str, str]]] = {}


def _ink(colour: str) -> str:
    """Nearly black or white, whichever has the larger contrast (WCAG 2.2: relative luminance)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return "#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "#0f1b2b"


for _theme in _RIGHT:
    _colours = f"{_RIGHT[_theme]} {_REST[_theme]}".split()
    PALETTE[_theme] = {key: (colour, _ink(colour)) for key, colour in zip(_KEYS, _colours, strict=True)}


def shade(utilisation: float | None, wrong: bool = False) -> str:
    """The shade of a utilisation: u0 … u8 within the bound, x0 … x5 over it or wrong, "un" where there is none."""
    if utilisation is None:
        return WRONG[0] if wrong else UNCHECKED
    if wrong or not utilisation <= 1:
        if not isfinite(utilisation):
            return WRONG[-1]
        return WRONG[min(len(WRONG) - 1, max(0, floor(log10(max(utilisation, 1)))))]
    if utilisation <= 0:
        return "u0"
    return f"u{min(STEPS - 1, max(0, floor(2 * (log10(utilisation) + 4)) + 1))}"


def is_wrong(key: str) -> bool:
    """Whether a shade stands for something over the bound, or wrong."""
    return key in WRONG


def short(value: float | None) -> str:
    """A utilisation in at most seven characters."""
    if value is None:
        return "–"
    if not isfinite(value):
        return "NaN" if value != value else "inf"
    return f"{value:,.0f}" if 100 <= value < 1e5 else f"{value:.2g}"


def css(dark: bool = True) -> str:
    """The colours as classes of a style sheet: `--fill` of a cell and `--ink` of text on it; those of the
    dark theme, too, unless a picture is to be light in any theme."""
    themes = {
        theme: "".join(f".{key}{{--fill:{fill};--ink:{ink}}}" for key, (fill, ink) in colours.items())
        for theme, colours in PALETTE.items()
    }
    if not dark:
        return themes["light"]
    return f"{themes['light']}@media screen and (prefers-color-scheme:dark){{{themes['dark']}}}"


def rank(value: float | None) -> float:
    """For sorting: NaN is worse than any number, None is better."""
    return -1.0 if value is None else float("inf") if value != value else value


#: Verdicts, outcomes and severities → level. All others are "warn", such as "verified on drawn data" (without a model).
_LEVELS = {
    **dict.fromkeys(("passed", "verified", "clean", "note"), "good"),
    **dict.fromkeys(("failed", "mismatch", "wrong", "refused", "error"), "bad"),
}


def level(verdict: str) -> str:
    """Return the level of a verdict, an outcome or a severity: "good", "warn" or "bad"."""
    return _LEVELS.get(verdict, "warn")
