"""Words that stand in no file: phrases that readers did not understand, and advice to install a name that no index has
(this project is installed from a checkout)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tools import ROOT

PHRASES = re.compile(
    r"output element is, also|tie is said|ties are said|no part of it, and are counted|\bis told so\b"
    r"|environment cannot|never changed may not|meets? d_a·Σ|right as that|rings of stages turn"
    r"|function gives them away|with a smaller one|without a word after|said,? (and )?not failed"
)
ADVICE = re.compile(r"\b(?:install|pipx run|uvx) (?:-\S+ )*['\"]?gguf[-_]verify\b")
FOLDERS = ("harness", "tools", "kernels", "docs", "examples", "fixtures", "scripts", ".github", ".ci")
SUFFIXES = {".py", ".md", ".cu", ".cuh", ".hpp", ".toml", ".yml", ".html", ".json", ""}


def files(*more: str) -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.suffix in (".md", ".yml", ".toml"))
    yield from (ROOT / "Makefile", ROOT / "Dockerfile")
    for folder in (*FOLDERS, *more):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


def test_no_phrase_is_there() -> None:
    found = []
    for path in files("tests"):
        if path.name not in (Path(__file__).name, "mutation.json"):
            text = " ".join(path.read_text(errors="replace").split())
            found += [f"{path}: …{text[max(0, m.start() - 40) : m.end() + 40]}…" for m in PHRASES.finditer(text)]
    assert not found, "\n".join(found)


def test_no_file_advises_to_install_from_an_index() -> None:
    assert [path for path in files() if ADVICE.search(path.read_text(errors="replace"))] == []


@pytest.mark.parametrize(
    ("text", "is_advice"),
    [
        ("pip install gguf-verify", True),
        ("pip install -q 'gguf-verify[cuda13]'", True),
        ("pipx run gguf-verify", True),
        ("install gguf-verify[cuda12] or", True),
        ("pip install ./gguf-verify", False),
        ("pip install dist/gguf_verify-*.whl", False),
        ("pip install '.[cuda13]'", False),
    ],
)
def test_advice(text: str, is_advice: bool) -> None:
    assert bool(ADVICE.search(text)) == is_advice
