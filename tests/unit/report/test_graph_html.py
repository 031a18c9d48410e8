"""The page of a graph that was judged node by node, without a browser; `test_html` opens it in one."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from gguf_verify.backend_results import OperationResult
from gguf_verify.report.html import graph as of_graph
from gguf_verify.report.html import page
from tests.support.graph_records import VERDICTS, graph, graphs, left, named, operation, wrong_node
from tests.support.html_pages import ReadPage
from tests.support.nights import HOSTILE, SCRIPT

NAMES = [*VERDICTS, *(f"hostile {i}" for i in range(len(HOSTILE)))]


@cache
def pages() -> dict[str, str]:
    made = {name: page.graph(report) for name, report in graphs().items()}
    return made | {f"hostile {i}": page.graph(named(name)) for i, name in enumerate(HOSTILE)}


@pytest.mark.parametrize("name", NAMES)
def test_html_holds_no_more_than_its_own(name: str) -> None:
    made = pages()[name]
    found = ReadPage(made)
    assert not found.open
    assert not found.bad
    assert found.elements.count("script") == found.elements.count("style") == 1
    assert not {"img", "link", "iframe", "object", "base", "form"} & {*found.elements}
    assert len(found.ids) == len({*found.ids})
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\ufffe\udc80]", made)
    assert len(made.encode()) < 200_000
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_a_script_stays_text() -> None:
    made = pages()[f"hostile {HOSTILE.index(SCRIPT)}"]
    assert SCRIPT not in made
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
    assert "{{ 7*7 }}{% raw %}" in pages()["hostile 6"], "no template reads a name"


def test_the_verdict_is_first() -> None:
    made = pages()["many wrong"]
    order = [">Mismatch</h1>", "40 of 50 nodes are incorrect", ">The first wrong node</h2>", "src[1] inp_pos I32 [10]",
             "Repeat with", "39 further wrong nodes, 1 recorded", ">Operations</h2>", ">Not judged</h2>",
             ">Everything else</h2>"]  # fmt: skip
    assert sorted(order, key=made.index) == order
    assert "<title>mismatch: tiny-Q4_0.gguf on CUDA0 · gguf-verify</title>" in made
    assert made.count("Repeat with") == 1


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        ("right", "good", "Largest error: RMS_NORM, 0.25 of its bound."), ("wrong", "bad", "1 of 36 nodes"),
        ("broken off", "warn", "Broken off: llama.cpp died of SIGSEGV."), ("interrupted", "warn", "early by SIGINT"),
        ("first failure", "bad", "Ended early by the first failure."),
        ("not judged", "warn", "11 nodes without a definition"),
        ("fell back", "good", "Fell back to CPU, not computed on CUDA0: ROPE (12)."),
        ("nothing on the device", "warn", "none of them on CUDA0"), ("nothing", "warn", "No node was judged."),
        ("varying", "good", "<b>other bits</b> micro-batches of 8 against 1: first at ROPE Qcur-0"),
    ],
)  # fmt: skip
def test_every_verdict(name: str, level: str, words: str) -> None:
    made = pages()[name]
    assert f'<section class="verdict {level}"' in made
    assert words in made
    assert ("The first wrong node" in made) == (VERDICTS[name] == "mismatch")
    assert ("Repeat with" in made) == (VERDICTS[name] != "verified")


def test_outcomes_of_operations() -> None:
    exact: dict[str, Any] = {"exact": True, "definitions": ("bytes",)}
    found: tuple[OperationResult, ...] = (
        operation("ADD"), operation("MUL", "CPU"), operation("CPY", **exact), operation("CONT", ambiguous=3, **exact),
        operation("ROPE", "CPU", wrong_node()),
    )  # fmt: skip
    shown = of_graph.of(graph(*found))
    assert [(o.outcome, o.utilisation) for o in shown.operations] == [
        ("right", ""), ("fell back", ""), ("right", "equal"), ("right", "equal, 3 ambiguous"), ("wrong", ""),
    ]  # fmt: skip
    made = page.graph(graph(*found))
    assert re.findall(r'<tr data-outcome="([^"]*)"', made) == [o.outcome for o in shown.operations]
    assert "<option>fell back</option><option>right</option><option>wrong</option>" in made
    assert "✕ 1.8e+06" in made


def test_a_large_graph() -> None:
    many = [operation(f"OP{i}", definitions=("f32",) * 9) for i in range(6000)]
    made = page.graph(graph(*many, not_judged=tuple(left(f"LEFT{i}") for i in range(6000))))
    assert made.count("the first 5,000 of 6,000") == 2
    assert "OP4999<" in made
    assert "OP5000<" not in made
    assert len(made.encode()) < 5_000_000
