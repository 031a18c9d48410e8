"""The pages: links lead somewhere, the README is short, private terms are linked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tools import ROOT

DOCS = ROOT / "docs"
#: Pages that people write; the others are made from the code, by programs that their first lines name.
GENERATED = ("claims", "command-line", "faults", "findings", "formats", "museum", "mutation", "readers")
PAGES = sorted(
    [*(p for p in DOCS.rglob("*.md") if p.stem not in GENERATED), *ROOT.glob("*.md"), ROOT / "fixtures" / "README.md"]
)
ALL = sorted({*PAGES, *DOCS.glob("*.md")})
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")

#: Private terms, as a page uses them, and the anchor that it must then link to.
TERMS = {
    "ambiguous code": "ambiguous-code",
    "fingerprints?": "fingerprint",
    "grafts?|grafted|grafting": "graft",
    "gates?": "gate",
    "rungs?": "rung",
    "ties?": "tie",
    "utilisations?": "utilisation",
    "wobble": "wobble",
    "X-rays?": "x-ray",
}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without code."""
    text = FENCE.sub("", page.read_text())
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "<!--", ":::"))]
    return _CODE.sub("", "\n".join(lines))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown names them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading)
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text.encode("ascii", "ignore").decode()).strip().lower())
        found.add(slug if slug not in found else f"{slug}_{sum(a.startswith(f'{slug}_') for a in found) + 1}")
    return found


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", ALL, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for text, target in _LINK.findall(_CODE.sub("", FENCE.sub("", page.read_text()))):
        path, _, anchor = target.partition("#")
        if ":" in path:
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"[{text}]({target})"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"[{text}]({target})"


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}" in listed


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in ("glossary.md", "CHANGELOG.md")], ids=named)
def test_private_terms_are_linked(page: Path) -> None:
    text = prose(page)
    plain = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    for term, anchor in TERMS.items():
        if re.search(rf"\b(?:{term})\b", plain):
            assert re.search(rf"glossary\.md#{anchor}\)|concepts\.md#{anchor}s?\)", text), f"{term} is not linked"


def test_the_glossary_defines_each_term_once() -> None:
    headings = re.findall(r"^### (.*)$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(TERMS.values()) <= anchors(DOCS / "glossary.md")
