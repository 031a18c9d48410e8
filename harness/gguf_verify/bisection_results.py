"""The typed records of a bisection."""

from __future__ import annotations

from typing import Literal

import msgspec

from gguf_verify.support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_USAGE,
    EXIT_VERIFIED,
    Culprit,
)

from .backend_results import GraphStep, WrongNode

#: Of the JSON of a bisection.
BISECTION_SCHEMA = 1
#: "skipped" is a candidate that could not be tested, as `git bisect skip` has it.
Outcome = Literal["good", "bad", "skipped"]
#: "found": the first bad build is known; "range": it lies among builds that could not be tested.
Verdict = Literal[
    "found", "range", "bad end is good", "good end is bad", "bad end cannot be tested", "good end cannot be tested"
]
#: "right": the operation was judged and right there; "elsewhere": likewise, on another device; "absent": the graph has
#: no such operation.
Before = Literal["right", "elsewhere", "absent"]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that a run judged: where, how many nodes of it, and how many of these are wrong.

    Args:
        utilisation: the worst: an error divided by what it may be.
        exact: bits are compared, and the utilisation says no more than whether they differ.
    """

    operation: str
    device: str
    nodes: int
    wrong: int
    utilisation: float = 0.0
    exact: bool = False


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The first failure of a run that verified a kernel: its rung, the tensor, in words, and the culprit."""

    rung: str
    tensor: str
    words: str
    culprit: Culprit


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a candidate's run.

    Args:
        outcome: "good" for exit code 0, "bad" for 1, else "skipped"; a report that contradicts the code is "skipped".
        exit_code: of `gguf-verify backend`, or of `gguf-verify` where versions of NVRTC are tried; None where it was
            not begun, died of a signal, or its time was over.
        why: it was skipped; "" where it was not.
        seconds: that the run took, without what was installed before it.
        build: the versions of llama.cpp and ggml that the run reports; or that of NVRTC, and the GPU.
        first: the first wrong node, in the order of the graph.
        failure: the first failure of the kernel.
        seen: the operations that were judged; those of a bad build up to its first wrong node.
        graph: the nodes of the first evaluation.
    """

    outcome: Outcome
    exit_code: int | None
    why: str = ""
    seconds: float = 0.0
    build: str = ""
    first: WrongNode | None = None
    failure: FirstFailure | None = None
    seen: tuple[Seen, ...] = ()
    graph: tuple[GraphStep, ...] = ()


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, by its name on the command line, with its result.

    Args:
        taken_over: an earlier bisection found that.
        run: which run of this bisection it was, from 1; None where it was taken over.
    """

    name: str
    taken_over: bool
    tried: Tried
    run: int | None = None


class Turned(msgspec.Struct, frozen=True, kw_only=True):
    """The node that turned wrong, and its counterpart in the last good build.

    Args:
        node: the first wrong node of the first bad build.
        before: how the operation was in the last good build.
        words: the same as a sentence.
        was: the operation there: on the same device, or, where it was on others, the worst of them; None where the
            graph has none.
        became: the operation in the first bad build, up to its first wrong node.
    """

    node: WrongNode
    before: Before
    words: str
    was: Seen | None = None
    became: Seen | None = None


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """A bisection that came to its end.

    Args:
        gguf_verify: this project's version.
        path, sha256: the model's file, a digest for each part.
        arguments: of each run of `gguf-verify backend`, or of `gguf-verify`.
        verdict: what is known.
        sentence: the same in words.
        last_good: the last build that is known to be good; "" where none is.
        first_bad: the first that is known to be bad; "" likewise.
        untested: builds between the two, none of which could be tested.
        graph: what the graph of the first bad build has otherwise than that of the last good one; where the bad end is
            good, than that of the good end. Each a line.
        turned: what turned wrong; None where no build is known to be bad, or no good one before it.
        failure: likewise, of a kernel: the first failure with the first bad version of NVRTC.
        steps: every candidate of which something is known, in the order of the builds.
        runs: that were made now; the rest was taken over.
        state: the file that keeps the results.
        seconds: that all took.
        command: that repeats it.
    """

    gguf_verify: str
    path: str
    sha256: tuple[str, ...]
    arguments: tuple[str, ...]
    verdict: Verdict
    sentence: str
    last_good: str
    first_bad: str
    untested: tuple[str, ...]
    turned: Turned | None
    steps: tuple[Step, ...]
    runs: int
    state: str
    seconds: float
    command: str
    failure: FirstFailure | None = None
    graph: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: the first bad build is known. 5: skipped candidates leave a range. 1: the build that was said to be good
        is wrong, which is a mismatch. 2: the build that was said to be bad is not, so the question is wrong. An end
        that cannot be tested gives the code of its run, or 3."""
        if self.verdict == "found":
            return EXIT_VERIFIED
        if self.verdict == "range":
            return EXIT_UNVERIFIED
        if self.verdict == "good end is bad":
            return EXIT_MISMATCH
        if self.verdict == "bad end is good":
            return EXIT_USAGE
        end = next((s.tried.exit_code for s in self.steps if s.tried.outcome == "skipped"), None)
        return end if end is not None and EXIT_USAGE <= end <= EXIT_UNVERIFIED else EXIT_ENVIRONMENT
