"""Output where there is no terminal: a log whose lines are no commands of GitHub Actions or similar systems."""

from __future__ import annotations

import io
import re

import pytest

from gguf_verify.support.inert import Inert

COMMANDS = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


def printed(*texts: str) -> str:
    stream = io.StringIO(newline="")
    inert = Inert(stream)
    for text in texts:
        assert inert.write(text) == len(text)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::stop-commands::x", "\\x3a:stop-commands::x"),
        ("a\n  \t\u00a0::notice::VERIFIED\n", "a\n  \t\u00a0\\x3a:notice::VERIFIED\n"),
        ("a\r::error::b", "a\r\\x3a:error::b"),
        ("a ##[group]b ##vso[task.complete]c", "a ##\\x5bgroup]b ##vso\\x5btask.complete]c"),
        ("\n\n ::x\n::y", "\n\n \\x3a:x\n\\x3a:y"),
    ],
)
def test_commands_are_escaped_however_the_text_comes(text: str, shown: str) -> None:
    assert printed(text) == shown
    for at in range(len(text)):
        assert not COMMANDS.search(printed(text[:at], text[at:]).replace("\r", "\n")), at
    assert not COMMANDS.search(printed(*text).replace("\r", "\n"))


@pytest.mark.parametrize("text", ["kernel::gemm(x) :: y\n", "a: b\n", "# ## [a]\n", "x" * 200 + "\n", "a::", " b:c:"])
def test_other_text_stays(text: str) -> None:
    assert printed(text) == text
    assert printed(*text) == text


def test_a_long_line_does_not_begin_anew() -> None:
    assert printed("a" + " " * 500, "::x") == "a" + " " * 500 + "::x"
    assert printed(" " * 500, "::x") == " " * 500 + "\\x3a:x"


def test_a_lot_of_blank_lines_takes_no_time() -> None:
    text = "\n" * 1_000_000 + " " * 1_000_000
    assert printed(text) == text
