"""The page of a bisection, without a browser; `test_html` opens it in one."""

from __future__ import annotations

import json
import re

import pytest

from gguf_verify.report.html import bisection as of_bisection
from gguf_verify.report.html import page
from gguf_verify.report.writer import Form, Kind, writers
from tests.support.bisection_records import bisection, bisections, named
from tests.support.html_pages import ReadPage
from tests.support.nights import HOSTILE, SCRIPT


@pytest.mark.parametrize("name", [*bisections(), *HOSTILE])
def test_html_holds_no_more_than_its_own(name: str) -> None:
    made = page.bisection(bisections().get(name) or named(name))
    found = ReadPage(made)
    assert not found.open
    assert not found.bad
    assert found.elements.count("script") == found.elements.count("style") == 1
    assert not {"img", "link", "iframe", "object", "base", "form"} & {*found.elements}
    assert len(found.ids) == len({*found.ids})
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\ufffe\udc80]", made)
    assert "default-src 'none'" in made
    assert SCRIPT not in made


def rows(made: str, table: str) -> list[str]:
    """The text of each row of a table's body."""
    body = made.split(f'<table id="{table}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    return [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in body.split("<tr")[1:]]


def test_runs_stand_in_the_order_in_which_they_were_made() -> None:
    made = page.bisection(bisection())
    assert [row.split("> ", 1)[-1].split()[:2] for row in rows(made, "t-runs")] == [
        ["1", "b4"], ["2", "b0"], ["3", "b2"], ["4", "b1"],
    ]  # fmt: skip
    third, fourth = rows(made, "t-runs")[2:]
    assert "✕ bad the first bad one" in third
    assert "✓ good the last good one" in fourth
    (known,) = rows(made, "t-taken")
    assert "– b3" in known
    assert "✕ bad –" in known


def test_what_turned_wrong() -> None:
    made = page.bisection(bisection())
    before, after = rows(made, "t-change")
    assert before.endswith("last good b1 CUDA0 12 – 0.25")
    assert after.endswith("first bad b2 CUDA0 3 ✕ 1 ✕ inf")
    order = [">Found</h1>", "the first bad build is b2", ">What turned wrong</h2>", "t-change", "ROPE Qcur-0",
             ">Runs</h2>", ">Everything else</h2>", "Repeat with"]  # fmt: skip
    assert sorted(order, key=made.index) == order


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        ("found", "good", "4 runs in 11.5 s, 1 taken over from before"),
        ("range", "warn", "Untested in between: <code>b2</code>."),
        ("range", "warn", "the first that is known to be bad"),
        ("range", "warn", '<span class="sub">died of SIGSEGV</span>'),
        ("new operation", "good", "the graph of b1 has no ROPE."),
        ("bits", "good", 'class="n differs">differs</td>'),
        ("bits", "good", 'class="n">equal</td>'),
        ("kernel", "good", "row 3 is wrong"),
        ("kernel", "good", "blk.0.attn_q.weight"),
        ("bad end is good", "warn", "no build turned wrong"),
        ("good end is bad", "bad", "the first bad one"),
        ("all known", "good", "Nothing was run: everything was known"),
    ],
)  # fmt: skip
def test_every_verdict(name: str, level: str, words: str) -> None:
    found = bisections()[name]
    made = page.bisection(found)
    assert f'<section class="verdict {level}"' in made
    assert words in made
    assert ("What turned wrong" in made) == (found.turned is not None or found.failure is not None)
    assert len(rows(made, "t-change")) == (1 if name == "new operation" else 2) if found.turned else True


def test_only_operations_that_are_known_are_compared() -> None:
    shown = of_bisection.of(bisections()["new operation"])
    assert [(label, seen.utilisation) for label, _, seen in shown.changes] == [("first bad", 9.5)]


def test_every_writer() -> None:
    """The page, the JSON and what is printed."""
    found = {w.flag: w.renders[Kind.BISECTION](bisection(), Form()) for w in writers(Kind.BISECTION)}
    assert found.keys() == {"--html", "--json", None}
    assert found["--html"] == page.bisection(bisection())
    made = json.loads(found["--json"])
    assert (made["kind"], made["verdict"], [step["run"] for step in made["steps"]]) == (
        "bisection", "found", [2, 4, 3, None, 1],
    )  # fmt: skip
    assert "changed   worst utilisation of ROPE: 0.25, now inf" in str(found[None])
