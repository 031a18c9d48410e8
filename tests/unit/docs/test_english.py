"""Phrases that nobody understood at the first reading, and that must not come back."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PHRASES = (
    r"output element is, also", r"tie is said", r"ties are said", r"no part of it, and are counted", r"\bis told so\b",
    r"environment cannot", r"never changed may not", r"meets? d_a·Σ", r"right as that", r"rings of stages turn",
    r"function gives them away", r"with a smaller one", r"without a word after", r"said,? (and )?not failed",
)  # fmt: skip
FOLDERS = ("harness", "tools", "kernels", "docs", "examples", "fixtures", "scripts", "tests", ".github")
SUFFIXES = {".py", ".md", ".cu", ".cuh", ".hpp", ".toml", ".yml", ".html", ".json"}


def test_no_phrase_is_there() -> None:
    paths = [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in (ROOT / folder).rglob("*"))]
    pattern = re.compile("|".join(PHRASES))
    found = []
    for path in paths:
        if path.suffix in SUFFIXES and path.name not in (Path(__file__).name, "mutation.json"):
            text = " ".join(path.read_text(errors="replace").split())
            for m in pattern.finditer(text):
                found.append(f"{path.relative_to(ROOT)}: …{text[max(0, m.start() - 40) : m.end() + 40]}…")
    assert not found, "\n".join(found)
