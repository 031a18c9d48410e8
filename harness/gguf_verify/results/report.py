"""The result of a verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ..checks import ALONE, BY_ID, BYTES, CHECKS, Check, Skipped, account, scope_of
from ..support.command_line import repeat
from ..support.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED, Culprit
from ..support.shown import Shown
from ..support.text import counted
from .costs import QuantizationCosts
from .coverage import NeverRan
from .diagnoses import LocatedDiagnosis
from .environment import NOT_COMPILED, Environment
from .failures import CULPRITS, Failure, WaiverUse
from .options import DEFAULT_N_PREDICT, spent_words
from .products import DrawnData, GemmRecord, TensorBlocks, TensorBytes, TensorValues
from .rungs import RungResult

ReportVerdict = Literal[
    "verified", "verified on drawn data", "waived", "mismatch", "interrupted", "broken off", "not everything verified",
]  # fmt: skip

if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    Verdict = ReportVerdict

#: The reason for an early end: nothing, `Options.exit_first`, `Options.budget`, or a signal.
EndedBy = Literal["", "first failure", "budget", "SIGINT", "SIGTERM", "SIGHUP"]


class Report(Shown, msgspec.Struct, kw_only=True):
    """The result of a run.

    `assert report` fails unless everything is verified; `repr` is one line, `str` the report as at the terminal, and a
    notebook shows a summary. The records that a rung finds one by one (`Failure`, `GemmRecord` …) are frozen. A report
    and its rungs are not, since they grow while a run goes on; nothing changes them after `verify` has returned, and
    `to_dict` gives a copy.

    Args:
        environment: everything needed to repeat the run; the digests of the file are known at its end.
        rungs: the rungs that were run, in order.
        command: the command line that repeats the run.
        seconds: duration of the run.
        changed: evidence that the file changed after its digest was taken; None if it did not.
        costs: the cost of the quantization, if the model's source was given; not part of the verdict.
        waivers: the state of each waiver for this model and kernel.
        ended_by: the reason for an early end.
        not_climbed: requested rungs that were not begun because the run ended early.
        drawn: the random data, if there was no model; the verdict then holds for these data only.
    """

    environment: Environment
    rungs: list[RungResult] = []
    command: str = ""
    seconds: float = 0.0
    changed: str | None = None
    costs: QuantizationCosts | None = None
    waivers: list[WaiverUse] = []
    ended_by: EndedBy = ""
    not_climbed: tuple[str, ...] = ()
    drawn: DrawnData | None = None

    @property
    def exit_code(self) -> int:
        """3 if the file changed, because the findings may then be of other bytes; else 1 for any mismatch; else 130 if
        Ctrl-C ended the run; else 3 if SIGTERM or SIGHUP did, or a rung was broken off; else 5 if something could not
        be verified, or the kernel's code was not all executed and the options require that."""
        if self.changed:
            return EXIT_ENVIRONMENT
        verdicts = [r.verdict for r in self.rungs]
        if "failed" in verdicts:
            return EXIT_MISMATCH
        if self.ended_by in EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED[self.ended_by]
        if any(r.fault for r in self.rungs):
            return EXIT_ENVIRONMENT
        whole = not self.ended_by and not self.not_climbed and not self._lacks_coverage
        return EXIT_VERIFIED if whole and verdicts and {*verdicts} <= {"passed", "waived"} else EXIT_UNVERIFIED

    @property
    def fault(self) -> str | None:
        """The fault that broke off the whole run, in one line; a rung has its own `fault`."""
        return f"a file was changed while it was verified: {self.changed}" if self.changed else None

    @property
    def unfinished(self) -> str | None:
        """The reason for an early end, and the rungs that were not begun, in one line; None without one."""
        why = f"{self.why_ended}{self._left_by_budget}"
        return f"{why}; rungs that were not begun: {', '.join(self.not_climbed) or 'none'}" if self.ended_by else None

    @property
    def why_ended(self) -> str:
        """The reason for an early end; "" without one."""
        if not self.ended_by:
            return ""
        if self.ended_by == "first failure":
            return "the first failure ended the run (-x)"
        if self.ended_by == "budget":
            return spent_words(self.environment.options.budget)
        return f"interrupted by {self.ended_by}"

    @property
    def _left_by_budget(self) -> str:
        """What each rung left unverified since the budget was spent, by number."""
        words = spent_words(self.environment.options.budget) if self.ended_by == "budget" else None
        left = list[str]()
        for rung in self.rungs:
            items = [u for u in rung.unverified if u.why == words]
            tensors = sum(u.name == u.tensor for u in items)
            parts = sum(u.name != u.tensor and bool(u.tensor) for u in items)
            said = [u.name for u in items if not u.tensor]
            said += [counted(tensors, "tensors")] if tensors else []
            said += [f"{counted(parts, 'kinds')} of calls beside the model's own products"] if parts else []
            left += [f"{' and '.join(said)} in the {rung.name} rung"] if said else []
        return f"; it left unverified: {', '.join(left)}" if left else ""

    @property
    def verdict(self) -> Verdict:
        """The exit code in words."""
        words: dict[int, ReportVerdict] = {
            EXIT_VERIFIED: "verified",
            EXIT_MISMATCH: "mismatch",
            EXIT_ENVIRONMENT: "broken off",
            EXIT_UNVERIFIED: "not everything verified",
        }
        if not self.changed and self.exit_code != EXIT_MISMATCH and self.ended_by in EXIT_INTERRUPTED:
            return "interrupted"
        if self.drawn is not None and not self.exit_code:
            return "verified on drawn data"
        return "waived" if not self.exit_code and self.n_waived else words[self.exit_code]

    @property
    def words(self) -> str:
        """The verdict as reports show it: only a whole run on a model that passed without a waiver is "verified"."""
        if self.verdict == "waived":
            return f"verified with {self.n_waived:,} waived failure{'' if self.n_waived == 1 else 's'}{self.scope}"
        if self.verdict == "verified on drawn data":
            return f"verified on random data (no model){self.scope}"
        return f"{self.verdict}{self.scope}" if not self.exit_code else self.verdict

    @property
    def scope(self) -> str:
        """The scope of a pass that is less than a whole run, as it follows "verified": ": file bytes only", " (quick)";
        "" for a whole run."""
        scopes = [*(s.scope for s in self._skipped), self._sampled]
        if self.drawn is not None and not self.drawn.compared:
            scopes.insert(0, "not compared with llama.cpp")
        if call := self.environment.options.only_call:
            return f": one call only ({call.partition(',')[0]})" + scope_of((), scopes)
        return scope_of(self.checks, scopes, () if self.drawn is None else (BYTES, "tokens"))

    @property
    def _sampled(self) -> str:
        """The headline's words on large matrices of which a sample was judged; "" if every output was."""
        sampled = [rung.sampled for rung in self.rungs if rung.sampled is not None]
        of_outputs = [part for part in sampled if part.missed is not None]
        if not of_outputs:
            return "sampled: some blocks" if sampled else ""
        size = 2 * max(part.smallest or 0.0 for part in of_outputs)
        missed = max(part.missed or 0.0 for part in of_outputs)
        words = f"sampled: misses errors above {size:.1g} times the outputs' size"
        return f"{words} with a probability of at most {missed:.1g}"

    @property
    def checks(self) -> list[Check]:
        """The state of every class of checks, in the order of `checks.CHECKS`."""
        alone = sum(rung.sampled.alone for rung in self.rungs if rung.sampled is not None)
        done: dict[str, int] = {"tensors": len(self.rungs), "sandbox": 1, "every-output": alone, "code": 0}
        if (coverage := self.environment.kernel.coverage) is not None:
            done["code"] = coverage.lines_run
        for rung in self.rungs:
            whole = rung.substance if self.drawn is None or rung.name != BYTES else ()
            done[rung.name] = sum(rung.checked.get(kind, 0) for kind in whole if kind != ALONE)
            for c in CHECKS:
                if not c.is_rung and any(kind in rung.checked for kind in c.counts):
                    done[c.id] = done.get(c.id, 0) + sum(rung.checked.get(kind, 0) for kind in c.counts)
            for name, n in rung.done.items():
                done[name] = done.get(name, 0) + n
            if any(not worst.of_kernel for worst in rung.worst.values()):
                done["llama"] = done.get("llama", 0) + 1
        ran = {rung.name: rung.question for rung in self.rungs}
        found = account(self.environment.kernel.computes, done, self._skipped, ran)
        if self.drawn is None:
            return found
        return [msgspec.structs.replace(c, title="products of random data") if c.id == "layers" else c for c in found]

    @property
    def _skipped(self) -> list[Skipped]:
        """The parts of a whole run that were skipped because of the options, the environment or the rungs."""
        options, sandbox = self.environment.options, self.environment.sandbox
        found = [*options.skips, *(s for rung in self.rungs for s in rung.skipped)]
        if sandbox.missing and options.sandbox != "none":
            found.append(Skipped("sandbox", f"they may {', '.join(sandbox.missing)}"))
        found += [Skipped("grids", why) for why in self.environment.kernel.code if why.startswith(NOT_COMPILED)]
        found += [
            Skipped("every-output", f"{rung.sampled.words} (--effort thorough judges every one)")
            for rung in self.rungs if rung.sampled is not None
        ]  # fmt: skip
        if (coverage := self.environment.kernel.coverage) is not None and not coverage.complete:
            found.append(Skipped("code", coverage.words))
        tokens = self.rung("tokens")
        if tokens is not None and options.n_predict < DEFAULT_N_PREDICT:
            of = f"{options.n_predict} of {DEFAULT_N_PREDICT} tokens"
            found.append(Skipped("tokens", f"{of} were predicted (-n)", of))
        if options.only_call:
            whole = ("tensors", "sandbox")
            found += [Skipped(c.id, "one call was made (--only-call)") for c in CHECKS if c.id not in whole]
        if self.drawn is not None:
            found += [Skipped(name, "there is no model") for name in (BYTES, "tokens")]
            found += [] if self.drawn.compared else [Skipped("llama", "llama.cpp was not run (--reference none)")]
        return found + [Skipped(name, "the run ended before") for name in self.not_climbed if name in BY_ID]

    @property
    def not_run(self) -> tuple[NeverRan, ...]:
        """The first places of the kernel's code that no call executed and that an input may reach; () if no output of
        the kernel was judged."""
        coverage = self.environment.kernel.coverage
        return () if coverage is None or not self.kernel_ran else coverage.open

    @property
    def _lacks_coverage(self) -> bool:
        """Whether the options require that all code of the kernel was executed, and it was not."""
        coverage = self.environment.kernel.coverage
        return self.environment.options.require_coverage and coverage is not None and not coverage.complete

    @property
    def skipped(self) -> list[Check]:
        """The classes of checks that were skipped or done in part only."""
        return [check for check in self.checks if check.skipped]

    @property
    def limits(self) -> list[str]:
        """The limits of sizes and of addresses of the verdict, with their reasons and how to state or lift them."""
        limited = [s for s in self._skipped if s.check in ("grids", "alignment") and s.scope not in ("", "quick")]
        return list(dict.fromkeys(s.why for s in limited))

    @property
    def shortened(self) -> list[str]:
        """The checks that the user turned off, in words."""
        return list(dict.fromkeys(f"{BY_ID[s.check].title}: {s.why}" for s in self._skipped if s.scope))

    @property
    def kernel_ran(self) -> bool:
        """Whether any output of the kernel under test was judged, or is wrong."""
        call = self.environment.options.only_call.partition(",")[0]
        if call:
            return call != "reference"
        of_kernel = [rung for rung in self.rungs if rung.name not in BY_ID or BY_ID[rung.name].of_kernel]
        return any(any(rung.checked.values()) or rung.n_failures for rung in of_kernel)

    @property
    def n_waived(self) -> int:
        """Number of failures that a waiver covers."""
        return sum(rung.n_waived for rung in self.rungs)

    def repeat_of(self, failure: Failure | None = None) -> str:
        """The command line that repeats one failure: its call if that is known, else its tensor and its rung.

        Args:
            failure: one of `failures`; None for the first. Without failures, the command repeats the whole run.
        """
        rung, failure = next(((r, f) for r, f in self.failures if failure is None or f is failure), (None, None))
        if failure is None or rung is None:
            return self.command
        return repeat(self.command, rung.name, failure.tensor, failure.call.id if failure.call else "")

    def rung(self, name: str) -> RungResult | None:
        """The rung of this name, or None if it was not run."""
        return next((r for r in self.rungs if r.name == name), None)

    @property
    def culprits(self) -> dict[Culprit, int]:
        """Culprit → number of things that are wrong or could not be verified, those of failures first; empty if
        everything is verified or waived. If the file changed, the findings do not show the culprit."""
        if self.changed:
            return {"environment": 1}
        found: dict[Culprit, int] = {}
        for rung in self.rungs:
            if rung.verdict == "waived":
                continue
            for culprit, n in rung.blamed.items():
                found[culprit] = found.get(culprit, 0) + n
        for rung in self.rungs:
            left: list[Culprit] = [u.culprit for u in rung.unverified]
            interrupted = rung.fault is not None and rung.fault_culprit == "coverage"  # a signal is no one's fault
            if rung.fault is not None and not interrupted:
                left.append(rung.fault_culprit)
            if rung.verdict == "unverified" and not left and not (interrupted and self.ended_by):
                left = ["coverage"]
            for culprit in left:
                found[culprit] = found.get(culprit, 0) + 1
        if self._lacks_coverage:
            found["coverage"] = found.get("coverage", 0) + 1
        if not found and self.ended_by:  # before anything was wrong
            found["coverage"] = max(1, len(self.not_climbed))
        return found

    @property
    def at_fault(self) -> str:
        """`culprits` in words: "at fault: the kernel (5); 120 checks not reached"; "" without any."""
        culprits = self.culprits
        blamed = ", ".join(f"{CULPRITS[culprit]} ({n:,})" for culprit, n in culprits.items() if culprit != "coverage")
        left = culprits.get("coverage", 0)
        words = [f"at fault: {blamed}"] if blamed else []
        return "; ".join([*words, f"{counted(left, 'checks')} not reached"] if left else words)

    @property
    def failures(self) -> list[tuple[RungResult, Failure]]:
        """The recorded failures with their rungs: first those of the call that `diagnosed` explains first, then those
        of the model's own products. `n_failures` also counts failures that were not recorded."""
        leading = next(iter(self.diagnosed), None)

        def weight(pair: tuple[RungResult, Failure]) -> tuple[bool, int]:
            rung, failure = pair
            return not (leading and rung is leading[0] and leading[1].is_of(failure)), failure.rank

        return sorted(((rung, failure) for rung in self.rungs for failure in rung.failures), key=weight)

    @property
    def diagnosed(self) -> list[tuple[RungResult, LocatedDiagnosis]]:
        """The most important diagnosis of each type of weights, with its rung, the most important first."""
        found: dict[str, tuple[RungResult, LocatedDiagnosis]] = {}
        pairs = [(rung, diagnosis) for rung in self.rungs for diagnosis in rung.diagnoses]
        # one with a map says more than the same without
        for rung, diagnosis in sorted(pairs, key=lambda p: (p[1].weight, p[0].heat_map is None)):
            found.setdefault(diagnosis.type, (rung, diagnosis))
        return list(found.values())

    @property
    def n_failures(self) -> int:
        """Number of wrong outputs, blocks or tokens."""
        return sum(rung.n_failures for rung in self.rungs)

    @property
    def tensor_types(self) -> dict[str, str]:
        """Tensor → type, of the tensors that a rung checked."""
        records = (record for rung in self.rungs for record in rung.details)
        return {
            r.tensor: r.type for r in records if isinstance(r, TensorBytes | TensorBlocks | TensorValues | GemmRecord)
        }


#: The version of the JSON schema of a report.
SCHEMA_VERSION = 4
