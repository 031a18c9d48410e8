"""Durations as words."""

from __future__ import annotations

import pytest

from gguf_verify.support.durations import MOST_SECONDS, in_words, is_duration, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds", "words"),
    [
        ("90", 90.0, "90s"), ("90s", 90.0, "90s"), ("2m", 120.0, "2m"), ("120", 120.0, "2m"), ("1h", 3600.0, "1h"),
        ("1.5m", 90.0, "90s"), ("60m", 3600.0, "1h"), ("0.25", 0.25, "0.25s"), (" 3h ", 10800.0, "3h"),
    ],
)  # fmt: skip
def test_a_time_in_words(text: str, seconds: float, words: str) -> None:
    assert seconds_of(text) == seconds
    assert in_words(seconds) == words
    assert seconds_of(words) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-1", "+2m", "m", "2 m", "2M", "2d", "1h30m", "nan", "inf", "1e3", "٣", "9" * 400, "\x1b[2J"],
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration above 0, such as 90, 90s, 2m or 1h") as caught:
        seconds_of(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 100


def test_limits_of_durations() -> None:
    assert is_duration(MOST_SECONDS)
    assert not any(map(is_duration, (0.0, -1.0, float("nan"), float("inf"), 2 * MOST_SECONDS)))
