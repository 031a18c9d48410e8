"""The commands on the pages are accepted by the parsers; generated pages are current."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import gguf_verify
from gguf_verify.cli.command import Command, commands
from gguf_verify.support.errors import UsageError
from gguf_verify_nightly.config import REFERENCE
from tests.support.tools import ROOT
from tests.unit.docs.test_pages import DOCS, FENCE, PAGES, named


def told(page: Path) -> Iterator[list[str]]:
    """The commands that a page tells readers to type, in words."""
    text = page.read_text()
    indented = re.findall(r"^    (\S.*)$", FENCE.sub("", text), re.MULTILINE)
    inline = re.findall(r"`((?:gguf-verify|make|pytest) [^`\n]*)`", FENCE.sub("", text))
    for line in [*indented, *inline]:
        line = re.sub(r"\s+#.*$", "", line).replace(".venv/bin/", "")
        if re.match(r"(python scripts/\w+\.py|gguf-verify|make|pytest)( |$)", line) and "…" not in line:
            yield shlex.split(line)


COMMANDS = [(page, words) for page in PAGES if page.name != "CHANGELOG.md" for words in told(page)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 40


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{named(p)}: {' '.join(w)}" for p, w in COMMANDS])
def test_commands_are_those_that_there_are(page: Path, words: list[str]) -> None:
    if words[0] == "make":
        for target in [word for word in words[1:] if not re.fullmatch(r"[A-Z]+=.*", word)]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "pytest":
        plugin = (ROOT / "harness" / "gguf_verify" / "pytest_plugin.py").read_text()
        for word in words[1:]:
            assert f'"{word.split("=")[0]}"' in plugin if word.startswith("--") else (ROOT / word).exists()
    else:
        scripts = {"verify_model.py": "verify", "audit_layout.py": "audit", "nightly.py": "nightly"}
        rest = words[1:]
        if words[0] == "python":
            rest = [scripts[Path(words[1]).name], *words[2:]]
        known = all_commands()
        name = rest.pop(0) if rest and rest[0] in known else "verify"
        _parse(name, rest)


@cache
def all_commands() -> dict[str, Command]:
    return commands()


@cache
def parser_of(name: str) -> argparse.ArgumentParser:
    return all_commands()[name].parser()


def _parse(name: str, rest: list[str]) -> None:
    """Parse a command line, where it is one; a mention, such as `gguf-verify audit`, is the beginning of one."""
    parser = parser_of(name)
    if not rest:
        return
    if not any(word.startswith("-") for word in rest) and name != "verify":
        rest = [*rest, "-h"]  # `gguf-verify nightly run`
    if rest[0].startswith("-") and name in ("verify", "audit"):
        rest = ["MODEL.gguf", *rest]
    try:
        parser.parse_args(rest)
    except UsageError as error:
        raise AssertionError(f"{parser.prog} does not take {rest}: {error}") from None
    except SystemExit:  # of --help
        return


# ---- pages that are made from the code -------------------------------------------------------------------------------


def test_generated_pages_are_current() -> None:
    made = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def test_the_api_page_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text()
    for name in gguf_verify.__all__:
        if not name.startswith("_"):
            assert re.search(rf"^::: gguf_verify\.[\w.]*\b{name}$", page, re.MULTILINE), name


def test_names_on_the_api_page_exist() -> None:
    for path in re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path


def test_the_nightly_page_shows_the_reference() -> None:
    assert f"```toml\n{REFERENCE}```" in (DOCS / "nightly.md").read_text()
