"""The script that plays four users: it detects failures and delays, and all its steps work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import four_users
from scripts.four_users import Broken, Clone, Step, changed, code_of, play
from tests.support.tools import ROOT


def fails() -> str:
    raise Broken("exit code 1 instead of 0")


def test_a_step_that_fails_is_named_and_the_others_go_on() -> None:
    said: list[str] = []
    steps = [Step("author", "one", fails), Step("author", "two", lambda: "VERIFIED", 3600)]
    found = play(steps, True, said.append)
    assert [bool(d.fault) for d in found] == [True, False]
    assert "FAILED exit code 1 instead of 0" in said[0]
    assert said[1].endswith("ok     VERIFIED")


def test_a_step_that_is_late_fails_unless_times_are_not_judged() -> None:
    late = Step("author", "one", lambda: "VERIFIED", -1)
    (judged,), (shown,) = (play([late], judge, lambda _: None) for judge in (True, False))
    assert judged.fault == "took longer than -1 s"
    assert not shown.fault


def test_code_that_a_page_lost_is_noticed() -> None:
    assert "def gemm" in code_of(ROOT / "README.md", "python", "def gemm")
    with pytest.raises(Broken, match="has no python block that contains"):
        code_of(ROOT / "README.md", "python", "no such code")
    with pytest.raises(Broken, match="nothing"):
        changed("text", "nothing", "something")


def test_an_exit_code_or_words_that_are_not_promised_are_noticed() -> None:
    clone = Clone(ROOT, Path(sys.prefix))
    assert "gguf-verify" in clone.verify(0, "--version")
    with pytest.raises(Broken, match="exit code 0 instead of 1"):
        clone.verify(1, "--version")
    with pytest.raises(Broken, match="does not contain 'no such words'"):
        clone.verify(0, "--version", words=["no such words"])


def test_an_unknown_user_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        four_users.main(["nobody"])
    assert ended.value.code == 2


def test_the_first_file_for_continuous_integration_has_ten_lines_at_most() -> None:
    text = code_of(ROOT / "docs" / "ci.md", "yaml", "OWNER/gguf-verify@COMMIT")
    assert len(text.splitlines()) <= four_users.MOST_CI_LINES == 10


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_everything_that_is_played_works(capsys: pytest.CaptureFixture[str]) -> None:
    code = four_users.main(["--lenient", "--environment", sys.prefix])
    assert code == 0, capsys.readouterr().out
