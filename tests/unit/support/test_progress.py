"""Lines and bars on standard error."""

from __future__ import annotations

import io

import pytest

from gguf_verify.support.progress import print_above_bars, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("late", [False, True])
def test_lines_stand_above_a_bar_that_is_shown(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """A bar appears after a while only; until then a line must not show it."""
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    with progress_bar("work", 9, "step", shown=True) as bar:
        if late:
            bar.start_t -= 100
            bar.update()
            bar.refresh()
            assert "work:" in out.getvalue()
        before = len(out.getvalue())
        print_above_bars("a line\n")
        assert ("work:" in out.getvalue()[before:]) == late
    end = out.getvalue().rpartition("\n")[2]
    assert end.rpartition("\r")[2] == ""  # the bar is gone
    assert "a line\n" in out.getvalue()
