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


_STEP = re.compile(r"^\[`([^`]+)`\]\(\.\./kernels/gemm/[^)]+\).*?^```cpp\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_ladder_quotes_its_kernels() -> None:
    """Each line of code is one of the file, in its order; there are at most seven, beside the marks of omitted ones."""
    found = _STEP.findall((DOCS / "ladder.md").read_text())
    assert len(found) == 15
    for file, code in found:
        lines = [line.strip() for line in (ROOT / "kernels" / "gemm" / file).read_text().splitlines()]
        at, shown = 0, [line.strip() for line in code.splitlines() if line.strip() != "…"]
        assert len(shown) <= 7, file
        for line in shown:
            starts = [i for i in range(at, len(lines)) if lines[i].startswith(line)]
            assert starts, f"{file} has no line {line!r} behind those before it"
            at = starts[0] + 1


def test_the_home_page_has_one_picture_and_four_doors() -> None:
    page = (DOCS / "index.md").read_text()
    assert page.count("![") == 1
    doors = re.findall(r"\]\((tutorials/[a-z-]+\.md)\)", page)
    assert sorted(doors) == sorted(str(p.relative_to(DOCS)) for p in (DOCS / "tutorials").glob("*.md"))


def test_the_site_holds_no_compiled_python() -> None:
    excluded = re.findall(r"^  (\S+)$", (ROOT / "mkdocs.yml").read_text().partition("exclude_docs: |")[2], re.MULTILINE)
    assert {"*.py", "__pycache__/"} <= {*excluded}


def test_the_glossary_defines_each_term_once() -> None:
    headings = re.findall(r"^### (.*)$", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert set(TERMS.values()) <= anchors(DOCS / "glossary.md")
