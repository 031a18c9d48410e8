"""The audit of one model: its layout, its content, other readers' views of it, and its source if one is given."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ..gguf.consistency import check_consistency
from ..gguf.file import GgufFile, Tensor
from ..gguf.model import Model, RefusedFile, open_model
from ..gguf.parser import parse
from ..gguf.records import Finding, capped, finding
from ..llama.child import Child
from ..llama.installed import INSTALL, why_missing
from ..llama.library import Llama, WithoutLlama
from ..processes.sandbox import sandboxed
from ..support.address import Address, located
from ..support.errors import EnvironmentFault, UsageError
from ..waivers import Waiver, read_waivers
from ..waivers import today as current_day
from .examination import Examination
from .readers import GRACE, READERS, TIME_LIMIT, Readers
from .readings import compare as compare_readers
from .readings import not_compared
from .record import Audit, AuditHeader, AuditOptions

if TYPE_CHECKING:
    from .elsewhere import Elsewhere
    from .remote import Remote
    from .sources import Source


def audit(
    path: Path | Address | str,
    options: AuditOptions | None = None,
    command: str = "",
    child: Child | None = None,
    elsewhere: Elsewhere | None = None,
) -> Audit:
    """Audit a GGUF file, or all parts of a split model.

    Of a remote file (hf://, https://, http://), only the headers and a sample of its blocks are read.

    The result also says why a file was refused, and what this machine could not check.

    Args:
        child: a llama.cpp process that was started ahead.
        elsewhere: scans the tensors of a local file and compares them with the source; None: llama.cpp's process here
            does.

    Raises:
        MalformedFile: the source is refused.
        UsageError: the options select nothing, or the file or source does not exist.
        EnvironmentFault: the file or the source cannot be read here, or a server does not serve it.
    """
    start = time.perf_counter()
    options = options or AuditOptions()
    where = located(path) if isinstance(path, str) else path
    if isinstance(where, Address) and options.source:
        raise UsageError("--source compares every block, but a remote file is only sampled: download it first")
    known = () if options.waivers is None else read_waivers(options.waivers)
    with ExitStack() as stack:
        stack.enter_context(sandboxed(options.sandbox))
        # Entered first, so left last: its tasks end only when the files and the readers are closed.
        pool = stack.enter_context(ThreadPoolExecutor(2))
        missing = why_missing() if options.llama else "it is turned off"
        remote, path = None, where
        if isinstance(where, Address):
            from .remote import Remote  # imported late: local files need no client

            remote = stack.enter_context(Remote(where, options.time_limit, options.progress, options.redirects))
            path = remote.open()
        assert isinstance(path, Path)
        readers = None
        if options.readers:
            names = READERS[: 1 if missing else None]
            readers = stack.enter_context(Readers(min(TIME_LIMIT, options.time_limit), names=names))
        if options.source:
            if missing:
                raise EnvironmentFault("--source needs llama.cpp, but " + _without(missing))
            from .sources import open_source
        try:
            model = stack.enter_context(open_model(path))
            if remote is not None:
                remote.named(model)
        except RefusedFile as error:
            result = _refused(where, error, readers)
        else:
            source = stack.enter_context(open_source(options.source, model)) if options.source else None
            if child is None and remote is not None:
                child = Child(options.verbose, missing is None)
                stack.callback(child.close)  # closed here if the server fails before the child is used
            result = _readable(model, source, options, readers, pool, child, remote, elsewhere)
    if missing:
        why = _without(missing)
        result.left_out += [("llama.cpp", f"{why}: blocks were not compared with its decoding")]
        if options.readers:
            result.left_out += [("llama.cpp's reader", f"{why}: its view of the file was not compared")]
        if options.llama and result.refused is None:
            result.unverified += [("every tensor", why)]
    result.strict = options.strict
    _waive(result, known, options.today or current_day())
    result.command = command
    result.seconds = time.perf_counter() - start
    return result


def _waive(result: Audit, waivers: Sequence[Waiver], day: date) -> None:
    """Apply waivers to the findings that count; a file's refusal is never waived."""
    mine = [w for w in waivers if w.of_audit(result.path.name)]
    counts, waived = [0] * len(mine), set()
    for f in result.findings:
        if f.severity == "note" or (f.severity == "warning" and not result.strict) or f == result.refused:
            continue
        covered = []  # it, and each owner of those that it stands for
        for owner in [f.owner, *sorted(f.unlisted)]:
            fitting = [i for i, w in enumerate(mine) if w.covers_finding(f.id, owner)]
            valid = [i for i in fitting if not mine[i].expired(day)]
            for i in valid[:1] or fitting:
                counts[i] += 1
            covered.append(bool(valid))
        if all(covered):
            waived.add(f)
    result.waived = frozenset(waived)
    result.waivers = tuple(w.use(n, day) for w, n in zip(mine, counts, strict=True))


def _without(missing: str) -> str:
    """Say why llama.cpp is not used, for use in a sentence."""
    return "llama.cpp is turned off" if missing == "it is turned off" else f"llama.cpp is not installed ({INSTALL})"


def _refused(path: Path | Address, error: RefusedFile, readers: Readers | None) -> Audit:
    """Return the audit of a refused file, which may be a later part of the requested model."""
    start = time.perf_counter()
    with parse(error.path, error.finding.part) as file:
        took = time.perf_counter() - start
        findings = (*file.findings, *coverage(file)) if file.refused else (*file.findings, error.finding)
        digest = None if isinstance(path, Address) else (file.mapped.sha256(),)
        header = AuditHeader(file=str(path), size=file.size, sha256=digest)
        if isinstance(path, Address):
            file.address = path.beside(file.path.name)
        result = Audit(path, (file,), header, n_tensors=len(file.tensors), refused=error.finding)
        try:
            readings = readers.read(file.mapped, max(GRACE, took)) if readers else ()
            result.readings = (readings,)
            result.unverified = not_compared(readings)
            findings += compare_readers(file, readings, findings)
        except EnvironmentFault as fault:
            result.fault = str(fault)
        result.findings = _sorted(findings)
        return result


def coverage(file: GgufFile) -> tuple[Finding, ...]:
    """Return a finding for bytes that belong to no field, or to two: a fault of the parser, never of the file."""
    found = []
    for at, start in file.byte_map.breaks(file.size):
        what = "two fields" if start < at else "no field"
        low, high = sorted((at, start))
        found.append(finding("unowned", low, high, "one field for each byte", f"bytes that belong to {what}"))
    return tuple(replace(f, part=file.part) for f in capped(found))


def _readable(
    model: Model,
    source: Source | None,
    options: AuditOptions,
    readers: Readers | None,
    pool: ThreadPoolExecutor,
    child: Child | None,
    remote: Remote | None = None,
    elsewhere: Elsewhere | None = None,
) -> Audit:
    tensors = select(model, options.tensor)
    sampled = remote.sample(model, tensors, options.seed) if remote is not None else None
    importance = None
    if options.imatrix:
        from .importance import read_importance

        importance = read_importance(options.imatrix)
    digests = pool.submit(model.sha256) if options.digest and remote is None else None
    readings = pool.submit(lambda: readers.read_model(model) if readers else ())
    where = model.path if remote is None else remote.address
    header = AuditHeader(
        file=str(where),
        size=model.size,
        sha256=None,
        architecture=model.architecture,
        threads=options.threads,
        source=str(source.path) if source else None,
        imatrix=str(importance.path) if importance else None,
        imatrix_sha256=importance.sha256 if importance else None,
    )
    sample = sampled.sample if sampled is not None else None
    result = Audit(where, model.parts, header, n_tensors=len(model.tensors), sample=sample)
    ours = (*model.findings, *check_consistency(model), *(f for part in model.parts for f in coverage(part)))
    try:
        kind = Llama if options.llama and why_missing() is None else WithoutLlama
        with kind(options.time_limit, options.verbose, child) as llama, ExitStack() as stack:
            versions = llama.versions() if isinstance(llama, Llama) else None
            if versions is not None:
                result.header = replace(
                    header,
                    llama_cpp_python=versions["llama_cpp_python"],
                    llama_cpp=versions["llama_cpp"],
                    ggml=versions["ggml"],
                )
            examined = Examination(model, llama, options.threads, options.progress, sampled)
            if elsewhere is not None and remote is None:
                from .elsewhere import Examined

                known = Examined(model, source, importance, versions, digests.result if digests else model.sha256)
                examined.examiners = stack.enter_context(elsewhere(known))
            examined.read(tensors)
            if source is not None:
                from .source_keys import compare_keys

                examined.compare(tensors, source, importance)
                result.unmapped = source.unmapped
                result.source_keys, of_keys = compare_keys(model, source.metadata)
                ours += capped(of_keys)
        result.contents, result.fingerprints = tuple(examined.contents), examined.fingerprints()
        result.comparisons, result.fault = tuple(examined.comparisons), examined.fault
        result.unverified = examined.unverified
        ours += capped(examined.findings)
    except EnvironmentFault as fault:
        result.fault = str(fault)
        result.unverified = [(t.name, "not reached") for t in tensors]
    try:
        result.readings = readings.result()
        for part, of_part in zip(model.parts, result.readings, strict=False):
            ours += compare_readers(part, of_part, tuple(f for f in ours if f.part == part.part))
            result.unverified += not_compared(of_part)
    except EnvironmentFault as fault:
        result.fault = result.fault or str(fault)
    if digests:
        result.header = replace(
            result.header, sha256=tuple(digests.result()), source_sha256=tuple(source.sha256()) if source else None
        )
    result.findings = _sorted(ours)
    if any(of.changed for of in (model, source) if of is not None):
        result.changed, result.fault = True, "a file changed while it was read, so the findings may be wrong"
    return result


def select(model: Model, pattern: str | None) -> list[Tensor]:
    """Return the tensors whose names match. Raises UsageError if none does."""
    chosen = [t for name, t in model.tensors.items() if pattern is None or re.search(pattern, name)]
    if pattern is not None and not chosen:
        raise UsageError(f"no tensor matches {pattern!r}")
    return chosen


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.part, f.start, f.stop, f.id)))
