"""Tables of Markdown, and the places of pages that are filled with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.support.errors import UsageError
from tools.measure import markdown


def test_a_table() -> None:
    assert markdown.table(["", "a"], [[1, "b"], [2, "c"]]) == "|  | a |\n|---|---|\n| 1 | b |\n| 2 | c |"


def test_a_share_is_never_rounded_to_all() -> None:
    shares = [markdown.percent(part, whole) for part, whole in ((0, 3), (1, 3), (99999, 100000), (3, 3), (0, 0))]
    assert shares == ["0 %", "33.33 %", "99.99 %", "100 %", "none"]


def test_places_of_a_page() -> None:
    text = "a\n<!-- bench: ladder -->\nold\n<!-- end -->\nb\n<!-- bench: card -->\n<!-- end -->\n"
    made = {"ladder": r"new \1", "card": "c"}
    filled = markdown.filled(text, made, "bench")
    assert filled == "a\n<!-- bench: ladder -->\nnew \\1\n<!-- end -->\nb\n<!-- bench: card -->\nc\n<!-- end -->\n"
    assert markdown.filled(filled, made, "bench") == filled
    assert markdown.marked(filled, "bench", "ladder") == r"new \1"
    for kind, name in (("bench", "decode"), ("mutation", "ladder")):
        with pytest.raises(UsageError, match=f"0 places are marked <!-- {kind}: {name} -->"):
            markdown.filled(text, {name: ""}, kind)
        with pytest.raises(ValueError, match=f"no place is marked <!-- {kind}: {name} -->"):
            markdown.marked(text, kind, name)
    with pytest.raises(UsageError, match="2 places are marked"):
        markdown.filled(2 * text, made, "bench")


@pytest.mark.parametrize(
    ("page", "kind", "names"),
    [
        (
            markdown.BENCHMARKS,
            "bench",
            (
                *("card", "definitions", "ladder", "ladder of f32", "fastest", "against llama.cpp", "other families"),
                *("against dequantize + cuBLAS", "rivals", "decode", "roofs", "choices", "verifications", "planted"),
            ),
        ),
        (markdown.EVIDENCE, "mutation", ("run", "kill", "naming", "alarms")),
    ],
)
def test_the_pages_have_every_place(page: Path, kind: str, names: tuple[str, ...]) -> None:
    markdown.filled(page.read_text(), dict.fromkeys(names, "x"), kind)
