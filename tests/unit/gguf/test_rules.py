"""The table of findings: complete, and fit for a page of documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gguf_verify
from gguf_verify.gguf.rules import RULES, Rule

#: Functions that make a finding, and the argument that is its rule's slug.
MAKERS = {"finding": 0, "refuse": 0, "warn": 0, "at_key": 0, "at_tensor": 0, "_refuse": 1}
#: Slugs that are put together: f"{what}-count".
COMPOSED = {"tensor-count", "key-count"}


def emitted() -> Iterator[str]:
    """The slugs that the code writes out where it makes a finding."""
    package = Path(gguf_verify.__file__).parent
    for path in (*package.glob("gguf/*.py"), *package.glob("audit/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                at = MAKERS.get(name)
                argument = node.args[at] if at is not None and len(node.args) > at else None
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def test_every_id_that_the_code_can_emit_has_an_entry() -> None:
    found = set(emitted())
    assert len(found) > 50
    assert found <= set(RULES)
    assert set(RULES) - found <= COMPOSED | mentioned()


def mentioned() -> set[str]:
    """Slugs that stand in the code as a string and are passed on."""
    package = Path(gguf_verify.__file__).parent
    text = "".join(
        p.read_text() for p in (*package.glob("gguf/*.py"), *package.glob("audit/**/*.py")) if p.stem != "rules"
    )
    return {slug for slug in RULES if f'"{slug}"' in text}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_an_entry_has_reason_cause_and_cure(rule: Rule) -> None:
    assert re.fullmatch(r"GGUF-\d{3}-[a-z0-9-]+", rule.id)
    assert rule.why
    assert not rule.why.endswith(".")
    for text in (rule.cause, rule.cure):
        assert re.fullmatch(r"([A-Z]|llama\.cpp|gguf-py).{15,250}\.", text), text
        assert text == " ".join(text.split())


def test_numbers_ascend() -> None:
    numbers = [rule.number for rule in RULES.values()]
    assert numbers == sorted(set(numbers))
