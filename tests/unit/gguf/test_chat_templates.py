"""Chat templates that do not parse."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.gguf.chat_templates import MOST_CHARACTERS
from gguf_verify.gguf.records import Finding
from tests.unit.gguf.gguf_py import findings_of

KEY = "tokenizer.chat_template"


def found(path: Path, *templates: str) -> list[Finding]:
    """The findings of a file whose keys are templates: the one by default, and others by name."""
    return findings_of(path, {f"{KEY}.name{i}" if i else KEY: template for i, template in enumerate(templates)})


@pytest.mark.parametrize(
    "template",
    [
        "plain text, { and }",
        "{% for m in messages %}{{ m['content'] }}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content | trim }}{% endgeneration %}{% continue %}{% endfor %}",
        "{{ raise_exception('no system role') }}{{ strftime_now('%d %b %Y') }}{{ tools | tojson(indent=4) }}",
        "{% macro call(x) %}{{ x }}{% endmacro %}{% set ns = namespace(found=false) %}{% set ns.found = true %}",
        "{{ 10 ** 10 ** 10 }}{{ range(10 ** 12) | list }}{{ messages | a_filter_of_the_future }}",
    ],
)
def test_a_template(template: str, tmp_path: Path) -> None:
    assert found(tmp_path / "m.gguf", template, template) == []


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{% if %}{{", 1),
        ("{% for m in messages %}\n{{ m.content }\n{% endfor %}", 2),
        ("{% for m in messages %}\n\n{{ m.content }}", 3),
        ("\n{% endfor %}", 2),
        ("{% unknown_tag %}", 1),
        ("{{ 'cut", 1),
        ("{% generation %}", 1),
    ],
)
def test_a_template_that_does_not_parse(template: str, line: int, tmp_path: Path) -> None:
    for i, (templates, key) in enumerate([((template,), KEY), (("{{ x }}", template), f"{KEY}.name1")]):
        (one,) = found(tmp_path / f"{i}.gguf", *templates)
        assert (one.id, one.owner, one.severity) == ("GGUF-095-chat-template", key, "warning")
        assert f"in line {line} in {key}" in one.found


@pytest.mark.parametrize(
    "template", ["{{ " + "(" * 50_000, "{{ " + "[" * 5_000 + "]" * 5_000 + " }}", "{{ " + "9" * 5_000]
)
def test_a_template_that_the_parser_breaks_on(template: str, tmp_path: Path) -> None:
    (one,) = found(tmp_path / "m.gguf", template)
    assert one.id == "GGUF-095-chat-template"
    assert one.line().isprintable()


def test_templates_are_limited_in_all(tmp_path: Path) -> None:
    assert found(tmp_path / "m.gguf", "x" * (MOST_CHARACTERS // 2), "x" * (MOST_CHARACTERS // 2)) == []
    (one,) = found(tmp_path / "n.gguf", "x" * (MOST_CHARACTERS // 2), "{% if %}" * MOST_CHARACTERS, "{% if %}")
    assert one.found == f"{MOST_CHARACTERS // 2 + 8 * MOST_CHARACTERS:,}, which were not parsed, in {KEY}.name1"
