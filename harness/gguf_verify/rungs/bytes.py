"""Rung 1, bytes: does every byte of the file mean to us what it means to llama.cpp?

It is the audit: every byte is owned by exactly one field of the container, our decode of every block is bit-equal to
llama.cpp's `to_float`, other readers see the same tensors. A scale that is not finite is an error of the file: nothing
computed from it means anything.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ..audit import Content, Examination, Readers, Reading, compare_readers, coverage
from ..gguf import Finding, check_claims
from ..gguf.records import capped
from ..results import MAX_FAILURES, MAX_HEX_BYTES, Failure, RungResult
from ..support.errors import EnvironmentFault
from .run import Run, matrix_of, may_be_matrix, where

#: Rules whose blocks are reported one by one.
_OF_BLOCKS = ("scale-not-finite", "value-not-finite", "decode-differs")


def bytes_rung(run: Run) -> RungResult:
    """Judge the file's bytes. Raises EnvironmentFault where llama.cpp dies or the file was changed."""
    result = RungResult("bytes")
    with result.timed():
        for part in run.model.parts:
            result.count("bytes", part.size)
        examined = Examination(run.model, run.library, run.options.threads, run.options.progress)
        with ThreadPoolExecutor(1) as pool, Readers() as readers:
            readings = pool.submit(lambda: [readers.read(part.path) for part in run.model.parts])
            examined.read(run.selected())
            _container(run, result, examined.findings, readings.result())
        for content in examined.contents:
            _content(result, content)
        result.fault = examined.fault
        if any(part.mapped.changed for part in run.model.parts):  # then no failure that was found need be one
            raise EnvironmentFault("the file was changed while it was read")
    return result


def _container(run: Run, result: RungResult, of_content: list[Finding], readings: list[tuple[Reading, ...]]) -> None:
    ours = (*run.model.findings, *check_claims(run.model), *capped(of_content))
    ours += tuple(f for part in run.model.parts for f in coverage(part))
    for part, readings_of_part in zip(run.model.parts, readings, strict=True):
        explained = tuple(f for f in ours if f.part == part.part)
        ours += compare_readers(part, readings_of_part, explained)
    for finding in ours:
        if finding.id.endswith(_OF_BLOCKS):
            continue
        if finding.severity == "error":
            result.fail(Failure(finding.line(), finding.owner, part=finding.part))
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
        result.details.append(
            {"tensor": tensor.name, "type": kind.name, "blocks": scan.blocks, "bytes": tensor.nbytes,
             "offset": tensor.offset, "failures": content.n_differing + scan.not_finite}
        )  # fmt: skip


def _report(result: RungResult, content: Content, differing: bool) -> None:
    """Record bad blocks one by one, up to what a report lists; the rest is counted."""
    tensor, scan = content.tensor, content.scan
    assert scan is not None
    room = max(0, MAX_FAILURES - len(result.failures))
    shown = content.bad[differing][:room]
    result.n_failures += (content.n_differing if differing else scan.not_finite) - len(shown)
    for bad in shown:
        raw = tensor.blocks(bad.row, bad.row + 1)[0, bad.block]
        result.fail(
            Failure(
                f"{where(tensor, bad.row, block=bad.block)}: {bad.what}", tensor.name, bad.row, bad.block,
                byte_offset=tensor.block_offset(bad.row, bad.block), block_hex=raw.tobytes()[:MAX_HEX_BYTES].hex(),
                got=bad.got, expected=bad.expected, part=tensor.part,
                matrix=matrix_of(tensor, bad.row),
            )
        )  # fmt: skip
