"""Nobody is told to install a name that is on no index: this project is installed from a checkout."""

from __future__ import annotations

import re

from tests.support.tools import ROOT

_FOLDERS = ("harness", "tools", "docs", "examples", "scripts", ".github", ".ci")
_SUFFIXES = {".py", ".md", ".yml", ".toml", ".html", ".cu", ""}
_ADVICE = re.compile(r"\b(?:install|pipx run|uvx) (?:-\S+ )*['\"]?gguf[-_]verify\b")


def test_the_pattern_finds_advice() -> None:
    for text in (
        "pip install gguf-verify",
        "pip install -q 'gguf-verify[cuda13]'",
        "pipx run gguf-verify",
        "install gguf-verify[cuda12] or",
    ):
        assert _ADVICE.search(text)
    for text in ("pip install ./gguf-verify", "pip install dist/gguf_verify-*.whl", "pip install '.[cuda13]'"):
        assert not _ADVICE.search(text)


def test_no_file_advises_to_install_what_is_not_there() -> None:
    paths = [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "pyproject.toml"]
    paths += [p for folder in _FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in _SUFFIXES and p.is_file()]
    found = [str(p.relative_to(ROOT)) for p in paths if _ADVICE.search(p.read_text(errors="replace"))]
    assert found == []
