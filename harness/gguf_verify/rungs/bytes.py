"""The bytes rung: do we read every byte of the file as llama.cpp reads it?

The rung is the audit of the file: every byte is owned by exactly one field of the container, our decode of every block
has the bits of llama.cpp's `to_float`, and other readers see the same tensors. A scale that is not finite is an error
of the file, because nothing that is computed from it means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..audit.audit import coverage
from ..audit.content import Content, contents
from ..audit.elsewhere import runs_of
from ..audit.examination import Examination
from ..audit.readers import TIME_LIMIT, Readers
from ..audit.readings import Reading, not_compared
from ..audit.readings import compare as compare_readers
from ..gguf.consistency import check_consistency
from ..gguf.file import Tensor
from ..gguf.matrices import matrix_of, may_be_matrix, where
from ..gguf.records import Finding, capped
from ..kernels.foreign.api import COMPUTES
from ..llama.builds import path_of
from ..llama.installed import why_missing
from ..results.failures import MAX_HEX_BYTES, Failure
from ..results.products import TensorBytes
from ..results.rungs import MAX_FAILURES, RungResult
from ..support.errors import Culprit
from .interface import Rung, Steps
from .pool import Step
from .rounds import in_order
from .run import Run

#: Bytes that are scanned at a time where a budget may end the scan.
_PART = 1 << 28
#: Tasks of the whole file for each that is wanted at a time.
_TASKS = 4
#: Rules of the audit whose blocks are reported one by one.
_OF_BLOCKS = ("scale-not-finite", "value-not-finite", "decode-differs")
#: Rules of the audit for weights that nothing can be verified with: any kernel that writes zeros multiplies zeros.
_NOTHING_HELD = ("zero-bytes", "one-value")


def check(run: Run, result: RungResult) -> Steps:
    """Judge the file's bytes. Raises EnvironmentFault if llama.cpp crashes."""
    for part in run.model.parts:
        result.count("bytes", part.size)
    examined = Examination(run.model, run.library, run.options.threads, run.options.progress)
    tensors = _ordered(run)

    limit = min(TIME_LIMIT, run.options.time_limit)
    # llama-cpp-python's reader is preferred: of other builds of llama.cpp, some read no file without its weights
    build = path_of(run.options.llama) if why_missing() else None
    with ThreadPoolExecutor(1) as pool, Readers(limit, build=build) as readers:
        readings = pool.submit(lambda: readers.read_model(run.model))
        ours = [*run.model.findings, *check_consistency(run.model)]
        ours += [f for part in run.model.parts for f in coverage(part)]
        _say(result, ours)
        yield None
        scan = partial(_in_tasks, run) if run.judges.scans else None
        for content in examined.reading(tensors, _parts(run, tensors), scan):
            _content(result, content)
            yield None
        _say(result, of_content := capped(examined.findings))
        _compare_readers(run, result, [*ours, *of_content], readings.result())
    if examined.fault is None:
        _leave(run, result, tensors[len(examined.contents) :])
    result.fault, result.fault_culprit = examined.fault, examined.culprit


RUNG = Rung(
    "bytes", 1, "Do we read every byte of the file as llama.cpp reads it?", ("blocks", "values"), check,
    tuple(COMPUTES), turn=1,
)  # fmt: skip


@dataclass(frozen=True)
class ContentsTask:
    """The contents of some tensors, which llama.cpp's process of another run scans."""

    tensors: tuple[str, ...]

    def judge(self, run: Run) -> tuple[tuple[Any, ...], ...]:
        """Of each tensor the fields of `Content`, without the tensor. Raises EnvironmentFault."""
        tensors = [run.model.tensors[name] for name in self.tensors]
        with closing(contents(tensors, run.library, run.options.threads)) as found:
            return tuple((c.scan, c.unverified, c.described, c.bad, c.different) for c in found)


def _in_tasks(run: Run, tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
    """The contents of tensors, as `Scanning`: consecutive ones together, a task of each."""

    def plan() -> Generator[Step[ContentsTask]]:
        for some in runs_of(tensors, _TASKS * run.judges.wanted):
            yield Step(task=ContentsTask(tuple(t.name for t in some)))

    for step, found in run.judges.each(run, plan()):
        assert step.task is not None
        for name, fields in zip(step.task.tensors, found, strict=True):
            content = Content(run.model.tensors[name], *fields)
            on_bytes(content.tensor.nbytes)
            yield content


def _ordered(run: Run) -> list[Tensor]:
    """The tensors in the file's order; with a budget, which may end the scan, in a random order of the seed."""
    tensors = run.selected()
    if not run.budget.limited:
        return tensors
    by_name = {tensor.name: tensor for tensor in tensors}
    return [by_name[name] for name in in_order(by_name, run.options.seed)]


def _parts(run: Run, tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """All tensors; with a budget, as many as it suffices for, in parts between which the time is looked at."""
    if not run.budget.limited:
        yield tensors
        return
    part, size = list[Tensor](), 0
    for tensor in tensors:
        if not part and run.budget.spent:
            return
        part.append(tensor)
        size += tensor.nbytes
        if size >= _PART:
            yield part
            part, size = [], 0
    if part:
        yield part


def _leave(run: Run, result: RungResult, tensors: list[Tensor]) -> None:
    """Record the tensors that the budget did not suffice for."""
    for tensor in sorted(tensors, key=lambda t: (t.part, t.offset)):
        result.leave(tensor.name, run.budget.words)


def _compare_readers(
    run: Run, result: RungResult, ours: list[Finding], readings: Sequence[tuple[Reading, ...]]
) -> None:
    for part, readings_of_part in zip(run.model.parts, readings, strict=True):
        explained = tuple(f for f in ours if f.part == part.part)
        _say(result, compare_readers(part, readings_of_part, explained))
        for name, why in not_compared(readings_of_part):
            result.leave(name, why)


def _say(result: RungResult, findings: Iterable[Finding]) -> None:
    """Record what the audit found, but for what is recorded block by block."""
    for finding in findings:
        if finding.id.endswith(_OF_BLOCKS):
            continue
        if finding.severity == "error":
            result.fail(Failure(finding.line(), finding.owner, part=finding.part, culprit="file"))
            for owner in finding.unlisted:
                result.fail_more("file", 1, owner)
        elif finding.id.endswith(_NOTHING_HELD):
            for owner in (finding.owner, *sorted(finding.unlisted)):
                result.leave(owner, f"{finding.found} [{finding.id}]", culprit="file")
        else:
            result.notes.append(finding.line())


def _content(result: RungResult, content: Content) -> None:
    tensor, scan = content.tensor, content.scan
    kind = tensor.type
    if content.unverified:
        result.leave(tensor.name, content.unverified)
    elif scan is None:
        result.skip("tensors of integers" if tensor.nbytes else "empty tensors")
    else:
        result.count("tensors")
        if may_be_matrix(tensor):
            result.count("blocks" if kind.quantized else "values", scan.blocks)
        for differing in (True, False):
            _report(result, content, differing)
        wrong = content.n_differing + scan.not_finite
        result.details.append(TensorBytes(tensor.name, kind.name, scan.blocks, tensor.nbytes, tensor.offset, wrong))


def _report(result: RungResult, content: Content, differing: bool) -> None:
    """Record bad blocks one by one, up to what a report lists; the rest is counted."""
    tensor, scan = content.tensor, content.scan
    assert scan is not None
    room = max(0, MAX_FAILURES - len(result.failures))
    shown = content.bad[differing][:room]
    # the culprit for the first block stands for those that are not examined one by one
    culprit: Culprit = content.bad[differing][0].culprit if content.bad[differing] else "file"
    n_more = (content.n_differing if differing else scan.not_finite) - len(shown)
    result.fail_more(culprit, n_more, tensor.name)
    for bad in shown:
        raw = tensor.blocks(bad.row, bad.row + 1)[0, bad.block]
        result.fail(
            Failure(
                f"{where(tensor, bad.row, block=bad.block)}: {bad.what}", tensor.name, bad.row, bad.block,
                byte_offset=tensor.block_offset(bad.row, bad.block), block_hex=raw.tobytes()[:MAX_HEX_BYTES].hex(),
                got=bad.got, expected=bad.expected, part=tensor.part,
                matrix=matrix_of(tensor, bad.row), culprit=bad.culprit,
            )
        )  # fmt: skip
