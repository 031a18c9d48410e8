"""Waivers: known mismatches, each with a reason and an end date, which do not fail a run until then.

A waiver does not make a result correct. A run whose failures are all waived ends with exit code 0 and says "verified
with N waived", never "verified". Checks that could not be made are never waived. A waiver whose date has passed no
longer counts. Reports list expired waivers, and waivers that matched nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from .results.failures import WaiverState, WaiverUse
from .results.report import Report
from .results.rungs import RungResult
from .support.errors import UsageError
from .support.text import printable
from .support.toml import Mistake, read_toml, typed

#: Upper limit: no one reads more.
MOST_WAIVERS = 1000
#: Key → typical names of files, kernels, matrices and rungs. A pattern that matches all of them is too general.
_NAMES = {
    "model": ("tiny-Q4_0.gguf", "Model.Q8_0-00001-of-00002.gguf", "x.gguf"),
    "kernel": ("q8_1", "kernels/My.cu:gemm", "k.py:f", "0.so"),
    "tensor": (
        "token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.31.ffn_down_exps.weight", "mm.1.weight",
        "enc.blk.7.ffn_up.weight", "v.patch_embd.weight", "rope_freqs.weight",
    ),
    "rung": ("bytes", "blocks", "layers", "tokens"),
}  # fmt: skip

#: An example file with every key.
REFERENCE = """\
[[waiver]]                     # a mismatch of a kernel; every key below must match
model = "tiny-*.gguf"          # the model's file name; * ? [abc] match as in a shell
kernel = "q8_1"                # the kernel's name in a report
tensor = "blk.0.attn_q.weight" # the tensor; either tensor or rung is required
rung = "layers"                # bytes, blocks, layers or tokens
fault = "code-order"           # the fault that the diagnosis must report
reason = "issue 42: the codes are in the old order until the loader is rewritten"
until = 2027-01-31             # the last day on which it counts (UTC); reason and until are required

[[waiver]]                     # a finding of an audit
finding = "GGUF-107-codes-unused"
model = "tiny-*.gguf"
tensor = "blk.*.ffn_down.weight"
reason = "quantized by our own tool, which never uses the lowest code"
until = 2027-01-31
"""


class Waiver(msgspec.Struct, frozen=True, kw_only=True):
    """One waiver; see `REFERENCE` for the keys. A key that is None matches everything."""

    reason: str
    until: date
    model: str | None = None
    kernel: str | None = None
    tensor: str | None = None
    rung: str | None = None
    fault: str | None = None
    finding: str | None = None

    @property
    def words(self) -> str:
        """The keys that it matches, in one line; not escaped."""
        names = ("finding", "model", "kernel", "tensor", "rung", "fault")
        return ", ".join(f"{name} {v}" for name in names if (v := getattr(self, name)) is not None)

    def expired(self, today: date) -> bool:
        """Whether its last day has passed."""
        return today > self.until

    def of_run(self, report: Report) -> bool:
        """Whether it applies to this model and kernel."""
        name = Path(report.environment.file.path).name
        return self.finding is None and _fits(self.model, name) and _fits(self.kernel, report.environment.kernel.name)

    def covers(self, report: Report, rung: RungResult, tensor: str) -> bool:
        """Whether it applies to the failures of a tensor ("" for failures without a tensor) in a rung of this run.

        Call it only if `of_run` is true.
        """
        if not (_fits(self.rung, rung.name) and _fits(self.tensor, tensor)):
            return False
        if self.fault is None:
            return True
        told = [rung] if rung.diagnosis is not None else report.rungs
        named = {match.id for r in told if r.diagnosis is not None for match in r.diagnosis.faults}
        return self.fault in named

    def of_audit(self, name: str) -> bool:
        """Whether it applies to findings in a file of this name."""
        return self.finding is not None and _fits(self.model, name)

    def covers_finding(self, finding: str, tensor: str) -> bool:
        """Whether it applies to a finding of this id in this tensor. A waiver may give only the id's first part, such
        as GGUF-107."""
        if self.finding is None or not (finding == self.finding or finding.startswith(f"{self.finding}-")):
            return False
        return _fits(self.tensor, tensor)

    def use(self, n: int, day: date) -> WaiverUse:
        """Return the record for a report, given the number of failures that it matched."""
        state: WaiverState = "expired" if self.expired(day) else "applied" if n else "unused"
        return WaiverUse(what=self.words, reason=self.reason, until=self.until.isoformat(), state=state, failures=n)


def _fits(pattern: str | None, name: str) -> bool:
    return pattern is None or name == pattern or fnmatchcase(name, pattern)


class _File(msgspec.Struct, frozen=True):
    waiver: list[dict[str, object]] = []


def read_waivers(path: Path | str) -> tuple[Waiver, ...]:
    """Read the waivers in a file. Raises UsageError with one line that contains the file and the key."""
    path = Path(path)
    table = read_toml(path, "waivers")
    try:
        held = typed(table, _File, "").waiver
        if len(held) > MOST_WAIVERS:
            raise Mistake("waiver", f"there are {len(held):,}; the limit is {MOST_WAIVERS:,}")
        return tuple(_waiver(entry, f"waiver[{i}]") for i, entry in enumerate(held))
    except Mistake as error:
        place, what = error.args
        raise UsageError(f"{printable(path.name)}: {printable(place, 100)}: {what}") from None


def _waiver(entry: dict[str, object], place: str) -> Waiver:
    for key in ("reason", "until"):
        if key not in entry:
            raise Mistake(f"{place}.{key}", "is missing: a waiver needs a reason and a last day")
    if type(entry["until"]) is not date:
        raise Mistake(f"{place}.until", "must be a date without quotes, for example: until = 2027-01-31")
    made: Waiver = typed(entry, Waiver, place)
    for key, value in entry.items():
        if isinstance(value, str) and not any(map(str.isalnum, value)):
            empty = not value.strip() or key not in _NAMES
            raise Mistake(f"{place}.{key}", "is empty" if empty else _ANYTHING)
    for key, names in _NAMES.items():
        if (pattern := getattr(made, key)) is not None and _matches_any(pattern, names):
            raise Mistake(f"{place}.{key}", _ANYTHING)
    if made.finding is not None and not re.fullmatch(r"[A-Z]+-[0-9]+(-[a-z0-9-]+)?", made.finding):
        raise Mistake(f"{place}.finding", "must be the id of one finding, such as GGUF-107 or GGUF-107-codes-unused")
    if made.finding is None and made.tensor is None and made.rung is None:
        raise Mistake(place, "would waive everything: give a tensor, a rung or the finding of an audit")
    if made.finding is not None and (made.kernel or made.rung or made.fault):
        raise Mistake(place, "a finding of an audit has no kernel, rung or fault")
    return made


_ANYTHING = "matches everything: give the name of what is known to be wrong"


def _matches_any(pattern: str, names: Sequence[str]) -> bool:
    """Whether a pattern is too general: no letter or digit besides its wildcards, or it matches all of the names."""
    said = re.sub(r"\[[^\]]*\]", "", pattern)
    return not any(map(str.isalnum, said)) or all(fnmatchcase(name, pattern) for name in names)


def refuse_everything(
    waivers: Sequence[Waiver], model: str, kernel: str, tensors: Sequence[str], rungs: Sequence[str]
) -> None:
    """Check that a run can still fail despite its waivers.

    Args:
        model: the file's name.
        tensors: all matrices of the model.
        rungs: all rungs that check them.

    Raises UsageError if the waivers that do not give a single tensor's name together cover every tensor in every rung.
    """
    about = [w for w in waivers if w.finding is None and w.fault is None and w.tensor not in tensors]
    mine = [w for w in about if _fits(w.model, model) and _fits(w.kernel, kernel)]

    def covered(rung: str, tensor: str) -> bool:
        return any(_fits(w.rung, rung) and _fits(w.tensor, tensor) for w in mine)

    if mine and all(covered(rung, tensor) for rung in rungs for tensor in tensors):
        words = "; ".join(printable(w.words, 60) for w in mine[:4])
        raise UsageError(f"the waivers together cover every tensor of this model in every rung: {words}")


def today() -> date:
    """Today's date in UTC, so that a waiver ends everywhere at the same time."""
    return datetime.now(UTC).date()


def apply(report: Report, waivers: Sequence[Waiver], day: date) -> Report:
    """The report with the failures that are waived, `RungResult.waived`, and the use of each waiver."""
    mine = [waiver for waiver in waivers if waiver.of_run(report)]
    counts, rungs = [0] * len(mine), []
    for rung in report.rungs:
        waived = {}
        for tensor, n in rung.failing.items():
            fitting = [i for i, waiver in enumerate(mine) if waiver.covers(report, rung, tensor)]
            valid = [i for i in fitting if not mine[i].expired(day)]
            for i in valid[:1] or fitting:
                counts[i] += n
            if valid:
                waived[tensor] = n
        rungs.append(msgspec.structs.replace(rung, waived=waived))
    used = [waiver.use(n, day) for waiver, n in zip(mine, counts, strict=True)]
    return msgspec.structs.replace(report, rungs=rungs, waivers=used)
