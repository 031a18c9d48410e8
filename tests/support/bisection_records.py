"""Bisections that were never made, for the tests of reports."""

from __future__ import annotations

import math
from typing import Any

from gguf_verify.bisection_results import Bisection, FirstFailure, Seen, Step, Tried, Turned
from tests.support.graph_records import wrong_node


def step(name: str, outcome: Any, run: int | None, **fields: Any) -> Step:
    """A build."""
    tried = Tried(outcome=outcome, exit_code=0, seconds=2.5, build="llama.cpp 0.5.0, ggml 0.25.3", **fields)
    return Step(name=name, taken_over=run is None, tried=tried, run=run)


def seen(utilisation: float = 0.25, **fields: Any) -> Seen:
    """A rotation."""
    usual: dict[str, Any] = {"operation": "ROPE", "device": "CUDA0", "nodes": 12, "wrong": 0}
    return Seen(utilisation=utilisation, **(usual | fields))


def bisection(**fields: Any) -> Bisection:
    """Five builds, the third of which is the first bad one; the fourth was known before."""
    turned = Turned(
        node=wrong_node(), before="right", words="ROPE on CUDA0 passed in b1: 12 nodes",
        was=seen(), became=seen(math.inf, nodes=3, wrong=1),
    )  # fmt: skip
    usual: dict[str, Any] = {
        "gguf_verify": "0.1.0", "path": "/models/tiny-Q4_0.gguf", "sha256": ("2f96a0a1" * 8,),
        "arguments": ("--device=CUDA0", "--exitfirst"), "verdict": "found",
        "sentence": "the first bad build is b2, and the last good one is b1", "last_good": "b1", "first_bad": "b2",
        "untested": (), "turned": turned, "runs": 4, "state": "/kept/1.json", "seconds": 11.5,
        "command": "gguf-verify bisect /models/tiny-Q4_0.gguf --good b0 --bad b4", "steps": (
            step("b0", "good", 2), step("b1", "good", 4), step("b2", "bad", 3), step("b3", "bad", None),
            step("b4", "bad", 1),
        ),
    }  # fmt: skip
    return Bisection(**(usual | fields))


def bisections() -> dict[str, Bisection]:
    """One of each kind."""
    unlike = Turned(node=wrong_node(), before="absent", words="the graph of b1 has no ROPE", became=seen(9.5, wrong=1))
    bits = Turned(
        node=wrong_node(), before="right", words="right before", was=seen(0.0, exact=True),
        became=seen(1.0, exact=True, wrong=1),
    )  # fmt: skip
    failure = FirstFailure(rung="layers", tensor="blk.0.attn_q.weight", words="row 3 is wrong", culprit="kernel")
    return {
        "found": bisection(),
        "range": bisection(
            verdict="range", untested=("b2",), first_bad="b3", sentence="the first bad build is after b1",
            steps=(step("b1", "good", 2), step("b2", "skipped", 3, why="died of SIGSEGV"), step("b3", "bad", 1)),
        ),
        "new operation": bisection(turned=unlike),
        "bits": bisection(turned=bits),
        "kernel": bisection(turned=None, failure=failure),
        "bad end is good": bisection(
            verdict="bad end is good", sentence="no build turned wrong", turned=None, first_bad="", runs=1,
            steps=(step("b4", "good", 1),),
        ),
        "good end is bad": bisection(verdict="good end is bad", turned=None, last_good=""),
        "all known": bisection(runs=0, steps=(step("b1", "good", None), step("b2", "bad", None))),
    }  # fmt: skip


def named(name: str) -> Bisection:
    """With a name that a file or a user gives, wherever there is one."""
    turned = Turned(node=wrong_node(name), before="right", words=name, was=seen(device=name), became=seen(device=name))
    return bisection(
        path=f"/models/{name}", sentence=name, last_good=name, first_bad=name, untested=(name,), turned=turned,
        state=name, command=f"gguf-verify bisect {name}", arguments=(name,),
        steps=(step(name, "skipped", 1, why=name), step(name, "bad", None)),
    )  # fmt: skip
