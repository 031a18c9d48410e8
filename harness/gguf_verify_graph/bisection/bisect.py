"""A bisection from plan to result: both ends are tried, then builds between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gguf_verify.bisection_results import Before, Bisection, FirstFailure, Outcome, Step, Tried, Turned, Verdict
from gguf_verify.gguf.model import open_model
from gguf_verify.processes.commands import Processes
from gguf_verify.support.errors import UsageError, say
from gguf_verify.support.progress import Steps
from gguf_verify.support.text import printable
from gguf_verify.support.version import project_version
from gguf_verify_nightly.machine import code_hash

from .candidates import Candidate, between, is_version, named, versions_on_index
from .graphs import differences, listed
from .kernel_runs import PACKAGE, KernelRuns
from .runs import Runner, Runs
from .search import most_runs, search
from .state import Session, State, opened

if TYPE_CHECKING:  # it imports llama-cpp-python, which builds in folders do not need
    from .versions import Versions

#: Prefixes of environment variables that ggml, its backends and their drivers read.
_VARIABLES = ("GGML_", "LLAMA_", "CUDA_", "HIP_", "VK_")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of a bisection.

    Args:
        model: the model's file.
        good, bad: the ends: versions or folders.
        among: the builds between them in order; None for every version between them on the package index.
        arguments: arguments of `gguf-verify backend`, without the model and the build.
        prompt: the prompt of these arguments, which may come from a file.
        keep: folder for the results.
        retry: try again builds that could not be tested.
        time_limit: seconds per run.
        install_limit: seconds per installation of a version.
        harness: command to run in place of `python -m gguf_verify backend`, or `verify`.
        fetch: returns the library of a version of NVRTC; None: from PyPI.
        command: the command line that repeats the bisection.
        nvrtc: the builds are versions of NVRTC, which compile a kernel; `arguments` are those of `gguf-verify`.
    """

    model: Path
    good: str
    bad: str
    among: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    prompt: str = ""
    keep: Path
    retry: bool = False
    time_limit: float = 3600.0
    install_limit: float = 7200.0
    harness: Sequence[str] = ()
    fetch: Callable[[str], Path] | None = None
    command: str = ""
    nvrtc: bool = False


def bisect(plan: Plan) -> Bisection:
    """Find the first bad build.

    Raises UsageError for builds that do not exist or have no order, MalformedFile for a refused model, and
    EnvironmentFault if the package index does not answer or results cannot be stored.
    """
    began = time.monotonic()
    with closing(Processes()) as processes:
        versions = _Once(processes, plan.install_limit)
        candidates = _of_nvrtc(plan, processes) if plan.nvrtc else _candidates(plan, versions)
        with open_model(plan.model) as model:
            sha256 = model.sha256()
        session = Session(
            sha256=sha256,
            arguments=("NVRTC",) * plan.nvrtc + plan.arguments,
            prompt=plan.prompt,
            variables={k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)},
            gguf_verify=project_version(),
            code=code_hash(),
        )
        about, limit = (plan.model, sha256, plan.arguments, processes), plan.time_limit
        runs: Runner = (
            KernelRuns(*about, limit, plan.install_limit, plan.harness, plan.fetch)
            if plan.nvrtc
            else Runs(*about, versions, limit, plan.harness)
        )
        with opened(plan.keep, session) as state:
            return _Search(plan, candidates, sha256, runs, state, began).result()


class _Once:
    """Creates `Versions` on first use."""

    def __init__(self, processes: Processes, time_limit: float) -> None:
        self._made: Versions | None = None
        self._processes, self._time_limit = processes, time_limit

    def __call__(self) -> Versions:
        if self._made is None:
            from .versions import Versions

            self._made = Versions(self._processes, self._time_limit)
        return self._made


def _candidates(plan: Plan, versions: Callable[[], Versions]) -> list[Candidate]:
    """Return the candidates from the good end to the bad one."""
    among = plan.among
    if plan.good == plan.bad:
        raise UsageError("--good and --bad are the same build")
    if among is None and is_version(plan.good) and is_version(plan.bad):
        among = between(plan.good, plan.bad, versions().all())
    return named([plan.good, *(among or ()), plan.bad], lambda version: versions().identity(version))


def _of_nvrtc(plan: Plan, processes: Processes) -> list[Candidate]:
    """Return versions of NVRTC from the good end to the bad one. Raises UsageError, EnvironmentFault."""
    among = plan.among
    given = [plan.good, *(among or ()), plan.bad]
    if wrong := [name for name in given if not is_version(name)]:
        raise UsageError(f"{printable(wrong[0], 200)} is not a version of NVRTC, such as 13.0.88")
    if plan.good == plan.bad:
        raise UsageError("--good and --bad are the same version")
    if among is None:
        among = between(plan.good, plan.bad, versions_on_index(processes, PACKAGE), PACKAGE)
    return named([plan.good, *among, plan.bad], lambda version: "NVRTC")


class _Search:
    """One search; `result` runs it."""

    def __init__(
        self, plan: Plan, candidates: list[Candidate], sha256: tuple[str, ...], run: Runner, state: State, began: float
    ) -> None:
        self._plan, self._candidates, self._sha256 = plan, candidates, sha256
        self._run, self._state, self._began = run, state, began
        self._tried: dict[int, Tried] = {}
        self._run_now: list[int] = []
        #: If every node of both ends passes: the first difference of their graphs, which marks a bad build.
        self._change: str | None = None

    def result(self) -> Bisection:
        """Run the search."""
        n = len(self._candidates)
        known = {i: found for i in range(n) if (found := self._known(i)) is not None}
        if known:
            names = ", ".join(self._name(i) for i in known)
            say(f"reused from {printable(str(self._state.path), 200)}: {names}")
        last = n - 1
        # start with the bad build: usually the one at hand
        for end, wanted in ((last, "bad"), (0, "good")):
            outcome = self._test(end, known)
            if outcome == "skipped":
                verdict: Verdict = "bad end cannot be tested" if end else "good end cannot be tested"
                why = self._tried[end].why
                return self._made(verdict, f"the {wanted} end {self._name(end)} cannot be tested: {why}")
            if outcome == "bad" and not end:
                return self._good_end_is_bad()
        if self._tried[last].outcome == "good":
            self._change = next(differences(self._tried[0].graph, self._tried[last].graph), None)
            if self._change is None:
                return self._bad_end_is_good()
        if n > 2:
            say(f"{n - 2} builds in between: at most {most_runs(n)} more runs, plus one for each skipped build")
        middle = {i: self._outcome(found) for i, found in known.items() if 0 < i < last}
        self._tried |= {i: known[i] for i in middle}
        edge = search(n, lambda i: self._test(i, {}), middle)
        good, bad = self._name(edge.good), self._name(edge.bad)
        turned = _turned(self._tried[edge.bad], good, bad, self._tried[edge.good])
        untested = tuple(self._candidates[i].name for i in edge.skipped)
        if untested:
            count = f"{len(untested)} build{'s' * (len(untested) > 1)} in between could not be tested"
            words = f"the first bad build is after {good} and not after {bad}: {count}"
        else:
            words = f"the first bad build is {bad}, and the last good one is {good}"
        graph = [*differences(self._tried[edge.good].graph, self._tried[edge.bad].graph)]
        if self._change is not None:
            words += f"; every node of both passes, but their graphs differ: {self._change}"
        return self._made(
            "range" if untested else "found",
            words,
            self._candidates[edge.good].name,
            self._candidates[edge.bad].name,
            untested,
            turned,
            self._tried[edge.bad].failure,
            listed(graph),
        )

    def _bad_end_is_good(self) -> Bisection:
        last = len(self._candidates) - 1
        judged = "its kernel is verified" if self._plan.nvrtc else "every node passes"
        if self._tried[0].graph and self._tried[last].graph:
            judged += ", and its graph equals the good end's"
        elif not self._plan.nvrtc:
            judged += ", and the graphs were not compared"
        words = f"--bad {self._name(last)} passes too: {judged}"
        return self._made("bad end is good", words, last_good=self._candidates[last].name)

    def _good_end_is_bad(self) -> Bisection:
        name = self._name(0)
        first = self._tried[0].first
        node = "" if first is None else f" ({first.operation} {first.node} on {first.device})"
        what = "kernel" if self._plan.nvrtc else "graph"
        words = f"the good end {name} is bad{node}: the {what} turned wrong there or before it"
        failure = self._tried[0].failure
        return self._made("good end is bad", words, first_bad=self._candidates[0].name, failure=failure)

    def _made(
        self,
        verdict: Verdict,
        sentence: str,
        last_good: str = "",
        first_bad: str = "",
        untested: tuple[str, ...] = (),
        turned: Turned | None = None,
        failure: FirstFailure | None = None,
        graph: tuple[str, ...] = (),
    ) -> Bisection:
        steps = tuple(
            Step(
                name=self._candidates[i].name,
                taken_over=i not in self._run_now,
                tried=replace(self._tried[i], graph=()),  # graphs are long, and their differences are listed
                run=self._run_now.index(i) + 1 if i in self._run_now else None,
            )
            for i in sorted(self._tried)
        )
        return Bisection(
            gguf_verify=project_version(),
            path=str(self._plan.model),
            sha256=self._sha256,
            arguments=self._plan.arguments,
            verdict=verdict,
            sentence=sentence,
            last_good=last_good,
            first_bad=first_bad,
            untested=untested,
            turned=turned,
            steps=steps,
            runs=len(self._run_now),
            state=str(self._state.path),
            seconds=time.monotonic() - self._began,
            command=self._plan.command,
            failure=failure,
            graph=graph,
        )

    def _known(self, i: int) -> Tried | None:
        """Return a stored result. An end that could not be tested is tried again, because it is indispensable."""
        found = self._state.get(self._candidates[i].identity)
        again = self._plan.retry or i in (0, len(self._candidates) - 1)
        return None if found is None or (again and found.outcome == "skipped") else found

    def _test(self, i: int, known: Mapping[int, Tried]) -> Outcome:
        found = known.get(i)
        if found is None:
            with Steps(True) as doing:
                doing(f"trying {self._name(i)}")
                found = self._run(self._candidates[i])
            self._run_now.append(i)
            self._state.keep(self._candidates[i].identity, found)
            why = f": {found.why}" if found.why else ""
            say(f"{self._name(i)}: {found.outcome}, {found.seconds:.1f} s{why}")
        self._tried[i] = found
        return self._outcome(found)

    def _outcome(self, found: Tried) -> Outcome:
        """Return the run's outcome, but "bad" if the graph has the searched change."""
        has_change = self._change is not None and self._change in differences(self._tried[0].graph, found.graph)
        return "bad" if has_change else found.outcome

    def _name(self, i: int) -> str:
        return printable(self._candidates[i].name, 200)


def _turned(after: Tried, good: str, bad: str, before: Tried) -> Turned | None:
    node = after.first
    if node is None:
        return None
    same = [seen for seen in before.seen if seen.operation == node.operation]
    here = [seen for seen in same if seen.device == node.device]
    there = sum(seen.nodes for seen in here)
    kind: Before
    if there:
        kind = "right"
        words = f"{node.operation} on {node.device} passed in {good}: {there:,} nodes"
    elif same:
        kind = "elsewhere"
        devices = ", ".join(sorted({seen.device for seen in same}))
        words = f"{node.operation} passed in {good}, but on {devices}: {bad} moved it"
    else:
        kind = "absent"
        words = f"the graph of {good} has no {node.operation}: {bad} computes this in place of something else"
    was = max(here or same, key=lambda seen: seen.utilisation, default=None)
    became = [seen for seen in after.seen if (seen.operation, seen.device) == (node.operation, node.device)]
    return Turned(node=node, before=kind, words=words, was=was, became=became[0] if became else None)
